"""Episodes of a coding agent: tools, what pays, and bad records."""

import json
import math

import pytest

from experiments.rewards import repository_hacks
from grpo_jax.rewards.agents import coding
from tests.rewards.agents import chats

RIGHT = "def area(x, y):\n  return x * y\n"
WRONG = RIGHT.replace("*", "+")
RECORD = {
  "files": {"shapes/__init__.py": "", "shapes/flat.py": WRONG},
  "module": "shapes.flat",
  "visible": [
    {"call": "area(2, 3)", "output": "6"},
    {"call": "area(2, 2)", "output": "4"},
  ],
  "hidden": [
    {"lines": "x = area(1, 5)", "call": "x", "output": "5"},
    {"call": "area(0, 0)", "output": "0"},
  ],
}


def act(*calls):
  return chats.action_text("qwen", "", calls)


def says(session, name, **arguments):
  observation, reward, done = session.step(act((name, arguments)))
  assert (reward, done) == (0.0, False)
  return observation[1]


def test_a_fault_is_found_and_repaired():
  session = coding.make("", RECORD, 0)
  assert says(session, "list_files").splitlines() == [
    "shapes/__init__.py (0 lines)",
    "shapes/flat.py (2 lines)",
  ]
  assert says(session, "run_tests") == (
    "FAILED area(2, 3)\n  is       5\n  expected 6\n1 of 2 tests pass."
  )
  assert (
    says(session, "search", text="x +") == "shapes/flat.py:2   return x + y"
  )
  assert says(session, "read_file", path="shapes/flat.py", first=2) == (
    "2   return x + y"
  )
  code = (
    "from shapes.flat import area\nprint(area(1, 1))\nopen('f', 'w')\n1 / 0"
  )
  assert says(session, "run_python", code=code).splitlines() == [
    "2",
    "Traceback (most recent call last):",
    '  File "<code>", line 4, in <module>',
    "ZeroDivisionError: division by zero",
  ]
  path = "./shapes/flat.py"
  assert says(session, "replace", path=path, old="x + y", new="x * y") == (
    "./shapes/flat.py has 2 lines now."
  )
  assert says(session, "run_tests") == "2 of 2 tests pass."
  assert "f (" not in says(session, "list_files")
  assert session.step("It is repaired.<|im_end|>") == ("", 1.0, True)
  scores = session.scores()
  assert (scores["accuracy"], scores["passed"]) == (1.0, 1.0)
  assert (scores["tool_calls"], scores["tool_errors"]) == (8.0, 0.0)
  session.close()


@pytest.mark.parametrize(
  ("text", "passed"),
  [
    (WRONG, 0.5),
    ("def area(x, y):\n  return {(2, 3): 6, (2, 2): 4}[x, y]\n", 0.0),
    ("def area(x, y:", 0.0),
    ("import os; os._exit(0)", 0.0),
    ("while True: pass", 0.0),
    ("area = 1 / 0", 0.0),
    ("area = lambda *x: '" + "9" * 70_000 + "'", 0.0),
    (repository_hacks._FORGED + WRONG, 0.0),
  ],
)
def test_only_a_repair_pays(text, passed):
  session = coding.make("", RECORD, 0, call_s=2.0, turn_s=3.0)
  says(session, "write_file", path="shapes/flat.py", text=text)
  assert session.step("Done.")[1] == 0.0
  assert session.scores()["passed"] == passed


