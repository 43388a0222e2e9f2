"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.planted_errors import arms as arms_lib
from experiments.planted_errors import claims
from experiments.planted_errors import results as results_lib
from experiments.planted_errors.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_credits(results),
    *_learners(results),
    *pages.checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Which step was wrong?

<!-- Written by `python -m experiments.planted_errors.report`. -->

RREDCoT gives each segment of a completion a credit, by forcing an answer after
it ([rredcot.md](rredcot.md)). Do these credits find an error that was planted
into a working? Are they what sampling from each prefix would say? And does a
policy learn faster with them?

```
python -m experiments.planted_errors.run --root=runs/planted_errors \\
    --results=benchmarks/planted_errors
python -m experiments.planted_errors.report \\
    --results=benchmarks/planted_errors --out=docs
```
"""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 adds numbers of two digits with a
working of two steps. `taught` imitates, for
{arms_lib.IMITATION[arms_lib.MEASURED]} steps, a teacher who leaves the last
steps out of every second working and answers all the same: a policy that never
does so expects nothing before its working ends. In
{results_lib.NUM_PROBLEMS} right workings of held-out problems the carry of one
step is then flipped, and whatever follows from the flip follows.""")
  yield pages.paragraph(f"""
`start` imitates a teacher who also forgets three carries in ten, for
{arms_lib.IMITATION[arms_lib.BASE]} steps, and the learners go on from there for
{arms_lib.STEPS} steps of {arms_lib.BATCH} completions, 8 of each prompt. PPO
draws one of each of {arms_lib.BATCH} prompts, and its critic learns from the
first {arms_lib.CRITIC_STEPS} of the steps alone. No KL. RREDCoT's extra passes
are no completions, and are not counted here ([rredcot.md](rredcot.md) has their
cost).""")
  names = [arms_lib.MEASURED, *arms_lib.LEARNERS]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {arms_lib.NUM_SEEDS} seeds an arm, in
{minutes:.0f} minutes on {pages.CORES} virtual CPU cores, which other
programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Located errors, correlations, and learning curves](planted_errors.png)

Bars and lines are means over seeds, dots seeds, bands their 95 % bootstrap
interval.

## The rules

They stand in `experiments/planted_errors/claims.py`:
"""
  yield from pages.rules(claims)


_ROWS = {
  "errors located": "located",
  "errors located, first step": "located/0",
  "errors located, second step": "located/1",
  "r of credits with sampled values": "r/credits",
  "r of the outcome, shared out by entropy": "r/entropy",
  "r of the outcome, shared out alike": "r/outcome",
}


def _credits(results: Results) -> Iterator[str]:
  if arms_lib.MEASURED not in results.arms:
    return
  yield "## Credits"
  yield ""
  yield "Means over seeds with Student's 95 % interval.\n"
  yield "| of `taught` | |"
  yield "|---|---|"
  for shown, what in _ROWS.items():
    yield f"| {shown} | {pages.cell(results.scores(arms_lib.MEASURED, what))} |"
  yield ""


def _learners(results: Results) -> Iterator[str]:
  if not results.learners:
    return
  yield "## Learners"
  yield ""
  yield pages.paragraph("""
Share of right answers to held-out problems at temperature 1: the mean over the
completions that were drawn (area), and at the end. Means over seeds with
Student's 95 % interval.""")
  yield "| arm | what it is | area | at the end |"
  yield "|---|---|---|---|"
  for name, arm in arms_lib.LEARNERS.items():
    area, after = (
      pages.cell(results.scores(name, what)) for what in ("area", "after")
    )
    yield f"| `{name}` | {arm.shown} | {area} | {after} |"
  yield ""
