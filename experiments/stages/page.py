"""The page about the experiment, in Markdown, and its figure."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.stages import arms as arms_lib
from experiments.stages import claims
from experiments.stages.results import Results
from experiments.sweeps import figures, pages, statistics
from experiments.sweeps.statistics import Conclusion
from grpo_jax.training.monitor import style


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  return "\n".join([*_head(results, found), *_ends(results), *_checks(found)])


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# When to imitate, and when to reinforce?

<!-- Written by `python -m experiments.stages.report`. -->

Should a policy imitate labelled examples, be reinforced by GRPO, or both?
Labelled examples cost the time of people, and generated tokens cost the time of
machines. All arms but two go on from one base model, which has learned sums of
three-digit numbers from a teacher who forgets seven carries in ten. In the last
two arms a smaller model imitates the right completions of a larger one, or the
labelled examples.
"""
  yield from pages.answer(
    found,
    """
If there are few labels, GRPO helps; if there are many, it does not. Without a
label GRPO raises accuracy by {S2[0]}. After 64 labelled examples it adds
{S3[0]}, after 512 it changes accuracy by {S3[1]}, and after 4096 by {S3[2]}.
GRPO alone ends below 512 labelled examples alone: the difference is {S5[0]}. A
smaller model learns more from right completions of the larger one than from
the same 512 examples: the difference is {S6[0]}. The experiment is small: one
transformer of two layers of width 64, one task, and five seeds for each
arm.""",
    confirmed="S1 S2 S6",
    refuted="S3 S5",
  )
  yield """\
```
python -m experiments.stages.run --root=runs/stages \\
    --results=benchmarks/stages
python -m experiments.stages.report --results=benchmarks/stages --out=docs
```
"""
  yield pages.paragraph(f"""
Each arm has five seeds. The runs took {results.seconds() / 60:.0f} minutes in
all on one of {pages.CORES} virtual CPU cores, which other programs used
too.""")
  yield from pages.verdicts(found)
  yield """
![Right answers over labelled examples and over tokens](sft_or_rl.png)

Left: the share of right answers by the number of labelled examples, before GRPO
and after it. Right: the share of right answers by the number of tokens that
GRPO generated. Lines are means over seeds, and bands are their 95 % bootstrap
intervals.

## The rules

The rules were written before any arm had run, and stand in
`experiments/stages/claims.py`:
"""
  yield from pages.rules(claims)


def spread(values: np.ndarray) -> str:
  """Mean and 95 % bootstrap interval; one number where all are equal."""
  low, high = statistics.interval(values)
  if low == high:
    return f"{values.mean():.3f}"
  return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def _ends(results: Results) -> Iterator[str]:
  yield "## Right answers"
  yield ""
  yield pages.paragraph(f"""
The table has the share of right answers to held-out sums, which is
{results.base_accuracy:.3f} for the base model. Intervals are 95 % bootstrap
intervals over seeds.""")
  yield "| arm | | before GRPO | after | tokens generated, millions |"
  yield "|---|---|---|---|---|"
  drawn = results.num_drawn
  for arm in results.arms:
    tokens, _ = results.curve(arm)
    count = tokens[:, -1].mean()
    before, after = (results.scores(arm, when) for when in ("before", "after"))
    assert before is not None
    assert after is not None
    first = spread(before)
    if arm in (arms_lib.SMALL_LABELS, arms_lib.SMALL_KEPT):
      first = "–"
    if arm == arms_lib.SMALL_KEPT:
      count = drawn + results.curve(arms_lib.TEACHER)[0][0, -1]
    yield (
      f"| `{arm}` | {arms_lib.ARMS[arm]} | {first} | {spread(after)} |"
      f" {count / 1e6:.2f} |"
    )
  yield ""
  yield pages.paragraph("""
Tokens of `small-kept` are those that its teacher generated in its own training,
and those that it generated to be imitated. The next table says after how many
generated tokens GRPO alone is as good as labelled examples alone.""")
  yield from _crossings(results)


def _crossings(results: Results) -> Iterator[str]:
  """Yields the tokens after which GRPO alone equals labelled examples alone."""
  if arms_lib.RL not in results.arms:
    return
  tokens, accuracy = (x.mean(axis=0) for x in results.curve(arms_lib.RL))
  yield "| labelled examples alone | GRPO alone is as good after |"
  yield "|---|---|"
  for count in arms_lib.COUNTS:
    labelled = results.scores(f"sft-{count}", "before")
    if labelled is None:
      continue
    above = np.flatnonzero(accuracy >= labelled.mean())
    found = "never"
    if above.size:
      found = f"{tokens[above[0]] / 1e6:.2f} million tokens"
    yield f"| {count}: {labelled.mean():.3f} | {found} |"
  yield ""


def _checks(found: Sequence[Conclusion]) -> Iterator[str]:
  yield from pages.checks(found)


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over labels, and over tokens.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 2, style.PAGE, 2.7, sharey=True)
  left, right = grid[0]
  with_grpo = [f"sft-{n}" for n in arms_lib.COUNTS]
  for number, (when, text) in enumerate(
    (("before", "imitation"), ("after", "and then GRPO"))
  ):
    points = [
      (int(name.removeprefix("sft-")), results.scores(name, when))
      for name in with_grpo
      if name in results.arms
    ]
    scores = [(n, x) for n, x in points if x is not None]
    if scores:
      counts = np.array([n for n, _ in scores])
      values = np.stack([x for _, x in scores], axis=1)
      figures.curve(left, counts, values, style.look(number), text)
  for number, (arm, text) in enumerate(
    (
      (arms_lib.SMALL_LABELS, "smaller, on labels"),
      (arms_lib.SMALL_KEPT, "smaller, on kept ones"),
    ),
    start=2,
  ):
    if (ends := results.scores(arm, "after")) is not None:
      low, high = statistics.interval(ends)
      error = [[ends.mean() - low], [high - ends.mean()]]
      look = style.look(number)
      left.errorbar(
        *([512], [ends.mean()], error),
        **{"fmt": look.marker, "color": look.colour, "label": text},
      )
  left.axhline(results.base_accuracy, color=style.GREY, ls=":", label="base")
  left.set_xscale("log")
  style.label(left, x="labelled examples", y="right answers")
  names = [x for x in (arms_lib.RL, *with_grpo) if x in results.arms]
  for name, look in style.looks(names).items():
    tokens, accuracy = results.curve(name)
    figures.curve(right, tokens.mean(axis=0) / 1e6, accuracy, look, name)
  style.label(right, x="tokens generated, millions")
  style.shared_legend(canvas, [left])
  style.name_lines(canvas, right)
  style.save(canvas, path)
