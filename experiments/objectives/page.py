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
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *pages.checks(found),
    *_bandit(results),
    *_multi(results),
    *_language(results),
    *_costs(results),
  ]
  return "\n".join(lines) + "\n"


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does a loud objective decide alone?

<!-- Written by `python -m experiments.objectives.report`. -->

If a task has several rewards, does the one with the largest numbers decide
alone? For example, a reward of 0 to 20 for politeness is "loud" beside a reward
of 0 or 1 for a right answer. GRPO adds its rewards, and then divides by the
standard deviation of the sum, so the sum is nearly the loud reward. MO-GRPO and
GDPO divide each reward by its own deviation first, and then add. The three are
compared on a bandit and on a small task with three rewards. On another task one
reward is left out, or its verifier has a bug.
"""
  yield from pages.answer(
    found,
    """
On the bandit the loud reward decides for GRPO: the regret of the quiet reward
changes by {B2[1]}. It falls with MO-GRPO ({B1[0]}) and GDPO ({B1[2]}). On the
task MO-GRPO and GDPO improve all three rewards: their right answers rise by
{M1[0]} and {M1[3]}. That GRPO improves the loud reward alone is not confirmed:
its brevity rises as well, by {M2[1]}. Its right answers change by {M2[0]}: the
seeds differ too much to decide. A buggy verifier is exploited: the share of
empty answers rises by {L2[0]}. The experiment is small: 20 seeds of a bandit of
ten arms, and five seeds for each arm of two tasks for a small transformer.""",
    confirmed="B1 B2 M1 L1",
    refuted="M2",
  )
  yield """\
```
python -m experiments.objectives.run --root=runs/objectives
python -m experiments.objectives.report --root=runs/objectives --out=docs
```
"""
  yield pages.paragraph(f"""
{results.date()}, {os.cpu_count()} virtual CPU cores that other programs used
too, {results.all_seconds() / 60:.0f} minutes in all.""")
  yield from pages.verdicts(found)
  yield """
![Regrets of the bandit, rewards of the tasks over the steps](objectives.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals. The
lines of tasks are means over five steps, of the completions that are trained.

## The rules

The rules were written before any two arms were compared, and stand in
`experiments/objectives/claims.py`:
"""
  yield from pages.rules(claims)


def spread(values: np.ndarray) -> str:
  """Mean and 95 % bootstrap interval; one number where all are equal."""
  low, high = statistics.interval(values)
  if low == high:
    return f"{values.mean():.3f}"
  return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def _table(
  results: Results, names: Sequence[str], metrics: Sequence[str]
) -> Iterator[str]:
  """Yields the table of values before and after, of each arm that has ended."""
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
The bandit has ten arms. Arm k pays a quiet reward of 1 with probability p, and
a loud reward of {bandit.LOUDNESS:g} with probability q, by independent draws
(`experiments/objectives/bandit.py`):""")
  chances = bandit.probabilities()
  yield f"| arm | {' | '.join(map(str, range(bandit.NUM_ARMS)))} |"
  yield f"|---|{'---|' * bandit.NUM_ARMS}"
  for name, place in (("p", 0), ("q", 1)):
    cells = " | ".join(f"{x:.2f}" for x in chances[:, place])
    yield f"| {name} | {cells} |"
  yield ""
  yield pages.paragraph(f"""
The policy is a softmax of ten numbers, and begins uniform. In a step
{bandit.NUM_GROUPS} groups of {bandit.GROUP_SIZE} arms are drawn. The loss is
that of the algorithm with its defaults but without a KL, and gradient descent
has a rate of {bandit.LEARNING_RATE:g}. There are {bandit.NUM_STEPS} steps and
{bandit.NUM_SEEDS} seeds. The regret of a reward is how much more of that reward
its best arm would pay. The regret is computed from the policy and not from
draws. No arm is the best for both rewards: the sum of both regrets, each in
units of its reward, is smallest at arms 4 and 5. The table has means over seeds
with 95 % bootstrap intervals:""")
  names = [f"bandit-{name}" for name in results.bandits]
  yield from _table(results, names, results_lib.REGRETS)


