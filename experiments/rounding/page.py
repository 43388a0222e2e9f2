"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.rounding import arms as arms_lib
from experiments.rounding import claims
from experiments.rounding.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# What do rounded rollouts cost?

<!-- Written by `python -m experiments.rounding.report`. -->

Rollouts may read the kernels of a model in 8 bits
(`config.sampling.weights_dtype`, [quantised sampling](quantised_sampling.md)),
while updates read them as they are. The policy that samples is then slightly
another one than the policy that is trained. Does accuracy suffer, and does a
correction help?
"""
  yield from pages.answer(
    found,
    """
It is open. The claim was that less than 0.02 of accuracy is lost. The
difference to exact kernels plus 0.02 is {A1[0]} with int8 and {A2[0]} with
float8: a loss is not seen, and a loss of 0.02 is not excluded. Truncated
weights change accuracy by {B1[0]} and {B2[0]}, and 0 is in both intervals. The
experiment is small: one transformer of two layers, one task with short
completions, and six seeds for each arm.""",
    confirmed="L1 G1 Z1",
  )
  yield """\
```
python -m experiments.rounding.run --root=runs/rounding \\
    --results=benchmarks/rounding
python -m experiments.rounding.report --results=benchmarks/rounding --out=docs
```

The name of an arm has the kind of the kernels that draw rollouts, and a
correction. For example, `int8-tis` rounds kernels to int8, and truncates the
importance weights of tokens.

| kernels | `config.sampling.weights_dtype` |
|---|---|"""
  for name, kind in arms_lib.KERNELS.items():
    yield f"| `{name}` | `{kind}` |"
  yield """
| correction | what it does |
|---|---|"""
  for name, correction in arms_lib.CORRECTIONS.items():
    yield f"| `{name}` | {correction.text} |"
  size = arms_lib.SIZES["full"]
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 in float32 closes brackets in the
reverse order (the task BRACKET). `base` imitates for {size.imitation} steps a
teacher who closes them in the order of opening three times in four. All other
arms then take {size.steps} steps of GRPO on {size.num_prompts} problems with
{arms_lib.GROUP_SIZE} completions each. The learning rate is
{arms_lib.LEARNING_RATE:g} and does not fall, and there is no KL. Each batch
gets one gradient step, and the policy just before that step is the anchor of
the ratio that GRPO clips. So rounding is the only thing that is
off-policy.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with {size.num_seeds}
seeds for each arm, in {minutes:.0f} minutes on CPU cores that other programs
used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over steps without a correction, and with TIS](rounding.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals.

## The rules

The rules stand in `experiments/rounding/claims.py`:
"""
  yield from pages.rules(claims)
  yield "## What the rules do not say"
  yield ""
  yield pages.paragraph("""
The rules are about one task, one small model and short completions. In a larger
model the errors of more layers add up, and in a completion of a thousand tokens
a thousand gaps add up. FlashRL saw a loss without a correction at 32 billion
parameters. Nothing here is about time, because a CPU has to turn the codes into
floats before it multiplies.""")


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
The first three columns have the accuracy on held-out problems: before the first
step, the lowest of all evaluations, and at the end, with Student's 95 %
interval. "Gap" is the mean distance between the trainer's log-probs and those
that the sampler recorded, in nats a token. "Largest" is the mean over steps of
the largest distance in a step. "KL" is KL(sampler ‖ trainer) in nats a token,
and "weight" is the mean importance weight of a token. Numbers are means over
steps and seeds.""")
  yield "| arm | start | least | end | gap | largest | KL | weight |"
  yield "|---" * 8 + "|"
  for name in results.arms:
    start, least = (results.scores(name, what) for what in ("start", "least"))
    assert start is not None
    assert least is not None
    cells = [f"{start.mean():.3f}", f"{least.mean():.3f}"]
    cells.append(pages.cell(results.scores(name, "end")))
    cells += [f"{results.mean(name, what):.2g}" for what in ("gap", "largest")]
    for what, digits in (("kl", ".2g"), ("weight", ".4f")):
      found = results.logged(name, what)
      cells.append("–" if found is None else f"{found.mean():{digits}}")
    yield f"| `{name}` | {' | '.join(cells)} |"
  yield ""
