"""The page about the league, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.comparison.scores import Estimate
from experiments.league import arms as arms_lib
from experiments.league import claims
from experiments.league.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion
from grpo_jax import algorithms


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results)
  lines = [
    *_head(results),
    *_table(results),
    *pages.verdicts(found),
    *_rules(),
    *_tasks(results),
    *_checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results) -> Iterator[str]:
  yield """# The league

<!-- Written by `python -m experiments.league.report`. -->

Which algorithm is best if all draw the same number of completions? The league
has every algorithm of the library that is trained by rewards, on the same three
tasks and from the same warm starts.
"""
  yield _first(results)
  yield """\
```
python -m experiments.league.run --root=runs/league --results=benchmarks/league
python -m experiments.league.report --results=benchmarks/league --out=docs
```
"""
  size = arms_lib.SIZES["full"]
  budget = size.batch * size.steps
  yield pages.paragraph(f"""
**How small this is.** The model is a transformer of two layers of width 64, and
each run draws {budget} completions of at most 33 tokens. A place in the table
says how an algorithm does in this setting, and little about models a million
times as large. With {size.num_seeds} seeds most differences are smaller than
those that chance makes. The verdict is then "open", which does not mean
"equal".""")
  yield "| task | what is learned | completion |"
  yield "|---|---|---|"
  yield (
    "| `sort` | to sort five letters; the teacher sorts the wrong way round"
    " three times in four | 6 tokens |"
  )
  yield (
    "| `add` | sums of two digits with a scratchpad; the teacher forgets 55 %"
    " of the carries | 26 tokens |"
  )
  yield (
    "| `words` | sums and differences in words, text of a tokenizer of 2048"
    " pieces, answers read in the graph by `math_accuracy`; the teacher takes"
    " the other operation 45 times in a hundred | 5 tokens |"
  )
  yield ""
  yield pages.paragraph(f"""
For each task and seed a policy imitates the faulty teacher once, and all
algorithms start from this policy. Then {size.steps} steps follow. A step draws
{size.batch} completions and takes {arms_lib.NUM_UPDATES} gradient steps on
them. If an algorithm draws more completions for a prompt, it has fewer prompts.
The numbers of completions for a prompt are: {_groups()}. The greedy completions
of ReMax are counted. An algorithm with a critic spends its first
{size.critic_steps} steps on the critic alone, and these completions and seconds
are counted as well.""")
  yield pages.paragraph("""
There is no KL to the warm start, because the policy has to move away from it,
and no entropy bonus. Dynamic sampling draws no further rounds, because they
would be more completions than others have (see [the ladder](ladder.md)). DAPO
still leaves groups of equal rewards out of its loss. All other settings are the
defaults of each paper, even if these were made for something larger. For
example, Clip-Cov and KL-Cov choose one token of a batch as small as this,
MO-GRPO and GDPO have only one reward to normalise, and CompactionRL has only
one context.""")
  alpha = algorithms.make_config("vapo").length_adaptive_alpha
  yield pages.paragraph(f"""
VAPO is made for long completions. Its λ for the policy is
1 - 1 / ({alpha:g} l), where l is the number of tokens, and is cut to 0 for
completions of up to {1 / alpha:.0f} tokens. So it is 0 for all completions of
`sort` and `words`, and {1 - 1 / (alpha * 26):.2f} for 26 tokens of `add`: the
advantages look one token ahead, or little more.""")
  yield _left_out()
  yield from _state(results)


def _first(results: Results) -> str:
  """The paragraph with the answer so far."""
  verdicts = claims.verdicts(results)
  total = len(arms_lib.ENTRIES)
  ended = f"{len(results.complete)} of {total}"
  if not verdicts:
    return pages.paragraph(f"""
**The answer.** So far there is none: {ended} algorithms have ended on all
tasks.""")
  best = results.comparison("best")
  parts = []
  for kind in ("above", "below"):
    names = [x for x in results.ranked() if verdicts.get(x) == kind]
    *others, last = [
      f"{arms_lib.ENTRIES[x].shown} ({_text(best.aggregate(x, 'mean'))})"
      for x in names
    ] or ["no algorithm"]
    shown = f"{', '.join(others)} and {last} end" if others else f"{last} ends"
    parts.append(f"{shown} {kind} GRPO")
  known = f"So far {ended} algorithms have ended on all tasks."
  if len(results.complete) == total:
    known = f"All {total} algorithms have ended on all tasks."
  return pages.paragraph(f"""
