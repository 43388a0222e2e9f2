"""Several teachers in the place of one reference.

Either the domain of a prompt chooses its teacher. Then each teacher is run over
the rows of its domain alone, and over a vocabulary only the heads of domains
that are there are read. Or all teachers speak of all rows, as one mixture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.step import passes
from grpo_jax.step.members import Params, View
from grpo_jax.types import Policy, TrainBatch

Head = Callable[[jax.Array], jax.Array]  # [..., D] -> [..., V]


class Teacher(NamedTuple):
  """A model from outside of the run, as one of several.

  Attributes:
    policy: Its functions; it has as many logits as the policy of the run.
    name: Of the member with its parameters.
    width: D of its hidden states.
  """

  policy: Policy
  name: str
  width: int

  def logits(self, params: Params, h: jax.Array) -> jax.Array:
    """Its logits, from states whose first D numbers are its own."""
    return self.policy.head(params[self.name], h[..., : self.width])


def head_of_domains(
  teachers: Sequence[Teacher], params: Params, batch: TrainBatch
) -> Head:
  """The head of each row's teacher, by the number of the row's domain.

  A head is run over all rows if one of them is of its domain. So where the rows
  of a micro-batch are of one domain, one head is read (`UpdatePlan.by_domain`).

  Args:
    teachers: Of domain 0, 1, ….
    params: Parameters of all members, by name.
    batch: B rows with domains.

  Returns:
    (states [B, n, D], of teachers that are narrower than D with anything behind
    their own) -> logits [B, n, V].
  """

  def head(h):
    shapes = [jax.eval_shape(teacher.logits, params, h) for teacher in teachers]
    logits = jnp.zeros(shapes[0].shape, jnp.result_type(*shapes))
    for number, teacher in enumerate(teachers):
      own = batch.domain == number  # [B]

      def with_own(logits, own=own, teacher=teacher):
        found = teacher.logits(params, h).astype(logits.dtype)
        return jnp.where(own[:, None, None], found, logits)

      logits = lax.cond(own.any(), with_own, lambda logits: logits, logits)
    return logits

  return head


def mixture_view(
  teachers: Sequence[Teacher], weights: Sequence[float], params: Params
) -> View:
  """All teachers as one model, whose logits are a weighted sum of theirs.

      q(v) ∝ Π_k q_k(v)^{w_k},   Σ_k w_k = 1

  At fixed prefixes Σ_k w_k KL(π ‖ q_k) = KL(π ‖ q) − log Σ_v Π_k q_k(v)^{w_k},
  so both have the same gradient.

  Args:
    teachers: K models.
    weights: K numbers ≥ 0, not all 0; their sum is made 1.
    params: Parameters of all members, by name.
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
    found = [
      teacher.policy.hidden(
        params[teacher.name],
        *rows,
        None if prefixes is None else prefixes[teacher.name],
      )[0]
      for teacher in teachers
    ]
    return jnp.concatenate(found, axis=-1), None

  def head(h):
    logits: Any = 0.0
    start = 0
    for teacher, share in zip(teachers, shares, strict=True):
      said = teacher.logits(own, h[..., start:])
      # Upcast first: a sum in bfloat16 would round each of them.
      said = said.astype(jnp.promote_types(said.dtype, jnp.float32))
      logits, start = logits + share * said, start + teacher.width
    return logits

  mixed = dataclasses.replace(teachers[0].policy, prefix=prefix, hidden=hidden)
  return View(passes.Trunk(mixed, own, is_free=True), head)
