"""The models of a run: their outputs for a batch, and their start in a phase.

A run has a policy, and the models that its objective needs: a reference, a
critic, teachers, a reward model. Each is a `Model`. `with_fields` computes the
outputs of a model for the rows of a batch, `enter` starts a phase with all
models, and `update.py` takes the gradient steps.

Several teachers can take the place of one reference, in one of two ways. Either
the domain of a prompt chooses its teacher: each teacher runs only over the rows
of its domain, and a KL over the vocabulary reads only the heads of domains that
are present. Or all teachers run over all rows, as one mixture.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from grpo_jax.ops import logprobs, masked
from grpo_jax.step import passes
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import (
  Critic,
  ModelState,
  Policy,
  PyTree,
  Rollout,
  TrainBatch,
  get_field,
  set_fields,
)

Params = Mapping[str, PyTree]  # Parameters of models, by name.


class ModelView(NamedTuple):
  """A model that can run over rows.

  Attributes:
    trunk: The model without its head.
    head: (hidden states [..., D]) -> logits [..., V], or values [...].
  """

  trunk: passes.Trunk
  head: Callable[[jax.Array], jax.Array]


# (view, micro-batch, prefix of its prompts) -> fields of a `TrainBatch`.
Fields = Callable[[ModelView, TrainBatch, PyTree], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Model:
  """A model of a run, as a phase uses it.

  Attributes:
    start: (states of all models before the phase) -> parameters at its start.
    view: (parameters of all models) -> the view that runs; None if the model
      does not run, as the scalars of an algorithm. Parameters that the model
      shares with another are looked up here.
    fields: Fields of a batch that the model computes before the update, or
      None.
    domain: Number of the domain whose rows the model runs over; None: all rows.
    to_the_end: True if the model reads rows up to the last token that exists,
      and not only to the last trained token.
    scope: Name of this pass in profiles and reports.
    optimizer: Optimizer of its trained leaves; None in phases that do not train
      the model.
    schedule: (gradient step) -> learning rate of that optimizer.
    keeps_moments: True if moments continue from the phase before.
    ema_decay: Decay per step of the average of its trained leaves; None: there
      is no average.
    continues: True if the model continues from its state in an earlier phase,
      so that phases in between have to keep it.
    read: () -> parameters of a model from outside the run. They are read before
      the phase is entered, and `start` finds them in the states.
  """

  start: Callable[[Mapping[str, ModelState]], PyTree]
  view: Callable[[Params], ModelView] | None = None
  fields: Fields | None = None
  domain: int | None = None
  to_the_end: bool = False
  scope: str = ""
  optimizer: optax.GradientTransformation | None = None
  schedule: Callable[[jax.Array], jax.Array] | None = None
  keeps_moments: bool = False
  ema_decay: float | None = None
  continues: bool = False
  read: Callable[[], PyTree] | None = None


def with_fields(
  plan: UpdatePlan,
  model: Model,
  params: Params,
  batch: TrainBatch,
  couples_group: bool = False,
) -> TrainBatch:
  """Adds the fields that a model computes to `batch`, without gradient."""
  assert model.view is not None
  assert model.fields is not None
  view = model.view(params)
  inputs = batch
  if model.domain is not None:  # Rows without trained tokens are not run.
    in_domain = batch.domain == model.domain
    inputs = dataclasses.replace(batch, mask=batch.mask & in_domain[:, None])
  if model.to_the_end:
    is_run = inputs.mask.any(axis=1, keepdims=True)
    inputs = dataclasses.replace(inputs, mask=inputs.completion_mask & is_run)
  with jax.named_scope(model.scope):
    fields = passes.fields(
      plan,
      view.trunk,
      inputs,
      functools.partial(model.fields, view),
      couples_group,
    )
  if model.domain is not None:
    fields = _merge(in_domain, fields, batch)
  return set_fields(batch, fields)


def _merge(
  mask: jax.Array,  # [B] bool
  new: Mapping[str, Any],
  batch: TrainBatch,
) -> dict[str, Any]:
  """Replaces some rows in fields of a batch.

  Args:
    mask: True on rows that take the new values; others keep theirs, or 0.
    new: Arrays [B, ...] by the name of their field. New hidden states may
      differ in width from the old ones: all get the larger width.
    batch: The batch with the old fields, which may be None.
  """

  def merge(name, x):
    old = get_field(batch, name)
    if old is None:
      old = jnp.zeros_like(x)
    width = max(old.shape[-1], x.shape[-1])
    old, x = (
      jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, width - a.shape[-1])])
      for a in (old, x)
    )
    return jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, old)

  return {name: merge(name, x) for name, x in new.items()}


def policy_view(policy: Policy, params: Params) -> ModelView:
  """The view of the policy."""
  own = params["policy"]
  return ModelView(
    passes.Trunk(policy, own), functools.partial(policy.head, own)
  )


def frozen_view(policy: Policy, name: str, params: Params) -> ModelView:
  """The view of a frozen copy or teacher that shares leaves with the policy.

  Leaves that it does not have are the policy's. Its router chooses experts.
  """
  own, shared = params[name], params["policy"]["frozen"]
  full = {**own, "frozen": {**shared, **own["frozen"]}}
  return ModelView(
    passes.Trunk(policy, full, is_free=True),
    functools.partial(policy.head, full),
  )


def outside_view(policy: Policy, name: str, params: Params) -> ModelView:
  """The view of a model from outside the run; it shares no parameters."""
  own = params[name]
  return ModelView(
    passes.Trunk(policy, own, is_free=True), functools.partial(policy.head, own)
  )


def critic_view(critic: Critic, name: str, params: Params) -> ModelView:
  """The view of a critic."""
  own = params[name]
  trunk = passes.Trunk(
    critic.trunk,
    critic.trunk_params(own, params["policy"]),
    is_free=not critic.is_shared,
  )
  return ModelView(trunk, functools.partial(critic.head, own))


def anchor_fields(
  plan: UpdatePlan, required: frozenset[str], view: ModelView, part, prefix
) -> dict[str, Any]:
  """The policy's log-probs of its tokens before the update, and more."""
  h, aux = view.trunk.hidden(part, prefix)
  squares = "sum_pi_squared" in required
  old = logprobs.token_outputs(
    view.head,
    h,
    part.tokens,
    temperature=plan.temperature,
    with_sum_pi_squared=squares,
    kept_ids=part.sampler.kept_ids,
    chunk_bytes=plan.chunk_bytes,
  )
  fields: dict[str, Any] = {"old_logp": old.logp}
  if "router" in required:
    fields["anchor.routing"] = aux.ids
  if squares:
    fields["anchor.sum_pi_squared"] = old.sum_pi_squared
  return fields


