"""GSM8K as one compiled program, beside the same run with the host between.

    TFDS_DATA_DIR=... python -m experiments.rewards.one_program \
        --out=/tmp/one_program

The program trains `configs/gsm8k_cpu.py` twice with one seed, with
config.rewards.in_graph=True and False. It compares the records of both runs:
the completions of every step, row by row, their rewards, the numbers of each
update, and the seconds of a step. A run that is in the folder already is not
repeated.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import log

_OUT = flags.DEFINE_string("out", None, "Folder of the runs.", required=True)
_SFT = flags.DEFINE_integer("sft_steps", 150, "Steps of the warm start.", 0)
_RL = flags.DEFINE_integer("rl_steps", 20, "Steps to be compared.", 2)
_ROWS = flags.DEFINE_integer("group_size", 8, "Completions of a prompt.", 2)
# Numbers of an update that both should have.
_NUMBERS = ("reward/mean", "loss", "gradient_norm", "entropy/mean")


def _train(workdir: pathlib.Path, in_graph: bool, argv: Sequence[str]) -> None:
  if (workdir / log.RESULT).exists():
    return
  settings = {
    "sft.steps": _SFT.value,
    "rl.steps": _RL.value,
    "rl.group_size": _ROWS.value,
    "rl.optimizer.schedule": "constant",
    "rewards.in_graph": in_graph,
    "eval.num_prompts": 16,
    "eval.every": 0,
    "log.samples_every": 1,
    "log.num_samples": 8 * _ROWS.value,
    "checkpoint.every": 0,
  }
  subprocess.run(
    [
      *(sys.executable, "-m", "experiments.train"),
      *("--config=configs/gsm8k_cpu.py", f"--workdir={workdir}"),
      *(f"--config.{name}={value}" for name, value in settings.items()),
      *argv,
    ],
    check=True,
    stdout=subprocess.DEVNULL,
  )


def compared(one: pathlib.Path, split: pathlib.Path) -> list[str]:
  """Comparison of two runs, a line for each figure."""
  both = [log.read_lines(path / log.SAMPLES) for path in (one, split)]
  pairs = list(zip(*both, strict=True))
  same = [a for a, b in pairs if a["completion"] == b["completion"]]
  equal = [
    (a, b)
    for a, b in pairs
    if a["completion"] == b["completion"] and a["components"] == b["components"]
  ]
  lines = [
    f"rows: {len(pairs)}, with the same completion: {len(same)}, and with the"
    f" same rewards: {len(equal)}",
  ]
  for name in sorted(pairs[0][0]["components"]):
    values = [a["components"][name] for a, _ in pairs]
    lines.append(f"  {name}: above 0 in {sum(x > 0 for x in values)} rows")
  steps = [
    [
      line
      for line in log.read_lines(path / log.METRICS)
      if line["phase"] == "rl" and "loss" in line
    ]
    for path in (one, split)
  ]
  for name in _NUMBERS:
    gap = max(_gap(a[name], b[name]) for a, b in zip(*steps, strict=True))
    lines.append(f"  {name}: differs by at most {gap:.2g} in a step")
  for path, what in ((one, "one program"), (split, "host between")):
    times = [
      line["time/step_s"]
      for line in log.read_lines(path / log.TIMINGS)
      if line["phase"] == "rl"
    ]
    # The first step is compiled.
    lines.append(
      f"seconds per step, {what}: median {statistics.median(times[1:]):.3f}"
      f" ({min(times[1:]):.3f}-{max(times[1:]):.3f})"
    )
  return lines


def _gap(a: Any, b: Any) -> float:
  return abs((a or 0.0) - (b or 0.0))


def main(argv: Sequence[str]) -> int:
  """Trains, compares and prints."""
  folder = pathlib.Path(_OUT.value)
  one, split = folder / "one_program", folder / "split"
  for path, in_graph in ((one, True), (split, False)):
    _train(path, in_graph, argv[1:])
  print("\n".join(compared(one, split)))
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
