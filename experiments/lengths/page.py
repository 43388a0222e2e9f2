"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.lengths import arms as arms_lib
from experiments.lengths import claims
from experiments.lengths.results import FIRST, LAST, Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_lengths(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Completions that need not be long

<!-- Written by `python -m experiments.lengths.report`. -->

A teacher precedes its sums by letters that say nothing. A verifier rewards the
right ones, and by a bug likes length a little: 0.02 at most, where a right sum
is worth 1. Which algorithms learn to write more, and does it help to sample
more and to learn from the shortest (GFPO, arXiv:2508.09726)?

```
python -m experiments.lengths.run --root=runs/lengths \\
    --results=benchmarks/lengths
python -m experiments.lengths.report --results=benchmarks/lengths --out=docs
```

| arm | what it is |
|---|---|"""
  for name, arm in arms_lib.ARMS.items():
    yield f"| `{name}` | {arm.text} |"
  size = arms_lib.SIZES["full"]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield ""
  yield pages.paragraph(f"""
[`configs/add_filler.py`](../configs/add_filler.py): two layers of width 64
learn the sums of two digits by heart, of which there are a hundred, so that all
numbers are of prompts that were trained.
`base` imitates for {size.imitation} steps; all others go on from it for
{size.steps} steps of {size.num_prompts} prompts. They take as many steps, and
draw 8, 16 or 24 completions of a prompt: GFPO pays for short completions at
inference with more of them in training. {results.num_seeds} seeds an arm,
{len(results.arms)} of {len(arms_lib.ARMS)} arms in {minutes:.0f} minutes, on
CPU cores that other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Lengths over steps, and accuracy over length](lengths.png)

Lines are means over seeds and ten steps, bands their 95 % bootstrap interval;
small dots are seeds, large ones their means.

## The rules

They stand in `experiments/lengths/claims.py`:
"""
  yield from pages.rules(claims)


def _lengths(results: Results) -> Iterator[str]:
  yield "## Lengths"
  yield ""
  yield pages.paragraph(f"""
Accuracy and tokens in the last {LAST} steps; the share of the growth of `all`
that an arm has not (ELR: 0 is as long as `all`, 1 as short as in the first
{FIRST} steps); and by how many tokens right and wrong completions have become
longer since those. Means over seeds, with Student's 95 % interval.""")
  yield "| arm | accuracy | tokens | ELR | growth, right | wrong | minutes |"
  yield "|---" * 7 + "|"
  whats = ("accuracy", "length", "elr", "growth/right", "growth/wrong")
  for name in results.arms:
    cells = [
      pages.cell(results.scores(name, what), 3 if what == "accuracy" else 2)
      for what in whats
    ]
    minutes = results.seconds(name) / 60
    yield f"| `{name}` | {' | '.join(cells)} | {minutes:.1f} |"
  yield ""
  if {"all-mended", "shortest-mended"} <= set(results.arms):
    of_all, of_short = (
      pages.cell(results.scores(name, "growth/wrong"), 2)
      for name in ("all-mended", "shortest-mended")
    )
    yield pages.paragraph(f"""
The last two arms hint at why the filters do worse here, and prove nothing. GFPO
never trains on the completions that it leaves out, which are the long ones, so
nothing speaks against a long wrong one. What fits that: without the bug wrong
completions grow by {of_short} tokens in `shortest-mended`, and by
{of_all} in `all-mended`.""")
