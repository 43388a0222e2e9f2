"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.curricula import arms as arms_lib
from experiments.curricula import claims
from experiments.curricula.results import ALL, Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion

# In more words than on the axes of the figure.
_SHOWN = {
  arms_lib.BASE: "imitates a teacher; all other arms go on from its policy",
  "uniform": "every prompt with the same probability",
  "ads": "ADS: prompts of a few clusters of similar prompts; the choice moves"
  " from easy to hard prompts",
  "frontier": "prompts that are solved half of the time are drawn most often",
  "easy_to_hard": "the easiest fifth of the prompts first, all prompts at the"
  " end",
  "target": "the prompts whose share of right answers is nearest to ½",
  "spo": "SPO: one completion of each prompt, which is compared with the"
  " earlier results of that prompt",
}


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Which prompts to learn from

<!-- Written by `python -m experiments.curricula.report`. -->

Which prompts should a policy learn from? Sums of one digit are soon always
right, and sums of four digits are hardly ever right. If all completions of a
prompt get the same reward, GRPO learns nothing from that prompt. Schedules
([schedules.md](schedules.md)) therefore choose the prompts. This experiment
compares five schedules with prompts drawn at random. Each run draws the same
number of completions.
"""
  yield from pages.answer(
    found,
    """
To choose prompts helped very little here. The area under the accuracy curve,
minus that of `uniform`, is {C2[0]} with `frontier` and {C3[0]} with
`easy_to_hard`. Both gains are confirmed. With `ads` the difference is {C1[0]}:
ADS is worse. With `target` it is {C4[0]} and with `spo` {C5[0]}: five seeds do
not decide. It is not even shown that `uniform` itself learns: its accuracy at
the end minus that at the start is {B1[0]}. The experiment is small: one
transformer of two layers, sums of one to four digits, and five seeds for each
arm.""",
    confirmed="C2 C3 G2 G3 H2",
    refuted="C1 C6",
  )
  yield """```
python -m experiments.curricula.run --root=runs/curricula \\
    --results=benchmarks/curricula
python -m experiments.curricula.report --results=benchmarks/curricula --out=docs
```

| arm | what it draws |
|---|---|"""
  for name, text in {**arms_lib.ARMS, **_SHOWN}.items():
    yield f"| `{name}` | {text} |"
  size = arms_lib.SIZES["full"]
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield ""
  yield pages.paragraph(f"""
The model is a transformer of two layers of width 64, as in
[`configs/curriculum.py`](../configs/curriculum.py). `base` imitates a teacher
for {size.imitation} steps. The teacher forgets six carries in ten. All other
arms go on from the policy of `base` for {size.steps} steps of {size.batch}
completions. They draw from the same pool of {size.pool} prompts, which has as
many prompts of each number of digits. SPO draws one completion of a prompt, and
all other arms are GRPO with 8 completions of a prompt. In each step `ads` draws
{arms_lib.window(size)} prompts of each of 4 clusters. The clusters are made
once, with the policy of `base`. That takes time, which the minutes below
include, and draws no completions.""")
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with {size.num_seeds}
seeds for each arm, in {minutes:.0f} minutes on CPU cores that other
programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over completions, of all and by digits](curricula.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals.

## The rules

The rules stand in `experiments/curricula/claims.py`:
"""
  yield from pages.rules(claims)


def _numbers(results: Results) -> Iterator[str]:
  yield "## Accuracy"
  yield ""
  first = results.scores(results.arms[0], f"start/{ALL}")
  assert first is not None
  yield pages.paragraph(f"""
The table has for each arm the area under the accuracy curve; the accuracy at
the end, over all prompts and for each number of digits; and the share of live
groups, whose completions do not all have the same reward. The accuracy at the
start is {first.mean():.3f}. Numbers are means over seeds with Student's 95 %
interval.""")
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
