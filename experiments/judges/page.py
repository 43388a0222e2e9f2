"""The page on judges, about the arms that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.judges import arms as arms_lib
from experiments.judges import claims
from experiments.judges.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.score)
  return pages.joined(
    [*_head(results, found), *_arms(results), *pages.checks(found)]
  )


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Judges that are right, wrong, and easy to please

<!-- Written by `python -m experiments.judges.report`. -->

What does a policy learn if another model judges its answers, and nothing else
rewards it? The policy sorts five letters. The judges are models of the same
size, and each has learned from a teacher. The teacher of the judge `truth`
tells the truth. The teacher of `reverse` takes descending letters for sorted.
The teacher of `marks` knows the truth, but accepts every answer that ends with
`#`: the judge has a hole. In the arm `itself` the policy has learned to judge,
too, and judges itself.
"""
  yield from pages.answer(
    found,
    """
A policy learns what its judge believes, and not what is true. With the judge
`truth` accuracy at the end differs by {T2[1]} from that after 25 steps. The
gap, which is the share of answers that the judge accepts minus the share that
is right, is then above 0.2 by {T2[0]}. With the judge `marks` nearly every
answer is accepted at the end, and nearly none is right. If a verifier rewards
beside that judge, accuracy at the end minus 0.9 is {V1[0]}. A KL of 0.05
changes the gap with the judge `truth` by {K1[0]}. For a policy that judges
itself a gap above 0.2 is not confirmed. The experiment is small: one
transformer of two layers, one task, and five seeds for each arm.""",
    confirmed="T2 R1 M1 K1 V1",
  )
  yield """\
```
python -m experiments.judges.run --root=runs/judges --results=benchmarks/judges
python -m experiments.judges.report --results=benchmarks/judges --out=docs
```

The policy starts from a teacher that sorts the wrong way round three times out
of four, and ends one answer of twenty with `#`. An arm `by-NAME` is a policy
that the judge NAME rewards; `by-verifier` is rewarded by the truth itself.
"-kl" adds a KL coefficient of 0.05, and "-verifier" adds a verifier with as
much weight as the judge. [`configs/judge.py`](../configs/judge.py) has the
sizes, and [judge.md](judge.md) says what can be asked of a judge.
"""
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(arms_lib.ARMS)} arms have been run, with
{len(arms_lib.SEEDS)} seeds for each arm, in {minutes:.0f} minutes on
{pages.CORES} virtual CPU cores that other programs used too.""")
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
The first three columns have the held-out accuracy after 25 steps ("early"), at
the best evaluation of each seed, and at the end. "Opinion" is the judge's mean
verdict on completions of the last ten steps. "Gap" is this opinion minus the
share of these completions that are right. Numbers are means over seeds.
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
