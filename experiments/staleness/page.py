"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.staleness import arms as arms_lib
from experiments.staleness import claims
from experiments.staleness.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# What do old completions cost?

<!-- Written by `python -m experiments.staleness.report`. -->

Where rollouts and updates overlap, a policy is trained on what it wrote several
updates ago (`config.rl.staleness`). What does that cost, and which corrections
make up for it?

```
python -m experiments.staleness.run --root=runs/staleness \\
    --results=benchmarks/staleness
python -m experiments.staleness.report --results=benchmarks/staleness --out=docs
```

An arm is a correction and a number of updates: `tis-s16` truncates weights of
completions that are 16 updates old.

| correction | what it does |
|---|---|"""
  for name, correction in arms_lib.CORRECTIONS.items():
    yield f"| `{name}` | {correction.text} |"
  size = arms_lib.SIZES["full"]
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 closes brackets in the reverse order
(BRACKET). `base` has imitated for {size.imitation} steps a teacher who closes
them in the order of opening three times in four. Then GRPO on {size.steps}
steps of {size.num_prompts} problems with {arms_lib.GROUP_SIZE} completions
each, at a learning rate of {arms_lib.LEARNING_RATE:g} that does not fall, and
without a KL. Rollouts are drawn ahead in the graph: in the first steps of an
arm they are younger than its number says. There is one gradient step on each
batch, and the ratio that GRPO clips is anchored before it, so it is 1 and
nothing is clipped: what is off-policy is the age alone, and what is done about
it the correction alone. The weights of `dis` are then those of SAO's
double-sided mask, on GRPO's advantages.""")
  yield pages.paragraph("""
Nothing can be old in a run without any correction: the config is refused.
`none` has one that never acts, the mask of OPSM with a bound of a million nats.
Log-probs are recomputed with the weights of now, and completions are trained as
if these had written them.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {size.num_seeds} seeds an arm, in
{minutes:.0f} minutes on CPU cores that other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over steps at 0, 1, 4 and 16 updates](staleness.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/staleness/claims.py`:
"""
  yield from pages.rules(claims)
  yield "## What they do not say"
  yield ""
  yield pages.paragraph("""
One task, one small model, one rate. The rate was chosen so that age can be
seen: a policy that moves less in an update is less far from what it wrote 16
updates ago, and loses less. Nothing here says how age and accuracy trade
against time, since rollouts and updates do not overlap on one device. Bounds
are those of the papers or of other libraries, and none was tuned. What is left
out also makes for smaller steps: a correction that helps may do so by that.""")


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
Accuracy on held-out problems before the first step, the least of all
evaluations, and at the end with Student's 95 % interval; the distance of the
log-probs of now from the recorded ones, nats a token; the mean weight of a
token; and the share of the tokens drawn that were trained, by what is left out
with its denominators (`reject`). Means over steps and seeds.""")
  yield "| arm | start | least | end | gap | weight | trained |"
  yield "|---" * 7 + "|"
  for name in results.arms:
    start, least = (results.scores(name, what) for what in ("start", "least"))
    assert start is not None
    assert least is not None
    cells = [f"{start.mean():.3f}", f"{least.mean():.3f}"]
    cells.append(pages.cell(results.scores(name, "end")))
    cells.append(f"{results.mean(name, 'gap'):.3f}")
    weight = results.logged(name, "weight")
    cells.append("–" if weight is None else f"{weight.mean():.3f}")
    cells.append(f"{results.trained(name):.3f}")
    yield f"| `{name}` | {' | '.join(cells)} |"
  yield ""
