"""Tests of a run's memory: against figures in files, and arrays that exist."""

import dataclasses
import importlib
import json
import re

import jax
import jax.numpy as jnp
import pytest

from experiments.pods import held
from grpo_jax.configs import pods as pods_config
from grpo_jax.configs.recipes import models as published
from grpo_jax.models import architecture, delta, transformer
from grpo_jax.models.hf import families
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from tests.experiments import command, tiny_config

pytestmark = pytest.mark.slow

RECIPES = sorted(
  path.stem
  for path in (command.ROOT / "configs/recipes").glob("*.py")
  if path.stem != "models"
)

# Totals of the weight files on the hub.
PARAMETERS = {
  "qwen2.5-0.5b": 494_032_768,
  "qwen2.5-1.5b": 1_543_714_304,
  "qwen2.5-7b": 7_615_616_512,
  "qwen3-0.6b": 596_049_920,
  "qwen3-8b": 8_190_735_360,
  "qwen3-30b-a3b": 30_532_122_624,
  "qwen2.5-vl-3b": 3_754_622_976,
  "qwen2.5-vl-7b": 8_292_166_656,
}
ON_IMAGES = ("r1_v", "vlm_r1")


def recipe(name: str, model: str):
  module = importlib.import_module(f"grpo_jax.configs.recipes.{name}")
  config = module.get_config(model)
  config.allow_unpublished = True
  return config


def table(config) -> dict[str, int]:
  settings = config_lib.resolve(config)
  found = held.table(settings, held.mesh_of(settings))
  return {kind: size for kind, (_, size) in found.items()}


def gib(size: int) -> str:
  return f"{size / 2**30:.1f}"


@pytest.mark.parametrize("model", published.MODELS)
def test_the_table_of_models_is_right(model):
  config = recipe("trl", model)
  config.rl.micro_batch_size = config.rl.num_prompts * config.rl.group_size
  config.sampling.max_new_tokens = 8  # None of these depends on lengths.
  config.data.max_prompt_len = 8
  adamw = table(config)
  assert adamw["policy"] == 4 * PARAMETERS[model]
  config.model.param_dtype = "bfloat16"
  config.rl.optimizer.name = "adafactor"
  config.rl.optimizer.stochastic_rounding = True
  adafactor = table(config)
  row = re.search(rf"\| {re.escape(model)} +\|(.*)\|\n", published.__doc__)[1]
  state = "policy", "policy, optimizer", "gradients"
  assert [cell.strip() for cell in row.split("|")] == [
    f"{PARAMETERS[model] / 1e9:.2f} B",
    gib(sum(adamw[kind] for kind in state)),
    gib(sum(adafactor[kind] for kind in state)),
  ]


@pytest.mark.parametrize("model", published.VISION)
def test_models_that_see_have_their_published_sizes(model):
  config = recipe("vlm_r1", model)
  config.data.max_prompt_len = config.sampling.max_new_tokens = 8
  assert table(config)["policy"] == 4 * PARAMETERS[model]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_its_rollout_takes(name):
  model_name = "qwen2.5-vl-7b" if name in ON_IMAGES else "qwen2.5-7b"
  config = recipe(name, model_name)
  sizes = held.sizes(config_lib.resolve(config))
  text = " ".join(
    importlib.import_module(f"grpo_jax.configs.recipes.{name}").__doc__.split()
  )
  said = re.search(
    rf"rollout takes ([\d.]+) GiB over all devices with {model_name}", text
  )
  rows = config.rl.num_prompts * config.rl.group_size
  # Keys and values: 28 layers of 4 heads of 128, two bytes each.
  prompts = config.rl.num_prompts
  slots = sizes.max_prompt_len * prompts + sizes.max_new_tokens * rows
  assert said[1] == gib(2 * 28 * 4 * 128 * 2 * slots)
  assert said[1] == gib(held._cache(sizes, prompts, rows))
  # A byte each, and four for the scale of a token and head.
  model = dataclasses.replace(sizes.model, cache_dtype="int8")
  narrow = dataclasses.replace(sizes, model=model)
  assert held._cache(narrow, prompts, rows) == 2 * 28 * 4 * 132 * slots


