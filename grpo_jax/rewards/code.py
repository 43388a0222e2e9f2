"""Rewards for programs that pass hidden tests, run in a sandbox.

A test is a dict in `extras["tests"]`, of one of two kinds:

    {"input": "3 4\\n", "output": "7"}     standard input and output
    {"call": "f(3)", "output": "9"}        an expression, and its `repr`

A program with tests of the first kind is run once for each, in a box of its
own. The calls of a row are evaluated one after another in one box, in the
process that ran the program: a call may see what an earlier one has changed, as
in any program. That leaks nothing, since no expected output is ever in a box,
and a box costs more than most programs.

The verdict is the host's: it compares texts, of standard outputs without white
space at the ends of lines and of the whole. A test is not passed if the program
crashes, ends with an error, takes too long, or writes too much. What remains
possible is to guess, and tests with few possible outputs are easily guessed.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.rewards import boxes, defences
from grpo_jax.rewards import sandbox as sandbox_lib

# Optional language, as `python` or `py3`, and the rest of the line; then the
# program, up to the closing fence or the end.
_FENCE = re.compile(
  r"^[ \t]*```(\w*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.M | re.S
)
_SHARE = 0.9  # Of the time for a row; the rest is for ending its last program.
_LEAST_S = 1.0  # For a run, most of it for a busy machine to make the box.
_LANGUAGES = ("", "py", "python", "python3", "py3")


def program_of(completion: str) -> str:
  """The program in a completion.

  It is the last block between ``` and ``` that is marked as Python or not at
  all; where there is none, the last <answer>…</answer>; else the whole text.
  A block that is not closed ends with the completion.
  """
  blocks = _FENCE.findall(completion)
  programs = [text for name, text in blocks if name.lower() in _LANGUAGES]
  if programs:
    return programs[-1]
  # No expression: one takes quadratic time where <answer> is written again and
  # again, and a row that takes too long is not wrong but unscored.
  before, end, _ = completion.rpartition("</answer>")
  _, start, program = before.rpartition("<answer>")
  return program.strip() if start and end else completion


def _lines(text: str) -> list[str]:
  return [line.rstrip() for line in text.rstrip().split("\n")]


def _checked(extra: Mapping[str, Any]) -> list[Mapping[str, str]]:
  """The tests of a row.

  Raises:
    KeyError: There is no field "tests".
    ValueError: There are no tests, or one is not of a known kind.
  """
  tests = extra["tests"]
  if not tests:
    raise ValueError("code: extras['tests'] is empty; needed is a test.")
  for test in tests:
    is_text = all(isinstance(value, str) for value in test.values())
    if (
      set(test) not in ({"input", "output"}, {"call", "output"}) or not is_text
    ):
      raise ValueError(
        f"code: a test in extras['tests'] is {test!r:.80}; needed are texts"
        " 'input' or 'call', and 'output'."
      )
  return list(tests)


def num_passed(
  box: boxes.Box,
  program: str,
  tests: Sequence[Mapping[str, str]],
  limits: defences.Limits,
  row_s: float,
) -> int:
  """How many tests a program passes.

  After the first one that takes too long, none of the others is run, and none
  for which there is hardly time to make a box: a program that leaves so little
  must not have its row unscored. The calls come first, and together have the
  time of one program.

  Args:
    box: For the program.
    program: Python.
    tests: The tests of the two kinds.
    limits: The limits of each run.
    row_s: Seconds for all of them.
  """
  end = time.monotonic() + row_s
  passed = 0

  def run(data: bytes, calls: Sequence[str] | None) -> boxes.Outcome:
    left = end - time.monotonic()
    within = dataclasses.replace(limits, wall_s=min(limits.wall_s, left))
    return box.run(program, data, calls, within)

  calls = [test for test in tests if "call" in test]
  inputs = [test for test in tests if "input" in test]
  if calls:
    outcome = run(b"", [test["call"] for test in calls])
    found = boxes.answers(outcome, len(calls))
    passed += sum(a == t["output"] for a, t in zip(found, calls, strict=True))
    if outcome.status in boxes.TOO_LONG:
      return passed
  for number, test in enumerate(inputs):
    is_first = not calls and number == 0
    least_s = min(_LEAST_S, limits.wall_s)
    if not is_first and end - time.monotonic() < least_s:
      break
    outcome = run(test["input"].encode(), None)
    if outcome.status in boxes.TOO_LONG:
      break
    said = outcome.output.decode("utf-8", "replace")
    right = _lines(said) == _lines(test["output"])
    passed += outcome.status == "done" and right
  return passed


def code(
  prompts: list[str],
  completions: list[str],
  ids: list[int],
  extras: list[dict],
  *,
  partial: bool = True,
  sandbox: str = "bwrap",
  timeout_s: float = 10.0,
  language: str = "python",
  cpu_s: int = 2,
  wall_s: float = 4.0,
  memory: int = 512 << 20,
) -> list[float | None]:
  """The share of hidden tests that each completion's program passes.

  A program that loops, crashes or floods has failed the tests in question: the
  value is a number, whatever a program does.

  Args:
    prompts: Decoded prompts, ignored.
    completions: Each with a program; see `program_of`.
    ids: Occurrences in the data stream, ignored.
    extras: Each with "tests". The policy never sees them.
    partial: False: 1.0 for all tests and 0.0 otherwise.
    sandbox: "bwrap", or "process", which holds nothing.
    timeout_s: Seconds that the caller waits for a row. Tests for which no time
      is left are not passed, so that slow programs are wrong and not unscored:
      let it be above `wall_s` times the number of tests that read input.
    language: Of the programs: "python".
    cpu_s: Whole seconds of a core for each run of a program.
    wall_s: Seconds for each run.
    memory: Bytes of address space.

  Raises:
    KeyError, ValueError: An element of `extras` has no tests, or others than
      these; or an argument is not known.
    RuntimeError: The sandbox cannot be made here, or has failed. Then nothing
      is known of the program: the row is unscored.
    TimeoutError: The box itself did not begin in `wall_s`. Likewise.
  """
  del prompts, ids
  if language != "python":
    raise ValueError(
      f"code: language={language!r}; needed is 'python', the only one."
    )
  box = sandbox_lib.require(sandbox)
  limits = defences.Limits(cpu_s=cpu_s, wall_s=wall_s, memory=memory)
  rewards: list[float | None] = []
  for completion, extra in zip(completions, extras, strict=True):
    tests = _checked(extra)
    program = program_of(completion)
    row_s = min(len(tests) * wall_s, _SHARE * timeout_s)
    share = num_passed(box, program, tests, limits, row_s) / len(tests)
    rewards.append(share if partial else float(share == 1.0))
  return rewards


def warm_up(sandbox: str = "bwrap") -> None:
  """Makes and tests the box, before the first row.

  Raises:
    RuntimeError: It cannot be made here, or does not hold.
  """
  sandbox_lib.require(sandbox)


# Called by each scoring process before its first row (`worker.main`).
code.warm_up = warm_up  # type: ignore[attr-defined]
