"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.curricula import arms as arms_lib
from experiments.curricula import claims
from experiments.curricula.results import ALL, Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Which prompts to learn from

<!-- Written by `python -m experiments.curricula.report`. -->

Sums of one digit are soon always right, and those of four digits hardly ever:
groups of equal rewards train nothing. Does it help to choose the prompts
([schedules.md](schedules.md)), at as many generated completions?

```
python -m experiments.curricula.run --root=runs/curricula \\
    --results=benchmarks/curricula
python -m experiments.curricula.report --results=benchmarks/curricula --out=docs
```

| arm | what it draws |
|---|---|"""
  for name, text in arms_lib.ARMS.items():
    yield f"| `{name}` | {text} |"
  size = arms_lib.SIZES["full"]
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64, as in
[`configs/curriculum.py`](../configs/curriculum.py). `base` imitates
{size.imitation} steps of sums in which six carries of ten are forgotten; all
others go on from it for {size.steps} steps of {size.batch} completions, with
prompts of the same {size.pool}, as many of each number of digits: GRPO with 8
completions of a prompt, and SPO with one. `ads` draws {arms_lib.window(size)}
prompts of each of 4 clusters. The clusters are made once, with the policy of
`base`, and their time is counted; its cost is no generated completion.
{len(results.arms)} of {len(names)} arms, {size.num_seeds} seeds an arm, in
{minutes:.0f} minutes on CPU cores that other
programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over completions, of all and by digits](curricula.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/curricula/claims.py`:
"""
  yield from pages.rules(claims)


def _numbers(results: Results) -> Iterator[str]:
  yield "## Accuracy"
  yield ""
  first = results.scores(results.arms[0], f"start/{ALL}")
  assert first is not None
  yield pages.paragraph(f"""
The area under the curve, the accuracy at the end, of all and by the number of
digits, and the share of live groups. Before, the accuracy is
{first.mean():.3f}. Means over seeds with Student's 95 % interval.""")
  yield f"| arm | area | end | {' | '.join(arms_lib.TITLES)} | live |"
  yield "|---" * (4 + len(arms_lib.TITLES)) + "|"
  ends = [f"end/{name}" for name in (ALL, *arms_lib.DOMAINS)]
  for name in results.arms:
    cells = [
      pages.cell(results.scores(name, what))
      for what in (f"area/{ALL}", *ends, "live")
    ]
    yield f"| `{name}` | {' | '.join(cells)} |"
  yield ""