def reference_fields(
  plan: UpdatePlan,
  required: frozenset[str],
  topk: int,
  view: ModelView,
  part,
  prefix,
) -> dict[str, Any]:
  """Log-probs of the policy's tokens under a frozen reference or teacher.

  Also its hidden states and its most likely tokens, if they are needed.
  """
  h, _ = view.trunk.hidden(part, prefix)
  fields = {
    "reference.logp": logprobs.token_outputs(
      view.head,
      h,
      part.tokens,
      temperature=plan.temperature,
      kept_ids=part.sampler.kept_ids,
      chunk_bytes=plan.chunk_bytes,
    ).logp
  }
  if "ref_kl" in required:  # Logits are computed again, chunk by chunk.
    fields["reference.h"] = h
  if "ref_topk" in required:
    vocab_size = jax.eval_shape(view.head, h).shape[-1]
    ids, logp = logprobs.reference_topk(
      view.head,
      h,
      min(topk, vocab_size),
      temperature=plan.temperature,
      kept_ids=part.sampler.kept_ids,
      chunk_bytes=plan.chunk_bytes,
    )
    fields |= {"reference.topk_ids": ids, "reference.topk_logp": logp}
  return fields


def value_fields(view: ModelView, part, prefix) -> dict[str, Any]:
  """The critic's values before the update."""
  h, _ = view.trunk.hidden(part, prefix)
  return {"critic.values": view.head(h)}


