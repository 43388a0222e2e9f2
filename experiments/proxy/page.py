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
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_arms(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# A learned reward, and what is right

<!-- Written by `python -m experiments.proxy.report`. -->

A policy that sorts five letters follows the score of a reward model, and that
has learned from labels that are nine parts neighbours in ascending order and
one part the right letters. `abcde` is in order whatever was asked. How far
apart do score and truth get, and what keeps them together: a KL to the policy
at the start of an iteration, as in DeepSeekMath (arXiv:2402.03300), a reward
model that learns again from fresh completions, 10 % of old ones among them?

```
python -m experiments.proxy.run --root=runs/proxy --results=benchmarks/proxy
python -m experiments.proxy.report --results=benchmarks/proxy --out=docs
```

Arms are made from [`configs/iterative.py`](../configs/iterative.py): a
transformer of two layers, a warm start with a teacher who sorts the wrong way
round half of the time, and six iterations. In each the reward model, at first a
copy of the policy, learns from 600 pairs, and the policy takes 25 steps of 16
prompts × 16 completions with no reward but the score. Where it learns once, the
policy takes its 150 steps after that, and the reference is the warm start.
"""
  seeds = sorted({results.num_seeds(name) for name in results.arms})
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(arms_lib.ARMS)} arms, {" or ".join(map(str, seeds))}
seeds an arm, in {minutes:.0f} minutes on one of {pages.CORES} virtual CPU
cores, which other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Score, ascending neighbours and accuracy over the steps](proxy.png)

Lines are means over seeds of what is drawn in training, bands their 95 %
bootstrap interval. Scores of different reward models have no common zero, so
their line begins anew with each iteration.
"""
  yield from _afterwards(results)
  yield """## The rules

They were written before any arm but the first had been run with these sizes,
and stand in `experiments/proxy/claims.py`:
"""
  yield from pages.rules(claims)


def _afterwards(results: Results) -> Iterator[str]:
  """What no rule asks for; nothing while an arm is missing."""
  if not {*_AGAIN_AND_ONCE} <= {*results.arms}:
    return
  again, once = (results.held_out(x, "accuracy") for x in _AGAIN_AND_ONCE)
  more = statistics.contrast([(1, again[:, -1]), (-1, once[:, -1])])
  first, second = (
    ", ".join(f"{x:.2f}" for x in found.mean(axis=0)) for found in (again, once)
  )
  yield pages.paragraph(f"""
Seen afterwards, and so no claim. Before the first 25 steps and after each 25,
the shares of right answers to held-out prompts are {first} where the reward
model learns again, and {second} where it learned once, both without KL. At the
end the former is larger by {statistics.text(more, 3)}.""")


def _arms(results: Results) -> Iterator[str]:
  yield "## All arms"
  yield ""
  yield pages.paragraph("""
Means over seeds on held-out prompts: of right answers before the first
iteration, at the best evaluation of each seed and at the end, and of the gap
before and at the end; how far the score rises in an iteration; and in which
share of pairs of completions, one right and one wrong, the reward model prefers
the right one, in the last five steps that have such a pair.""")
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
  """Mean of the last five numbers of each seed that there are."""
  known = [row[~np.isnan(row)][-5:] for row in values]
  found = [row.mean() for row in known if len(row)]
  return f"{np.mean(found):.2f}" if found else "–"
