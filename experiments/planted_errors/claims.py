"""The claims of the experiment, and the checks that confirm each of them.

Sizes were chosen after trials of one seed of `taught`, with 300 and 600 steps,
and of `start`, which after 150 steps was right in 2 % of its answers and now
has 300; the rules below were written before `taught` was run with five seeds,
and before any learner was run. The mean over seeds has Student's 95 % interval,
and the interval decides. A claim is confirmed if all of its checks hold.

Of `taught`, on 512 held-out problems with one flipped carry: how often the
segment with the flip has the most negative credit. On 128 workings of other
held-out problems, half of them with an error: Pearson's correlation r over
segments with the differences of Monte-Carlo values, 64 completions from each
prefix.

L1  Credits locate at least 80 % of the errors: the share − 0.8 is above 0.
L2  They do so for errors in the second step.
L3  They locate more than chance, a third, wherever the error is.
M1  Credits go with Monte-Carlo values: r is above 0.5.
M2  They do so more than the outcome, shared out by the entropy of segments.
M3  They do so more than the outcome, shared out alike.

Of the others, the *area*: the mean accuracy on held-out problems, at
temperature 1, over the 10 240 completions that are drawn. Arms are compared
seed by seed, with the same start.

E1  `mix` learns faster than `grpo`.
E2  `rudder` learns faster than `grpo`.
E3  `return` learns faster than `grpo`.
E4  `mix` learns faster than `ppo`.
E5  A verifier of steps is better than credits: `grpo_ps` learns faster than
    `mix`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.planted_errors import arms
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> one number for each seed [S]; None while it is missing.
Scores = Callable[[str, str], np.ndarray | None]


def _exceeds(what: str, bound: float, of: Scores) -> Iterator[Check]:
  values = statistics.minus(of(arms.MEASURED, what), bound)
  yield check(f"{_SHOWN[what]} − {bound:.3g}", "above", (1, values))


def _each_exceeds_chance(of: Scores) -> Iterator[Check]:
  for k in range(arms.LEVEL):
    yield from _exceeds(f"located/{k}", 1 / (arms.LEVEL + 1), of)


def _goes_more(other: str, of: Scores) -> Iterator[Check]:
  values = statistics.minus(
    of(arms.MEASURED, "r/credits"), of(arms.MEASURED, other)
  )
  yield check(f"r of credits − {_SHOWN[other]}", "above", (1, values))


def _faster(one: str, other: str, of: Scores) -> Iterator[Check]:
  values = statistics.minus(of(one, "area"), of(other, "area"))
  yield check(f"area of `{one}` − `{other}`", "above", (1, values))


_SHOWN = {
  "located": "located",
  "located/0": "located, first step",
  "located/1": "located, second step",
  "r/credits": "r of credits",
  "r/entropy": "r of the outcome by entropy",
  "r/outcome": "r of the outcome",
}

CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "L1": (
    "Credits locate at least 80 % of the errors.",
    functools.partial(_exceeds, "located", 0.8),
  ),
  "L2": (
    "They locate at least 80 % of those in the second step.",
    functools.partial(_exceeds, "located/1", 0.8),
  ),
  "L3": (
    "They locate more than chance, wherever the error is.",
    _each_exceeds_chance,
  ),
  "M1": (
    "Credits go with Monte-Carlo values.",
    functools.partial(_exceeds, "r/credits", 0.5),
  ),
  "M2": (
    "They do so more than the outcome shared out by entropy.",
    functools.partial(_goes_more, "r/entropy"),
  ),
  "M3": (
    "They do so more than the outcome shared out alike.",
    functools.partial(_goes_more, "r/outcome"),
  ),
  **{
    f"E{place}": (f"`{name}` learns faster than GRPO.", checks)
    for place, (name, checks) in enumerate(
      (
        (name, functools.partial(_faster, name, "grpo"))
        for name in ("mix", "rudder", "return")
      ),
      1,
    )
  },
  "E4": (
    "`mix` learns faster than PPO.",
    functools.partial(_faster, "mix", "ppo"),
  ),
  "E5": (
    "A verifier of steps is better than credits.",
    functools.partial(_faster, "grpo_ps", "mix"),
  ),
}
conclude = functools.partial(statistics.conclude, CLAIMS)
