"""Expected gradients of the library's losses, as sums over all groups.

The policy is a table of logits, one row per prefix of completion tokens; the
last symbol is the end token. Such a policy has few completions, so every group
of G of them can be listed with its probability. Mean and variance of a gradient
are then finite sums: nothing is sampled. The loss of a group is the library's
own, from `make_train_batch` to the weights of its terms.

A group is a multiset: no loss depends on the order of its rows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import divergences
from grpo_jax.types import (
  Algorithm,
  PolicyOutputs,
  Prompts,
  Rollout,
  Scored,
  set_fields,
)


class Completions(NamedTuple):
  """Completions of at most T tokens, all n in lexicographic order."""

  tokens: np.ndarray  # [n, T] int, 0 where masked
  mask: np.ndarray  # [n, T] bool
  rows: np.ndarray  # [n, T] int, row of the table each token is drawn from


@dataclasses.dataclass(frozen=True)
class Problem:
  """Prompt with a policy and a reward for each completion."""

  # Logits of the policy that is differentiated; row 0 is the empty prefix, rows
  # 1 to V are those of one token, and so on.
  logits: np.ndarray  # [N, V]
  # The rewards of each completion.
  rewards: np.ndarray  # [n]
  # Marks of the right completions; by default those with a reward > 0.
  correct: np.ndarray | None = None  # [n] bool
  # Reward of the step that ends at a token; every token ends a step. By default
  # the reward, at the last token.
  step_rewards: np.ndarray | None = None  # [n, T]
  # Rewards that are added; by default one component.
  components: tuple[np.ndarray, ...] = ()  # each [n]
  # Logits of the reference or the teacher; by default the policy's.
  ref_logits: np.ndarray | None = None  # [N, V]
  # Logits of the policy that sampled; None: the policy's (on-policy).
  old_logits: np.ndarray | None = None  # [N, V]
  baseline: float = 0.0  # Running mean reward of REINFORCE.
  # Values of a critic for each prefix; by default those of a perfect critic.
  values: np.ndarray | None = None  # [N]


class Moments(NamedTuple):
  """Mean of −∇ loss, and the trace of its covariance."""

  mean: np.ndarray  # [N, V]
  variance: float


def num_rows(num_symbols: int, num_slots: int) -> int:
  """Rows of the table: N = Σ_{t < T} V^t."""
  return sum(num_symbols**t for t in range(num_slots))


@functools.cache
def completions(num_symbols: int, num_slots: int) -> Completions:
  """Returns every completion: up to its end token, or T tokens without one."""
  end = num_symbols - 1
  longest = itertools.product(range(num_symbols), repeat=num_slots)
  every = dict.fromkeys(
    x[: x.index(end) + 1] if end in x else x for x in longest
  )

  def child(row, token):
    # Row 0 has the children 1 … V, row 1 the next V, as in a V-ary heap.
    return num_symbols * row + 1 + token

  def padded(values):
    return tuple(values) + (0,) * (num_slots - len(values))

  rows = [[*itertools.accumulate(x[:-1], child, initial=0)] for x in every]
  return Completions(
    tokens=np.array([padded(tokens) for tokens in every]),
    mask=np.array([np.arange(num_slots) < len(x) for x in every]),
    rows=np.array([padded(x) for x in rows]),
  )


@functools.cache
def multisets(
  num_completions: int, group_size: int
) -> tuple[np.ndarray, np.ndarray]:  # [M, G], [M]
  """Groups of G completions, and the number of orders of each."""
  groups = list(
    itertools.combinations_with_replacement(range(num_completions), group_size)
  )
  orders = [
    math.factorial(group_size)
    / math.prod(math.factorial(group.count(i)) for i in set(group))
    for group in groups
  ]
  return np.array(groups), np.array(orders)


def log_softmax(logits: np.ndarray) -> np.ndarray:  # [N, V]
  """Log-probabilities of a table."""
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def all_of(logits: np.ndarray) -> Completions:
  """The completions of a table of this shape."""
  num_symbols = logits.shape[1]
  num_slots = 1
  while num_rows(num_symbols, num_slots) < logits.shape[0]:
    num_slots += 1
  return completions(num_symbols, num_slots)


def probabilities(logits: np.ndarray) -> np.ndarray:  # [N, V] -> [n]
  """π(y) of every completion; their sum is 1."""
  every = all_of(logits)
  logp = log_softmax(logits)[every.rows, every.tokens]
  return np.exp(np.where(every.mask, logp, 0).sum(axis=1))


def scores(logits: np.ndarray) -> np.ndarray:  # [N, V] -> [n, N, V]
  """∇ log π(y) of every completion, with respect to the table."""
  every = all_of(logits)
  probs = np.exp(log_softmax(logits))
  gradients = np.zeros((len(every.tokens), *logits.shape))
  for i, t in np.argwhere(every.mask):
    row = every.rows[i, t]
    gradients[i, row] -= probs[row]
    gradients[i, row, every.tokens[i, t]] += 1
  return gradients


def reward_gradient(
  logits: np.ndarray,  # [N, V]
  rewards: np.ndarray,  # [n]
) -> np.ndarray:  # [N, V]
  """∇J = Σ_y π(y) R(y) ∇ log π(y)."""
  weights = probabilities(logits) * rewards
  return np.einsum("i,isv->sv", weights, scores(logits))


def best_of_gradient(
  logits: np.ndarray,  # [N, V]
  rewards: np.ndarray,  # [n]
  group_size: int,
) -> np.ndarray:  # [N, V]
  """∇ E[max of the rewards of G completions], that is of pass@G.

  The greatest of G draws is at most r with probability F(r)^G, so
  E max = r_n − Σ_k (r_{k+1} − r_k) F(r_k)^G over the sorted rewards.
  """
  probs = probabilities(logits)
  order = np.argsort(rewards)
  below = np.cumsum(probs[order])[:-1]  # F at all but the greatest
  slope = -np.diff(rewards[order]) * group_size * below ** (group_size - 1)
  # ∂/∂π(y) of Σ_k slope_k F(r_k): all k at or above the rank of y.
  per_rank = np.append(np.cumsum(slope[::-1])[::-1], 0.0)
  weights = np.empty_like(probs)
  weights[order] = per_rank
  return np.einsum("i,isv->sv", probs * weights, scores(logits))


def state_values(
  logits: np.ndarray,  # [N, V]
  rewards: np.ndarray,  # [n]
) -> np.ndarray:  # [N]
  """V(s) = E[R | prefix s], the value of a perfect critic; 0 if unreachable."""
  every = all_of(logits)
  probs = np.broadcast_to(probabilities(logits)[:, None], every.mask.shape)
  rows = every.rows[every.mask]
  reached = reach(logits)
  gained = np.bincount(
    rows, (probs * rewards[:, None])[every.mask], len(logits)
  )
  return np.divide(
    gained, reached, out=np.zeros(len(logits)), where=reached > 0
  )


def reach(logits: np.ndarray) -> np.ndarray:  # [N, V] -> [N]
  """Probability that a completion comes to a prefix."""
  every = all_of(logits)
  probs = np.broadcast_to(probabilities(logits)[:, None], every.mask.shape)
  return np.bincount(every.rows[every.mask], probs[every.mask], len(logits))


def teacher_gradient(
  logits: np.ndarray,  # [N, V]
  ref_logits: np.ndarray,  # [N, V]
) -> np.ndarray:  # [N, V]
  """−∇ E Σ_t KL(π_θ ‖ π_ref) at the prefix, the prefixes held fixed."""
  logp = log_softmax(logits)
  gap = logp - log_softmax(ref_logits)
  probs = np.exp(logp)
  divergence = (probs * gap).sum(axis=1, keepdims=True)
  return -reach(logits)[:, None] * probs * (gap - divergence)


def greedy_index(logits: np.ndarray) -> int:
  """Completion that takes the likeliest token every time."""
  every = all_of(logits)
  likeliest = logits.argmax(axis=1)[every.rows] == every.tokens
  return int(np.argmax((likeliest | ~every.mask).all(axis=1)))


def tables_of(algorithm: Algorithm, config: Any, problem: Problem) -> dict:
  """Inputs of `gradients`, by completion [n, ...] or by row of the table."""
  logits = problem.logits
  sampler = logits if problem.old_logits is None else problem.old_logits
  every = all_of(logits)
  logp = log_softmax(sampler)
  probs = np.exp(logp)
  last = every.mask & ~np.pad(every.mask, ((0, 0), (0, 1)))[:, 1:]
  steps = problem.step_rewards
  if steps is None:
    steps = np.where(last, problem.rewards[:, None], 0.0)
  correct = problem.correct
  values = problem.values
  if values is None:
    values = state_values(sampler, problem.rewards)
  tables = {
    "logits": logits,
    "ref_logits": logits if problem.ref_logits is None else problem.ref_logits,
    "by_completion": {
      "tokens": every.tokens,
      "mask": every.mask,
      "rows": every.rows,
      "terminated": (every.tokens == logits.shape[1] - 1).any(axis=1),
      "rewards": problem.rewards,
      "correct": problem.rewards > 0 if correct is None else correct,
      "step_rewards": steps,
      "components": np.stack(problem.components or (problem.rewards,), axis=1),
    },
    "by_row": {
      "entropy": -(probs * logp).sum(axis=1),
      "sum_pi_squared": np.square(probs).sum(axis=1),
      "values": values,
    },
    "greedy_reward": problem.rewards[greedy_index(sampler)],
    "baseline": problem.baseline,
  }
  if problem.old_logits is not None:
    tables["old_logits"] = problem.old_logits
  if "ref_topk" in options.needs(algorithm, config):
    tables["topk_ids"] = np.argsort(-tables["ref_logits"], axis=1)[
      :, : config.topk
    ]
  return jax.tree.map(jnp.asarray, tables)


def _loss(algorithm, config, logits, offset, tables, group, key):
  """The loss of one group, as a function of the policy's table.

  `offset` [G, T] is added to the log-probs of the drawn tokens: 0, there to
  differentiate by each of them.
  """
  required = options.needs(algorithm, config)
  of = jax.tree.map(lambda x: x[group], tables["by_completion"])  # [G, ...]
  rows, tokens, mask = of["rows"], of["tokens"], of["mask"]
  at = jax.tree.map(lambda x: x[rows], tables["by_row"])  # [G, T]
  size = len(group)

  def log_probs(table):
    return jax.nn.log_softmax(table)[rows]  # [G, T, V]

  def chosen(log_probs):
    return jnp.take_along_axis(log_probs, tokens[..., None], -1)[..., 0]

  student, teacher = log_probs(logits), log_probs(tables["ref_logits"])
  logp = chosen(student) + offset
  # On-policy the ratio must be 1 to the last bit: |log r| has a corner there.
  old_logp = jax.lax.stop_gradient(
    chosen(log_probs(tables["old_logits"])) if "old_logits" in tables else logp
  )
  rollout = Rollout(
    tokens=tokens,
    completion_mask=mask,
    behavior_logp=old_logp,
    sampler_logp=old_logp,
    entropy=at["entropy"],
    terminated=of["terminated"],
    prompt_index=jnp.zeros(size, jnp.int32),
    group_id=jnp.zeros(size, jnp.int32),
    num_groups=1,
  )
  names = [str(k) for k in range(of["components"].shape[1])]
  scored = Scored(
    rewards=of["rewards"],
    valid=jnp.ones(size, bool),
    correct=of["correct"],
    components=dict(zip(names, of["components"].T, strict=True)),
    weights=dict.fromkeys(names, jnp.ones((), logits.dtype)),
    step_rewards=of["step_rewards"],
    step_mask=mask,
  )
  greedy = dataclasses.replace(
    scored,
    rewards=tables["greedy_reward"][None],
    valid=jnp.ones(1, bool),
  )
  prompts = Prompts(
    tokens=jnp.zeros((1, 1), jnp.int32),
    mask=jnp.ones((1, 1), bool),
    ids=jnp.zeros(1, jnp.int32),
    extras={},
  )
  trainable, state = objective.init(algorithm, config)
  if "reward_sum" in state["algorithm"]:
    running = {"reward_sum": tables["baseline"], "weight": 1.0}
    state["algorithm"] = running
  trainable, state = jax.tree.map(
    lambda x: jnp.asarray(x, logits.dtype), (trainable, state)
  )
  batch = objective.make_train_batch(
    algorithm, config, prompts, rollout, scored, state, greedy
  )
  policy = {"logp": logp}
  given: dict[str, Any] = {
    "old_logp": old_logp,
    "anchor.sum_pi_squared": at["sum_pi_squared"],
    "critic.values": at["values"],
    "key": key,
  }
  if "ref_logp" in required:
    given["reference.logp"] = chosen(teacher)
  if "ref_kl" in required:
    policy["ref_kl"] = divergences.generalized_jsd(
      student, teacher, config.jsd_beta
    )
  if "ref_topk" in required:
    ids = tables["topk_ids"][rows]
    policy["topk_logp"] = jnp.take_along_axis(student, ids, -1)
    given["reference.topk_logp"] = jnp.take_along_axis(teacher, ids, -1)
  batch = set_fields(batch, given)
  batch = objective.prepare(algorithm, config, batch)
  weights = objective.term_weights(algorithm, config, batch)
  output = objective.loss(
    algorithm, config, PolicyOutputs(**policy, trainable=trainable), batch
  )
  return sum(
    coefficient * term.total / weights[name]
    for name, (coefficient, term) in output.terms.items()
  )


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradients(
  algorithm: Algorithm,
  config: Any,
  tables: dict,
  groups: jax.Array,  # [M, G]
) -> jax.Array:  # [M, N, V]
  """−∇ loss of each group."""

  def one(group, index):
    # A draw of its own for each group.
    key = jax.random.fold_in(jax.random.key(0), index)
    offset = jnp.zeros((len(group), tables["by_completion"]["mask"].shape[1]))
    return -jax.grad(_loss, argnums=2)(
      algorithm, config, tables["logits"], offset, tables, group, key
    )

  return jax.vmap(one)(groups, jnp.arange(len(groups)))


_slopes = jax.jit(jax.grad(_loss, argnums=3), static_argnums=(0, 1))


def token_weights(
  algorithm: Algorithm, config: Any, problem: Problem, group: np.ndarray
) -> np.ndarray:  # [G] -> [G, T]
  """−∂ loss / ∂ log π of each drawn token of one group, 0 where masked."""
  tables = tables_of(algorithm, config, problem)
  mask = tables["by_completion"]["mask"][group]
  slope = _slopes(
    algorithm,
    config,
    tables["logits"],
    jnp.zeros(mask.shape),
    tables,
    jnp.asarray(group),
    jax.random.key(0),
  )
  return -np.where(mask, slope, 0.0)


def moments(
  algorithm: Algorithm, config: Any, problem: Problem, group_size: int
) -> Moments:
  """Exact mean and variance of an algorithm's gradient over all groups.

  Args:
    algorithm: Algorithm of the table, or made from one.
    config: Its config.
    problem: Policy and rewards of one prompt.
    group_size: G; M = (n + G − 1)! / (G! (n − 1)!) multisets are summed over.

  Returns:
    Mean over groups of independent draws of −∇ loss, and E‖g‖² − ‖E g‖².
    Deterministic, except for the draws of an algorithm itself (Clip-Cov); each
    group gets one of these.

  The computation is in float64, under `jax.enable_x64`.
  """
  sampler = problem.logits if problem.old_logits is None else problem.old_logits
  probs = probabilities(sampler)
  groups, orders = multisets(len(probs), group_size)
  weights = orders * probs[groups].prod(axis=1)  # [M], sum 1
  tables = tables_of(algorithm, config, problem)
  each = np.asarray(
    gradients(algorithm, config, tables, jnp.asarray(groups))
  )  # [M, N, V]
  mean = np.einsum("m,msv->sv", weights, each)
  second = np.einsum("m,msv,msv->", weights, each, each)
  return Moments(mean, float(second - np.sum(np.square(mean))))
