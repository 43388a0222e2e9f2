"""Models from outside of a run: found, read, or refused by name."""

import json

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.training.phases import checkpointed, outside
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints, sharding
from grpo_jax.types import ModelState
from tests.cli import checkpoint_run_test
from tests.experiments import tiny_config
from tests.training import tiny

pytestmark = pytest.mark.slow

SETTING = "config.rl.reference"


def save(folder, config: ml_collections.ConfigDict, **members):
  """A run that has not been trained, with its policy and further members."""
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  state = checkpointed.first_state(
    run,
    made,
    policy_lib.make_policy(run, made, sharding.make_mesh(1)),
    sharding.make_mesh(1),
  ).with_models(**members)
  made.close()
  folder.mkdir()
  (folder / "config.json").write_text(config.to_json())
  saved = checkpoints.Checkpoints(folder / "checkpoints", keep=1)
  saved.save(1, state, {})
  saved.close()
  return state


def find(path, config, **options):
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  try:
    return outside.find_outside(
      str(path),
      setting=SETTING,
      config=run,
      problem=made,
      mesh=sharding.make_mesh(1),
      **options,
    )
  finally:
    made.close()


def logits(policy, params, batch):
  h, _ = policy.hidden(
    params,
    batch.prompts.tokens,
    batch.prompts.mask,
    batch.tokens,
    batch.completion_mask,
    batch.prompt_index,
  )
  return policy.head(params, h)


def described(tree):
  return jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)


def test_a_run_of_another_size_is_read_with_its_average(tmp_path):
  wide = tiny_config.get_config("grpo")
  wide.model.width = 32
  wide.model.num_layers = 2
  state = save(tmp_path / "wide", wide)
  own = state.params["policy"]
  average = jax.tree.map(lambda x: 2 * x, own["trained"])
  save(tmp_path / "mean", wide, policy=ModelState(own, average=average))
  for name, expected in ("wide", own["trained"]), ("mean", average):
    found = find(tmp_path / name, tiny_config.get_config("grpo"))
    params = found.read()
    assert described(params) == described(found.shapes)
    jax.tree.map(np.testing.assert_array_equal, params["trained"], expected)
  batch = tiny.ragged_batch(tiny.make_phase())
  assert logits(found.policy, params, batch).shape[-1] == 64


@pytest.mark.parametrize("adapted", [False, True])
def test_a_frozen_model_is_kept_small(tmp_path, adapted):
  config = tiny_config.get_config("grpo")
  if adapted:
    config.model.lora_rank = 2
  save(tmp_path / "run", config)
  batch = tiny.ragged_batch(tiny.make_phase())
  sizes, said = {}, {}
  for storage in groups.STORAGE:
    found = find(tmp_path / "run", config, storage=storage)
    params = found.read()
    assert described(params) == described(found.shapes)
    sizes[storage] = sum(x.nbytes for x in jax.tree.leaves(params))
    said[storage] = logits(found.policy, params, batch)
  assert sizes["bfloat16"] == sizes["own"] / 2
  assert sizes["int8"] < sizes["bfloat16"]
  for storage in ("bfloat16", "int8"):
    assert 0 < abs(said[storage] - said["own"]).max() < 0.1


def test_a_checkpoint_of_another_family_and_table_is_read(tmp_path):
  for name in ("policy", "teacher"):
    (tmp_path / name).mkdir()
  ours = checkpoint_run_test.make(tmp_path / "policy", "qwen2")
  theirs = checkpoint_run_test.make(tmp_path / "teacher", "llama")
  config = checkpoint_run_test.small(tmp_path / "policy", ours)
  batch = tiny.ragged_batch(tiny.make_phase())
  found = find(theirs, config)
  params = found.read()
  assert described(params) == described(found.shapes)
  whole = logits(found.policy, params, batch)
  assert whole.shape[-1] == 320
  # Tables of a family are rounded up to different sizes.
  for size in (300, 330):
    policy = outside._with_ids(found.policy, size)
    cut = logits(policy, params, batch)
    assert cut.shape[-1] == size
    np.testing.assert_array_equal(cut[..., :300], whole[..., :300])
    for id_ in range(320, size):
      np.testing.assert_array_equal(cut[..., id_], whole.min(-1))
  int8 = find(theirs, config, storage="int8")
  params = int8.read()
  assert described(params) == described(int8.shapes)
  gap = logits(int8.policy, params, batch) - whole
  assert abs(gap[..., :300]).max() < 0.1
  # Some other text, of which other pieces were made.
  other = tokenizer.train(
    [{**checkpoint_run_test.ROWS[0], "prompt": "oh"}], 300
  )
  (theirs / "tokenizer.json").write_text(other)
  with pytest.raises(
    ValueError,
    match=r"config\.rl\.reference='.*': its tokenizer is another one .* ids"
    r" differ, the first is 26\d, which is .* there and .* here",
  ):
    find(theirs, config)
  with pytest.raises(ValueError, match="is a checkpoint of a language model"):
    find(theirs, config, model_name="reward")


def test_alphabets_are_compared_too(tmp_path):
  save(tmp_path / "run", tiny_config.get_config("grpo"))
  config = tiny_config.get_config("on_host")
  with pytest.raises(
    ValueError, match=r"the first is 1, which is '<bos>' there"
  ):
    find(tmp_path / "run", config)


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
  config = tiny_config.get_config("grpo")

  def offline(name):
    raise FileNotFoundError(f"{name!r} could not be downloaded")

  monkeypatch.setattr(outside.hub, "local_directory", offline)
  with pytest.raises(
    FileNotFoundError, match="no such folder of a run, and as a checkpoint: 'r"
  ):
    find("runs/nowhere", config)
  monkeypatch.undo()
  with pytest.raises(
    FileNotFoundError, match=r"config\.rl\.reference='.*holds no run.*--workdir"
  ):
    find(tmp_path / "none", config)
  save(tmp_path / "run", config)
  with pytest.raises(ValueError, match=r"has no 'reward', but policy; name a"):
    find(tmp_path / "run", config, model_name="reward")
  (tmp_path / "empty").mkdir()
  (tmp_path / "empty/config.json").write_text(config.to_json())
  with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
    find(tmp_path / "empty", config)
  (tmp_path / "empty/config.json").write_text(json.dumps({"model_type": "foo"}))
  with pytest.raises(ValueError, match="model_type is 'foo'; supported are"):
    find(tmp_path / "empty", config)


def test_a_run_begins_with_the_policy_of_another_and_nothing_else(tmp_path):
  config = tiny_config.get_config("grpo")
  more = ModelState({"trained": {"x": jnp.ones(3)}, "frozen": {}})
  before = save(tmp_path / "run", config, more=more)
  config.start_workdir = str(tmp_path / "run")
  config.seed = 5  # Not the other's.
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  mesh = sharding.make_mesh(1)
  policy = policy_lib.make_policy(run, made, mesh)
  state = checkpointed.first_state(run, made, policy, mesh)
  assert set(state.models) == {"policy"}
  jax.tree.map(
    np.testing.assert_array_equal,
    state.params,
    {"policy": before.params["policy"]},
  )
  config.model.width = 8
  run = config_lib.resolve(config)
  policy = policy_lib.make_policy(run, made, mesh)
  with pytest.raises(ValueError, match=r"start_workdir=.*its policy differ"):
    checkpointed.first_state(run, made, policy, mesh)
