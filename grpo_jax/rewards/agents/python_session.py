"""Sessions with a Python interpreter: a tool for problems with an answer.

The actions of a policy are

    … <tool> PYTHON </tool>      answered by   <obs> what it gave </obs>
    … <answer> ANSWER </answer>  ends the episode, and so does anything else

with any text in the place of … . `sandbox/interpreter.py` describes the results
of blocks of Python, also of blocks that hang or crash: none fails an episode.

    config.data.environment = "grpo_jax.rewards.agents.python_session:make"
    config.environment.max_turns = 4
    config.environment.max_action_len = 48
    config.environment.max_observation_len = 32
    config.environment.action_ends = ("</tool>", "</answer>")
    config.environment.options = {"call_s": 2.0}

The four tags have to be tokens of the tokenizer. The answer is compared with
the record's answer, which no session of the tool ever sees. Let
config.rewards.row_timeout_s be some seconds above `call_s`: a session that is
late is unscored, and a program of the policy must not be able to make it so.

`rewards/agents/python_tool.py` is a smaller example: a calculator without a
sandbox.
"""

from __future__ import annotations

import re
from typing import Any

from grpo_jax.rewards.sandbox import box, interpreter

OPEN, CLOSE = "<tool>", "</tool>"
_OBSERVED = ("<obs>", "</obs>")
_ANSWER = re.compile(r"<answer>([^<]*)</answer>")


class PythonSession:
  """One episode; see `types.HostEnvironment`.

  Scores: "accuracy"; "used_tool", 1 if a call ended without an error; and the
  numbers of "tool_calls", of "tool_errors" among them, and of "malformed"
  actions, which have neither a call nor an answer.
  """

  def __init__(self, extras: dict[str, Any], python: interpreter.Interpreter):
    """Begins an episode.

    Raises:
      KeyError: The extras have no answer.
    """
    self._right = str(extras["answer"]).strip()
    self._python = python
    self._scores: dict[str, float] = dict.fromkeys(
      ("accuracy", "used_tool", "tool_calls", "tool_errors", "malformed"), 0.0
    )

  def step(self, action: str) -> tuple[str | tuple[str, str, str], float, bool]:
    """Answers an action: (observation, reward, True at the end).

    Raises:
      RuntimeError, TimeoutError: The interpreter has no box.
    """
    scores = self._scores
    if action.endswith(CLOSE) and OPEN in action:
      code = action.removesuffix(CLOSE).rpartition(OPEN)[2]
      answer = self._python.run(code)
      scores["tool_calls"] += 1
      if answer.status == "done":
        scores["used_tool"] = 1.0
      else:
        scores["tool_errors"] += 1
      before, after = _OBSERVED
      return (before, answer.text, after), 0.0, False
    answers = _ANSWER.findall(action)
    if len(answers) == 1:
      scores["accuracy"] = float(answers[0].strip() == self._right)
    else:
      scores["malformed"] += 1
    return "", scores["accuracy"], True

  def scores(self) -> dict[str, float]:
    """Returns the scores of the episode so far."""
    return dict(self._scores)

  def close(self) -> None:
    """Ends the interpreter."""
    self._python.close()


def make(
  prompt: str,
  extras: dict[str, Any],
  seed: int,
  *,
  sandbox: str = "bwrap",
  call_s: float = 5.0,
  total_s: float = 60.0,
  max_calls: int = 32,
  max_bytes: int = 4096,
  memory: int = 512 << 20,
  cpu_s: int = 30,
) -> PythonSession:
  """The factory of sessions of an `Interpreter`; nothing in it is random.

  Raises:
    KeyError: The extras have no answer.
    ValueError: A limit is out of range.
  """
  del prompt, seed
  python = interpreter.Interpreter(
    sandbox, call_s, total_s, max_calls, max_bytes, memory, cpu_s
  )
  return PythonSession(extras, python)


def _warm_up(sandbox: str = "bwrap", **limits: Any) -> None:
  """Makes and tests the box of a worker, before the first session.

  Raises:
    RuntimeError: The box cannot be made here, or does not isolate.
    ValueError: A limit is out of range.
  """
  interpreter.Interpreter(sandbox, **limits)
  box.require(sandbox)


make.warm_up = _warm_up  # type: ignore[attr-defined]
