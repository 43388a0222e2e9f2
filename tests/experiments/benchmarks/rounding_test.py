"""Tests of the cost and the gain of a sampler with rounded kernels."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import rounding
from grpo_jax.models import architecture, transformer
from grpo_jax.types import Prompts
from tests.models import transformer_test


@pytest.mark.slow
def test_a_row_for_each_kind_of_kernels():
  config = transformer_test.PLAIN
  tokens = jax.random.randint(jax.random.key(0), (8, 3), 0, config.vocab_size)
  prompts = Prompts(tokens, jnp.ones((8, 3), bool), jnp.arange(8), {})
  exact, int8, float8 = rounding.measured(
    transformer.transformer_policy(config),
    transformer_test.make_params(config),
    prompts,
    9,
  )
  assert [row.kind for row in (exact, int8, float8)] == [
    *architecture.SAMPLED_DTYPES
  ]
  assert exact.num_bytes > 2 * int8.num_bytes
  assert int8.num_bytes == float8.num_bytes
  assert exact.gap < 1e-5
  assert abs(exact.kl) < 1e-6
  assert 1e-4 < int8.gap < float8.gap
  assert 0 < int8.kl < float8.kl < float8.gap
