"""One training step: sample, score, update, as named stages of one program.

`fused_step` is the whole step as a function from state to state, for
verifiers that are array functions. `sample_stage` and `learn_stage` are the
same stages with the host between them, for verifiers that need text; see
`drivers.py`. Everything that changes between steps is in `TrainState`,
everything fixed is in `Parts`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import logprobs, masked, routing
from grpo_jax.rollout import compaction, host_turns
from grpo_jax.training import metrics as metrics_lib
from grpo_jax.training import passes, rounds
from grpo_jax.training.micro_batches import UpdatePlan
from grpo_jax.types import (
  Algorithm,
  Critic,
  Metrics,
  Policy,
  PolicyOutputs,
  Prompts,
  PyTree,
  Rollout,
  Scored,
  TrainBatch,
  TrainState,
  row_arrays,
)


@dataclasses.dataclass(frozen=True)
class CriticParts:
  """What trains a critic beside the policy.

  Attributes:
    model: The critic.
    optimizer: Over `params["critic"]["trained"]`.
    schedule: (gradient step of the critic) -> learning rate.
    num_updates: K, its gradient steps for each one of the policy.
  """

  model: Critic
  optimizer: optax.GradientTransformation
  schedule: Callable[[jax.Array], jax.Array]
  num_updates: int = 1


@dataclasses.dataclass(frozen=True)
class Parts:
  """The fixed functions of a phase.

  Attributes:
    policy: The model.
    algorithm: The objective.
    config: Its config.
    optimizer: Over `trained_params(params)`.
    schedule: (gradient step) -> learning rate.
    plan: Epochs, minibatches, micro-batches.
    critic: What trains the critic, of algorithms that have one.
    trains_policy: Whether the policy is trained, or the critic alone.
    sample: (policy params, prompts, key) -> Rollout; None in phases whose
      completions are given.
    greedy: The same for the greedy completion of each prompt, if needed.
    turns: In the place of `sample`, where the environment is on the host.
    greedy_turns: The same of `greedy`.
    score: (prompts, rollout) -> Scored, in graph; None if the host scores.
    constrain_rows: Keeps row-indexed arrays sharded over the mesh.
    constrain_trained: Keeps trees like `trained_params(params)` so.
    num_samples: Rows of each step that are handed out for inspection.
    max_rounds: R. A step gets R · P prompts and trains on P groups, which it
      draws in up to R rounds; see `rounds.py`.
    staleness: Updates between the parameters that draw a rollout and those
      that it trains, at most.
  """

  policy: Policy
  algorithm: Algorithm
  config: Any
  optimizer: optax.GradientTransformation
  schedule: Callable[[jax.Array], jax.Array]
  plan: UpdatePlan
  critic: CriticParts | None = None
  trains_policy: bool = True
  sample: Callable[[PyTree, Prompts, jax.Array], Rollout] | None = None
  greedy: Callable[[PyTree, Prompts, jax.Array], Rollout] | None = None
  turns: host_turns.HostTurns | None = None
  greedy_turns: host_turns.HostTurns | None = None
  score: Callable[[Prompts, Rollout], Scored] | None = None
  constrain_rows: Callable[[PyTree], PyTree] = lambda rows: rows
  constrain_trained: Callable[[PyTree], PyTree] = lambda trained: trained
  num_samples: int = 4
  max_rounds: int = 1
  staleness: int = 0

  def __post_init__(self):
    required = options.needs(self.algorithm, self.config)
    if required & {"routing", "router"} and not self.policy.num_experts:
      raise ValueError(
        f"algorithm {self.algorithm.name!r}: keep_routing, balance_coef and"
        " router_bias_step are about experts, and the model has none; leave"
        " them out, or use a model with experts (config.model.num_experts)."
      )


def trained_params(params: PyTree) -> PyTree:
  """The leaves that the gradient of the objective is taken of."""
  return {
    "policy": params["policy"]["trained"],
    "algorithm": params["algorithm"],
  }


def with_trained(params: PyTree, trained: PyTree) -> PyTree:
  """`params` with these leaves replaced."""
  return {
    **params,
    "policy": {**params["policy"], "trained": trained["policy"]},
    "algorithm": trained["algorithm"],
  }


def reference_params(state: TrainState) -> PyTree:
  """The reference policy, with what it shares with the policy; or None."""
  if state.ref_params is None:
    return None
  shared = state.params["policy"]["frozen"]
  return {
    **state.ref_params,
    "frozen": {**shared, **state.ref_params["frozen"]},
  }


def step_keys(
  state: TrainState, ahead: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
  """(rollout key, update key): functions of (seed, step) only.

  Args:
    state: Before a step.
    ahead: Steps from that one to the one whose keys they are.
  """
  rollout_key, update_key = jax.random.split(
    jax.random.fold_in(state.key, state.step + ahead)
  )
  return rollout_key, update_key


def policy_outputs(
  parts: Parts,
  params: PyTree,
  batch: TrainBatch,
  ref_params: PyTree,
  prefix: PyTree = None,
) -> PolicyOutputs:
  """What the loss reads of the policy with these parameters.

  Args:
    parts: Functions of the phase.
    params: All parameters.
    batch: The rows.
    ref_params: The reference's, for a KL over the whole vocabulary.
    prefix: Of the prompts, if their rows share it; see `Policy`.
  """
  required = options.needs(parts.algorithm, parts.config)
  h, aux = passes.Trunk(parts.policy, params["policy"]).hidden(batch, prefix)
  reference = None
  if "ref_kl" in required:
    reference = functools.partial(parts.policy.head, ref_params), batch.ref_h
  outputs = logprobs.token_outputs(
    functools.partial(parts.policy.head, params["policy"]),
    h,
    batch.tokens,
    temperature=parts.plan.temperature,
    with_entropy="entropy" in required,
    kept_ids=batch.kept_ids,
    topk_ids=batch.ref_topk_ids,
    reference=reference,
    reference_beta=parts.config.jsd_beta,
    chunk_bytes=parts.plan.chunk_bytes,
  )  # [B, T]
  present = {
    name: value
    for name in ("entropy", "topk_logp", "ref_kl")
    if (value := getattr(outputs, name)) is not None
  }
  return PolicyOutputs(
    logp=outputs.logp, aux=aux, trainable=params["algorithm"], **present
  )


def _frozen(
  parts: Parts,
  trunk: passes.Trunk,
  batch: TrainBatch,
  outputs: Callable[[TrainBatch, PyTree], dict[str, jax.Array]],
) -> TrainBatch:
  """`batch` with fields from a pass that no gradient enters."""
  return passes.frozen(
    parts.plan, trunk, batch, outputs, parts.algorithm.couples_group
  )


def with_anchor(parts: Parts, params: PyTree, batch: TrainBatch) -> TrainBatch:
  """`batch` with what the policy said of its tokens before the update."""
  required = options.needs(parts.algorithm, parts.config)
  squares = "sum_pi_squared" in required
  trunk = passes.Trunk(parts.policy, params["policy"])

  def outputs(part, prefix):
    h, aux = trunk.hidden(part, prefix)
    old = logprobs.token_outputs(
      functools.partial(parts.policy.head, params["policy"]),
      h,
      part.tokens,
      temperature=parts.plan.temperature,
      with_sum_pi_squared=squares,
      kept_ids=part.kept_ids,
      chunk_bytes=parts.plan.chunk_bytes,
    )
    fields = {"old_logp": old.logp}
    if "router" in required:
      fields["anchor_routing"] = aux.ids
    return fields | ({"sum_pi_squared": old.sum_pi_squared} if squares else {})

  with jax.named_scope("anchor"):
    return _frozen(parts, trunk, batch, outputs)


def with_reference(
  parts: Parts, ref_params: PyTree, batch: TrainBatch
) -> TrainBatch:
  """`batch` with what the frozen reference says of its tokens."""
  required = options.needs(parts.algorithm, parts.config)
  head = functools.partial(parts.policy.head, ref_params)
  trunk = passes.Trunk(parts.policy, ref_params, is_free=True)

  def outputs(part, prefix):
    h, _ = trunk.hidden(part, prefix)
    fields = {
      "ref_logp": logprobs.token_outputs(
        head,
        h,
        part.tokens,
        temperature=parts.plan.temperature,
        kept_ids=part.kept_ids,
        chunk_bytes=parts.plan.chunk_bytes,
      ).logp
    }
    if "ref_kl" in required:  # Its logits are made again, chunk by chunk.
      fields["ref_h"] = h
    if "ref_topk" in required:
      vocab_size = jax.eval_shape(head, h).shape[-1]
      fields["ref_topk_ids"], fields["ref_topk_logp"] = logprobs.reference_topk(
        head,
        h,
        min(parts.config.topk, vocab_size),
        temperature=parts.plan.temperature,
        chunk_bytes=parts.plan.chunk_bytes,
      )
    return fields

  with jax.named_scope("reference"):
    return _frozen(parts, trunk, batch, outputs)


def critic_trunk(critic: Critic, params: PyTree) -> passes.Trunk:
  """What the rows are run through for their values.

  Args:
    critic: Of the phase.
    params: All parameters.
  """
  return passes.Trunk(
    critic.trunk,
    critic.trunk_params(params["critic"], params["policy"]),
    is_free=not critic.is_shared,
  )


def with_values(parts: Parts, params: PyTree, batch: TrainBatch) -> TrainBatch:
  """`batch` with what the critic expects before the update."""
  assert parts.critic is not None
  critic = parts.critic.model
  trunk = critic_trunk(critic, params)

  def outputs(part, prefix):
    h, _ = trunk.hidden(part, prefix)
    return {"values": critic.head(params["critic"], h)}

  with jax.named_scope("values"):
    return _frozen(parts, trunk, batch, outputs)


def prepare(
  state: TrainState, batch: TrainBatch, key: jax.Array, *, parts: Parts
) -> TrainBatch:
  """Frozen log-probs, advantages, and whatever else couples rows.

  Args:
    state: Before the update.
    batch: B rows with rewards.
    key: For what the algorithm draws.
    parts: Functions of the phase.
  """
  required = options.needs(parts.algorithm, parts.config)
  if "ref_logp" in required:
    batch = with_reference(parts, reference_params(state), batch)
  if "anchor" in required or (
    "old_logp" in required and parts.plan.num_updates > 1
  ):
    batch = with_anchor(parts, state.params, batch)
  if "values" in required:
    batch = with_values(parts, state.params, batch)
  with jax.named_scope("advantages"):
    batch = objective.prepare(
      parts.algorithm, parts.config, dataclasses.replace(batch, key=key)
    )
  if "router" in required:  # After rejection: of what is trained.
    load = routing.load(
      batch.anchor_routing, batch.mask, parts.policy.num_experts
    )
    fields: dict[str, Any] = {
      "anchor_routing": None,
      "router_load": load.total / jnp.maximum(load.weight, 1),
    }
    batch = dataclasses.replace(batch, **fields)
  return batch


def minibatch_gradient(
  parts: Parts,
  params: PyTree,
  batch: TrainBatch,
  is_first: jax.Array | bool,
  ref_params: PyTree = None,
) -> tuple[PyTree, Metrics]:
  """Exact gradient of the loss over `batch`, a micro-batch at a time.

  Denominators are summed over all rows first; each micro-batch then adds
  coefficient · total / denominator. The result depends on the split by
  round-off only.

  Args:
    parts: Functions of the phase.
    params: All parameters.
    batch: The rows of one gradient step, prepared.
    is_first: True in the first gradient step of a batch, whose anchor is its
      own forward pass, so that every ratio is exactly 1.
    ref_params: Of the reference policy, where there is one.
  """
  algorithm, config, plan = parts.algorithm, parts.config, parts.plan
  weights = objective.term_weights(algorithm, config, batch)

  def loss(trained, prefix, part):
    outputs = policy_outputs(
      parts, with_trained(params, trained), part, ref_params, prefix
    )
    if part.old_logp is not None:
      own = jax.lax.stop_gradient(outputs.logp)
      part = dataclasses.replace(
        part, old_logp=jnp.where(is_first, own, part.old_logp)
      )
    output = objective.loss(algorithm, config, outputs, part)
    terms = {
      name: coefficient * term.total / weights[name]
      for name, (coefficient, term) in output.terms.items()
    }
    return sum(terms.values()), (terms, output.metrics, output.maxima)

  with jax.named_scope("update"):
    total = passes.gradient(
      plan,
      lambda trained: passes.Trunk(
        parts.policy, with_trained(params, trained)["policy"]
      ),
      trained_params(params),
      batch,
      loss,
      algorithm.couples_group,
      parts.constrain_trained,
    )
  metrics = {f"loss/{name}": term for name, term in total.terms.items()}
  loss_value: Any = sum(total.terms.values())
  metrics["loss"] = loss_value
  metrics |= {
    name: value.total / jnp.maximum(value.weight, 1)
    for name, value in total.metrics.items()
  }
  if "router/load" in metrics:
    metrics |= metrics_lib.router_metrics(metrics.pop("router/load"))
  return total.gradients, metrics | total.maxima


def critic_gradient(
  parts: Parts, params: PyTree, batch: TrainBatch
) -> tuple[PyTree, jax.Array]:
  """Exact gradient of the critic's loss over `batch`, and the loss.

  Args:
    parts: Functions of the phase.
    params: All parameters.
    batch: The rows of one gradient step, prepared.
  """
  algorithm, config = parts.algorithm, parts.config
  assert parts.critic is not None
  critic = parts.critic.model
  weight = objective.critic_weight(algorithm, batch)

  def loss(trained, prefix, part):
    changed = _with_critic(params, trained)
    h, _ = critic_trunk(critic, changed).hidden(part, prefix)
    values = critic.head(changed["critic"], h)
    term = objective.critic_loss(algorithm, config, values, part)
    value = term.total / weight
    return value, ({"value": value}, {}, {})

  with jax.named_scope("critic"):
    total = passes.gradient(
      parts.plan,
      lambda trained: critic_trunk(critic, _with_critic(params, trained)),
      params["critic"]["trained"],
      batch,
      loss,
      algorithm.couples_group,
      lambda trained: parts.constrain_trained({"critic": trained})["critic"],
      enters_trunk=not critic.is_shared,
    )
  return total.gradients, total.terms["value"]


def _with_critic(params: PyTree, trained: PyTree) -> PyTree:
  """`params` with the critic's trained leaves replaced."""
  return {**params, "critic": {**params["critic"], "trained": trained}}


