"""Functions of several policies, from those of one."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rollout import resumed, together


def test_results_are_those_of_one_policy_each():
  """The product with what they share is one product of all rows."""
  rng = np.random.default_rng(0)
  shared = rng.normal(size=(3, 4)).astype(np.float32)
  own = [
    {"rows": rng.normal(size=(2, 3)).astype(np.float32), "scale": np.float32(s)}
    for s in (1.0, -2.0)
  ]

  def function(shared, own):
    return {"found": own["scale"] * (own["rows"] @ shared)}

  program = jax.jit(together.program(function))
  for one, found in zip(own, program(shared, *own), strict=True):
    expected = one["scale"] * (one["rows"] @ shared)
    np.testing.assert_allclose(found["found"], expected, rtol=1e-5)
  (found,) = program(shared, own[1])
  expected = -2.0 * (own[1]["rows"] @ shared)
  np.testing.assert_allclose(found["found"], expected, rtol=1e-5)
  dots = [
    line
    for line in program.lower(shared, *own).as_text().splitlines()
    if "dot_general" in line
  ]
  assert len(dots) == 1
  assert "batching_dims" not in dots[0]


def test_a_loop_goes_on_while_any_policy_asks_for_it():
  def turns(shared, own):
    return jax.lax.while_loop(
      lambda n: resumed.any_of_all(shared + n < own), lambda n: n + 1, 0
    )

  program = jax.jit(together.program(turns))
  assert [int(x) for x in program(1, jnp.array([3, 2]))] == [2]
  both = program(1, jnp.array([3, 2]), jnp.array([5, 0]))
  assert [int(x) for x in both] == [4, 4]