**The answer.** {known} By the
verdict {parts[0]}, and {parts[1]}. The mean accuracy of GRPO is
{_text(best.aggregate(arms_lib.BASELINE, "mean"))}. All others are open.""")


def _groups() -> str:
  """Sentence about the number of completions for each prompt."""
  by_size: dict[int, list[str]] = {}
  for entry in arms_lib.ENTRIES.values():
    by_size.setdefault(entry.group_size, []).append(entry.shown)
  most = max(by_size, key=lambda size: len(by_size[size]))
  others = [
    f"{size} for {', '.join(names)}"
    for size, names in sorted(by_size.items())
    if size != most
  ]
  return f"{most} for most algorithms; {'; '.join(others)}"


def _left_out() -> str:
  reasons = [
    f"{', '.join(f'`{x}`' for x in names)}, which {reason}"
    for reason, names in arms_lib.LEFT_OUT.items()
  ]
  return pages.paragraph(f"Not in the league are {'; '.join(reasons)}.")


def _state(results: Results) -> Iterator[str]:
  """Yields the progress and the consistency of the results."""
  size = arms_lib.SIZES["full"]
  total = len(arms_lib.ARMS)
  hours = sum(map(results.seconds, results.arms)) / 3600
  low, high = results.completions()
  drawn = f"{low}" if low == high else f"{low} to {high}"
  yield pages.paragraph(f"""
**{len(results.arms)} of {total} cells** have ended. A cell is an algorithm on a
task, with {size.num_seeds} seeds and {len(arms_lib.FACTORS)} learning rates in
one program. So {len(results.complete)} of {len(arms_lib.ENTRIES)} algorithms
have ended on all tasks. Each run has generated {drawn} completions. All cells
together took {hours:.1f} hours on {pages.CORES} virtual CPU cores. Other
programs used the cores, too, and some cells were paused for minutes. So the
seconds below compare only roughly.""")
  ended = set(results.arms)
  if absent := [
    name for name in arms_lib.ENTRIES if name not in results.complete
  ]:
    shown = ", ".join(_missing(name, ended) for name in absent)
    yield pages.paragraph(f"Not there yet: {shown}.")
  if others := results.other_starts():
    yield pages.paragraph(f"""
Some warm starts were trained anew, and differ from those of the others by their
accuracy: {", ".join(f"`{x}`" for x in others)}.""")
  if diverged := results.diverged():
    shown = ", ".join(f"{count} of `{x}`" for x, count in diverged.items())
    yield pages.paragraph(f"""
The loss of some runs was no longer finite, and these runs count with an
accuracy of 0: {shown}.""")


def _missing(name: str, ended: set[str]) -> str:
  """Text about a missing algorithm, with its missing tasks if only some are."""
  absent = [x for x in arms_lib.TASKS if f"{name}-{x}" not in ended]
  where = (
    "" if len(absent) == len(arms_lib.TASKS) else f" ({', '.join(absent)})"
  )
  return arms_lib.ENTRIES[name].shown + where


def _text(estimate: Estimate | None) -> str:
  if estimate is None:
    return "–"
  if estimate.low is None:
    return f"{estimate.value:.3f}"
  return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _table(results: Results) -> Iterator[str]:
  """Yields the table of all tasks together."""
  yield "## All tasks"
  yield ""
  yield """![What all algorithms reach, how likely each is better, and what \
learning rates do](league.png)
"""
  yield pages.paragraph("""
The first three columns have the accuracy over three tasks: its mean at the
default learning rate, and its mean and interquartile mean (IQM, the mean of the
middle half of all runs) at the best of three rates. For each seed the other
seeds choose the best rate, so no run chooses its own. Intervals are 95 %
bootstrap intervals over seeds, stratified by task (50 000 resamples). P(better)
is the probability that a run is better than a run of GRPO on the same task, at
the best rates; 0.5 means that neither is better. The verdict is by a test of
the difference to GRPO, which the rules below describe. Seconds are those of the
steps of a run with the critic's, without compilation and evaluation.""")
  yield (
    "| | algorithm | mean, default | mean, best | IQM, best | P(better) |"
    " verdict | seconds |"
  )
  yield "|---:|---" + "|---" * 5 + "|---:|"
  default, best = (results.comparison(x) for x in ("default", "best"))
  verdicts = claims.verdicts(results)
  for place, name in enumerate(results.ranked(), 1):
    is_base = name == arms_lib.BASELINE
    cells = [
      _text(default.aggregate(name, "mean")),
      _text(best.aggregate(name, "mean")),
      _text(best.aggregate(name, "IQM")),
      "" if is_base else _text(results.improvement(name)),
      "" if is_base else verdicts.get(name, "–"),
      _number(results.scores(name, "seconds", "best"), 1),
    ]
    shown = arms_lib.ENTRIES[name].shown
    number = str(place) if name in results.complete else "–"
    yield f"| {number} | {shown} | {' | '.join(cells)} |"
  yield ""
  yield from _ties(results, verdicts)


