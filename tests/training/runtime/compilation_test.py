"""Tests of the time that JAX has compiled."""

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.training.runtime import compilation
from tests.training.runtime.terminals import Clock

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"


def test_seconds_within_others_count_once():
  now = Clock()
  clock = compilation.Clock(now)
  for now.seconds, duration in ((2.0, 1.0), (4.0, 1.5), (5.0, 5.0), (7.0, 2.0)):
    clock.on_duration(_TRACE, duration)
  assert clock.seconds == pytest.approx(7.0)
  clock.on_duration("/jax/another/event", 9.0)
  assert clock.seconds == pytest.approx(7.0)


@pytest.mark.parametrize(
  ("programs", "text"),
  [
    ([(3.0, False)], "traced and compiled in 3.0 s"),
    ([(0.5, True)], "traced and compiled in 0.5 s (from the cache)"),
    (
      [(0.5, True), (0.25, False)],  # Small ones are never kept.
      "traced and compiled in 0.8 s (from the cache)",
    ),
    (
      [(0.5, True), (2.0, False)],
      "traced and compiled in 2.5 s (1 of 2 from the cache)",
    ),
  ],
)
def test_it_says_what_came_from_the_cache(programs, text):
  now = Clock()
  clock = compilation.Clock(now)
  for seconds, is_found in programs:
    now.seconds += 100.0
    if is_found:
      clock.on_event(_HIT)
    clock.on_duration(_COMPILE, seconds)
  assert clock.count.describe() == text


def test_it_hears_of_a_real_compilation_until_it_is_left():
  with compilation.clock() as clock:
    jax.jit(lambda x: x * 3 + 1)(jnp.ones(3))
    of_first = clock.count
    assert of_first.seconds > 0
  jax.jit(lambda x: x * 4 + 1)(jnp.ones(3))
  assert clock.count == of_first
  assert (clock.count - of_first).seconds == 0
