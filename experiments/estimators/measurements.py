"""Measurements of each algorithm's expected gradient, by enumeration.

Each measurement uses two prompts with a tabular policy each. `enumeration.py`
gives exact means and variances of the gradients that the library's losses have
over all groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.estimators import enumeration
from grpo_jax import algorithms
from grpo_jax.algorithms import grpo, opo, passk, rloo
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm

NUM_SYMBOLS, NUM_SLOTS = 3, 3
NUM_RIGHT = (4, 8)  # Right completions of the hard and of the easy prompt.
GROUP_SIZES = (2, 3, 4, 6)
MAIN_SIZE = 4
# Algorithms without a row -> the reason.
WITHOUT = {
  "sft": "imitates given completions and has no reward",
  "bradley_terry": "trains a reward model and no policy",
  "compaction_rl": "is about rollouts of several contexts, not of one",
  "gagpo": "compares states of several turns, and these completions have one",
  "gigpo": "compares actions of several turns, and these completions have one",
  "spo": "compares with earlier steps, and here there are none",
  "rredcot": "forces answers after segments, and these completions have one",
}
# Objectives that algorithms claim to follow, other than the mean reward J.
TARGETS = {
  "passk": "pass@G",
  "gtpo": "P(right)",
  "grpo_s": "P(right)",
  "opd_token": "teacher",
  "opd_full": "teacher",
  "opd_topk": "teacher",
}
# Without what changes the objective and not its estimator.
SETTINGS = {
  "dapo": {"overlong_cache": 0.0},
  "gfpo": {"num_kept": 2, "entropy_coef": 0.0},
  "opd_topk": {"topk": 1},
  "reinforce": {"baseline_decay": 0.0},
}
BASELINE = "reinforce, b = J"
EXACT = 1e-9  # Relative; rounding leaves about 1e-15.


class Agreement(NamedTuple):
  """Expected gradient beside its target."""

  cosine: float
  bias: float  # ‖E g − c ∇J‖ / ‖c ∇J‖
  scale: float  # c = ⟨E g, ∇J⟩ / ‖∇J‖²


def angle_of(found: Agreement) -> float:
  return float(np.degrees(np.arctan2(found.bias, np.sign(found.scale))))


@dataclasses.dataclass(frozen=True)
class Row:
  """Measurements of one estimator."""

  name: str  # Name in the table.
  target: str  # Objective whose gradient the mean is compared with.
  group_size: int  # Group size of all fields that are not by group size.
  graded: dict[int, Agreement]  # Agreement by group size, with graded rewards.
  # Agreement by group size, with rewards of 0 and 1.
  verifier: dict[int, Agreement]
  # Expected gradient with graded rewards, to find equal estimators.
  mean: np.ndarray
  # c of each prompt alone, with rewards of 0 and 1 and the largest groups.
  difficulty: np.ndarray  # [P]
  variance: float  # Trace of the covariance of g/c, in units of ‖∇J‖².
  exponent: float  # d log ‖E g‖ / d log (scale of the rewards).
  # Weight of a token in a completion of T tokens, relative to one of a single
  # token; NaN where no reward is read.
  length: float

  @property
  def main(self) -> Agreement:
    return self.graded[self.group_size]

  @property
  def angle(self) -> float:
    """Angle between the expected gradient and its target, degrees."""
    return angle_of(self.main)

  @property
  def verdict(self) -> str:
    """Unbiased: "yes", "× c" with one c for all rewards, or "no"."""
    found = [x[self.group_size] for x in (self.graded, self.verifier)]
    if max(x.bias for x in found) > EXACT:
      return "no"
    scales = [x.scale for x in found]
    if max(scales) - min(scales) > EXACT:
      return "no"
    return "yes" if abs(scales[0] - 1) < EXACT else "× c"


def problems(kind: str) -> list[enumeration.Problem]:
  """The prompts: a hard and an easy one.

  The reward of "verifier" is 1 for a right completion and else 0; that of
  "graded" has a score of each token added.
  """
  rng = np.random.default_rng(0)
  every = enumeration.completions(NUM_SYMBOLS, NUM_SLOTS)
  shape = (enumeration.num_rows(NUM_SYMBOLS, NUM_SLOTS), NUM_SYMBOLS)
  made = []
  for num_right in NUM_RIGHT:
    logits, teacher = rng.normal(size=(2, *shape))
    ranks = rng.permutation(len(every.tokens))
    right = ranks < num_right
    token_scores = 0.25 * rng.normal(size=every.mask.shape)
    steps = np.where(every.mask, token_scores * (kind == "graded"), 0.0)
    parts = right.astype(float), steps.sum(axis=1)
    last = every.mask & ~np.pad(every.mask, ((0, 0), (0, 1)))[:, 1:]
    made.append(
      enumeration.Problem(
        logits,
        rewards=sum(parts),
        correct=right,
        step_rewards=steps + last * right[:, None],
        components=parts,
        ref_logits=teacher,
      )
    )
  return made


def _scaled(problem: enumeration.Problem, by: float) -> enumeration.Problem:
  return dataclasses.replace(
    problem,
    rewards=by * problem.rewards,
    step_rewards=by * problem.step_rewards,
    components=tuple(by * x for x in problem.components),
    baseline=by * problem.baseline,
  )


def target(
  name: str, made: Sequence[enumeration.Problem], group_size: int
) -> np.ndarray:  # [P, N, V]
  """Gradient of the estimator's target, mean over prompts."""

  def one(problem):
    match name:
      case "J":
        return enumeration.reward_gradient(problem.logits, problem.rewards)
      case "P(right)":
        right = problem.correct.astype(float)
        return enumeration.reward_gradient(problem.logits, right)
      case "pass@G":
        return enumeration.best_of_gradient(
          problem.logits, problem.rewards, group_size
        )
      case "teacher":
        return enumeration.teacher_gradient(problem.logits, problem.ref_logits)

  return np.stack([one(problem) for problem in made]) / len(made)


