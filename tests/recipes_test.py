"""Recipes: their values are the published ones, and each of them runs."""

import ast
import configparser
import dataclasses
import functools
import importlib
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards import search_task
from grpo_jax import algorithms, api
from grpo_jax.configs import ppo_add
from grpo_jax.configs.recipes import models
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step, update
from grpo_jax.training import loop
from grpo_jax.training.phases import build, checkpointed, executors
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Scored
from tests.cli import checkpoint_run_test
from tests.training import pictures, tiny

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FOLDER = _ROOT / "configs/recipes"
_SAMPLE = _ROOT / "tests/data/gsm8k_sample/train.jsonl"
# Of the policy's loss, by an algorithm that has it.
_MEANS = {
  algorithms.get_algorithm(name).aggregate: mean
  for name, mean in (
    ("grpo", "rows"),
    ("dapo", "tokens"),
    ("dr_grpo", "budget"),
  )
}
_ON_IMAGES = ("vlm_r1", "r1_v")


def _value_of(text: str):
  if text == "?":
    return None
  try:
    return ast.literal_eval(text)
  except ValueError:
    return text


def _published() -> dict[str, dict]:
  """Recipe -> path of a setting -> its value; None is not published."""
  parser = configparser.ConfigParser(
    delimiters=":", inline_comment_prefixes="#"
  )
  parser.read(_ROOT / "tests/data/recipes.ini", encoding="utf-8")
  table = {}
  for name in parser.sections():
    table[name] = {
      f"{section}.{field}".removeprefix("run."): _value_of(text)
      for section, line in parser[name].items()
      for field, _, text in (word.partition("=") for word in line.split())
    }
  return table


_TABLE = _published()
NAMES = tuple(_TABLE)


def _models(name):
  return models.VISION if name in _ON_IMAGES else models.MODELS


def _get_config(name: str, *arguments: str):
  module = importlib.import_module(f"grpo_jax.configs.recipes.{name}")
  return module.get_config(*arguments)


def _value(config, path: str):
  if path == "loss.mean":
    return _MEANS[algorithms.get_algorithm(config.algorithm.name).aggregate]
  for part in path.split("."):
    config = config[part]
  return config


def test_sao_has_the_critic_of_its_paper():
  """Attention frozen, two updates for one, five times the learning rate."""
  config = ppo_add.get_config("sao")
  assert config.critic.freeze == ("attention",)
  assert config.critic.num_updates == 2
  assert (config.rl.num_prompts, config.rl.group_size) == (128, 1)
  rates = (x.optimizer.learning_rate for x in (config.critic, config.rl))
  assert next(rates) == 5 * next(rates)
  assert config.phases == ("sft", "value", "rl")


@pytest.mark.parametrize(
  ("name", "phases", "ratio"),
  [
    ("sao", ("sft", "value", "warm_up", "rl"), 5.0),
    ("compaction_rl", ("sft", "value", "rl"), 1.5),
  ],
)
def test_a_toy_has_the_critic_of_its_recipe(name, phases, ratio):
  """Compares steps, updates and the ratio of learning rates."""
  full, toy = _get_config(name), _get_config(name, "toy")
  assert toy.phases == phases
  assert toy.phases[1:] == full.phases
  for phase in phases[1:-1]:
    assert toy[phase].steps == full[phase].steps
    assert toy[phase].num_prompts == 128
  assert toy.rl.num_prompts == 128
  assert toy.critic.freeze == full.critic.freeze
  assert toy.critic.num_updates == 2
  for config in (full, toy):
    rates = (x.optimizer.learning_rate for x in (config.critic, config.rl))
    assert next(rates) / next(rates) == pytest.approx(ratio)


def test_sao_for_programs_has_another_band():
  config = _get_config("sao", "qwen2.5-7b,code")
  band = config.algorithm.clip_low, config.algorithm.clip_high
  assert band == (0.8, 3.0)
  assert config.rewards.functions == ("code",)
  assert "```python" in config.data.template
  assert "boxed" not in config.data.template
  toy = _get_config("sao", "toy,code").algorithm
  assert (toy.clip_low, toy.clip_high) == band
  assert _get_config("sao", "toy,math") == _get_config("sao", "toy")
  _resolved(config)
  with pytest.raises(ValueError, match=r"'toy,prose' ends with 'prose'.*math"):
    _get_config("sao", "toy,prose")


