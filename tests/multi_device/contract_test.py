"""Every objective of the table, its rows shared by eight devices."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases
from grpo_jax.training.runtime import sharding
from tests.training import tiny

OTHERS = tuple(x for x in algorithms.ALGORITHMS if x not in tiny.FAST)


def _each(names, arrays):
  """{name: (loss, gradient)}: one program, so one compilation."""
  results = {}
  for name in names:
    algorithm = algorithms.get_algorithm(name)
    config = algorithms.make_config(name, kl_coef=0.1, entropy_coef=0.01)
    loss, gradients, *_ = cases.terms_of(algorithm, config, arrays)
    results[name] = loss, gradients["logp"]
  return results


@pytest.mark.parametrize(
  "names",
  [tiny.FAST, pytest.param(OTHERS, marks=pytest.mark.slow)],
  ids=["fast", "others"],
)
def test_eight_devices_give_the_loss_and_gradient_of_one(names):
  case = cases.make_case().take(np.arange(16) % 10)
  results = []
  for devices in (1, 8):
    rows = sharding.by_rows(sharding.make_mesh(devices))
    arrays = jax.device_put(cases.arrays_of(case), rows)
    assert len(arrays["logp"].addressable_shards) == devices
    program = jax.jit(functools.partial(_each, names))
    compiled = program.lower(arrays).compile()
    assert ("all-reduce" in compiled.as_text()) == (devices > 1)
    results.append(jax.device_get(compiled(arrays)))
  one, eight = results
  assert one.keys() == set(names)
  for name, (loss, gradient) in one.items():
    np.testing.assert_allclose(eight[name][0], loss, 1e-5, 1e-7, err_msg=name)
    np.testing.assert_allclose(
      eight[name][1], gradient, 1e-5, 1e-6, err_msg=name
    )
    assert np.any(gradient != 0), name