def estimate(
  algorithm: Algorithm,
  config: Any,
  made: Sequence[enumeration.Problem],
  group_size: int,
) -> enumeration.Moments:
  """Moments of the mean over prompts, each with a group of its own."""
  found = [
    enumeration.moments(algorithm, config, problem, group_size)
    for problem in made
  ]
  return enumeration.Moments(
    np.stack([x.mean for x in found]) / len(made),
    sum(x.variance for x in found) / len(made) ** 2,
  )


def compare(mean: np.ndarray, wanted: np.ndarray) -> Agreement:
  """Cosine, bias and scale of an expected gradient."""
  scale = np.sum(mean * wanted) / np.sum(wanted**2)
  rest = np.linalg.norm(mean - scale * wanted)
  bias = rest / np.linalg.norm(scale * wanted)
  # From the bias: 1 − cosine would keep no digits where it is small.
  return Agreement(
    float(np.sign(scale) / np.hypot(1, bias)), float(bias), float(scale)
  )


def token_length_weight(algorithm: Algorithm, config: Any) -> float:
  """Weight per token if the longest of two completions is the right one.

  It is divided by the weight if the shortest is right; under the uniform
  policy, in a group of these two. It is 1 for a loss that treats all tokens
  alike.
  """
  every = enumeration.completions(NUM_SYMBOLS, NUM_SLOTS)
  lengths = every.mask.sum(axis=1)
  ended = every.tokens[np.arange(len(lengths)), lengths - 1] == NUM_SYMBOLS - 1
  short = int(np.argmin(lengths))
  long = int(np.flatnonzero(ended & (lengths == NUM_SLOTS))[-1])
  shape = (enumeration.num_rows(NUM_SYMBOLS, NUM_SLOTS), NUM_SYMBOLS)

  def weight(right):
    problem = enumeration.Problem(
      np.zeros(shape), rewards=np.eye(len(lengths))[right]
    )
    weights = enumeration.token_weights(
      algorithm, config, problem, np.array([right, long + short - right])
    )
    return weights[0].sum() / lengths[right]

  return float(weight(long) / weight(short))


def settings(name: str) -> Any:
  """The config of an algorithm: the paper's, with the reward as objective."""
  return algorithms.make_config(name, kl_coef=0.0, **SETTINGS.get(name, {}))


