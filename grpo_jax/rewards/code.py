r"""Rewards for programs that pass hidden tests, run in a sandbox.

A program is run once for each input, in a box of its own. The calls of a row
are evaluated one after another in one box, in the process that ran the program:
a call may see what an earlier one has changed, as in any program. That leaks
nothing, since no expected output is ever in a box, and a box costs more than
most programs.

The host decides: it compares values, or texts without white space at the ends
of lines and of the whole. A test is not passed if the program crashes, ends
with an error, takes too long, or writes too much. A program can still guess,
and tests with few possible outputs are easily guessed.

`read` takes tests in the forms in which data sets publish them. Ours is a list
of dicts, of one of two kinds:

    {"input": "3 4\n", "output": "7"}     standard input and output
    {"call": "f(3)", "output": "9"}       an expression, and its `repr`

These forms are read too, also as JSON text, and from the columns that hold
them:

    {"inputs": [...], "outputs": [...]}   `input_output` of APPS and TACO, with
                                          "fn_name" for calls of a function
    {"ground_truth": <the above>}         `reward_model` of PRIME
    {"test_cases": [...]}                 `verification_info` of Open-R1
    {"input": [...], "output": [...]}     `public_tests`, `private_tests` and
                                          `generated_tests` of CodeContests,
                                          joined; so are LiveCodeBench's columns
    [{"input": ..., "output": ..., "testtype": "functional",
      "metadata": {"func_name": ...}}]    LiveCodeBench; also "type" and
                                          "fn_name", as Open-R1 has them

With the name of a function, an input has its arguments: a list, or a line of
JSON for each. Its result is compared as a value, as these data sets do: a tuple
equals a list, 3.0 equals 3, and the only element of an expected list is enough.
A function may be a method of a class `Solution`.

Sources: Hendrycks et al., "Measuring Coding Challenge Competence With APPS",
arXiv:2105.09938; Li et al., "TACO", arXiv:2312.14852; Cui et al., "Process
Reinforcement through Implicit Rewards", arXiv:2502.01456; Jain et al.,
"LiveCodeBench", arXiv:2403.07974.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax import strict_json
from grpo_jax.rewards import registry
from grpo_jax.rewards.sandbox import box as box_lib

# Fields of `extras` that may hold the tests; the first that exists is read.
FIELDS = (
  *("tests", "input_output", "reward_model", "ground_truth"),
  *("verification_info", "test_cases"),
)
# Columns that together hold the tests.
_COLUMNS = (
  *("public_tests", "private_tests", "generated_tests"),
  *("public_test_cases", "private_test_cases"),
)
_NEEDED = (
  "needs a list of {'input': text, 'output': text} or {'call': expression,"
  " 'output': its repr}, or another form that docs/sandbox.md has"
)
_OF_FUNCTIONS = ("functional", "function_call", "call_based")
_MAX_LITERAL = 10_000  # Characters of an answer that is read as a value.


class Test(NamedTuple):
  """A test of a program.

  Attributes:
    call: An expression; None if the program is run with an input.
    input: The program's standard input.
    output: The expected output, or the `repr` of the call.
    value: The expected value of the call, which replaces `output`; a tuple of
      one element.
  """

  call: str | None
  input: str
  output: str
  value: tuple[Any, ...] = ()

  def passes(self, output: str | None) -> bool:
    """Returns True if the output is as expected; None counts as no output."""
    if output is None:
      return False
    if self.value:
      return _is_value(output, self.value[0])
    if self.call is not None:
      return output == self.output
    return _lines(output) == _lines(self.output)


def _lines(text: str) -> list[str]:
  return [line.rstrip() for line in text.rstrip().split("\n")]


def _is_value(output: str, value: Any) -> bool:
  if len(output) > max(_MAX_LITERAL, 2 * len(repr(value))):
    return False
  try:
    printed = _listed(ast.literal_eval(output))
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    return False
  if isinstance(printed, dict):  # Keys of JSON are texts.
    printed = {str(key): x for key, x in printed.items()}
  return printed == value or (isinstance(value, list) and value == [printed])


def _listed(value: Any) -> Any:
  """Returns a value with lists for tuples, as in JSON."""
  if isinstance(value, (list, tuple)):
    return [_listed(x) for x in value]
  if isinstance(value, dict):
    return {key: _listed(x) for key, x in value.items()}
  return value


def of_row(extra: Mapping[str, Any]) -> list[Test]:
  """Returns the tests of a row.

  Raises:
    KeyError: No field has tests.
    ValueError: The field is empty, or a test is not of a known form.
  """
  fields = [name for name in FIELDS if extra.get(name) is not None][:1]
  fields = fields or [name for name in _COLUMNS if extra.get(name)]
  if not fields:
    raise KeyError(
      f"code: extras have {sorted(extra)}, and no tests; needs"
      f" extras['tests'], or one of {', '.join(FIELDS[1:] + _COLUMNS)}"
    )
  tests = []
  for field in fields:
    try:
      tests += read(extra[field])
    except ValueError as error:
      raise ValueError(
        f"code: the tests in extras[{field!r}]: {error}"
      ) from None
  if not tests:
    raise ValueError(f"code: extras[{fields[0]!r}] has no tests; {_NEEDED}.")
  return tests


def read(tests: Any) -> list[Test]:
  """Returns the tests of a program, in one of the forms above.

  Raises:
    ValueError: The form is not one of these.
  """
  if isinstance(tests, (str, bytes)):
    tests = _json(tests)
  match tests:
    case {"ground_truth": inner} | {"test_cases": inner}:
      return read(inner)
    case {"inputs": list(inputs), "outputs": list(outputs), **rest} | {
      "input": list(inputs),
      "output": list(outputs),
      **rest,
    } if len(inputs) == len(outputs):
      name = rest.get("fn_name") or ""
      return [_test(x, y, name) for x, y in zip(inputs, outputs, strict=True)]
    case list():
      return [_read_test(test) for test in tests]
  raise ValueError(f"found {tests!r:.80}; {_NEEDED}.")


def _read_test(test: Any) -> Test:
  match test:
    case {"call": str(call), "output": str(output), **rest} if not rest:
      return Test(call, "", output)
    case {"input": content, "output": output, **rest} if "call" not in rest:
      kind = rest.get("testtype") or rest.get("type") or ""
      inner = rest.get("metadata") or {}
      if isinstance(inner, str):
        inner = _json(inner)
      name = rest.get("fn_name") or (
        inner.get("func_name") if isinstance(inner, Mapping) else ""
      )
      is_call = kind in _OF_FUNCTIONS or (not kind and name)
      return _test(content, output, name if is_call else "", bool(is_call))
  raise ValueError(f"found a test {test!r:.80}; {_NEEDED}.")


def _test(args: Any, output: Any, name: Any, is_call: bool = False) -> Test:
  """Makes a test of an input, or of a function by its arguments."""
  if not name and not is_call:
    texts = [_text(args), _text(output)]
    if None in texts:
      raise ValueError(
        f"found the input {args!r:.80}, the output {output!r:.80}; {_NEEDED}."
      )
    return Test(None, str(texts[0]), str(texts[1]))
  if not isinstance(name, str) or not name.isidentifier():
    raise ValueError(f"found a test of a function {name!r:.80}; {_NEEDED}.")
  if isinstance(args, str):
    args = [_json(line) for line in args.splitlines() if line.strip()]
    output = _json(output) if isinstance(output, str) else output
  if not isinstance(args, list):
    raise ValueError(f"found the arguments {args!r:.80}; {_NEEDED}.")
  function = f"(Solution().{name} if 'Solution' in globals() else {name})"
  return Test(f"{function}(*{args!r})", "", "", (output,))


def _text(value: Any) -> str | None:
  """Returns a text, or joins a list of lines; None for anything else."""
  if isinstance(value, Sequence) and all(isinstance(x, str) for x in value):
    return value if isinstance(value, str) else "\n".join(value)
  return None


def _json(text: str | bytes) -> Any:
  try:
    return strict_json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"found {text!r:.80} ({error}); {_NEEDED}.") from None


# A tag, or a fence at the beginning of a line or behind a tag: its signs, and
# the rest of the line. Each character is read a fixed number of times.
_MARK = re.compile(
  r"(?P<indent>^[ \t]*)?(?P<tag></?(?:think|answer)>)"
  r"|(?:^|(?<=think>)|(?<=answer>))[ \t]*(?P<fence>`{3,}|~{3,})"
  r"(?P<rest>[^\n]*?)(?=</?(?:think|answer)>|$)\n?",
  re.M,
)
_LANGUAGE = re.compile(r"[ \t]*\W?(\w*)")
_SHARE = 0.9  # Of a row's time; the rest is for ending its last program.
_LEAST_S = 1.0  # For a run; a busy machine needs most of it to make the box.
_LANGUAGES = ("", "py", "python", "python3", "py3")


class _Block(NamedTuple):
  """A block between fences.

  Attributes:
    language: The mark behind the fence, in small letters; often empty.
    start, end: Characters of its text.
  """

  language: str
  start: int
  end: int


def _marks(completion: str) -> tuple[list[re.Match[str]], list[_Block]]:
  """Returns the tags and the blocks of a completion.

  In a block that is closed, a tag counts only at the beginning of a line, where
  it ends the block: programs have tags in their texts. A fence with one word
  behind it begins a block, even if the block before was not closed.
  """
  tags: list[re.Match[str]] = []
  inside: list[re.Match[str]] = []
  blocks: list[_Block] = []
  opening: re.Match[str] | None = None
  for mark in _MARK.finditer(completion):
    if mark["tag"]:
      if opening is not None and mark["indent"] is None:
        inside.append(mark)
        continue
      tags.append(mark)
    elif opening is not None and not mark["fence"].startswith(opening["fence"]):
      continue  # A shorter fence, or another kind, is text of the block.
    if opening is not None:
      blocks.append(_block(opening, mark.start()))
      inside.clear()
    rest = (mark["rest"] or "").strip()
    begins = mark["fence"] and "`" not in rest
    opening = mark if begins and (opening is None or rest.isalnum()) else None
  if opening is not None:
    blocks.append(_block(opening, len(completion)))
  return tags + inside, blocks


def _block(opening: re.Match[str], end: int) -> _Block:
  language = _LANGUAGE.match(opening["rest"])
  return _Block(language[1].lower() if language else "", opening.end(), end)


def _place(tags: Sequence[re.Match[str]], size: int) -> tuple[int, int] | None:
  """Returns the range of the answer in a completion, by its tags, or None."""
  last = {mark["tag"]: number for number, mark in enumerate(tags)}
  thought = last.get("</think>", -1)
  start = tags[thought].end() if thought >= 0 else 0
  tags = tags[thought + 1 :]
  opens = [mark for mark in tags if mark["tag"] == "<answer>"]
  if opens:
    closes = [mark.start() for mark in tags if mark["tag"] == "</answer>"]
    end = closes[-1] if closes and closes[-1] > opens[0].start() else size
    return max(mark.end() for mark in opens if mark.start() < end), end
  thoughts = [mark.start() for mark in tags if mark["tag"] == "<think>"]
  if thoughts and thought < 0:
    return None
  return start, min([size, *thoughts])


def program_of(completion: str) -> str | None:
  """Returns the program in a completion, or None.

  The answer is where `answers.py` finds it: behind the thoughts, and in the
  last <answer>…</answer> if one is opened. In the answer, the program is the
  last block that is marked as Python, else the last block without a mark, else
  the whole answer. A block that is not closed ends with the answer, and an
  empty block does not count.

  Takes time linear in the text: a row that takes too long would be unscored,
  not wrong.
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
      # A block in a list is indented.
      is_indented = program.lstrip("\r\n")[:1] in (" ", "\t")
      programs[bool(block.language)] = (
        textwrap.dedent(program) if is_indented else program
      )
  for is_marked in (True, False):
    if is_marked in programs:
      return programs[is_marked]
  answer = completion[start:end]
  return (answer.strip() or None) if tags else answer


