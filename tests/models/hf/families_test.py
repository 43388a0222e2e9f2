"""Tests of published config.json files, in both forms that they have had.

They lie in the folder `published`. The long factors of Phi-4-mini have the form
of those that are published, which grow from 1 to 61.
"""

import json
import pathlib
import re

import jax
import pytest

from grpo_jax.models import architecture, transformer, vision_parts
from grpo_jax.models.hf import families

# Published number of parameters, and fields that are not as in Llama.
_LLAMA = architecture.TransformerConfig(vocab_size=1)
_GEMMA = {
  "activation": "gelu",
  "attention_scale": 256**-0.5,
  "head_dim": 256,
  "norm_plus_one": True,
  "post_norm": True,
}
_GEMMA3 = _GEMMA | {
  "local_rope_theta": 10_000.0,
  "qk_norm": "head",
  "rope_theta": 1e6,
}
_ROUTED = {
  "experts_per_token": 8,
  "num_dense_layers": 3,
  "router_bias": True,
  "router_scale": 2.5,
  "router_scores": "sigmoid",
  "tied_embeddings": False,
}
_LATENT = _ROUTED | {
  "expert_width": 2048,
  "latent_width": 512,
  "num_experts": 256,
  "query_latent_width": 1536,
  "rotary_interleaved": True,
  "rotary_width": 64,
  "shared_width": 2048,
}
_KIMI = _LATENT | {
  "head_dim": 192,
  "rope_original_len": 4096,
  "rope_scaling": "yarn",
  "value_dim": 128,
}
_DEEPSEEK3 = _KIMI | {
  # 192^−½ · (0.1 · ln 40 + 1)²
  "attention_scale": 192**-0.5 * 1.3688879454113936**2,
  "groups_per_token": 4,
  "rope_factor": 40,
  "rope_high_freq": 32,
  "router_groups": 8,
}
_GEMMA4 = {
  "activation": "gelu",
  "attention_scale": 1.0,
  "final_softcap": 30.0,
  "head_dim": 256,
  "local_rope_theta": 1e4,
  "post_norm": True,
  "qk_norm": "head",
  "rope_theta": 1e6,
}
_LLAMA4 = {
  "expert_width": 8192,
  "experts_per_token": 1,
  "head_dim": 128,
  "norm_eps": 1e-5,
  "norm_topk": False,
  "rope_theta": 5e5,
  "rotary_interleaved": True,
  "rotary_layers": (True, True, True, False) * 12,
  "router_scores": "sigmoid",
  "shared_width": 8192,
  "sliding_layers": (True, True, True, False) * 12,
  "sliding_window": 8192,
  "tied_embeddings": False,
}
PUBLISHED = {
  "Qwen2.5-0.5B": (494_032_768, {"qkv_bias": True, "rope_theta": 1e6}),
  "Qwen3-0.6B": (
    596_049_920,
    {"head_dim": 128, "qk_norm": "head", "rope_theta": 1e6},
  ),
  "Qwen3-30B-A3B": (
    30_532_122_624,
    {
      "expert_width": 768,
      "experts_per_token": 8,
      "head_dim": 128,
      "num_experts": 128,
      "qk_norm": "head",
      "rope_theta": 1e6,
      "tied_embeddings": False,
    },
  ),
  "Llama-3.2-1B": (
    1_235_814_400,
    {
      "head_dim": 64,
      "norm_eps": 1e-5,
      "rope_factor": 32.0,
      "rope_scaling": "llama3",
      "rope_theta": 5e5,
    },
  ),
  "DeepSeek-R1-Distill-Qwen-1.5B": (
    1_777_088_000,
    {"qkv_bias": True, "tied_embeddings": False},
  ),
  "Qwen3-Next-80B-A3B": (
    # 36 · 33_718_464 + 12 · 27_263_488 + 48 · 1_614_813_184 of layers, and
    # 2 · 311_164_928 + 2048: without the layer that predicts later tokens.
    79_674_391_296,
    {
      "attention_gate": True,
      "delta": architecture.DeltaConfig(
        num_key_heads=16, num_value_heads=32, key_width=128, value_width=128
      ),
      "expert_width": 512,
      "experts_per_token": 10,
      "head_dim": 256,
      "norm_plus_one": True,
      "num_experts": 512,
      "qk_norm": "head",
      "rope_theta": 1e7,
      "rotary_width": 64,
      "shared_gate": True,
      "shared_width": 512,
      "tied_embeddings": False,
    },
  ),
  "Qwen3.5-0.8B": (
    # 18 · 10_543_264 + 6 · 7_340_544 + 24 · 11_012_096, and 254_280_704.
    752_393_024,
    {
      "attention_gate": True,
      "delta": architecture.DeltaConfig(
        num_key_heads=16, num_value_heads=16, key_width=128, value_width=128
      ),
      "head_dim": 256,
      "norm_plus_one": True,
      "qk_norm": "head",
      "rope_theta": 1e7,
      "rotary_width": 64,
    },
  ),
  "Qwen3.5-9B": (
    # 24 · 67_403_968 + 8 · 58_720_768 + 32 · 151_003_136, and 2_034_241_536.
    8_953_803_264,
    {
      "attention_gate": True,
      "delta": architecture.DeltaConfig(
        num_key_heads=16, num_value_heads=32, key_width=128, value_width=128
      ),
      "head_dim": 256,
      "norm_plus_one": True,
      "qk_norm": "head",
      "rope_theta": 1e7,
      "rotary_width": 64,
      "tied_embeddings": False,
    },
  ),
  "granite-3.3-2b": (
    2_533_539_840,
    {
      "attention_scale": 0.015625,
      "embedding_scale": 12.0,
      "logit_scale": 0.125,
      "norm_eps": 1e-5,
      "residual_scale": 0.22,
      "rope_theta": 1e7,
    },
  ),
  "Mistral-7B-v0.1": (
    7_241_732_096,
    {"norm_eps": 1e-5, "sliding_window": 4096, "tied_embeddings": False},
  ),
  "Ministral-3-8B": (
    8_489_553_920,
    {
      "head_dim": 128,
      "norm_eps": 1e-5,
      "query_scaling": 0.1,
      "rope_factor": 16.0,
      "rope_high_freq": 32.0,
      "rope_original_len": 16384,
      "rope_scaling": "yarn",
      "rope_theta": 1e6,
      "tied_embeddings": False,
    },
  ),
  "Mixtral-8x7B-v0.1": (
    46_702_792_704,
    {
      "expert_width": 14336,
      "norm_eps": 1e-5,
      "num_experts": 8,
      "rope_theta": 1e6,
      "tied_embeddings": False,
    },
  ),
  "SmolLM3-3B": (
    3_075_098_624,
    {"rope_theta": 5e6, "rotary_layers": (True, True, True, False) * 9},
  ),
  "Llama-4-Scout-17B-16E": (
    107_769_861_120,
    _LLAMA4
    | {
      "llama4": architecture.Llama4Config(temperature=0.1),
      "num_experts": 16,
      "rope_factor": 16.0,
      "rope_high_freq": 1.0,
      "rope_scaling": "llama3",
    },
  ),
  "Llama-4-Maverick-17B-128E": (
    400_711_848_960,
    _LLAMA4
    | {
      "llama4": architecture.Llama4Config(
        head_norm=False, temperature=0.1, dense_layers=tuple(range(0, 48, 2))
      ),
      "num_dense_layers": 24,
      "num_experts": 128,
    },
  ),
  "OLMo-2-0425-1B": (
    1_484_916_736,
    {
      "post_norm": True,
      "pre_norm": False,
      "qk_norm": "projection",
      "rope_theta": 5e5,
      "tied_embeddings": False,
    },
  ),
  "Olmo-3-7B": (
    7_298_011_136,
    {
      "local_rope_theta": 5e5,
      "post_norm": True,
      "pre_norm": False,
      "qk_norm": "projection",
      # 0.1 · ln 8 + 1
      "rope_amplitude": 1.2079441541679836,
      "rope_factor": 8.0,
      "rope_high_freq": 32.0,
      "rope_scaling": "yarn",
      "rope_theta": 5e5,
      "sliding_layers": (True, True, True, False) * 8,
      "sliding_window": 4096,
      "tied_embeddings": False,
    },
  ),
  "gpt2": (
    124_439_808,
    {
      "activation": "gelu",
      "gate": False,
      "learned_positions": 1024,
      "mlp_bias": True,
      "norm": "layer",
      "norm_eps": 1e-5,
      "out_bias": True,
      "qkv_bias": True,
      "rotary_width": 0,
    },
  ),
  "nanochat-d20": (
    560_988_160,
    {
      "activation": "relu2",
      "embedding_norm": True,
      "final_softcap": 15.0,
      "gate": False,
      "norm": "plain",
      "qk_norm": "head",
      "rotary_backward": True,
      "tied_embeddings": False,
    },
  ),
  "gemma-2-2b": (
    2_614_341_888,
    _GEMMA
    | {
      "attention_softcap": 50.0,
      "embedding_scale": 2304**0.5,
      "final_softcap": 30.0,
      "sliding_layers": (True, False) * 13,
      "sliding_window": 4096,
    },
  ),
  "gemma-3-1b": (
    999_885_952,
    _GEMMA3
    | {
      "embedding_scale": 1152**0.5,
      "sliding_layers": ((True,) * 5 + (False,)) * 4 + (True, True),
      "sliding_window": 512,
    },
  ),
  "gemma-3-4b": (
    3_880_263_168,
    _GEMMA3
    | {
      "embedding_scale": 2560**0.5,
      "rope_factor": 8.0,
      "rope_scaling": "linear",
      "sliding_layers": ((True,) * 5 + (False,)) * 5 + (True,) * 4,
      "sliding_window": 1024,
    },
  ),
  # With the inputs of the layers: 2.35e9 of them.
  "gemma-4-E2B": (
    4_628_569_379,
    _GEMMA4
    | {
      "embedding_scale": 1536**0.5,
      "gemma4": architecture.Gemma4Config(
        full_head_dim=512,
        full_kv_heads=1,
        full_turned=128,
        num_shared_layers=20,
        shared_mlp_width=12288,
        input_width=256,
        input_vocab=262144,
      ),
      "sliding_layers": ((True,) * 4 + (False,)) * 7,
      "sliding_window": 512,
    },
  ),
  "gemma-4-26B-A4B": (
    25_233_141_790,
    _GEMMA4
    | {
      "embedding_scale": 2816**0.5,
      "expert_width": 704,
      "experts_per_token": 8,
      "gemma4": architecture.Gemma4Config(
        full_head_dim=512,
        full_kv_heads=2,
        full_turned=128,
        values_are_keys=True,
        shared_mlp_width=2112,
        input_vocab=262144,
      ),
      "num_experts": 128,
      "sliding_layers": ((True,) * 5 + (False,)) * 5,
      "sliding_window": 1024,
    },
  ),
  "Phi-4": (
    14_659_507_200,
    {"norm_eps": 1e-5, "rope_theta": 2.5e5, "tied_embeddings": False},
  ),
  "Phi-4-mini": (
    3_836_021_760,
    {
      "norm_eps": 1e-5,
      # √(1 + ln(131072 / 4096) / ln 4096)
      "rope_amplitude": 1.1902380714238083,
      "rope_long_factors": tuple(1.0 + i for i in range(48)),
      "rope_original_len": 4096,
      "rope_scaling": "longrope",
      "rope_short_factors": (1.0,) * 48,
      "rotary_width": 96,
      "sliding_window": 262144,
    },
  ),
  # With the biases of routers, without the layer that predicts two tokens.
  "DeepSeek-V3": (671_026_419_200, _DEEPSEEK3),
  "Kimi-K2": (
    1_026_408_232_448,
    _KIMI
    | {
      # 192^−½ · (0.1 · ln 32 + 1)²
      "attention_scale": 192**-0.5 * 1.3465735902799727**2,
      "num_dense_layers": 1,
      "num_experts": 384,
      "rope_factor": 32.0,
      "rope_high_freq": 1.0,
      "rope_theta": 5e4,
      "router_scale": 2.827,
    },
  ),
  # DeepSeek-V3 and its indexers.
  "DeepSeek-V3.2": (
    671_877_944_064,
    _DEEPSEEK3
    | {
      "indexer": architecture.IndexerConfig(
        num_heads=64, head_dim=128, top_k=2048
      )
    },
  ),
  "DeepSeek-V4-Flash-Base": (
    # 43 · 6_576_416_374 of all layers, 21 · 19_142_272 and 20 · 4_260_352 of
    # compressors and indexers, 1_059_131_397 beside the layers; and frozen
    # 40 · 256 biases and 3 · 775_680 entries of tables.
    284_334_567_511,
    {
      "activation": "bounded",
      "attention_sinks": True,
      "deepseek4": architecture.Deepseek4Config(
        kinds=("sliding",) * 2 + ("sparse", "heavy") * 20 + ("sparse",),
        query_width=1024,
        num_hash_layers=3,
      ),
      "expert_width": 2048,
      "experts_per_token": 6,
      "head_dim": 512,
      "local_rope_theta": 1e4,
      "num_experts": 256,
      "rope_factor": 16,
      "rope_high_freq": 32,
      "rope_original_len": 65536,
      "rope_scaling": "yarn",
      "rope_theta": 1.6e5,
      "rotary_width": 64,
      "router_bias": True,
      "router_scale": 1.5,
      "router_scores": "sqrtsoftplus",
      "shared_width": 2048,
      "sliding_layers": (True,) * 2 + (False,) * 41,
      "sliding_window": 128,
      "swiglu_limit": 10.0,
      "tied_embeddings": False,
    },
  ),
  "GLM-5": (
    743_911_218_432,
    _LATENT
    | {
      "attention_scale": 256**-0.5,
      "head_dim": 256,
      "indexer": architecture.IndexerConfig(
        num_heads=32, head_dim=128, top_k=2048, interleaved=True
      ),
      "norm_eps": 1e-5,
      "query_latent_width": 2048,
      "rope_theta": 1e6,
      "value_dim": 256,
    },
  ),
  "GLM-4-9B-0414": (
    9_400_279_040,
    {
      "head_dim": 128,
      "norm_eps": 1e-5,
      "post_norm": True,
      "qkv_bias": True,
      "rotary_interleaved": True,
      "rotary_width": 64,
      "tied_embeddings": False,
    },
  ),
  "GLM-4.5": (
    352_797_829_024,
    _ROUTED
    | {
      "expert_width": 1536,
      "head_dim": 128,
      "norm_eps": 1e-5,
      "num_experts": 160,
      "qk_norm": "head",
      "qkv_bias": True,
      "rope_theta": 1e6,
      "rotary_width": 64,
      "shared_width": 1536,
    },
  ),
  "gpt-oss-20b": (
    20_914_757_184,
    {
      "activation": "clamped",
      "attention_sinks": True,
      "expert_biases": True,
      "expert_width": 2880,
      "experts_per_token": 4,
      "head_dim": 64,
      "norm_eps": 1e-5,
      "num_experts": 32,
      "out_bias": True,
      "qkv_bias": True,
      # 0.1 · ln 32 + 1
      "rope_amplitude": 1.3465735902799727,
      "rope_factor": 32.0,
      "rope_high_freq": 32.0,
      "rope_original_len": 4096,
      "rope_scaling": "yarn",
      "rope_theta": 1.5e5,
      "rope_truncate": False,
      "sliding_layers": (True, False) * 12,
      "sliding_window": 128,
      "tied_embeddings": False,
    },
  ),
  "Qwen2-VL-2B": (
    2_208_985_600,
    {
      "image_token": 151655,
      "qkv_bias": True,
      "rope_sections": (16, 24, 24),
      "rope_theta": 1e6,
      "tower": vision_parts.TowerConfig(
        kind="qwen2_vl",
        width=1280,
        num_layers=32,
        num_heads=16,
        mlp_width=5120,
        frames=2,
      ),
    },
  ),
  "Qwen2.5-VL-3B": (
    3_754_622_976,
    {
      "image_token": 151655,
      "qkv_bias": True,
      "rope_sections": (16, 24, 24),
      "rope_theta": 1e6,
      "tower": vision_parts.TowerConfig(
        kind="qwen2_5_vl",
        width=1280,
        num_layers=32,
        num_heads=16,
        mlp_width=3420,
        frames=2,
        window=4,
        full_layers=(7, 15, 23, 31),
      ),
    },
  ),
  "Qwen3-VL-4B": (
    4_437_815_808,
    {
      "head_dim": 128,
      "image_token": 151655,
      "qk_norm": "head",
      "rope_sections": (24, 20, 20),
      "rope_sections_mixed": True,
      "rope_theta": 5e6,
      "tower": vision_parts.TowerConfig(
        kind="qwen3_vl",
        width=1024,
        num_layers=24,
        num_heads=16,
        mlp_width=4096,
        patch_size=16,
        side=48,
        frames=2,
        deep_layers=(5, 11, 17),
      ),
    },
  ),
  "SmolVLM-256M": (
    256_484_928,
    {
      "head_dim": 64,
      "image_token": 49190,
      "norm_eps": 1e-5,
      "rope_theta": 1e5,
      "tied_embeddings": False,
      "tower": vision_parts.TowerConfig(
        width=768,
        num_layers=12,
        num_heads=12,
        mlp_width=3072,
        patch_size=16,
        merge=4,
        side=32,
      ),
    },
  ),
}
_SIZES = {
  *("mlp_width", "num_heads", "num_kv_heads", "num_layers"),
  *("vocab_size", "width"),
}
CONFIGS = {
  path.stem: json.loads(path.read_text("utf-8"))
  for path in (pathlib.Path(__file__).parent / "published").iterdir()
}