def test_the_toy_of_compaction_rl_is_compacted_as_in_the_paper():
  run = config_lib.resolve(_get_config("compaction_rl", "toy"))
  solved = problem.make_problem(run)
  assert solved.compaction.max_compactions == 3
  assert solved.compaction.keep_turns == 2


def _resolved(config) -> config_lib.RunConfig:
  config.allow_unpublished = True
  return config_lib.resolve(config)


# --- values ------------------------------------------------------------------


def test_every_recipe_is_in_the_table():
  files = {path.stem for path in _FOLDER.glob("*.py")} - {"models"}
  assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_published_ones(name):
  config = _get_config(name)
  published = {k: v for k, v in _TABLE[name].items() if v is not None}
  assert {path: _value(config, path) for path in published} == published


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_published_says_so(name):
  config = _get_config(name)
  missing = {path for path, value in _TABLE[name].items() if value is None}
  assert set(config.unpublished) == missing
  source = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
  marked = re.findall(r"(?m)^  config\.([\w.]+) = .*  # not published$", source)
  assert set(marked) == missing
  assert len(re.findall("# not published", source)) == len(missing)
  if not missing:
    config_lib.resolve(config)
    return
  with pytest.raises(ValueError, match="does not publish") as caught:
    config_lib.resolve(config)
  for path in missing:
    assert f"{path}={_value(config, path)!r}" in str(caught.value)
  assert "--config.allow_unpublished=True" in str(caught.value)
  assert _resolved(config).unpublished == config.unpublished


@pytest.mark.parametrize("name", NAMES)
def test_toys_may_start_at_once(name):
  assert config_lib.resolve(_get_config(name, "toy")).unpublished == ()