def num_passed(
  box: box_lib.Box,
  program: str,
  tests: Sequence[Test],
  limits: box_lib.BoxLimits,
  row_s: float,
) -> int:
  """Counts the tests that a program passes.

  After a test that takes too long, no further test is run. A test is also not
  run if the time left hardly suffices to make a box: a program that leaves so
  little time must not make its row unscored. The calls come first, and together
  have the time of one program.

  Args:
    row_s: Seconds for all runs.
  """
  end = time.monotonic() + row_s
  count = 0

  def run(data: bytes, calls: Sequence[str] | None) -> box_lib.ProgramResult:
    seconds = end - time.monotonic()
    within = dataclasses.replace(limits, wall_s=min(limits.wall_s, seconds))
    return box.run(program, data, calls, within)

  calls = [test for test in tests if test.call is not None]
  inputs = [test for test in tests if test.call is None]
  if calls:
    outcome = run(b"", [str(test.call) for test in calls])
    results = box_lib.answers(outcome, len(calls))
    count += sum(t.passes(a) for t, a in zip(calls, results, strict=True))
    if outcome.status in box_lib.TOO_LONG:
      return count
  for number, test in enumerate(inputs):
    is_first = not calls and number == 0
    least_s = min(_LEAST_S, limits.wall_s)
    if not is_first and end - time.monotonic() < least_s:
      break
    outcome = run(test.input.encode(), None)
    if outcome.status in box_lib.TOO_LONG:
      break
    output = outcome.output.decode("utf-8", "replace")
    count += outcome.status == "done" and test.passes(output)
  return count


