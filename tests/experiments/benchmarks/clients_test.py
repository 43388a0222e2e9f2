"""Tests of requests of several clients, together and one after another."""

import pytest

from experiments.benchmarks import clients
from grpo_jax.models import transformer
from tests.models import transformer_test


@pytest.mark.slow
def test_a_row_for_passes_and_one_for_samples():
  config = transformer_test.PLAIN
  passes, samples = clients.measure(
    transformer.transformer_policy(config),
    transformer_test.make_params(config),
    config.vocab_size,
    num_clients=2,
    num_rows=2,
    row_tokens=8,
    completion_tokens=2,
    rank=2,
  )
  assert passes.request == "`forward_backward`"
  assert samples.request == "`sample`"
  for row in (passes, samples):
    assert min(*row.apart, *row.together) > 0
