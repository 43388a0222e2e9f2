"""Log-probs and clipping of a step's rows under the policy after its update."""

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

# Inputs of a token's loss that a step does not hand out.
_UNKNOWN = frozenset(("ref_topk", "ref_kl"))


class After(NamedTuple):
  """Log-probs and clipping of rows after their update.

  Attributes:
    logp: Log-prob of each token, nats; 0 on tokens that the policy did not
      write.
    clipped: Trained tokens whose loss has no gradient any more; None if the
      loss does not clip, or reads an input that was not handed out.
  """

  logp: jax.Array  # [B, T] float32
  clipped: jax.Array | None  # [B, T] bool


def after_update(
  state: TrainState, rows: StepRows, *, phase: step.Phase
) -> After | None:
  """Runs the updated policy over the rows of the step.

  The pass has the shapes of the passes before the update, so a policy that has
  not changed gives the same bits.

  Returns:
    None if the policy is not trained, or if its log-probs depend on inputs that
    were not handed out: the experts of tokens, or the ids that the sampler's
    filters left.
  """
  required = options.needs(phase.algorithm, phase.config)
  if not phase.trains_policy or required & {"kept_ids", "routing"}:
    return None
  batch = rows.batch
  mask = batch.completion_mask
  if rows.observed is not None:
    mask &= ~rows.observed
  view = phase.models["policy"].view
  assert view is not None
  head, trunk = view(state.params).head, view(state.params).trunk

  def token_fields(part, prefix):
    h, _ = trunk.hidden(part, prefix)
    tokens = logprobs.token_outputs(
      head,
      h,
      part.tokens,
      temperature=phase.plan.temperature,
      with_entropy="entropy" in required,
      chunk_bytes=phase.plan.chunk_bytes,
    )
    fields = {"logp": tokens.logp}
    return fields | (
      {} if tokens.entropy is None else {"entropy": tokens.entropy}
    )

  with jax.named_scope("after_update"):
    outputs = passes.fields(
      phase.plan,
      trunk,
      dataclasses.replace(batch, mask=mask),
      token_fields,
      phase.algorithm.couples_group,
    )
  logp = jnp.where(mask, outputs["logp"], 0)
  if phase.algorithm.policy_loss is None or "old_logp" not in required:
    return After(logp, None)
  if required & _UNKNOWN:
    return After(logp, None)
  if batch.old_logp is None:
    batch = dataclasses.replace(batch, old_logp=rows.sampler_logp)
  policy = PolicyOutputs(
    trainable=state.params["algorithm"]["trained"]["scalars"], **outputs
  )
  policy, batch = objective.sanitize(policy, batch)
  batch = distillation.with_current_teacher(phase.config, policy, batch)
  clipped = policy_metrics.clipped(phase.algorithm, phase.config, policy, batch)
  return After(logp, clipped & batch.mask)
