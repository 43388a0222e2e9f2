r"""Trains whatever is missing of the experiment on one flipped example.

    python -m experiments.bias.run --root=runs/bias --results=benchmarks/bias
    python -m experiments.bias.report --results=benchmarks/bias --out=docs

Each arm is a sweep of five seeds in one program, 1 to 2 minutes on 2 CPU cores
that do nothing else, and leaves ARM.json. What has ended is left alone.
--arms takes a regular expression: others wait.

Exit status: 0 all has ended, 1 something has failed, 143 stopped.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.bias import arms as arms_lib
from experiments.bias import results
from experiments.sweeps import cells as cells_lib
from grpo_jax.training import metrics_log

_ROOT = flags.DEFINE_string("root", "runs/bias", "Folder of all runs.")
_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/bias", "Folder of the files ARM.json."
)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_STOPPED = 143
_CONFIG = "experiments/bias/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, one after another."""
  del argv
  root, out = cells_lib.parse_root(_ROOT.value), pathlib.Path(_RESULTS.value)
  chosen = [name for name in arms_lib.ARMS if re.search(_ARMS.value, name)]
  if not chosen:
    raise ValueError(
      f"run: --arms={_ARMS.value} is found in no arm; they are"
      f" {', '.join(arms_lib.ARMS)}."
    )
  out.mkdir(parents=True, exist_ok=True)
  failed = []
  for name in chosen:
    if (out / f"{name}.json").exists():
      continue
    status = _run_arm(root / name, name, out / f"{name}.json")
    if status == _STOPPED:
      print("Stopped by a signal; the same command continues.")
      return status
    if status:
      failed.append(name)
  if failed:
    print(f"Failed: {', '.join(failed)}")
  return int(bool(failed))


def _run_arm(folder: pathlib.Path, name: str, out: pathlib.Path) -> int:
  """Runs the sweep of an arm, and writes its numbers; the exit status.

  A run that a guard halts counts as failed for the sweep, and not here.
  """
  folder.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  command = [
    *(sys.executable, "-m", "experiments.sweeps.run", "--launcher=vmap"),
    *(f"--root={folder}", f"--config={_CONFIG}:{name}"),
  ]
  with (folder / "output.txt").open("ab") as output:
    status = subprocess.run(
      command, check=False, stdout=output, stderr=subprocess.STDOUT
    ).returncode
  found = results.collected(folder)
  if found is None:
    print(f"{name}: exit status {status}, see {folder / 'output.txt'}")
    return status or 1
  seconds = round(time.monotonic() - started)
  metrics_log.write_json(out, found | {"seconds": seconds})
  print(f"{name}: {seconds} s", flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
