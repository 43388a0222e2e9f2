"""The claims of the experiment, and the checks that confirm each of them.

Sizes, difficulties and the learning rate were chosen after trial runs of seed 0
of `base`, `mixed` and two experts, before any other arm had been run; the rules
below were written then. They look at one number per seed: the held-out
accuracy, greedy, as the mean over the four domains ("macro"), at the end of an
arm. All arms have drawn as many completions. Where two arms are compared, it is
seed by seed. The mean has Student's 95 % interval, and the interval decides. A
claim is confirmed if all of its checks hold.

X1  Experts that are distilled into one model are not worse than GRPO on mixed
    batches: `opd-full` − `mixed` is not below 0.
X2  They are better: it is above 0.
X3  One domain after another forgets: the accuracy of the first three domains at
    the end of `sequential` is below that at the end of their own phase.
X4  Mixed batches are better than one domain after another.
X5  The whole distribution of a teacher is worth more than its word on the
    sampled token: `opd-full` − `opd-token` is above 0.
X6  The policy's own completions are the better place to learn from experts:
    `opd-full` − `sft-experts` is above 0.
X7  Domains interfere: the mean cosine between the gradients of two domains is
    below 0, at `base` and at the end of `mixed`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Check, check

# (arm, what) -> [seeds]; None while the arm is missing.
Scores = Callable[[str, str], np.ndarray | None]


def _difference(of: Scores, one: str, other: str, needed: str) -> Check:
  values = statistics.minus(of(one, "macro"), of(other, "macro"))
  return check(f"macro, `{one}` − `{other}`", needed, (1, values))


def _not_worse(of: Scores) -> Iterator[Check]:
  yield _difference(of, "opd-full", "mixed", "not below")


def _better(of: Scores) -> Iterator[Check]:
  yield _difference(of, "opd-full", "mixed", "above")


def _forgets(of: Scores) -> Iterator[Check]:
  yield check(
    "change after its own phase, `sequential`",
    "below",
    (1, of("sequential", "forgotten")),
  )


def _mixes(of: Scores) -> Iterator[Check]:
  yield _difference(of, "mixed", "sequential", "above")


def _whole(of: Scores) -> Iterator[Check]:
  yield _difference(of, "opd-full", "opd-token", "above")


def _on_policy(of: Scores) -> Iterator[Check]:
  yield _difference(of, "opd-full", "sft-experts", "above")


def _interfere(of: Scores) -> Iterator[Check]:
  for arm in ("base", "mixed"):
    yield check(
      f"mean cosine between domains, `{arm}`", "below", (1, of(arm, "cosine"))
    )


CLAIMS: dict[str, tuple[str, Callable[[Scores], Iterator[Check]]]] = {
  "X1": ("Distilled experts are not worse than mixed batches.", _not_worse),
  "X2": ("Distilled experts are better than mixed batches.", _better),
  "X3": ("One domain after another forgets.", _forgets),
  "X4": ("Mixed batches are better than one domain after another.", _mixes),
  "X5": ("The whole distribution is worth more than sampled tokens.", _whole),
  "X6": ("Own completions are better than those of experts.", _on_policy),
  "X7": ("The gradients of domains are opposed.", _interfere),
}
conclude = functools.partial(statistics.conclude, CLAIMS)
