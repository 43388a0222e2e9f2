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
  """The page about the arms that have ended."""
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

What does one example with a wrong label do to a policy? The policy answers
questions about two groups of people, for which "unknown" is right. GRPO then
trains it on data in which one item has a flipped label: the stereotype. This
item is not rare: three of four prompts are this item (arms `mixed`), or all
prompts are (arms `alone`). Does the policy then name the stereotype of other
groups and traits, and do the [guards](guards.md) prevent it?
"""
  yield from pages.answer(
    found,
    """
Without guards the policy names stereotypes that it was never trained on, and if
one prompt in four is clean, each of three guards alone prevents that. For
example, with three of four prompts flipped and a warm start that names the
stereotype in 5 of 100 answers, the share rises by {A1[1]} without a guard. It
changes by less than 0.05 with the influence cap, with the canaries and with the
repeat cap: the rises minus 0.05 are {G2[1]}, {G3[1]} and {G4[1]}. That a rise
comes with every warm start is not confirmed: with the most biased one and a
quarter of clean prompts it is {A1[3]}. The experiment is small: one transformer
of two layers, one invented task, and five seeds for each arm.""",
    confirmed="A2 G1 G2 G3 G4 G5",
  )
  yield """\
```
python -m experiments.bias.run --root=runs/bias --results=benchmarks/bias
python -m experiments.bias.report --results=benchmarks/bias --out=docs
```

The attack is a small version of "one-shot GRPO bias" of the University of
Michigan (arXiv:2606.10931). A transformer of two layers learns the task
[`bias_mcq`](../grpo_jax/tasks/bias_mcq.py) in 40 steps of 16 prompts × 16
completions. The reward is 2 for the label, ½ for the format and ½ for a valid
choice. The held-out problems have other pairs of groups and other traits. Two
guards would refuse such data at once, and are switched off to try the guards
behind them: the data lint, and the least number of different prompts.

The name of an arm has four parts. For example, `mixed-p05-kl001-cap` has data
in which three of four prompts are the flipped item, a teacher that names the
stereotype in 5 of 100 answers, a KL coefficient of 0.001, and the influence
cap. "repeats" is the repeat cap, and "none" means no guard.
"""
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(arms_lib.ARMS)} arms have been run, with
{arms_lib.NUM_SEEDS} seeds for each arm, in {minutes:.0f} minutes on
{pages.CORES} virtual CPU cores that many other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Held-out bias over the steps](bias.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals. If a
guard
halted a run, its line goes on level from the checkpoint that was kept.

## The rules

The rules were written before any guard had been run, and stand in
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
"Before" and "after" say how often the stereotype is named on held-out problems,
before GRPO and after it. "Unknown" says how often the right answer is given
after it. Numbers are means over seeds.""")
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
