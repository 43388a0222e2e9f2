"""Batches of arrays on which every algorithm of the table can run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import aggregation
from grpo_jax.types import (
  Maximum,
  PolicyOutputs,
  Prompts,
  Rollout,
  Scored,
  TrainBatch,
  needs_of,
  row_arrays,
  set_fields,
)

# Rows 0-3, 4-6 and 7-9 are groups; row 9 is unscored, row 5 is empty, row 2
# was cut off by the budget.
LENGTHS = np.array([6, 1, 6, 3, 2, 0, 4, 5, 3, 2])
GROUPS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
BUDGET = 6
COMPONENTS = ("brevity", "clarity")
WEIGHTS = (1.0, 0.5)
# Fields per token; slots outside the mask are arbitrary.
TOKEN_FIELDS = (
  "logp",
  "old_logp",
  "behavior_logp",
  "ref_logp",
  "entropy",
  "behavior_entropy",
  "values",
  "old_values",
  "step_rewards",
  "turn_rewards",
  "sum_pi_squared",
  "prefix_utility",
)
# All fields with an entry for each slot.
SLOT_FIELDS = (
  *TOKEN_FIELDS,
  *("step_mask", "segment_end", "mask", "turn", "state_id"),
)
CONSTANTS = (
  "old_logp",
  "behavior_logp",
  "ref_logp",
  "behavior_entropy",
  "rewards",
  "old_values",
  "final_value",
  "step_rewards",
  "turn_rewards",
  "greedy_rewards",
  "expected",
  "components",
  "sum_pi_squared",
  "prefix_utility",
)


@dataclasses.dataclass
class Case:
  """A batch whose arrays may be replaced before `evaluate`."""

  logp: np.ndarray  # [B, T]
  old_logp: np.ndarray  # [B, T]
  behavior_logp: np.ndarray  # [B, T]
  ref_logp: np.ndarray  # [B, T]
  entropy: np.ndarray  # [B, T], of the policy
  behavior_entropy: np.ndarray  # [B, T], recorded while sampling
  values: np.ndarray  # [B, T], of the critic, without its policy part
  old_values: np.ndarray  # [B, T]
  step_rewards: np.ndarray  # [B, T]
  step_mask: np.ndarray  # [B, T] bool
  segment_end: np.ndarray  # [B, T] bool
  prefix_utility: np.ndarray  # [B, T]
  turn_rewards: np.ndarray  # [B, T]
  turn: np.ndarray  # [B, T] int
  state_id: np.ndarray  # [B, T] int
  sum_pi_squared: np.ndarray  # [B, T]
  mask: np.ndarray  # [B, T] bool
  rewards: np.ndarray  # [B]
  greedy_rewards: np.ndarray  # [B]
  expected: np.ndarray  # [B]
  components: np.ndarray  # [B, 2]
  domain: np.ndarray  # [B] int
  valid: np.ndarray  # [B] bool
  terminated: np.ndarray  # [B] bool
  correct: np.ndarray  # [B] bool
  group_id: np.ndarray  # [B]
  final_value: np.ndarray  # [B]

  def take(self, rows: np.ndarray) -> Case:
    """Returns the case with only these rows, in this order."""
    return Case(
      **{
        field.name: getattr(self, field.name)[rows]
        for field in dataclasses.fields(self)
      }
    )


def make_case(seed: int = 0, spread: float = 0.3, dtype=np.float32) -> Case:
  """A random case whose log-ratios have the deviation `spread`, nats."""
  rng = np.random.default_rng(seed)
  shape = (len(LENGTHS), BUDGET)
  mask = np.arange(BUDGET) < LENGTHS[:, None]
  logp = np.minimum(rng.normal(-2.0, 1.0, shape), -0.01)
  case = Case(
    logp=logp,
    old_logp=logp + spread * rng.normal(size=shape),
    behavior_logp=logp,
    ref_logp=logp + 0.5 * rng.normal(size=shape),
    entropy=rng.uniform(0.1, 2.0, shape),
    behavior_entropy=rng.uniform(0.1, 2.0, shape),
    values=rng.normal(size=shape),
    old_values=rng.normal(size=shape),
    step_rewards=rng.normal(size=shape),
    step_mask=mask & (rng.random(shape) < 0.5),
    segment_end=mask & (np.arange(BUDGET) % 3 == 1),
    prefix_utility=logp,
    turn_rewards=np.zeros(shape),
    turn=np.broadcast_to(np.arange(BUDGET) // 2, shape),
    state_id=np.broadcast_to(np.arange(BUDGET) // 2 % 2, shape),
    sum_pi_squared=logp,
    mask=mask,
    rewards=rng.normal(size=shape[0]),
    greedy_rewards=rng.normal(size=shape[0]),
    expected=np.linspace(0.1, 0.9, shape[0]),
    components=rng.normal(size=(shape[0], len(COMPONENTS))),
    domain=np.arange(shape[0]) % 2,
    valid=np.array([True] * 9 + [False]),
    terminated=LENGTHS < BUDGET,
    correct=rng.random(shape[0]) < 0.5,
    group_id=GROUPS.copy(),
    final_value=np.linspace(-1.0, 2.0, shape[0]),
  )
  case.behavior_logp = case.old_logp + 0.1 * rng.normal(size=shape)
  # Σ π² is at least the square of the drawn token's π.
  case.turn_rewards = rng.normal(size=shape)
  # Segments of up to three tokens.
  case.prefix_utility = rng.random(shape)[:, (np.arange(BUDGET) + 1) // 3]
  case.sum_pi_squared = np.exp(2 * case.old_logp) + 0.3 * rng.random(shape)
  case.components[4, 0] = np.nan  # The reward does not apply.
  for field in dataclasses.fields(case):
    value = getattr(case, field.name)
    if value.dtype == np.float64:
      setattr(case, field.name, value.astype(dtype))
  return case


def derived(np_or_jnp, logp, ref_logp, values) -> dict:
  """Further outputs of the policy, as functions of its log-probs.

  They are two of the reference's likeliest tokens, a divergence from the
  reference over the vocabulary, and values of a critic, as if it shared the
  trunk.
  """
  xp = np_or_jnp
  shifts = xp.asarray([0.7, 1.7], logp.dtype)
  likely = xp.minimum(ref_logp, -0.01)
  return {
    "topk_logp": logp[..., None] - shifts,
    "ref_topk_logp": likely[..., None] - shifts,
    "ref_kl": 0.5 * xp.square(logp - ref_logp),
    "values": values + 0.1 * logp,
  }


def prepared(
  algorithm,
  config,
  case,
  use_anchor=True,
  key=None,
  traces=None,
  observed=None,
):
  """The prepared batch of a case, with advantages."""
  num_rows, budget = case.mask.shape
  prompts = Prompts(
    tokens=jnp.zeros((num_rows, 1), jnp.int32),
    mask=jnp.ones((num_rows, 1), bool),
    ids=jnp.arange(num_rows),
    extras={"domain": case.domain},
  )
  rollout = Rollout(
    tokens=jnp.zeros((num_rows, budget), jnp.int32),
    completion_mask=case.mask,
    behavior_logp=case.behavior_logp,
    sampler_logp=case.behavior_logp,
    entropy=case.behavior_entropy,
    terminated=case.terminated,
    prompt_index=jnp.arange(num_rows),
    group_id=case.group_id,
    num_groups=4,  # One more than exist.
    turn=case.turn,
    turn_rewards=case.turn_rewards,
    state_id=case.state_id,
    traces=traces,
    observed=observed,
  )
  components = dict(zip(COMPONENTS, case.components.T, strict=True))
  # In another order: components are looked up by name.
  weights = dict(
    reversed([*zip(COMPONENTS, map(jnp.float32, WEIGHTS), strict=True)])
  )
  scored = Scored(
    rewards=case.rewards,
    valid=case.valid,
    correct=case.correct,
    components=components,
    weights=weights,
    step_rewards=case.step_rewards,
    step_mask=case.step_mask,
  )
  greedy = dataclasses.replace(
    scored, rewards=case.greedy_rewards, valid=jnp.ones_like(case.valid)
  )
  _, state = objective.init(algorithm, config)
  state = jax.tree.map(lambda x: x.astype(case.logp.dtype), state)
  batch = objective.make_train_batch(
    algorithm, config, prompts, rollout, scored, state, greedy
  )
  required = options.needs(algorithm, config)
  old_logp = case.old_logp if use_anchor else jax.lax.stop_gradient(case.logp)
  frozen = {
    "old_logp": old_logp,
    "anchor.sum_pi_squared": case.sum_pi_squared,
    "answers.segment_end": case.segment_end,
    "answers.prefix_utility": case.prefix_utility,
    "scores.expected": case.expected,
    "reference.logp": case.ref_logp,
    "reference.topk_logp": derived(jnp, case.logp, case.ref_logp, case.values)[
      "ref_topk_logp"
    ],
    "critic.values": case.old_values,
    "critic.final_value": case.final_value,
    "key": key,
  }
  for name, need in needs_of(TrainBatch).items():
    if need not in required:  # As in a run.
      frozen.pop(name, None)
  batch = set_fields(batch, frozen)
  batch = objective.prepare(algorithm, config, batch)
  if not use_anchor:
    batch = set_fields(batch, {"old_logp": None})
  return batch


def terms_of(
  algorithm, config, arrays, use_anchor=True, splits=None, trainable=0.0
):
  """The value and gradients of the loss, with the critic's loss if needed.

  This is a function of arrays, not jitted.

  Args:
    algorithm: The algorithm of the table.
    config: Config of the algorithm.
    arrays: Arrays of a case.
    use_anchor: False takes the policy itself as the anchor (ratio 1).
    splits: Rows of each micro-batch; None: one micro-batch of all rows.
    trainable: Value of the algorithm's trainable parameters.
  """
  case = Case(**arrays)

  def loss(inputs, trainable):
    changed = dataclasses.replace(case, **inputs)
    batch = prepared(algorithm, config, changed, use_anchor, jax.random.key(0))
    initial, _ = algorithm.init(config)
    weights = objective.term_weights(algorithm, config, batch)
    # Computed from hidden states, which are finite also behind the mask.
    exists = (
      changed.mask & jnp.isfinite(changed.logp) & jnp.isfinite(changed.ref_logp)
    )
    more = derived(
      jnp,
      *(
        jnp.where(exists, x, 0)
        for x in (changed.logp, changed.ref_logp, changed.values)
      ),
    )
    more.pop("ref_topk_logp")
    values = more.pop("values")
    required = options.needs(algorithm, config)
    policy = {"logp": changed.logp, "entropy": changed.entropy, **more}
    for name, need in (
      needs_of(PolicyOutputs) | {"topk_logp": "ref_topk"}
    ).items():
      if need not in required:
        del policy[name]
    of_critic: Any = 0.0
    outputs = []
    for rows in splits or (slice(None),):
      rows = rows if isinstance(rows, slice) else np.array(rows)
      part = PolicyOutputs(
        **{name: x[rows] for name, x in policy.items()},
        trainable=jax.tree.map(
          lambda x: x.astype(case.logp.dtype) + trainable, initial
        ),
      )
      micro = set_fields(
        batch, jax.tree.map(lambda x, rows=rows: x[rows], row_arrays(batch))
      )
      outputs.append(objective.loss(algorithm, config, part, micro))
      if algorithm.critic_loss is not None:
        term = objective.critic_loss(algorithm, config, values[rows], micro)
        of_critic += term.total / objective.critic_weight(algorithm, batch)
    value = of_critic + sum(
      coefficient * term.total / weights[name]
      for output in outputs
      for name, (coefficient, term) in output.terms.items()
    )
    metrics = {
      name: functools.reduce(
        aggregation.combined, [output.metrics[name] for output in outputs]
      )
      for name in outputs[0].metrics
    }
    return value, (metrics, batch.advantages, batch.mask)

  inputs = {name: arrays[name] for name in ("logp", *CONSTANTS)}
  gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  trainable = jnp.asarray(trainable, case.logp.dtype)
  (value, aux), (gradients, slope) = gradient(inputs, trainable)
  return value, gradients, slope, *aux


_evaluate = jax.jit(terms_of, static_argnums=(0, 1, 3, 4))


@dataclasses.dataclass
class LossResult:
  """Loss, gradients and metrics of an algorithm on a case."""

  loss: np.ndarray  # []
  gradient: np.ndarray  # [B, T], with respect to logp
  constants: dict[str, np.ndarray]  # gradients that must be 0
  trainable: np.ndarray  # [], gradient of the algorithm's own parameter
  metrics: dict[str, float]
  advantages: np.ndarray  # [B] or [B, T]
  mask: np.ndarray  # [B, T], trained tokens


def arrays_of(case: Case) -> dict[str, jax.Array]:
  """The arrays of a case by name."""
  return {
    field.name: jnp.asarray(getattr(case, field.name))
    for field in dataclasses.fields(case)
  }


def evaluate(
  algorithm,
  config,
  case: Case,
  use_anchor: bool = True,
  splits=None,
  trainable: float = 0.0,
  function=_evaluate,
) -> LossResult:
  """Runs the objective on a case in one jitted call per algorithm."""
  value, gradients, slope, metrics, advantages, mask = jax.device_get(
    function(algorithm, config, arrays_of(case), use_anchor, splits, trainable)
  )
  return LossResult(
    loss=value,
    gradient=gradients.pop("logp"),
    constants=gradients,
    trainable=slope,
    metrics={
      name: float(
        x.value if isinstance(x, Maximum) else x.total / max(x.weight, 1)
      )
      for name, x in metrics.items()
    },
    advantages=advantages,
    mask=mask,
  )


evaluate_without_jit = functools.partial(evaluate, function=terms_of)
