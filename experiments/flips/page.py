"""The page about the experiment, in Markdown."""

from __future__ import annotations

import collections
import os
import textwrap
from collections.abc import Iterator, Sequence

from experiments.flips import arms as arms_lib
from experiments.flips import claims
from experiments.flips.results import Results
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_ends(results), *_checks(found)]
  return "\n".join(lines).rstrip("\n") + "\n"


def _paragraph(text: str) -> str:
  """Lines of at most 80 columns, and an empty one."""
  return (
    textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False) + "\n"
  )


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# A verifier with errors

<!-- Written by `python -m experiments.flips.report`. -->

A verifier says of some right answers that they are wrong, and of as many wrong
ones that they are right. How much is still learned if that happens to one
completion in ten, or to four, and does it matter which algorithm learns?

```
python -m experiments.flips.run --root=runs/flips --results=benchmarks/flips
python -m experiments.flips.report --results=benchmarks/flips --out=docs
```
"""
  yield _paragraph(f"""
A transformer of two layers of width 64 sorts five letters. Its warm start has
imitated a teacher who sorts the wrong way round three times in four, and is the
same for all arms of a seed. The reward is `flipped` ([rewards.md](rewards.md)):
which completions are misjudged depends on prompt and completion alone, so
completions of a prompt that are alike are judged alike, and errors do not
average out in a group. {arms_lib.STEPS} steps of {arms_lib.BATCH} completions,
8 of each prompt; PPO draws one of each of 128 prompts, and its critic learns
from the first {arms_lib.CRITIC_STEPS} of the steps alone. No KL. Other settings
are those of [`configs/ppo_add.py`](../configs/ppo_add.py).""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  missing = [name for name in names if name not in results.arms]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield _paragraph(f"""
{len(results.arms)} of {len(names)} arms, {arms_lib.NUM_SEEDS} seeds an arm, in
{minutes:.0f} minutes on one of {os.cpu_count()} virtual CPU cores, which other
programs used too.""")
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
![Accuracy at the end over errors, and over completions](flips.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/flips/claims.py`:
"""
  docstring = claims.__doc__ or ""
  for line in docstring.strip().splitlines()[2:]:
    yield f"    {line}" if line else ""
  yield ""


def _ends(results: Results) -> Iterator[str]:
  yield "## Accuracy at the end"
  yield ""
  first = results.accuracy(results.arms[0])[:, 0].mean()
  yield _paragraph(f"""
Share of right answers to held-out prompts after
{arms_lib.STEPS * arms_lib.BATCH} completions; before, it is {first:.3f}. Means
over seeds with Student's 95 % interval.""")
  yield "| misjudged | " + " | ".join(arms_lib.ALGORITHMS.values()) + " |"
  yield "|---" * (1 + len(arms_lib.ALGORITHMS)) + "|"
  for percent in arms_lib.PERCENT:
    cells = [_cell(results, f"{x}-{percent}") for x in arms_lib.ALGORITHMS]
    yield f"| {percent} % | {' | '.join(cells)} |"
  yield ""


def _cell(results: Results, arm: str) -> str:
  found = results.scores(arm, "after")
  if found is None:
    return "–"
  return statistics.text(statistics.contrast([(1, found)]), 3)


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
