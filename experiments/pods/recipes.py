r"""Writes benchmarks/recipes.md: how devices share the update of each recipe.

    python -m experiments.pods.recipes          # what is missing, and the page
    python -m experiments.pods.recipes --sizes=  # the page alone
    python -m experiments.pods.recipes --sizes=128x8-8-16  # one size anew

Rows of a device and micro-batches are those of the published sizes. The bytes
that the update sends and its least time are those of a toy with two layers in
the place of the model. Its update alone is compiled for a slice of v5e, with
`fsdp` over all chips, by libtpu and without a TPU. A size, such as 128x8-8-16,
is prompts x completions - minibatches - chips; recipes of equal sizes share it.
A size takes half a minute or more, and is saved as soon as it is known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import pathlib
from collections.abc import Sequence

import jax
from absl import flags
from jax.sharding import AbstractDevice, AbstractMesh

from experiments.pods import chips, recorded, steps
from experiments.pods import flags as pod_flags
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.phases import build, executors
from grpo_jax.training.runtime import sharding

_ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = _ROOT / "benchmarks/recipes.md"
NAMES = sorted(
  path.stem
  for path in (_ROOT / "configs/recipes").glob("*.py")
  if path.stem != "models"
)
CHIPS = 16, 64
_SIZES = flags.DEFINE_list("sizes", None, "Sizes to compile; default: missing.")

_HEADING = """\
# Updates of the recipes on 16 and 64 chips

Written by `python -m experiments.pods.recipes`; nothing here has run on a TPU.
Rows are split over all chips (`--mesh=fsdp:16`, `--mesh=fsdp:64`). Each chip
has equally many rows of every micro-batch: recipes ask for 8 rows at a time,
which is rounded up to one row of each chip. If a minibatch has fewer groups
than chips, several chips have rows of a group. Sizes that cannot be shared are
refused, and what is wrong with them stands in the row. The last two columns are
of [a toy](../experiments/pods/recipes.py) with the sizes of the recipe: bytes
that a chip sends in the updates of a step, and the least time of these by the
vendor's rates. They show whether a path is out of proportion, and say nothing
about a real model. The command compiles the sizes that are still missing, and
keeps the others.

"""
_COLUMNS = (
  "recipe",
  "prompts × completions / minibatches",
  "chips",
  "rows of a chip",
  "micro-batches of a step",
  "chips of a group",
  "sent MB",
  "at least ms",
)


@functools.cache
def resolved(name: str) -> config_lib.RunConfig:
  """Returns a recipe with its published sizes."""
  module = importlib.import_module(f"grpo_jax.configs.recipes.{name}")
  config = module.get_config()
  config.allow_unpublished = True  # Nothing is trained.
  return config_lib.resolve(config)


def _size(phase: config_lib.PhaseConfig, num_chips: int) -> str:
  return (
    f"{phase.num_prompts}x{phase.group_size}-{phase.num_minibatches}"
    f"-{num_chips}"
  )


def plan(config: config_lib.RunConfig, name: str, num_chips: int) -> UpdatePlan:
  """Plan of a phase on a number of TPUs.

  Raises:
    ValueError: The rows do not split over the devices.
  """
  mesh = AbstractMesh(
    (1, num_chips, 1, 1),
    sharding.AXES,
    abstract_device=AbstractDevice("TPU", None, "tpu"),
  )
  build.rows(config, name, mesh)
  algorithm, _ = config.objective(name)
  return build.update_plan(
    config.section(name),
    config.data.max_prompt_len or 1,
    config.sampling.max_new_tokens or 1,
    mesh,
    couples_group=algorithm.couples_group,
  )


def _row(name: str, num_chips: int, found: dict[str, dict[str, float]]) -> str:
  config = resolved(name)
  phase = config.stages[-1]
  sizes = f"{phase.num_prompts} × {phase.group_size} / {phase.num_minibatches}"
  cells = [name, sizes, str(num_chips)]
  try:
    made = plan(config, config.phases[-1], num_chips)
  except ValueError as error:
    cells += [f"refused: {str(error).partition(' over')[0]}", *[""] * 4]
    return _line(cells)
  number = phase.num_epochs * phase.num_rows // made.micro_batch_size
  cells += [str(made.shard_size), str(number), str(made.group_parts)]
  shown = "not compiled", ""
  if costs := found.get(_size(phase, num_chips)):
    shown = (
      f"{costs['sent_bytes'] / 1e6:.1f}",
      f"{1e3 * costs['at_least_s']:.2f}",
    )
  return _line([*cells, *shown])


def page(found: dict[str, dict[str, float]]) -> str:
  """Text of the page, from the results of each size."""
  head = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
  rows = [_row(name, n, found) for name in NAMES for n in CHIPS]
  return "\n".join([_HEADING, *head, *rows, ""])


def _line(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _sizes() -> dict[str, tuple[config_lib.PhaseConfig, int]]:
  """Size -> a phase that has it and the chips, without those refused."""
  found = {}
  for name in NAMES:
    config = resolved(name)
    for num_chips in CHIPS:
      with contextlib.suppress(ValueError):
        plan(config, config.phases[-1], num_chips)
        phase = config.stages[-1]
        found[_size(phase, num_chips)] = phase, num_chips
  return found


def _compiled(
  phase: config_lib.PhaseConfig, num_chips: int
) -> dict[str, float]:
  """Bytes that the updates of a toy's step send, and their least time."""
  config = recorded.pod_config(
    algorithm="reinforce_pp",  # Groups may have any size.
    num_prompts=phase.num_prompts,
    group_size=phase.group_size,
    num_minibatches=phase.num_minibatches,
    num_epochs=phase.num_epochs,
    micro_batch_size=phase.micro_batch_size,
  )
  name, algorithm = config.algorithm
  config = dataclasses.replace(
    config,
    mesh=type(config.mesh)(fsdp=num_chips),
    algorithm=(name, dataclasses.replace(algorithm, kl_coef=0.0)),
  )
  of = chips.parse(f"v5e-{num_chips}")
  target = steps.Target(of, 1, chips.devices(of))
  with steps.described(config, target.devices) as step:
    state, prompts = step.arguments
    draw = functools.partial(step_lib.draw_stage, phase=step.phase)
    drawn = jax.eval_shape(draw, state, prompts)
    groups = sharding.abstract(drawn, sharding.of_rows(step.mesh, drawn))
    program = executors.jit_step(step.mesh, step_lib.learn_stage, step.phase)
    compiled = steps.compile_described(
      dataclasses.replace(step, program=program, arguments=(state, groups))
    )
  update = steps.phases(steps.analyze(compiled), target)["update"]
  return {key: update[key] for key in ("sent_bytes", "at_least_s")}


def records() -> dict[str, dict[str, float]]:
  """Recorded figures of each size."""
  path = PAGE.with_suffix(".json")
  return json.loads(path.read_text("utf-8")) if path.exists() else {}


def main(argv: Sequence[str]) -> int:
  """Compiles sizes, and writes their results and the page."""
  del argv
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_enable_compilation_cache", False)
  found, sizes = records(), _sizes()
  wanted = [size for size in sizes if size not in found]
  if _SIZES.value is not None:
    wanted = pod_flags.chosen(_SIZES, sizes)
  for size in wanted:
    print(f"{size} ...", flush=True)
    found[size] = _compiled(*sizes[size])
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    PAGE.with_suffix(".json").write_text(text, encoding="utf-8")
    jax.clear_caches()
  PAGE.write_text(page(found), encoding="utf-8")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