def _read(config):
  fields, _ = families.from_config_json(config)
  return architecture.TransformerConfig(**fields)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_its_architecture(name):
  _, expected = PUBLISHED[name]
  config = _read(CONFIGS[name])
  found = {
    key: value
    for key, value in vars(config).items()
    if value != getattr(_LLAMA, key) and key not in _SIZES
  }
  assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_number_of_parameters(name):
  num_parameters, _ = PUBLISHED[name]
  config = _read(CONFIGS[name])
  policy = transformer.transformer_policy(config)
  shapes = jax.eval_shape(policy.init, jax.random.key(0))
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == num_parameters


def _as_transformers_5(old):
  """The same in the form of newer files; nested keys are left to others."""
  config = dict(old)
  config["dtype"] = config.pop("torch_dtype")
  scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
  rope = {**scaling, "rope_theta": config.pop("rope_theta")}
  of_sliding = {"olmo3": rope["rope_theta"]}.get(config["model_type"])
  if local := config.pop("rope_local_base_freq", of_sliding):
    rope = {
      "full_attention": rope,
      "sliding_attention": {"rope_theta": local, "rope_type": "default"},
    }
  if "partial_rotary_factor" in config:
    rope["partial_rotary_factor"] = config.pop("partial_rotary_factor")
  config["rope_parameters"] = rope
  if config["model_type"] in ("qwen2", "qwen3", "gemma2", "gemma3_text"):
    architecture = _read(old)
    config["layer_types"] = [
      "sliding_attention" if architecture.slides(i) else "full_attention"
      for i in range(architecture.num_layers)
    ]
    config.pop("sliding_window_pattern", None)
  if "num_experts" in config:
    config["num_local_experts"] = config.pop("num_experts")
  return config


