"""Evaluations ask verifiers that time out once more, and then decide."""

import itertools
import time

import numpy as np
import pytest

from grpo_jax.rewards.workers import host


class Scorer:
  """Scores by words: each completion says what happens, try by try."""

  sees_groups = False

  def __init__(self, step_timeout_s=60.0, seconds=0.0):
    self.step_timeout_s = step_timeout_s
    self.calls = []
    self._seconds = seconds
    self._tries = {}

  def score(self, prompts, completions, ids, extras):
    assert len(prompts) == len(completions) == len(ids) == len(extras)
    self.calls.append(list(completions))
    failures = dict.fromkeys(host.FAILURE_KINDS, 0)
    values, other = [], []
    for text in completions:
      words = self._tries.setdefault(text, itertools.cycle(text.split()))
      word = next(words)
      time.sleep(self._seconds if len(self.calls) > 1 else 0)
      if word in failures:
        failures[word] += 1
        word = "nan"
      values.append(float(word))
      other.append(0.25)
    values = np.float32(values)
    components = {"accuracy": values, "brevity": np.float32(other)}
    return host.WorkerScores(components, np.isnan(values), failures, [], {})


def score(scorer, *completions):
  rows = range(len(completions))
  return host.score(
    scorer,
    [f"prompt {i}" for i in rows],
    list(completions),
    list(rows),
    [{} for _ in rows],
    correct="accuracy",
  )


@pytest.mark.parametrize("kind", ["timeout", "step_timeout"])
def test_a_timeout_is_asked_once_more_alone_and_is_then_wrong(kind):
  scorer = Scorer()
  scores = score(scorer, "1.0", f"{kind} 1.0", f"{kind} {kind} 1.0", "0.5")
  np.testing.assert_array_equal(
    scores.components["accuracy"], np.float32([1.0, 1.0, 0.0, 0.5])
  )
  np.testing.assert_array_equal(scores.failed, [False] * 4)
  assert scorer.calls[1:] == [[f"{kind} 1.0"], [f"{kind} {kind} 1.0"]]
  # What the other function said of it stays.
  np.testing.assert_array_equal(scores.components["brevity"], [0.25] * 4)


def test_what_fails_otherwise_stays_unscored():
  scorer = Scorer()
  scores = score(scorer, "raised raised", "nan nan", "1.0", "timeout timeout")
  np.testing.assert_array_equal(scores.failed, [True, True, False, False])
  assert np.isnan(scores.components["accuracy"][0])
  alone = Scorer()
  assert score(alone, "raised 1.0", "1.0").failed.tolist() == [True, False]
  assert len(alone.calls) == 1


def test_second_tries_have_the_time_of_a_step():
  scorer = Scorer(step_timeout_s=0.05, seconds=0.03)
  scores = score(scorer, *["timeout timeout"] * 20)
  assert 0 < scores.failed.sum() < 20
  assert len(scorer.calls) < 10
