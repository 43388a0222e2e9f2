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


@pytest.mark.parametrize(
  "is_chosen", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_warnings_are_plain_lines_unless_somebody_has_chosen(is_chosen):
  code = "import logging, sys; from grpo_jax.training import api;"
  if is_chosen:
    code += "logging.basicConfig(format='mine %(message)s', force=True);"
  else:
    code += "logging.basicConfig();"
  code += "api._prepare(); logging.warning('%d of them', 3)"
  done = subprocess.run(
    [sys.executable, "-c", code], check=True, capture_output=True, text=True
  )
  expected = "mine 3 of them" if is_chosen else "warning: 3 of them"
  assert done.stderr.strip() == expected


@pytest.mark.parametrize("given", ["quickstart", None, config.RunConfig])
def test_what_is_no_config_is_refused_before_there_is_a_folder(given, capsys):
  with pytest.raises(TypeError, match=r"train: config=.*grpo_jax.config\("):
    api.train(given)
  assert capsys.readouterr().out == ""
