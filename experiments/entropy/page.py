"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.entropy import arms as arms_lib
from experiments.entropy import claims
from experiments.entropy.results import Results, windows
from experiments.sweeps import pages
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The whole page, about all that has ended."""
  found = claims.conclude(results.scores)
  lines = [*_head(results, found), *_numbers(results), *pages.checks(found)]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Does entropy come back?

<!-- Written by `python -m experiments.entropy.report`. -->

Reinforcement makes a policy sure of itself, and what it is sure of it explores
no more. Papers say that rewards shaped by entropy (GTPO and GRPO-S,
arXiv:2508.04349; EDGE-GRPO, arXiv:2507.21848) let it come back, and that more
problems are solved in 16 attempts. Do they here, and does it help to correct
wrong completions while they are drawn ([correction.md](correction.md))?

```
python -m experiments.entropy.run --root=runs/entropy \\
    --results=benchmarks/entropy
python -m experiments.entropy.report --results=benchmarks/entropy --out=docs
```

| arm | what it is |
|---|---|"""
  for name, arm in arms_lib.ARMS.items():
    yield f"| `{name}` | {arm.text} |"
  size = arms_lib.SIZES["full"]
  yield ""
  yield pages.paragraph(f"""
A transformer of two layers of width 64 reaches a target with three numbers
(COUNTDOWN). `base` has imitated for {size.imitation} steps a teacher who draws
the operators at random three times in four. Then {size.steps} steps of
{size.num_prompts} problems with {arms_lib.GROUP_SIZE} completions each, two
gradient steps on each batch, at a learning rate that does not fall; the papers
have several hundred steps. No KL. Where corrections are on, they have the
paper's probabilities 1/2, 1/4 and 1/4, and what is shown is of the drafts
before them. All arms are counted by steps: corrections draw more tokens in
each.""")
  names = [name for name in arms_lib.ARMS if name != arms_lib.BASE]
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(names)} arms, {size.num_seeds} seeds an arm, in
{minutes:.0f} minutes on CPU cores that other programs used too.""")
  yield from pages.missing(names, results.arms)
  yield from pages.verdicts(found)
  yield """
![Entropy, accuracy and groups without a signal over steps](entropy.png)

Lines are means over seeds, bands their 95 % bootstrap interval.

## The rules

They stand in `experiments/entropy/claims.py`:
"""
  yield from pages.rules(claims)


def _numbers(results: Results) -> Iterator[str]:
  yield "## Numbers"
  yield ""
  yield pages.paragraph("""
Entropy in the first and the last tenth of the steps, nats per token; its
rebound; and pass@1 and pass@16 on held-out problems before the first step and
after the last. Means over seeds; those after the last step with Student's 95 %
interval.""")
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
