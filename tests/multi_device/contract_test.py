"""Every objective of the table, its rows shared by eight devices."""

import jax
import numpy as np

from grpo_jax import algorithms
from grpo_jax.training import sharding
from tests.algorithms import cases


def _every_algorithm(arrays):
  """{name: (loss, gradient)}: one program, so one compilation."""
  results = {}
  for name, algorithm in algorithms.ALGORITHMS.items():
    config = algorithms.make_config(name, kl_coef=0.1, entropy_coef=0.01)
    loss, gradients, *_ = cases.terms_of(algorithm, config, arrays)
    results[name] = loss, gradients["logp"]
  return results


def test_eight_devices_give_the_loss_and_gradient_of_one():
  case = cases.make_case().take(np.arange(16) % 10)
  results = []
  for devices in (1, 8):
    rows = sharding.by_rows(sharding.make_mesh(devices))
    arrays = jax.device_put(cases.arrays_of(case), rows)
    assert len(arrays["logp"].addressable_shards) == devices
    compiled = jax.jit(_every_algorithm).lower(arrays).compile()
    assert ("all-reduce" in compiled.as_text()) == (devices > 1)
    results.append(jax.device_get(compiled(arrays)))
  one, eight = results
  assert one.keys() == algorithms.ALGORITHMS.keys()
  for name, (loss, gradient) in one.items():
    np.testing.assert_allclose(eight[name][0], loss, 1e-5, 1e-7, err_msg=name)
    np.testing.assert_allclose(
      eight[name][1], gradient, 1e-5, 1e-6, err_msg=name
    )
    assert np.any(gradient != 0), name
