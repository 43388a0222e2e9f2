r"""Runs an experiment, or writes its page and its figure.

    python -m experiments.science run entropy
    python -m experiments.science run entropy --size=smoke --arms='^grpo' \
        --root=runs/small --results=runs/small/results
    python -m experiments.science report entropy

`run` trains the arms that are missing. Each arm is a sweep over seeds in one
program, and leaves RESULTS/ARM.json. Arms that have ended are left alone, and
the same command continues a stopped arm. --arms takes a regular expression:
other arms wait.

`report` writes the page and the figure about the arms that have ended, into the
folder --out. Needs the extra `plot`.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from types import ModuleType

from absl import flags

from experiments.science import arms, experiments
from experiments.sweeps import cells
from grpo_jax.cli import flags as flags_lib

_ROOT = flags.DEFINE_string("root", "", "Folder of all runs: runs/NAME.")
_RESULTS = flags.DEFINE_string(
  "results", "", "Folder of the files ARM.json: benchmarks/NAME."
)
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_SIZE = flags.DEFINE_string("size", "full", "How much is computed.")


def main(argv: Sequence[str]) -> int:
  """Runs or reports; returns the exit status."""
  module, action = experiments.parsed(argv[1:])
  return {"run": _run, "report": _report}[action](module)


def _results(module: ModuleType) -> pathlib.Path:
  return pathlib.Path(_RESULTS.value or experiments.folder(module))


def _run(module: ModuleType) -> int:
  name = experiments.name_of(module)
  if _SIZE.value not in module.ALL.sizes:
    raise ValueError(
      f"--size={_SIZE.value}: {name} has {', '.join(module.ALL.sizes)}."
    )
  root = cells.parse_root(_ROOT.value or f"runs/{name}")
  job = arms.Job(module, root, _results(module), _SIZE.value)
  chosen = arms.chosen(experiments.arms_of(module), _ARMS.value)
  for folder in (root, job.out):
    folder.mkdir(parents=True, exist_ok=True)
  return arms.go_through(experiments.needed(module, chosen), job.run)


def _report(module: ModuleType) -> int:
  out = flags_lib.existing_folder(_OUT)
  written = experiments.write(module, _results(module), out)
  print(", ".join(map(str, written)))
  return 0


if __name__ == "__main__":
  flags_lib.run(main, takes_arguments=True)
