"""Makes the tiny checkpoints of the tests, and transformers' outputs of them.

  pip install torch transformers safetensors
  python scripts/make_tiny_checkpoints.py --output=tests/data/checkpoints

One folder per family. Its config.json is written by hand, has the keys that
published checkpoints of the family have, and lies in tests/data/checkpoints.
The command adds model.safetensors (random weights) and reference.npz:

  input_ids [B, L] int32, attention_mask [B, L] bool (left-padded),
  logits [B, L, V] float32, and greedy [B, 12] int32, the continuation at
  temperature 0,

computed in float32 by transformers from the written files. For deepseek_v4, and
with --gradient for all, also gradient.safetensors, with gradients in the places
of the weights; with images the reference then has completions [B, 12] int32,
which the gradient is of. Weights are larger than at the start of a training,
norm scales and biases are random, and windows and original contexts are shorter
than the sequences, so that every switch of a family shows in the logits. The
same versions of torch and transformers give the same files.

Numbers of a config.json that need a reason:

- deepseek_r1_distill has no key of its own: these are Qwen2 (or Llama) files.
- deepseek_v3 and qwen3_5 name layers of later tokens, and have no tensors of
  them; files of Qwen2 and Qwen3 name a window and switch it off.
- deepseek_v32, glm_moe_dsa and deepseek_v4: fewer chosen tokens than a prompt
  has, and so many heads of an indexer that no score is exactly 0: torch.topk
  takes any of equal ones.
- deepseek_v4: moe_intermediate_size is a multiple of 4, which products of torch
  need; mixtral: intermediate_size of 8, for those in bfloat16.
- llama: of the 6 wavelengths (6, 29, 135, … tokens) the first is kept, the
  second is in the ramp and the others are scaled.
- gemma3_text: layers 0, 1 and 3 slide. phi4_mini: 8 of 12 channels rotate, and
  the window is longer than any text.
- granite, nanochat, gemma2 and gpt_oss: multipliers, caps and limits that act
  on what tiny layers make. Published are 2^-6, 12, 8 and 0.22; 15; 50 and 30;
  and 7.
- qwen3 and nanochat have rope_parameters, as transformers 5 writes them; the
  others the older form.

References of families with images also have the images of the prompts; see
scripts/tiny_vision.py.

Other members of the families, for experiments/parity/outputs.py:

  python scripts/make_tiny_checkpoints.py --output=DIR --variants --bfloat16 \
      --gradient

Another checkpoint's reference, for experiments/parity/compare_logits.py; it
goes to DIR/reference.npz, without a continuation:

  python scripts/make_tiny_checkpoints.py --reference_of DIR --length=64

With --bfloat16 a reference also has bfloat16_error [], the largest difference
that loading in bfloat16 makes to the logits of transformers.

The config.json of members whose family has no checkpoint in the tests:

  python scripts/make_tiny_checkpoints.py --configs=tests/data/configs
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import shutil
import tempfile

import numpy as np
import tiny_vision
import torch
import transformers
from safetensors import numpy

_NUM_NEW_TOKENS = 12
# A continuation is reference only where no round-off can change it.
_MIN_MARGIN = 5e-3
# One that repeats a token says little.
_MIN_DISTINCT = 5
_NUM_PROMPT_TOKENS = (24, 17, 5)  # Beside a window of 8.

FAMILIES = sorted(
  path.parent.name for path in tiny_vision.CHECKPOINTS.glob("*/config.json")
)


# Switches that the families lack, as "family-name" -> changed keys.
_KIMI_LAYERS = "language_model.model.layers."
_UNTIED = {"tie_word_embeddings": False}
_IMAGES = {
  "boi_token_index": 93,
  "eoi_token_index": 94,
  "image_token_index": 95,
  "mm_tokens_per_image": 4,
  "vision_config": {
    "hidden_size": 16,
    "image_size": 16,
    "intermediate_size": 16,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 8,
  },
}
VARIANTS = {
  "qwen2-untied_1_key_head": _UNTIED
  | {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 1},
  "qwen2-window_from_layer_1": {"use_sliding_window": True},
  "qwen3-untied_4_key_heads": _UNTIED
  | {"head_dim": 6, "num_key_value_heads": 4},
  "qwen3-window_by_layer_types": {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_sliding_window": True,
  },
  "qwen3_moe-shares_of_all": {"norm_topk_prob": False},
  "qwen3_moe-one_of_5_tied": {
    "num_experts": 5,
    "num_experts_per_tok": 1,
    "tie_word_embeddings": True,
  },
  # Groups of three layers.
  "qwen3_next-tied_2_values": {
    "full_attention_interval": 3,
    "linear_num_value_heads": 2,
    "norm_topk_prob": False,
    "num_hidden_layers": 6,
    "tie_word_embeddings": True,
  },
  "qwen3_5_text-untied": tiny_vision.family_config("qwen3_5")["text_config"]
  | _UNTIED
  | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "full_attention_interval": 2,
    "layer_types": None,
    "linear_conv_kernel_dim": 3,
    "linear_num_key_heads": 1,
    "num_key_value_heads": 4,
  },
  "qwen3_5_moe_text-tied": tiny_vision.family_config("qwen3_5_moe")[
    "text_config"
  ]
  | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "linear_num_key_heads": 4,
    "num_experts_per_tok": 3,
    "tie_word_embeddings": True,
  },
  "llama-deepseek_r1_distill": _UNTIED
  | {"head_dim": None, "num_attention_heads": 8},
  "llama-plain_4_key_heads": {
    "head_dim": 20,
    "num_key_value_heads": 4,
    "rope_scaling": None,
  },
  "llama-linear_scaling": {"rope_scaling": {"type": "linear", "factor": 4.0}},
  "mistral-no_window": {"head_dim": 14, "sliding_window": None},
  "mistral-tied_1_key_head": {
    "num_key_value_heads": 1,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    "tie_word_embeddings": True,
  },
  "granite-untied_1_key_head": _UNTIED | {"num_key_value_heads": 1},
  "mistral3-with_images": {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "tie_word_embeddings": False,
    "vision_config": {
      "head_dim": 8,
      "hidden_size": 16,
      "image_size": 16,
      "intermediate_size": 16,
      "model_type": "pixtral",
      "num_attention_heads": 2,
      "num_hidden_layers": 1,
      "patch_size": 8,
    },
    "vision_feature_layer": -1,
  },
  "mixtral-tied_no_window": {
    "num_key_value_heads": 3,
    "sliding_window": None,
    "tie_word_embeddings": True,
  },
  "olmo3-tied_4_layers": {
    "layer_types": None,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "rope_parameters": {
      "full_attention": {
        "beta_fast": 4.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10_000.0,
        "rope_type": "yarn",
      },
      "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    },
    "rope_scaling": None,
    "tie_word_embeddings": True,
  },
  "smollm3-untied_4_layers": _UNTIED
  | {
    "layer_types": None,
    "no_rope_layer_interval": 4,
    "no_rope_layers": None,
    "num_hidden_layers": 4,
    "num_key_value_heads": 3,
  },
  "olmo2-tied_4_key_heads": {
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
  },
  "nanochat-tied_1_key_head": {
    "final_logit_softcapping": None,
    "hidden_size": 30,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
  },
  "gpt2-untied": _UNTIED | {"n_head": 2, "n_inner": 31, "n_embd": 18},
  "gemma2-no_caps_2_key_heads": {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 8,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 8,
  },
  "gemma2-window_of_3": {"sliding_window": 3},
  "gemma3_text-7_layers_of_6": {
    "head_dim": 8,
    "num_hidden_layers": 7,
    "num_key_value_heads": 2,
    "rope_scaling": None,
    "sliding_window_pattern": 6,
  },
  # Phi-4.
  "phi4_mini-plain_window": {
    "partial_rotary_factor": 1.0,
    "rope_scaling": None,
    "sliding_window": 8,
    "tie_word_embeddings": False,
  },
  "deepseek_v3-direct_queries": {
    "n_group": 1,
    "norm_topk_prob": False,
    "q_lora_rank": None,
    "rope_scaling": None,
    "topk_group": 1,
  },
  # GLM-4.7-Flash.
  "deepseek_v3-glm4_moe_lite": {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "model_type": "glm4_moe_lite",
    "n_group": 1,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "topk_group": 1,
  },
  "deepseek_v32-4_layers_plain": {
    "first_k_dense_replace": 2,
    "index_head_dim": 8,
    "index_topk": 9,
    "num_hidden_layers": 4,
    "rope_scaling": None,
  },
  "glm_moe_dsa-groups_all_tokens": {
    "index_topk": 64,
    "n_group": 4,
    "topk_group": 2,
  },
  "glm4-1_key_head": {"attention_bias": False, "num_key_value_heads": 1},
  "glm4_moe-no_norms_2_groups": {
    "attention_bias": False,
    "first_k_dense_replace": 2,
    "n_group": 2,
    "use_qk_norm": False,
  },
  "gpt_oss-no_scaling": {
    "num_key_value_heads": 4,
    "rope_scaling": {"rope_type": "default"},
  },
  "gemma3-with_images": _IMAGES
  | {"architectures": ["Gemma3ForConditionalGeneration"]},
  # As gemma-4-26B-A4B.
  "gemma4_text-experts": {
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "final_logit_softcapping": None,
    "global_head_dim": 8,
    "hidden_size_per_layer_input": 0,
    "moe_intermediate_size": 16,
    "num_experts": 5,
    "num_attention_heads": 4,
    "num_global_key_value_heads": 1,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "tie_word_embeddings": False,
    "top_k_experts": 2,
    "use_double_wide_mlp": False,
  },
  "kimi_k25-with_images": {
    "architectures": ["Kimi_K25ForConditionalGeneration"],
    "image_token_id": 94,
    "projection_hidden_size": 16,
    "tie_word_embeddings": False,
    "video_token_id": 95,
    "vision_config": {
      "hidden_size": 16,
      "intermediate_size": 16,
      "model_type": "kimi_k25_vision",
      "num_attention_heads": 2,
      "num_hidden_layers": 1,
      "patch_size": 8,
      "pos_emb_height": 4,
      "pos_emb_width": 4,
    },
  },
  "gemma4-with_images": {
    "architectures": ["Gemma4ForConditionalGeneration"],
    # Placeholders are no tokens of the prompts: transformers reads others.
    "audio_config": None,
    "audio_token_id": 65,
    "boa_token_id": 66,
    "boi_token_id": 67,
    "eoa_token_index": 68,
    "eoi_token_id": 69,
    "image_token_id": 64,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "video_token_id": 63,
    "vision_config": {
      "head_dim": 8,
      "hidden_size": 16,
      "intermediate_size": 16,
      "model_type": "gemma4_vision",
      "num_attention_heads": 2,
      "num_hidden_layers": 1,
      "num_key_value_heads": 2,
      "patch_size": 8,
      "position_embedding_size": 16,
    },
  },
  "llama4_text-tied_experts_everywhere": {
    "attention_chunk_size": 5,
    "head_dim": 6,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "no_rope_layers": None,
    "num_experts_per_tok": 1,
    "num_key_value_heads": 1,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "use_qk_norm": False,
  },
  "llama4-with_images": {
    "architectures": ["Llama4ForConditionalGeneration"],
    "boi_token_index": 93,
    "eoi_token_index": 94,
    "image_token_index": 95,
    "tie_word_embeddings": False,
    "vision_config": {
      "hidden_size": 16,
      "image_size": 16,
      "intermediate_size": 16,
      "model_type": "llama4_vision_model",
      "num_attention_heads": 2,
      "num_hidden_layers": 1,
      "patch_size": 8,
      "projector_input_dim": 16,
      "projector_output_dim": 16,
      "vision_output_dim": 16,
    },
  },
  **tiny_vision.VARIANTS,
}


# Families with images, and the families of their text parts.
_TEXT_PARTS = {
  "gemma3": "gemma3_text",
  "gemma4": "gemma4_text",
  "kimi_k25": "kimi_k2",
  "llama4": "llama4_text",
  "mistral3": "ministral3",
}


def variant(name: str) -> dict:
  """The config.json of an entry of `VARIANTS`."""
  kind = name.partition("-")[0]
  if kind.startswith("qwen3_5") or tiny_vision.is_vision(VARIANTS[name]):
    return VARIANTS[name]
  if kind in FAMILIES:
    return tiny_vision.family_config(kind) | VARIANTS[name]
  inner = tiny_vision.family_config(_TEXT_PARTS[kind])
  if kind == "gemma3":
    inner |= {"sliding_window_pattern": 2}
  del inner["architectures"]
  return {"model_type": kind, "text_config": inner} | VARIANTS[name]


def randomize(model: transformers.PreTrainedModel, seed: int) -> None:
  """Draws every parameter so that each matters for the logits."""
  generator = torch.Generator().manual_seed(seed)
  families = "gemma2", "gemma3", "qwen3_next", "qwen3_5"
  plus_one = model.config.model_type.startswith(families)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      draw = torch.randn(parameter.shape, generator=generator)
      final = r"model\.((language|text)_model\.)?norm|transformer\.ln_f"
      if re.fullmatch(rf"({final})\.weight", name):
        # Of both signs, or a tied head repeats the token that it sees.
        value = 2.0 * draw
      elif name.endswith("bias"):
        value = 0.5 * draw
      elif "norm" in name or "ln_" in name or name.endswith("scale"):
        own = plus_one and not name.endswith("linear_attn.norm.weight")
        value = 0.4 * draw + (0.0 if own else 1.0)
      elif name.endswith("A_log"):
        # States that fade within few and within many tokens.
        value = 1.5 * draw - 1.5
      elif re.search(r"pos_embed|position_embedding|wpe", name):
        value = draw
      elif "embed_tokens" in name or "wte" in name:
        value = draw / parameter.shape[-1] ** 0.5
      else:
        # Queries and keys large enough that attention chooses.
        is_patch = parameter.ndim > 3  # A convolution's.
        inputs = parameter[0].numel() if is_patch else parameter.shape[-1]
        if ".c_" in name:  # [in, out], in GPT-2.
          inputs = len(parameter)
        value = 1.5 * draw / inputs**0.5
      parameter.copy_(value)
    for name, buffer in model.named_buffers():
      if name.endswith("e_score_correction_bias"):
        buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
      elif name.endswith("tid2eid"):
        count, chosen = model.config.n_routed_experts, buffer.shape[-1]
        draw = torch.rand((len(buffer), count), generator=generator)
        buffer.copy_(draw.argsort(dim=-1)[:, :chosen])
      elif name.endswith("layer_scalar"):
        buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))


def make_checkpoint(directory: pathlib.Path, config: dict, seed: int) -> None:
  """Writes config.json as given and random weights.

  Args:
    directory: Folder, made if missing; files of the same names are replaced.
    config: Content of config.json.
    seed: Seed of the weights.
  """
  directory.mkdir(parents=True, exist_ok=True)
  text = _text(config)
  path = directory / "config.json"
  path.write_text(text, encoding="utf-8")
  model = _auto(config).from_config(_config(directory), dtype=torch.float32)
  randomize(model, seed)
  model.save_pretrained(directory)
  if config["model_type"] == "kimi_k25":
    _publish_names(directory / "model.safetensors")
  # save_pretrained writes these in the form of its own version.
  path.write_text(text, encoding="utf-8")
  for weights in directory.glob("*.safetensors"):
    weights.chmod(0o644)  # They are written for the owner only.
  (directory / "generation_config.json").unlink(missing_ok=True)


def _text(config: dict) -> str:
  return json.dumps(config, indent=2, sort_keys=True) + "\n"


def write_configs(directory: pathlib.Path) -> None:
  """Writes the config.json of variants whose family is not in `FAMILIES`."""
  directory.mkdir(parents=True, exist_ok=True)
  with_weights = {config["model_type"] for config in FAMILIES.values()}
  for name in VARIANTS:
    config = variant(name)
    if config["model_type"] not in with_weights:
      path = directory / f"{name}.json"
      path.write_text(_text(config), encoding="utf-8")


def _publish_names(path: pathlib.Path) -> None:
  """Renames tensors of Kimi K2.5, which transformers 5.24 writes otherwise."""
  tensors = numpy.load_file(path)
  named = {
    re.sub(
      r"^language_model\.model\.blocks\.|^model\.(?=mm_projector)",
      lambda found: "" if found[0] == "model." else _KIMI_LAYERS,
      name,
    ): tensor
    for name, tensor in tensors.items()
  }
  numpy.save_file(named, path, metadata={"format": "pt"})


def _config(directory: pathlib.Path) -> transformers.PreTrainedConfig:
  """The config of a folder; that of DeepSeek-V3 if Kimi's code is needed."""
  keys = json.loads((directory / "config.json").read_text())
  if keys["model_type"] == "kimi_k2":
    keys |= {"model_type": "deepseek_v3"}
    return transformers.DeepseekV3Config.from_dict(keys)
  return transformers.AutoConfig.from_pretrained(directory)


