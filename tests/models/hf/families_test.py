"""Tests of published config.json files, in both forms that they have had."""

import json

import jax
import pytest

from grpo_jax.models import architecture, transformer, vision_parts
from grpo_jax.models.hf import families


def _config(text, **keys):
  """A config.json: sizes as "layers width heads key-heads mlp vocabulary"."""
  names = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
  )
  sizes = dict(zip(names, map(int, text.split()), strict=True))
  return {
    **sizes,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
    "use_cache": True,
    **keys,
  }


_SILU = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
_GELU = {"hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6}
_QWEN2_5_0_5B = _config(
  "24 896 14 2 4864 151936",
  **_SILU,
  architectures=["Qwen2ForCausalLM"],
  attention_dropout=0.0,
  max_position_embeddings=32768,
  max_window_layers=21,
  model_type="qwen2",
  rope_theta=1000000.0,
  sliding_window=32768,
  tie_word_embeddings=True,
  use_sliding_window=False,
)
_QWEN3_0_6B = _config(
  "28 1024 16 8 3072 151936",
  **_SILU,
  architectures=["Qwen3ForCausalLM"],
  attention_bias=False,
  head_dim=128,
  max_window_layers=28,
  model_type="qwen3",
  rope_scaling=None,
  rope_theta=1000000,
  sliding_window=None,
  tie_word_embeddings=True,
  use_sliding_window=False,
)
_QWEN3_30B_A3B = _config(
  "48 2048 32 4 6144 151936",
  **_SILU,
  architectures=["Qwen3MoeForCausalLM"],
  attention_bias=False,
  decoder_sparse_step=1,
  head_dim=128,
  max_window_layers=48,
  mlp_only_layers=[],
  model_type="qwen3_moe",
  moe_intermediate_size=768,
  norm_topk_prob=True,
  num_experts=128,
  num_experts_per_tok=8,
  output_router_logits=False,
  rope_scaling=None,
  rope_theta=1000000.0,
  router_aux_loss_coef=0.001,
  sliding_window=None,
  tie_word_embeddings=False,
  use_sliding_window=False,
)
_LLAMA_3_2_1B = _config(
  "16 2048 32 8 8192 128256",
  architectures=["LlamaForCausalLM"],
  attention_bias=False,
  head_dim=64,
  hidden_act="silu",
  max_position_embeddings=131072,
  mlp_bias=False,
  model_type="llama",
  pretraining_tp=1,
  rms_norm_eps=1e-05,
  rope_scaling={
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
  },
  rope_theta=500000.0,
  tie_word_embeddings=True,
)
_R1_DISTILL_QWEN_1_5B = _config(
  "28 1536 12 2 8960 151936",
  **_SILU,
  architectures=["Qwen2ForCausalLM"],
  max_window_layers=21,
  model_type="qwen2",
  rope_theta=10000,
  sliding_window=4096,
  tie_word_embeddings=False,
  use_mrope=False,
  use_sliding_window=False,
)
_MISTRAL_7B = _config(
  "32 4096 32 8 14336 32000",
  architectures=["MistralForCausalLM"],
  hidden_act="silu",
  model_type="mistral",
  rms_norm_eps=1e-05,
  rope_theta=10000.0,
  sliding_window=4096,
  tie_word_embeddings=False,
)
_OLMO2_1B = _config(
  "16 2048 16 16 8192 100352",
  **_SILU,
  architectures=["Olmo2ForCausalLM"],
  attention_bias=False,
  model_type="olmo2",
  pad_token_id=100277,
  rope_scaling=None,
  rope_theta=500000,
  tie_word_embeddings=False,
)
_GEMMA_2_2B = _config(
  "26 2304 8 4 9216 256000",
  **_GELU,
  architectures=["Gemma2ForCausalLM"],
  attention_bias=False,
  attn_logit_softcapping=50.0,
  cache_implementation="hybrid",
  final_logit_softcapping=30.0,
  head_dim=256,
  hidden_act="gelu_pytorch_tanh",
  model_type="gemma2",
  query_pre_attn_scalar=256,
  rope_theta=10000.0,
  sliding_window=4096,
)
_GEMMA_3_1B = _config(
  "26 1152 4 1 6912 262144",
  **_GELU,
  architectures=["Gemma3ForCausalLM"],
  attention_bias=False,
  attn_logit_softcapping=None,
  cache_implementation="hybrid",
  final_logit_softcapping=None,
  head_dim=256,
  model_type="gemma3_text",
  query_pre_attn_scalar=256,
  rope_local_base_freq=10000,
  rope_scaling=None,
  rope_theta=1000000,
  sliding_window=512,
  sliding_window_pattern=6,
)
# With images. Nothing more is in the file about the language model.
_GEMMA_3_4B = {
  "architectures": ["Gemma3ForConditionalGeneration"],
  "boi_token_index": 255999,
  "eoi_token_index": 256000,
  "image_token_index": 262144,
  "initializer_range": 0.02,
  "mm_tokens_per_image": 256,
  "model_type": "gemma3",
  "text_config": {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
  },
  "torch_dtype": "bfloat16",
  "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}

_PHI_4 = _config(
  "40 5120 40 10 17920 100352",
  architectures=["Phi3ForCausalLM"],
  attention_bias=False,
  attention_dropout=0.0,
  embd_pdrop=0.0,
  hidden_act="silu",
  max_position_embeddings=16384,
  model_type="phi3",
  original_max_position_embeddings=16384,
  pad_token_id=100349,
  resid_pdrop=0.0,
  rms_norm_eps=1e-05,
  rope_scaling=None,
  rope_theta=250000,
  sliding_window=None,
  tie_word_embeddings=False,
)
_PHI_4_MINI = _config(
  "32 3072 24 8 8192 200064",
  architectures=["Phi3ForCausalLM"],
  attention_bias=False,
  auto_map={
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    "AutoTokenizer": "Xenova/gpt-4o",
  },
  full_attn_mod=1,
  hidden_act="silu",
  interpolate_factor=1,
  lm_head_bias=False,
  max_position_embeddings=131072,
  mlp_bias=False,
  model_type="phi3",
  original_max_position_embeddings=4096,
  partial_rotary_factor=0.75,
  rms_norm_eps=1e-05,
  # The published long factors grow from 1 to 61; these have their form.
  rope_scaling={
    "long_factor": [1.0 + i for i in range(48)],
    "short_factor": [1.0] * 48,
    "type": "longrope",
  },
  rope_theta=10000.0,
  sliding_window=262144,
  tie_word_embeddings=True,
)
_SIGMOID = {
  "architectures": ["DeepseekV3ForCausalLM"],
  "attention_bias": False,
  "hidden_act": "silu",
  "norm_topk_prob": True,
  "num_experts_per_tok": 8,
  "num_nextn_predict_layers": 1,
  "routed_scaling_factor": 2.5,
  "tie_word_embeddings": False,
}
_DEEPSEEK_V3 = _config(
  "61 7168 128 128 18432 129280",
  **_SIGMOID,
  auto_map={
    "AutoConfig": "configuration_deepseek.DeepseekV3Config",
    "AutoModel": "modeling_deepseek.DeepseekV3Model",
    "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
  },
  ep_size=1,
  first_k_dense_replace=3,
  kv_lora_rank=512,
  max_position_embeddings=163840,
  model_type="deepseek_v3",
  moe_intermediate_size=2048,
  moe_layer_freq=1,
  n_group=8,
  n_routed_experts=256,
  n_shared_experts=1,
  q_lora_rank=1536,
  qk_nope_head_dim=128,
  qk_rope_head_dim=64,
  rms_norm_eps=1e-06,
  rope_scaling={
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
  },
  rope_theta=10000,
  scoring_func="sigmoid",
  topk_group=4,
  topk_method="noaux_tc",
  v_head_dim=128,
)
_GLM_4_9B = _config(
  "40 4096 32 2 13696 151552",
  architectures=["Glm4ForCausalLM"],
  attention_bias=True,
  attention_dropout=0.0,
  head_dim=128,
  hidden_act="silu",
  model_type="glm4",
  pad_token_id=151329,
  partial_rotary_factor=0.5,
  rms_norm_eps=1e-05,
  rope_theta=10000.0,
  tie_word_embeddings=False,
)
_GLM_4_5 = _config(
  "92 5120 96 8 12288 151552",
  **_SIGMOID
  | {"architectures": ["Glm4MoeForCausalLM"], "attention_bias": True},
  first_k_dense_replace=3,
  head_dim=128,
  model_type="glm4_moe",
  moe_intermediate_size=1536,
  n_group=1,
  n_routed_experts=160,
  n_shared_experts=1,
  partial_rotary_factor=0.5,
  rms_norm_eps=1e-05,
  rope_scaling=None,
  rope_theta=1000000,
  topk_group=1,
  use_qk_norm=True,
)
_GPT_OSS_20B = _config(
  "24 2880 64 8 2880 201088",
  architectures=["GptOssForCausalLM"],
  attention_bias=True,
  attention_dropout=0.0,
  experts_per_token=4,
  head_dim=64,
  hidden_act="silu",
  initial_context_length=4096,
  layer_types=["sliding_attention", "full_attention"] * 12,
  max_position_embeddings=131072,
  model_type="gpt_oss",
  num_experts_per_tok=4,
  num_local_experts=32,
  output_router_logits=False,
  quantization_config={
    "modules_to_not_convert": [
      "model.layers.*.self_attn",
      "model.layers.*.mlp.router",
      "model.embed_tokens",
      "lm_head",
    ],
    "quant_method": "mxfp4",
  },
  rms_norm_eps=1e-05,
  rope_scaling={
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
    "truncate": False,
  },
  rope_theta=150000,
  router_aux_loss_coef=0.9,
  sliding_window=128,
  swiglu_limit=7.0,
  tie_word_embeddings=False,
)

_PLACED = {
  "image_token_id": 151655,
  "video_token_id": 151656,
  "vision_end_token_id": 151653,
  "vision_start_token_id": 151652,
}
# Files of this family have the keys of the language model beside the others.
_QWEN2_5_VL_3B = _config(
  "36 2048 16 2 11008 151936",
  **_SILU,
  **_PLACED,
  architectures=["Qwen2_5_VLForConditionalGeneration"],
  attention_dropout=0.0,
  max_position_embeddings=128000,
  max_window_layers=70,
  model_type="qwen2_5_vl",
  rope_scaling={"mrope_section": [16, 24, 24], "type": "mrope"},
  rope_theta=1000000.0,
  sliding_window=32768,
  tie_word_embeddings=True,
  use_sliding_window=False,
  vision_config={
    "depth": 32,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "hidden_act": "silu",
    "hidden_size": 1280,
    "in_chans": 3,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
    "tokens_per_second": 2,
    "window_size": 112,
  },
  vision_token_id=151654,
)
_QWEN3_VL_4B = {
  **_PLACED,
  "architectures": ["Qwen3VLForConditionalGeneration"],
  "model_type": "qwen3_vl",
  "text_config": _config(
    "36 2560 32 8 9728 151936",
    **_SILU,
    attention_bias=False,
    head_dim=128,
    model_type="qwen3_vl_text",
    rope_scaling={
      "mrope_interleaved": True,
      "mrope_section": [24, 20, 20],
      "rope_type": "default",
    },
    rope_theta=5000000,
    tie_word_embeddings=True,
  ),
  "tie_word_embeddings": True,
  "vision_config": {
    "deepstack_visual_indexes": [5, 11, 17],
    "depth": 24,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1024,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "model_type": "qwen3_vl",
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 2560,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
  },
}
# What the tower leaves out is as in transformers.
_SMOLVLM_256M = {
  "architectures": ["Idefics3ForConditionalGeneration"],
  "image_token_id": 49190,
  "model_type": "idefics3",
  "scale_factor": 4,
  "text_config": _config(
    "30 576 9 3 1536 49280",
    architectures=["VLlama3ForCausalLM"],
    head_dim=64,
    is_llama_config=True,
    model_type="llama",
    pixel_shuffle_factor=4,
    qk_layer_norms=False,
    rms_norm_eps=1e-05,
    rope_theta=100000,
    use_resampler=False,
  ),
  "tie_word_embeddings": False,
  "use_reentrant_checkpointing": False,
  "vision_config": {
    "hidden_size": 768,
    "image_size": 512,
    "max_image_size": {"longest_edge": 512},
    "model_type": "idefics3",
    "num_attention_heads": 12,
    "patch_size": 16,
    "size": {"longest_edge": 2048},
    "tie_word_embeddings": False,
    "use_base_siglip": False,
  },
}

# config.json, published number of parameters, fields that are not as in
# Llama.
_LLAMA = architecture.TransformerConfig(vocab_size=1)
_GEMMA = {
  "activation": "gelu",
  "attention_scale": 256**-0.5,
  "head_dim": 256,
  "norm_plus_one": True,
  "post_norm": True,
  "scale_embeddings": True,
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
PUBLISHED = {
  "Qwen2.5-0.5B": (
    _QWEN2_5_0_5B,
    494_032_768,
    {"qkv_bias": True, "rope_theta": 1e6},
  ),
  "Qwen3-0.6B": (
    _QWEN3_0_6B,
    596_049_920,
    {"head_dim": 128, "qk_norm": "head", "rope_theta": 1e6},
  ),
  "Qwen3-30B-A3B": (
    _QWEN3_30B_A3B,
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
    _LLAMA_3_2_1B,
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
    _R1_DISTILL_QWEN_1_5B,
    1_777_088_000,
    {"qkv_bias": True, "tied_embeddings": False},
  ),
  "Mistral-7B-v0.1": (
    _MISTRAL_7B,
    7_241_732_096,
    {"norm_eps": 1e-5, "sliding_window": 4096, "tied_embeddings": False},
  ),
  "OLMo-2-0425-1B": (
    _OLMO2_1B,
    1_484_916_736,
    {
      "post_norm": True,
      "pre_norm": False,
      "qk_norm": "projection",
      "rope_theta": 5e5,
      "tied_embeddings": False,
    },
  ),
  "gemma-2-2b": (
    _GEMMA_2_2B,
    2_614_341_888,
    _GEMMA
    | {
      "attention_softcap": 50.0,
      "final_softcap": 30.0,
      "sliding_layers": (True, False) * 13,
      "sliding_window": 4096,
    },
  ),
  "gemma-3-1b": (
    _GEMMA_3_1B,
    999_885_952,
    _GEMMA3
    | {
      "sliding_layers": ((True,) * 5 + (False,)) * 4 + (True, True),
      "sliding_window": 512,
    },
  ),
  "gemma-3-4b, text": (
    _GEMMA_3_4B,
    3_880_263_168,
    _GEMMA3
    | {
      "rope_factor": 8.0,
      "rope_scaling": "linear",
      "sliding_layers": ((True,) * 5 + (False,)) * 5 + (True,) * 4,
      "sliding_window": 1024,
    },
  ),
  "Phi-4": (
    _PHI_4,
    14_659_507_200,
    {"norm_eps": 1e-5, "rope_theta": 2.5e5, "tied_embeddings": False},
  ),
  "Phi-4-mini": (
    _PHI_4_MINI,
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
  "DeepSeek-V3": (
    _DEEPSEEK_V3,
    671_026_419_200,
    _ROUTED
    | {
      # 192^−½ · (0.1 · ln 40 + 1)²
      "attention_scale": 192**-0.5 * 1.3688879454113936**2,
      "expert_width": 2048,
      "groups_per_token": 4,
      "head_dim": 192,
      "latent_width": 512,
      "num_experts": 256,
      "query_latent_width": 1536,
      "rope_factor": 40,
      "rope_high_freq": 32,
      "rope_original_len": 4096,
      "rope_scaling": "yarn",
      "rotary_interleaved": True,
      "rotary_width": 64,
      "router_groups": 8,
      "shared_width": 2048,
      "value_dim": 128,
    },
  ),
  "GLM-4-9B-0414": (
    _GLM_4_9B,
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
    _GLM_4_5,
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
    _GPT_OSS_20B,
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
  "Qwen2.5-VL-3B": (
    _QWEN2_5_VL_3B,
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
    _QWEN3_VL_4B,
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
    _SMOLVLM_256M,
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
  "mlp_width",
  "num_heads",
  "num_kv_heads",
  "num_layers",
  "vocab_size",
  "width",
}


def _read(config):
  fields, _ = families.from_config_json(config)
  return architecture.TransformerConfig(**fields)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_its_architecture(name):
  source, num_parameters, expected = PUBLISHED[name]
  config = _read(source)
  found = {
    key: value
    for key, value in vars(config).items()
    if value != getattr(_LLAMA, key) and key not in _SIZES
  }
  assert found == expected
  policy = transformer.transformer_policy(config)
  shapes = jax.eval_shape(policy.init, jax.random.key(0))
  assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == num_parameters


def _as_transformers_5(old):
  """The same in the form of newer files; nested keys are left to others."""
  config = dict(old)
  config["dtype"] = config.pop("torch_dtype")
  scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
  rope = {**scaling, "rope_theta": config.pop("rope_theta")}
  if "rope_local_base_freq" in config:
    local = config.pop("rope_local_base_freq")
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
  [
    name
    for name, (source, *_) in PUBLISHED.items()
    if "text" not in name and "text_config" not in source
  ],
)
def test_both_forms_say_the_same(name):
  old = PUBLISHED[name][0]
  new = _as_transformers_5(old)
  assert "rope_theta" not in new
  assert _read(new) == _read(old)


def test_windows_of_qwen2_begin_at_a_layer_or_where_layer_types_says():
  config = _config("3 8 2 1 8 9", model_type="qwen2", **_SILU)
  window = {"use_sliding_window": True, "sliding_window": 5}
  found = _read({**config, **window, "max_window_layers": 1})
  assert found.sliding_window == 5
  assert found.sliding_layers == (False, True, True)
  types = ["sliding_attention", "full_attention", "full_attention"]
  found = _read({**config, **window, "layer_types": types})
  assert found.sliding_layers == (True, False, False)
  found = _read({**config, **window, "max_window_layers": 3})
  assert found.sliding_window is None


def test_a_missing_number_of_key_heads_is_that_of_queries():
  config = _config("3 8 2 1 8 9", model_type="llama", **_SILU)
  del config["num_key_value_heads"]
  assert _read(config).num_kv_heads == 2


_TOWER = _QWEN2_5_VL_3B["vision_config"]
UNSUPPORTED = {
  "activation of a tower": (
    "Qwen2.5-VL-3B",
    {"vision_config": {**_TOWER, "hidden_act": "relu"}},
    r"vision_config\.hidden_act is 'relu'; supported is 'silu'",
  ),
  "key of a tower": (
    "SmolVLM-256M",
    {"vision_config": {"image_size": 512, "patch_size": 16, "registers": 4}},
    r"vision_config\.registers is 4; supported is no such key",
  ),
  "number of a tower": (
    "Qwen2.5-VL-3B",
    {"vision_config": {**_TOWER, "depth": 2.5}},
    r"vision_config\.depth is 2\.5; supported is a number",
  ),
  "no tower": (
    "Qwen3-VL-4B",
    {"vision_config": None},
    r"vision_config is None; supported is an object of keys",
  ),
  "layers of a tower": (
    "Qwen3-VL-4B",
    {
      "vision_config": {
        **_QWEN3_VL_4B["vision_config"],
        "deepstack_visual_indexes": [5, 24],
      }
    },
    r"vision_config makes no tower: deep_layers is \(5, 24\)",
  ),
  "width of features": (
    "Qwen2.5-VL-3B",
    {"hidden_size": 4096},
    r"vision_config\.out_hidden_size is 2048; supported is hidden_size, 4096",
  ),
  "sections of positions": (
    "Qwen2.5-VL-3B",
    {"rope_scaling": {"mrope_section": [16, 24], "type": "mrope"}},
    r"mrope_section is \[16, 24\]; supported is a list of three",
  ),
  "sum of sections": (
    "Qwen2.5-VL-3B",
    {"rope_scaling": {"mrope_section": [16, 24, 25], "type": "mrope"}},
    r"add up to the 64 of a head",
  ),
  # What is changed in which config, and what the message names.
  "family": ("Qwen2.5-0.5B", {"model_type": "mamba"}, "model_type is 'mamba'"),
  "a mixture with images": (
    "Qwen3-VL-4B",
    {"model_type": "qwen3_vl_moe"},
    "model_type is 'qwen3_vl_moe'; supported are qwen2, .*qwen3_vl",
  ),
  "text of a mixture": (
    "Qwen3-VL-4B",
    {"text_config": {"model_type": "qwen3_vl_moe_text", "num_experts": 128}},
    "text_config is .*qwen3_vl_moe_text.*one of model_type 'qwen3_vl_text'",
  ),
  "no family": ("Qwen2.5-0.5B", {"model_type": ["qwen2"]}, r"is \['qwen2'\]"),
  "head": (
    "Qwen2.5-0.5B",
    {"architectures": ["Qwen2ForSequenceClassification"]},
    r"architectures is \['Qwen2ForSeq.*supported is \['Qwen2ForCausalLM'\]",
  ),
  "unknown key": (
    "Qwen3-0.6B",
    {"dual_chunk_attention_config": {"chunk": 3}},
    r"dual_chunk_attention_config=\{'chunk': 3\} is not supported",
  ),
  "key of another family": (
    "Llama-3.2-1B",
    {"sliding_window": 3},
    "sliding_window=3 is not supported for model_type 'llama'",
  ),
  "quantized": (
    "Qwen3-0.6B",
    {"quantization_config": {"quant_method": "gptq"}},
    "quantization_config is .*gptq.*supported is None.*converted",
  ),
  "packed in another way": (
    "gpt-oss-20b",
    {"quantization_config": {"quant_method": "gptq"}},
    "quantization_config is .*gptq.*supported is null, or .*'mxfp4'",
  ),
  "output bias": (
    "Llama-3.2-1B",
    {"attention_bias": True},
    "attention_bias is True; supported is False",
  ),
  "MLP bias": ("Llama-3.2-1B", {"mlp_bias": True}, "mlp_bias is True"),
  "activation": (
    "gemma-2-2b",
    {"hidden_activation": "gelu"},
    "hidden_activation is 'gelu'; supported is 'gelu_pytorch_tanh'",
  ),
  "bidirectional": (
    "gemma-3-1b",
    {"use_bidirectional_attention": True},
    "use_bidirectional_attention is True",
  ),
  "MLP activation": (
    "Qwen3-0.6B",
    {"hidden_act": "relu"},
    "hidden_act is 'relu'; supported is 'silu'",
  ),
  "every second layer dense": (
    "Qwen3-30B-A3B",
    {"decoder_sparse_step": 2},
    "decoder_sparse_step is 2; supported is 1",
  ),
  "dense layers": (
    "Qwen3-30B-A3B",
    {"mlp_only_layers": [0]},
    r"mlp_only_layers is \[0\]",
  ),
  "two numbers of experts": (
    "Qwen3-30B-A3B",
    {"num_local_experts": 64},
    "num_experts is .*128.*64.*one number",
  ),
  "rope type": (
    "Qwen2.5-0.5B",
    {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "rope_scaling.rope_type is 'dynamic'; supported is 'default' or 'linear'",
  ),
  "yarn without its context": (
    "Qwen2.5-0.5B",
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "rope_scaling has no original_max_position_embeddings",
  ),
  "rope type is a list": (
    "Qwen2.5-0.5B",
    {"rope_scaling": {"type": ["linear"]}},
    r"rope_scaling.rope_type is \['linear'\]",
  ),
  "rope is a text": (
    "Qwen2.5-0.5B",
    {"rope_scaling": "yarn"},
    "rope_scaling is 'yarn'; supported is null or an object",
  ),
  "rope key": (
    "Qwen2.5-0.5B",
    {"rope_scaling": {"rope_type": "default", "mrope_section": [1]}},
    r"rope_scaling.mrope_section is \[1\]",
  ),
  "part of a rope": (
    "Llama-3.2-1B",
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "rope_scaling has no low_freq_factor",
  ),
  "two ropes": (
    "Llama-3.2-1B",
    {"rope_parameters": {"rope_type": "default"}},
    "rope_scaling is .*supported is null beside rope_parameters",
  ),
  "partial rope": (
    "Llama-3.2-1B",
    {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "partial_rotary_factor is 0.5",
  ),
  "scaled local rope": (
    "gemma-3-1b",
    {"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2}}},
    "rope_parameters.sliding_attention is .*linear",
  ),
  "layer types": (
    "Qwen3-0.6B",
    {"layer_types": ["full_attention"]},
    "layer_types is .*for each of 28 layers",
  ),
  "chunked layers": (
    "Qwen3-0.6B",
    {"layer_types": ["chunked_attention"] * 28},
    "layer_types is .*chunked",
  ),
  "unused window": (
    "Qwen3-0.6B",
    {"layer_types": ["sliding_attention"] * 28},
    "use_sliding_window is False",
  ),
  "no window": (
    "gemma-2-2b",
    {"sliding_window": None},
    "sliding_window is None",
  ),
  "type": (
    "Qwen3-0.6B",
    {"hidden_size": "1024"},
    "hidden_size is '1024'; supported is a value of type int",
  ),
  "true is no size": ("Qwen3-0.6B", {"head_dim": True}, "head_dim is True"),
  "number as a switch": (
    "Qwen3-0.6B",
    {"tie_word_embeddings": 1},
    "tie_word_embeddings is 1; supported is a value of type bool",
  ),
  "a cap that its code never applies": (
    "gemma-3-1b",
    {"attn_logit_softcapping": 50.0},
    "attn_logit_softcapping is 50.0",
  ),
  "share of a head": (
    "Phi-4-mini",
    {"partial_rotary_factor": 1.5},
    r"partial_rotary_factor is 1.5; supported is a number in \(0, 1\]",
  ),
  "factors of too few channels": (
    "Phi-4-mini",
    {"partial_rotary_factor": 0.5},
    "rope_short_factors is .*needs 32 numbers",
  ),
  "code of its own": (
    "Phi-4-mini",
    {"auto_map": {"AutoConfig": "mine.Config"}},
    "auto_map is .*mine.Config",
  ),
  "scores of a router": (
    "DeepSeek-V3",
    {"scoring_func": "softmax"},
    "scoring_func is 'softmax'; supported is 'sigmoid'",
  ),
  "choice of experts": (
    "DeepSeek-V3",
    {"topk_method": "greedy"},
    "topk_method is 'greedy'; supported is 'noaux_tc'",
  ),
  "groups": (
    "DeepSeek-V3",
    {"n_group": 7},
    "256 experts do not split into 7 router_groups",
  ),
  "biases of latent attention": (
    "DeepSeek-V3",
    {"attention_bias": True},
    "attention_bias is True; supported is False",
  ),
  "dense layers between": (
    "DeepSeek-V3",
    {"mlp_layer_types": ["sparse", "dense"] * 30 + ["sparse"]},
    "mlp_layer_types is .*dense and then sparse layers, 61",
  ),
  "norms of queries": (
    "GLM-4.5",
    {"use_qk_norm": "yes"},
    "use_qk_norm is 'yes'; supported is true or false",
  ),
  "two numbers of a token's experts": (
    "gpt-oss-20b",
    {"experts_per_token": 2},
    "experts_per_token is 2; supported is num_experts_per_tok, 4",
  ),
  "positions that a library would choose": (
    "gpt-oss-20b",
    {"rope_scaling": None},
    "rope_scaling is missing or null",
  ),
  "attention without biases": (
    "gpt-oss-20b",
    {"attention_bias": False},
    "attention_bias is False; supported is True",
  ),
  "image model without text": (
    "gemma-3-4b, text",
    {"text_config": {"model_type": "llama"}},
    "text_config is .*llama.*gemma3_text",
  ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_named(case):
  name, change, message = UNSUPPORTED[case]
  with pytest.raises(ValueError, match=message):
    families.from_config_json({**PUBLISHED[name][0], **change})


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
  config = dict(PUBLISHED[name][0])
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
  path.write_text(json.dumps(_GEMMA_2_2B), encoding="utf-8")
  fields, family = families.from_config_json(tmp_path)
  assert fields == families.from_config_json(_GEMMA_2_2B)[0]
  assert family.name == "gemma2"
