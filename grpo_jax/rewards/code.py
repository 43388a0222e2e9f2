"""Rewards for programs that pass hidden tests, run in a sandbox.

`hidden_tests.py` reads the tests of a row: inputs with outputs, and calls with
results.

A program is run once for each input, in a box of its own. The calls of a row
are evaluated one after another in one box, in the process that ran the program:
a call may see what an earlier one has changed, as in any program. That leaks
nothing, since no expected output is ever in a box, and a box costs more than
most programs.

The verdict is the host's: it compares values, or texts without white space at
the ends of lines and of the whole. A test is not passed if the program crashes,
ends with an error, takes too long, or writes too much. What remains possible is
to guess, and tests with few possible outputs are easily guessed.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
import time
from collections.abc import Sequence
from typing import NamedTuple

from grpo_jax.rewards import hidden_tests
from grpo_jax.rewards.sandbox import boxes, defences
from grpo_jax.rewards.sandbox import sandbox as sandbox_lib

# A tag, or a fence at the beginning of a line or behind a tag: its signs, and
# the rest of the line. Each character is read a fixed number of times.
_MARK = re.compile(
  r"(?P<indent>^[ \t]*)?(?P<tag></?(?:think|answer)>)"
  r"|(?:^|(?<=think>)|(?<=answer>))[ \t]*(?P<fence>`{3,}|~{3,})"
  r"(?P<rest>[^\n]*?)(?=</?(?:think|answer)>|$)\n?",
  re.M,
)
_LANGUAGE = re.compile(r"[ \t]*\W?(\w*)")
_SHARE = 0.9  # Of the time for a row; the rest is for ending its last program.
_LEAST_S = 1.0  # For a run, most of it for a busy machine to make the box.
_LANGUAGES = ("", "py", "python", "python3", "py3")


class _Block(NamedTuple):
  """A block between fences.

  Attributes:
    language: As it is marked, in small letters; often empty.
    start, end: Of its text.
  """

  language: str
  start: int
  end: int


def _marks(completion: str) -> tuple[list[re.Match[str]], list[_Block]]:
  """The tags and the blocks of a completion.

  In a block that is closed, a tag counts only at the beginning of a line, where
  it ends the block: programs have tags in their texts. A fence with one word
  behind it begins a block, also if the block before was not closed.
  """
  tags: list[re.Match[str]] = []
  inside: list[re.Match[str]] = []
  blocks: list[_Block] = []
  opened: re.Match[str] | None = None
  for mark in _MARK.finditer(completion):
    if mark["tag"]:
      if opened is not None and mark["indent"] is None:
        inside.append(mark)
        continue
      tags.append(mark)
    elif opened is not None and not mark["fence"].startswith(opened["fence"]):
      continue  # A shorter one, or one of other signs, is text of the block.
    if opened is not None:
      blocks.append(_block(opened, mark.start()))
      inside.clear()
    rest = (mark["rest"] or "").strip()
    begins = mark["fence"] and "`" not in rest
    opened = mark if begins and (opened is None or rest.isalnum()) else None
  if opened is not None:
    blocks.append(_block(opened, len(completion)))
  return tags + inside, blocks


def _block(opened: re.Match[str], end: int) -> _Block:
  language = _LANGUAGE.match(opened["rest"])
  return _Block(language[1].lower() if language else "", opened.end(), end)


def _place(tags: Sequence[re.Match[str]], size: int) -> tuple[int, int] | None:
  """Where the answer of a completion stands, by its tags; None: nowhere."""
  last = {mark["tag"]: number for number, mark in enumerate(tags)}
  thought = last.get("</think>", -1)
  start = tags[thought].end() if thought >= 0 else 0
  tags = tags[thought + 1 :]
  begun = [mark for mark in tags if mark["tag"] == "<answer>"]
  if begun:
    ended = [mark.start() for mark in tags if mark["tag"] == "</answer>"]
    end = ended[-1] if ended and ended[-1] > begun[0].start() else size
    return max(mark.end() for mark in begun if mark.start() < end), end
  thoughts = [mark.start() for mark in tags if mark["tag"] == "<think>"]
  if thoughts and thought < 0:
    return None
  return start, min([size, *thoughts])


def program_of(completion: str) -> str | None:
  """The program in a completion, or None.

  The rules of `answers.py` say where an answer stands: behind the thoughts, and
  in the last <answer>…</answer> if one is opened. There the program is the last
  block that is marked as Python, else the last one that is not marked, else the
  whole of it. A block that is not closed ends with the answer, and an empty one
  is none.

  Takes time linear in the text: a row that takes too long is not wrong but
  unscored.
  """
  tags, blocks = _marks(completion)
  place = _place(tags, len(completion))
  if place is None:
    return None
  start, end = place
  programs: dict[bool, str] = {}
  for block in blocks:
    program = completion[block.start : min(block.end, end)]
    is_inside = start <= block.start <= end and not program.isspace()
    if is_inside and program and block.language in _LANGUAGES:
      # A block of a list is indented.
      is_indented = program.lstrip("\r\n")[:1] in (" ", "\t")
      programs[bool(block.language)] = (
        textwrap.dedent(program) if is_indented else program
      )
  for is_marked in (True, False):
    if is_marked in programs:
      return programs[is_marked]
  whole = completion[start:end]
  return (whole.strip() or None) if tags else whole


def num_passed(
  box: boxes.Box,
  program: str,
  tests: Sequence[hidden_tests.Test],
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

  calls = [test for test in tests if test.call is not None]
  inputs = [test for test in tests if test.call is None]
  if calls:
    outcome = run(b"", [str(test.call) for test in calls])
    found = boxes.answers(outcome, len(calls))
    passed += sum(t.passes(a) for t, a in zip(calls, found, strict=True))
    if outcome.status in boxes.TOO_LONG:
      return passed
  for number, test in enumerate(inputs):
    is_first = not calls and number == 0
    least_s = min(_LEAST_S, limits.wall_s)
    if not is_first and end - time.monotonic() < least_s:
      break
    outcome = run(test.input.encode(), None)
    if outcome.status in boxes.TOO_LONG:
      break
    said = outcome.output.decode("utf-8", "replace")
    passed += outcome.status == "done" and test.passes(said)
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
    extras: Each with "tests", or another of `hidden_tests.FIELDS`. The policy
      never sees them.
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
    tests = hidden_tests.of_row(extra)
    program = program_of(completion)
    row_s = min(len(tests) * wall_s, _SHARE * timeout_s)
    share = 0.0
    if program is not None:
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