def _policy_step(
  parts: Parts,
  params: PyTree,
  opt_state: PyTree,
  batch: TrainBatch,
  is_first: jax.Array | bool,
  ref_params: PyTree,
) -> tuple[PyTree, PyTree, Metrics]:
  """One gradient step of the policy: parameters, optimizer state, metrics."""
  gradients, metrics = minibatch_gradient(
    parts, params, batch, is_first, ref_params
  )
  trained = trained_params(params)
  with jax.named_scope("optimizer"):
    updates, opt_state = parts.optimizer.update(gradients, opt_state, trained)
    metrics["gradient_norm"] = optax.global_norm(masked.wide(gradients))
    metrics["update_norm"] = optax.global_norm(masked.wide(updates))
    trained = optax.apply_updates(trained, updates)
  return with_trained(params, trained), opt_state, metrics


def _critic_steps(
  parts: Parts, params: PyTree, opt_state: PyTree, batch: TrainBatch
) -> tuple[PyTree, PyTree, Metrics]:
  """K gradient steps of the critic, and what they say on average."""
  critic = parts.critic
  assert critic is not None

  def one(carry, _):
    trained, opt_state = carry
    gradients, loss = critic_gradient(
      parts, _with_critic(params, trained), batch
    )
    with jax.named_scope("optimizer"):
      updates, opt_state = critic.optimizer.update(
        gradients, opt_state, trained
      )
      metrics = {
        "value/loss": loss,
        "value/gradient_norm": optax.global_norm(masked.wide(gradients)),
        "value/update_norm": optax.global_norm(masked.wide(updates)),
      }
      trained = optax.apply_updates(trained, updates)
    return (trained, opt_state), metrics

  carry = params["critic"]["trained"], opt_state
  if critic.num_updates == 0:
    return params, opt_state, {}
  if critic.num_updates == 1:
    (trained, opt_state), metrics = one(carry, None)
  else:
    (trained, opt_state), history = jax.lax.scan(
      one, carry, length=critic.num_updates
    )
    metrics = {name: values.mean() for name, values in history.items()}
  return _with_critic(params, trained), opt_state, metrics


