r"""Evaluates a policy on held-out prompts, or on files of prompts.

    grpo-evaluate --workdir=runs/quickstart
    grpo-evaluate --workdir=runs/mine \
        --data=math=math.jsonl --data=logic=logic.jsonl
    grpo-evaluate --checkpoint=path/of/checkpoint \
        --config=configs/checkpoint.py --data=math=math.jsonl \
        --out=runs/base.json

The policy is that of a run, or a Hugging Face checkpoint with a config for its
data, rewards and lengths. The program prints greedy accuracy with its 95 %
Wilson interval, over all prompts and over those whose completion could be
scored. It also prints avg@n, pass@k and maj@k of sampled completions with 95 %
bootstrap intervals over prompts; docs/evaluation.md defines them. The same
numbers go to evaluation.json in the workdir, or to --out.
--completions=FILE.jsonl keeps the completions.

A completion that could not be scored counts as not right. Exit status: 0; 1 if
the share of such completions is above config.rewards.max_unscored; 2 a mistake
in the command, the data or the workdir. Reward functions and environments that
the workdir's config names are imported and run, and a warning names those that
are not of this library: evaluate only workdirs of people whom you trust. On
several hosts, start the same command on each, as for grpo-train.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.cli import policies
from grpo_jax.training.runtime import files, terminal

if TYPE_CHECKING:
  from grpo_jax.training.evaluation import data_sets, scores

_POLICY = policies.define()
_DATA = flags.DEFINE_multi_string(
  "data",
  [],
  "NAME=FILE.jsonl, local or gs://, instead of the held-out prompts; may be"
  " given several times.",
)
_NUM_PROMPTS = flags.DEFINE_integer(
  "num_prompts",
  None,
  "The first so many prompts; by default as many held-out ones as in the run,"
  " and all of a file.",
  1,
)
_NUM_SAMPLES = flags.DEFINE_integer(
  "num_samples", 16, "Sampled completions per prompt.", 1
)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Of the samples.", 1e-6)
_TOP_P = policies.define_top_p()
_SEED = flags.DEFINE_integer("seed", 0, "Of the samples.", 0)
_BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", None, "Prompts per batch; by default as in the run.", 1
)
_LENGTHS = policies.define_lengths()
_OUT = flags.DEFINE_string(
  "out",
  None,
  "File of the figures, local or gs://; by default evaluation.json in the"
  " workdir, and none with --checkpoint.",
)
_COMPLETIONS = flags.DEFINE_string(
  "completions",
  None,
  "FILE.jsonl, local or gs://, for all completions; a line for each prompt.",
)


def main(argv: Sequence[str]) -> int:
  """Evaluates, prints tables and saves."""
  from grpo_jax.cli import report
  from grpo_jax.training.evaluation import data_sets
  from grpo_jax.training.runtime import hosts

  del argv
  data = _data()
  out, completions_file = (
    flags_lib.file_to_write(flag.name, flag.value, hosts.is_main())
    for flag in (_OUT, _COMPLETIONS)
  )
  if _POLICY.workdir.value and out is None:
    out = files.parse(_POLICY.workdir.value) / "evaluation.json"
  draws = data_sets.Draws(
    _TEMPERATURE.value, _NUM_SAMPLES.value, _TOP_P.value, _SEED.value
  )
  with terminal.waiting("loading"):
    loaded_run = _POLICY.opened(next(iter(data.values()), ""))
  with loaded_run as run:
    step, max_unscored = run.step, run.config.rewards.max_unscored
    loaded = data_sets.with_lengths(run.loaded, *(x.value for x in _LENGTHS))
    sets = data_sets.opened(loaded, data, _NUM_PROMPTS.value)
    with terminal.waiting("completing and scoring"):
      greedy, sampled = (
        data_sets.complete(loaded, sets, how, _BATCH_SIZE.value)
        for how in (data_sets.Draws(seed=draws.seed), draws)
      )
  failures = _failures(sets, greedy, sampled, max_unscored)
  if not hosts.is_main():
    return int(bool(failures))

  source = str(_POLICY.name)
  title = source if step is None else f"{source}, step {step}"
  how = f"{ranges.counted(draws.num_samples, 'sample')} each"
  how += f" at temperature {draws.temperature:g}"
  if draws.top_p is not None:
    how += f", top_p {draws.top_p:g}"
  summary = {
    "policy": source,
    "step": step,
    "num_samples": draws.num_samples,
    "temperature": draws.temperature,
    "top_p": draws.top_p,
    "seed": draws.seed,
    **_summary(sets, greedy, sampled),
  }
  terminal.say("\n".join(report.evaluation_tables(title, how, summary)))
  for failure in failures:
    terminal.say(flags_lib.wrapped(f"FAIL: {failure}"), "bold red")
  if completions_file is not None:
    lines = (
      line
      for arguments in zip(sets, greedy, sampled, strict=True)
      for line in data_sets.lines(*arguments)
    )
    files.write(completions_file, "".join(lines).encode())
    print(f"completions: {completions_file}")
  if out is not None:
    files.write(out, (json.dumps(summary, indent=2) + "\n").encode())
    print(f"saved: {out}")
  return int(bool(failures))


def _data() -> dict[str, str]:
  """Files of --data by name.

  Raises:
    ValueError: A file has no name, or two have the same.
  """
  paths: dict[str, str] = {}
  for entry in _DATA.value:
    name, _, path = entry.partition("=")
    if not name or not path:
      raise ValueError(f"--data={entry}: needs NAME=FILE.jsonl.")
    if name in paths:
      raise ValueError(
        f"--data={entry}: {paths[name]} has the same name; choose another one."
      )
    paths[name] = path
  return paths


def _failures(
  sets: Sequence[data_sets.DataSet],
  greedy: Sequence[scores.Groups],
  sampled: Sequence[scores.Groups],
  max_unscored: float,
) -> list[str]:
  """Names the sets in which too many completions could not be scored."""
  from grpo_jax.training.evaluation import data_sets
  from grpo_jax.training.problem import unscored

  failures = []
  for part, *pair in zip(sets, greedy, sampled, strict=True):
    for name, groups in zip(("greedy", "sampled"), pair, strict=True):
      valid = [row.valid for group in groups for row in group]
      excess = unscored.excess(valid.count(False), len(valid), max_unscored)
      if excess:
        where = "" if part.name == data_sets.HELD_OUT else f"{part.name}, "
        failures.append(f"{where}{name}: {excess}")
  return failures


def _summary(
  sets: Sequence[data_sets.DataSet],
  greedy: Sequence[scores.Groups],
  sampled: Sequence[scores.Groups],
) -> dict[str, dict]:
  """Section of each data set, and the means of several."""
  from grpo_jax.training.evaluation import scores

  sections, values = {}, []
  for one, first, several in zip(sets, greedy, sampled, strict=True):
    values.append(scores.per_prompt(first, several, one.golds))
    sections[one.name] = scores.section(values[-1], first, several, one.domains)
  summary: dict[str, dict] = {"data_sets": sections}
  if len(sets) > 1:
    summary["macro"] = scores.or_none(
      scores.macro(values), *([*itertools.chain(*x)] for x in (greedy, sampled))
    )
  return summary


run = functools.partial(
  flags_lib.run, main, several_processes=True, needs_config=False
)
