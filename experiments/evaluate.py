"""Evaluates a trained policy on held-out prompts.

    python -m experiments.evaluate --workdir=runs/quickstart

Prints greedy accuracy with its 95 % Wilson interval, and pass@k and maj@k of
sampled completions with 95 % bootstrap intervals over prompts; the same goes
to evaluation.json in the workdir. Reward functions and environments that the
workdir's config names are imported and run, and a warning names those that are
not of this library: evaluate workdirs of people whom you trust. On several
hosts the same command is started on each, as that of experiments.train.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import jax
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.training import evaluation, hosts, paths, runs

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

  if not hosts.is_main():
    return 0
  table = {"step": loaded.step, "num_prompts": len(greedy)}
  right = [group[0].correct for group in greedy if group[0].valid]
  table["greedy"] = _row(
    sum(right) / max(len(right), 1),
    evaluation.wilson_interval(sum(right), len(right)),
  )
  scored = [[c for c in group if c.valid] for group in sampled]
  scored = [group for group in scored if group]
  k = 1
  while k <= _NUM_SAMPLES.value:
    passes = [
      evaluation.pass_at_k(len(g), sum(c.correct for c in g), min(k, len(g)))
      for g in scored
    ]
    votes = [
      evaluation.majority_at_k([c.answer for c in g], [c.correct for c in g], k)
      for g in scored
    ]
    for name, values in ((f"pass@{k}", passes), (f"maj@{k}", votes)):
      table[name] = _row(
        sum(values) / max(len(values), 1),
        evaluation.bootstrap_interval(values or [0.0]),
      )
    k *= 2
  table["unscored"] = sum(not c.valid for g in (*greedy, *sampled) for c in g)

  print(
    f"{workdir}, step {table['step']}: {len(greedy)} held-out prompts,"
    f" {_NUM_SAMPLES.value} samples each at temperature {_TEMPERATURE.value}"
  )
  for name, row in table.items():
    if isinstance(row, dict):
      print(
        f"  {name:<10} {row['value']:.3f}"
        f"   (95 % interval {row['low']:.3f}-{row['high']:.3f})"
      )
  print(f"  unscored   {table['unscored']}")
  path = workdir / "evaluation.json"
  paths.write(path, (json.dumps(table, indent=2) + "\n").encode())
  print(f"saved: {path}")
  return 0


def _row(value: float, interval: tuple[float, float]) -> dict[str, float]:
  return {"value": value, "low": interval[0], "high": interval[1]}


if __name__ == "__main__":
  flags_lib.run(main, several_processes=True)
