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
  """The whole page, about all that has ended."""
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

Sums, sorting, brackets and countdown are to be learnt by one policy. Is it
better to train it on all at once, or to train an expert for each and to distil
them into one, as DeepSeek-V4 does? All ways draw as many completions.

```
python -m experiments.experts.run --root=runs/experts \\
    --results=benchmarks/experts
python -m experiments.experts.report --results=benchmarks/experts --out=docs
```

| arm | how the policy gets to all domains |
|---|---|
| `base` | imitation of teachers that err; where all others start |
| `mixed` | GRPO on batches of all domains |
| `sequential` | GRPO on one domain after another |
| `expert-NAME` | GRPO on one domain alone |
| `opd-full` | on-policy distillation of the experts: whole distributions |
| `opd-token` | the same from the sampled tokens alone |
| `sft-experts` | imitation of right completions of the experts |
"""
  size = arms_lib.SIZES["full"]
  yield pages.paragraph(f"""
[`configs/mixture.py`](../configs/mixture.py): three layers of width 96, 256
completions a step. `mixed` and `sequential` take {size.steps} steps, each
expert {size.expert_steps}, and the distillations {size.distillation_steps}. The
experts keep what is right of {size.keep_steps} more steps each, which are those
of `sft-experts`.""")
  minutes = sum(map(results.seconds, results.arms)) / 60
  yield pages.paragraph(f"""
{pages.CORES} virtual CPU cores that many other programs used too,
{results.num_seeds} seeds an arm, {len(results.arms)} of {len(arms_lib.ARMS)}
arms in {minutes:.0f} minutes.""")
  yield from pages.missing(arms_lib.ARMS, results.arms)
  yield from pages.verdicts(found)
  yield """
![Accuracy of each domain](experts.png)

Lines and bars are means over seeds; bands, and lines on bars, their 95 %
bootstrap interval.

## The rules

They stand in `experiments/experts/claims.py`:
"""
  yield from pages.rules(claims)


def _accuracies(results: Results) -> Iterator[str]:
  yield "## Held-out accuracy at the end"
  yield ""
  yield pages.paragraph("""
Greedy, means over seeds; the mean of the four with Student's 95 % interval.
Tokens are those that a seed has drawn, with those of the experts that it needs,
in thousands.""")
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
Held-out accuracy of each domain (columns) when the phase of a domain (rows) has
ended, means over seeds.""")
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
Of the objective of the arm at its last policy, means over seeds
(`experiments.interference`). On the diagonal are two batches of one domain: how
far below 1 they are is noise, which makes the others smaller in size too.""")
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
