"""Settings of the tests that compile for TPUs that are not there."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def no_cache():
  """Turns the cache off: programs for other devices are never read from it."""
  before = jax.config.jax_enable_compilation_cache
  jax.config.update("jax_enable_compilation_cache", False)
  yield
  jax.config.update("jax_enable_compilation_cache", before)