def _auto(config: dict) -> type:
  """The class that makes the model of a config.json."""
  nested = "gemma4", "kimi_k25", "llama4", "mistral3"
  nested += "qwen3_5", "qwen3_5_moe"
  if tiny_vision.is_vision(config) or config["model_type"] in nested:
    return transformers.AutoModelForImageTextToText
  return transformers.AutoModelForCausalLM


def make_reference(
  directory: pathlib.Path,
  input_ids: np.ndarray,  # [B, L]
  attention_mask: np.ndarray,  # [B, L] bool
  *,
  images: dict[str, np.ndarray] | None = None,
  num_new_tokens: int = 0,
  bfloat16: bool = False,
) -> tuple[dict[str, np.ndarray], float]:
  """Outputs of transformers from the files of `directory`, in float32.

  Args:
    directory: A checkpoint.
    input_ids: Tokens; their values do not matter where the mask is False.
    attention_mask: True on the tokens that exist, one run per row.
    images: Images of the rows, as `tiny_vision.draw` returns them, or None.
    num_new_tokens: Length of the greedy continuation; 0 for none. It needs
      left-padded rows.
    bfloat16: Whether to load it in bfloat16 too.

  Returns:
    The arrays of a reference file, and the smallest lead of a token of the
    continuation over the second best.
  """
  model = _load(directory, torch.float32)
  ids = torch.from_numpy(input_ids.astype(np.int64))
  mask = torch.from_numpy(attention_mask.astype(np.int64))
  arrays = {
    "input_ids": input_ids.astype(np.int32),
    "attention_mask": attention_mask.astype(bool),
    **(images or {}),
  }
  if model.config.model_type.startswith(("llama4", "deepseek_v4")):
    # Temperatures of Llama 4 and windows of DeepSeek-V4 count padding there: so
    # one row at a time, without padding.
    return _rows_apart(model, arrays, num_new_tokens, directory, bfloat16)
  with torch.no_grad():
    beside = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    of_images = {}
    if images is not None:
      config = json.loads((directory / "config.json").read_text())
      of_images = tiny_vision.inputs(config, arrays)
      if "mm_token_type_ids" in of_images:
        beside = {}  # It makes its own of them.

    def logits(model: transformers.PreTrainedModel) -> torch.Tensor:
      output = model(ids, attention_mask=mask, **beside, **of_images)
      # Positions of padding hold whatever attention to nothing gives.
      return torch.where(mask[..., None] > 0, output.logits, 0.0).float()

    wide = logits(model)
    arrays["logits"] = wide.numpy()
    if bfloat16:
      narrow = logits(_load(directory, torch.bfloat16))
      arrays["bfloat16_error"] = (narrow - wide).abs().max().numpy()
    margin = float("inf")
    if num_new_tokens:
      model.generation_config.eos_token_id = None  # Nothing ends early.
      generated = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=num_new_tokens,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **of_images,
      )
      best = torch.stack(generated.logits).topk(2).values  # [T, B, 2]
      margin = (best[..., 0] - best[..., 1]).min().item()
      greedy = generated.sequences[:, ids.shape[1] :]
      arrays["greedy"] = greedy.numpy().astype(np.int32)
  return arrays, margin