def update(
  state: TrainState, batch: TrainBatch, key: jax.Array, *, parts: Parts
) -> tuple[TrainState, Metrics]:
  """All gradient steps on one batch: epochs × minibatches × micro-batches.

  Args:
    state: Before the update.
    batch: B rows, prepared.
    key: Orders the groups into minibatches (unused with one minibatch).
    parts: Functions of the phase.

  Returns:
    The state one step on, and metrics averaged over the gradient steps
    (maxima: the largest); those over tokens are NaN where none is trained.
  """
  plan = parts.plan

  def gradient_step(carry, inputs):
    params, opt_state, critic_opt_state = carry
    params = _joined(state.params, params)
    rows, is_first = inputs
    minibatch = batch
    if plan.num_minibatches > 1:
      arrays = jax.tree.map(lambda x: x[rows], row_arrays(batch))
      if plan.num_shards > 1:
        arrays = parts.constrain_rows(arrays)
      minibatch = dataclasses.replace(batch, **arrays)
    metrics: Metrics = {}
    if parts.trains_policy:
      params, opt_state, metrics = _policy_step(
        parts,
        params,
        opt_state,
        minibatch,
        is_first,
        reference_params(state),
      )
    if parts.critic is not None:
      params, critic_opt_state, of_critic = _critic_steps(
        parts, params, critic_opt_state, minibatch
      )
      metrics |= of_critic
    return (_moving(params), opt_state, critic_opt_state), metrics

  num_rows = batch.mask.shape[0]
  if plan.num_minibatches > 1:
    orders = [
      jax.random.permutation(
        jax.random.fold_in(key, epoch),
        jnp.arange(num_rows).reshape(-1, plan.group_size),
      )
      for epoch in range(plan.num_epochs)
    ]
    rows = jnp.stack(orders).reshape(plan.num_updates, -1)
  else:
    rows = jnp.zeros((plan.num_updates, 0), jnp.int32)
  carry = _moving(state.params), state.opt_state, state.critic_opt_state
  if plan.num_updates == 1:
    carry, metrics = gradient_step(carry, (rows[0], True))
  else:
    carry, history = jax.lax.scan(
      gradient_step, carry, (rows, jnp.arange(plan.num_updates) == 0)
    )
    metrics = {
      name: values.max() if "max" in name.split("/")[-1] else values.mean()
      for name, values in history.items()
    }
  moved, opt_state, critic_opt_state = carry
  params = _joined(state.params, moved)
  num_before = state.phase_step * plan.num_updates
  ema_params = state.ema_params
  if parts.trains_policy:
    metrics["param_norm"] = _norm(params["policy"])
    metrics["learning_rate"] = jnp.asarray(
      parts.schedule(num_before), jnp.float32
    )
    if plan.ema_decay is not None:
      ema_params = optax.incremental_update(
        params["policy"]["trained"], ema_params, 1 - plan.ema_decay
      )
    if parts.config.router_bias_step > 0:
      params = _with_biases(params, batch.router_load, parts.config)
  if parts.critic is not None:
    num_before *= parts.critic.num_updates
    metrics["value/param_norm"] = _norm(params["critic"])
    metrics["value/learning_rate"] = jnp.asarray(
      parts.critic.schedule(num_before), jnp.float32
    )
  return dataclasses.replace(
    state,
    step=state.step + 1,
    phase_step=state.phase_step + 1,
    params=params,
    opt_state=opt_state,
    ema_params=ema_params,
    critic_opt_state=critic_opt_state,
  ), metrics_lib.of_trained(metrics, batch.mask)


