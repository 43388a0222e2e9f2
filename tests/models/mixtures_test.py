"""Latent attention, routed experts, sinks: with a cache, adapters, a mesh."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from grpo_jax.models import experts, quantization, transformer
from grpo_jax.models.hf import peft
from grpo_jax.models.hf import weights as weights_lib
from grpo_jax.models.policies import lora
from grpo_jax.rollout import sampling
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts
from tests.models import parity_test, transformer_test
from tests.models.policies import lora_test

pytestmark = pytest.mark.slow

# As DeepSeek-V3: latent vectors, a first layer without experts, shared ones.
LATENT = dataclasses.replace(
  transformer_test.PLAIN,
  num_kv_heads=4,
  head_dim=6,
  rotary_width=4,
  rotary_interleaved=True,
  latent_width=5,
  query_latent_width=3,
  value_dim=4,
  num_experts=8,
  num_dense_layers=1,
  experts_per_token=2,
  expert_width=6,
  shared_width=4,
  router_bias=True,
  router_scores="sigmoid",
  router_groups=4,
  groups_per_token=2,
  router_scale=2.5,
)
# As gpt-oss: sinks, biases everywhere, clamped gates.
SINKS = dataclasses.replace(
  transformer_test.PLAIN,
  attention_sinks=True,
  qkv_bias=True,
  out_bias=True,
  num_experts=4,
  experts_per_token=2,
  expert_width=6,
  expert_biases=True,
  activation="clamped",
  swiglu_limit=0.5,
)
CONFIGS = {"latent": LATENT, "sinks": SINKS}
EXPERTS = ("expert_gate", "expert_up", "expert_down")
OF_LATENT = ("query_down", "query_up", "kv_down", "kv_up", "out", "shared_gate")
ADAPTERS = {
  "latent": lora.LoRAConfig(
    rank=2, alpha=3.0, modules=(*OF_LATENT, "down", *EXPERTS)
  ),
  "sinks": lora.LoRAConfig(
    rank=2, alpha=3.0, modules=("query", "value", "out", *EXPERTS)
  ),
}


# --- Routing -----------------------------------------------------------------


def _chosen(scores, bias, num_groups, num_taken, count):
  """Experts of one token, by the words of DeepSeek-V3's Section 2.1.2."""
  ranked = scores + bias
  size = len(ranked) // num_groups
  of_group = [
    sum(sorted(ranked[g * size : (g + 1) * size])[-2:])
    for g in range(num_groups)
  ]
  best = sorted(range(num_groups), key=lambda g: -of_group[g])[:num_taken]
  allowed = [e for e in range(len(ranked)) if e // size in best]
  return sorted(allowed, key=lambda e: -ranked[e])[:count]


def test_groups_and_sigmoid_are_those_of_the_paper():
  rng = np.random.default_rng(0)
  logits, bias = rng.normal(size=(50, 12)), 0.3 * rng.normal(size=12)
  with jax.enable_x64(True):
    routed = experts.route(
      jnp.asarray(logits),
      3,
      True,
      bias=jnp.asarray(bias),
      scores="sigmoid",
      groups=(4, 2),
      scale=2.5,
    )
    scores = 1 / (1 + np.exp(-logits))
    for token, row in enumerate(scores):
      ids = _chosen(row, bias, 4, 2, 3)
      assert routed.ids[token].tolist() == ids
      want = 2.5 * row[ids] / row[ids].sum()
      np.testing.assert_allclose(routed.weights[token], want, rtol=1e-12)
    share = scores / scores.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(routed.probs, share, rtol=1e-12)


@pytest.mark.parametrize("form", ["dense", "blocked", "ragged"])
def test_biases_and_adapters_of_experts_in_every_form(form):
  rng = np.random.default_rng(1)
  num_experts, width, inner, rank = 5, 4, 3, 2

  def draw(*shape):
    return rng.normal(size=shape)

  with jax.enable_x64(True):
    sizes = {"gate": (width, inner), "up": (width, inner)}
    sizes["down"] = inner, width
    adapters = {
      name: (draw(num_experts, a, rank), draw(num_experts, rank, b))
      for name, (a, b) in sizes.items()
    }
    kernels = experts.Kernels(
      *(draw(num_experts, *size) for size in sizes.values()),
      *(draw(num_experts, size[1]) for size in sizes.values()),
      adapters,
    )
    x, weights = draw(7, width), draw(7, 2)
    ids = rng.integers(0, num_experts, (7, 2))
    found = jax.jit(
      lambda *of: experts.mix(*of, lambda gate, up: jnp.tanh(gate) * up, form)
    )(x, ids, weights, kernels)
    for token in range(7):
      want = np.zeros(width)
      for expert, weight in zip(ids[token], weights[token], strict=True):

        def through(name, z, expert=expert):
          a, b = adapters[name]
          kernel = getattr(kernels, name)[expert] + a[expert] @ b[expert]
          return z @ kernel + getattr(kernels, f"{name}_bias")[expert]

        hidden = np.tanh(through("gate", x[token])) * through("up", x[token])
        want += weight * through("down", hidden)
      np.testing.assert_allclose(found[token], want, rtol=1e-10)


# --- Whole models ------------------------------------------------------------


@pytest.mark.parametrize("cache_dtype", ["model", "int8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_equals_whole_sequences(name, cache_dtype):
  config = dataclasses.replace(CONFIGS[name], cache_dtype=cache_dtype)
  params = transformer_test.make_params(CONFIGS[name])
  batch = transformer_test.make_batch()
  whole = transformer_test.teacher_forced(CONFIGS[name], params, batch)
  steps = transformer_test.step_by_step(config, params, batch)
  exists = np.asarray(batch[3])
  error = abs(np.subtract(steps, whole))[exists].max()
  assert error < (1e-5 if cache_dtype == "model" else 0.3)
  assert cache_dtype == "model" or error > 0


def test_the_cache_has_one_vector_of_a_token():
  policy = transformer.transformer_policy(LATENT)
  cache = jax.eval_shape(lambda: policy.allocate(6, 9))
  assert [x.shape for x in jax.tree.leaves(cache)] == [(6, 1, 5 + 4, 9)] * 2


@pytest.mark.parametrize("name", CONFIGS)
def test_routing_is_recorded_and_replayed(name):
  config = CONFIGS[name]
  params = transformer_test.make_params(config)
  policy = transformer.transformer_policy(config)
  tokens, mask, *_ = transformer_test.make_batch()
  own = np.arange(len(tokens), dtype=np.int32)
  prompts = Prompts(tokens, mask, own, {})
  sampled = sampling.SamplerConfig(
    max_new_tokens=4, end_ids=(), pad_id=0, record_routing=True
  )
  sample = functools.partial(
    sampling.sample, policy, config=sampled, group_size=1
  )
  rollout = jax.jit(sample)(params, prompts, jax.random.key(0))
  num_layers = config.num_layers - config.num_dense_layers
  assert rollout.routing.shape == (3, 4, num_layers, 2)
  # Other routers would choose others.
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      jax.device_put(-np.asarray(x))
      if jax.tree_util.keystr(path).endswith("['router']['kernel']")
      else x
    ),
    params,
  )
  arguments = (tokens, mask, rollout.tokens, rollout.completion_mask, own)
  extras = {
    "prompt_routing": rollout.prompt_routing,
    "routing": rollout.routing,
  }
  hidden = jax.jit(policy.hidden)
  _, free = jax.device_get(hidden(params, *arguments))
  _, kept = jax.device_get(hidden(params, *arguments, extras))
  # The state before a token is of the slot before it.
  np.testing.assert_array_equal(kept.ids[:, 1:], rollout.routing[:, :-1])
  assert (free.ids != kept.ids).any()


# --- Adapters ----------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_of_all_kinds_are_those_merged(name):
  with jax.enable_x64(True):
    lora_test.assert_merged_is_the_same(
      transformer_test.float64(CONFIGS[name]), ADAPTERS[name]
    )


def test_the_modules_of_experts_are_chosen_by_name():
  params = transformer_test.make_params(LATENT)

  def wrap(adapters):
    wrapped = functools.partial(lora.wrap, params, adapters)
    return jax.eval_shape(wrapped, jax.random.key(0))

  fresh = wrap(lora.LoRAConfig(rank=2))
  assert not {*EXPERTS} & {*fresh["trained"]}
  assert {*fresh["trained"]["dense_layers"]} >= {"gate", "up", "down", "kv_up"}
  with_experts = wrap(ADAPTERS["latent"])
  adapter = with_experts["trained"]["expert_down"]
  assert adapter["a"].shape == (1, 8, 6, 2)
  assert adapter["b"].shape == (1, 8, 2, 8)


@pytest.mark.parametrize("name", CONFIGS)
def test_files_of_adapters_come_back(name, tmp_path):
  params = lora_test.make_params(CONFIGS[name], ADAPTERS[name])
  peft.save(tmp_path, params, ADAPTERS[name])
  found = peft.config_of(tmp_path)
  assert {*found.modules} == {*ADAPTERS[name].modules}
  fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params["trained"])
  fresh = {**params, "trained": fresh}
  loaded = peft.load(tmp_path, fresh, found)
  lora_test.assert_same(loaded, params)
  if name == "latent":
    from safetensors import numpy as safetensors

    names = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    start = "base_model.model.model.layers."
    # The first layer is number 0 and has no experts; those come after it.
    assert f"{start}0.mlp.down_proj.lora_A.weight" in names
    last = f"{start}1.mlp.experts.7.gate_proj.lora_B.weight"
    assert names[last].shape == (6, 2)
    assert not any(f"{start}0.mlp.experts" in name for name in names)