@registry.of_rows
def code(
  completion: str,
  extra: dict,
  *,
  partial: bool = True,
  sandbox: str = "bwrap",
  timeout_s: float = 10.0,
  language: str = "python",
  cpu_s: int = 2,
  wall_s: float = 4.0,
  memory: int = 512 << 20,
) -> float:
  """The share of hidden tests that the program of a completion passes.

  A program that loops, crashes or floods fails the tests in question: the
  reward is a number, whatever the program does.

  Args:
    completion: A text with a program; see `program_of`.
    extra: Has "tests", or another of `FIELDS`. The policy never sees them.
    partial: False: 1.0 for all tests and 0.0 otherwise.
    sandbox: "bwrap", or "process", which does not isolate the program.
    timeout_s: Seconds that the caller waits for a row. A test for which no time
      is left is not passed, so a slow program is wrong and not unscored. It
      should be above `wall_s` times the number of tests that read input.
    language: The programs' language: "python".
    cpu_s: Whole seconds of a core for each run of a program.
    wall_s: Seconds for each run.
    memory: Bytes of address space.

  Raises:
    KeyError, ValueError: The extras have no tests, or tests of an unknown form;
      or an argument has an unknown value.
    RuntimeError: The sandbox cannot be made here, or has failed. Then nothing
      is known of the program: the row is unscored.
    TimeoutError: The box itself did not begin in `wall_s`. The row is unscored.
  """
  if language != "python":
    raise ValueError(
      f"code: language={language!r}; needs 'python', the only one."
    )
  box = box_lib.require(sandbox)
  limits = box_lib.BoxLimits(cpu_s=cpu_s, wall_s=wall_s, memory=memory)
  tests = of_row(extra)
  program = program_of(completion)
  row_s = min(len(tests) * wall_s, _SHARE * timeout_s)
  share = 0.0
  if program is not None:
    share = num_passed(box, program, tests, limits, row_s) / len(tests)
  return share if partial else float(share == 1.0)


def warm_up(sandbox: str = "bwrap") -> None:
  """Makes and tests the box, before the first row.

  Raises:
    RuntimeError: The box cannot be made here, or does not isolate.
  """
  box_lib.require(sandbox)


# Called by each scoring process before its first row (`reward_worker.py`).
code.warm_up = warm_up  # type: ignore[attr-defined]