def _moving(params: PyTree) -> PyTree:
  """What gradient steps change of all parameters."""
  moving = trained_params(params)
  if "critic" in params:
    moving["critic"] = params["critic"]["trained"]
  return moving


def _joined(params: PyTree, moving: PyTree) -> PyTree:
  """The inverse: `params` with what has moved."""
  params = with_trained(params, moving)
  if "critic" in moving:
    params = _with_critic(params, moving["critic"])
  return params


def _norm(params: PyTree) -> jax.Array:
  return optax.global_norm(masked.wide(params["trained"]))


def _with_biases(params: PyTree, load: jax.Array, config: Any) -> PyTree:
  """`params` with the routers' biases moved against the load [layers, E]."""
  frozen = params["policy"]["frozen"]
  if "router_bias" not in frozen:
    raise ValueError(
      f"router_bias_step={config.router_bias_step} moves the biases of the"
      " routers, and the model has none; set config.model.router_bias=True, or"
      " leave it 0."
    )
  missing = 1 / load.shape[-1] - load
  bias = frozen["router_bias"] + config.router_bias_step * jnp.sign(missing)
  policy = {**params["policy"], "frozen": {**frozen, "router_bias": bias}}
  return {**params, "policy": policy}


def sample_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  *,
  parts: Parts,
) -> Rollout:
  """Completions of the prompts under the current policy.

  Args:
    state: Before a step.
    prompts: Of that step or a later one.
    ahead: How many steps later; the draws are those of the prompts' step.
    parts: Functions of the phase.
  """
  assert parts.sample is not None
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("rollout"):
    rollout = parts.sample(state.params["policy"], prompts, rollout_key)
  return with_version(state, rollout)


