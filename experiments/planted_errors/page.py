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
  """The page about the arms that have ended."""
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

RREDCoT gives each segment of a completion a credit: it forces an answer after
the segment, and asks how much likelier the right answer has become
([rredcot.md](rredcot.md)). If an error is planted into one step of a right
working, does the credit point at that step? Do credits agree with what sampling
from each prefix would say? And does a policy learn faster with them?
"""
  yield from pages.answer(
    found,
    """
Credits find an error in the second of two steps, and often miss one in the
first step. Over both, the share that is found minus the claimed 0.8 is {L1[0]}:
the claim is open. The correlation of credits with sampled values minus 0.5 is
{M1[0]}, which is confirmed. The arm `mix` learns a little faster than GRPO: the
area under its accuracy curve is larger by {E1[0]}. For `rudder` and `return`,
with {E2[0]} and {E3[0]}, the seeds do not decide. The experiment is small: one
transformer of two layers, sums of two-digit numbers with two steps, and five
seeds for each arm.""",
    confirmed="L2 M1 M3 E1 E4",
    refuted="E5",
  )
  yield """\
```
python -m experiments.planted_errors.run --root=runs/planted_errors \\
    --results=benchmarks/planted_errors
python -m experiments.planted_errors.report \\
    --results=benchmarks/planted_errors --out=docs
```
"""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 adds two-digit numbers, with a working
of two steps. The arm `taught` imitates a teacher for
{arms_lib.IMITATION[arms_lib.MEASURED]} steps. This teacher leaves the last
steps out of every second working, and answers all the same. The reason is that
a policy which always writes its whole working does not expect an answer before
the end, so that all early credits would be about 0. The test has
{results_lib.NUM_PROBLEMS} right workings of held-out problems. In each of them
the carry of one step is flipped, and the rest of the working follows from the
flipped carry.""")
  yield pages.paragraph(f"""
The arm `start` imitates, for {arms_lib.IMITATION[arms_lib.BASE]} steps, a
teacher who also forgets three carries in ten. All learners go on from `start`
for {arms_lib.STEPS} steps of {arms_lib.BATCH} completions, 8 of each prompt.
PPO draws one completion of each of {arms_lib.BATCH} prompts, and in its first
{arms_lib.CRITIC_STEPS} steps only the critic learns. There is no KL. RREDCoT's
extra passes draw no completions, and are not counted here
([rredcot.md](rredcot.md) has their cost).""")
  names = [arms_lib.MEASURED, *arms_lib.LEARNERS]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with
{arms_lib.NUM_SEEDS} seeds for each arm, in {minutes:.0f} minutes on
{pages.CORES} virtual CPU cores, which other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Located errors, correlations, and learning curves](planted_errors.png)

Bars and lines are means over seeds, dots are seeds, and bands are 95 %
bootstrap intervals over seeds.

## The rules

The rules stand in `experiments/planted_errors/claims.py`:
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
  yield pages.paragraph("""
"Located" is the share of planted errors whose step has the most negative
credit; by chance it would be one third. r is the correlation with Monte-Carlo
values, over the segments of other workings. The last two rows are for
comparison: the reward of the completion is shared out among its segments, by
their entropy or equally. Numbers are means over seeds with Student's 95 %
interval.""")
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
Accuracy is the share of right answers to held-out problems at temperature 1.
"Area" is the mean accuracy over the whole training, by the number of
completions drawn. Numbers are means over seeds with Student's 95 %
interval.""")
  yield "| arm | what it is | area | at the end |"
  yield "|---|---|---|---|"
  for name, arm in arms_lib.LEARNERS.items():
    area, after = (
      pages.cell(results.scores(name, what)) for what in ("area", "after")
    )
    yield f"| `{name}` | {arm.shown} | {area} | {after} |"
  yield ""
