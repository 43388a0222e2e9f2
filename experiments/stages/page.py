"""The page about the experiment, in Markdown, and its figure."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.stages import arms as arms_lib
from experiments.stages import claims
from experiments.stages.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  return "\n".join([*_head(results, found), *_ends(results), *_checks(found)])


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# When to imitate, and when to reinforce?

<!-- Written by `python -m experiments.stages.report`. -->

Labelled examples cost people, generated tokens cost machines. A base model of
sums of three digits, which has read seven forgotten carries in ten, goes on
with some labelled examples, with GRPO, or with both; and a smaller model
imitates what came of it.

```
python -m experiments.stages.run --root=runs/stages \\
    --results=benchmarks/stages
python -m experiments.stages.report --results=benchmarks/stages --out=docs
```
"""
  yield pages.paragraph(f"""
{results.seconds() / 60:.0f} minutes in all on one of {pages.CORES} virtual
CPU cores, which other programs used too; five seeds an arm.""")
  yield """| | claim | verdict |
|---|---|---|"""
  for one in found:
    yield f"| {one.name} | {one.claim} | **{one.verdict}** |"
  yield """
![Right answers over labelled examples and over tokens](sft_or_rl.png)

Left: right answers over labelled examples, before reinforcement and after.
Right: over the tokens that were generated for it. Lines are means over seeds,
bands their 95 % bootstrap interval.

## The rules

They were written before any arm had run, and stand in
`experiments/stages/claims.py`:
"""
  yield from pages.rules(claims)


def spread(values: np.ndarray) -> str:
  """Mean and 95 % bootstrap interval; one number where all are equal."""
  low, high = statistics.interval(values)
  if low == high:
    return f"{values.mean():.3f}"
  return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def _ends(results: Results) -> Iterator[str]:
  yield "## Right answers"
  yield ""
  yield f"The base has {results.base_accuracy:.3f}."
  yield ""
  yield "| arm | | before GRPO | after | tokens generated, millions |"
  yield "|---|---|---|---|---|"
  drawn = results.num_drawn
  for arm in results.arms:
    tokens, _ = results.curve(arm)
    count = tokens[:, -1].mean()
    before, after = (results.scores(arm, when) for when in ("before", "after"))
    assert before is not None
    assert after is not None
    first = spread(before)
    if arm in (arms_lib.SMALL_LABELS, arms_lib.SMALL_KEPT):
      first = "–"
    if arm == arms_lib.SMALL_KEPT:
      count = drawn + results.curve(arms_lib.TEACHER)[0][0, -1]
    yield (
      f"| `{arm}` | {arms_lib.ARMS[arm]} | {first} | {spread(after)} |"
      f" {count / 1e6:.2f} |"
    )
  yield ""
  yield (
    "Tokens of the smaller model are those that its teacher has generated to"
    " learn, and to be imitated."
  )
  yield ""
  yield from _crossings(results)


def _crossings(results: Results) -> Iterator[str]:
  """After how many tokens GRPO alone is as good as labelled examples alone."""
  if arms_lib.RL not in results.arms:
    return
  tokens, accuracy = (x.mean(axis=0) for x in results.curve(arms_lib.RL))
  yield "| labelled examples alone | GRPO alone is as good after |"
  yield "|---|---|"
  for count in arms_lib.COUNTS:
    labelled = results.scores(f"sft-{count}", "before")
    if labelled is None:
      continue
    above = np.flatnonzero(accuracy >= labelled.mean())
    found = "never"
    if above.size:
      found = f"{tokens[above[0]] / 1e6:.2f} million tokens"
    yield f"| {count}: {labelled.mean():.3f} | {found} |"
  yield ""


def _checks(found: Sequence[Conclusion]) -> Iterator[str]:
  yield "## The checks"
  yield ""
  yield statistics.WHAT_DECIDES
  yield ""
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    yield from statistics.table(one.checks, 3)
    yield ""


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over labels, and over tokens."""
  import matplotlib.figure  # Late: an extra.

  figure = matplotlib.figure.Figure(figsize=(9, 3.6), layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True)
  with_grpo = [f"sft-{n}" for n in arms_lib.COUNTS]
  for when, text in (("before", "imitation"), ("after", "and then GRPO")):
    points = [
      (int(name.removeprefix("sft-")), results.scores(name, when))
      for name in with_grpo
      if name in results.arms
    ]
    scores = [(n, x) for n, x in points if x is not None]
    if scores:
      counts = [n for n, _ in scores]
      _band(left, counts, np.stack([x for _, x in scores], axis=1), text)
  for arm, text in (
    (arms_lib.SMALL_LABELS, "smaller, on labels"),
    (arms_lib.SMALL_KEPT, "smaller, on kept ones"),
  ):
    if (ends := results.scores(arm, "after")) is not None:
      low, high = statistics.interval(ends)
      error = [[ends.mean() - low], [high - ends.mean()]]
      left.errorbar([512], [ends.mean()], error, fmt="o", label=text)
  left.axhline(results.base_accuracy, color="gray", ls=":", label="base")
  left.set(xscale="log", xlabel="labelled examples", ylabel="right answers")
  for name in (arms_lib.RL, *with_grpo):
    if name in results.arms:
      tokens, accuracy = results.curve(name)
      _band(right, tokens.mean(axis=0) / 1e6, accuracy, name)
  right.set(xlabel="tokens generated, millions")
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
  figure.savefig(path, dpi=150)


def _band(axes, x, values: np.ndarray, label: str) -> None:
  """Mean over seeds [S, N] and its interval."""
  low, high = statistics.interval(values)
  (line,) = axes.plot(x, values.mean(axis=0), marker=".", label=label)
  axes.fill_between(x, low, high, alpha=0.2, color=line.get_color())