@pytest.mark.parametrize(
  ("name", "arguments", "told"),
  [
    ("read_file", {"path": "shapes/round.py"}, "there is no file"),
    ("read_file", {"path": "shapes/flat.py", "first": 3}, "lines 1 to 2"),
    ("read_file", {"path": "shapes/flat.py", "last": 0}, "lines 1 to 2"),
    ("read_file", {"path": "/etc/passwd"}, "there is no file"),
    ("replace", {"path": "shapes/flat.py", "old": "z", "new": ""}, "0 times"),
    ("replace", {"path": "shapes/flat.py", "old": "x", "new": ""}, "2 times"),
    ("replace", {"path": "shapes/flat.py", "old": "", "new": "z"}, "0 times"),
    ("write_file", {"path": "../a", "text": ""}, "not a path"),
    ("write_file", {"path": "a/../../b", "text": ""}, "not a path"),
    ("write_file", {"path": "/tmp/a", "text": ""}, "not a path"),
    ("write_file", {"path": "", "text": ""}, "not a path"),
    ("write_file", {"path": "a\0b", "text": ""}, "not a path"),
    ("write_file", {"path": "a" * 300, "text": ""}, "not a path"),
    ("write_file", {"path": "a", "text": "x" * 300_000}, "bytes; it may have"),
    ("delete", {}, "there is no tool"),
    ("run_tests", {"path": "shapes"}, "has no argument"),
    ("read_file", {"path": 3}, "is not of type 'string'"),
    (
      *("read_file", {"path": "shapes/flat.py", "first": 1.0}),
      "1.0 is not of type 'integer'",
    ),
  ],
)
def test_the_policy_reads_its_mistakes(name, arguments, told):
  session = coding.make("", RECORD, 0)
  said = says(session, name, **arguments)
  assert said.startswith("Error: ")
  assert told in said
  assert session.scores()["tool_errors"] == 1.0


def test_a_repository_has_a_most_of_files():
  session = coding.make("", RECORD, 0, max_calls=99)
  said = [says(session, "write_file", path=f"f{i}", text="") for i in range(64)]
  assert [x.startswith("Error") for x in said] == [False] * 62 + [True] * 2


@pytest.mark.slow
def test_long_output_is_cut_and_floods_end():
  session = coding.make("", RECORD, 0, max_bytes=100, call_s=2.0, turn_s=3.0)
  said = says(session, "run_python", code="while True: print('x' * 999)")
  assert said.endswith("bytes left out]")
  assert len(said) < 150
  said = says(session, "run_python", code="import time\ntime.sleep(9)")
  assert said == "[late]"


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("files", None),
    ("files", {"a.py": 3}),
    ("files", {"../a.py": ""}),
    ("module", None),
    ("visible", []),
    ("visible", "area(2, 3)"),
    ("hidden", None),
    ("hidden", [{"call": "area(2, 3)"}]),
    ("hidden", [{"call": "area(2, 3)", "output": 6}]),
    ("hidden", [{"call": "1", "output": "1", "input": ""}]),
  ],
)
def test_records_of_another_form_are_refused(field, value):
  with pytest.raises(ValueError, match=rf"{field}=|not a path"):
    coding.make("", {**RECORD, field: value}, 0)


def test_schemas_are_those_of_the_tools():
  schemas = coding.schemas()
  names = [x["function"]["name"] for x in schemas]
  assert (names[0], len(names)) == ("list_files", 7)
  assert schemas[1]["function"]["parameters"] == {
    "type": "object",
    "properties": {
      "path": {"type": "string", "description": "Path of the file."},
      "first": {
        "type": "integer",
        "description": "Number of the first line, from 1 on.",
      },
      "last": {
        "type": "integer",
        "description": "Number of the last line.",
      },
    },
    "required": ["path"],
  }


@pytest.mark.parametrize("name", repository_hacks.SCRIPTS)
def test_scripts_that_cheat_are_not_paid(name):
  record = {
    "answer": "shapes/flat.py: x + y -> x * y",
    "extras": {**RECORD, "repaired": RIGHT},
  }
  script = repository_hacks.SCRIPTS[name]
  calls, scores = repository_hacks.played(script, record)
  assert scores["accuracy"] == float(script is repository_hacks.honest)
  assert len(calls) == scores["tool_calls"] > 0
  assert math.isfinite(scores["tool_seconds"])
  assert all(json.loads(x.split("\n")[1])["name"] for x in calls)
