"""What the policy says of the rows of a step after their update."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import distillation, objective, options, policy_metrics
from grpo_jax.ops import logprobs
from grpo_jax.step import passes, step
from grpo_jax.step.rows import StepRows
from grpo_jax.types import PolicyOutputs, TrainState

# What the loss of a token may read and a step does not hand out.
_UNKNOWN = frozenset(("ref_topk", "ref_kl"))


class After(NamedTuple):
  """What the policy says of rows after their update.

  Attributes:
    logp: Of each token, nats; 0 where it was not written.
    clipped: Trained tokens that the loss would push no further; None where
      nothing is clipped, or where what the loss reads was not handed out.
  """

  logp: jax.Array  # [B, T] float32
  clipped: jax.Array | None  # [B, T] bool


def after_update(
  state: TrainState, rows: StepRows, *, parts: step.Phase
) -> After | None:
  """A pass over the rows of the step that has led to a state.

  It has the shapes of the passes before the update, so that a policy that has
  not changed gives the same bits.

  Args:
    state: After the step.
    rows: The rows of the step.
    parts: Functions of the phase.

  Returns:
    None where the policy is not trained, and where its log-probs depend on
    what was not handed out: the experts that tokens took, or the ids that the
    filters of the sampler have left.
  """
  required = options.needs(parts.algorithm, parts.config)
  if not parts.trains_policy or required & {"kept_ids", "routing"}:
    return None
  batch = rows.batch
  seen = batch.completion_mask
  if rows.observed is not None:
    seen &= ~rows.observed
  view = parts.members["policy"].view
  assert view is not None
  head, trunk = view(state.params).head, view(state.params).trunk

  def outputs(part, prefix):
    h, _ = trunk.hidden(part, prefix)
    found = logprobs.token_outputs(
      head,
      h,
      part.tokens,
      temperature=parts.plan.temperature,
      with_entropy="entropy" in required,
      chunk_bytes=parts.plan.chunk_bytes,
    )
    fields = {"logp": found.logp}
    return fields | (
      {} if found.entropy is None else {"entropy": found.entropy}
    )

  with jax.named_scope("after_update"):
    found = passes.fields(
      parts.plan,
      trunk,
      dataclasses.replace(batch, mask=seen),
      outputs,
      parts.algorithm.couples_group,
    )
  logp = jnp.where(seen, found["logp"], 0)
  if parts.algorithm.policy_loss is None or "old_logp" not in required:
    return After(logp, None)
  if required & _UNKNOWN:
    return After(logp, None)
  if batch.old_logp is None:
    batch = dataclasses.replace(batch, old_logp=rows.sampler_logp)
  policy = PolicyOutputs(
    trainable=state.params["algorithm"]["trained"]["scalars"], **found
  )
  policy, batch = objective.sanitize(policy, batch)
  batch = distillation.with_current_teacher(parts.config, policy, batch)
  clipped = policy_metrics.clipped(parts.algorithm, parts.config, policy, batch)
  return After(logp, clipped & batch.mask)
