"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion
from experiments.vision import arms as arms_lib
from experiments.vision import claims
from experiments.vision.results import Results


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_scores(results, "accuracy", "Right answers"),
    *_scores(results, "overlap", "Overlap"),
    *pages.checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does GRPO on images generalise better than imitation?

<!-- Written by `python -m experiments.vision.report`. -->

It is said that a model of vision and language that learns from rewards does
better on images of another kind than one that imitates right answers. Here both
go on from the same warm start, on the same stream of images.

```
python -m experiments.vision.run --root=runs/vision --results=benchmarks/vision
python -m experiments.vision.report --results=benchmarks/vision --out=docs
```
"""
  rows = arms_lib.PROMPTS * arms_lib.GROUP
  yield pages.paragraph(f"""
The task is [`vision`](vision.md): count the squares of a colour in an image of
8 x 8 pixels, or give the box of one. Squares to learn from are red, green and
blue and have sides of 1 to 3 pixels. Out of domain are yellow and purple
squares, and squares with sides of 4 or 5 pixels. A question names a colour by
its red, green and blue, so that each part of a colour that was never trained is
known. The model is that of [`configs/vision.py`](../configs/vision.py), from
scratch. Its warm start imitates a teacher of another convention in three
answers of four, who counts one square more than there are and takes the last
pixels of a box for its right and bottom. What is right is then learned from
rewards or from right answers. After it come
{arms_lib.STEPS} updates, at one learning rate for all arms:""")
  for name, text in {
    arms_lib.GRPO: f"{arms_lib.PROMPTS} images a step with"
    f" {arms_lib.GROUP} completions each, whose reward is half the accuracy and"
    " half the overlap",
    arms_lib.SAME_UPDATES: f"{rows} images a step with right answers: as many"
    " rows in as many updates, and eight times as many labelled images",
    arms_lib.SAME_EXAMPLES: f"the {arms_lib.PROMPTS} images of GRPO's steps"
    " with right answers: as many labelled images in as many updates",
  }.items():
    yield f"- `{name}`: {text}."
  yield ""
  names = [*arms_lib.SHOWN]
  ended = [name for name in names if name in results.arms]
  minutes = sum(map(results.seconds, ended)) / 60
  yield pages.paragraph(f"""
{len(ended)} of {len(names)} arms, {arms_lib.NUM_SEEDS} seeds an arm, in
{minutes:.0f} minutes without the warm start, on {pages.CORES} virtual CPU
cores, which other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Right answers and overlap in each domain](vision_generalises.png)

Dots are means over seeds, bars their 95 % bootstrap interval. Left of the line
are the domains that are trained on.

## The rules

They stand in `experiments/vision/claims.py`:
"""
  yield from pages.rules(claims)


def _scores(results: Results, what: str, title: str) -> Iterator[str]:
  yield f"## {title}"
  yield ""
  yield "Means over seeds with Student's 95 % interval."
  yield ""
  groups = {
    **{domain: (domain,) for domain in arms_lib.DOMAINS},
    "in domain": arms_lib.IN_DOMAIN,
    "out of domain": arms_lib.SHIFTED,
  }
  shown = {arms_lib.BASE: "warm start", **arms_lib.SHOWN}
  yield "| domain | " + " | ".join(shown.values()) + " |"
  yield "|---" * (1 + len(shown)) + "|"
  for label, domains in groups.items():
    cells = [pages.cell(results.scores(x, domains, what)) for x in shown]
    yield f"| {label} | {' | '.join(cells)} |"
  yield ""
