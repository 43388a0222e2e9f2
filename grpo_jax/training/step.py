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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import logprobs, masked, routing
from grpo_jax.training import metrics as metrics_lib
from grpo_jax.training import micro_batches, rounds
from grpo_jax.training.micro_batches import UpdatePlan
from grpo_jax.types import (
  Algorithm,
  Metrics,
  Policy,
  PolicyOutputs,
  Prompts,
  PyTree,
  Rollout,
  Scored,
  TrainBatch,
  TrainState,
  Weighted,
  row_arrays,
)


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
    sample: (policy params, prompts, key) -> Rollout; None in phases whose
      completions are given.
    greedy: The same for the greedy completion of each prompt, if needed.
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
  sample: Callable[[PyTree, Prompts, jax.Array], Rollout] | None = None
  greedy: Callable[[PyTree, Prompts, jax.Array], Rollout] | None = None
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
  """The leaves that gradients and optimizer state exist for."""
  return {
    "policy": params["policy"]["trained"],
    "algorithm": params["algorithm"],
  }


def with_trained(params: PyTree, trained: PyTree) -> PyTree:
  """`params` with its trained leaves replaced."""
  return {
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


def _extras(batch: TrainBatch, free: bool) -> dict[str, jax.Array] | None:
  """The experts that the batch recorded, if any, unless tokens are `free`."""
  if batch.routing is None or free:
    return None
  return {"prompt_routing": batch.prompt_routing, "routing": batch.routing}


def _prefixes(
  parts: Parts,
  policy_params: PyTree,
  batch: TrainBatch,
  prompts: dict[str, jax.Array],
  free: bool = False,
) -> PyTree:  # each [N, D, P / D, ...]
  """What rows read of their prompts, if they share it and there is any."""
  if not parts.plan.shares_prompts:
    return None

  def of_chunk(chunk):
    return _prefix(parts, policy_params, batch, chunk, free)

  chunks = micro_batches.split_prompts(parts.plan, prompts)
  if len(chunks["prompt_tokens"]) == 1:
    prefix = jax.tree.map(
      lambda x: x[None], of_chunk(jax.tree.map(lambda x: x[0], chunks))
    )
  else:
    prefix = jax.lax.map(of_chunk, chunks)
  return micro_batches.joined_prompts(parts.plan, prefix, axis=1)


def _prefix(parts, policy_params, batch, prompts, free=False):
  extras = _extras(dataclasses.replace(batch, **prompts), free)
  return parts.policy.prefix(
    policy_params, prompts["prompt_tokens"], prompts["prompt_mask"], extras
  )


def _hidden(
  parts: Parts,
  policy_params: PyTree,
  batch: TrainBatch,
  prefix: PyTree,
  free: bool = False,
):
  """Teacher-forced states of the rows of `batch`, and what came with them."""
  return parts.policy.hidden(
    policy_params,
    batch.prompt_tokens,
    batch.prompt_mask,
    batch.tokens,
    batch.completion_mask,
    batch.prompt_index,
    _extras(batch, free),
    prefix,
  )  # [B, T, D]


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
  h, aux = _hidden(parts, params["policy"], batch, prefix)
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
  policy_params: PyTree,
  batch: TrainBatch,
  outputs: Callable[[TrainBatch, PyTree], dict[str, jax.Array]],
  free: bool = False,
) -> TrainBatch:
  """`batch` with fields from a micro-batched pass that no gradient enters.

  The same functions at the same shapes as in the update, so that the anchor
  of the ratio carries the same rounding. Slots that are not trained may be 0.
  """
  plan = parts.plan
  num_slots = batch.mask.shape[1]
  local, prompts = micro_batches.own_prompts(plan, batch)
  prefixes = _prefixes(parts, policy_params, batch, prompts, free)
  rows = micro_batches.arrange(plan, local, parts.algorithm.couples_group)

  def of_rows(part):
    return outputs(*_with_prompts(parts, part, prompts, prefixes))

  def write(fields, part, first):
    def put(buffer, x):
      x = x.reshape(plan.num_shards, -1, *x.shape[1:]).astype(buffer.dtype)
      start = 0, first, *[0] * (buffer.ndim - 2)
      return jax.lax.dynamic_update_slice(buffer, x, start)

    return jax.tree.map(put, fields, of_rows(part))

  shape = *rows.length.shape, num_slots
  fields = jax.tree.map(
    lambda x: jnp.zeros((*shape, *x.shape[2:]), x.dtype),
    jax.eval_shape(of_rows, local),
  )
  fields = micro_batches.sweep(plan, local, rows, write, fields)
  fields = {name: micro_batches.restored(rows, x) for name, x in fields.items()}
  return dataclasses.replace(batch, **jax.lax.stop_gradient(fields))


