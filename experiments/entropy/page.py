"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.entropy import arms as arms_lib
from experiments.entropy import claims
from experiments.entropy.results import Results, windows
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion

# In more words than on the axes of the figure.
_SHOWN = {
  arms_lib.BASE: "imitates a teacher; all other arms go on from its policy",
  "clip-higher": "GRPO that clips ratios at 0.8 and 1.28, and not at 0.8 and"
  " 1.2",
  "gtpo": "GTPO: the entropy of a token shapes the reward of the token",
  "grpo_s": "GRPO-S: the entropy of a completion shapes its reward",
  "edge": "EDGE: confident completions have larger advantages",
  "edge-gec": "EDGE with guided error correction; what a correction puts in is"
  " not trained",
  "edge-gec-trained": "EDGE with guided error correction; what a correction"
  " puts in is trained as well, as in the paper",
}


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does entropy come back?

<!-- Written by `python -m experiments.entropy.report`. -->

Reinforcement makes a policy sure of its answers: its entropy falls, and it no
longer tries other answers. Papers say that entropy comes back, and that more
problems are solved in 16 attempts (pass@16), if rewards are shaped by entropy:
GTPO and GRPO-S (arXiv:2508.04349), and EDGE-GRPO (arXiv:2507.21848). EDGE-GRPO
also corrects wrong completions while they are drawn
([correction.md](correction.md)). Does any of this help here?
"""
  yield from pages.answer(
    found,
    """
No. GRPO's entropy changes by {E1[0]} nats a token and stays low. For none of
six remedies is it confirmed that entropy comes back. For none of four remedies
is it confirmed that pass@16 is higher than with GRPO: the difference is {P1[0]}
with GTPO and {P3[0]} with EDGE, and pass@16 is lower with GRPO-S ({P2[0]}) and
with EDGE and corrections ({P4[0]}). Corrections give a signal to most early
groups that had none, but change pass@1 by {C2[0]}. If the hints are trained
as well, pass@1 differs by {C3[0]} from corrections without that. The
experiment is small: one transformer of two layers, one task, 160 steps, and
five seeds for each arm.""",
    confirmed="E1 E2 C1 C3",
    refuted="B1 B2 B4 B6 P2 P4 C2",
  )
  yield """\
```
python -m experiments.entropy.run --root=runs/entropy \\
    --results=benchmarks/entropy
python -m experiments.entropy.report --results=benchmarks/entropy --out=docs
```

| arm | what it is |
|---|---|"""
  for name, arm in arms_lib.ARMS.items():
    yield f"| `{name}` | {_SHOWN.get(name, arm.text)} |"
  size = arms_lib.SIZES["full"]
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 has to reach a target number with three
given numbers (the task COUNTDOWN). `base` imitates for {size.imitation} steps a
teacher who draws the operators at random three times in four. All other arms go
on from there for {size.steps} steps of {size.num_prompts} problems with
{arms_lib.GROUP_SIZE} completions each. They take two gradient steps on each
batch. The learning rate does not fall, and there is no KL. The papers take
several hundred steps.""")
  yield pages.paragraph("""
A wrong draft is corrected with the paper's probabilities. It gets a cue and
goes on (1/2), it gets the right answer (1/4), or a whole right completion takes
its place (1/4). Rewards and entropy on
this page are those of the drafts. All arms take equally many steps. Corrections
draw more tokens in each step, and that is not counted.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms have been run, with {size.num_seeds}
seeds for each arm, in {minutes:.0f} minutes on CPU cores that other programs
used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Entropy, accuracy and groups without a signal over steps](entropy.png)

Lines are means over seeds, and bands are their 95 % bootstrap intervals.

## The rules

The rules stand in `experiments/entropy/claims.py`:
"""
  yield from pages.rules(claims)


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
"First" and "last" are the entropy in the first and in the last tenth of the
steps, in nats per token. The rebound is the entropy in the last tenth, divided
by its lowest value over tenths; the rules above have the exact definition. A
rebound of 1 means that entropy did not come back. pass@1 and pass@16 are of
held-out problems, before the first step and ("after") after the last step.
Numbers are means over seeds, and have Student's 95 % interval where one is
shown.""")
  yield "| arm | first | last | rebound | pass@1 | after | pass@16 | after |"
  yield "|---" * 8 + "|"
  for name in results.arms:
    entropy = results.logged(name, "entropy")
    assert entropy is not None
    means = windows(entropy).mean(axis=0)
    cells = [f"{means[0]:.3f}", f"{means[-1]:.3f}"]
    cells.append(pages.cell(results.scores(name, "rebound")))
    for what in ("pass@1", "pass@16"):
      cells.append(f"{results.passes(name, what)[:, 0].mean():.3f}")
      cells.append(pages.cell(results.scores(name, what)))
    yield f"| `{name}` | {' | '.join(cells)} |"
  yield ""