@pytest.mark.parametrize(
  "name",
  [x for x in PUBLISHED if "rope_theta" in CONFIGS[x]],
)
def test_both_forms_say_the_same(name):
  old = CONFIGS[name]
  new = _as_transformers_5(old)
  assert "rope_theta" not in new
  assert _read(new) == _read(old)


def _small(model_type):
  return {
    **{"model_type": model_type, "num_hidden_layers": 3, "hidden_size": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 1},
    **{"intermediate_size": 8, "vocab_size": 9, "initializer_range": 0.02},
    **{"hidden_act": "silu", "rms_norm_eps": 1e-6},
  }


def test_windows_of_qwen2_begin_at_a_layer_or_where_layer_types_says():
  config = _small("qwen2")
  window = {"use_sliding_window": True, "sliding_window": 5}
  found = _read({**config, **window, "max_window_layers": 1})
  assert found.sliding_window == 5
  assert found.sliding_layers == (False, True, True)
  types = ["sliding_attention", "full_attention", "full_attention"]
  found = _read({**config, **window, "layer_types": types})
  assert found.sliding_layers == (True, False, False)
  found = _read({**config, **window, "max_window_layers": 3})
  assert found.sliding_window is None


def test_every_fourth_layer_of_smollm3_turns_nothing():
  config = {**CONFIGS["SmolLM3-3B"], "no_rope_layers": None}
  assert _read(config) == _read(CONFIGS["SmolLM3-3B"])
  del config["no_rope_layers"]
  third = _read({**config, "no_rope_layer_interval": 3})
  assert third.rotary_layers == (True, True, False) * 12
  assert not _read({**config, "no_rope_layer_interval": 99}).rotary_layers


