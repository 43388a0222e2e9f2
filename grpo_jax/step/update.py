"""The update: exact gradients of every loss, and steps of the optimizers.

A `Loss` names the models that it trains. The update runs all losses of a phase
over each minibatch, one after another, a micro-batch at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import aggregation, divergences, logprobs, masked
from grpo_jax.ops import values as values_lib
from grpo_jax.step import metrics as metrics_lib
from grpo_jax.step import models, passes
from grpo_jax.step.metrics import Mean
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import Model, Params
from grpo_jax.types import (
  Algorithm,
  Critic,
  Maximum,
  Metrics,
  Policy,
  PolicyOutputs,
  PyTree,
  TrainBatch,
  TrainState,
  Weighted,
  row_arrays,
  set_fields,
)


class Loss(Protocol):
  """A loss of the trained parameters of one or more models."""

  @property
  def trains(self) -> tuple[str, ...]:
    """Names of the models whose trained leaves have gradients.

    The first of them runs over the rows.
    """

  @property
  def prefix(self) -> str:
    """The beginning of its metrics' names."""

  @property
  def scope(self) -> str:
    """The loss's name in profiles and reports."""

  @property
  def num_updates(self) -> int:
    """K, the gradient steps on each minibatch; may be 0."""

  @property
  def enters_trunk(self) -> bool:
    """True if the loss has a gradient with respect to the trunk."""

  def view(self, params: Params) -> models.ModelView:
    """The model that runs over the rows, from the parameters of all models."""

  def value(
    self, params: Params, batch: TrainBatch, is_first: jax.Array | bool
  ) -> Callable[[Params, PyTree, TrainBatch], tuple[jax.Array, Any]]:
    """The loss function of the micro-batches of a minibatch.

    Args:
      params: Parameters of all models before the gradient step.
      batch: The minibatch, over which denominators are summed.
      is_first: True in the first gradient step of a batch.

    Returns:
      (parameters of all models, prefix, micro-batch) -> the micro-batch's part
      of the loss, and (terms, metrics).
    """

  def metrics(self, total: passes.Total) -> metrics_lib.StepMetrics:
    """The metrics of a gradient step."""


def _with_models(params: Params, trained: Mapping[str, PyTree]) -> Params:
  """Replaces the trained leaves of several models in `params`."""
  return {**params} | {
    name: {**params[name], "trained": leaves}
    for name, leaves in trained.items()
  }