def _rows_apart(
  model: transformers.PreTrainedModel,
  arrays: dict[str, np.ndarray],
  num_new_tokens: int,
  directory: pathlib.Path,
  bfloat16: bool,
) -> tuple[dict[str, np.ndarray], float]:
  """What `make_reference` returns, from one row after the other."""
  ids, mask = arrays["input_ids"], arrays["attention_mask"]
  rows = [
    torch.from_numpy(row[there].astype(np.int64))[None]
    for row, there in zip(ids, mask, strict=True)
  ]

  def logits(model: transformers.PreTrainedModel) -> np.ndarray:
    # The model with images of transformers 5.24 needs images.
    model = getattr(model, "language_model", model)
    found = np.zeros((*ids.shape, model.config.get_text_config().vocab_size))
    for number, row in enumerate(rows):
      found[number, mask[number]] = model(row).logits[0].float().numpy()
    return found.astype(np.float32)

  margin, greedy = float("inf"), []
  with torch.no_grad():
    arrays["logits"] = logits(model)
    if bfloat16:
      narrow = logits(_load(directory, torch.bfloat16))
      arrays["bfloat16_error"] = abs(narrow - arrays["logits"]).max()
    text = getattr(model, "language_model", model)
    for row in rows:
      tokens = row
      for _ in range(num_new_tokens):  # Without its cache.
        best = text(tokens).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        tokens = torch.cat([tokens, best.indices[None, :1]], dim=1)
      greedy.append(tokens[0, row.shape[1] :].numpy().astype(np.int32))
  if num_new_tokens:
    arrays["greedy"] = np.stack(greedy)
  return arrays, margin