def test_files_of_transformers_5_24_have_full_layers_of_gemma4_apart():
  for name, full in (
    ("gemma-4-E2B", {"head_dim": 512}),
    ("gemma-4-26B-A4B", {"head_dim": 512, "num_key_value_heads": 2}),
  ):
    text = dict(CONFIGS[name]["text_config"])
    for key in ("global_head_dim", "num_global_key_value_heads"):
      del text[key]
    layers = enumerate(text["layer_types"])
    text["per_layer_config"] = {
      str(i): full for i, kind in layers if kind == "full_attention"
    }
    written = {**CONFIGS[name], "text_config": text}
    assert _read(written) == _read(CONFIGS[name])


def test_all_forms_of_deepseek_v4_say_the_same():
  old = CONFIGS["DeepSeek-V4-Flash-Base"]
  new = dict(old)
  for key in ("compress_ratios", "num_hash_layers", "qk_rope_head_dim"):
    del new[key]
  sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
  scaling = {**new.pop("rope_scaling"), "rope_type": "yarn"}
  del scaling["type"]
  new |= {
    "compress_rates": {sparse: 4, heavy: 128},
    "layer_types": ["sliding_attention"] * 2 + [sparse, heavy] * 20 + [sparse],
    "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
    "partial_rotary_factor": 0.125,
    "rope_parameters": {
      "compress": scaling
      | {
        "attention_factor": 1.0,
        "partial_rotary_factor": 0.125,
        "rope_theta": 160000,
      },
      "main": {
        "partial_rotary_factor": 0.125,
        "rope_theta": 10000,
        "rope_type": "default",
      },
    },
  }
  assert _read(new) == _read(old)
  del new["layer_types"]
  found = _read(new).deepseek4.kinds
  assert found == ("heavy",) * 3 + ("sparse", "heavy") * 20
  short = _read({**new, "compress_rate_csa": 8, "compress_rate_hca": 64})
  assert (short.deepseek4.sparse_window, short.deepseek4.heavy_window) == (
    8,
    64,
  )


