"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.lengths import arms as arms_lib
from experiments.lengths import claims
from experiments.lengths.results import FIRST, LAST, Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion

# In more words than on the axes of the figure.
_SHOWN = {
  "base": "imitates a wordy teacher; all other arms go on from its policy",
  "all": "GFPO's loss without a filter, on all 8 completions: this is GRPO with"
  " a mean over tokens",
  "efficiency": "GFPO: the 8 of 16 with the most reward per token",
  "adaptive": "GFPO: the 8, 6 or 4 shortest of 16, fewer if the prompt is easy",
  "grpo": "GRPO: a mean over the tokens of each of 8 completions",
  "dr_grpo": "Dr. GRPO: divides neither by the length nor by the deviation",
  "grpo-mended": "GRPO without the bug of the reward",
  "dr_grpo-mended": "Dr. GRPO without the bug of the reward",
  "all-mended": "`all` without the bug of the reward",
  "shortest-mended": "GFPO: the 8 shortest of 16, without the bug of the"
  " reward",
}


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_lengths(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Completions that need not be long

<!-- Written by `python -m experiments.lengths.report`. -->

Which algorithms learn to write more than they need? A verifier rewards right
sums with 1. By a bug it adds up to 0.02 for a long completion, right or wrong.
GFPO (arXiv:2508.09726) samples more completions than it trains, and learns from
the shortest of them. Does that keep completions short?
"""
  yield from pages.answer(
    found,
    """
The bug makes GRPO's completions longer, by {G1[1]} tokens, and GFPO does not
help: with none of its five filters do they get shorter, and with each of the
five fewer of them are right. For example, with the shortest 8 of 16 the
accuracy differs by {G2[1]} from that of all 8 of 8. Dr. GRPO's completions are
shorter than GRPO's: the difference is {G9[0]} tokens. Without the bug GRPO does
not make wrong answers longer: they change by {G10[0]} tokens. The experiment is
small: one transformer of two layers, a hundred sums of two one-digit numbers,
and five seeds for each arm.""",
    confirmed="G1 G9 G13",
    refuted="G2 G3 G4 G5 G6 G8 G10",
  )
  yield """\
```
python -m experiments.lengths.run --root=runs/lengths \\
    --results=benchmarks/lengths
python -m experiments.lengths.report --results=benchmarks/lengths --out=docs
```

| arm | what it is |
|---|---|"""
  for name, arm in arms_lib.ARMS.items():
    yield f"| `{name}` | {_SHOWN.get(name, arm.text)} |"
  size = arms_lib.SIZES["full"]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield ""
  yield pages.paragraph(f"""
The settings are those of
[`configs/add_filler.py`](../configs/add_filler.py). A transformer of two layers
of width 64 learns the sums of two one-digit numbers by heart. There are only a
hundred of them, so all numbers are of prompts that were trained. `base`
imitates for {size.imitation} steps a teacher who writes letters without a
meaning before its answer. All other arms go on from the policy of `base` for
{size.steps} steps of {size.num_prompts} prompts. They draw 8, 16 or 24
completions of a prompt. So GFPO draws up to three times as many completions as
GRPO in training. {len(results.arms)} of {len(arms_lib.ARMS)} arms have been
run, with {results.num_seeds} seeds for each arm, in {minutes:.0f} minutes on
CPU cores that other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Lengths over steps, and accuracy over length](lengths.png)

Lines are means over seeds and ten steps, and bands are their 95 % bootstrap
intervals. Small dots are seeds, and large dots are means over seeds.

## The rules

The rules stand in `experiments/lengths/claims.py`:
"""
  yield from pages.rules(claims)


def _lengths(results: Results) -> Iterator[str]:
  yield "## Lengths"
  yield ""
  yield pages.paragraph(f"""
Accuracy and length ("tokens") are of the completions of the last {LAST} steps.
ELR says how much of the growth of the arm `all` an arm takes back: 0 means as
long as `all`, 1 means as short as `all` was in its first {FIRST} steps, and a
negative number means longer than `all`. "Growth" is by how many tokens right
and wrong completions became longer since the first {FIRST} steps. Numbers are
means over seeds with Student's 95 % interval.""")
  yield "| arm | accuracy | tokens | ELR | growth, right | wrong | minutes |"
  yield "|---" * 7 + "|"
  whats = ("accuracy", "length", "elr", "growth/right", "growth/wrong")
  for name in results.arms:
    cells = [
      pages.cell(results.scores(name, what), 3 if what == "accuracy" else 2)
      for what in whats
    ]
    minutes = results.seconds(name) / 60
    yield f"| `{name}` | {' | '.join(cells)} | {minutes:.1f} |"
  yield ""
  if {"all-mended", "shortest-mended"} <= set(results.arms):
    of_all, of_short = (
      pages.cell(results.scores(name, "growth/wrong"), 2)
      for name in ("all-mended", "shortest-mended")
    )
    yield pages.paragraph(f"""
Why do the filters do worse here? The last two arms hint at a reason, and do not
prove it. GFPO never trains the long completions, because it leaves them out. So
no gradient makes a long wrong completion less likely. The numbers fit
that: without the bug, wrong completions grow by {of_short} tokens in
`shortest-mended`, and by {of_all} in `all-mended`.""")