def test_state_and_cache_are_those_of_a_run():
  config = tiny_config.get_config()
  config.algorithm.kl_coef = 0.1
  run = config_lib.resolve(config)
  solved = problem.make_problem(run)
  policy = policy_lib.make_policy(run, solved, sharding.make_mesh(1))
  sft, rl = checkpointed.make_phases(run, solved, policy, sharding.make_mesh(1))
  state = rl.enter(sft.enter(policy_lib.initial_state(policy, 0)))

  def size(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))

  found = table(config)
  assert found["policy"] == size(state.params["policy"])
  member = state.models["policy"]
  assert found["policy, optimizer"] == size(member.opt_state)
  assert found["reference"] == size(state.params["reference"])
  assert found["policy, average"] == size(member.average)
  assert found["gradients"] == size(state.params["policy"]["trained"])
  rl = run.section("rl")
  prompts = next(solved.prompt_stream(0, rl.num_prompts, None)).prompts
  _, prefix, _ = jax.jit(policy.prefill)(
    state.params["policy"],
    jnp.asarray(prompts.tokens),
    jnp.asarray(prompts.mask),
  )
  cache = policy.allocate(rl.num_rows, solved.max_new_tokens)
  assert found["cache of the rollout"] == size(prefix.layers) + size(cache)
  # Rows are split over devices, state is not.
  config.mesh.data = 2
  half = table(config)
  assert 2 * half["cache of the rollout"] == found["cache of the rollout"]
  assert half["policy, optimizer"] == found["policy, optimizer"]
  config.mesh.data = None
  # Few lanes hold few completions, each beside its prompt.
  config.sampling.lanes = 2
  cache = policy.allocate(2, solved.max_new_tokens)
  copies = size(prefix.layers) * 2 // rl.num_prompts
  assert table(config)["cache of the rollout"] == (
    size(prefix.layers) + copies + size(cache)
  )


@pytest.mark.parametrize("trunk", ["own", "shared"])
def test_a_critic_is_held_beside_the_policy(trunk):
  config = tiny_config.get_config("agent")
  config.critic.trunk = trunk
  config.critic.freeze = ()
  width = config.model.width
  found = table(config)
  # A trunk and a head, or the head: D + 1 numbers of four bytes.
  own = found["policy"] if trunk == "own" else 0
  assert found["critic"] == own + 4 * (width + 1)
  moments = found["critic, optimizer"]
  assert 0 <= moments - 2 * found["critic"] < 100  # And counts of steps.
  assert "critic" not in table(tiny_config.get_config("grpo"))


@pytest.mark.parametrize(
  ("remat", "num_prompts"), [("none", 8), ("full", 8), ("none", 1)]
)
def test_the_estimate_of_the_backward_pass_is_near_what_is_allocated(
  remat, num_prompts
):
  model = architecture.TransformerConfig(
    vocab_size=64, num_layers=6, remat=remat
  )
  size = held.Sizes(model, None, max_prompt_len=32, max_new_tokens=97)
  policy = transformer.transformer_policy(model)

  def loss(trained, prefix, *rows):
    params = {"trained": trained, "frozen": {}}
    return jnp.square(policy.hidden(params, *rows, prefix=prefix)[0]).sum()

  params = held._abstract_params(policy)
  rows = held._abstract_rows(size, 8, 8)
  shares = num_prompts < 8
  prefix = jax.eval_shape(policy.prefix, params, *rows[:2]) if shares else None
  gradient = jax.jit(jax.grad(loss, (0, 1)))
  compiled = gradient.lower(params["trained"], prefix, *rows).compile()
  allocated = compiled.memory_analysis().temp_size_in_bytes
  ratio = allocated / held._kept(size, num_prompts, 8, shares, tensor=1)
  assert 0.5 < ratio < 1.5, ratio


@pytest.mark.parametrize(
  "name",
  ["deepseek_v32", "deepseek_v4", "gemma4_text", "llama4_text", "qwen3_5"],
)
def test_layers_of_every_kind_have_an_estimate(name):
  """One layer is run again at a time: so less is kept than of all layers."""
  path = command.ROOT / "tests/data/checkpoints" / name
  fields, _ = families.from_config_json(path)
  kept = []
  for remat in ("full", "none"):
    model = architecture.TransformerConfig(**fields, remat=remat)
    size = held.Sizes(model, None, max_prompt_len=8, max_new_tokens=9)
    kept.append(held._kept(size, 2, 2, shares_prompts=True, tensor=1))
  assert 0 < kept[0] < kept[1]


def test_of_long_rows_with_the_delta_rule_a_piece_is_kept(monkeypatch):
  path = command.ROOT / "tests/data/checkpoints/qwen3_5"
  fields, _ = families.from_config_json(path)
  model = architecture.TransformerConfig(**fields, remat="full")
  size = held.Sizes(model, None, max_prompt_len=8, max_new_tokens=128)
  whole = held._kept(size, 1, 1, shares_prompts=True, tensor=1)
  monkeypatch.setattr(delta, "_PIECE", 16)
  jax.clear_caches()  # Else the layers that were traced are taken again.
  assert held._kept(size, 1, 1, shares_prompts=True, tensor=1) < whole / 2


def test_adapters_leave_little_beside_the_base():
  config = recipe("trl", "qwen3-0.6b")
  whole = table(config)
  config.model.lora_rank = 16
  config.model.quantization = "nf4"
  config.model.param_dtype = "bfloat16"
  found = table(config)
  # Embeddings in two bytes, the rest in 0.5 + 4 / 64, adapters in four.
  embed = 151936 * 1024
  base = 2 * embed + (0.5 + 4 / 64) * (596e6 - embed)
  assert found["policy"] == pytest.approx(base + 40e6, rel=0.01)
  assert found["policy, optimizer"] < whole["policy, optimizer"] / 50
  assert "gradient of the head, float32" not in found


