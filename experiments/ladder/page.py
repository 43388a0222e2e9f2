"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.ladder import arms as arms_lib
from experiments.ladder import claims
from experiments.ladder.results import REFERENCE, WINDOW, Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion

_SIZE = arms_lib.SIZES["full"]


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_ends(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# The ladder of DAPO, and what dynamic sampling costs

<!-- Written by `python -m experiments.ladder.report`. -->

DAPO is GRPO with four changes: a wider clip range, a loss that is a mean over
tokens, a punishment of long completions, and dynamic sampling. With dynamic
sampling, groups whose rewards are all equal are thrown away, and new groups are
drawn until a batch is full. What does each change add to the ones before it? Is
dynamic sampling worth the completions that are drawn and not trained?
"""
  yield from pages.answer(
    found,
    """
Only dynamic sampling adds accuracy that five seeds show. At equal updates it
adds {D1[0]}. But it draws several times as many completions. If the number of
completions is equal, the difference is {D2[1]}: dynamic sampling is then worse.
The other three changes add {C2[0]}, {T1[0]} and {O2[0]}: the seeds do not say
whether they help or harm. The experiment is small: one transformer of two
layers, a hundred sums of two one-digit numbers, 40 updates, and
five seeds for each arm.""",
    confirmed="L1 O3 D1 D2 A1 U1 R1 P2",
    refuted="A2",
  )
  yield """\
```
python -m experiments.ladder.run --root=runs/ladder --results=benchmarks/ladder
python -m experiments.ladder.report --results=benchmarks/ladder --out=docs
```
"""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 adds two one-digit numbers. It first
imitates a teacher who writes 0 to 24 letters before the answer, and a wrong sum
every other time. This warm start is the same for all arms of a seed. A
completion may have {arms_lib.BUDGET} tokens. If it has no answer by then, it is
cut off and counts as wrong. An update is 16 gradient steps on
{_SIZE.num_prompts} groups of {arms_lib.GROUP_SIZE} completions, and each arm
takes {_SIZE.steps} updates. A group is *live* if its rewards are not all equal,
and else *dead*. An arm that draws until its batch is full of live groups draws
at most four rounds.""")
  yield pages.paragraph("""
There are only a hundred sums, and a model of this size learns them by heart.
Accuracy is therefore that of all completions that are drawn in training, and
the page says nothing of held-out sums. Other settings are those of
[`configs/add_filler.py`](../configs/add_filler.py), without the bug in its
reward.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with {_SIZE.num_seeds}
seeds for each arm, in {minutes:.0f} minutes on one of {pages.CORES} virtual CPU
cores, which other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over updates and over completions](ladder.png)

Lines are means over seeds and ten updates, and bands are their 95 % bootstrap
intervals.

## The rules

The rules stand in `experiments/ladder/claims.py`:
"""
  yield from pages.rules(claims)


def _ends(results: Results) -> Iterator[str]:
  yield "## At equal updates, and at equal completions"
  yield ""
  yield pages.paragraph(f"""
"Equal updates" is the mean accuracy in the last {WINDOW} of {_SIZE.steps}
updates. The next two columns have the completions that were drawn in all
updates, and the share of completions that were cut off. "Equal completions" is
the mean accuracy in the {WINDOW} updates before the arm had drawn as many
completions as `{REFERENCE}` draws in all. Each row from `clip-higher` to `dapo`
adds one change to the row before it. Numbers are means over seeds with
Student's 95 % interval.""")
  yield (
    "| arm | what it is | accuracy, equal updates | completions drawn | cut off"
    " | accuracy, equal completions | minutes |"
  )
  yield "|---" * 7 + "|"
  for name in results.arms:
    cells = [
      pages.cell(results.scores(name, what), digits)
      for what, digits in (
        ("accuracy", 3),
        ("drawn", 0),
        ("truncated", 3),
        ("equal/accuracy", 3),
      )
    ]
    minutes = results.seconds(name) / 60
    yield (
      f"| `{name}` | {arms_lib.ARMS[name].text} | {' | '.join(cells)} |"
      f" {minutes:.1f} |"
    )
  yield ""
