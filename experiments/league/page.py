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


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
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

Every algorithm of the library that is trained by rewards, on the same three
tasks, from the same warm starts and with as many generated completions.

```
python -m experiments.league.run --root=runs/league --results=benchmarks/league
python -m experiments.league.report --results=benchmarks/league --out=docs
```
"""
  size = arms_lib.SIZES["full"]
  budget = size.batch * size.steps
  yield pages.paragraph(f"""
**How small this is.** A transformer of two layers of width 64 begins with a
policy that has imitated a faulty teacher, and each run draws {budget}
completions of at most 33 tokens. A place in this table says how an algorithm
does there, and little about models a million times as large. With
{size.num_seeds} seeds most differences are smaller than what chance does;
where nothing is known the verdict is "open", which is not "equal".""")
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
The supervised phase is done once for each task and seed, and its parameters are
loaded by all arms. Then {size.steps} steps of {size.batch} completions follow,
with {arms_lib.NUM_UPDATES} gradient steps on each. An algorithm that draws more
for a prompt has fewer prompts: {_groups()}. The greedy completions of ReMax
count. Algorithms with a critic spend {size.critic_steps} of the steps on the
critic alone; their completions and their seconds count. There is no KL to the
warm start, which is what is to be left, and no entropy bonus. Rounds of dynamic
sampling are off, as they would draw more (see [the ladder](ladder.md)); groups
of equal rewards leave the loss of DAPO all the same. All else are the defaults
of each paper, whatever they were made for: Clip-Cov and KL-Cov choose one token
of a batch as small as this, MO-GRPO and GDPO have one reward to normalise, and
CompactionRL has one context.""")
  yield _left_out()
  yield from _state(results)


def _groups() -> str:
  """How many completions of a prompt are drawn, in words."""
  by_size: dict[int, list[str]] = {}
  for entry in arms_lib.ENTRIES.values():
    by_size.setdefault(entry.group_size, []).append(entry.shown)
  most = max(by_size, key=lambda size: len(by_size[size]))
  others = [
    f"{size} for {', '.join(names)}"
    for size, names in sorted(by_size.items())
    if size != most
  ]
  return f"{most} for most; {'; '.join(others)}"


def _left_out() -> str:
  reasons = [
    f"{', '.join(f'`{x}`' for x in names)}, which {reason}"
    for reason, names in arms_lib.LEFT_OUT.items()
  ]
  return pages.paragraph(f"Not in the league are {'; '.join(reasons)}.")


def _state(results: Results) -> Iterator[str]:
  """How much there is, and whether it is what it should be."""
  size = arms_lib.SIZES["full"]
  total = len(arms_lib.ARMS)
  hours = sum(map(results.seconds, results.arms)) / 3600
  low, high = results.completions()
  drawn = f"{low}" if low == high else f"{low} to {high}"
  yield pages.paragraph(f"""
**{len(results.arms)} of {total} cells** have ended, an algorithm on a task
each, with {size.num_seeds} seeds and {len(arms_lib.FACTORS)} learning rates as
one program: {len(results.complete)} of {len(arms_lib.ENTRIES)} algorithms on
all tasks. Each run has generated {drawn} completions. They took {hours:.1f}
hours on {pages.CORES} virtual CPU cores, which other programs used too, so the
seconds below compare roughly.""")
  ended = set(results.arms)
  if absent := [
    name for name in arms_lib.ENTRIES if name not in results.complete
  ]:
    shown = ", ".join(_missing(name, ended) for name in absent)
    yield pages.paragraph(f"Not there yet: {shown}.")
  if others := results.other_starts():
    yield pages.paragraph(f"""
Their warm starts were trained anew and are not those of the others, by their
accuracy: {", ".join(f"`{x}`" for x in others)}.""")
  if diverged := results.diverged():
    shown = ", ".join(f"{count} of `{x}`" for x, count in diverged.items())
    yield pages.paragraph(f"""
The loss of some runs was no longer finite, and they count with an accuracy of
0: {shown}.""")


def _missing(name: str, ended: set[str]) -> str:
  """An algorithm, and on which tasks if it has ended on others."""
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
  """All tasks together."""
  yield "## All tasks"
  yield ""
  yield """![What all algorithms reach, how likely each is better, and what \
learning rates do](league.png)
"""
  yield pages.paragraph("""
Accuracy over three tasks with the bootstrap interval over seeds, stratified by
task (50 000 resamples): mean at the default rate, mean and interquartile mean
(IQM) at the best of three rates, which the other seeds have chosen. P(better)
is the probability that a run is better than one of GRPO on a task, at the best
rates; 0.5 says nothing. Seconds of a run are those of its steps without
compilation and evaluation, the critic's included.""")
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
  """How many differences there are, in words."""
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
Of {len(verdicts)} algorithms that have ended on all tasks beside GRPO,
{counts["above"]} end above it and {counts["below"]} below by the verdict, and
{len(verdicts) - sum(counts.values())} are open. The intervals of
{overlapping} overlap with that of GRPO: their order says nothing.""")


def _rules() -> Iterator[str]:
  yield """
## The rules

They stand in `experiments/league/claims.py`:
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
Accuracy with Student's 95 % interval over seeds, at the default and at the best
rates; how many seeds have chosen {", ".join(rates[:-1])} and {rates[-1]}; mean
length of the answers to held-out problems in tokens and entropy of the last
steps in nats, and seconds of a run, at the best rates.""")
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
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    if any(check.contrast is not None for check in one.checks):
      yield from statistics.table(one.checks, 3)
      yield ""