def _of_tokens(
  total: passes.Total, mean: Callable[[Weighted], jax.Array]
) -> metrics_lib.StepMetrics:
  return {
    name: Mean(mean(x), x.weight > 0) if isinstance(x, Weighted) else x
    for name, x in total.metrics.items()
  }


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
  """The loss of the policy under an algorithm; see `Loss`.

  Attributes:
    algorithm, config: The objective.
    reference: (parameters of all models, rows) -> the head that computes logits
      from `reference.h`, for a KL over the whole vocabulary.
    is_rounded: True if the sampler ran with rounded kernels; then the KL from
      the sampler to the policy is measured.
  """

  policy: Policy
  algorithm: Algorithm
  config: Any
  plan: UpdatePlan
  reference: Callable[[Params, TrainBatch], models.Head] | None = None
  is_rounded: bool = False
  trains: tuple[str, ...] = ("policy", "algorithm")
  prefix: str = ""
  scope: str = "update"
  num_updates: int = 1
  enters_trunk: bool = True

  def view(self, params: Params) -> models.ModelView:
    """Returns the view of the policy with these parameters."""
    return models.policy_view(self.policy, params)

  def outputs(
    self, params: Params, batch: TrainBatch, prefix: PyTree = None
  ) -> PolicyOutputs:
    """The outputs of the policy with these parameters.

    Args:
      prefix: Prefixes of shared prompts; see `Policy`.
    """
    required = options.needs(self.algorithm, self.config)
    view = self.view(params)
    h, aux = view.trunk.hidden(batch, prefix)
    reference = None
    if "ref_kl" in required:
      assert self.reference is not None
      reference = self.reference(params, batch), batch.reference.h
    tokens = logprobs.token_outputs(
      view.head,
      h,
      batch.tokens,
      temperature=self.plan.temperature,
      with_entropy="entropy" in required,
      kept_ids=batch.sampler.kept_ids,
      topk_ids=batch.reference.topk_ids,
      reference=reference,
      reference_beta=self.config.jsd_beta,
      chunk_bytes=self.plan.chunk_bytes,
    )  # [B, T]
    present = {
      name: value
      for name in ("entropy", "topk_logp", "ref_kl")
      if (value := getattr(tokens, name)) is not None
    }
    return PolicyOutputs(
      logp=tokens.logp,
      aux=aux,
      trainable=params["algorithm"]["trained"]["scalars"],
      **present,
    )

  def value(self, params, batch, is_first):
    """The sum of the objective's terms, each over its own denominator."""
    del params
    algorithm, config = self.algorithm, self.config
    weights = objective.term_weights(algorithm, config, batch)

    def value(params, prefix, part):
      outputs = self.outputs(params, part, prefix)
      if part.old_logp is not None:
        # The anchor of the first step is its own forward pass, so that every
        # ratio is exactly 1.
        anchor = jax.lax.stop_gradient(outputs.logp)
        part = dataclasses.replace(
          part, old_logp=jnp.where(is_first, anchor, part.old_logp)
        )
      output = objective.loss(algorithm, config, outputs, part)
      terms = {
        name: coefficient * term.total / weights[name]
        for name, (coefficient, term) in output.terms.items()
      }
      metrics = output.metrics
      if self.is_rounded and part.sampler.logp is not None:
        metrics = metrics | self._sampler_kl(outputs, part)
      return sum(terms.values()), (terms, metrics)

    return value

  def _sampler_kl(self, outputs, part) -> dict[str, Weighted | Maximum]:
    """KL(sampler ‖ policy at the start of the update), nats per token; k3."""
    anchor = outputs.logp if part.old_logp is None else part.old_logp
    sampler_logp = part.sampler.logp
    if self.config.keep_sampling_mask:
      sampler_logp = part.sampler.behavior_logp
    gap = masked.select(jax.lax.stop_gradient(sampler_logp - anchor), part.mask)
    kl = aggregation.over_tokens(divergences.kl_k3(gap), part.mask)
    return {"sampler_gap/kl": kl}

  def metrics(self, total):
    """The loss, its terms, and the metrics of the objective."""
    metrics = {f"loss/{name}": term for name, term in total.terms.items()}
    metrics["loss"] = sum(total.terms.values())
    metrics |= _of_tokens(total, lambda x: x.total / jnp.maximum(x.weight, 1))
    if "router/load" in metrics:
      metrics |= metrics_lib.router_metrics(metrics.pop("router/load").value)
    return metrics


@dataclasses.dataclass(frozen=True)
class CriticLoss:
  """The loss of a critic's values of tokens; see `Loss`.

  Attributes:
    algorithm, config: The objective.
    model: The critic's name among the models.
  """

  critic: Critic
  algorithm: Algorithm
  config: Any
  model: str = "critic"
  prefix: str = "value/"
  scope: str = "critic"
  num_updates: int = 1

  @property
  def trains(self) -> tuple[str, ...]:
    """Names what this loss trains: the critic alone."""
    return (self.model,)

  @property
  def enters_trunk(self) -> bool:
    """False if the trunk is shared: it is the policy's, without gradient."""
    return not self.critic.is_shared

  def view(self, params: Params) -> models.ModelView:
    """Returns the view of the critic with these parameters."""
    return models.critic_view(self.critic, self.model, params)

  def value(self, params, batch, is_first):
    """The mean loss over the rows on which the algorithm trains its critic."""
    del params, is_first
    weight = objective.critic_weight(self.algorithm, batch)

    def value(params, prefix, part):
      view = self.view(params)
      h, _ = view.trunk.hidden(part, prefix)
      values = view.head(h)
      term = objective.critic_loss(self.algorithm, self.config, values, part)
      value = term.total / weight
      of_critic = self.algorithm.critic_metrics
      metrics: Mapping[str, Weighted | Maximum] = {}
      if of_critic is not None:
        metrics = of_critic(self.config, jax.lax.stop_gradient(values), part)
      return value, ({"value": value}, metrics)

    return value

  def metrics(self, total):
    """The loss, and the algorithm's metrics of the critic."""
    metrics = {"loss": total.terms["value"]}
    metrics |= _of_tokens(total, values_lib.mean)
    return {f"{self.prefix}{name}": value for name, value in metrics.items()}