@pytest.mark.parametrize(
  ("name", "trained", "minibatch", "updates"),
  [
    ("deepseekmath", 64 * 16, 1024, 1),
    ("r1_zero", 16 * 512, 8192 // 16, 16),
    ("r1", 16 * 512, 8192 // 16, 16),
    ("dapo", 16 * 512, 8192 // 16, 16),
    ("dr_grpo", 8 * 128, 128, 8),
    ("gspo", 16 * 512, 2048, 4),
    ("gfpo", 24 * 64, 1536, 1),
    ("sao", 128, 128, 1),
    ("compaction_rl", 128, 128, 1),
  ],
)
def test_derived_sizes(name, trained, minibatch, updates):
  run = _resolved(_get_config(name))
  rl = run.section("rl")
  assert rl.num_rows == trained
  assert rl.num_epochs * rl.num_minibatches == updates
  assert trained // rl.num_minibatches == minibatch


def test_sizes_that_are_given_in_other_units():
  dapo = _get_config("dapo")
  budget = dapo.sampling.max_new_tokens
  assert dapo.algorithm.overlong_cache * budget == 4096
  # Gradient steps; the sources count rollouts.
  for name, rollouts in (("dapo", 20), ("gspo", 10), ("gfpo", 10)):
    config = _get_config(name)
    updates = config.rl.num_epochs * config.rl.num_minibatches
    assert config.rl.optimizer.warmup_steps == rollouts * updates
  zero = _resolved(_get_config("r1_zero"))
  assert set(zero.phases) == {"rl"}
  rl = zero.section("rl")
  assert rl.set_reference
  assert not rl.reset_optimizer
  assert rl.steps * rl.num_minibatches == 400
  assert len(zero.phases) * 400 == 10_400


@pytest.mark.parametrize("name", NAMES)
def test_a_toy_has_the_structure_of_its_recipe(name):
  full, toy = _get_config(name), _get_config(name, "toy")
  same = {"keep_routing"}  # The toy has no experts.
  for field, value in full.algorithm.items():
    if field not in same:
      assert toy.algorithm[field] == value
  for field in ("group_size", "max_rounds", "num_epochs", "num_minibatches"):
    assert toy.rl[field] == full.rl[field]
  assert toy.sampling.temperature == full.sampling.temperature
  assert toy.rewards.weights[0] == full.rewards.weights[0]


def test_unknown_model_names_the_nearest():
  with pytest.raises(
    KeyError, match=r"'qwen2\.5-7'.*mean 'qwen2\.5-7b'\?.*toy"
  ):
    _get_config("dapo", "qwen2.5-7")


# --- phases ------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "model"), [(name, x) for name in NAMES for x in _models(name)]
)
def test_every_recipe_resolves_with_every_model(name, model):
  run = _resolved(_get_config(name, model))
  assert run.model.checkpoint == _models(name)[model].checkpoint
  assert run.model.remat == "full"
  assert run.data.template != config_lib.DataConfig().template


def _pairs():
  """Every recipe with a model, and every model with a recipe."""
  for i, name in enumerate(NAMES):
    known = tuple(_models(name))
    # So that the last, which replays routing, has the experts.
    yield name, known[(i - len(NAMES)) % len(known)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), _pairs())
def test_every_recipe_is_assembled_with_a_model(tmp_path, name, model):
  """All that a run does before it loads weights, with other questions."""
  folder = tmp_path / "checkpoint"
  folder.mkdir()
  described = dict(_models(name)[model].config_json)
  config = _get_config(name, model)
  config.model.checkpoint = str(folder)
  config.data.source = "jsonl"
  config.data.train_path = str(_SAMPLE)
  config.data.format = "gsm8k"
  config.data.tokenizer = "gsm8k"
  if name in _ON_IMAGES:
    _with_pictures(tmp_path, config)
    described |= {
      "image_token_id": pictures.id_of("<|image_pad|>"),
      "video_token_id": pictures.id_of("<|video_pad|>"),
      "vision_start_token_id": pictures.id_of("<|vision_start|>"),
      "vision_end_token_id": pictures.id_of("<|vision_end|>"),
    }
  text = json.dumps(described)
  (folder / "config.json").write_text(text, encoding="utf-8")
  if config.data.environment:
    _with_chat(tmp_path, config)
  run = _resolved(config)
  solved = problem.make_problem(run)
  try:
    policy = policy_lib.make_policy(run, solved, sharding.make_mesh(1))
    phases = checkpointed.make_phases(
      run, solved, policy, sharding.make_mesh(1)
    )
    state = checkpointed.abstract_state(
      phases[-2:], checkpointed.abstract_start(policy, run.seed)
    )
  finally:
    solved.close()
  phase = phases[-1].phase
  assert phase.plan.num_updates == run.section("rl").num_minibatches
  has_reference = run.algorithm[1].kl_coef > 0
  assert ("reference" in state.models) == has_reference
  (leaf,) = (
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(
      state.params["policy"]
    )
    if jax.tree_util.keystr(path).endswith("['embed']['embedding']")
  )
  vocab_size = described["vocab_size"]
  assert leaf.shape[0] == vocab_size
  assert leaf.dtype == jnp.float32


def _with_pictures(folder, config):
  """Records that show an image, and a tokenizer and a processor for them."""
  pictures.write_records(folder, broken=())
  rows = (folder / "data.jsonl").read_text().replace('"picture"', '"image"')
  (folder / "data.jsonl").write_text(rows)
  config.data.train_path = str(folder / "data.jsonl")
  config.data.eval_path = ""
  config.data.format = ""
  config.data.tokenizer = str(pictures.write_tokenizer(folder))
  known = pictures.PROCESSORS / "qwen2_5_vl" / "preprocessor_config.json"
  processor = json.loads(known.read_text()) | {"patch_size": 14}
  (folder / "processor").mkdir()
  config.data.image_processor = str(folder / "processor")
  (folder / "processor" / known.name).write_text(json.dumps(processor))


def _with_chat(folder, config):
  """A tokenizer with a chat template, and a tool that needs no sandbox."""
  search_task.write(folder / "search")
  config.data.tokenizer = str(folder / "search" / "tokenizer")
  config.environment.options = {
    "tools": ("search",),
    "corpus": str(folder / "search" / "passages.jsonl"),
  }
  config.rewards.num_workers = 1


# --- runs --------------------------------------------------------------------


def _toy_parts(name: str, **fields):
  """Problem, parts and first state of a smaller toy's "rl" phase."""
  config = _get_config(name, "toy")
  config.model.width = 16
  config.model.mlp_width = 32
  config.model.num_layers = 1
  config.rl.num_prompts = max(1, config.rl.num_prompts // 8)
  config.rl.micro_batch_size = 2
  config.rl.num_lengths = 1  # Compiles faster.
  config.algorithm.update(fields)
  run = config_lib.resolve(config)
  solved = problem.make_problem(run)
  policy = policy_lib.make_policy(run, solved, sharding.make_mesh(1))
  mesh = sharding.make_mesh(1)
  state = policy_lib.initial_state(policy, run.seed)
  for phase in [x for x in ("preference", "rl") if x in run.phases]:
    parts = build.make_phase(run, solved, policy, phase, mesh)
    state = step.enter_phase(state, parts, 0)
  return run, solved, parts, state


def _scored(rollout) -> Scored:
  """Rewards that differ within every group, whatever was sampled."""
  num_rows = rollout.tokens.shape[0]
  rewards = jnp.asarray(np.arange(num_rows) * 7 % 5, jnp.float32)
  return Scored(
    rewards=rewards,
    valid=jnp.ones(num_rows, bool),
    correct=rewards > 2,
    components={"accuracy": rewards},
    weights={"accuracy": jnp.float32(1)},
  )


def _first_gradient(name: str, **fields):
  """Gradient of a toy's first update: ratio 1, reference = policy."""
  _, solved, phase, state = _toy_parts(name, **fields)
  # Each row of the stream has a prompt of its own.
  plan = dataclasses.replace(phase.plan, group_size=1)
  phase = dataclasses.replace(phase, plan=plan)
  rows = next(solved.supervised_stream(0, 8, None))
  batch = executors.train_batch(rows, np.arange(8), 8)
  batch = dataclasses.replace(
    jax.tree.map(jnp.asarray, batch),
    group_id=jnp.arange(8) // 4,
    rewards=jnp.asarray([1.0, 0, 0, 0, 0, 2, 1, 0]),
    coefficients={},
    num_groups=2,
  )

  @jax.jit
  def gradient(state, batch):
    batch = step.prepare(state, batch, jax.random.key(0), phase=phase)
    (loss,) = phase.losses
    return update.gradient(phase.update, loss, state.params, batch)[0]

  leaves = jax.tree.leaves(gradient(state, batch))
  return np.concatenate([np.ravel(leaf) for leaf in leaves])


@pytest.mark.slow
def test_neither_clip_range_nor_kl_shows_in_a_first_update():
  """Why it does not matter which range DeepSeekMath had: it has one update."""
  published = _first_gradient("deepseekmath")
  other = _first_gradient(
    "deepseekmath", clip_low=1.0, clip_high=10.0, kl_coef=0.001
  )
  size = np.linalg.norm(published)
  assert size > 1e-3
  np.testing.assert_allclose(published, other, atol=1e-5 * size)
  scaled = _first_gradient("deepseekmath", advantage_scale="none")
  assert np.linalg.norm(published - scaled) > 0.1 * size


@pytest.mark.slow
def test_each_phase_of_r1_zero_has_a_new_reference():
  run, _, phase, state = _toy_parts("r1_zero")
  assert run.phases == ("sft", "rl", "rl")
  moved = jax.tree.map(lambda x: x + 1, state.models["policy"])
  state = state.with_models(policy=moved)
  entered = step.enter_phase(state, phase, 2)
  jax.tree.map(
    np.testing.assert_array_equal,
    entered.params["reference"],
    state.params["policy"],
  )
  # The moments of AdamW stay; its schedule, which is constant, starts anew.
  same = jax.tree.map(
    lambda a, b: bool((a == b).all()),
    entered.models["policy"].opt_state,
    moved.opt_state,
  )
  leaves = jax.tree.leaves(state.params["policy"])
  assert sum(jax.tree.leaves(same)) >= 2 * len(leaves)


# Toys whose step has a part that no toy before has. commands_test.py traces the
# step of each toy, and those with a critic are run below.
@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["deepseekmath", "dapo", "gfpo", "intellect2", "v32_math", "vlm_r1"]
)
def test_a_toy_runs_two_steps(name):
  run, solved, phase, state = _toy_parts(name)
  judge = tiny.Judge(lambda _, rollout: _scored(rollout))
  phase = dataclasses.replace(phase, reward=judge, proxy=None)
  advance = jax.jit(functools.partial(step.fused_step, phase=phase))
  rl = run.section("rl")
  num_prompts = rl.num_prompts * rl.max_rounds
  stream = solved.prompt_stream(0, num_prompts, None)
  before = state.params
  for _ in range(2):
    prompts = jax.tree.map(jnp.asarray, next(stream).prompts)
    state, metrics, _ = advance(state, prompts)
    missing = {k for k, value in metrics.items() if not np.isfinite(value)}
    # Of two prompts some domains have none; no row may have ended by itself.
    domains = {k for k in missing if k.startswith("domain/")}
    assert missing - domains <= {"length/terminated"}
    assert metrics["gradient_norm"] > 0
  assert int(state.step) == 2
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, state.params)
  assert any(jax.tree.leaves(moved))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sao", "compaction_rl"])
