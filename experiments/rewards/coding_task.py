r"""Writes tasks for a coding agent.

    python -m experiments.rewards.coding_task --out=runs/coding_task
    python -m experiments.train --config=configs/coding_agent.py \
        --workdir=runs/coding_agent

writes a small task (`fault_problems.py`) with tokenizer and demonstrations, and
trains a small model on it.

    python -m experiments.rewards.coding_task --out=runs/repositories \
        --packages=toolz,humanize,sortedcontainers --tasks=200

writes packages with planted faults (`repositories.py`), for a model with a chat
template. For the same versions of packages and of Python, the bytes are the
same each time. Needs the extra `tools`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from experiments.rewards import fault_problems, repositories
from grpo_jax.cli import flags as flags_lib

_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
_PACKAGES = flags.DEFINE_list(
  "packages", [], "Installed packages to copy; empty: the small task."
)
_SIZE = flags.DEFINE_enum(
  "size", "module", ["module", "function"], "Parts of packages."
)
_TASKS = flags.DEFINE_integer("tasks", 200, "Most tasks of packages.", 1)
_PER_FUNCTION = flags.DEFINE_integer(
  "per_function", 4, "Most faults of a function of a package.", 1
)


def main(argv: Sequence[str]) -> int:
  """Writes the files to --out."""
  del argv
  out = pathlib.Path(_OUT.value)
  if not _PACKAGES.value:
    fault_problems.write(out)
    return 0
  counts = repositories.write(
    *(out, _PACKAGES.value, _SIZE.value, _TASKS.value, _PER_FUNCTION.value)
  )
  for name, count in counts.items():
    print(f"{out / name}.jsonl: {count} tasks")
  return 0


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
