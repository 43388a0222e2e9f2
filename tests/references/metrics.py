"""pass@k and maj@k of n samples of one prompt, exactly."""

import itertools
from collections.abc import Hashable, Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
  """P(a random subset of k out of n samples, c of them right, has a right one).

      1 − C(n−c, k) / C(n, k) = 1 − Π_{i=n−c+1..n} (1 − k/i)

  as a product of factors in [0, 1], which cannot overflow.

  Raises:
    ValueError: if not 1 ≤ k ≤ n or not 0 ≤ c ≤ n.
  """
  if not 1 <= k <= n or not 0 <= c <= n:
    raise ValueError(
      f"pass@k: got n={n}, c={c}, k={k}; need 1 <= k <= n and 0 <= c <= n"
    )
  if n - c < k:
    return 1.0
  all_wrong = 1.0
  for i in range(n - c + 1, n + 1):
    all_wrong *= 1.0 - k / i
  return 1.0 - all_wrong


def maj_at_k(
  answers: Sequence[Hashable | None], gold: Hashable, k: int
) -> float:
  """P(the most frequent answer of a random subset of size k is `gold`).

  Every subset is enumerated, so keep n small. Answers of equal frequency share
  the vote equally; None is an invalid answer, which takes a place in the
  subset but never votes; a subset without a vote is wrong.

  Raises:
    ValueError: if not 1 ≤ k ≤ n.
  """
  if not 1 <= k <= len(answers):
    raise ValueError(
      f"maj@k: got k={k} and {len(answers)} answers; need 1 <= k <= n"
    )
  total = 0.0
  num_subsets = 0
  for subset in itertools.combinations(range(len(answers)), k):
    num_subsets += 1
    votes: dict[Hashable, int] = {}
    for j in subset:
      if answers[j] is not None:
        votes[answers[j]] = votes.get(answers[j], 0) + 1
    if not votes:
      continue
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    if gold in winners:
      total += 1.0 / len(winners)
  return total / num_subsets
