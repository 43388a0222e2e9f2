"""The page about the experiment, in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.objectives import arms as arms_lib
from experiments.objectives import bandit, claims
from experiments.objectives import results as results_lib
from experiments.objectives.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion

_OF_MULTI = ("accuracy", "brevity", "politeness", "first_half")
OF_LANGUAGE = ("accuracy", "accuracy_buggy", "format", "language", "spelling")


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_checks(found),
    *_bandit(results),
    *_multi(results),
    *_language(results),
    *_costs(results),
  ]
  return "\n".join(lines) + "\n"


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does a loud objective decide alone?

<!-- Written by `python -m experiments.objectives.report`. -->

GRPO adds its rewards and then divides by the deviation of their sum. Where one
reward has numbers twenty times as large as the others, the sum is that reward.
MO-GRPO and GDPO divide each reward by its own deviation first. Here the three
are compared, with the losses of the library, on a bandit and on a small task;
and on another task a reward is left out, or has a bug.

```
python -m experiments.objectives.run --root=runs/objectives
python -m experiments.objectives.report --root=runs/objectives --out=docs
```
"""
  yield pages.paragraph(f"""
{results.date()}, {os.cpu_count()} virtual CPU cores that other programs used
too, {results.all_seconds() / 60:.0f} minutes in all.""")
  yield "| | claim | verdict |"
  yield "|---|---|---|"
  for one in found:
    yield f"| {one.name} | {one.claim} | **{one.verdict}** |"
  yield """
![Regrets of the bandit, rewards of the tasks over the steps](objectives.png)

Lines are means over seeds, bands their 95 % bootstrap interval; of tasks, means
over five steps of the completions that are trained on.

## The rules

They were written before any two arms were compared, and stand in
`experiments/objectives/claims.py`:
"""
  yield from pages.rules(claims)


def _checks(found: Sequence[Conclusion]) -> Iterator[str]:
  yield "## The checks"
  yield ""
  yield pages.paragraph(f"""
{statistics.WHAT_DECIDES} "Open" is an interval that 0 lies in.""")
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    yield from statistics.table(one.checks, 3)
    yield ""


def spread(values: np.ndarray) -> str:
  """Mean and 95 % bootstrap interval; one number where all are equal."""
  low, high = statistics.interval(values)
  if low == high:
    return f"{values.mean():.3f}"
  return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def _table(
  results: Results, names: Sequence[str], metrics: Sequence[str]
) -> Iterator[str]:
  """Before and after, of each arm that has ended."""
  yield f"| arm | | {' | '.join(metrics)} |"
  yield f"|---|---|{'---|' * len(metrics)}"
  for name in names:
    for when, word in (("before", "start"), ("after", "end")):
      found = [results.scores(name, metric, when) for metric in metrics]
      cells = [spread(values) for values in found if values is not None]
      if cells:
        yield f"| `{name}` | {word} | {' | '.join(cells)} |"
  yield ""


def _by_seed(results: Results, names: Sequence[str]) -> Iterator[str]:
  """Right answers at the end."""
  yield "Right answers at the end, seed by seed:"
  yield ""
  for name in names:
    ends = results.scores(name, "accuracy", "after")
    if ends is not None:
      yield f"- `{name}`: {', '.join(f'{x:.2f}' for x in ends)}"
  yield ""


def _bandit(results: Results) -> Iterator[str]:
  yield "## The bandit"
  yield ""
  yield pages.paragraph(f"""
Ten arms; arm k pays 1 with probability p, and {bandit.LOUDNESS:g} with
probability q, by independent draws (`experiments/objectives/bandit.py`):""")
  chances = bandit.probabilities()
  yield f"| arm | {' | '.join(map(str, range(bandit.NUM_ARMS)))} |"
  yield f"|---|{'---|' * bandit.NUM_ARMS}"
  for name, place in (("p", 0), ("q", 1)):
    cells = " | ".join(f"{x:.2f}" for x in chances[:, place])
    yield f"| {name} | {cells} |"
  yield ""
  yield pages.paragraph(f"""
The policy is a softmax of ten numbers that begins uniform. A step is
{bandit.NUM_GROUPS} groups of {bandit.GROUP_SIZE} draws, the loss of the
algorithm with its defaults but without a KL, and gradient descent at a rate of
{bandit.LEARNING_RATE:g}; {bandit.NUM_STEPS} steps, {bandit.NUM_SEEDS} seeds.
The regret of a reward is what the best arm for it would pay more, computed from
the policy and not from draws. No arm is the best for both: the sum of both
regrets, each in units of its reward, is smallest at arms 4 and 5. Mean [95 %
bootstrap interval] over seeds:""")
  names = [f"bandit-{name}" for name in results.bandits]
  yield from _table(results, names, results_lib.REGRETS)


