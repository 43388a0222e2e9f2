"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion
from experiments.vision import arms as arms_lib
from experiments.vision import claims
from experiments.vision.results import Results

_RIGHT = """\
The share of right answers, as means over seeds with Student's 95 % interval. A
box is right if all four corners are right."""
_OVERLAP = """\
Intersection over union of a box with the right box. For the count it is 1 if
the number is right, and else 0. Numbers are means over seeds with Student's
95 % interval."""


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_scores(results, "accuracy", "Right answers", _RIGHT),
    *_scores(results, "overlap", "Overlap", _OVERLAP),
    *pages.checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does GRPO on images generalise better than imitation?

<!-- Written by `python -m experiments.vision.report`. -->

Does a model of vision and language that learns from rewards do better on images
of another kind than one that imitates right answers, as is often said? Here
both go on from the same warm start, and see the same stream of images.
"""
  yield from pages.answer(
    found,
    """
Not here. GRPO minus imitation, in right answers on colours and sizes that were
not trained, is {G1[0]} at equal updates and {G2[0]} at equal labelled images:
GRPO is behind. All three arms learn in the domains that are trained. That more
of GRPO's gain carries over to the other images is open: {R1[0]} and {R2[0]}.
Nothing shows that one of them forgets. The experiment is small: one small model
that begins from scratch, images of 8 x 8 pixels, 60 updates, few right answers
in any arm, and five seeds for each arm.""",
    confirmed="L1 L2 F2",
    refuted="G1 G2",
  )
  yield """\
```
python -m experiments.vision.run --root=runs/vision --results=benchmarks/vision
python -m experiments.vision.report --results=benchmarks/vision --out=docs
```
"""
  rows = arms_lib.PROMPTS * arms_lib.GROUP
  yield pages.paragraph("""
The task is [`vision`](vision.md). The model counts the squares of a colour in
an image of 8 x 8 pixels, or gives the box of a square. The trained squares are
red, green or blue, and have sides of 1 to 3 pixels: they are *in domain*.
Yellow and purple squares, and squares with sides of 4 or 5 pixels, are *out of
domain*. A question names a colour by its red, green and blue parts, for example
`1 1 0` for yellow. So each part of the name of an untrained colour was
trained.""")
  yield pages.paragraph(f"""
The model is that of [`configs/vision.py`](../configs/vision.py), from scratch.
Its warm start imitates a teacher who is wrong in three answers of four: he
counts one square too many, or takes the last pixels of a box for its right and
bottom, which are one pixel further. All arms then learn what is right, from
rewards or from right answers, in {arms_lib.STEPS} updates with one learning
rate for all arms:""")
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
{len(ended)} of {len(names)} arms have been run, with {arms_lib.NUM_SEEDS} seeds
for each arm, in {minutes:.0f} minutes without the warm start, on {pages.CORES}
virtual CPU cores, which other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Right answers and overlap in each domain](vision_generalises.png)

Dots are means over seeds, and bars are their 95 % bootstrap intervals. The
domains left of the line are trained.

## The rules

The rules stand in `experiments/vision/claims.py`:
"""
  yield from pages.rules(claims)


def _scores(
  results: Results, what: str, title: str, told: str
) -> Iterator[str]:
  yield f"## {title}"
  yield ""
  yield told
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
