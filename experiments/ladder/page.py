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
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_ends(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# The ladder of DAPO, and what dynamic sampling costs

<!-- Written by `python -m experiments.ladder.report`. -->

DAPO is GRPO with four changes. What does each of them add to the ones before,
and is dynamic sampling, the last one, worth the completions that it draws and
does not train?

```
python -m experiments.ladder.run --root=runs/ladder --results=benchmarks/ladder
python -m experiments.ladder.report --results=benchmarks/ladder --out=docs
```
"""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 adds two digits. Its warm start has
imitated a teacher who writes 0 to 24 letters before the answer, and a wrong sum
every other time; it is the same for all arms of a seed. A completion may have
{arms_lib.BUDGET} tokens, and who has not answered by then is wrong. Each of
{_SIZE.steps} updates, of 16 gradient steps, is on {_SIZE.num_prompts} groups of
{arms_lib.GROUP_SIZE}. Where groups are drawn until a batch of them lives,
there are up to four rounds. There are a hundred sums, which a model of this
size learns by heart, so accuracy is that of the completions that are drawn, all
of them, and nothing is said of held-out sums. Other settings are those of
[`configs/add_filler.py`](../configs/add_filler.py), with a reward that has no
bug.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {_SIZE.num_seeds} seeds an arm, in
{minutes:.0f} minutes on one of {pages.CORES} virtual CPU cores, which other
programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy over updates and over completions](ladder.png)

Lines are means over seeds and ten updates, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/ladder/claims.py`:
"""
  yield from pages.rules(claims)


def _ends(results: Results) -> Iterator[str]:
  yield "## At equal updates, and at equal completions"
  yield ""
  yield pages.paragraph(f"""
Accuracy in the last {WINDOW} of {_SIZE.steps} updates, what had been drawn by
then, and the share that was cut off; and accuracy in the {WINDOW} updates
before the arm had drawn as many completions as `{REFERENCE}` has in all. Means
over seeds with Student's 95 % interval.""")
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
