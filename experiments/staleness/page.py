"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.staleness import arms as arms_lib
from experiments.staleness import claims
from experiments.staleness.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# What do old completions cost?

<!-- Written by `python -m experiments.staleness.report`. -->

If rollouts are drawn while the policy is updated, the policy is trained on
completions that it wrote several updates ago (`config.rl.staleness`). What does
that cost, and which corrections make up for it?
"""
  yield from pages.answer(
    found,
    """
Old completions cost much here. Accuracy at the end, minus that with fresh
completions, is {A1[0]} if completions are one update old and {A2[0]} if they
are four updates old. Sixteen updates change it by {A3[0]} more than four do.
After 16 updates four of five corrections help. OPSM helps most: it ends {B4[0]}
above no correction. Its difference to fresh completions is {R2[3]}, so a loss
that remains is not shown. The mask of tokens is open ({B2[0]}). The experiment
is small: one transformer of two layers, one task, one learning rate that was
chosen so that age can be seen, and six seeds for each arm.""",
    confirmed="L1 A2 A3 Z1 B1 B3 B4 B5",
    refuted="A1 R1 R2",
  )
  yield """\
```
python -m experiments.staleness.run --root=runs/staleness \\
    --results=benchmarks/staleness
python -m experiments.staleness.report --results=benchmarks/staleness --out=docs
```

The name of an arm has a correction and the age of completions in updates. For
example, `tis-s16` truncates the importance weights of completions that are 16
updates old.

| correction | what it does |
|---|---|"""
  for name, correction in arms_lib.CORRECTIONS.items():
    yield f"| `{name}` | {correction.text} |"
  size = arms_lib.SIZES["full"]
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 closes brackets in the reverse order
(the task BRACKET). `base` imitates for {size.imitation} steps a teacher who
closes them in the order of opening three times in four. All other arms then
take {size.steps} steps of GRPO on {size.num_prompts} problems with
{arms_lib.GROUP_SIZE} completions each. The learning rate is
{arms_lib.LEARNING_RATE:g} and does not fall, and there is no KL. In the first
steps of an arm no completion can be as old as its name says, so they are
younger there.""")
  yield pages.paragraph("""
Each batch gets one gradient step. The policy just before that step is the
anchor of the ratio that GRPO clips, so the ratio is 1 and nothing is clipped.
The age of completions is therefore the only thing that is off-policy, and the
correction is the only remedy. For `dis` the weights are then those of SAO's
double-sided mask, on GRPO's advantages.""")
  yield pages.paragraph("""
A config with old completions is refused if nothing weighs them or leaves them
out on both sides. So `none` and `opsm` set `config.sampling.uncorrected`, and
`none` has a mask that never acts: that of OPSM with a bound of a million nats.
Log-probs of completions are recomputed with the present weights, and the
completions are trained as if the present policy had written them.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with {size.num_seeds}
seeds for each arm, in {minutes:.0f} minutes on CPU cores that other programs
used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over steps at 0, 1, 4 and 16 updates](staleness.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals.

## The rules

The rules stand in `experiments/staleness/claims.py`:
"""
  yield from pages.rules(claims)
  yield "## What the rules do not say"
  yield ""
  yield pages.paragraph("""
The rules are about one task, one small model and one learning rate. The rate
was chosen so that age can be seen. If a policy moves less in an update, it is
nearer to what it wrote 16 updates ago, and loses less. Nothing here says how
much time is won by old completions, because rollouts and updates do not overlap
on one device. The bounds of the corrections are those of the papers or of other
libraries, and none was tuned. If a correction leaves tokens out, the steps are
smaller, too; a correction may help for that reason alone.""")


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
The first three columns have the accuracy on held-out problems: before the first
step, the lowest of all evaluations, and at the end, with Student's 95 %
interval. "Gap" is the distance between the present log-probs of a token and the
recorded ones, in nats. "Weight" is the mean importance weight of a token.
"Trained" is the share of the drawn tokens that count in the denominators of the
loss; only `reject` takes what it leaves out from the denominators as well.
Numbers are means over steps and seeds.""")
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