@pytest.mark.parametrize("spelling", ["Kimi_K25", "KimiK25"])
@pytest.mark.parametrize("inner", ["kimi_k2", "deepseek_v3"])
def test_kimi_k25_has_the_text_of_kimi_k2(spelling, inner):
  text = {**CONFIGS["Kimi-K2"], "model_type": inner}
  config = {
    "architectures": [f"{spelling}ForConditionalGeneration"],
    "media_placeholder_token_id": 163605,
    "model_type": "kimi_k25",
    "text_config": text,
    "tie_word_embeddings": False,
    "vision_config": {"model_type": "kimi_k25"},
  }
  fields, family = families.from_config_json(config)
  assert fields == families.from_config_json(CONFIGS["Kimi-K2"])[0]
  assert family.tensors["head/kernel"] == ("language_model.lm_head.weight",)
  packed = {"quant_method": "compressed-tensors"}
  with pytest.raises(ValueError, match="quantization_config is"):
    _read({**config, "text_config": {**text, "quantization_config": packed}})


def test_every_fourth_layer_of_olmo3_has_no_window():
  config = dict(CONFIGS["Olmo-3-7B"])
  del config["layer_types"]
  assert _read(config) == _read(CONFIGS["Olmo-3-7B"])


def test_a_missing_number_of_key_heads_is_that_of_queries():
  config = _small("llama")
  del config["num_key_value_heads"]
  assert _read(config).num_kv_heads == 2


_TOWER = CONFIGS["Qwen2.5-VL-3B"]["vision_config"]
_WHOLE = CONFIGS["Qwen2-VL-2B"]["vision_config"]
_DEEP = CONFIGS["Qwen3-VL-4B"]["vision_config"]
_TEXT = CONFIGS["Ministral-3-8B"]["text_config"]


_LINEAR = CONFIGS["Qwen3.5-0.8B"]["text_config"]


def _gemma4_rope(**change):
  of_full = {"rope_type": "proportional", "rope_theta": 1e6} | change
  of_sliding = {"rope_type": "default", "rope_theta": 1e4}
  found = {"full_attention": of_full, "sliding_attention": of_sliding}
  return {"rope_parameters": found}


