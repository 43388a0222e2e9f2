"""A plain function of tokens runs wherever a transformer does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import transformer
from grpo_jax.models.policies import from_logits
from grpo_jax.rollout import sampling
from grpo_jax.types import Prompts
from tests.models import transformer_test


@pytest.mark.slow
def test_an_adapted_transformer_samples_and_scores_like_the_original():
  with jax.enable_x64(True):
    config = transformer_test.float64(transformer_test.PLAIN)
    original = transformer.transformer_policy(config)

    def logits(trained, tokens, mask):  # [B, L], [B, L] -> [B, L, V]
      params = {"trained": trained, "frozen": {}}
      next_tokens = jnp.roll(tokens, -1, axis=1)
      next_mask = jnp.roll(mask, -1, axis=1)
      rows = jnp.arange(len(tokens))
      h, _ = original.hidden(
        params, tokens[:, :1], mask[:, :1], next_tokens, next_mask, rows, None
      )
      return original.head(params, h)

    adapted = from_logits.policy_from_logits(
      logits, lambda key: original.init(key)["trained"]
    )
    params = transformer_test.make_params(config)
    shapes = jax.eval_shape(adapted.init, jax.random.key(0))
    assert jax.tree.structure(shapes) == jax.tree.structure(params)

    batch = transformer_test.make_batch(junk=99)
    prompts = Prompts(*batch[:2], jnp.arange(3), {})
    sampling_config = sampling.SamplerConfig(
      5, (0,), 0, temperature=0.7, lanes=5
    )

    @functools.partial(jax.jit, static_argnums=0)
    def run(policy):
      rollout = sampling.sample(
        policy, params, prompts, jax.random.key(3), sampling_config, 4
      )
      return rollout, policy.head(
        params, policy.hidden(params, *batch, None)[0]
      )

    rollout, forced = run(original)
    other_rollout, other_forced = run(adapted)
    assert len(np.unique(rollout.tokens)) > 3
    np.testing.assert_array_equal(rollout.tokens, other_rollout.tokens)
    np.testing.assert_allclose(
      rollout.sampler_logp, other_rollout.sampler_logp, atol=1e-6
    )
    np.testing.assert_allclose(
      transformer_test.existing(forced),
      transformer_test.existing(other_forced),
      rtol=0,
      atol=1e-10,
    )


def test_unknown_inputs_raise():
  policy = from_logits.policy_from_logits(
    lambda params, tokens, mask: params, dict
  )
  with pytest.raises(ValueError, match=r"extra inputs \['routing'\]"):
    policy.hidden({}, *transformer_test.make_batch(), {"routing": 1})