def _with_prompts(parts, part, prompts, prefixes):
  """A micro-batch that has what it reads of prompts, and its prefixes."""
  if not parts.plan.shares_prompts:
    return part, None
  return micro_batches.with_prompts(parts.plan, part, prompts, prefixes)


def with_anchor(parts: Parts, params: PyTree, batch: TrainBatch) -> TrainBatch:
  """`batch` with what the policy said of its tokens before the update."""
  required = options.needs(parts.algorithm, parts.config)
  squares = "sum_pi_squared" in required

  def outputs(part, prefix):
    h, aux = _hidden(parts, params["policy"], part, prefix)
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
    return _frozen(parts, params["policy"], batch, outputs)


def with_reference(
  parts: Parts, ref_params: PyTree, batch: TrainBatch
) -> TrainBatch:
  """`batch` with what the frozen reference says of its tokens."""
  required = options.needs(parts.algorithm, parts.config)
  head = functools.partial(parts.policy.head, ref_params)

  def outputs(part, prefix):
    h, _ = _hidden(parts, ref_params, part, prefix, free=True)
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
    return _frozen(parts, ref_params, batch, outputs, free=True)


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


class _Total(NamedTuple):
  """What micro-batches add up to."""

  gradients: PyTree
  terms: dict[str, jax.Array]
  metrics: dict[str, Weighted]
  maxima: dict[str, jax.Array]  # Combined by maximum.
  of_prefixes: PyTree  # The gradient that prompts receive from their rows.


def _sum(x: PyTree, y: PyTree) -> PyTree:
  """x + y in the dtypes of x."""
  return jax.tree.map(lambda x, y: x + y.astype(x.dtype), x, y)


def _plus(total: _Total | None, new: _Total) -> _Total:
  if total is None:
    return new
  added = _sum(total._replace(maxima={}), new._replace(maxima={}))
  return added._replace(
    maxima=jax.tree.map(jnp.maximum, total.maxima, new.maxima)
  )


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

  Where rows share prompts, these are run once forward before all rows; and
  once more, with the backward pass, after them: with what their rows add up
  to, at least in float32.

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

  gradient = jax.grad(loss, (0, 1), has_aux=True)
  trained = trained_params(params)
  local, prompts = micro_batches.own_prompts(plan, batch)

  def with_rows(total, part, first):
    del first
    index = part.prompt_index
    part, prefix = _with_prompts(parts, part, prompts, prefixes)
    (gradients, of_rows), (terms, metrics, maxima) = gradient(
      trained, prefix, part
    )
    gradients = parts.constrain_trained(gradients)
    of_prefixes = micro_batches.summed_over_rows(plan, index, of_rows, prefixes)
    new = _Total(gradients, terms, metrics, maxima, of_prefixes)
    return _plus(total, new)

  def with_prompts(gradients, inputs):
    chunk, of_chunk = inputs
    chunk_prefix, pull_back = jax.vjp(
      lambda trained: _prefix(
        parts, with_trained(params, trained)["policy"], batch, chunk
      ),
      trained,
    )
    (of_prompts,) = pull_back(
      jax.tree.map(lambda x, y: x.astype(y.dtype), of_chunk, chunk_prefix)
    )
    return _sum(gradients, parts.constrain_trained(of_prompts))

  with jax.named_scope("update"):
    prefixes = _prefixes(parts, params["policy"], batch, prompts)
    rows = micro_batches.arrange(plan, local, algorithm.couples_group)
    total = None  # Of one micro-batch, which keeps the dtypes of parameters.
    if batch.mask.shape[0] > plan.micro_batch_size or rows.order is not None:
      total = masked.wide(
        jax.tree.map(
          lambda x: jnp.zeros(x.shape, x.dtype),
          jax.eval_shape(with_rows, None, local, 0),
        )
      )
      total = total._replace(gradients=parts.constrain_trained(total.gradients))
    total = micro_batches.sweep(plan, local, rows, with_rows, total)
    gradients = total.gradients
    if prefixes is not None:
      chunks = micro_batches.split_prompts(plan, prompts)
      of_chunks = micro_batches.split_prompts(plan, total.of_prefixes, axis=1)
      gradients = _over(with_prompts, gradients, (chunks, of_chunks))
  metrics = {f"loss/{name}": term for name, term in total.terms.items()}
  metrics["loss"] = sum(total.terms.values())
  metrics |= {
    name: value.total / jnp.maximum(value.weight, 1)
    for name, value in total.metrics.items()
  }
  if "router/load" in metrics:
    metrics |= metrics_lib.router_metrics(metrics.pop("router/load"))
  return gradients, metrics | total.maxima


