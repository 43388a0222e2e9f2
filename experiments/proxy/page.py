"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.proxy import arms as arms_lib
from experiments.proxy import claims
from experiments.proxy.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion

_AGAIN_AND_ONCE = ("kl0-r0", "kl0-once")


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_arms(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# A learned reward, and what is right

<!-- Written by `python -m experiments.proxy.report`. -->

How far does a policy follow a learned reward away from the truth, and what
keeps it close? A policy that sorts five letters is rewarded by a reward model
alone. The reward model has learned from pairs of answers whose labels are
misleading: nine parts of a label are for neighbours in ascending order, and one
part is for the right letters. For example, `abcde` gets nearly the full label
whatever letters were given. Three remedies are tried: a KL to the policy at the
start of an iteration, as in DeepSeekMath (arXiv:2402.03300); a reward model
that learns again from fresh completions; and 10 % of old completions among
these.
"""
  yield from pages.answer(
    found,
    """
The policy follows the score too far, and none of the remedies helps measurably.
Without a remedy but learning again, the share of right answers changes by
{H1[2]}, while the score of the reward model rises by {H1[0]} nats in an
iteration. A KL of 0.04 changes the gap between order and truth by {K1[0]}, 10 %
of old completions by {R1[0]}, and learning again by {I1[0]}: for each of them 0
is in the interval. The experiment is small: one transformer of two layers, one
task, and ten seeds for each arm.""",
    confirmed="H1",
  )
  yield """\
```
python -m experiments.proxy.run --root=runs/proxy --results=benchmarks/proxy
python -m experiments.proxy.report --results=benchmarks/proxy --out=docs
```

Arms are made from [`configs/iterative.py`](../configs/iterative.py). A
transformer of two layers imitates a teacher who sorts the wrong way round half
of the time. Then come six iterations. In each iteration the reward model, which
was a copy of the policy at first, learns from 600 pairs. Then the policy takes
25 steps of 16 prompts × 16 completions, and the score is its only reward. In
the arms `-once` the reward model learns once, the policy then takes all of its
150 steps, and the reference of the KL is the warm start. In names of arms,
`kl04` means a KL of 0.04, and `r10` means 10 % of old completions.
"""
  seeds = sorted({results.num_seeds(name) for name in results.arms})
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(arms_lib.ARMS)} arms have been run, with
{" or ".join(map(str, seeds))} seeds for each arm, in {minutes:.0f} minutes on
one of {pages.CORES} virtual CPU cores, which other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Score, ascending neighbours and accuracy over the steps](proxy.png)

Lines are means over seeds, of the completions that are drawn in training, and
bands are their 95 % bootstrap intervals. Scores of different reward models have
no common zero. So the line of scores begins anew with each iteration.
"""
  yield from _afterwards(results)
  yield """## The rules

The rules were written before any arm but the first had been run with these
sizes, and stand in `experiments/proxy/claims.py`:
"""
  yield from pages.rules(claims)


def _afterwards(results: Results) -> Iterator[str]:
  """Yields findings outside the claims; nothing while an arm is missing."""
  if not {*_AGAIN_AND_ONCE} <= {*results.arms}:
    return
  again, once = (results.held_out(x, "accuracy") for x in _AGAIN_AND_ONCE)
  more = statistics.contrast([(1, again[:, -1]), (-1, once[:, -1])])
  first, second = (
    ", ".join(f"{x:.2f}" for x in found.mean(axis=0)) for found in (again, once)
  )
  yield pages.paragraph(f"""
The following was seen afterwards, and is no claim. Before the first step and
after each 25 steps, the share of right answers to held-out prompts is {first}
if the reward model learns again, and {second} if it learned once. Both arms are
without KL. At the end the first arm is larger by
{statistics.text(more, 3)}.""")


def _arms(results: Results) -> Iterator[str]:
  yield "## All arms"
  yield ""
  yield pages.paragraph("""
Accuracy and gap are of held-out prompts. Accuracy is the share of right answers
before the first iteration, at the best evaluation of each seed, and at the end.
The gap is the share of neighbours in ascending order minus the share of right
answers. "Opinion" is how far the score rises in an iteration. "Agreement" is
about pairs of a right and a wrong completion: it is the share of pairs in which
the reward model prefers the right one, in the last five steps that have such a
pair. Numbers are means over seeds.""")
  yield (
    "| arm | seeds | accuracy before | best | at the end | gap before |"
    " gap at the end, 95 % interval | opinion, nats | agreement | minutes |"
  )
  yield "|---|---|---|---|---|---|---|---|---|---|"
  for name in results.arms:
    accuracy = results.held_out(name, "accuracy")
    gap = results.held_out(name, "gap")
    interval = statistics.contrast([(1, gap[:, -1])])
    _, agreement = results.curve(name, "agreement")
    yield (
      f"| `{name}` | {len(gap)} | {accuracy[:, 0].mean():.3f} |"
      f" {accuracy.max(axis=1).mean():.3f} | {accuracy[:, -1].mean():.3f} |"
      f" {gap[:, 0].mean():.3f} | {statistics.text(interval, 3)} |"
      f" {results.opinion(name).mean():.2f} | {_last(agreement)} |"
      f" {results.seconds(name) / 60:.1f} |"
    )
  yield ""


def _last(values: np.ndarray) -> str:  # [S, N]
  """Mean of the last five numbers of each seed."""
  known = [row[~np.isnan(row)][-5:] for row in values]
  found = [row.mean() for row in known if len(row)]
  return f"{np.mean(found):.2f}" if found else "–"
