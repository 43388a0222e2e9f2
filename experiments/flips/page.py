"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.flips import arms as arms_lib
from experiments.flips import claims
from experiments.flips.results import Results
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_ends(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# A verifier with errors

<!-- Written by `python -m experiments.flips.report`. -->

What does a policy learn from a verifier that errs? This verifier calls some
right answers wrong, and some wrong answers right. For example, with 20 % of
errors it misjudges every fifth completion. How much is still learned with 10 to
40 % of errors, and does it matter which algorithm learns?
"""
  yield from pages.answer(
    found,
    """
With 20 % of errors GRPO still learns: its accuracy rises by {G1[0]}, and
without errors by {L1[0]}. With 40 % its change is {G2[0]}, and nothing shows
that it learns. PPO loses less: with 40 % it ends {P1[0]} above GRPO, which is
confirmed. For Dr. GRPO and RLOO the differences to GRPO at 40 % are {D1[0]} and
{R1[0]}, and five seeds do not decide. The experiment is small: one transformer
of two layers that sorts five letters, 80 steps, and five seeds for each
arm.""",
    confirmed="L1 S1 S2 S3 S4 G1 P1 P2",
  )
  yield """\
```
python -m experiments.flips.run --root=runs/flips --results=benchmarks/flips
python -m experiments.flips.report --results=benchmarks/flips --out=docs
```
"""
  yield pages.paragraph("""
A transformer of two layers of width 64 sorts five letters. It first imitates a
teacher who sorts the wrong way round three times in four. This warm start is
the same for all arms of a seed. The reward is `flipped`
([rewards.md](rewards.md)). Whether a completion is misjudged depends on the
prompt and on the completion alone. So two equal completions of a prompt are
judged alike, and errors do not average out in a group.""")
  yield pages.paragraph(f"""
Each arm takes {arms_lib.STEPS} steps of {arms_lib.BATCH} completions, 8 of each
prompt. PPO draws one completion of each of 128 prompts, and in its first
{arms_lib.CRITIC_STEPS} steps only the critic learns. There is no KL. Other
settings are those of [`configs/ppo_add.py`](../configs/ppo_add.py).""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with
{arms_lib.NUM_SEEDS} seeds for each arm, in {minutes:.0f} minutes on one of
{pages.CORES} virtual CPU cores, which other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy at the end over errors, and over completions](flips.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals.

## The rules

The rules stand in `experiments/flips/claims.py`:
"""
  yield from pages.rules(claims)


def _ends(results: Results) -> Iterator[str]:
  yield "## Accuracy at the end"
  yield ""
  first = results.accuracy(results.arms[0])[:, 0].mean()
  yield pages.paragraph(f"""
The table has the share of right answers to held-out prompts after
{arms_lib.STEPS * arms_lib.BATCH} completions, as the verifier without errors
judges them. At the start it is {first:.3f}. Numbers are means over seeds with
Student's 95 % interval.""")
  yield "| misjudged | " + " | ".join(arms_lib.ALGORITHMS.values()) + " |"
  yield "|---" * (1 + len(arms_lib.ALGORITHMS)) + "|"
  for percent in arms_lib.PERCENT:
    cells = [
      pages.cell(results.scores(f"{x}-{percent}", "after"))
      for x in arms_lib.ALGORITHMS
    ]
    yield f"| {percent} % | {' | '.join(cells)} |"
  yield ""