def _ties(results: Results, verdicts: dict[str, str]) -> Iterator[str]:
  """Yields the number of differences, in words."""
  counts = {
    x: sum(y == x for y in verdicts.values()) for x in ("above", "below")
  }
  low = results.comparison("best")
  overlapping = 0
  base = low.aggregate(arms_lib.BASELINE, "IQM") if verdicts else None
  if base is not None and base.low is not None:
    for name in verdicts:
      one = low.aggregate(name, "IQM")
      assert one is not None
      assert one.low is not None
      overlapping += one.low <= base.high and base.low <= one.high
  yield pages.paragraph(f"""
Of {len(verdicts)} algorithms that have ended on all tasks beside GRPO, the
verdict is "above" for {counts["above"]}, "below" for {counts["below"]} and
"open" for {len(verdicts) - sum(counts.values())}. The intervals of the IQM of
{overlapping} algorithms overlap with that of GRPO, so their order says
nothing.""")


def _rules() -> Iterator[str]:
  yield """
## The rules

The rules stand in `experiments/league/claims.py`:
"""
  yield from pages.rules(claims)


def _number(values: np.ndarray | None, digits: int) -> str:
  return "–" if values is None else f"{values.mean():.{digits}f}"


def _tasks(results: Results) -> Iterator[str]:
  """A table for each task."""
  yield "## Each task"
  yield ""
  rates = [f"{arms_lib.RATE * x:.0e}" for x in arms_lib.FACTORS]
  yield pages.paragraph(f"""
Accuracy has Student's 95 % interval over seeds, at the default and at the best
rates. "Rates" says for how many seeds {", ".join(rates[:-1])} and {rates[-1]}
was the best learning rate. The last four columns are at the best rates: the
mean length of answers to held-out problems in tokens, the entropy of the last
steps in nats, the completions drawn, and the seconds of a run.""")
  for task, text in arms_lib.TASKS.items():
    names = [x for x in results.ranked() if f"{x}-{task}" in results.arms]
    if not names:
      continue
    before = results.of_arm(f"{names[0]}-{task}", "before", "default")
    yield f"### `{task}`: {text}"
    yield ""
    yield f"The warm starts have {_number(before, 3)}."
    yield ""
    yield (
      "| algorithm | accuracy, default | accuracy, best | rates | length |"
      " entropy | completions | seconds |"
    )
    yield "|---|---|---|---|" + "---:|" * 4
    for name in names:
      yield _row(results, f"{name}-{task}", arms_lib.ENTRIES[name].shown)
    yield ""


def _row(results: Results, arm: str, shown: str) -> str:
  chosen = results.rates(arm, "best")
  counts = np.bincount(chosen, minlength=len(arms_lib.FACTORS))
  cells = [
    shown,
    pages.cell(results.of_arm(arm, "after", "default")),
    pages.cell(results.of_arm(arm, "after", "best")),
    " / ".join(map(str, counts)),
    _number(results.of_arm(arm, "length", "best"), 2),
    _number(results.of_arm(arm, "entropy", "best"), 3),
    _number(results.of_arm(arm, "completions", "best"), 0),
    _number(results.of_arm(arm, "seconds", "best"), 1),
  ]
  return f"| {' | '.join(cells)} |"


def _checks(found: Sequence[Conclusion]) -> Iterator[str]:
  yield "## The checks"
  yield ""
  yield pages.paragraph(statistics.WHAT_DECIDES)
  yield from pages.how_to_read()
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    if any(check.contrast is not None for check in one.checks):
      yield from statistics.table(one.checks, 3)
      yield ""
