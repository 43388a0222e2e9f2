r"""Tries Harbor's tasks in the sandbox, and writes those that work as records.

    python -m experiments.rewards.harbor_tasks --tasks=tasks --out=runs/harbor

A task works if its solution earns more than nothing does. It may not: a test
that needs the network, or a package of the image, fails whatever a policy does.
The command prints both rewards of each task, and the lines of its Dockerfile
that are not followed. Needs the extra `tools`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.rewards.agents import harbor, tools

_TASKS = flags.DEFINE_string("tasks", None, "Folder of tasks.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
_HELD_OUT = flags.DEFINE_integer(
  "held_out", 0, "Number of tasks, the last ones, that go to test.jsonl.", 0
)


def tried(folder: pathlib.Path) -> tuple[str, dict[str, Any] | None]:
  """Returns a line about a task, and its record; None if it does not work."""
  try:
    task = harbor.read(str(folder))
  except (FileNotFoundError, ValueError) as error:
    return f"{error}", None
  options = tools.Options()
  try:
    nothing = harbor.Trial(task, options).reward()
  except (RuntimeError, TimeoutError):
    nothing = float("-inf")  # A test that needs files may write no reward.
  trial = harbor.Trial(task, options)
  try:
    said = trial.solve()
    solved = trial.reward()
  except (FileNotFoundError, RuntimeError, TimeoutError) as error:
    return f"{error}", None
  line = f"{nothing:g} for nothing, {solved:g} for the solution"
  for text in dict.fromkeys(task.image.left_out + task.verifier.left_out):
    line += f"\n  not followed: {text}"
  if solved <= nothing:
    return f"{line}\n  does not work; the solution said {said[-300:]!r}", None
  extras = {"task": str(folder.resolve())}
  return line, {"prompt": task.instruction, "extras": extras}


def main(argv: Sequence[str]) -> int:
  """Writes train.jsonl and test.jsonl; the status is 1 if no task works."""
  del argv
  records = []
  for file in sorted(pathlib.Path(_TASKS.value).glob("**/task.toml")):
    line, record = tried(file.parent)
    print(f"{file.parent.name}: {line}", flush=True)
    records += [record] if record else []
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  first = max(len(records) - _HELD_OUT.value, 0)
  for name, part in (("train", records[:first]), ("test", records[first:])):
    lines = "".join(json.dumps(record) + "\n" for record in part)
    (out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    print(f"{out / name}.jsonl: {len(part)} tasks")
  return int(not records)


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