def values_to_the_end(view: ModelView, part, prefix) -> dict[str, Any]:
  """The critic's values [B, T], and its value [B] of the last state.

  That is the state after the last token, which needs one more slot. Recorded
  experts are not used, because none is recorded for the last token.
  """
  inputs = "tokens", "completion_mask", "sampler.mix_ids", "sampler.mix_weights"
  longer = {
    name: jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2))
    for name in inputs
    if (x := get_field(part, name)) is not None
  }
  h, _ = view.trunk.hidden(set_fields(part, longer), prefix)
  values = view.head(h)  # [rows, slots + 1]
  length = part.completion_mask.sum(axis=1, keepdims=True)
  final = jnp.take_along_axis(values, length, axis=1)[:, 0]
  return {"critic.values": values[:, :-1], "critic.final_value": final}


def enter(
  models: Mapping[str, Model],
  before: Mapping[str, ModelState],
  carried: frozenset[str] = frozenset(),
) -> dict[str, ModelState]:
  """The states, at the start of a phase, of the models that a run still needs.

  Args:
    before: Their states, and those of others, at the end of the phase before.
    carried: Names of models that a later phase needs, and this one does not
      have.

  Raises:
    ValueError: A model has no parameters to start from, or moments do not
      fit.
  """
  entered = {name: before[name] for name in before.keys() & carried}
  for name, model in models.items():
    params = model.start(before)
    opt_state = average = None
    if model.optimizer is not None:
      opt_state = model.optimizer.init(params["trained"])
      past = before.get(name)
      if model.keeps_moments and past and past.opt_state is not None:
        opt_state = _carried(opt_state, past.opt_state)
    if model.ema_decay is not None:
      # A copy: the step donates the state, and the parameters change. float32:
      # at a decay of 0.999 an average in bfloat16 would not change.
      average = jax.tree.map(jnp.copy, masked.wide(params["trained"]))
    entered[name] = ModelState(params, opt_state, average)
  return entered


def _carried(new: PyTree, past: PyTree) -> PyTree:
  """Carries the moments of the phase before over; schedules start anew.

  Raises:
    ValueError: The phases have different optimizers.
  """

  def is_schedule(node):
    return isinstance(node, optax.ScaleByScheduleState)

  structures: list[Any] = [jax.tree.structure(tree) for tree in (new, past)]
  if structures[0] != structures[1]:
    raise ValueError(
      "reset_optimizer=False: the phase before has another optimizer, whose"
      " moments mean nothing here; give both the same optimizer.name and"
      " stochastic_rounding, or set reset_optimizer=True."
    )
  return jax.tree.map(
    lambda new, past: new if is_schedule(new) else past,
    new,
    past,
    is_leaf=is_schedule,
  )


def moving(params: PyTree) -> PyTree:
  """Copies the changing parts of a policy: not a base, not a frozen tower."""
  frozen = {
    name: value
    for name, value in params["frozen"].items()
    if name not in ("base", "tower")
  }
  return jax.tree.map(jnp.copy, {**params, "frozen": frozen})


def by_policy(sample: Callable[..., Any], **fixed: Any) -> functools.partial:
  """A function (parameters of models, prompts, key, …) -> a policy's rollout.

  Args:
    sample: (parameters of the policy, prompts, key, …) -> a rollout, which may
      come with the state to continue from.
  """
  return functools.partial(_by_policy, sample, **fixed)


def _by_policy(sample, params, *inputs, **fixed):
  return sample(params["policy"], *inputs, **fixed)


def by_models(
  sample: Callable[..., Rollout],
  views: Sequence[Callable[[Params], ModelView]],
  **fixed: Any,
) -> functools.partial:
  """A function as of `by_policy`, for episodes with several models.

  Args:
    sample: (parameters of the policy and of other models, …) -> a rollout.
    **fixed: As in `by_policy`.
  """
  return functools.partial(_by_models, sample, tuple(views), **fixed)


