r"""Trains the missing arms of the experiment on stages.

    python -m experiments.stages.run --root=runs/stages \
        --results=benchmarks/stages
    python -m experiments.stages.report --results=benchmarks/stages --out=docs

The base is one run, each arm a sweep of five seeds in one program. The
completions that the smaller model imitates are drawn from the first seed of an
arm. Each of them leaves NAME.json. A run that was stopped goes on from its last
checkpoint with the same command, and arms that have ended are left alone.
--arms takes a regular expression: other arms wait. All together take about
twenty minutes on 2 CPU cores.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.stages import arms as arms_lib
from experiments.stages import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import log

_ROOT = flags.DEFINE_string("root", "runs/stages", "Folder of all runs.")
_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/stages", "Folder of the files NAME.json."
)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_CONFIG = "experiments/stages/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  out = pathlib.Path(_RESULTS.value)
  root.mkdir(parents=True, exist_ok=True)
  out.mkdir(parents=True, exist_ok=True)
  chosen = sweeps_lib.chosen(arms_lib.ARMS, _ARMS.value)
  needed = arms_lib.with_needed(chosen)
  return sweeps_lib.go_through(needed, functools.partial(_run, root, out))


def _run(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the base, an arm, or the sampling; returns its exit status."""
  if name == arms_lib.BASE:
    return _run_base(root, out)
  if name == arms_lib.KEPT:
    return _draw(root, out)
  overrides = []
  if name not in (arms_lib.SMALL_LABELS, arms_lib.SMALL_KEPT):
    overrides.append(f"--config.start_workdir={results.base(root)}")
  if name == arms_lib.SMALL_KEPT:
    overrides.append(f"--config.sft.demonstrations={results.kept(root)}")
  config = f"{_CONFIG}:{name}"
  collected = functools.partial(sweeps_lib.collected, results.of_run)
  return sweeps_lib.record(out, root / name, config, overrides, collected)


def _run_base(root: pathlib.Path, out: pathlib.Path) -> int:
  workdir, status = results.base(root), 0
  if cells_lib.read_result(workdir) is None:
    status = sweeps_lib.timed(
      root / arms_lib.BASE,
      "experiments.train",
      f"--config={_CONFIG}:{arms_lib.BASE}",
      f"--workdir={workdir}",
    )
  found = cells_lib.read_result(workdir)
  if found is not None:
    accuracy = found["after"]["eval/accuracy"]
    _write(out, root, arms_lib.BASE, {"accuracy": accuracy})
  return status


def _draw(root: pathlib.Path, out: pathlib.Path) -> int:
  """Keeps right completions; a file that is complete stays as it is."""
  teacher, status = root / arms_lib.TEACHER, 0
  if not sweeps_lib.has_ended(teacher):
    return 1
  if results.num_drawn(root) is None:
    status = _generate(root, teacher)
  tokens = results.num_drawn(root)
  if tokens is not None:
    _write(out, root, arms_lib.KEPT, {"tokens": tokens})
  return status


def _write(
  out: pathlib.Path, root: pathlib.Path, name: str, found: dict[str, Any]
) -> None:
  taken = {"seconds": sweeps_lib.seconds(root / name)}
  log.write_json(out / f"{name}.json", found | taken)


def _generate(root: pathlib.Path, teacher: pathlib.Path) -> int:
  return sweeps_lib.timed(
    root / arms_lib.KEPT,
    "experiments.generate",
    f"--workdir={teacher / next(iter(cells_lib.read_manifest(teacher)))}",
    "--prompts=train",
    f"--num_prompts={results.NUM_DRAWN}",
    "--num_samples=4",
    "--keep=1",
    f"--out={results.kept(root)}",
  )


if __name__ == "__main__":
  flags_lib.run(main)
