"""Array-level batches on which every algorithm of the table can be run."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.algorithms import objective
from grpo_jax.types import PolicyOutputs, Prompts, Rollout, Scored

# Rows 0-3, 4-6 and 7-9 are groups; row 9 is unscored, row 5 is empty, row 2
# was cut off by the budget.
LENGTHS = np.array([6, 1, 6, 3, 2, 0, 4, 5, 3, 2])
GROUPS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
BUDGET = 6


@dataclasses.dataclass
class Case:
  """One batch; every array may be replaced before `evaluate`."""

  logp: np.ndarray  # [B, T]
  old_logp: np.ndarray  # [B, T]
  ref_logp: np.ndarray  # [B, T]
  entropy: np.ndarray  # [B, T]
  mask: np.ndarray  # [B, T] bool
  rewards: np.ndarray  # [B]
  valid: np.ndarray  # [B] bool
  terminated: np.ndarray  # [B] bool
  group_id: np.ndarray  # [B]

  def take(self, rows: np.ndarray) -> Case:
    """The case with only these rows, in this order."""
    return Case(
      **{
        field.name: getattr(self, field.name)[rows]
        for field in dataclasses.fields(self)
      }
    )


def make_case(seed: int = 0, spread: float = 0.3, dtype=np.float32) -> Case:
  """Random log-probs whose log-ratios have this standard deviation, nats."""
  rng = np.random.default_rng(seed)
  shape = (len(LENGTHS), BUDGET)
  mask = np.arange(BUDGET) < LENGTHS[:, None]
  logp = np.minimum(rng.normal(-2.0, 1.0, shape), -0.01)
  return Case(
    logp=logp.astype(dtype),
    old_logp=(logp + spread * rng.normal(size=shape)).astype(dtype),
    ref_logp=(logp + 0.5 * rng.normal(size=shape)).astype(dtype),
    entropy=rng.uniform(0.1, 2.0, shape).astype(dtype),
    mask=mask,
    rewards=rng.normal(size=shape[0]).astype(dtype),
    valid=np.array([True] * 9 + [False]),
    terminated=LENGTHS < BUDGET,
    group_id=GROUPS.copy(),
  )


def _batch(algorithm, config, case, use_anchor):
  num_rows, budget = case.mask.shape
  dtype = case.logp.dtype
  prompts = Prompts(
    tokens=jnp.zeros((1, 1), jnp.int32),
    mask=jnp.ones((1, 1), bool),
    ids=jnp.zeros(1, jnp.int32),
    extras={},
  )
  rollout = Rollout(
    tokens=jnp.zeros((num_rows, budget), jnp.int32),
    completion_mask=case.mask,
    behavior_logp=case.old_logp,
    sampler_logp=case.old_logp,
    entropy=case.entropy,
    terminated=case.terminated,
    prompt_index=jnp.zeros(num_rows, jnp.int32),
    group_id=case.group_id,
    num_groups=4,  # One more than there are.
  )
  scored = Scored(
    rewards=case.rewards,
    valid=case.valid,
    correct=case.rewards > 0,
    components={},
  )
  _, state = algorithm.init(config)
  state = jax.tree.map(lambda x: x.astype(dtype), state)
  batch = objective.make_train_batch(
    algorithm, config, prompts, rollout, scored, state
  )
  required = objective.needs(algorithm, config)
  use_old = use_anchor and "old_logp" in required
  return dataclasses.replace(
    batch,
    old_logp=case.old_logp if use_old else None,
    ref_logp=case.ref_logp if "ref_logp" in required else None,
  )


@functools.partial(jax.jit, static_argnums=(0, 1, 3))
def _evaluate(algorithm, config, arrays, use_anchor):
  case = Case(**arrays)

  def loss(inputs):
    changed = dataclasses.replace(case, **inputs)
    batch = _batch(algorithm, config, changed, use_anchor)
    trainable, _ = algorithm.init(config)
    policy = PolicyOutputs(
      logp=changed.logp, entropy=changed.entropy, trainable=trainable
    )
    weights = objective.term_weights(algorithm, config, batch)
    output = objective.loss(algorithm, config, policy, batch)
    value = sum(
      coefficient * term.total / weights[name]
      for name, (coefficient, term) in output.terms.items()
    )
    return value, (output.metrics, output.maxima, batch.advantages, batch.mask)

  names = ("logp", "old_logp", "ref_logp", "rewards")
  inputs = {name: arrays[name] for name in names}
  (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(inputs)
  return value, gradients, *aux


@dataclasses.dataclass
class Outcome:
  """What an algorithm made of a case."""

  loss: np.ndarray  # []
  gradient: np.ndarray  # [B, T], with respect to logp
  constants: dict[str, np.ndarray]  # gradients that must be 0
  metrics: dict[str, float]
  advantages: np.ndarray  # [B] or [B, T]
  mask: np.ndarray  # [B, T], trained tokens


def evaluate(algorithm, config, case: Case, use_anchor: bool = True) -> Outcome:
  """Runs the objective on a case in one jitted call per algorithm.

  Args:
    algorithm: Of the table.
    config: Its config.
    case: The batch.
    use_anchor: False takes the policy itself as the anchor (ratio 1).
  """
  arrays = {
    field.name: jnp.asarray(getattr(case, field.name))
    for field in dataclasses.fields(case)
  }
  value, gradients, metrics, maxima, advantages, mask = jax.device_get(
    _evaluate(algorithm, config, arrays, use_anchor)
  )
  shares = {
    name: float(term.total / np.maximum(term.weight, 1))
    for name, term in metrics.items()
  }
  return Outcome(
    loss=value,
    gradient=gradients.pop("logp"),
    constants=gradients,
    metrics=shares | {name: float(x) for name, x in maxima.items()},
    advantages=advantages,
    mask=mask,
  )
