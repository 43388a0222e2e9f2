"""The benchmark of single operations: what it adds up, and a whole run."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks import profile
from tests.experiments import command
from tests.experiments.benchmarks import step_test


def test_time_counts_where_it_is_spent():
  # `loop` from 0 to 10 runs `a` twice, and one `a` has `b` within.
  events = [
    profile.Event("loop", 0, 10e9),
    profile.Event("a", 1e9, 3e9),
    profile.Event("a", 4e9, 8e9),
    profile.Event("b", 5e9, 6e9),
    profile.Event("a", 10e9, 11e9),
  ]
  seconds = profile.shared([reversed(events)])
  assert seconds == {"loop": 4.0, "a": 6.0, "b": 1.0}


def test_threads_at_work_together_share_the_time():
  # While 1 to 4 of the first thread the second is at work from 2 to 3, and the
  # loop itself waits for nobody.
  first = [profile.Event("loop", 0, 5e9), profile.Event("a", 1e9, 4e9)]
  second = [profile.Event("b", 2e9, 3e9), profile.Event("b", 7e9, 8e9)]
  seconds = profile.shared([first, second])
  assert seconds == {"loop": 2.0, "a": 2.5, "b": 1.5}
  assert sum(seconds.values()) == 6.0


def test_kinds_say_phase_module_shape_and_operations():
  def function(x, w):
    with jax.named_scope("update"), jax.named_scope("mlp"):
      return jnp.tanh(x @ w)

  arguments = jnp.ones((8, 16)), jnp.ones((16, 4))
  text = jax.jit(function).lower(*arguments).compile().as_text()
  (product,) = {x for x in profile.kinds(text).values() if x.flops}
  assert product[:1] == ("update",)
  assert product.module.startswith("mlp")
  assert product.shape == "8×16 · 16×4 → 8×4"
  assert product.flops == 2 * 8 * 16 * 4


def test_the_table_has_rates_and_shares():
  product = profile.Kind("update", "mlp", "8×16 · 16×4 → 8×4", 1e9)
  other = profile.Kind("decode", "tanh", "8×4", 0.0)
  lines = profile.table({product: (3, 0.3), other: (2, 0.1)}, 0.8, 20e9)
  assert lines[0] == "0.400 s in operations, 0.50 × the step"
  rows = [line.split() for line in lines]
  assert ["update", "products", "3", "0.300", "75.0%", "10.0", "50%"] in rows
  assert ["decode", "others", "2", "0.100", "25.0%"] in rows


@pytest.mark.slow
def test_a_step_is_recorded():
  sizes = [x for x in step_test.TINY if not x.startswith("--repeats")]
  status, printed, error = command.run("benchmarks.profile", *sizes)
  assert status == 0, error
  rows = [line.split() for line in printed.splitlines()]
  for phase in ("prefill", "decode", "update"):
    (row,) = (x for x in rows if x[:2] == [phase, "products"])
    assert int(row[2]) > 0
    assert float(row[5]) > 0
  # One product of each layer and token: 11 of the 12 tokens are read.
  (row,) = (x for x in rows if x[:2] == ["decode", "products"])
  assert int(row[2]) % 11 == 0
