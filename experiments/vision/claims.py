"""The claims of the experiment, and the checks that confirm each of them.

Sizes were chosen after trials of seed 0 on the two domains that are trained on;
the rules below were written before any run but those and the warm starts, whose
scores out of domain nobody had seen. They look at the
answers to 1536 held-out prompts, drawn greedily, after the last update: *in
domain* is the mean over "count" and "box", and *out of domain* the mean over
"count_colours", "box_colours" and "box_sizes". It is the share of right
answers, unless the overlap of boxes is named. A *gain* is the difference from
the warm start. Arms are compared seed by seed, with the same warm start. The
mean over seeds has Student's 95 % interval, and the interval decides. A claim
is confirmed if all of its checks hold.

L1  In domain GRPO ends above the warm start: it learns at all.
L2  So does imitation at equal updates, and at equal examples.
G1  At equal updates GRPO ends above imitation out of domain.
G2  At equal examples it does.
R1  At equal updates GRPO's gain out of domain, less its gain in domain, is
    above that of imitation: what it learns carries over better.
R2  At equal examples it is.
F1  Imitation at equal updates forgets: out of domain it ends below the warm
    start.
F2  GRPO does not: its interval is not below the warm start.
O1  At equal updates the overlap of boxes out of domain ("box_colours" and
    "box_sizes") is larger after GRPO than after imitation.
O2  At equal examples it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check
from experiments.vision import arms

# (arm, domains, "accuracy" or "overlap") -> mean over domains [seeds]; None
# while it is missing. The arm `base` is the warm start.
Scores = Callable[[str, Sequence[str], str], np.ndarray | None]

BOXES = ("box_colours", "box_sizes")


def gain(of: Scores, arm: str, domains: Sequence[str]) -> np.ndarray | None:
  """Gain in right answers of an arm since the warm start [seeds]."""
  return statistics.minus(
    of(arm, domains, "accuracy"), of(arms.BASE, domains, "accuracy")
  )


def carried(of: Scores, arm: str) -> np.ndarray | None:
  """Gain out of domain, less the gain in domain [seeds]."""
  return statistics.minus(
    gain(of, arm, arms.SHIFTED), gain(of, arm, arms.IN_DOMAIN)
  )


def _learns(names: Sequence[str], of: Scores) -> Iterator[Check]:
  for name in names:
    won = gain(of, name, arms.IN_DOMAIN)
    yield check(f"`{name}` − `base`, in domain", "above", (1, won))


def _above(
  other: str, domains: Sequence[str], what: str, of: Scores
) -> Iterator[Check]:
  difference = statistics.minus(
    of(arms.GRPO, domains, what), of(other, domains, what)
  )
  text = f"`{arms.GRPO}` − `{other}`, {what} over {', '.join(domains)}"
  yield check(text, "above", (1, difference))


def _carries(other: str, of: Scores) -> Iterator[Check]:
  difference = statistics.minus(carried(of, arms.GRPO), carried(of, other))
  text = f"(gain out − gain in) of `{arms.GRPO}` − of `{other}`"
  yield check(text, "above", (1, difference))


def _forgets(name: str, needed: str, of: Scores) -> Iterator[Check]:
  lost = gain(of, name, arms.SHIFTED)
  yield check(f"`{name}` − `base`, out of domain", needed, (1, lost))


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "L1": ("GRPO learns.", functools.partial(_learns, (arms.GRPO,))),
  "L2": ("Imitation learns.", functools.partial(_learns, (*arms.EXAMPLES,))),
  "G1": (
    "At equal updates GRPO is better out of domain.",
    functools.partial(_above, arms.SAME_UPDATES, arms.SHIFTED, "accuracy"),
  ),
  "G2": (
    "At equal examples GRPO is better out of domain.",
    functools.partial(_above, arms.SAME_EXAMPLES, arms.SHIFTED, "accuracy"),
  ),
  "R1": (
    "At equal updates more of GRPO's gain carries over.",
    functools.partial(_carries, arms.SAME_UPDATES),
  ),
  "R2": (
    "At equal examples more of GRPO's gain carries over.",
    functools.partial(_carries, arms.SAME_EXAMPLES),
  ),
  "F1": (
    "Imitation forgets what is out of domain.",
    functools.partial(_forgets, arms.SAME_UPDATES, "below"),
  ),
  "F2": (
    "GRPO does not forget it.",
    functools.partial(_forgets, arms.GRPO, "not below"),
  ),
  "O1": (
    "At equal updates GRPO's boxes overlap more out of domain.",
    functools.partial(_above, arms.SAME_UPDATES, BOXES, "overlap"),
  ),
  "O2": (
    "At equal examples GRPO's boxes overlap more out of domain.",
    functools.partial(_above, arms.SAME_EXAMPLES, BOXES, "overlap"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)