def test_quantized_kernels_are_read_in_every_place():
  """By one kind of codes; each kind is in quantization_test.py."""
  adapters = dataclasses.replace(ADAPTERS["latent"], quantization="nf4_double")
  config = dataclasses.replace(LATENT, latent_width=6, query_latent_width=4)
  lora_test.assert_merged_is_the_same(config, adapters, atol=2e-4)


# --- Meshes ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "nf4_double"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_rule(name, kind):
  mesh = AbstractMesh((2, 1, 2, 2), sharding.AXES)
  adapters = dataclasses.replace(ADAPTERS[name], quantization=kind)
  sizes = {"vocab_size": 14, "mlp_width": 16, "expert_width": 8}
  if name == "latent":
    sizes |= {"latent_width": 8, "query_latent_width": 4, "shared_width": 8}
  config = dataclasses.replace(CONFIGS[name], **sizes)
  init = lora_test.policy_of(config, adapters).init
  params = jax.eval_shape(init, jax.random.key(0))
  places = sharding.of_params(mesh, params)
  specs = {
    jax.tree_util.keystr(path, simple=True, separator="/"): place.spec
    for path, place in jax.tree_util.tree_leaves_with_path(places)
  }
  stack = "frozen/base/layers/mlp/experts/gate"
  stack += "" if kind == "none" else "/nf4"
  assert specs[stack] == jax.sharding.PartitionSpec(
    None, "expert", None, "tensor"
  )
  assert specs["trained/expert_gate/a"][1] == "expert"


