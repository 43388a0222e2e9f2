"""Evaluates a trained policy on held-out prompts.

    python -m experiments.evaluate --workdir=runs/quickstart

Prints greedy accuracy with its 95 % Wilson interval, over all prompts and over
those whose completion could be scored, and pass@k and maj@k of sampled
completions with 95 % bootstrap intervals over prompts; the same goes to
evaluation.json in the workdir. A completion that could not be scored is not
right. Exit status: 0; 1 if more of them could not than a share of
config.rewards.max_unscored; 2 a mistake in the command or the workdir. Reward
functions and environments that the workdir's config names are imported and run,
and a warning names those that are not of this library: evaluate workdirs of
people whom you trust. On several hosts the same command is started on each, as
that of experiments.train.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import jax
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.training import evaluation, hosts, paths, runs, unscored

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_NUM_PROMPTS = flags.DEFINE_integer(
  "num_prompts", None, "Held-out prompts; by default as in the run.", 1
)
_NUM_SAMPLES = flags.DEFINE_integer(
  "num_samples", 16, "Sampled completions per prompt.", 1
)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Of the samples.", 1e-6)
_SEED = flags.DEFINE_integer("seed", 0, "Of the samples.")


def main(argv: Sequence[str]) -> int:
  """Evaluates and prints a table."""
  del argv
  workdir = paths.parse(_WORKDIR.value)
  with runs.load(workdir, _STEP.value) as loaded:
    num_prompts = _NUM_PROMPTS.value or loaded.config.eval.num_prompts

    def results(temperature: float, num_samples: int):
      evaluator = evaluation.Evaluator(
        loaded.problem,
        loaded.policy,
        loaded.mesh,
        num_prompts,
        loaded.config.eval.batch_size,
        temperature=temperature,
        num_samples=num_samples,
      )
      return evaluator.completions(loaded.params, jax.random.key(_SEED.value))

    greedy = results(0.0, 1)
    sampled = results(_TEMPERATURE.value, _NUM_SAMPLES.value)

  num_unscored, failures = 0, []
  for name, results_of in (("greedy", greedy), ("sampled", sampled)):
    valid = [completion.valid for group in results_of for completion in group]
    num_unscored += valid.count(False)
    excess = unscored.excess(
      valid.count(False), len(valid), loaded.config.rewards.max_unscored
    )
    if excess:
      failures.append(f"{name}: {excess}")
  if not hosts.is_main():
    return int(bool(failures))

  rows = evaluation.table(greedy, sampled)
  print(
    f"{workdir}, step {loaded.step}: {len(greedy)} held-out prompts,"
    f" {_NUM_SAMPLES.value} samples each at temperature {_TEMPERATURE.value}"
  )
  for name, row in rows.items():
    value = "  –  " if row["value"] is None else f"{row['value']:.3f}"
    print(
      f"  {name:<13} {value}"
      f"   (95 % interval {row['low']:.3f}-{row['high']:.3f})"
    )
  print(f"  unscored      {num_unscored}")
  for failure in failures:
    print(flags_lib.wrapped(f"FAIL: {failure}"))
  table = {
    "step": loaded.step,
    "num_prompts": len(greedy),
    **rows,
    "unscored": num_unscored,
  }
  path = workdir / "evaluation.json"
  paths.write(path, (json.dumps(table, indent=2) + "\n").encode())
  print(f"saved: {path}")
  return int(bool(failures))


if __name__ == "__main__":
  flags_lib.run(main, several_processes=True)