@dataclasses.dataclass(frozen=True)
class Update:
  """The fixed inputs of a phase's gradient steps.

  Attributes:
    losses: Losses, in the order in which each minibatch runs them.
    constrain_rows: Keeps row-indexed arrays sharded over the mesh.
    constrain_trained: Keeps {model: its trained leaves} sharded over the mesh.
  """

  plan: UpdatePlan
  models: Mapping[str, Model]
  losses: tuple[Loss, ...]
  couples_group: bool = False
  constrain_rows: Callable[[PyTree], PyTree] = lambda rows: rows
  constrain_trained: Callable[[PyTree], PyTree] = lambda trained: trained


def gradient(
  update: Update,
  loss: Loss,
  params: Params,
  batch: TrainBatch,
  is_first: jax.Array | bool = True,
) -> tuple[dict[str, PyTree], metrics_lib.StepMetrics]:
  """The exact gradient of a loss over `batch`, a micro-batch at a time.

  Denominators are summed over all rows first; each micro-batch then adds
  coefficient · total / denominator. The result depends on the split by
  round-off only.

  Args:
    is_first: See `Loss.value`.

  Returns:
    The gradients by model, and the metrics of the loss.
  """
  value = loss.value(params, batch, is_first)
  with jax.named_scope(loss.scope):
    total = passes.gradient(
      update.plan,
      lambda trained: loss.view(_with_models(params, trained)).trunk,
      {name: params[name]["trained"] for name in loss.trains},
      batch,
      lambda trained, prefix, part: value(
        _with_models(params, trained), prefix, part
      ),
      update.couples_group,
      update.constrain_trained,
      enters_trunk=loss.enters_trunk,
    )
  return total.gradients, loss.metrics(total)


def select(trains: jax.Array | None, new: PyTree, old: PyTree) -> PyTree:
  """The new arrays if `trains` is True or None, else the old arrays.

  Counts of schedules advance in any case: the learning rate follows the step of
  the phase. Counts of moments stay with the moments, which they correct.
  """
  if trains is None:
    return new

  def is_schedule(node):
    return isinstance(node, optax.ScaleByScheduleState)

  def choose(x, before):
    return x if is_schedule(x) else jnp.where(trains, x, before)

  return jax.tree.map(choose, new, old, is_leaf=is_schedule)


def _steps(
  update: Update,
  loss: Loss,
  params: Params,
  opt_states: dict[str, PyTree],
  batch: TrainBatch,
  is_first: jax.Array | bool,
  trains: jax.Array | None,
) -> tuple[Params, dict[str, PyTree], metrics_lib.StepMetrics]:
  """Takes the K gradient steps of one loss; returns the metrics of all, too."""

  def step(carry, _):
    trained, opt_states = carry
    gradients, metrics = gradient(
      update, loss, _with_models(params, trained), batch, is_first
    )
    with jax.named_scope("optimizer"):
      changes = {}
      new_states = dict(opt_states)
      for name in loss.trains:
        optimizer = update.models[name].optimizer
        assert optimizer is not None
        changes[name], new_states[name] = optimizer.update(
          gradients[name], opt_states[name], trained[name]
        )
        none = jax.tree.map(jnp.zeros_like, changes[name])
        changes[name] = select(trains, changes[name], none)
        new_states[name] = select(trains, new_states[name], opt_states[name])
      metrics[f"{loss.prefix}gradient_norm"] = optax.global_norm(
        masked.wide(gradients)
      )
      metrics[f"{loss.prefix}update_norm"] = optax.global_norm(
        masked.wide(changes)
      )
      trained = optax.apply_updates(trained, changes)
    return (trained, new_states), metrics

  carry = (
    {name: params[name]["trained"] for name in loss.trains},
    {name: opt_states[name] for name in loss.trains},
  )
  if loss.num_updates == 0:
    return params, opt_states, {}
  if loss.num_updates == 1:
    (trained, new_states), metrics = step(carry, None)
  else:
    (trained, new_states), history = jax.lax.scan(
      step, carry, length=loss.num_updates
    )
    metrics = metrics_lib.of_steps(history)
  return _with_models(params, trained), {**opt_states, **new_states}, metrics