def test_a_checkpoint_in_a_folder_comes_first(tmp_path):
  known = published.MODELS["qwen3-0.6b"]
  keys = {**known.config_json, "num_hidden_layers": 3}
  (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
  config = recipe("trl", "qwen3-0.6b")
  config.model.checkpoint = str(tmp_path)
  assert held.sizes(config_lib.resolve(config)).model.num_layers == 3


def test_the_command_prints_the_table():
  path = "configs/recipes/v32_math.py:qwen2.5-0.5b"
  status, out, err = command.run(
    "pods.memory", f"--config={path}", "--topology=v5e-4", "--mesh=data:4"
  )
  assert status == 1, err
  assert out.startswith("verdict: does not fit by this estimate: ")
  out, _, change = out.partition("What to change; GiB of a device afterwards:")
  assert "--mesh=fsdp:4" in change
  config = recipe("v32_math", "qwen2.5-0.5b")
  config.mesh.data = 4
  settings = config_lib.resolve(config)
  found = held.table(settings, held.mesh_of(settings, num_devices=4))
  for kind, (_, size) in found.items():
    assert re.search(rf"(?m)^  {kind} .* GiB +{size:,}$", out)
  assert [line for line in out.splitlines() if len(line) > 80] == []


def test_teachers_are_held_beside_the_policy():
  """Describes teachers of other sizes than the policy, without weights."""
  config = pods_config.get_config("opd_full")
  config.rl.reference_workdirs = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B")
  config.rl.reference_storage = "bfloat16"
  config.rl.reference_mixture = (1.0, 1.0)
  config.mesh.fsdp = 8
  found = table(config)
  for name, model in ("reference0", "0.5b"), ("reference1", "1.5b"):
    least = 2 * PARAMETERS[f"qwen2.5-{model}"] // 8
    assert least <= found[name] < 1.01 * least
  # Those of a mixture lie side by side, in bfloat16.
  states = 128 * 1024 * (896 + 1536) * 2 // 8
  assert found["states of the reference"] == states


def test_a_reward_model_and_what_is_kept_for_it_are_counted():
  found = table(recipe("deepseekmath", "qwen2.5-0.5b"))
  prompt, completions, rows = 512 * (4 + 1), 8 * 1024 * (4 + 1 + 1), 8 * 7
  places = 1024 * (prompt + completions + rows + 4) + 4
  assert found["old completions"] == places
  assert found["reward"] >= 4 * PARAMETERS["qwen2.5-0.5b"]
  assert "reward, optimizer" not in found


def test_tpus_are_counted_with_the_attention_that_they_take():
  config = recipe("dr_grpo", "qwen2.5-0.5b")
  config.data.max_prompt_len = config.sampling.max_new_tokens = 512

  def kept(form: str) -> int:
    config.model.attention = form
    settings = config_lib.resolve(config)
    mesh = held.mesh_of(settings, num_devices=8)
    return held.table(settings, mesh)["kept for the backward pass"][1]

  assert kept("auto") == kept("splash") < kept("plain")


@pytest.mark.parametrize(("tokens", "shares"), [(16, True), (15, False)])
def test_devices_of_tensor_share_what_layers_hand_on(tokens, shares):
  """Devices share positions that divide; otherwise each of them keeps all."""
  config = tiny_config.get_config()
  config.sampling.max_new_tokens = tokens
  config.mesh.tensor = config.model.num_kv_heads = 2
  config.model.remat = "full"
  config.rl.micro_batch_size = rows = 4
  whole = table(config)
  config.model.split_positions = True
  split = table(config)
  # Two devices share at least what goes into each layer, and at most all.
  of_layer = rows * tokens * config.model.width * 4
  kind = "kept for the backward pass"
  all_of_it = whole.pop(kind)
  saved = all_of_it - split.pop(kind)
  least = config.model.num_layers * of_layer // 2
  assert (least <= saved <= all_of_it // 2) if shares else saved == 0
  assert whole == split


def test_long_completions_need_what_the_compiler_says():
  """A row of benchmarks/pods.md; without split positions it does not fit."""
  path = command.ROOT / "benchmarks/pods/7b-v6e-64-128k-split.json"
  compiled = json.loads(path.read_text(encoding="utf-8"))
  config = pods_config.get_config()
  config.allow_unpublished = True
  config.model.checkpoint = compiled["model"]
  config.sampling.max_new_tokens = compiled["decode_steps"] + 1
  config.rl.num_prompts = compiled["num_prompts"]
  config.rl.micro_batch_size = compiled["micro_batch_size"]
  config.mesh.fsdp = compiled["mesh"]["fsdp"]
  config.mesh.tensor = compiled["mesh"]["tensor"]

  def needed(split_positions: bool) -> int:
    config.model.split_positions = split_positions
    settings = config_lib.resolve(config)
    mesh = held.mesh_of(settings, num_devices=compiled["devices"])
    return max(held.totals(held.table(settings, mesh)).values())

  assert needed(True) == pytest.approx(compiled["hbm"]["total"], rel=0.2)
  assert needed(False) > compiled["hbm_of_chip"]
