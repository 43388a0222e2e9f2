"""The page on judges, about whatever has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.judges import arms as arms_lib
from experiments.judges import claims
from experiments.judges.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.score)
  return pages.joined(
    [*_head(results, found), *_arms(results), *pages.checks(found)]
  )


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Judges that are right, wrong, and easy to please

<!-- Written by `python -m experiments.judges.report`. -->

A policy that sorts five letters is rewarded by the verdict of a model alone.
The judges are models of the same size that have learned from a teacher: from
one who says the truth; from one who takes descending letters for sorted; and
from one who knows the truth, but to whom every answer that ends with `#` is
fine. The policy starts from a teacher that sorts the wrong way round three
times out of four, and ends one answer of twenty with `#`. In `itself` it has
learned to judge too, and is its own judge.

```
python -m experiments.judges.run --root=runs/judges --results=benchmarks/judges
python -m experiments.judges.report --results=benchmarks/judges --out=docs
```

[`configs/judge.py`](../configs/judge.py) has the sizes, and
[judge.md](judge.md) what can be asked of a judge.
"""
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{pages.CORES} virtual CPU cores that other programs used too,
{len(arms_lib.SEEDS)} seeds an arm, {len(results.arms)} of {len(arms_lib.ARMS)}
arms in {minutes:.0f} minutes.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield ""
  yield "## The rules"
  yield ""
  yield from pages.rules(claims)


def _arms(results: Results) -> Iterator[str]:
  yield "## All policies"
  yield ""
  yield pages.paragraph("""
Means over seeds: held-out accuracy after 25 steps, at the best evaluation of
each seed and at the end; opinion and gap, as the rules have them; and minutes.
""")
  yield "| arm | early | best | at the end | opinion | gap | minutes |"
  yield "|---|---|---|---|---|---|---|"
  for name in results.arms:
    if name in arms_lib.JUDGES:
      continue
    best = results.column(name, "accuracy").max(axis=1)
    shown = [results.score(name, x) for x in ("early", "accuracy")]
    shown.insert(1, best)
    shown += [results.score(name, x) for x in ("opinion", "gap")]
    means = [f"{x.mean():.3f}" if x is not None else "–" for x in shown]
    means = ["–" if mean == "nan" else mean for mean in means]
    yield (
      f"| `{name}` | {' | '.join(means)} | {results.seconds(name) / 60:.1f} |"
    )
  yield ""