# --- Checkpoints -------------------------------------------------------------


@pytest.mark.parametrize(
  ("family", "start", "name"),
  [
    ("deepseek_v3", "model.layers.3", "eh_proj.weight"),
    ("deepseek_v32", "model.layers.2", "eh_proj.weight"),
    ("deepseek_v4", "mtp", "0.e_proj.weight"),
    ("glm4_moe", "model.layers.3", "shared_head.norm.weight"),
    ("qwen3_5", "mtp", "fc.weight"),
    ("qwen3_5_moe", "mtp", "layers.0.mlp.experts.gate_up_proj"),
    ("qwen3_next", "mtp", "layers.0.mlp.gate.weight"),
  ],
)
def test_a_layer_that_predicts_later_tokens_is_kept_or_left_out(
  family, start, name, tmp_path, caplog
):
  from safetensors import numpy as safetensors

  source = parity_test.CHECKPOINTS / family
  folder = tmp_path / "with"
  folder.mkdir()
  (folder / "config.json").write_bytes((source / "config.json").read_bytes())
  tensors = safetensors.load_file(source / "model.safetensors")
  further = np.random.default_rng(0).normal(size=(2, 3)).astype(jnp.bfloat16)
  name = f"{start}.{name}"
  safetensors.save_file(
    {**tensors, name: further}, folder / "model.safetensors"
  )
  config, params = weights_lib.load(folder)
  named = f"{start}, which predict later tokens (num_nextn_predict_layers), are"
  assert f"{named} neither run nor trained" in caplog.text

  weights_lib.export(params, config, folder, tmp_path / "kept")
  assert f"{named} copied as they are" in caplog.text
  found = safetensors.load_file(tmp_path / "kept" / "model.safetensors")
  # Not converted to the dtype of the run.
  assert found[name].dtype == jnp.bfloat16
  assert found.pop(name).tobytes() == further.tobytes()
  assert found.keys() == tensors.keys()
  assert (tmp_path / "kept" / "config.json").read_bytes() == (
    folder / "config.json"
  ).read_bytes()

  weights_lib.export(
    params, config, folder, tmp_path / "without", later_layers=False
  )
  assert f"{named} left out" in caplog.text
  found = safetensors.load_file(tmp_path / "without" / "model.safetensors")
  assert found.keys() == tensors.keys()
  keys = json.loads((tmp_path / "without" / "config.json").read_text())
  keys = keys.get("text_config", keys)
  numbers = "num_nextn_predict_layers", "mtp_num_hidden_layers"
  # Files of Qwen3-Next have no number of such layers.
  wanted = [] if family == "qwen3_next" else [0]
  assert [keys[x] for x in numbers if x in keys] == wanted
  again, _ = weights_lib.load(tmp_path / "without")
  assert again == config


