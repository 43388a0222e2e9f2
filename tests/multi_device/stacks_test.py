"""Models with layers of several kinds, their parameters split over a mesh."""

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.models import transformer
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from tests.models import stacks_test, transformer_test

_SIZES = {"vocab_size": 16, "norm_eps": 1e-4}
CONFIGS = {
  "deepseek4": dataclasses.replace(
    stacks_test.DEEPSEEK4,
    deepseek4=dataclasses.replace(
      stacks_test.DEEPSEEK4.deepseek4, query_width=8
    ),
    **_SIZES,
  ),
  "llama4": dataclasses.replace(stacks_test.LLAMA4, **_SIZES),
  "gemma4": dataclasses.replace(
    stacks_test.GEMMA4,
    gemma4=dataclasses.replace(
      stacks_test.GEMMA4.gemma4, full_kv_heads=2, input_vocab=16
    ),
    **_SIZES,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_eight_devices_give_the_logits_and_gradients_of_one(name):
  config = CONFIGS[name]
  policy = transformer.transformer_policy(config)
  params = transformer_test.make_params(config)
  batch = transformer_test.make_batch()

  def loss(trained, frozen):
    both = {"trained": trained, "frozen": frozen}
    h, _ = policy.hidden(both, *batch, None)
    return (policy.head(both, h) ** 2).mean()

  results = []
  # One key head does not split along tensor.
  most = (2, 2, 1, 2) if name == "deepseek4" else (1, 2, 2, 2)
  for sizes in ((1,), most):
    mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: np.prod(sizes)])
    policy_lib.check_model(config, mesh)
    placed = jax.device_put(params, sharding.of_params(mesh, params))
    with jax.set_mesh(mesh):
      found = jax.jit(jax.value_and_grad(loss))(
        placed["trained"], placed["frozen"]
      )
    results.append(jax.device_get(found))
  one, eight = results
  np.testing.assert_allclose(one[0], eight[0], rtol=1e-4)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4),
    *(x[1] for x in results),
  )
  split = [
    leaf
    for leaf in jax.tree.leaves(placed["trained"])
    if not leaf.is_fully_replicated
  ]
  assert len(split) > 10


def test_sizes_of_gemma4_that_do_not_split_are_told():
  mesh = sharding.make_mesh(1, tensor=2, devices=jax.devices()[:2])
  config = dataclasses.replace(
    CONFIGS["gemma4"],
    gemma4=dataclasses.replace(CONFIGS["gemma4"].gemma4, full_kv_heads=1),
  )
  with pytest.raises(ValueError, match="gemma4's full_kv_heads 1 does not"):
    policy_lib.check_model(config, mesh)