def with_version(state: TrainState, rollout: Rollout) -> Rollout:
  """A rollout with the step of the state that drew it."""
  version = jnp.where(rollout.completion_mask, state.step, 0)  # [B, T]
  return dataclasses.replace(rollout, version=version)


def greedy_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  *,
  parts: Parts,
) -> Rollout | None:
  """The greedy completion of each prompt, if the algorithm needs it."""
  if parts.greedy is None:
    return None
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("greedy"):
    rollout = parts.greedy(state.params["policy"], prompts, rollout_key)
    return compaction.last_rows(rollout)


def learn_stage(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  greedy: Scored | None = None,
  *,
  parts: Parts,
) -> tuple[TrainState, Metrics, PyTree]:
  """Advantages and update from a scored rollout; jit with donated state.

  Returns:
    The next state, the metrics, and the first `num_samples` rows for
    inspection.
  """
  batch = objective.make_train_batch(
    parts.algorithm,
    parts.config,
    prompts,
    rollout,
    scored,
    state.algorithm_state,
    greedy,
  )
  batch = dataclasses.replace(batch, **parts.constrain_rows(row_arrays(batch)))
  _, update_key = step_keys(state)
  order_key, draw_key = jax.random.split(update_key)
  batch = prepare(state, batch, draw_key, parts=parts)
  metrics = metrics_lib.rollout_metrics(rollout, scored, batch)
  if batch.values is not None:
    metrics |= metrics_lib.critic_metrics(batch)
  if parts.staleness:
    metrics |= metrics_lib.staleness_metrics(rollout, state.step)
  state, update_metrics = update(state, batch, order_key, parts=parts)
  metrics |= update_metrics
  if parts.trains_policy:
    state = dataclasses.replace(
      state,
      algorithm_state=objective.update_state(
        parts.algorithm,
        parts.config,
        state.algorithm_state,
        metrics,
        rollout.is_last.sum(),
      ),
    )
  samples = jax.tree.map(
    lambda x: x[: parts.num_samples],
    {
      "tokens": rollout.tokens,
      "mask": rollout.completion_mask,
      "prompt_id": prompts.ids[rollout.prompt_index],
      "reward": scored.rewards,
      "valid": scored.valid,
      "correct": scored.correct,
      "components": scored.components,
    },
  )
  return state, metrics, samples


