"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.rounding import arms as arms_lib
from experiments.rounding import claims
from experiments.rounding.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# What do rounded rollouts cost?

<!-- Written by `python -m experiments.rounding.report`. -->

Rollouts may read kernels of 8 bits (`config.sampling.weights_dtype`), while
updates read them as they are ([quantised sampling](quantised_sampling.md)). The
sampler is then another policy than the one that is trained. What does that
cost, and does a correction pay?

```
python -m experiments.rounding.run --root=runs/rounding \\
    --results=benchmarks/rounding
python -m experiments.rounding.report --results=benchmarks/rounding --out=docs
```

An arm is what kernels are rounded to while rollouts are drawn, and a
correction: `int8-tis` rounds them to int8 and truncates weights of tokens.

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
reverse order (BRACKET). `base` has imitated for {size.imitation} steps a
teacher who closes them in the order of opening three times in four. Then GRPO
on {size.steps} steps of {size.num_prompts} problems with {arms_lib.GROUP_SIZE}
completions each, at a learning rate of {arms_lib.LEARNING_RATE:g} that does not
fall, and without a KL. There is one gradient step on each batch, and the ratio
that GRPO clips is anchored before it, so that rounding alone is
off-policy.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {size.num_seeds} seeds an arm, in
{minutes:.0f} minutes on CPU cores that other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over steps without a correction, and with TIS](rounding.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/rounding/claims.py`:
"""
  yield from pages.rules(claims)
  yield "## What they do not say"
  yield ""
  yield pages.paragraph("""
One task, one small model, short completions. In a larger model more layers add
up their errors, and a completion of a thousand tokens adds up a thousand gaps:
FlashRL saw a loss without a correction at 32 billion parameters. Nothing here
is about time: a CPU multiplies floats, and has to make them of the codes
first.""")


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
Accuracy on held-out problems before the first step, the least of all
evaluations, and at the end with Student's 95 % interval; the distance of the
trainer's log-probs from the recorded ones, nats a token, its mean and the mean
of the largest of each step; KL(sampler ‖ trainer), nats a token; and the mean
weight of a token. Means over steps and seeds.""")
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
