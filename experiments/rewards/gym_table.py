"""Tries every dataset of reasoning-gym and writes docs/reasoning_gym.md.

    python -m experiments.rewards.gym_table

Each dataset makes a few problems in two processes, whose strings hash
differently, and scores its own answers and a wrong one. A dataset is good
if all of its answers score 1, the wrong one does not, and both processes made
the same problems. It takes a few minutes on one CPU core.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app

from experiments.rewards import two_processes
from grpo_jax import gym

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reasoning_gym.md"
_TIMEOUT_S = 60.0  # Of a dataset.
# Problems of each dataset.
NUM_PROBLEMS = 10
names = gym.names  # For `two_processes`.
# No dataset's answer.
WRONG = "there is no answer"

_INTRODUCTION = """\
# The datasets of reasoning-gym

    config.data.source = "reasoning_gym"
    config.data.datasets = ({{"name": "gcd"}}, {{"name": "lcm", "weight": 2.0}})
    config.rewards.functions = ("reasoning_gym",)

`python -m experiments.rewards.gym_table` has written this page with
reasoning-gym {version}: {num} datasets with their default settings, {count}
problems of each. **{good} of them are good**: their own answers score 1, a
wrong answer does not, and two processes make the same problems.

- *Seconds*: to make one problem, on average, on one core of a shared CPU; a
  training step waits for the problems of its prompts if they take longer than
  the step before it.
- *Own answer*: the mean score of the dataset's own answers. Below 1, no policy
  can reach an accuracy of 1, and the warm start learns wrong answers.
- *Wrong*: the largest score of the text "{wrong}". The
  dataset's own check says so. The reward `reasoning_gym` gives 0 to an answer
  at which a dataset fails, and compares texts for `game_of_life_halting`, so
  that these datasets can be trained on, too. No answer is run as a program:
  where a dataset would have Python or sympy evaluate it, it is a literal, or an
  expression of numbers, single letters and functions as `sin`. An answer to
  `countdown` or `puzzle24` has the problem's own numbers, and + - * / alone.
- *Same*: whether two processes made the same problems. Otherwise a run that is
  resumed reads other problems than one that is not, and the verifier, which
  makes a problem anew, refuses to score another one's answer.
- *JSON*: whether all of an entry survives JSON. Nothing here needs it, since
  records name the problem and do not hold it.
- *Characters*: the longest of the questions.

Five seeds of [configs/reasoning_gym.py](../configs/reasoning_gym.py), which
says more of them, by `configs/sweeps/reasoning_gym.py`:

![Accuracy on held-out problems over the steps of five runs](reasoning_gym.png)

| dataset | seconds | own answer | wrong | same | JSON | characters | verdict |
|---------|--------:|-----------:|------:|------|------|-----------:|---------|
"""


def attempt(name: str) -> dict[str, Any]:
  """Measures a dataset with its default settings.

  Returns:
    Numbers of the table, and a digest of all problems.
  """
  gym.check(name, "{}", None)
  digest = hashlib.sha256()
  own, wrong, sizes, survive = [], [], [], True
  seconds = 0.0
  for seed in range(NUM_PROBLEMS):
    start = time.perf_counter()
    made = gym.problem(name, "{}", None, seed)
    seconds += time.perf_counter() - start
    answer = made.entry["answer"]
    digest.update(repr((made.entry["question"], answer)).encode())
    survive &= _survives_json(made.entry)
    sizes.append(len(made.entry["question"]))
    own.append(None if answer is None else made.score(answer))
    wrong.append(_score(made, WRONG))
  return {
    "seconds": seconds / NUM_PROBLEMS,
    "own": None if None in own else statistics.fmean(own),
    "wrong": None if None in wrong else max(wrong),
    "json": survive,
    "characters": max(sizes),
    "digest": digest.hexdigest(),
  }


def _score(made: gym.GymProblem, answer: str) -> float | None:
  """Score, or None if the dataset fails on such an answer."""
  try:
    return made.score(answer)
  except Exception:  # A dataset may raise anything.
    return None


def _survives_json(entry: Mapping[str, Any]) -> bool:
  try:
    return json.loads(json.dumps(entry)) == entry
  except (TypeError, ValueError):
    return False


def verdict(results: Sequence[Mapping[str, Any]]) -> str:
  """The fault of a dataset in words, or "good"."""
  first = results[0]
  for result in results:
    if "error" in result:
      return two_processes.in_a_cell(result["error"], 160)
  if first["digest"] != results[1]["digest"]:
    return "other problems in every process"
  if first["own"] is None:
    return "gives no answers"
  if first["own"] < 1:
    return "its own answers are not right"
  if first["wrong"] is None:
    return "fails on a wrong answer"
  return "good" if first["wrong"] < 1 else "a wrong answer is right"


def row(name: str, results: Sequence[Mapping[str, Any]]) -> str:
  """A line of the table."""
  first = results[0]
  cells = [name]
  if any("error" in result for result in results):
    cells += [""] * 6
  else:
    own = "none" if first["own"] is None else f"{first['own']:.2f}"
    same = first["digest"] == results[1]["digest"]
    cells += [
      f"{first['seconds']:.4f}",
      own,
      "fails" if first["wrong"] is None else f"{first['wrong']:.2f}",
      "yes" if same else "no",
      "yes" if first["json"] else "no",
      str(first["characters"]),
    ]
  return f"| {' | '.join([*cells, verdict(results)])} |"


def page(found: Mapping[str, Sequence[Mapping[str, Any]]], version: str) -> str:
  """The page for these results by name."""
  good = sum(verdict(results) == "good" for results in found.values())
  text = _INTRODUCTION.format(
    version=version,
    num=len(found),
    count=NUM_PROBLEMS,
    good=good,
    wrong=WRONG,
  )
  return text + "\n".join(row(*item) for item in found.items()) + "\n"


def main(argv: Sequence[str]) -> None:
  del argv
  found = two_processes.tried("experiments.rewards.gym_table", _TIMEOUT_S)
  version = importlib.metadata.version("reasoning-gym")
  _PAGE.write_text(page(found, version), encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