def draw_stage(
  state: TrainState, prompts: Prompts, *, parts: Parts
) -> rounds.Groups:
  """Completions of the prompts, and what the in-graph verifier says of them."""
  assert parts.score is not None
  rollout = sample_stage(state, prompts, parts=parts)
  greedy = greedy_stage(state, prompts, parts=parts)
  with jax.named_scope("verifier"):
    scored = parts.score(prompts, rollout)
    baseline = None if greedy is None else parts.score(prompts, greedy)
  return rounds.Groups(prompts, rollout, scored, baseline)


def fused_step(
  state: TrainState, prompts: Prompts, *, parts: Parts
) -> tuple[TrainState, Metrics, PyTree]:
  """Samples, scores and updates once; jit with `donate_argnums=0`."""
  draw = functools.partial(draw_stage, state, parts=parts)
  if parts.max_rounds == 1:
    groups, drawn = draw(prompts), {}
  else:
    collected = rounds.collect(
      draw, prompts, parts.max_rounds, parts.constrain_rows
    )
    groups, drawn = collected.groups, rounds.metrics(collected)
  state, metrics, samples = learn_stage(
    state,
    groups.prompts,
    groups.rollout,
    groups.scored,
    groups.greedy,
    parts=parts,
  )
  return state, metrics | drawn, samples


def supervised_step(
  state: TrainState, batch: TrainBatch, *, parts: Parts
) -> tuple[TrainState, Metrics]:
  """One update on given completions; jit with `donate_argnums=0`."""
  batch = dataclasses.replace(batch, **parts.constrain_rows(row_arrays(batch)))
  _, update_key = step_keys(state)
  order_key, draw_key = jax.random.split(update_key)
  batch = prepare(state, batch, draw_key, parts=parts)
  state, metrics = update(state, batch, order_key, parts=parts)
  metrics["tokens/trained"] = batch.mask.sum().astype(jnp.float32)
  return state, metrics