def test_a_toy_with_a_critic_runs_from_start_to_end(tmp_path, name):
  """All of its phases, in fewer steps and with a smaller model."""
  config = _get_config(name, "toy")
  config.model.width = 16
  config.model.mlp_width = 32
  config.model.num_layers = 1
  config.eval.num_prompts = config.eval.batch_size = 8
  config.log.trackers = ()
  for phase in config.phases:
    config[phase].steps = 2
    config[phase].num_prompts = 8
  if name == "compaction_rl":
    config.data.task_options.num_steps = 16
    config.data.task_options.every = 4
  loop.train(config, tmp_path)
  lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
  rows = [row for row in map(json.loads, lines) if "value/loss" in row]
  assert len(rows) == 2 * len(config.phases[1:])
  assert all(np.isfinite(row["value/loss"]) for row in rows)
  assert [row["step"] for row in rows if "loss/policy" in row] == [
    row["step"] for row in rows[-2:]
  ]
  if name == "compaction_rl":
    assert all(row["contexts/mean"] == 4 for row in rows)
  with api.load(tmp_path) as loaded:
    assert loaded.step == 2 * len(config.phases)


@pytest.mark.slow
def test_sao_starts_from_a_checkpoint_and_trains_on_old_rollouts(tmp_path):
  """With a model of yours, on text that the host scores."""
  config = _get_config("sao", "qwen2.5-0.5b")
  config.allow_unpublished = True
  config.model.checkpoint = str(checkpoint_run_test.make(tmp_path, "qwen2"))
  config.data.source = "jsonl"
  config.data.train_path = str(tmp_path / "prompts.jsonl")
  config.data.max_prompt_len = 96
  config.sampling.max_new_tokens = 4
  config.rewards.functions = ("my_rewards:vowels",)
  config.eval.num_prompts = config.eval.batch_size = 8
  config.log.trackers = ()
  for phase in config.phases:
    config[phase].steps = 3
    config[phase].num_prompts = 8
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(tmp_path)
    loop.train(config, tmp_path / "run")
  text = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")
  rows = [
    row for row in map(json.loads, text.splitlines()) if "value/loss" in row
  ]
  phases = [name for name in config.phases for _ in range(3)]
  assert [row["phase"] for row in rows] == phases
  assert [row.get("staleness/max", 0) for row in rows[-3:]] == [0, 1, 1]