def _over(
  function: Callable[[Any, PyTree], Any], total: Any, inputs: PyTree
) -> Any:
  """The last total, from function(total, x) over the leading axis of inputs."""
  if jax.tree.leaves(inputs)[0].shape[0] == 1:
    return function(total, jax.tree.map(lambda x: x[0], inputs))
  return jax.lax.scan(lambda t, x: (function(t, x), None), total, inputs)[0]


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
    (maxima: the largest).
  """
  plan = parts.plan

  def gradient_step(carry, inputs):
    trained, opt_state = carry
    rows, is_first = inputs
    minibatch = batch
    if plan.num_minibatches > 1:
      arrays = jax.tree.map(lambda x: x[rows], row_arrays(batch))
      if plan.num_shards > 1:
        arrays = parts.constrain_rows(arrays)
      minibatch = dataclasses.replace(batch, **arrays)
    params = with_trained(state.params, trained)
    gradients, metrics = minibatch_gradient(
      parts, params, minibatch, is_first, reference_params(state)
    )
    with jax.named_scope("optimizer"):
      updates, opt_state = parts.optimizer.update(gradients, opt_state, trained)
      metrics["gradient_norm"] = optax.global_norm(masked.wide(gradients))
      metrics["update_norm"] = optax.global_norm(masked.wide(updates))
      trained = optax.apply_updates(trained, updates)
    return (trained, opt_state), metrics

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
  trained = trained_params(state.params)
  if plan.num_updates == 1:
    (trained, opt_state), metrics = gradient_step(
      (trained, state.opt_state), (rows[0], True)
    )
  else:
    (trained, opt_state), history = jax.lax.scan(
      gradient_step,
      (trained, state.opt_state),
      (rows, jnp.arange(plan.num_updates) == 0),
    )
    metrics = {
      name: values.max() if "max" in name.split("/")[-1] else values.mean()
      for name, values in history.items()
    }
  metrics["param_norm"] = optax.global_norm(masked.wide(trained["policy"]))
  metrics["learning_rate"] = jnp.asarray(
    parts.schedule(state.phase_step * plan.num_updates), jnp.float32
  )
  ema_params = state.ema_params
  if plan.ema_decay is not None:
    ema_params = optax.incremental_update(
      trained["policy"], ema_params, 1 - plan.ema_decay
    )
  params = with_trained(state.params, trained)
  if parts.config.router_bias_step > 0:
    params = _with_biases(params, batch.router_load, parts.config)
  return dataclasses.replace(
    state,
    step=state.step + 1,
    phase_step=state.phase_step + 1,
    params=params,
    opt_state=opt_state,
    ema_params=ema_params,
  ), metrics


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
    return parts.greedy(state.params["policy"], prompts, rollout_key)


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
  if parts.staleness:
    metrics |= metrics_lib.staleness_metrics(rollout, state.step)
  state, update_metrics = update(state, batch, order_key, parts=parts)
  metrics |= update_metrics
  state = dataclasses.replace(
    state,
    algorithm_state=objective.update_state(
      parts.algorithm,
      parts.config,
      state.algorithm_state,
      metrics,
      batch.mask.shape[0],
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