def measure(
  name: str, group_sizes: Sequence[int] = GROUP_SIZES, baseline: bool = False
) -> Row:
  """Measures an algorithm for a row of the table.

  Args:
    name: The name of the algorithm.
    group_sizes: Group sizes G to enumerate. Most columns are about `MAIN_SIZE`,
      or the nearest size for which the algorithm is defined.
    baseline: Whether REINFORCE gets the exact mean reward as baseline.
  """
  algorithm, config = algorithms.get_algorithm(name), settings(name)
  if baseline:
    config = dataclasses.replace(config, baseline_decay=0.9)
  most = algorithm.max_group_size
  if most in (None, 1):  # With 1, G is the size of the batch.
    most = max(group_sizes)
  sizes = [size for size in group_sizes if size <= most]
  size = min(sizes, key=lambda x: abs(x - MAIN_SIZE))
  wanted = TARGETS.get(name, "J")

  def made(kind):
    prompts = problems(kind)
    if name in ("dpo", "two_grpo_dpo"):
      # Training starts at the reference.
      prompts = [dataclasses.replace(x, ref_logits=x.logits) for x in prompts]
    if baseline:
      prompts = [
        dataclasses.replace(
          x, baseline=enumeration.probabilities(x.logits) @ x.rewards
        )
        for x in prompts
      ]
    return prompts

  def agreement(prompts, g):
    mean = estimate(algorithm, config, prompts, g).mean
    return compare(mean, target(wanted, prompts, g))

  prompts, right_or_wrong = made("graded"), made("verifier")
  graded = {g: agreement(prompts, g) for g in sizes}
  moments = estimate(algorithm, config, prompts, size)
  doubled = [_scaled(x, 2.0) for x in prompts]
  growth = np.linalg.norm(
    estimate(algorithm, config, doubled, size).mean
  ) / np.linalg.norm(moments.mean)
  goal = target(wanted, prompts, size)
  each = [agreement([x], max(sizes)).scale for x in right_or_wrong]
  return Row(
    name=BASELINE if baseline else name,
    target=wanted,
    group_size=size,
    graded=graded,
    verifier={g: agreement(right_or_wrong, g) for g in sizes},
    mean=moments.mean,
    difficulty=np.array(each),
    variance=moments.variance
    / graded[size].scale ** 2
    / float(np.sum(goal**2)),
    exponent=float(np.log2(growth)),
    length=float("nan")
    if wanted == "teacher"
    else token_length_weight(algorithm, config),
  )


def names() -> list[str]:
  """Names of the algorithms that have a row, in the order of `ALGORITHMS`."""
  return [name for name in algorithms.ALGORITHMS if name not in WITHOUT]


def measure_all(chosen: Sequence[str]) -> list[Row]:
  """Rows of these algorithms; REINFORCE comes without and with a baseline."""
  rows = []
  for name in chosen:
    rows.append(measure(name))
    if name == "reinforce":
      rows.append(measure(name, baseline=True))
  return rows


def ordered(rows: Sequence[Row]) -> list[Row]:
  """Unbiased first, then by bias; equal ones stay in the library's order."""
  rank = ("yes", "× c", "no")
  return sorted(
    rows, key=lambda row: (rank.index(row.verdict), round(row.main.bias, 6))
  )


def families(rows: Sequence[Row], up_to_scale: bool = False) -> list[list[Row]]:
  """Groups rows with the same mean and variance: the same estimator.

  With `up_to_scale` g / c is compared: a constant factor does not count.
  """
  found: list[list[Row]] = []

  def key(row):
    scale = row.main.scale
    mean = row.mean / scale if up_to_scale else row.mean
    # The variance is one of g / c.
    variance = row.variance * (1.0 if up_to_scale else scale**2)
    return row.target, row.group_size, np.append(mean, variance)

  for row in rows:
    for family in found:
      *here, numbers = key(row)
      *there, others = key(family[0])
      if here == there and np.allclose(numbers, others, rtol=1e-6, atol=1e-9):
        family.append(row)
        break
    else:
      found.append([row])
  return found


def _unscaled(config: Any, batch: Any) -> jax.Array:
  del config
  return batch.rewards


# Advantages of one equation, for the table of advantages and aggregations:
# (what it is, function, scale, what it should follow).
_ADVANTAGES = (
  ("R", _unscaled, "none", "J"),
  ("R − mean of the others (RLOO)", rloo.advantages, "none", "J"),
  ("R − mean of the group (Dr. GRPO)", grpo.advantages, "none", "J"),
  ("(R − mean) / deviation (GRPO)", grpo.advantages, "group", "J"),
  ("R − length-weighted mean (OPO)", opo.advantages, "none", "J"),
  ("lead of the best (pass@G)", passk.advantages, "none", "pass@G"),
)
AGGREGATIONS = (
  ("sum of tokens", aggregation.over_sequence_sums),
  ("mean over the completion's tokens", aggregation.over_sequences),
  ("mean over the batch's tokens", aggregation.over_tokens),
)


def combinations() -> list[tuple[str, list[Agreement]]]:
  """Agreement of every advantage with every aggregation, graded rewards."""
  base = algorithms.get_algorithm("dr_grpo")
  made = problems("graded")
  rows = []
  for label, advantages, scale, wanted in _ADVANTAGES:
    config = algorithms.make_config("dr_grpo", advantage_scale=scale)
    goal = target(wanted, made, MAIN_SIZE)
    cells = []
    for _, aggregate in AGGREGATIONS:
      algorithm = dataclasses.replace(
        base,
        advantages=advantages,
        aggregate=aggregate,
        needs=(*base.needs, "lengths"),  # Of OPO's baseline.
      )
      found = estimate(algorithm, config, made, MAIN_SIZE)
      cells.append(compare(found.mean, goal))
    rows.append((label, cells))
  return rows
