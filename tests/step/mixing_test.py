"""Every model of a step reads the mixed inputs that the sampler read."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.rollout import mixing
from grpo_jax.step import after, passes
from grpo_jax.types import set_fields
from tests.step import router_test
from tests.training import tiny

MIX = mixing.Mixing(rate=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("algorithm", "experts"), [("ppo", False), ("grpo", True)]
)
def test_anchor_and_reference_say_of_a_blend_what_the_sampler_said(
  algorithm, experts
):
  """In an update of two steps, whose anchor is a pass of its own."""
  policy = tiny.tiny_transformer(width=16)
  fields = {"kl_coef": 0.1}
  if experts:
    policy = router_test.moe_policy()
    fields["keep_routing"] = True
  phase = tiny.make_phase(
    algorithm,
    policy=policy,
    fields=fields,
    mix=MIX,
    max_new_tokens=6,
    num_minibatches=2,
    micro_batch_size=4,
  )
  state = tiny.drawn_state(phase)
  _, metrics, rows = tiny.fused(phase)(state, tiny.make_prompts())
  mask = np.asarray(rows.batch.mask)
  old = np.asarray(rows.batch.old_logp)[mask]
  # It has one step on each half of the batch, and the policy moves in between.
  assert metrics["ratio/max_deviation"] > 0
  gap = abs(old - np.asarray(rows.sampler_logp)[mask])
  assert gap.max() < 1e-5
  np.testing.assert_allclose(
    np.asarray(rows.batch.reference.logp)[mask], old, atol=1e-5
  )
  assert 0.2 < metrics["mix/share"] < 0.8
  assert 0 < metrics["mix/anchor"] < 1
  assert 0 < metrics["mix/other"] < 1
  if not experts:
    # Whoever looks at the rows reads the same, too.
    again = jax.jit(functools.partial(after.after_update, phase=phase))
    np.testing.assert_allclose(
      np.asarray(again(state, rows).logp)[mask], old, atol=1e-6
    )
    as_written = dataclasses.replace(
      rows, batch=set_fields(rows.batch, {"sampler.mix_ids": None})
    )
    other = np.asarray(again(state, as_written).logp)[mask]
    assert abs(other - old).max() > 1e-2


@pytest.mark.slow
def test_the_first_update_is_on_policy_in_every_bit():
  phase = tiny.make_phase(
    policy=tiny.tiny_transformer(),
    fields={"kl_coef": 0.1},
    mix=MIX,
    micro_batch_size=8,
  )
  state = tiny.drawn_state(phase)
  step = tiny.fused(phase)
  for number in range(2):
    state, metrics, _ = step(state, tiny.make_prompts(first=4 * number))
    assert metrics["ratio/max_deviation"] == 0
    assert metrics["sampler_gap/max"] < 1e-4
    assert metrics["gradient_norm"] > 0
    assert (metrics["kl/reference"] > 1e-5) == (
      number > 0
    )  # Of the policy before.
  assert step._cache_size() == 1


def test_a_model_of_its_own_table_reads_the_same_ids():
  """A critic, or a reference, may choose experts; what it reads is given."""
  found = []

  def hidden(*arguments):
    found.append(arguments[6])
    return jnp.zeros(()), None

  policy = dataclasses.replace(tiny.tiny_policy(), hidden=hidden)
  ids, weights = mixing.plain(jnp.zeros((2, 3), jnp.int32), 2)
  batch = set_fields(
    tiny.given_rows(np.zeros((2, 2), int), np.zeros((2, 3), int)),
    {
      "sampler.mix_ids": ids,
      "sampler.mix_weights": weights,
      "sampler.routing": jnp.zeros((2, 3, 1, 1), int),
      "prompts.routing": jnp.zeros((2, 2, 1, 1), int),
    },
  )
  for is_free in (True, False):
    passes.Trunk(policy, None, is_free).hidden(batch, None)
  free, kept = found
  assert set(free) == {"mix_ids", "mix_weights"}
  assert set(kept) == {*free, "routing", "prompt_routing"}
  assert free["mix_ids"] is ids