def _minibatches(
  plan: UpdatePlan, num_rows: int, key: jax.Array
) -> jax.Array:  # [updates, rows] int32
  """The rows of each gradient step; no columns if a minibatch is the batch."""
  if plan.num_minibatches == 1:
    return jnp.zeros((plan.num_updates, 0), jnp.int32)
  orders = [
    jax.random.permutation(
      jax.random.fold_in(key, epoch),
      jnp.arange(num_rows).reshape(-1, plan.group_size),
    )
    for epoch in range(plan.num_epochs)
  ]
  return jnp.stack(orders).reshape(plan.num_updates, -1)


def run(
  update: Update,
  state: TrainState,
  batch: TrainBatch,
  key: jax.Array,
  trains: jax.Array | None = None,
) -> tuple[TrainState, Metrics]:
  """Updates on one batch: epochs × minibatches × micro-batches.

  Args:
    batch: B rows, prepared.
    key: Random key that orders groups into minibatches (unused with one).
    trains: True if parameters and moments change, [] bool; None: they change.

  Returns:
    The state one step later, and metrics of all gradient steps. Metrics over
    tokens are NaN if no token is trained.
  """
  plan = update.plan
  names = [name for loss in update.losses for name in loss.trains]

  def gradient_step(carry, inputs):
    trained, opt_states = carry
    params = _with_models(state.params, trained)
    rows, is_first = inputs
    minibatch = batch
    if plan.num_minibatches > 1:
      arrays = jax.tree.map(lambda x: x[rows], row_arrays(batch))
      if plan.num_shards > 1:
        arrays = update.constrain_rows(arrays)
      minibatch = set_fields(batch, arrays)
    metrics: metrics_lib.StepMetrics = {}
    for loss in update.losses:
      params, opt_states, values = _steps(
        update, loss, params, opt_states, minibatch, is_first, trains
      )
      metrics |= values
    carry = {name: params[name]["trained"] for name in names}, opt_states
    return carry, (metrics, minibatch.mask.any())

  rows = _minibatches(plan, batch.mask.shape[0], key)
  carry = (
    {name: state.params[name]["trained"] for name in names},
    {name: state.models[name].opt_state for name in names},
  )
  if plan.num_updates == 1:
    carry, (metrics, _) = gradient_step(carry, (rows[0], True))
  else:
    carry, (history, is_trained) = jax.lax.scan(
      gradient_step, carry, (rows, jnp.arange(plan.num_updates) == 0)
    )
    metrics = metrics_lib.of_steps(history, is_trained)
  trained, opt_states = carry
  params = _with_models(state.params, trained)
  changed = {
    name: dataclasses.replace(
      state.models[name],
      params=params[name],
      opt_state=opt_states[name],
      average=select(
        trains,
        _average(update.models[name], state.models[name], params[name]),
        state.models[name].average,
      ),
    )
    for name in names
  }
  for loss in update.losses:
    first = loss.trains[0]
    schedule = update.models[first].schedule
    assert schedule is not None
    num_before = state.phase_step * plan.num_updates * loss.num_updates
    metrics[f"{loss.prefix}param_norm"] = optax.global_norm(
      masked.wide(params[first]["trained"])
    )
    metrics[f"{loss.prefix}learning_rate"] = jnp.asarray(
      schedule(num_before), jnp.float32
    )
  return dataclasses.replace(
    state.with_models(**changed),
    step=state.step + 1,
    phase_step=state.phase_step + 1,
  ), metrics_lib.of_trained(metrics, batch.mask)


def _average(model: Model, state, params: PyTree) -> PyTree:
  """The moving average of the trained leaves after a step, or None."""
  if model.ema_decay is None:
    return state.average
  # Wide: a bfloat16 share (1 - decay) · θ would be rounded in every step.
  return optax.incremental_update(
    masked.wide(params["trained"]), state.average, 1 - model.ema_decay
  )
