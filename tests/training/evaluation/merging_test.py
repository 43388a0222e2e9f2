"""Policies of several runs averaged into one."""

import json

import jax
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from grpo_jax.training.evaluation import merging
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints, files, log, sharding
from tests.experiments import tiny_config

pytestmark = pytest.mark.slow


def write(folder, seed=0, **settings):
  """A run that has only been begun: its policy has the seed's parameters."""
  config = tiny_config.get_config("grpo")
  config.seed = seed
  with config.unlocked():
    config.update_from_flattened_dict(settings)
  made = config_lib.resolve(config)
  mesh = sharding.make_mesh(1)
  found = problem.make_problem(made)
  policy = policy_lib.make_policy(made, found, mesh)
  state = policy_lib.initial_state(policy, seed)
  saved = checkpoints.Checkpoints(folder / "checkpoints", keep=1)
  saved.save(0, state, {"phase": merging.NO_PHASE})
  saved.close()
  files.write(folder / log.CONFIG, config.to_json().encode())
  return jax.device_get(state.params["policy"])


def _opened(folder):
  from grpo_jax import api

  with api.load(folder) as run:
    return jax.device_get(run.params), run.step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def three(folder):
  return {
    str(folder / name): write(folder / name, seed)
    for seed, name in enumerate("abc")
  }


def _leaves(tree):
  return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize(
  ("weights", "has_base", "expected"),
  [
    ((0.25, 0.75), False, (0.25, 0.75, 0.0)),
    ((1.0, 2.0), True, (1.0, 2.0, -2.0)),
  ],
)
def test_the_sum_of_policies(three, tmp_path, weights, has_base, expected):
  a, b, base = three
  out = str(tmp_path / "out")
  size = merging.merge([a, b], out, weights, base if has_base else "")
  found, step = _opened(out)
  assert step == 0
  assert size == sum(x.size for x in _leaves(found))
  every = _leaves(found), *map(_leaves, three.values())
  for leaf, *parts in zip(*every, strict=True):
    total = sum(w * part for w, part in zip(expected, parts, strict=True))
    np.testing.assert_allclose(leaf, total, rtol=1e-5, atol=1e-6)
  said = json.loads((tmp_path / "out" / merging.MERGE).read_text())
  names = [a, b, base] if has_base else [a, b]
  assert [x["workdir"] for x in said["runs"]] == names
  with pytest.raises(ValueError, match="holds a run"):
    merging.merge([a, b], out)


def test_the_merged_policy_has_the_dtype_of_its_settings(three, tmp_path):
  a, *_ = three
  write(tmp_path / "half", **{"model.param_dtype": "bfloat16"})
  merging.merge([a, str(tmp_path / "half")], str(tmp_path / "out"))
  found, _ = _opened(tmp_path / "out")
  assert {str(x.dtype) for x in jax.tree.leaves(found)} == {"float32"}


def test_equal_weights_that_nobody_gives():
  assert merging.coefficients(4, (), False) == [0.25] * 4
  assert merging.coefficients(2, (), True) == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(
  ("weights", "has_base", "message"),
  [
    ((1.0,), False, "1 weight for 2 runs"),
    ((0.5, 0.6), False, r"is 1\.1; needs 1, or a base"),
    ((0.5, float("nan")), True, "needs finite numbers"),
  ],
)
def test_weights_that_mean_nothing(weights, has_base, message):
  with pytest.raises(ValueError, match=message):
    merging.coefficients(2, weights, has_base)


def test_folders_that_cannot_be_merged(tmp_path):
  with pytest.raises(ValueError, match="no runs are named"):
    merging.merge([], str(tmp_path / "out"))
  (tmp_path / "file").write_text("mine")
  with pytest.raises(ValueError, match="file is a file; name a new folder"):
    merging.merge(["a"], str(tmp_path / "file"))
  (tmp_path / log.CONFIG).write_text('{"model_type": "qwen2"}')
  with pytest.raises(ValueError, match="is a Hugging Face checkpoint, and no"):
    merging.merge([str(tmp_path)], str(tmp_path / "out"))


def test_policies_that_do_not_go_together(three, tmp_path):
  a = next(iter(three))
  write(tmp_path / "wide", **{"model.mlp_width": 16})
  out = str(tmp_path / "out")
  message = r"3 arrays of .*wide differ .*needs \("
  with pytest.raises(ValueError, match=message):
    merging.merge([a, str(tmp_path / "wide")], out)
  config = tiny_config.get_config("grpo")
  config.model.lora_rank = 2
  (tmp_path / "adapted").mkdir()
  (tmp_path / "adapted" / log.CONFIG).write_text(config.to_json())
  with pytest.raises(ValueError, match="an average of their factors"):
    merging.merge([a, str(tmp_path / "adapted")], out)
  assert not (tmp_path / "out").exists()


def test_nobody_trains_in_the_folder_of_a_merge(three):
  a = next(iter(three))
  with pytest.raises(ValueError, match="holds merged policies, and no run"):
    loop.train(tiny_config.get_config("grpo"), a)
