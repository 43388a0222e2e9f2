"""Checks data and verifiers for mistakes before a training.

    grpo-lint --config=configs/jsonl.py \
        --config.data.train_path=prompts.jsonl
    grpo-lint --config=configs/jsonl.py \
        --config.data.train_path=prompts.jsonl \
        --workdir=runs/mine --out=runs/quarantine.json

It reports copies and near-copies of prompts, too few prompts for the size of a
step, one prompt that is most of the data, one prompt with two labels,
attributes that give the label away, and verifiers that accept wrong answers.
With --workdir, the policy of a run answers each prompt 16 times, and labels
that 12 of its answers contradict are reported. --out writes the records with
problems; with --config.data.quarantine=FILE a run leaves them out.

Exit status: 0, 1 if there are errors, 2 a mistake in the command or the config.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.data import quality
from grpo_jax.data.quality import Finding
from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import files

if TYPE_CHECKING:
  from grpo_jax.training.problem import problem as problem_lib

_CONFIG = flags_lib.define_config()
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "A run whose policy is trusted, local or gs://."
)
_NUM_RECORDS = flags.DEFINE_integer(
  "num_records", 20_000, "The first so many training records.", 1
)
_NUM_SAMPLED = flags.DEFINE_integer(
  "num_sampled", 512, "Of these, so many for the policy of --workdir.", 1
)
_OUT = flags.DEFINE_string(
  "out", None, "JSON file for the records that were found, local or gs://."
)
_NUM_SAMPLES = 16


def main(argv: Sequence[str]) -> int:
  """Checks the data, prints the findings, and writes their records (--out)."""
  from grpo_jax.training.evaluation import lint
  from grpo_jax.training.problem import problem as problem_lib

  del argv
  config = config_lib.resolve(_CONFIG.value)
  problem = problem_lib.make_problem(config)
  try:
    number = min(_NUM_RECORDS.value, len(problem.train))
    findings = lint.records(config, problem, number)
    findings += lint.verifier(config, problem)
    if workdir := _WORKDIR.value:
      num_sampled = min(_NUM_SAMPLED.value, number)
      findings += _disagreements(problem, workdir, num_sampled)
    for finding in findings:
      kind = "ERROR" if finding.is_error else "warning"
      print(flags_lib.wrapped(f"{kind}, {finding.check}: {finding.message}"))
    num_errors = sum(finding.is_error for finding in findings)
    print(
      f"{ranges.counted(number, 'record')}: {num_errors} errors,"
      f" {len(findings) - num_errors} warnings"
    )
    if out := _OUT.value:
      _write(problem, out, findings)
  finally:
    problem.close()
  return int(num_errors > 0)


def _disagreements(
  problem: problem_lib.Problem, workdir: str, number: int
) -> list[Finding]:
  from grpo_jax.training.evaluation import data_sets, lint
  from grpo_jax.training.phases import checkpointed

  draws = data_sets.Draws(temperature=1.0, num_samples=_NUM_SAMPLES)
  with contextlib.ExitStack() as stack:
    loaded = checkpointed.opened(stack, files.parse(workdir))
    train = data_sets.DataSet("train", problem.train, number)
    (completions,) = data_sets.complete(loaded, [train], draws)
  return lint.disagreements(completions)


def _write(
  problem: problem_lib.Problem, out: str, findings: Sequence[Finding]
) -> None:
  """Writes each record with a problem, with the reasons."""
  reasons: dict[int, list[str]] = {}
  for finding in findings:
    for number in finding.records:
      reasons.setdefault(number, []).append(finding.check)
  lines = quality.described(problem.train, reasons)
  path = files.parse(out)
  files.write(path, (json.dumps(lines, indent=2) + "\n").encode())
  print(f"{ranges.counted(len(lines), 'record')}: {path}")


run = functools.partial(flags_lib.run, main)