def save_gradient(
  directory: pathlib.Path, arrays: dict[str, np.ndarray]
) -> None:
  """Writes gradient.safetensors: of each tensor of the file, the gradient.

  That is the gradient of the cross-entropy, nats, added up over all prompt
  tokens but the first of each row. With images it is added up over completions,
  which no image is in, as here. Rows are run one after the other, those with
  images at once.

  Args:
    directory: A checkpoint; its families' buffers are written as they are.
    arrays: Arrays of its reference, with images also completions [B, T].
  """
  model = _load(directory, torch.float32)
  kind = model.config.model_type
  # A token of a text may be that of padding, whose row has no gradient else.
  model.get_input_embeddings().padding_idx = None
  if "patches" in arrays:
    _backward_of_shown(model, directory, arrays)
  else:
    run = model.language_model if kind == "llama4" else model
    rows = zip(arrays["input_ids"], arrays["attention_mask"], strict=True)
    for row, mask in rows:
      ids = torch.from_numpy(row[mask].astype(np.int64))[None]
      _backward(run(ids).logits[:, :-1], ids[:, 1:])
  with torch.no_grad():
    for parameter in model.parameters():
      gradient = parameter.grad
      parameter.copy_(
        torch.zeros_like(parameter) if gradient is None else gradient
      )
  with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    written = pathlib.Path(folder) / "model.safetensors"
    if kind == "kimi_k25":
      _publish_names(written)
    shutil.copy(written, directory / "gradient.safetensors")
  (directory / "gradient.safetensors").chmod(0o644)


