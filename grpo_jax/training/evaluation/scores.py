"""Figures of several completions of each prompt: pass@k, maj@k, intervals.

A completion that could not be scored counts as wrong in all of them.
docs/evaluation.md describes each figure.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.training.evaluation.evaluation import Completion

Groups = Sequence[Sequence[Completion]]  # One group for each prompt.
_CONSENSUS = 64  # maj@64 is cons@64 in papers.


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
  """Chance that k of the samples, drawn without replacement, hold a right one.

      1 − C(n − c, k) / C(n, k), as a product that cannot overflow.

  Source: Chen et al., "Evaluating Large Language Models Trained on Code",
  arXiv:2107.03374, Section 2.1.
  """
  if num_samples - num_correct < k:
    return 1.0
  miss = 1.0
  for i in range(num_samples - num_correct + 1, num_samples + 1):
    miss *= 1.0 - k / i
  return 1.0 - miss


def ballots(group: Sequence[Completion], gold: str) -> list[str | None]:
  """The vote of each completion of one prompt.

  With the right answer 1/3, the answers `0.333333` and `1/3` are one vote: the
  verifier found both equal to it. Without a right answer in the data, many
  different answers may be right, such as programs, and these stay different
  votes. Different wrong answers are always different votes: they were compared
  with the right answer, and not with each other.

  Args:
    gold: The right answer in the data; empty if there is none.
  """
  votes = [row.answer for row in group]
  right_votes = _right_votes(votes, [row.right for row in group])
  if not gold or not right_votes:
    return votes
  common = min(right_votes)
  return [common if vote in right_votes else vote for vote in votes]


def _right_votes(
  votes: Sequence[str | None], correct: Sequence[bool]
) -> set[str]:
  """The votes of right completions."""
  return {
    vote
    for vote, is_correct in zip(votes, correct, strict=True)
    if is_correct and vote is not None
  }


def majority_at_k(
  votes: Sequence[str | None],
  correct: Sequence[bool],
  k: int,
  num_subsets: int = 256,
  seed: int = 0,
) -> float:
  """The chance that the most frequent vote of k samples is right.

  Ties are broken at random (their average counts). An answer that could not be
  read never votes; without votes there is no right answer. The mean is over all
  subsets of k samples, or over `num_subsets` random ones if there are more.

  Source: Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in
  Language Models", arXiv:2203.11171.
  """
  forms = sorted({vote for vote in votes if vote is not None})
  right_votes = _right_votes(votes, correct)
  if not right_votes:
    return 0.0
  number = {form: i for i, form in enumerate(forms)}
  ballot = np.zeros((len(votes), len(forms)), int)  # [samples, forms]
  for i, vote in enumerate(votes):
    if vote is not None:
      ballot[i, number[vote]] = 1
  subsets = _subsets(len(votes), min(k, len(votes)), num_subsets, seed)
  counts = subsets @ ballot  # [subsets, forms]
  winners = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
  is_right = np.array([form in right_votes for form in forms])
  wins = (winners & is_right).sum(axis=1)
  return float((wins / np.maximum(winners.sum(axis=1), 1)).mean())


@functools.lru_cache(maxsize=16)  # All prompts share them.
def _subsets(
  count: int, k: int, limit: int, seed: int
) -> np.ndarray:  # [subsets, count] of 0 and 1
  """All subsets of size k, or `limit` random ones if there are more."""
  if math.comb(count, k) > limit:
    draws = np.random.default_rng(seed).random((limit, count))
    return (draws.argsort(axis=1).argsort(axis=1) < k).astype(int)
  rows = list(itertools.combinations(range(count), k))
  subsets = np.zeros((len(rows), count), int)
  np.put_along_axis(subsets, np.array(rows), 1, axis=1)
  return subsets


def wilson_interval(num_correct: float, count: int) -> tuple[float, float]:
  """The 95 % interval of a share; (0, 1) if `count` is 0.

  Source: Wilson, "Probable inference, the law of succession, and statistical
  inference", JASA 22, 1927.
  """
  if count == 0:
    return 0.0, 1.0
  z = 1.959964
  share = num_correct / count
  scale = 1 + z * z / count
  center = (share + z * z / (2 * count)) / scale
  half = (
    z
    * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    / scale
  )
  return max(0.0, center - half), min(1.0, center + half)


def bootstrap_interval(
  *parts: Sequence[float], num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
  """The 95 % percentile interval of a mean over prompts.

  Args:
    *parts: A value for each prompt. For several parts, such as domains, prompts
      are drawn anew within each, and the mean is that of their means.
    num_resamples: Number of draws.
  """
  rng = np.random.default_rng(seed)
  means = np.zeros(num_resamples)
  for part in parts:
    array = np.asarray(part, float)
    index = rng.integers(len(array), size=(num_resamples, len(array)))
    means += array[index].mean(axis=1) / len(parts)
  low, high = np.percentile(means, [2.5, 97.5])
  return float(low), float(high)


def of_samples(sampled: Groups, golds: Sequence[str]) -> dict[str, list[float]]:
  """Figures of each prompt, from equally many completions of each.

  Args:
    golds: See `ballots`.

  Returns:
    "avg@n", the share of right ones among all n, and "pass@k" and "maj@k" for k
    = 1, 2, 4, … and n; from 64 samples on also "cons@64", which is maj@64.
  """
  count = len(sampled[0])
  hits = [[row.right for row in group] for group in sampled]
  votes = [
    ballots(group, gold) for group, gold in zip(sampled, golds, strict=True)
  ]
  figures = {f"avg@{count}": [sum(group) / count for group in hits]}
  sizes = itertools.takewhile(
    lambda k: k < count, (2**i for i in itertools.count())
  )
  for k in (*sizes, count):
    figures[f"pass@{k}"] = [pass_at_k(count, sum(group), k) for group in hits]
    figures[f"maj@{k}"] = [
      majority_at_k(vote, group, k)
      for vote, group in zip(votes, hits, strict=True)
    ]
    if k == _CONSENSUS:
      figures[f"cons@{k}"] = figures[f"maj@{k}"]
  return figures


def lengths(groups: Groups) -> dict[str, float | None]:
  """Mean tokens of right and of wrong completions, and the share cut off.

  Right and wrong ones are those that were scored; None is a mean over nothing.
  """
  rows = [row for group in groups for row in group]
  return {
    "length_right": _mean([x.num_tokens for x in rows if x.right]),
    "length_wrong": _mean(
      [x.num_tokens for x in rows if x.valid and not x.correct]
    ),
    "truncated": _mean([not row.terminated for row in rows]),
  }


def per_prompt(
  greedy: Groups, sampled: Groups, golds: Sequence[str]
) -> dict[str, list[float]]:
  """Figure -> its value for each prompt: "greedy", and those of `of_samples`.

  Args:
    greedy: One completion of each prompt.
    sampled: Several completions of each prompt, equally many.
    golds: See `ballots`.
  """
  return {
    "greedy": [float(group[0].right) for group in greedy],
    **of_samples(sampled, golds),
  }


def section(
  values: Mapping[str, Sequence[float]],
  greedy: Groups,
  sampled: Groups,
  domains: Sequence[str | None],
) -> dict[str, Any]:
  """All figures of a data set.

  Args:
    values: `per_prompt` of its completions.
    greedy, sampled: See `per_prompt`.
    domains: Name of each prompt's domain; None without domains.

  Returns:
    "num_prompts"; "figures" in the form of `table`, with "greedy_scored", which
    is over the prompts whose greedy completion was scored; "greedy" and
    "sampled" with `lengths` and the number "unscored"; with domains also
    "domains", name -> "num_prompts" and "figures", and "macro".
  """
  scored = [group[0] for group in greedy if group[0].valid]
  num_right = sum(row.correct for row in scored)
  figures = or_none(table(values), greedy, sampled)
  scores: dict[str, Any] = {
    "num_prompts": len(greedy),
    "figures": {
      "greedy": figures.pop("greedy"),
      "greedy_scored": _row(
        num_right / len(scored) if scored else None,
        wilson_interval(num_right, len(scored)),
      ),
      **figures,
    },
  }
  for name, groups in (("greedy", greedy), ("sampled", sampled)):
    unscored = sum(not row.valid for group in groups for row in group)
    scores[name] = {**lengths(groups), "unscored": unscored}
  names = sorted({name for name in domains if name is not None}, key=_natural)
  if names:
    parts = {
      name: {
        figure: [x for x, y in zip(column, domains, strict=True) if y == name]
        for figure, column in values.items()
      }
      for name in names
    }
    scores["domains"] = {
      name: {
        "num_prompts": len(part["greedy"]),
        "figures": or_none(
          table(part),
          *(
            [x for x, y in zip(groups, domains, strict=True) if y == name]
            for groups in (greedy, sampled)
          ),
        ),
      }
      for name, part in parts.items()
    }
    scores["macro"] = or_none(macro(list(parts.values())), greedy, sampled)
  return scores


def or_none(
  figures: Mapping[str, Mapping[str, float | None]],
  greedy: Groups,
  sampled: Groups,
) -> dict[str, dict[str, float | None]]:
  """Replaces figures by None if none of their completions was scored.

  A completion that was not scored counts as wrong; if none was, nothing is
  known.
  """
  has_scores = {
    is_greedy: any(row.valid for group in groups for row in group)
    for is_greedy, groups in ((True, greedy), (False, sampled))
  }
  return {
    name: dict(row) if has_scores[name == "greedy"] else _row(None, (0.0, 1.0))
    for name, row in figures.items()
  }


def table(
  values: Mapping[str, Sequence[float]],
) -> dict[str, dict[str, float | None]]:
  """Means over prompts with their 95 % intervals.

  Args:
    values: Figure -> its value for each prompt, from `per_prompt`.

  Returns:
    Figure -> "value", "low" and "high". The interval of "greedy" is Wilson's;
    the others are of the bootstrap over prompts.
  """
  return {
    name: _row(
      sum(column) / len(column),
      wilson_interval(sum(column), len(column))
      if name == "greedy"
      else bootstrap_interval(column),
    )
    for name, column in values.items()
  }


def macro(
  parts: Sequence[Mapping[str, Sequence[float]]],
) -> dict[str, dict[str, float | None]]:
  """Means over parts, such as domains, of their means over prompts.

  A part with few prompts counts as much as one with many.

  Args:
    parts: For each part the argument of `table`; all have the same figures.
  """
  return {
    name: _row(
      sum(sum(part[name]) / len(part[name]) for part in parts) / len(parts),
      bootstrap_interval(*(part[name] for part in parts)),
    )
    for name in parts[0]
  }


def _row(
  value: float | None, interval: tuple[float, float]
) -> dict[str, float | None]:
  return {"value": value, "low": interval[0], "high": interval[1]}


def _mean(values: Sequence[float]) -> float | None:
  """The mean; None if there is nothing to average."""
  return float(np.mean(values)) if len(values) else None


def _natural(name: str) -> tuple[bool, int, str]:
  """The key of a sort: numbers in their order, then names in theirs."""
  is_number = name.isdecimal()
  return not is_number, int(name) if is_number else 0, name