def _multi(results: Results) -> Iterator[str]:
  yield "## MULTI: right, brief, polite"
  yield ""
  yield pages.paragraph(f"""
Five letters are to be sorted, after a thought that does not help
(`grpo_jax/tasks/multi.py`, `configs/multi.py`). There are three rewards, all
with weight 1: 1 for a right answer; −1/8 for each token of the thought
("brevity"); and 20 times the share of the letter `z` in the thought
("politeness"). The share of the letters a–m ("first_half") is measured and not
rewarded. An arm takes 300 steps of imitation and then 100 steps of 8 groups of
16 completions. The table has means over 512 held-out completions at temperature
1, with 95 % bootstrap intervals over {arms_lib.NUM_SEEDS} seeds:""")
  names = [name for name in arms_lib.ARMS if name.startswith("multi")]
  yield from _table(results, names, _OF_MULTI)
  yield from _by_seed(results, names)
  yield pages.paragraph("""
Brevity says little about GRPO here, because the loud reward asks for short
thoughts, too. For example, a thought of the one token `z` is polite in all of
its tokens. And once nearly all thoughts are polite, the loud reward is equal
within most groups, so the other rewards decide there.""")
  yield pages.paragraph("""
In the arm `multi-mo_grpo-empty` the thoughts of the teacher may be empty. An
empty thought is as brief as possible, and not polite at all. The first trial
run had such thoughts. Because of its result the shortest thought of all other
arms has one token.""")


def _language(results: Results) -> Iterator[str]:
  yield "## LANGUAGE: mixed languages, and a verifier with a bug"
  yield ""
  yield pages.paragraph(f"""
A word of four letters is to be reversed, after a thought that spells the word
(`grpo_jax/tasks/language.py`, `configs/language.py`). The teacher spells each
letter in language A or in language B, at random. There are three rewards: 1 for
a right answer, 0.5 for the format, and the share of the thought that is in
language A ("language"). The algorithm is GRPO with the sizes of the section
above. The table has means over 512 held-out completions at temperature 1, with
95 % bootstrap intervals over {arms_lib.NUM_SEEDS} seeds:""")
  names = [name for name in arms_lib.ARMS if name.startswith("language")]
  yield from _table(results, names, OF_LANGUAGE)
  yield from _by_seed(results, names)
  yield pages.paragraph("""
The arms `language-honest` and `language-buggy` begin with few right answers. So
the bug is the easier way to a reward, and with the right verifier a seed has
little to reinforce at first.""")
  yield pages.paragraph("""
`accuracy_buggy` is the score of a verifier that accepts an empty answer. In
`language-buggy` it takes the place of `accuracy`, for training and for
`config.rewards.correct`. If one looks at this score alone, the task seems to be
solved. The log warns that such a score is suspicious
(`grpo_jax/training/rules/rules.py`), in so many runs:""")
  yield "| arm | runs with the warning |"
  yield "|---|---|"
  for name in arms_lib.ARMS:
    count = results.scores(name, results_lib.WARNED, "after")
    if count is not None:
      yield f"| `{name}` | {count.sum():.0f} of {len(count)} |"
  yield ""
  yield pages.paragraph("""
The warning is a reason to read completions, and not a proof. If a task is
really solved, the warning comes, too.""")


def _costs(results: Results) -> Iterator[str]:
  yield "## Arms and minutes"
  yield ""
  yield pages.paragraph("""
Minutes include compilation, warm start and evaluation. All seeds of an arm run
in one program.""").rstrip("\n")
  yield ""
  for name in results.bandits:
    seconds = results.seconds(f"bandit-{name}")
    yield f"- `bandit-{name}`: {bandit.NUM_SEEDS} seeds, {seconds:.0f} seconds."
  for name in results.arms:
    minutes = results.seconds(name) / 60
    yield f"- `{name}`: {arms_lib.ARMS[name].text}; {minutes:.1f} minutes."