def test_keys_that_nothing_reads_are_no_layers(tmp_path, caplog):
  from safetensors import numpy as safetensors

  source = parity_test.CHECKPOINTS / "gemma4_text"
  (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
  tensors = safetensors.load_file(source / "model.safetensors")
  unread = {"model.layers.4.self_attn.k_proj.weight": np.ones((2, 3), "f")}
  safetensors.save_file(tensors | unread, tmp_path / "model.safetensors")
  weights_lib.load(tmp_path)
  assert "later tokens" not in caplog.text


def test_fused_tensors_of_another_size_are_named(tmp_path):
  from safetensors import numpy as safetensors

  source = parity_test.CHECKPOINTS / "phi4_mini"
  (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
  tensors = safetensors.load_file(source / "model.safetensors")
  name = "model.layers.1.self_attn.qkv_proj.weight"
  short = {name: tensors[name][:-1]}
  safetensors.save_file(tensors | short, tmp_path / "model.safetensors")
  with pytest.raises(
    ValueError, match=rf"{name} in .* is \[95, 48\], .*96, 48"
  ):
    weights_lib.load(tmp_path)
  del tensors[name]
  safetensors.save_file(tensors, tmp_path / "model.safetensors")
  with pytest.raises(ValueError, match=f"has no {name}"):
    weights_lib.load(tmp_path)


def test_codes_of_scales_are_near_them():
  kernel = np.random.default_rng(0).normal(size=(2, 512, 256))
  path = jax.tree_util.DictKey("gate"), jax.tree_util.DictKey("kernel")
  once, twice = (
    quantization.quantize_leaf(path, jnp.asarray(kernel), kind=kind)
    for kind in ("nf4", "nf4_double")
  )
  assert twice["scale"]["scale"].shape == (2, 2, 4)  # 256 of 512 rows each.
  np.testing.assert_array_equal(once["nf4"], twice["nf4"])
  found = jax.vmap(quantization._scales)(twice["scale"])
  mean = once["scale"].mean(axis=(1, 2), keepdims=True)
  bound = abs(once["scale"] - mean).max(axis=(1, 2), keepdims=True) / 254
  assert (abs(found - once["scale"]) <= 1.001 * bound).all()
  size = functools.reduce(lambda n, x: n + x.nbytes, jax.tree.leaves(twice), 0)
  assert size / kernel.size == pytest.approx(0.5 + (1 + 4 / 256) / 64, abs=1e-4)
