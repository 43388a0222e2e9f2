"""Several teachers of different sizes: by domain, or mixed."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import models as models_lib
from grpo_jax.step import step
from grpo_jax.training.phases import models
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.types import TrainBatch, TrainState
from tests.training import tiny

WIDTHS = 8, 4  # The first teacher is as wide as the student.
WEIGHTS = 3.0, 1.0
ROUTERS = {"domain": (), "mixture": WEIGHTS}


class Distilled(NamedTuple):
  """A phase with two teachers, and its programs."""

  phase: step.Phase
  state: TrainState
  batch: TrainBatch
  log_probs: Callable
  prepare: Callable
  gradient: Callable


def small_policy(width):
  """Its states are sums over the tokens so far, of this width."""
  made = tiny.tiny_policy(width=width)

  def hidden(params, prompts, prompt_mask, tokens, mask, index, *more):
    del prompt_mask, mask, more
    x = params["trained"]["embed"]
    x = jnp.cumsum(x[tokens], axis=1) - x[tokens]
    return jnp.tanh(x + params["trained"]["embed"][prompts[index, -1:]]), None

  def head(params, h):
    return h @ params["trained"]["head"]

  return dataclasses.replace(made, hidden=hidden, head=head)


@pytest.fixture(scope="module", params=ROUTERS)
def distilled(request):
  teachers = tuple(small_policy(width) for width in WIDTHS)
  phase = tiny.make_phase(
    "opd_full",
    policy=small_policy(WIDTHS[0]),
    phase={
      "reference_workdirs": ("a", "b"),
      "reference_mixture": ROUTERS[request.param],
    },
    outside={
      f"reference{i}": models.Outside(policy, {}, dict, width)
      for i, (policy, width) in enumerate(zip(teachers, WIDTHS, strict=True))
    },
    temperature=0.7,
    lengths=(2,),
  )
  state = policy_lib.initial_state(phase.policy, 0)
  state = step.enter_phase(
    state.with_models(
      **{
        f"reference{i}": policy_lib.initial_state(policy, 5 + i).models[
          "policy"
        ]
        for i, policy in enumerate(teachers)
      }
    ),
    phase,
    0,
  )
  batch = tiny.ragged_batch(phase)
  batch = dataclasses.replace(
    batch, domain=jnp.asarray([0, 1, 1, 0])[batch.group_id]
  )
  (loss,) = phase.losses

  def value(params, batch):
    outputs = loss.outputs(params, batch)
    total = jnp.where(batch.mask, outputs.ref_kl, 0.0).sum()
    return total, outputs.ref_kl

  def log_probs(params, batch):
    """Log-probs of all tokens under all policies, at the temperature."""
    return tuple(
      jax.nn.log_softmax(
        policy.head(
          params[name],
          policy.hidden(
            params[name],
            *(batch.prompts.tokens, batch.prompts.mask, batch.tokens),
            *(batch.completion_mask, batch.prompt_index),
          )[0],
        )
        / 0.7
      )
      for name, policy in (
        ("policy", phase.policy),
        ("reference0", teachers[0]),
        ("reference1", teachers[1]),
      )
    )

  return request.param, Distilled(
    phase,
    state,
    batch,
    jax.jit(log_probs),
    jax.jit(functools.partial(step.prepare, phase=phase)),
    jax.jit(jax.grad(value, has_aux=True)),
  )


@pytest.mark.slow
@pytest.mark.parametrize("knows_more", [True, False])
def test_each_row_is_held_to(distilled, knows_more):
  """Its teacher, or the mixture of all; from itself it learns nothing."""
  router, (_, state, batch, log_probs, prepare, gradient) = distilled
  if not knows_more:  # The first teacher is the student, of all rows.
    state = state.with_params(reference0=state.params["policy"])
    batch = dataclasses.replace(batch, domain=jnp.zeros_like(batch.domain))
  student, first, second = (
    np.asarray(x, np.float64) for x in log_probs(state.params, batch)
  )
  teacher = np.where(batch.domain[:, None, None] == 0, first, second)
  if router == "mixture":
    teacher = 0.75 * first + 0.25 * second
    teacher -= np.logaddexp.reduce(teacher, axis=-1, keepdims=True)
  prepared = prepare(state, batch, jax.random.key(2))
  own = np.asarray(batch.mask)
  tokens = np.asarray(batch.tokens)[..., None]
  np.testing.assert_allclose(
    prepared.reference.logp[own],
    np.take_along_axis(teacher, tokens, axis=-1)[own, 0],
    rtol=1e-5,
  )
  slope, kl = gradient(state.params, prepared)
  np.testing.assert_allclose(
    kl[own],
    (np.exp(student) * (student - teacher)).sum(-1)[own],
    rtol=2e-5,
    atol=1e-6,
  )
  # Teachers are constants.
  for name in ("reference0", "reference1"):
    assert not any(x.any() for x in jax.tree.leaves(slope[name]["trained"]))
  of_policy = [
    abs(x).max() for x in jax.tree.leaves(slope["policy"]["trained"])
  ]
  if router == "domain" and not knows_more:
    assert max(of_policy) < 1e-5
  else:
    assert min(of_policy) > 1e-3


def test_a_teacher_of_weight_0_is_not_heard():
  """Not even of an id that it excludes, as those without a token."""
  loud = small_policy(8)

  def head(params, h):
    return loud.head(params, h).at[..., 2].set(-jnp.inf)

  teachers = (
    models_lib.Teacher(loud, "loud", 8),
    models_lib.Teacher(dataclasses.replace(loud, head=head), "silent", 8),
  )
  keys = jax.random.split(jax.random.key(0))
  params = {x.name: loud.init(k) for x, k in zip(teachers, keys, strict=True)}
  h = jax.random.normal(keys[0], (3, 16))
  found = models_lib.mixture_view(teachers, (2.0, 0.0), params).head(h)
  np.testing.assert_allclose(
    found, loud.head(params["loud"], h[:, :8]), rtol=1e-6
  )
