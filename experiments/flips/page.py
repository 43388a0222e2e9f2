"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.flips import arms as arms_lib
from experiments.flips import claims
from experiments.flips.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_ends(results), *pages.checks(found)]
  return pages.joined(lines)


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
  yield pages.paragraph(f"""
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
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {arms_lib.NUM_SEEDS} seeds an arm, in
{minutes:.0f} minutes on one of {pages.CORES} virtual CPU cores, which other
programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy at the end over errors, and over completions](flips.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/flips/claims.py`:
"""
  yield from pages.rules(claims)


def _ends(results: Results) -> Iterator[str]:
  yield "## Accuracy at the end"
  yield ""
  first = results.accuracy(results.arms[0])[:, 0].mean()
  yield pages.paragraph(f"""
Share of right answers to held-out prompts after
{arms_lib.STEPS * arms_lib.BATCH} completions; before, it is {first:.3f}. Means
over seeds with Student's 95 % interval.""")
  yield "| misjudged | " + " | ".join(arms_lib.ALGORITHMS.values()) + " |"
  yield "|---" * (1 + len(arms_lib.ALGORITHMS)) + "|"
  for percent in arms_lib.PERCENT:
    cells = [
      pages.cell(results.scores(f"{x}-{percent}", "after"))
      for x in arms_lib.ALGORITHMS
    ]
    yield f"| {percent} % | {' | '.join(cells)} |"
  yield ""
