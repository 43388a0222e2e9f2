"""Numbers of several runs: exact for each, and one way through the program."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.training.runtime import hyperparameters, jit

VALUES = (0.2, 0.3, 0.7)


def per_run(function, values=VALUES):
  """Values of `function` of the traced number, one for each run."""

  def of_run(run):
    return jnp.asarray(
      function(hyperparameters.TracedNumber("rate", values, run))
    )

  return jax.jit(lambda runs: jax.lax.map(of_run, runs))(
    jnp.arange(len(values))
  )


@pytest.mark.parametrize(
  "function",
  [
    lambda x: 1 - x,
    lambda x: x - 1,
    lambda x: x * x + 3,
    lambda x: 1 / x,
    lambda x: x / 7,
    lambda x: 2**x,
    lambda x: -(x**2),
  ],
)
def test_arithmetic_with_numbers_is_in_float64(function):
  expected = np.float32([function(value) for value in VALUES])
  np.testing.assert_array_equal(per_run(function), expected)


@pytest.mark.parametrize(
  "function",
  [
    lambda x, y: x * y,
    lambda x, y: y - x,
    lambda x, y: y**x,
    lambda x, y: x < y,
    lambda x, y: y <= x,
    lambda x, y: jnp.clip(y, 1 - x, 1 + x),
    lambda x, y: jnp.where(y > 0.5, x, 0.0),
    lambda x, y: jnp.maximum(x, y),
  ],
)
@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_with_arrays_it_is_the_number_of_the_run(function, kind):
  array = kind(np.float32([0.1, 0.5, 2.0]))
  expected = [function(np.float32(value), array) for value in VALUES]
  actual = per_run(lambda x: function(x, array))
  # Powers of NumPy and XLA differ in the last bit.
  np.testing.assert_allclose(actual, expected, rtol=2e-7)


MEETINGS = {
  "+": operator.add,
  "-": operator.sub,
  "*": operator.mul,
  "/": operator.truediv,
  "**": operator.pow,
  ">": operator.gt,
  "maximum": jnp.maximum,
  "multiply": jnp.multiply,
  "power": jnp.power,
  "dot": jnp.dot,
  "where": lambda x, y: jnp.where(jnp.ones(2, bool), x, y),
  "clip": lambda x, y: jnp.clip(jnp.ones(2, jnp.bfloat16), x, y),
  "stack": lambda x, y: jnp.stack(jnp.broadcast_arrays(x, y)),
  "asarray": lambda x, y: jnp.asarray(x) * jnp.asarray(y),
  "formula": lambda x, y: abs(1 - x) / 3 * (2**y),
  "function": lambda x, y: jnp.exp(x) * jnp.sqrt(y),
  "jit": jax.jit(operator.mul),
  "remat": lambda x, y: jax.checkpoint(lambda z: z * x * y)(jnp.asarray(y)),
  "vmap": lambda x, y: jax.vmap(lambda i: i * x * y)(jnp.arange(2)),
}


@pytest.mark.parametrize("meet", MEETINGS.values(), ids=MEETINGS)
@pytest.mark.parametrize("value", [0.3, 2])
def test_a_number_is_as_wide_as_a_plain_one(meet, value):
  """On either side of arrays, in a program and outside, of any run."""

  def types(function, *arguments):
    found = jax.eval_shape(function, *arguments)
    return [(array.dtype, array.weak_type) for array in found]

  def met(number):
    arrays = [jnp.ones(2, dtype) for dtype in (jnp.bfloat16, jnp.float32)]
    return [f for x in arrays for f in (meet(x, number), meet(number, x))]

  def of_a_run(run):
    return met(hyperparameters.TracedNumber("rate", (value, value + 1), run))

  plain = types(lambda: met(value))
  number = hyperparameters.TracedNumber("rate", (value,))
  assert types(lambda: met(number)) == plain
  assert types(jit.Program(lambda: met(number))) == plain
  assert types(of_a_run, jnp.int32(0)) == plain


def test_what_runs_agree_on_is_a_plain_number():
  number = hyperparameters.TracedNumber("rate", VALUES, jnp.int32(0))
  assert number * 0 == 0.0
  assert type(number * 0) is float
  assert (number > 0) is True
  assert (
    round(hyperparameters.TracedNumber("share", (2.1, 1.9), jnp.int32(0))) == 2
  )


@pytest.mark.parametrize(
  ("branch", "match"),
  [
    (lambda x: x > 0.25, "rate is 0.2, 0.3, 0.7 .* whether it is > 0.25"),
    (lambda x: x - 0.2 or 0, "rate is 0, .* whether it is 0"),
    (float, "rate is .* it as a constant"),
  ],
)
def test_runs_that_part_are_refused(branch, match):
  with pytest.raises(ValueError, match=match):
    branch(hyperparameters.TracedNumber("rate", VALUES, jnp.int32(0)))


def test_settings_are_merged_and_checked_as_one():
  configs = [
    algorithms.make_config("dapo", clip_high=value, overlong_cache=0.0)
    for value in (0.28, 0.3)
  ]
  merged = hyperparameters.merged(configs, "config.algorithm", jnp.int32(1))
  assert merged.clip_low == configs[0].clip_low
  assert merged.clip_high.values == (0.28, 0.3)
  assert merged.clip_high.name == "config.algorithm.clip_high"
  assert operator.add(jnp.float32(0), merged.clip_high) == np.float32(0.3)
  assert dataclasses.replace(merged, clip_low=0.1).clip_low == 0.1


def test_settings_that_are_no_numbers_may_not_differ():
  configs = [
    algorithms.make_config("grpo", kl_kind=kind) for kind in ("k1", "k3")
  ]
  with pytest.raises(ValueError, match=r"config\.algorithm\.kl_kind is k1, k3"):
    hyperparameters.merged(configs, "config.algorithm", jnp.int32(0))
