"""The names that a notebook imports."""

import subprocess
import sys

import pytest

import grpo_jax
from grpo_jax import algorithms
from grpo_jax.training import api, config, handle


def test_public_names_are_what_they_say():
  assert grpo_jax.train is api.train
  assert grpo_jax.load is api.load
  assert grpo_jax.Run is handle.Run
  assert grpo_jax.ALGORITHMS is algorithms.ALGORITHMS
  assert grpo_jax.phase_config is config.phase_config
  assert all(hasattr(grpo_jax, name) for name in grpo_jax.__all__)


def test_another_name_is_refused_with_those_there_are():
  with pytest.raises(AttributeError, match="'trian'; public are config, tr"):
    _ = grpo_jax.trian


def test_importing_the_package_imports_nothing_else():
  """So that a tool can ask for the version in a moment."""
  code = "import grpo_jax, sys; sys.exit('jax' in sys.modules)"
  assert (
    subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
  )
