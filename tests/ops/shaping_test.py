"""The soft punishment of long completions, with the paper's numbers."""

import jax
import numpy as np
import pytest

from grpo_jax.ops import shaping


@pytest.mark.parametrize(
  ("length", "penalty"),
  [
    (0, 0.0),
    (16_384, 0.0),  # 20 480 − 4 096: the last length that is free.
    (16_385, -1 / 4096),
    (18_432, -0.5),
    (20_480, -1.0),
    (20_481, -1.0),
    (50_000, -1.0),
  ],
)
def test_soft_overlong_of_dapo(length, penalty):
  found = jax.jit(shaping.soft_overlong, static_argnums=(1, 2))(
    np.array([length]), 20_480, 4_096
  )
  np.testing.assert_array_equal(found, np.float32([penalty]))
