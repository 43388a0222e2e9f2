"""The page about the experiment, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.experts import arms as arms_lib
from experiments.experts import claims
from experiments.experts.results import Results
from experiments.sweeps import pages, statistics
from experiments.sweeps.statistics import Conclusion


def markdown(results: Results) -> str:
  """The page about the arms that have ended."""
  found = claims.conclude(results.scores)
  lines = [
    *_head(results, found),
    *_accuracies(results),
    *_forgetting(results),
    *_cosines(results),
    *pages.checks(found),
  ]
  return pages.joined(lines)


def _head(results: Results, found: Sequence[Conclusion]) -> Iterator[str]:
  yield """# Four domains in one model

<!-- Written by `python -m experiments.experts.report`. -->

How does one policy learn four domains: sums, sorting, brackets and countdown?
It may train on all of them at once, or on one after another. Or four experts
are trained, one for each domain, and are distilled into one policy, as
DeepSeek-V4 does. All ways draw the same number of completions.
"""
  yield from pages.answer(
    found,
    """
Distilled experts are worse than a policy that trains on all domains at once:
the mean accuracy differs by {X1[0]}. Whether one domain after another is worse,
too, is open: mixed batches differ from it by {X4[0]}. That it forgets earlier
domains is open as well ({X3[0]}). Experts are distilled better by their whole
distributions than by sampled tokens, by {X5[0]}. The gradients of two domains
are nearly orthogonal: their mean cosine is {X7[0]} at the start. The experiment
is small: one transformer of three layers, four toy domains, and five seeds for
each arm.""",
    confirmed="X5",
    refuted="X1 X2 X7",
  )
  yield """\
```
python -m experiments.experts.run --root=runs/experts \\
    --results=benchmarks/experts
python -m experiments.experts.report --results=benchmarks/experts --out=docs
```

| arm | how the policy gets to all domains |
|---|---|
| `base` | imitates teachers that err; all other arms start from it |
| `mixed` | GRPO on batches of all domains |
| `sequential` | GRPO on one domain after another |
| `expert-NAME` | GRPO on one domain alone |
| `opd-full` | experts distilled on-policy, from their whole distributions |
| `opd-token` | experts distilled on-policy, from the sampled tokens alone |
| `sft-experts` | imitates right completions of the experts |
"""
  size = arms_lib.SIZES["full"]
  yield pages.paragraph(f"""
The settings are those of [`configs/mixture.py`](../configs/mixture.py): a
transformer of three layers of width 96, and 256 completions a step. `mixed` and
`sequential` take {size.steps} steps in all. Each of the four experts takes
{size.expert_steps} steps, and each distillation takes
{size.distillation_steps} steps more. For `sft-experts` each expert draws
completions for {size.keep_steps} more steps, and the right ones are
imitated.""")
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{len(results.arms)} of {len(arms_lib.ARMS)} arms have been run, with
{results.num_seeds} seeds for each arm, in {minutes:.0f} minutes on
{pages.CORES} virtual CPU cores that many other programs used too.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy of each domain](experts.png)

Lines and bars are means over seeds. Bands, and the lines on bars, are 95 %
bootstrap intervals.

## The rules

The rules stand in `experiments/experts/claims.py`:
"""
  yield from pages.rules(claims)


def _accuracies(results: Results) -> Iterator[str]:
  yield "## Held-out accuracy at the end"
  yield ""
  yield pages.paragraph("""
Accuracy is that of greedy answers, as a mean over seeds. The mean of the four
domains has Student's 95 % interval. "Tokens" are the thousands of tokens that a
seed has drawn, with the tokens of the experts that the arm needs.""")
  head = " | ".join(arms_lib.DOMAINS)
  yield f"| arm | {head} | mean, 95 % interval | tokens | minutes |"
  yield "|---" * (len(arms_lib.DOMAINS) + 4) + "|"
  for name in results.arms:
    cells = [
      f"{results.accuracy(name, domain).mean():.3f}"
      for domain in arms_lib.DOMAINS
    ]
    macro = results.scores(name, "macro")
    assert macro is not None
    interval = statistics.text(statistics.contrast([(1, macro)]), 3)
    yield (
      f"| `{name}` | {' | '.join(cells)} | {interval} |"
      f" {results.tokens(name) / 1000:.0f} | {results.seconds(name) / 60:.1f} |"
    )
  yield ""


def _forgetting(results: Results) -> Iterator[str]:
  if "sequential" not in results.arms:
    return
  yield "## One domain after another"
  yield ""
  yield pages.paragraph("""
`sequential` trains the domains in the order of the rows. A row has the held-out
accuracy of each domain when the phase of the row has ended. For example, the
first column shows how much of the sums is left after each later domain. Numbers
are means over seeds.""")
  yield f"| after | {' | '.join(arms_lib.DOMAINS)} |"
  yield "|---" * (len(arms_lib.DOMAINS) + 1) + "|"
  for phase in arms_lib.DOMAINS:
    cells = [
      f"{results.after_phase(domain, phase).mean():.3f}"
      for domain in arms_lib.DOMAINS
    ]
    yield f"| {phase} | {' | '.join(cells)} |"
  yield ""


def _cosines(results: Results) -> Iterator[str]:
  yield "## Interference: cosines between the gradients of domains"
  yield ""
  yield pages.paragraph("""
A cosine below 0 would mean that learning one domain harms the other. The
gradients are those of the arm's objective at its last policy
(`experiments.interference`), and the cosines are means over seeds. The diagonal
compares two batches of one domain. It would be 1 without noise, and the same
noise makes the other cosines smaller in size.""")
  for arm in arms_lib.MEASURED:
    cosines = results.cosines(arm) if arm in results.arms else None
    if cosines is None:
      continue
    known = np.isfinite(cosines)
    counts = known.sum(axis=0)
    sums = np.where(known, cosines, 0).sum(axis=0)
    yield f"| `{arm}` | {' | '.join(arms_lib.DOMAINS)} |"
    yield "|---" * (len(arms_lib.DOMAINS) + 1) + "|"
    for domain, row, count in zip(arms_lib.DOMAINS, sums, counts, strict=True):
      cells = [
        f"{x / n:.3f}" if n else "–" for x, n in zip(row, count, strict=True)
      ]
      yield f"| {domain} | {' | '.join(cells)} |"
    yield ""
