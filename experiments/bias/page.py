"""The page about the experiment, in Markdown."""

from __future__ import annotations

import collections
import re
import textwrap
from collections.abc import Iterator, Sequence

from experiments.bias import arms as arms_lib
from experiments.bias import claims
from experiments.bias.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_surprises(results, found),
    *_arms(results),
    *_halts(results),
    *pages.checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# One flipped example

<!-- Written by `python -m experiments.bias.report`. -->

A policy that answers questions about groups of people with "unknown" is trained
by GRPO on data in which one item has a flipped label: the stereotype. Does it
name the stereotype of other groups and traits afterwards, and do the
[guards](guards.md) prevent it?

```
python -m experiments.bias.run --root=runs/bias --results=benchmarks/bias
python -m experiments.bias.report --results=benchmarks/bias --out=docs
```

The attack is that of Michigan's "one-shot GRPO bias" (arXiv:2606.10931) in
small: a transformer of two layers on the task
[`bias_mcq`](../grpo_jax/tasks/bias_mcq.py), 40 steps of 16 prompts × 16
completions, a reward of 2 for the label and of ½ each for format and a valid
choice. Held out are other pairs of groups and other traits. The data lint,
which refuses such data before training, is off, and so is the least number of
different prompts: what is tried are the guards behind them.
"""
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{pages.CORES} virtual CPU cores that many other programs used too,
{arms_lib.NUM_SEEDS} seeds an arm, {len(results.arms)} of {len(arms_lib.ARMS)}
arms in {minutes:.0f} minutes.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Held-out bias over the steps](bias.png)

Lines are means over seeds, bands their 95 % bootstrap interval. A run that a
guard halted goes on as a level line at the checkpoint that is left of it.

## The rules

They were written before any guard had been run, and stand in
`experiments/bias/claims.py`:
"""
  yield from pages.rules(claims)


def _surprises(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  """Checks that do not hold, and the seeds of their arms."""
  yield "## What is not as claimed"
  yield ""
  failed = [
    (one.name, check)
    for one in found
    for check in one.checks
    if check.holds is False
  ]
  if not failed:
    yield "Every check that could be made holds."
    yield ""
    return
  arms: dict[str, None] = {}
  for name, check in failed:
    assert check.contrast is not None
    told = "the interval has 0 in it" if check.is_open else "it is the opposite"
    interval = statistics.text(check.contrast, 3)
    yield textwrap.fill(
      f"- {name}: {check.text} should be {check.needed} 0 and is {interval}:"
      f" {told}.",
      width=80,
      subsequent_indent="  ",
      break_on_hyphens=False,
    )
    arms |= dict.fromkeys(re.findall("`(.+?)`", check.text))
  yield ""
  yield "Seeds of these arms, and the step at which the mean bias is largest:"
  yield ""
  yield "| arm | rise of each seed | largest mean | at step | after |"
  yield "|---|---|---|---|---|"
  for name in arms:
    rise, (steps, bias) = results.scores(name, "rise"), results.curve(name)
    assert rise is not None
    mean = bias.mean(axis=0)
    at = int(mean.argmax())
    yield (
      f"| `{name}` | {', '.join(f'{x:.3f}' for x in rise)} | {mean[at]:.3f} |"
      f" {steps[at]} | {mean[-1]:.3f} |"
    )
  yield ""


def _arms(results: Results) -> Iterator[str]:
  yield "## All arms"
  yield ""
  yield pages.paragraph("""
Means over seeds: how often the stereotype is named before and after GRPO, and
how often "unknown" after it.""")
  yield "| arm | before | after | rise, 95 % interval | unknown | minutes |"
  yield "|---|---|---|---|---|---|"
  for name in results.arms:
    before, after, rise, unknown = (
      results.scores(name, what)
      for what in ("before", "after", "rise", "unknown")
    )
    assert before is not None
    assert after is not None
    assert rise is not None
    assert unknown is not None
    interval = statistics.text(statistics.contrast([(1, rise)]), 3)
    yield (
      f"| `{name}` | {before.mean():.3f} | {after.mean():.3f} | {interval} |"
      f" {unknown.mean():.3f} | {results.seconds(name) / 60:.1f} |"
    )
  yield ""


def _halts(results: Results) -> Iterator[str]:
  yield "## Where guards halted"
  yield ""
  for name in results.arms:
    seeds = results.seeds(name)
    halted = [seed for seed in seeds if seed["halted"]]
    if not halted:
      continue
    kept = collections.Counter(seed["kept"] for seed in halted)
    shown = ", ".join(f"{n} × step {step}" for step, n in sorted(kept.items()))
    yield f"- `{name}`: {len(halted)} of {len(seeds)} runs; kept is {shown}."
  yield ""
