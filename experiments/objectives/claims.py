"""The claims of the experiment, and the checks that confirm each of them.

Sizes were chosen after trial runs of one seed or a few, each of a single arm
(MO-GRPO on the bandit and on `multi`, the reward for language A, the buggy
verifier), and before any two were compared; the rules below were written then.
They look at one number per seed: at the end of training minus at its start, or
of one arm minus of another with the same seed. The mean over seeds has
Student's 95 % interval, which of five seeds is approximate, and the interval
decides. A claim is confirmed if all of its checks hold.

B1  Two rewards on ten arms. MO-GRPO and GDPO make the regrets of both smaller.
B2  GRPO makes the loud regret smaller, and the quiet one not; the latter ends
    above that of MO-GRPO.
M1  Three objectives of a text. MO-GRPO and GDPO improve all three: right
    answers, brevity, politeness.
M2  GRPO improves politeness, which is the loud one, and neither right answers
    nor brevity.
M3  Of right answers, MO-GRPO and GDPO end with more than GRPO.
L1  A reward for one language ends the mixing: the share of language A rises,
    and ends above that without such a reward.
L2  A buggy verifier is exploited, and the log says that its scores are too
    good: the share of empty answers rises (what the bug alone accepts), right
    answers end below those with the right verifier, and the warning is there in
    every run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.objectives import results
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, metric, "before" or "after") -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str, str], np.ndarray | None]

NORMALISING = ("mo_grpo", "gdpo")
OF_TEXTS = ("accuracy", "brevity", "politeness")


def _change(of: Scores, arm: str, metric: str, needed: str) -> Check:
  """Checks that a metric has risen or fallen from the start to the end."""
  change = statistics.minus(of(arm, metric, "after"), of(arm, metric, "before"))
  return check(f"{metric} of `{arm}`, end − start", needed, (1, change))


def _gap(of: Scores, one: str, other: str, metric: str) -> Check:
  """Checks that one arm ends above another."""
  gap = statistics.minus(*(of(arm, metric, "after") for arm in (one, other)))
  return check(f"{metric}, `{one}` − `{other}`", "above", (1, gap))


def _level(of: Scores, arm: str, metric: str, bound: float) -> Check:
  """Checks that a metric ends above a number."""
  excess = statistics.minus(of(arm, metric, "after"), bound)
  return check(f"{metric} of `{arm}` − {bound:g}", "above", (1, excess))


def _both_regrets(of: Scores) -> Iterator[Check]:
  for name in NORMALISING:
    for regret in results.REGRETS:
      yield _change(of, f"bandit-{name}", regret, "below")


def _loud_regret(of: Scores) -> Iterator[Check]:
  quiet, loud = results.REGRETS
  yield _change(of, "bandit-grpo", loud, "below")
  yield _change(of, "bandit-grpo", quiet, "not below")
  yield _gap(of, "bandit-grpo", "bandit-mo_grpo", quiet)


def _all_objectives(of: Scores) -> Iterator[Check]:
  for name in NORMALISING:
    for objective in OF_TEXTS:
      yield _change(of, f"multi-{name}", objective, "above")


def _loud_objective(of: Scores) -> Iterator[Check]:
  for objective in OF_TEXTS:
    needed = "above" if objective == "politeness" else "not above"
    yield _change(of, "multi-grpo", objective, needed)


def _right_answers(of: Scores) -> Iterator[Check]:
  for name in NORMALISING:
    yield _gap(of, f"multi-{name}", "multi-grpo", "accuracy")


def _language(of: Scores) -> Iterator[Check]:
  yield _change(of, "language-with", "language", "above")
  yield _gap(of, "language-with", "language-without", "language")


def _exploit(of: Scores) -> Iterator[Check]:
  yield _change(of, "language-buggy", results.EXPLOITED, "above")
  yield _gap(of, "language-honest", "language-buggy", "accuracy")
  yield _level(of, "language-buggy", results.WARNED, 0.99)


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "B1": (
    "MO-GRPO and GDPO make both regrets of the bandit smaller.",
    _both_regrets,
  ),
  "B2": (
    "GRPO makes the loud regret smaller and the quiet one not.",
    _loud_regret,
  ),
  "M1": (
    "MO-GRPO and GDPO improve all three objectives of `multi`.",
    _all_objectives,
  ),
  "M2": ("GRPO improves the loud objective alone.", _loud_objective),
  "M3": (
    "MO-GRPO and GDPO end with more right answers than GRPO.",
    _right_answers,
  ),
  "L1": ("A reward for one language ends the mixing.", _language),
  "L2": (
    "A buggy verifier is exploited, and the warning about it is there.",
    _exploit,
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)