def _backward(logits: torch.Tensor, tokens: torch.Tensor) -> None:
  """Adds the gradient of the cross-entropy of tokens [B, T] to parameters."""
  torch.nn.functional.cross_entropy(
    logits.flatten(0, 1), tokens.flatten(), reduction="sum"
  ).backward()


def _backward_of_shown(
  model: transformers.PreTrainedModel,
  directory: pathlib.Path,
  arrays: dict[str, np.ndarray],
) -> None:
  """`_backward` of completions of prompts with images."""
  prompts, mask = arrays["input_ids"], arrays["attention_mask"]
  num_slots, num_new = prompts.shape[1], arrays["completions"].shape[1]
  whole = arrays | {
    "input_ids": np.concatenate([prompts, arrays["completions"]], axis=1),
    "attention_mask": np.pad(mask, ((0, 0), (0, num_new)), mode="edge"),
  }
  ids, mask = (
    torch.from_numpy(whole[name].astype(np.int64))
    for name in ("input_ids", "attention_mask")
  )
  config = json.loads((directory / "config.json").read_text())
  of_images = tiny_vision.inputs(config, whole)
  if "mm_token_type_ids" not in of_images:
    of_images["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
  output = model(ids, attention_mask=mask, **of_images)
  _backward(output.logits[:, num_slots - 1 : -1], ids[:, num_slots:])


def _load(
  directory: pathlib.Path, dtype: torch.dtype
) -> transformers.PreTrainedModel:
  config = json.loads((directory / "config.json").read_text())
  # The grouped product of torch takes rows of 16 bytes or multiples of them.
  eager = config["model_type"] == "deepseek_v4" and dtype == torch.bfloat16
  experts = {"experts_implementation": "eager"} if eager else {}
  return (
    _auto(config)
    .from_pretrained(
      directory,
      config=_config(directory),
      dtype=dtype,
      attn_implementation="eager",
      **experts,
    )
    .eval()
  )


def draw_prompts(vocab_size: int, lengths: tuple[int, ...], seed: int):
  """Left-padded tokens [B, L] and mask [B, L] of the given lengths."""
  rng = np.random.default_rng(seed)
  shape = len(lengths), max(lengths)
  mask = np.arange(shape[1]) >= shape[1] - np.array(lengths)[:, None]
  return np.where(mask, rng.integers(3, vocab_size, shape), 0), mask


def _prompts(
  config: dict, vocab_size: int, lengths: tuple[int, ...], seed: int
) -> dict:
  """Arguments of `make_reference`; for prompts with images, of any length."""
  names = "input_ids", "attention_mask"
  if not tiny_vision.is_vision(config):
    drawn = draw_prompts(vocab_size, lengths, seed)
    return dict(zip(names, drawn, strict=True))
  images = tiny_vision.draw(config, seed)
  return {**{name: images.pop(name) for name in names}, "images": images}


def _save(directory: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  np.savez_compressed(directory / "reference.npz", **arrays)
  paths = [path for path in sorted(directory.iterdir()) if path.is_file()]
  total = sum(path.stat().st_size for path in paths)
  print(
    f"{directory}: {total / 1000:.0f} kB, largest logit"
    f" {abs(arrays['logits']).max():.1f}"
  )


def main() -> None:
  """Writes the families, or the reference of one checkpoint."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--output", type=pathlib.Path)
  parser.add_argument("--families", nargs="+", default=FAMILIES)
  parser.add_argument("--variants", action="store_true")
  parser.add_argument("--reference_of", type=pathlib.Path, nargs="+")
  parser.add_argument("--configs", type=pathlib.Path)
  parser.add_argument("--length", type=int, default=64)
  parser.add_argument("--bfloat16", action="store_true")
  parser.add_argument("--gradient", action="store_true")
  args = parser.parse_args()
  if [args.output, args.reference_of, args.configs].count(None) != 2:
    parser.error("pass one of --output, --reference_of and --configs.")
  if args.configs is not None:
    write_configs(args.configs)
    return
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  if args.reference_of is not None:
    lengths = (args.length, max(args.length // 2, 1))
    for directory in args.reference_of:
      config = _config(directory)
      vocab_size = config.get_text_config().vocab_size
      keys = json.loads((directory / "config.json").read_text())
      prompts = _prompts(keys, vocab_size, lengths, seed=0)
      arrays, _ = make_reference(directory, **prompts, bfloat16=args.bfloat16)
      _save(directory, arrays)
    return
  for name in args.families:
    if name not in FAMILIES:
      parser.error(f"no family {name!r}; known are {', '.join(FAMILIES)}.")
  configs = {name: tiny_vision.family_config(name) for name in args.families}
  if args.variants:
    configs = {name: variant(name) for name in VARIANTS}
  for name, config in configs.items():
    directory = args.output / name
    for seed in itertools.count():
      make_checkpoint(directory, config, seed)
      vocab_size = config.get("text_config", config)["vocab_size"]
      prompts = _prompts(config, vocab_size, _NUM_PROMPT_TOKENS, seed)
      arrays, margin = make_reference(
        directory,
        **prompts,
        num_new_tokens=_NUM_NEW_TOKENS,
        bfloat16=args.bfloat16,
      )
      num_distinct = min(len(set(row)) for row in arrays["greedy"].tolist())
      if margin >= _MIN_MARGIN and num_distinct >= _MIN_DISTINCT:
        break
    if args.gradient and "patches" in arrays:
      arrays["completions"] = tiny_vision.draw_completions(
        len(arrays["input_ids"]), _NUM_NEW_TOKENS, seed
      )
    if args.gradient or name == "deepseek_v4":
      save_gradient(directory, arrays)
    _save(directory, arrays)


if __name__ == "__main__":
  main()
