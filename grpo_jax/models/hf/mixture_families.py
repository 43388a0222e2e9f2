"""Families with fused tensors, latent attention or routed experts.

Phi-3 and 4, DeepSeek-V3, GLM-4 and 4.5, gpt-oss; `families.py` has the table.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.models.hf import config_json, family

PHI3 = family.Family(
  name="phi3",
  architecture="Phi3ForCausalLM",
  fields=family.FIELDS,
  derived=(config_json.partial_rope, config_json.mistral_window),
  defaults={
    **family.DEFAULTS,
    "num_key_value_heads": None,
    "partial_rotary_factor": None,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
  },
  supported={
    **family.PARTIAL,
    **family.SILU,
    **family.NO_BIAS,
    # Of the code that Phi-4-mini brings, which computes what transformers does.
    "auto_map": (
      None,
      {},
      {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        "AutoTokenizer": "Xenova/gpt-4o",
      },
    ),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "lm_head_bias": (False, None),
    "mlp_bias": (False, None),
  },
  ignored=family.IGNORED | {"embd_pdrop", "resid_pdrop"},
  tensors=family.tensors(family.LLAMA_NORMS),
  fused=(family.QKV, family.GATE_UP),
)
GLM4 = family.Family(
  name="glm4",
  architecture="Glm4ForCausalLM",
  fixed={"post_norm": True, "rotary_interleaved": True},
  fields={**family.FIELDS, "attention_bias": "qkv_bias"},
  derived=(config_json.partial_rope,),
  defaults={
    **family.DEFAULTS,
    "attention_bias": True,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
  },
  supported={**family.PARTIAL, **family.SILU},
  ignored=family.IGNORED,
  tensors=family.tensors(
    {
      "attention_norm": "input_layernorm",
      "attention_post_norm": "post_self_attn_layernorm",
      "mlp_norm": "post_attention_layernorm",
      "mlp_post_norm": "post_mlp_layernorm",
    }
  ),
  fused=(family.GATE_UP,),
)
DEEPSEEK_V3 = family.Family(
  name="deepseek_v3",
  architecture="DeepseekV3ForCausalLM",
  fixed={"router_bias": True, "router_scores": "sigmoid"},
  fields={
    **{key: field for key, field in family.FIELDS.items() if key != "head_dim"},
    **family.ROUTED,
    "rope_interleave": "rotary_interleaved",
  },
  derived=(
    config_json.latent_attention,
    config_json.routed_experts,
  ),
  defaults={
    **family.DEFAULTS,
    "first_k_dense_replace": 3,
    "q_lora_rank": None,
    "rope_interleave": True,
  },
  supported={
    **family.SUPPORTED,
    **family.SILU,
    **family.NO_BIAS,
    **family.SIGMOID,
    "auto_map": (
      None,
      {},
      {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
      },
    ),
  },
  ignored=family.IGNORED | family.OF_ROUTERS | {"ep_size", "pretraining_tp"},
  tensors=family.tensors(family.LLAMA_NORMS),
)
GLM4_MOE = family.Family(
  name="glm4_moe",
  architecture="Glm4MoeForCausalLM",
  fixed={"router_bias": True, "router_scores": "sigmoid"},
  fields={
    **family.FIELDS,
    **family.ROUTED,
    "attention_bias": "qkv_bias",
  },
  derived=(
    config_json.partial_rope,
    config_json.head_norms,
    config_json.routed_experts,
  ),
  defaults={
    **family.DEFAULTS,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "use_qk_norm": False,
  },
  supported={**family.PARTIAL, **family.SILU, **family.SIGMOID},
  ignored=family.IGNORED | family.OF_ROUTERS,
  tensors=family.tensors(family.LLAMA_NORMS),
)
# GLM-4.7-Flash.
GLM4_MOE_LITE = dataclasses.replace(
  DEEPSEEK_V3,
  name="glm4_moe_lite",
  architecture="Glm4MoeLiteForCausalLM",
  defaults={
    **family.DEFAULTS,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
  },
)
GPT_OSS = family.Family(
  name="gpt_oss",
  architecture="GptOssForCausalLM",
  fixed={
    "activation": "clamped",
    "attention_sinks": True,
    "expert_biases": True,
    "out_bias": True,
    "qkv_bias": True,
  },
  fields={
    **family.FIELDS,
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(
    config_json.named_rope,
    config_json.num_experts,
    config_json.clamped_experts,
    config_json.alternating_window,
    config_json.packed_experts,
  ),
  defaults={
    **family.DEFAULTS,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
  },
  supported={
    **{
      key: values
      for key, values in family.SUPPORTED.items()
      if key != "quantization_config"
    },
    **family.SILU,
    "attention_bias": (True,),
  },
  # A note, beside the original context of the positions.
  ignored=family.IGNORED | family.OF_ROUTERS | {"initial_context_length"},
  tensors={
    **family.tensors(family.LLAMA_NORMS),
    "layers/mlp/router/kernel": (family.MLP + "router.weight",),
    "layers/mlp/router/bias": (family.MLP + "router.bias",),
    "layers/mlp/experts/gate": (family.MLP + "experts.gate_proj",),
    "layers/mlp/experts/up": (family.MLP + "experts.up_proj",),
    "layers/mlp/experts/down": (family.MLP + "experts.down_proj",),
    "layers/mlp/experts/gate_bias": (family.MLP + "experts.gate_proj_bias",),
    "layers/mlp/experts/up_bias": (family.MLP + "experts.up_proj_bias",),
    "layers/mlp/experts/down_bias": (family.MLP + "experts.down_proj_bias",),
  },
  fused=(
    family.Fused(
      "experts.gate_up_proj",
      ("experts.gate_proj", "experts.up_proj"),
      interleaved=True,
    ),
    family.Fused(
      "experts.gate_up_proj_bias",
      ("experts.gate_proj_bias", "experts.up_proj_bias"),
      interleaved=True,
    ),
  ),
  experts_in_one=True,
)