# Config -> what is changed in it, and the message. One that is empty, or begins
# with a semicolon, names key and value first.
UNSUPPORTED = {
  "gemma-4-E2B": [
    ({"use_bidirectional_attention": "all"}, ""),
    ({"num_kv_shared_layers": 35}, ""),
    ({"num_kv_shared_layers": 32}, "one must slide, and one must"),
    (
      {"layer_types": ["sliding_attention"] * 35},
      "supported is full_attention in the last layer",
    ),
    (_gemma4_rope(rope_type="yarn"), "rope_type is 'yarn'"),
    (_gemma4_rope(truncate=1), "truncate is 1; supported is no"),
    (_gemma4_rope(partial_rotary_factor=2), "partial_rotary_factor is 2"),
    (
      {"vocab_size_per_layer_input": 9},
      "input_vocab is 9, and the vocabulary has 262144 ids",
    ),
    *(
      ({"per_layer_config": x}, "is one head_dim for all full")
      for x in ({"4": {"head_dim": 8}}, 5, {}, dict.fromkeys("49", 8))
    ),
    ({"use_double_wide_mlp": None}, ""),
  ],
  "gemma-4-26B-A4B": [
    ({"top_k_experts": None}, ""),
  ],
  "Llama-4-Scout-17B-16E": [
    ({"attention_chunk_size": "8192"}, "; supported is a number of tokens"),
    (
      {"layer_types": ["sliding_attention"] * 48},
      "layer_types is .*; supported is 'full_attention' or 'chunked_attention'",
    ),
    ({"moe_layers": [48]}, ""),
    ({"attn_scale": -1}, ""),
    ({"floor_scale": 0.5}, ""),
    ({"use_qk_norm": "yes"}, ""),
    ({"router_jitter_noise": 0.1}, "router_jitter_noise"),
  ],
  "Qwen3.5-0.8B": [
    (
      {"text_config": {**_LINEAR, "layer_types": ["full_attention"] * 24}},
      "full_attention_interval is 1; supported is a number, at least 2",
    ),
    (
      {"text_config": {**_LINEAR, "num_hidden_layers": 22}},
      r"layer_types is .*, repeated for all of 22 layers",
    ),
    (
      {"text_config": {**_LINEAR, "attn_output_gate": False}},
      "attn_output_gate is False; supported is True",
    ),
  ],
  "Qwen3-Next-80B-A3B": [
    (
      {"linear_num_value_heads": 24},
      "makes no delta: 24 heads of values do not split over 16",
    ),
    ({"linear_conv_kernel_dim": 1}, "; supported is a whole number"),
    ({"decoder_sparse_step": 2}, "; supported is 1"),
  ],
  "Qwen2.5-VL-3B": [
    (
      {"vision_config": {**_TOWER, "hidden_act": "relu"}},
      r"vision_config\.hidden_act is 'relu'; supported is 'silu'",
    ),
    (
      {"vision_config": {**_TOWER, "depth": 2.5}},
      r"vision_config\.depth is 2\.5; supported is a number",
    ),
    (
      {"hidden_size": 4096},
      r"vision_config\.out_hidden_size is 2048; supported is hidden_size, 4096",
    ),
    (
      {"rope_scaling": {"mrope_section": [16, 24], "type": "mrope"}},
      r"mrope_section is \[16, 24\]; supported is a list of three",
    ),
    (
      {"rope_scaling": {"mrope_section": [16, 24, 25], "type": "mrope"}},
      r"add up to the 64 of a head",
    ),
  ],
  "Qwen2-VL-2B": [
    (
      {"vision_config": {**_WHOLE, "mlp_ratio": 2.5}},
      r"vision_config\.mlp_ratio is 2\.5; supported is a whole number",
    ),
    (
      {"vision_config": {**_WHOLE, "hidden_size": 3584}},
      r"vision_config\.hidden_size is 3584; supported is hidden_size, 1536",
    ),
  ],
  "SmolVLM-256M": [
    (
      {"vision_config": {"image_size": 512, "patch_size": 16, "registers": 4}},
      r"vision_config\.registers is 4; supported is no such key",
    ),
  ],
  "Qwen3-VL-4B": [
    ({"vision_config": None}, "; supported is an object of keys"),
    (
      {"vision_config": _DEEP | {"deepstack_visual_indexes": [5, 24]}},
      r"vision_config makes no tower: deep_layers is \(5, 24\)",
    ),
    ({"model_type": "qwen3_vl_moe"}, "; supported are qwen2, .*qwen3_vl"),
    (
      {"text_config": {"model_type": "qwen3_vl_moe_text", "num_experts": 128}},
      "text_config is .*qwen3_vl_moe_text.*one of model_type 'qwen3_vl_text'",
    ),
  ],
  "Qwen2.5-0.5B": [
    ({"model_type": "mamba"}, ""),
    ({"model_type": ["qwen2"]}, r"is \['qwen2'\]"),
    (
      {"architectures": ["Qwen2ForSequenceClassification"]},
      r"architectures is \['Qwen2ForSeq.*supported is \['Qwen2ForCausalLM'\]",
    ),
    (
      {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
      "rope_scaling.rope_type is 'dynamic'; supported is 'default' or 'linear'",
    ),
    (
      {"rope_scaling": {"type": "yarn", "factor": 4.0}},
      "rope_scaling has no original_max_position_embeddings",
    ),
    (
      {"rope_scaling": {"type": ["linear"]}},
      r"rope_scaling.rope_type is \['linear'\]",
    ),
    ({"rope_scaling": "yarn"}, "; supported is null or an object"),
    (
      {"rope_scaling": {"rope_type": "default", "mrope_section": [1]}},
      r"rope_scaling.mrope_section is \[1\]",
    ),
  ],
  "Qwen3-0.6B": [
    (
      {"dual_chunk_attention_config": {"chunk": 3}},
      r"dual_chunk_attention_config=\{'chunk': 3\} is not supported",
    ),
    (
      {"quantization_config": {"quant_method": "gptq"}},
      "quantization_config is .*gptq.*is null, or .*'fp8'.*take instead",
    ),
    (
      {"quantization_config": {"quant_method": "mxfp4"}},
      "quantization_config is .*mxfp4.*supported is null, or .*'fp8' with",
    ),
    (
      {
        "quantization_config": {
          "quant_method": "fp8",
          "activation_scheme": "static",
        }
      },
      "quantization_config is .*static.*supported is null, or .*'dynamic'",
    ),
    ({"hidden_act": "relu"}, "; supported is 'silu'"),
    (
      {"layer_types": ["full_attention"]},
      "layer_types is .*for each of 28 layers",
    ),
    ({"layer_types": ["chunked_attention"] * 28}, "layer_types is .*chunked"),
    (
      {"layer_types": ["sliding_attention"] * 28},
      "use_sliding_window is False",
    ),
    ({"hidden_size": "1024"}, "; supported is a value of type int"),
    ({"head_dim": True}, ""),
    ({"tie_word_embeddings": 1}, "; supported is a value of type bool"),
  ],
  "Llama-3.2-1B": [
    (
      {"sliding_window": 3},
      "sliding_window=3 is not supported for model_type 'llama'",
    ),
    ({"attention_bias": True}, "; supported is False"),
    ({"mlp_bias": True}, ""),
    (
      {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
      "rope_scaling has no low_freq_factor",
    ),
    (
      {"rope_parameters": {"rope_type": "default"}},
      "rope_scaling is .*supported is null beside rope_parameters",
    ),
    (
      {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
      "partial_rotary_factor is 0.5",
    ),
  ],
  "gpt-oss-20b": [
    (
      {"quantization_config": {"quant_method": "gptq"}},
      "quantization_config is .*gptq.*supported is null, .*, or .*'mxfp4'",
    ),
    ({"experts_per_token": 2}, "; supported is num_experts_per_tok, 4"),
    ({"rope_scaling": None}, "rope_scaling is missing or null"),
    ({"attention_bias": False}, "; supported is True"),
  ],
  "gemma-2-2b": [
    ({"hidden_activation": "gelu"}, "; supported is 'gelu_pytorch_tanh'"),
    ({"sliding_window": None}, ""),
  ],
  "gemma-3-1b": [
    ({"use_bidirectional_attention": True}, ""),
    (
      {
        "rope_parameters": {
          "sliding_attention": {"type": "linear", "factor": 2}
        }
      },
      "rope_parameters.sliding_attention is .*linear",
    ),
    ({"attn_logit_softcapping": 50.0}, ""),
  ],
  "gpt2": [
    ({"scale_attn_by_inverse_layer_idx": True}, "; supported is False"),
    ({"n_inner": 0}, "; supported is a whole number"),
    ({"n_positions": 0}, "; supported is a whole number"),
  ],
  "nanochat-d20": [
    ({"hidden_act": "silu"}, "; supported is 'relu2'"),
  ],
  "Qwen3-30B-A3B": [
    ({"decoder_sparse_step": 2}, "; supported is 1"),
    ({"mlp_only_layers": [0]}, ""),
    ({"num_local_experts": 64}, "num_experts is .*128.*64.*one number"),
  ],
  "Olmo-3-7B": [
    (
      {"rope_theta": 10_000.0},
      "; supported is 500000.0, or rope_parameters instead",
    ),
  ],
  "Ministral-3-8B": [
    (
      {"text_config": {"model_type": "mistral"}},
      "text_config is .*mistral.*one of model_type 'ministral3'",
    ),
    (
      {"text_config": {**_TEXT, "rope_parameters": {"rope_type": "default"}}},
      "rope_parameters.rope_type is 'default'; supported is 'yarn'",
    ),
    (
      {"text_config": {**_TEXT, "rope_parameters": {"rope_type": "yarn"}}},
      "rope_parameters.llama_4_scaling_beta is None",
    ),
  ],
  "SmolLM3-3B": [
    ({"no_rope_layers": [1, 0]}, "; supported is 0 or 1 for each of 36 layers"),
    (
      {"layer_types": ["sliding_attention"] * 36},
      "layer_types is 'sliding_attention'; supported is full_attention",
    ),
    ({"use_sliding_window": True}, ""),
  ],
  "granite-3.3-2b": [
    ({"logits_scaling": 0}, "; supported is a number, positive"),
    ({"attention_bias": True}, ""),
  ],
  "Mixtral-8x7B-v0.1": [
    ({"router_jitter_noise": 0.1}, "; supported is 0 or None"),
  ],
  "Phi-4-mini": [
    ({"partial_rotary_factor": 1.5}, r"; supported is a number in \(0, 1\]"),
    (
      {"partial_rotary_factor": 0.5},
      "rope_short_factors is .*needs 32 numbers",
    ),
    ({"auto_map": {"AutoConfig": "mine.Config"}}, "auto_map is .*mine.Config"),
  ],
  "DeepSeek-V3": [
    ({"scoring_func": "softmax"}, "; supported is 'sigmoid'"),
    ({"topk_method": "greedy"}, "; supported is 'noaux_tc'"),
    ({"n_group": 7}, "256 experts do not split into 7 router_groups"),
    ({"attention_bias": True}, "; supported is False"),
    (
      {"mlp_layer_types": ["sparse", "dense"] * 30 + ["sparse"]},
      "mlp_layer_types is .*dense and then sparse layers, 61",
    ),
  ],
  "Kimi-K2": [
    (
      {"auto_map": {"AutoModel": "modeling_kimi.KimiModel"}},
      "auto_map is .*KimiModel",
    ),
  ],
  "DeepSeek-V3.2": [
    ({"indexer_rope_interleave": True}, "; supported is False"),
    ({"index_topk": 0}, "; supported is a whole"),
    ({"q_lora_rank": None}, "needs latent_width and query_lat"),
  ],
  "DeepSeek-V4-Flash-Base": [
    ({"expert_dtype": "fp4"}, "; supported is 'fp8'"),
    ({"scoring_func": "sigmoid"}, ""),
    ({"n_shared_experts": 2}, "; supported is 1"),
    ({"num_key_value_heads": 2}, "num_kv_heads is 2, and DeepSeek-V4 needs 1"),
    ({"hc_mult": 0}, "; supported is a whole number"),
    ({"hc_eps": -1}, "; supported is"),
    ({"o_groups": 7}, "do not split into num_groups 7"),
    ({"index_head_dim": 32}, "rotary_width is 64, and index heads are 32"),
    ({"compress_ratios": [2] * 44}, "compress_ratios is .*0 or 4 or 128 for"),
    ({"compress_ratios": [4]}, "; supported is"),
    ({"layer_types": ["full_attention"] * 43}, "layer_types is .*sliding_att"),
    ({"mlp_layer_types": ["moe"] * 42 + ["hash_moe"]}, "hash_moe and then moe"),
    ({"compress_rates": {"sliding_attention": 0, "x": 3}}, "compress_rates is"),
    ({"compress_rate_csa": 0}, "compress_rates is 0"),
    ({"partial_rotary_factor": 2}, ""),
    (
      {"rope_scaling": {"main": {}, "compress": {"rope_type": "dynamic"}}},
      "rope_type is 'dynamic'",
    ),
    (
      {"rope_scaling": {"main": {"type": "linear"}, "compress": {}}},
      "rope_scaling has no factor|rope_scaling.main",
    ),
  ],
  "GLM-5": [
    ({"index_topk_freq": 4}, "; supported is 1"),
    ({"indexer_types": ["full", "shared"] * 39}, "indexer_types is .*'shared'"),
  ],
  "GLM-4.5": [
    ({"use_qk_norm": "yes"}, "; supported is true or false"),
  ],
  "gemma-3-4b": [
    (
      {"text_config": {"model_type": "llama"}},
      "text_config is .*llama.*gemma3_text",
    ),
  ],
}


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [(name, *row) for name, rows in UNSUPPORTED.items() for row in rows],
)
def test_what_is_not_supported_is_named(name, change, message):
  if message[:1] in ("", ";"):
    [(key, value)] = change.items()
    message = re.escape(f"{key} is {value!r}") + message
  with pytest.raises(ValueError, match=message):
    families.from_config_json({**CONFIGS[name], **change})


@pytest.mark.parametrize(
  ("name", "key"),
  [
    ("Qwen2.5-0.5B", "num_key_value_heads"),
    ("Qwen3-30B-A3B", "num_experts"),
    ("gemma-2-2b", "query_pre_attn_scalar"),
    ("gemma-2-2b", "attn_logit_softcapping"),
  ],
)
def test_a_missing_key_is_named(name, key):
  config = dict(CONFIGS[name])
  del config[key]
  with pytest.raises(ValueError, match=f"{key} is missing"):
    families.from_config_json(config)


def test_files(tmp_path):
  with pytest.raises(FileNotFoundError, match="is missing"):
    families.from_config_json(tmp_path)
  path = tmp_path / "config.json"
  path.write_bytes(b"\xff\xfe")
  with pytest.raises(ValueError, match="is not JSON"):
    families.from_config_json(tmp_path)
  path.write_text('{"model_type": ', encoding="utf-8")
  with pytest.raises(ValueError, match="is not JSON"):
    families.from_config_json(tmp_path)
  path.write_text("[]", encoding="utf-8")
  with pytest.raises(ValueError, match="no object"):
    families.from_config_json(tmp_path)
  path.write_text('{"model_type": "mamba"}', encoding="utf-8")
  with pytest.raises(ValueError, match=f"{tmp_path.name}: config.json: model_"):
    families.from_config_json(tmp_path)
  path.write_text(json.dumps(CONFIGS["gemma-2-2b"]), encoding="utf-8")
  fields, family = families.from_config_json(tmp_path)
  assert fields == families.from_config_json(CONFIGS["gemma-2-2b"])[0]
  assert family.name == "gemma2"
