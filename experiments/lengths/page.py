"""The page about the experiment, in Markdown."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterator, Sequence

from experiments.lengths import arms as arms_lib
from experiments.lengths import claims
from experiments.lengths.results import FIRST, LAST, Results
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_lengths(results), *_checks(found)]
  return "\n".join(lines).rstrip("\n") + "\n"


def _paragraph(text: str) -> str:
  """Lines of at most 80 columns, and an empty one."""
  return (
    textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False) + "\n"
  )


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
  yield _paragraph(f"""
[`configs/add_filler.py`](../configs/add_filler.py): two layers of width 64
learn the sums of two digits by heart, of which there are a hundred, so that all
numbers are of prompts that were trained.
`base` imitates for {size.imitation} steps; all others go on from it for
{size.steps} steps of {size.num_prompts} prompts. They take as many steps, and
draw 8, 16 or 24 completions of a prompt: GFPO pays for short completions at
inference with more of them in training. {results.num_seeds} seeds an arm,
{len(results.arms)} of {len(arms_lib.ARMS)} arms in {minutes:.0f} minutes, on
CPU cores that other programs used too.""")
  missing = [name for name in arms_lib.ARMS if name not in results.arms]
  if missing:
    shown = ", ".join(f"`{name}`" for name in missing)
    yield _paragraph(f"""
{len(missing)} arms have not been run: {shown}. A claim that needs one of them
is undecided, unless another of its checks does not hold already.""")
  yield "| | claim | verdict | checks that hold | do not | not made |"
  yield "|---|---|---|---|---|---|"
  for one in found:
    counts = collections.Counter(check.holds for check in one.checks)
    yield (
      f"| {one.name} | {one.claim} | **{one.verdict}** | {counts[True]} |"
      f" {counts[False]} | {counts[None]} |"
    )
  yield """
![Lengths over steps, and accuracy over length](lengths.png)

Lines are means over seeds and ten steps, bands their 95 % bootstrap interval;
small dots are seeds, large ones their means.

## The rules

They stand in `experiments/lengths/claims.py`:
"""
  docstring = claims.__doc__ or ""
  for line in docstring.strip().splitlines()[2:]:
    yield f"    {line}" if line else ""
  yield ""


def _lengths(results: Results) -> Iterator[str]:
  yield "## Lengths"
  yield ""
  yield _paragraph(f"""
Accuracy and tokens in the last {LAST} steps; the share of the growth of `all`
that an arm has not (ELR: 0 is as long as `all`, 1 as short as in the first
{FIRST} steps); and by how many tokens right and wrong completions have become
longer since those. Means over seeds, with Student's 95 % interval.""")
  yield "| arm | accuracy | tokens | ELR | growth, right | wrong | minutes |"
  yield "|---" * 7 + "|"
  whats = ("accuracy", "length", "elr", "growth/right", "growth/wrong")
  for name in results.arms:
    cells = [_cell(results, name, what) for what in whats]
    minutes = results.seconds(name) / 60
    yield f"| `{name}` | {' | '.join(cells)} | {minutes:.1f} |"
  yield ""


def _cell(results: Results, arm: str, what: str) -> str:
  found = results.scores(arm, what)
  if found is None:
    return "–"
  digits = 3 if what == "accuracy" else 2
  return statistics.text(statistics.contrast([(1, found)]), digits)


def _checks(found: Sequence[Conclusion]) -> Iterator[str]:
  yield "## The checks"
  yield ""
  yield _paragraph(statistics.WHAT_DECIDES)
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    yield from statistics.table(one.checks, 3)
    yield ""
    if absent := [check.text for check in one.checks if check.holds is None]:
      yield _paragraph(f"Not made, for lack of runs: {'; '.join(absent)}.")