def _multi(results: Results) -> Iterator[str]:
  yield "## MULTI: right, brief, polite"
  yield ""
  yield pages.paragraph(f"""
Five letters are to be sorted, after a thought that helps nobody
(`grpo_jax/tasks/multi.py`, `configs/multi.py`). Rewards are 1 for a right
answer, −1/8 for each token of the thought, and 20 times the share of `z` in it,
all with weight 1. The share of the letters a–m is only observed. After 300
steps of imitation, 100 steps of 8 groups of 16; {arms_lib.NUM_SEEDS} seeds.
Held-out means of 512 completions at temperature 1, with their 95 % bootstrap
interval over seeds:""")
  names = [name for name in arms_lib.ARMS if name.startswith("multi")]
  yield from _table(results, names, _OF_MULTI)
  yield from _by_seed(results, names)
  yield pages.paragraph("""
Brevity is no independent witness. A thought of one token is polite in all of
its tokens as soon as that one is; so the loud reward asks for short thoughts,
too. And once nearly all thoughts are polite, the loud reward does not differ
within most groups: what is left there is the sum of the others.""")
  yield pages.paragraph("""
The arm `multi-mo_grpo-empty` has a teacher whose thoughts may be empty. The
first trial run was of this kind, and because of what came out the shortest
thought of the other arms has one token: an empty thought is as brief as can be
and not polite at all.""")


def _language(results: Results) -> Iterator[str]:
  yield "## LANGUAGE: mixed languages, and a verifier with a bug"
  yield ""
  yield pages.paragraph(f"""
A word of four letters is to be reversed, after a thought that spells it
(`grpo_jax/tasks/language.py`, `configs/language.py`); the teacher spells each
letter in language A or B at random. Rewards are 1 for a right answer, 0.5 for
the format, and the share of the thought in language A. GRPO, sizes as above,
{arms_lib.NUM_SEEDS} seeds, held-out means of 512 completions at temperature
1:""")
  names = [name for name in arms_lib.ARMS if name.startswith("language")]
  yield from _table(results, names, OF_LANGUAGE)
  yield from _by_seed(results, names)
  yield pages.paragraph("""
The last two begin with few right answers, so that the bug is the easier way;
with the right verifier a seed has little to reinforce at first.""")
  yield pages.paragraph("""
`accuracy_buggy` is the score of a verifier that accepts an empty answer. In
`language-buggy` it takes the place of `accuracy`, for training and for
`config.rewards.correct`; whoever looks at its score alone sees a task that has
been solved. Runs in which the log said so ("Suspicious by default",
`grpo_jax/training/alarms.py`):""")
  yield "| arm | runs with the warning |"
  yield "|---|---|"
  for name in arms_lib.ARMS:
    count = results.scores(name, results_lib.WARNED, "after")
    if count is not None:
      yield f"| `{name}` | {count.sum():.0f} of {len(count)} |"
  yield ""
  yield pages.paragraph("""
The warning is a reason to read completions and not a proof: it would come where
a task is solved, too.""")


def _costs(results: Results) -> Iterator[str]:
  yield "## Arms and minutes"
  yield ""
  yield "With compilation, warm start and evaluation; all seeds in one program."
  yield ""
  for name in results.bandits:
    seconds = results.seconds(f"bandit-{name}")
    yield f"- `bandit-{name}`: {bandit.NUM_SEEDS} seeds, {seconds:.0f} seconds."
  for name in results.arms:
    minutes = results.seconds(name) / 60
    yield f"- `{name}`: {arms_lib.ARMS[name].text}; {minutes:.1f} minutes."
