r"""What images cost: a step with and without them, of as many tokens.

    python -m experiments.benchmarks.images --preset=S --json=images.json

The fused step of `experiments.benchmarks.step`, with the model and the lengths
of its preset. Half of the tokens of a prompt hold the place of an image, each
that of 2 x 2 patches of 14 x 14 pixels. Four cases, in the same rounds:

| case     | the model has a tower | prompts have images |
|----------|-----------------------|---------------------|
| tokens   | no                    | no                  |
| unused   | yes                   | no                  |
| frozen   | yes, not trained      | yes                 |
| images   | yes                   | yes                 |

The floor of the tower is the time that its products of matrices take at the
rate of a large product, which is measured in the same rounds. A forward pass
over N patches of F numbers, with L layers of width D and an MLP of width M, and
R tokens of merge² patches for a language model of width W, has

    2 N (F D + L (4 D² + 2 D M)) + 4 L D N² + 2 R merge² D W

FLOPs for each prompt. A step has one such pass in the rollout, and three in the
update, whose backward pass has two products for each of the forward's; a frozen
tower has one in each. Of the flags of that program, the sizes, --repeats and
--json are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from experiments.benchmarks import inputs, timing, workload
from experiments.benchmarks import step as step_benchmark
from grpo_jax.learning import stages
from grpo_jax.models.tower_parts import TowerConfig
from grpo_jax.training import drivers, sharding
from grpo_jax.training.tower_settings import TowerSettings
from grpo_jax.types import Images, Prompts

# Name -> (has a tower, which is trained, and prompts with images).
CASES = {
  "tokens": (False, False, False),
  "unused": (True, True, False),
  "frozen": (True, False, True),
  "images": (True, True, True),
}


def tower_of(work: workload.Work, trained: bool = True) -> TowerSettings:
  """As wide and as deep as the language model."""
  return TowerSettings(
    kind="siglip",
    width=work.hidden,
    num_layers=work.layers,
    num_heads=work.heads,
    mlp_width=4 * work.hidden,
    patch_size=14,
    merge=2,
    side=16,
    trained=trained,
    image_token=work.vocab - 1,
  )


def num_places(work: workload.Work) -> int:
  """Tokens of a prompt that hold the place of an image."""
  return work.prompt_len // 2


def forward_flops(
  tower: TowerConfig, work: workload.Work, num_tokens: int
) -> float:
  """FLOPs of a pass over the images of all prompts; products alone.

  Args:
    tower: Its sizes.
    work: The prompts, and the width of the language model.
    num_tokens: R, of each prompt.
  """
  patches, width = num_tokens * tower.patches_per_token, tower.width
  per_patch = tower.patch_width * width
  per_patch += tower.num_layers * (4 * width**2 + 2 * width * tower.mlp_width)
  per_patch += width * work.hidden  # The connector.
  pairs = 4 * tower.num_layers * width * patches**2
  return work.prompts * (2.0 * patches * per_patch + pairs)


def with_images(
  prompts: Prompts, tower: TowerSettings, num_tokens: int
) -> Prompts:
  """Prompts whose first tokens hold the places of one random image each."""
  tokens = np.minimum(prompts.tokens, tower.image_token - 1)
  tokens[:, :num_tokens] = tower.image_token
  rows, columns = tower.merge, num_tokens * tower.merge  # A strip of patches.
  block, row, column = np.indices((num_tokens, rows, rows)).reshape(3, -1)
  place = np.stack([row, block * rows + column], axis=1)
  shape = len(tokens), len(place)
  arrays: dict[str, Any] = {
    "patches": np.random.default_rng(2)
    .normal(size=(*shape, tower.patch_width))
    .astype(np.float32),
    "image": np.zeros(shape, np.int32),
    "place": np.tile(place.astype(np.int32), (shape[0], 1, 1)),
    "grid": np.tile(np.array([[rows, columns]], np.int32), (shape[0], 1, 1)),
  }
  return dataclasses.replace(prompts, tokens=tokens, images=Images(**arrays))


class Case:
  """One compiled step."""

  def __init__(self, name: str, work: workload.Work, mesh: jax.sharding.Mesh):
    has_tower, is_trained, sees = CASES[name]
    self.work = work
    tower = tower_of(work, is_trained)
    with contextlib.closing(inputs.make_problem(work, "fused")) as of:
      parts, self._state = inputs.make_parts(
        *(work, of, mesh), tower=tower if has_tower else None
      )
    self.parameters = sum(x.size for x in jax.tree.leaves(self._state.params))
    passes = (4 if is_trained else 2) if sees else 0
    self.flops = passes * forward_flops(tower, work, num_places(work))
    prompts = inputs.make_batch(work).prompts
    if sees:
      prompts = with_images(prompts, tower, num_places(work))
    self._prompts = jax.device_put(prompts, sharding.by_rows(mesh))
    self.program = timing.compiled(
      drivers.jit_step(mesh, stages.fused_step, parts),
      self._state,
      self._prompts,
    )

  def __call__(self) -> None:
    """Runs a step."""
    self._state, metrics, _ = jax.block_until_ready(
      self.program.call(self._state, self._prompts)
    )
    written = int(metrics["tokens/generated"])
    if written != self.work.rows * self.work.completion_len:
      raise RuntimeError(f"a step wrote {written} tokens, not all slots.")


def measure(work: workload.Work, repeats: int) -> dict[str, Any]:
  """Seconds, bytes and floors of all cases."""
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    cases = {name: Case(name, work, mesh) for name in CASES}
    size = 2048
    product = jax.jit(jnp.matmul)
    x = jax.random.normal(jax.random.key(0), (size, size), work.dtype)
    seconds = timing.measure(
      {"product": lambda: product(x, x), **cases}, repeats
    )
  rate = 2 * size**3 / min(seconds["product"])
  rows = {
    name: {
      **timing.spread(seconds[name]),
      "of_tokens": statistics.median(
        a / b for a, b in zip(seconds[name], seconds["tokens"], strict=True)
      ),
      "tower_gflops": case.flops / 1e9,
      "tower_floor_s": case.flops / rate,
      "program_bytes": case.program.bytes,
      "parameters": case.parameters,
      "compile_s": case.program.compile_s,
    }
    for name, case in cases.items()
  }
  tower = tower_of(work)
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "jax": jax.__version__,
    "work": dataclasses.asdict(work),
    "tower": dataclasses.asdict(tower),
    "patches": num_places(work) * tower.patches_per_token,
    "gflops_per_s": rate / 1e9,
    "repeats": repeats,
    "cases": rows,
  }


def table(results: dict[str, Any]) -> str:
  """What was measured, in Markdown."""
  work = results["work"]
  lines = [
    f"{results['date']}, {results['device']}, {results['cores']} cores, JAX"
    f" {results['jax']}, {results['gflops_per_s']:.0f} GFLOP/s; hidden"
    f" {work['hidden']}, {work['layers']} layers, {work['prompts']} prompts of"
    f" {work['prompt_len']} tokens, {results['patches']} patches,"
    f" {work['group']} completions of {work['completion_len']} tokens; median"
    f" of {results['repeats']}",
    "",
    "| | step, s | × tokens | tower, GFLOP | its floor, s | MiB"
    " | parameters, M |",
    "|---|---|---|---|---|---|---|",
  ]
  lines += [
    f"| {name} | {row['median_s']:.2f} | {row['of_tokens']:.2f}"
    f" | {row['tower_gflops']:.1f} | {row['tower_floor_s']:.2f}"
    f" | {row['program_bytes'] / 2**20:.0f} | {row['parameters'] / 1e6:.2f} |"
    for name, row in results["cases"].items()
  ]
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  """Measures, prints the table and writes the file."""
  del argv
  results = measure(step_benchmark.work_of_flags(), flags.FLAGS.repeats)
  print(table(results))
  if flags.FLAGS.json:
    text = json.dumps(results, indent=2) + "\n"
    pathlib.Path(flags.FLAGS.json).write_text(text, encoding="utf-8")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
