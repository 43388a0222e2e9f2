"""The claims of the experiment, and the checks that confirm each of them.

Sizes and learning rates were chosen after trial runs of one seed without a KL
and without old completions, before any run with either; the rules below were
written then. They look at one number per seed:

- the *gap*: on held-out prompts, at temperature 1, the share of neighbours in
  ascending order, which the labels are nearly all about, minus the share of
  right answers;
- the *accuracy*: that share alone;
- the *opinion*: how far the score of the reward model rises in the 25 steps of
  an iteration, in nats of Bradley and Terry, on average over iterations. Within
  an iteration the reward model is the same.

The mean over seeds has Student's 95 % interval, and the interval decides. A
claim is confirmed if all of its checks hold.

H1  A learned reward is followed too far: without KL and without old completions
    the opinion rises, the gap is wider at the end than before, and the accuracy
    is lower at the end than before.
K1  A KL of 0.04 to the policy at the start of the iteration narrows the gap at
    the end, with old completions and without.
R1  10 % of old completions narrow the gap at the end, with the KL and without.
B1  With both the accuracy at the end is higher than with neither.
I1  Learning again narrows the gap: without KL and without old completions it is
    narrower at the end than where the reward model learned once.
O1  A KL of 0.04 narrows the gap where the reward model learned once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, "gap", "accuracy" or "opinion", "before", "after" or "") -> [seeds];
# None while the arm is missing.
Scores = Callable[[str, str, str], np.ndarray | None]

_NEITHER, _BOTH = "kl0-r0", "kl04-r10"


def _narrower(of: Scores, arm: str, than: str) -> Check:
  """Checks that one arm's gap at the end is narrower than another's."""
  return check(
    f"gap of `{arm}` − gap of `{than}`",
    "below",
    (1, of(arm, "gap", "after")),
    (-1, of(than, "gap", "after")),
  )


def _change(of: Scores, arm: str, what: str, needed: str) -> Check:
  """Checks that a number has risen, or fallen, seed by seed."""
  change = statistics.minus(of(arm, what, "after"), of(arm, what, "before"))
  return check(f"{what} of `{arm}`, after − before", needed, (1, change))


def _followed(of: Scores) -> Iterator[Check]:
  opinion = of(_NEITHER, "opinion", "")
  yield check(f"opinion of `{_NEITHER}`", "above", (1, opinion))
  yield _change(of, _NEITHER, "gap", "above")
  yield _change(of, _NEITHER, "accuracy", "below")


def _with_kl(of: Scores) -> Iterator[Check]:
  for how in ("r0", "r10"):
    yield _narrower(of, f"kl04-{how}", f"kl0-{how}")


def _with_old(of: Scores) -> Iterator[Check]:
  for kl in ("kl0", "kl04"):
    yield _narrower(of, f"{kl}-r10", f"{kl}-r0")


def _with_both(of: Scores) -> Iterator[Check]:
  yield check(
    f"accuracy of `{_BOTH}` − accuracy of `{_NEITHER}`",
    "above",
    (1, of(_BOTH, "accuracy", "after")),
    (-1, of(_NEITHER, "accuracy", "after")),
  )


def _again(of: Scores) -> Iterator[Check]:
  yield _narrower(of, _NEITHER, "kl0-once")


def _once(of: Scores) -> Iterator[Check]:
  yield _narrower(of, "kl04-once", "kl0-once")


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "H1": ("A learned reward is followed too far.", _followed),
  "K1": ("A KL of 0.04 narrows the gap.", _with_kl),
  "R1": ("10 % of old completions narrow the gap.", _with_old),
  "B1": ("Both together keep the accuracy higher.", _with_both),
  "I1": ("A reward model that learns again narrows the gap.", _again),
  "O1": ("A KL of 0.04 narrows the gap of one that learned once.", _once),
}
conclude = functools.partial(statistics.conclude, CLAIMS)
