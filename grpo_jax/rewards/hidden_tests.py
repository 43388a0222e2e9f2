r"""Tests of programs, in the forms in which data sets publish them.

Ours is a list of dicts, of one of two kinds:

    {"input": "3 4\n", "output": "7"}     standard input and output
    {"call": "f(3)", "output": "9"}       an expression, and its `repr`

Read too, also as JSON text, and as the columns that hold them:

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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax import strict_json

# Fields of `extras` that may hold the tests; the first that is there does.
FIELDS = (
  *("tests", "input_output", "reward_model", "ground_truth"),
  *("verification_info", "test_cases"),
)
# Columns that hold them together.
_COLUMNS = (
  *("public_tests", "private_tests", "generated_tests"),
  *("public_test_cases", "private_test_cases"),
)
_NEEDED = (
  "needed is a list of {'input': text, 'output': text} or {'call': expression,"
  " 'output': its repr}, or another form that docs/sandbox.md has"
)
_OF_FUNCTIONS = ("functional", "function_call", "call_based")
_MAX_LITERAL = 10_000  # Characters of an answer that is read as a value.


class Test(NamedTuple):
  """A test of a program.

  Attributes:
    call: An expression; None where the program is run with an input.
    input: What it reads.
    output: What it has to write, or the `repr` of the call.
    value: Of the call, in the place of `output`; a list of one element.
  """

  call: str | None
  input: str
  output: str
  value: tuple[Any, ...] = ()

  def passes(self, said: str | None) -> bool:
    """Whether a program has said what it should; None: nothing."""
    if said is None:
      return False
    if self.value:
      return _is_value(said, self.value[0])
    if self.call is not None:
      return said == self.output
    return _lines(said) == _lines(self.output)


def _lines(text: str) -> list[str]:
  return [line.rstrip() for line in text.rstrip().split("\n")]


def _is_value(said: str, value: Any) -> bool:
  if len(said) > max(_MAX_LITERAL, 2 * len(repr(value))):
    return False
  try:
    found = _listed(ast.literal_eval(said))
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    return False
  if isinstance(found, dict):  # Keys of JSON are texts.
    found = {str(key): x for key, x in found.items()}
  return found == value or (isinstance(value, list) and value == [found])


def _listed(value: Any) -> Any:
  """A value with lists for tuples, as JSON has them."""
  if isinstance(value, (list, tuple)):
    return [_listed(x) for x in value]
  if isinstance(value, dict):
    return {key: _listed(x) for key, x in value.items()}
  return value


def of_row(extra: Mapping[str, Any]) -> list[Test]:
  """The tests of a row.

  Raises:
    KeyError: No field has tests.
    ValueError: There are none, or one is not of a known form.
  """
  fields = [name for name in FIELDS if extra.get(name) is not None][:1]
  fields = fields or [name for name in _COLUMNS if extra.get(name)]
  if not fields:
    raise KeyError(
      f"code: extras have {sorted(extra)}, and no tests; needed is"
      f" extras['tests'], or one of {', '.join(FIELDS[1:] + _COLUMNS)}"
    )
  found = []
  for field in fields:
    try:
      found += read(extra[field])
    except ValueError as error:
      raise ValueError(
        f"code: the tests in extras[{field!r}]: {error}"
      ) from None
  if not found:
    raise ValueError(f"code: extras[{fields[0]!r}] has no tests; {_NEEDED}.")
  return found


def read(tests: Any) -> list[Test]:
  """The tests of a program.

  Args:
    tests: In one of the forms above.

  Raises:
    ValueError: It is of none of them.
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
      return [_read_one(test) for test in tests]
  raise ValueError(f"found {tests!r:.80}; {_NEEDED}.")


def _read_one(test: Any) -> Test:
  match test:
    case {"call": str(call), "output": str(output), **rest} if not rest:
      return Test(call, "", output)
    case {"input": given, "output": output, **rest} if "call" not in rest:
      kind = rest.get("testtype") or rest.get("type") or ""
      inner = rest.get("metadata") or {}
      if isinstance(inner, str):
        inner = _json(inner)
      name = rest.get("fn_name") or (
        inner.get("func_name") if isinstance(inner, Mapping) else ""
      )
      is_call = kind in _OF_FUNCTIONS or (not kind and name)
      return _test(given, output, name if is_call else "", bool(is_call))
  raise ValueError(f"found a test {test!r:.80}; {_NEEDED}.")


def _test(given: Any, output: Any, name: Any, is_call: bool = False) -> Test:
  """A test of an input, or of a function by its arguments."""
  if not name and not is_call:
    texts = [_text(given), _text(output)]
    if None in texts:
      raise ValueError(
        f"found the input {given!r:.80}, the output {output!r:.80}; {_NEEDED}."
      )
    return Test(None, str(texts[0]), str(texts[1]))
  if not isinstance(name, str) or not name.isidentifier():
    raise ValueError(f"found a test of a function {name!r:.80}; {_NEEDED}.")
  if isinstance(given, str):
    given = [_json(line) for line in given.splitlines() if line.strip()]
    output = _json(output) if isinstance(output, str) else output
  if not isinstance(given, list):
    raise ValueError(f"found the arguments {given!r:.80}; {_NEEDED}.")
  function = f"(Solution().{name} if 'Solution' in globals() else {name})"
  return Test(f"{function}(*{given!r})", "", "", (output,))


def _text(value: Any) -> str | None:
  """A text, or the lines of one."""
  if isinstance(value, Sequence) and all(isinstance(x, str) for x in value):
    return value if isinstance(value, str) else "\n".join(value)
  return None


def _json(text: str | bytes) -> Any:
  try:
    return strict_json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"found {text!r:.80} ({error}); {_NEEDED}.") from None