def _by_models(sample, views, params, prompts, key, **fixed):
  others = [view(params).trunk.params for view in views]
  return sample((params["policy"], *others), prompts, key, **fixed)


Head = Callable[[jax.Array], jax.Array]  # [..., D] -> [..., V]


class Teacher(NamedTuple):
  """A teacher from outside the run, of several.

  Attributes:
    policy: Functions of the teacher; it has the vocabulary of the run's policy.
    name: Name of the teacher among the models.
    width: D of its hidden states.
  """

  policy: Policy
  name: str
  width: int

  def logits(self, params: Params, h: jax.Array) -> jax.Array:
    """The teacher's logits, from the first D numbers of hidden states."""
    return self.policy.head(params[self.name], h[..., : self.width])


def head_of_domains(
  teachers: Sequence[Teacher], params: Params, batch: TrainBatch
) -> Head:
  """The head of each row's teacher, by the number of the row's domain.

  A head runs over all rows if one of them is of its domain. So if the rows of a
  micro-batch are of one domain, one head runs (`UpdatePlan.by_domain`).

  Args:
    teachers: Teachers of domain 0, 1, ….
    batch: B rows with domains.

  Returns:
    (states [B, n, D]) -> logits [B, n, V]. States of a teacher narrower than D
    may have arbitrary numbers behind its own.
  """

  def head(h):
    shapes = [jax.eval_shape(teacher.logits, params, h) for teacher in teachers]
    logits = jnp.zeros(shapes[0].shape, jnp.result_type(*shapes))
    for number, teacher in enumerate(teachers):
      in_domain = batch.domain == number  # [B]

      def run(logits, in_domain=in_domain, teacher=teacher):
        its = teacher.logits(params, h).astype(logits.dtype)
        return jnp.where(in_domain[:, None, None], its, logits)

      logits = lax.cond(in_domain.any(), run, lambda logits: logits, logits)
    return logits

  return head


def mixture_view(
  teachers: Sequence[Teacher], weights: Sequence[float], params: Params
) -> ModelView:
  """The mixture of all teachers as one model, with weighted sums of logits.

      q(v) ∝ Π_k q_k(v)^{w_k},   Σ_k w_k = 1

  At fixed prefixes Σ_k w_k KL(π ‖ q_k) = KL(π ‖ q) − log Σ_v Π_k q_k(v)^{w_k},
  so both have the same gradient.

  Args:
    teachers: K models.
    weights: K numbers ≥ 0, not all 0; they are divided by their sum.
  """
  own = {teacher.name: params[teacher.name] for teacher in teachers}
  total = sum(weights)
  shares = [weight / total for weight in weights]

  def prefix(params, *prompts):
    return {
      teacher.name: teacher.policy.prefix(params[teacher.name], *prompts)
      for teacher in teachers
    }

  def hidden(params, *inputs):
    *rows, prefixes = inputs
    states = [
      teacher.policy.hidden(
        params[teacher.name],
        *rows,
        None if prefixes is None else prefixes[teacher.name],
      )[0]
      for teacher in teachers
    ]
    return jnp.concatenate(states, axis=-1), None

  def head(h):
    logits: Any = 0.0
    start = 0
    for teacher, share in zip(teachers, shares, strict=True):
      its = teacher.logits(own, h[..., start:])
      # Upcast first: a sum in bfloat16 would round each term.
      its = its.astype(jnp.promote_types(its.dtype, jnp.float32))
      # Not 0 · −inf, of a teacher whose share is 0 and that excludes an id.
      term = jnp.where(jnp.asarray(share) > 0, share * its, 0.0)
      logits, start = logits + term, start + teacher.width
    return logits

  mixed = dataclasses.replace(teachers[0].policy, prefix=prefix, hidden=hidden)
  return ModelView(passes.Trunk(mixed, own, is_free=True), head)
