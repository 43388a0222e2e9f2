"""Ids that a tokenizer does not have are in no draw and in no log-prob."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import logprobs
from grpo_jax.rollout import drawing, sampling
from grpo_jax.training.phases import policy as policy_lib
from tests.models import drawn
from tests.training import tiny

DRAWS = sampling.SamplerConfig(max_new_tokens=1, end_ids=(1,), pad_id=0)


@pytest.mark.slow
@pytest.mark.parametrize(
  "ids",
  [pytest.param((0, 1, 2, 3, 4), marks=pytest.mark.slow), (0, 1, 3, 6)],
  ids=["rounded up", "gaps"],
)
def test_ids_without_a_token_are_neither_drawn_nor_trained(ids):
  """Beside a policy of as many logits as there are tokens."""
  tokenizer = types.SimpleNamespace(pieces=lambda: dict.fromkeys(ids, "x"))
  policy = policy_lib.only_known(tiny.tiny_transformer(), tokenizer, tiny.VOCAB)
  params = drawn.params(policy, 0)
  h = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 8)), jnp.float32)
  tokens = jnp.full((1, 8), ids[-1])

  def total(params):
    found = logprobs.token_outputs(
      lambda h: policy.head(params, h),
      h,
      tokens,
      temperature=1.0,
      with_entropy=True,
      reference=(lambda h: policy.head(params, -h), h),
    )
    return (found.logp + found.entropy + found.ref_kl).sum(), found

  slope, found = jax.jit(jax.grad(total, has_aux=True))(params)
  logits = policy.head(params, h)
  known = logits[..., list(ids)]
  expected = logprobs.token_logprobs(known, jnp.full((1, 8), len(ids) - 1))
  np.testing.assert_allclose(found.logp, expected, rtol=1e-5)
  entropy = logprobs.entropy_from_logits(known)
  np.testing.assert_allclose(found.entropy, entropy, rtol=1e-5)
  slope = np.asarray(slope["trained"]["embed"]["embedding"])  # [V, D]
  changed = np.flatnonzero(slope.any(axis=1))
  assert np.isfinite(slope).all()
  assert changed.tolist() == [*ids]
  keys = jax.random.split(jax.random.key(2), 512)
  tokens, records, *_ = drawing.draw(
    jnp.tile(logits[0, :1], (512, 1)), keys, jnp.zeros(512, int), DRAWS
  )
  assert set(tokens.tolist()) == set(ids)
  assert np.isfinite(records["entropy"]).all()


@pytest.mark.parametrize("pieces", [dict, lambda: dict.fromkeys(range(9))])
def test_a_full_vocabulary_changes_nothing(pieces):
  policy = tiny.tiny_transformer()
  tokenizer = types.SimpleNamespace(pieces=pieces)
  assert policy_lib.only_known(policy, tokenizer, tiny.VOCAB) is policy
