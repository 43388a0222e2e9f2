"""GGUF files: each family, each type, tokenizers, and files that are wrong.

Each file is written by the package `gguf` as llama.cpp's converter does, with
names that its own table has for those of transformers. Beside it is a folder of
safetensors with the same weights, which must give the same model.
"""

import functools
import json
import math
import re
import struct
import sys
import time
import tracemalloc

import gguf as package
import jax
import numpy as np
import pytest
import tokenizers
from safetensors import numpy as safetensors

from grpo_jax.data import tokenizer as tokenizer_lib
from grpo_jax.models import architecture
from grpo_jax.models.hf import families, gguf, gguf_tokenizer, hub, weights
from tests.training import tiny

_SIZES = {
  "head_dim": 8,
  "hidden_size": 32,
  "intermediate_size": 24,
  "num_attention_heads": 4,
  "num_hidden_layers": 2,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-5,
  "rope_theta": 50_000.0,
  "tie_word_embeddings": False,
  "vocab_size": 20,
}
_GEMMA = {**_SIZES, "query_pre_attn_scalar": 8, "tie_word_embeddings": True}
_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2}
_LLAMA3 = {
  "factor": 8.0,
  "high_freq_factor": 4.0,
  "low_freq_factor": 1.0,
  "original_max_position_embeddings": 8192,
  "rope_type": "llama3",
}
# Wavelengths are 6, 94, 1 405 and 21 014 tokens, with a theta of 50 000.
_LLAMA4 = {**_LLAMA3, "factor": 16.0, "high_freq_factor": 1.0}
_YARN = {
  "factor": 32.0,
  "original_max_position_embeddings": 64,
  "rope_type": "yarn",
  "truncate": False,
}
# A name -> architecture of llama.cpp, config.json, and further keys of a file.
CASES = {
  "llama": ("llama", {**_SIZES, "model_type": "llama"}, {}),
  "granite": (
    "granite",
    {
      **_SIZES,
      "attention_multiplier": 0.25,
      "embedding_multiplier": 12.0,
      "logits_scaling": 8.0,
      "model_type": "granite",
      "residual_multiplier": 0.22,
    },
    {
      "attention.scale": 0.25,
      "embedding_scale": 12.0,
      "logit_scale": 8.0,
      "residual_scale": 0.22,
    },
  ),
  "ministral3": (
    "mistral3",
    {
      **_SIZES,
      "model_type": "ministral3",
      "rope_scaling": {
        **_YARN,
        "llama_4_scaling_beta": 0.25,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "truncate": True,
      },
    },
    {
      "attention.temperature_scale": 0.25,
      "rope.scaling.factor": 32.0,
      "rope.scaling.original_context_length": 64,
      "rope.scaling.type": "yarn",
      "rope.scaling.yarn_log_multiplier": 1.0,
    },
  ),
  "smollm3": (
    "smollm3",
    {**_SIZES, "model_type": "smollm3", "num_hidden_layers": 4},
    {},
  ),
  "mixtral": (
    "llama",
    {
      **_SIZES,
      "model_type": "mixtral",
      "num_experts_per_tok": 2,
      "num_local_experts": 3,
    },
    {"expert_count": 3, "expert_used_count": 2, "rope.dimension_count": 8},
  ),
  "llama3": (
    "llama",
    {**_SIZES, "model_type": "llama", "rope_scaling": _LLAMA3},
    {"rope_freqs.weight": _LLAMA3},
  ),
  "qwen2": (
    "qwen2",
    {**_SIZES, "model_type": "qwen2", "tie_word_embeddings": True},
    {},
  ),
  "qwen3": (
    "qwen3",
    {
      **_SIZES,
      "model_type": "qwen3",
      "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
  ),
  "qwen3moe": (
    "qwen3moe",
    {
      **_SIZES,
      **_EXPERTS,
      "model_type": "qwen3_moe",
      "moe_intermediate_size": 32,
      "norm_topk_prob": True,
    },
    {"expert_feed_forward_length": 32},
  ),
  "gemma2": (
    "gemma2",
    {
      **_GEMMA,
      "attn_logit_softcapping": 50.0,
      "final_logit_softcapping": 30.0,
      "model_type": "gemma2",
      "sliding_window": 16,
    },
    {
      "attention.sliding_window": 16,
      "attn_logit_softcapping": 50.0,
      "final_logit_softcapping": 30.0,
    },
  ),
  "gemma3": (
    "gemma3",
    {
      **_GEMMA,
      "model_type": "gemma3_text",
      "num_hidden_layers": 7,
      "sliding_window": 16,
    },
    {"attention.sliding_window": 16},
  ),
  "phi3": (
    "phi3",
    {
      **_SIZES,
      "max_position_embeddings": 256,
      "model_type": "phi3",
      "original_max_position_embeddings": 64,
      "partial_rotary_factor": 0.5,
      "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 4.0],
      },
    },
    {
      "attention.sliding_window": 0,
      "context_length": 256,
      "rope.dimension_count": 4,
      "rope.scaling.original_context_length": 64,
      "rope_factors_long.weight": [2.0, 4.0],
      "rope_factors_short.weight": [1.0, 1.5],
    },
  ),
  "olmo2": ("olmo2", {**_SIZES, "model_type": "olmo2"}, {}),
  "olmo3": (
    "olmo2",
    {
      **_SIZES,
      "layer_types": ["full_attention", "sliding_attention"],
      "model_type": "olmo3",
      "rope_parameters": {
        "full_attention": {**_YARN, "truncate": True, "rope_theta": 50_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50_000.0},
      },
      "sliding_window": 16,
    },
    {
      "attention.sliding_window": 16,
      "attention.sliding_window_pattern": [False, True],
      "rope.scaling.factor": 32.0,
      "rope.scaling.original_context_length": 64,
      "rope.scaling.type": "yarn",
    },
  ),
  "glm4": (
    "glm4",
    {**_SIZES, "model_type": "glm4", "partial_rotary_factor": 0.5},
    {"rope.dimension_count": 4},
  ),
  "gpt2": (
    "gpt2",
    {
      "model_type": "gpt2",
      "n_embd": 32,
      "n_head": 4,
      "n_inner": 128,
      "n_layer": 2,
      "n_positions": 64,
      "vocab_size": 20,
    },
    {},
  ),
  "llama4": (
    "llama4",
    {
      **_SIZES,
      "interleave_moe_layer_step": 2,
      "intermediate_size": 16,
      "intermediate_size_mlp": 24,
      "model_type": "llama4_text",
      "num_experts_per_tok": 2,
      "num_hidden_layers": 4,
      "num_local_experts": 3,
      "rope_scaling": _LLAMA4,
    },
    {
      "expert_count": 3,
      "expert_feed_forward_length": 16,
      "expert_used_count": 2,
      "interleave_moe_layer_step": 2,
      "rope.dimension_count": 8,
      "rope_freqs.weight": [1.0, 1.0, 1.0, 16.0],
    },
  ),
  "gpt-oss": (
    "gpt-oss",
    {
      **_SIZES,
      **_EXPERTS,
      "intermediate_size": 32,
      "model_type": "gpt_oss",
      "rope_scaling": _YARN,
      "sliding_window": 16,
    },
    {
      "attention.sliding_window": 16,
      "expert_feed_forward_length": 32,
      "rope.scaling.factor": 32.0,
      "rope.scaling.original_context_length": 64,
      "rope.scaling.type": "yarn",
    },
  ),
}


# Text parts of models with images, whose towers are files of their own; and
# Mistral, which without a window is Llama.
CASES |= {
  f"{outer} with images": (
    CASES[inner][0],
    {"model_type": outer, "text_config": CASES[inner][1]},
    CASES[inner][2],
  )
  for outer, inner in (
    ("gemma3", "gemma3"),
    ("llama4", "llama4"),
    ("mistral3", "ministral3"),
  )
}
CASES["mistral"] = (
  "llama",
  {**_SIZES, "model_type": "mistral", "sliding_window": None},
  {},
)
# Architectures that Llama's converter writes.
LLAMAS = ("granite", "llama", "mistral3", "smollm3")


def _tensors(config):
  """Random tensors of a config.json by their names in safetensors files."""
  fields, family = families.from_config_json(config)
  made = architecture.TransformerConfig(**fields)
  rng = np.random.default_rng(0)
  pieces = weights.checkpoint_pieces(
    family, made, weights._abstract_params(made)
  )
  return {
    piece.tensor: rng.normal(size=piece.stored_shape).astype(np.float32)
    for of_leaf in pieces.values()
    for piece in of_leaf
  }


def _converted(name, config, tensors):
  """Tensors as llama.cpp's converter changes and names them."""
  found, experts = {}, {}
  for key, x in tensors.items():
    is_expert = ".experts." in key
    if name in LLAMAS and key.endswith(("q_proj.weight", "k_proj.weight")):
      heads = config["num_attention_heads"]
      if key.endswith("k_proj.weight"):
        heads = config["num_key_value_heads"]
      x = x.reshape(heads, 2, -1, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
    if name.startswith("gemma") and key.endswith("norm.weight"):
      x = x + 1
    if name == "gpt2" and ".h." in key and x.ndim == 2:
      x = x.T
    if name in ("gpt-oss", "llama4") and is_expert:
      is_bias = key.endswith("_bias")
      key = key.removesuffix("_bias") + (".bias" if is_bias else ".weight")
      x = x if is_bias else x.swapaxes(-1, -2)
    elif is_expert:
      before, _, after = key.partition(".experts.")
      key = f"{before}.experts.{after.partition('.')[2]}"
      experts.setdefault(key, []).append(x)
      x = np.stack(experts[key])
    key += ".weight" if key.endswith("sinks") else ""
    found[key] = x
  if name in ("phi3", "glm4"):
    found = _fused(found, ["gate", "up"], "mlp.{}_proj", "mlp.gate_up_proj")
  if name == "phi3":
    found = _fused(found, "qkv", "self_attn.{}_proj", "self_attn.qkv_proj")
  (kind,) = (k for k, x in package.MODEL_ARCH_NAMES.items() if x == name)
  layers = config.get("num_hidden_layers", config.get("n_layer"))
  table = package.get_tensor_name_map(kind, layers)
  return {
    table.get_name(key, try_suffixes=(".weight", ".bias")): x
    for key, x in found.items()
  }


def _fused(tensors, parts, part, whole):
  made = {}
  for key, x in tensors.items():
    start = next((p for p in parts if f".{part.format(p)}.weight" in key), None)
    if start is None:
      made[key] = x
      continue
    new = key.replace(part.format(start), whole)
    made[new] = np.concatenate([made[new], x]) if new in made else x
  return made


def write_tokenizer(writer, size):
  """A byte-level tokenizer with one merge and two control tokens."""
  pieces = [*list(tokenizer_lib.byte_alphabet())[: size - 3], "!!"]
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre("qwen2")
  writer.add_token_list([*pieces, "<|im_start|>", "<|im_end|>"])
  writer.add_token_types([1] * len(pieces) + [3, 3])
  writer.add_token_merges(["! !"])
  writer.add_eos_token_id(size - 1)
  writer.add_pad_token_id(size - 2)
  writer.add_chat_template("{{ messages[0].content }}<|im_end|>")


def write(path, name, config, tensors, extra=(), kinds=None, text=None):
  """Writes a GGUF file.

  Args:
    path: Its path.
    name: Architecture of llama.cpp.
    config: The config.json.
    tensors: Tensors by llama.cpp's names.
    extra: Further keys by their names, and vectors of the positions.
    kinds: Types of tensors that are not float32.
    text: Function (writer, size) that writes the tokenizer, or None.
  """
  writer = package.GGUFWriter(path, name)
  if name == "gpt2":
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_context_length(config["n_positions"])
    writer.add_layer_norm_eps(1e-5)
  else:
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    mlp_width = config.get("intermediate_size_mlp")
    writer.add_feed_forward_length(mlp_width or config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
  if "num_experts" in config:
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
  for key, value in dict(extra).items():
    if value is _LLAMA3:
      value = _divisors(config)
    if isinstance(value, str):
      writer.add_string(f"{name}.{key}", value)
    elif isinstance(value, float):
      writer.add_float32(f"{name}.{key}", value)
    elif isinstance(value, int):
      writer.add_uint32(f"{name}.{key}", value)
    elif "pattern" in key:
      writer.add_array(f"{name}.{key}", value)
    else:
      writer.add_tensor(key, np.asarray(value, np.float32))
  (text or write_tokenizer)(writer, config["vocab_size"])
  for key, x in tensors.items():
    kind = dict(kinds or {}).get(key)
    if kind is None:
      writer.add_tensor(key, x)
    else:
      data = package.quantize(x, kind)
      writer.add_tensor(key, data, raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _divisors(config):
  """The converter's divisors of Llama 3.1's frequencies, one by one."""
  width, made = config["head_dim"], []
  for i in range(0, width, 2):
    wave = 2 * math.pi * config["rope_theta"] ** (i / width)
    smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / 8.0 + smooth)
    made.append(1.0 if wave < 2048 else 8.0 if wave > 8192 else between)
  return made


def both(folder, case, **options):
  """Writes the same model as a GGUF file and as a folder of safetensors."""
  name, config, extra = CASES[case]
  text = config.get("text_config", config)
  tensors = _tensors(config)
  theirs = folder / "folder"
  theirs.mkdir()
  (theirs / "config.json").write_text(json.dumps(config))
  safetensors.save_file(tensors, theirs / "model.safetensors")
  path = folder / f"{case}.gguf"
  named = {x.removeprefix("language_model."): y for x, y in tensors.items()}
  converted = _converted(name, text, named)
  write(path, name, text, converted, extra, **options)
  return path, theirs


@pytest.mark.parametrize("case", tiny.each(CASES, ("llama", "qwen2")))
def test_the_same_model_as_a_folder(tmp_path, case):
  path, theirs = both(tmp_path, case)
  ours = hub.local_directory(str(path))
  config, params = weights.load(ours)
  their_config, their_params = weights.load(theirs)
  assert config == their_config
  # 1 is added to the scales of Gemma's norms, and taken away again.
  tolerance = 1e-6 if case.startswith("gemma") else 0.0
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance),
    params,
    their_params,
  )
  text = tokenizer_lib.Tokenizer(ours)
  assert (text.end_ids, text.pad_id, text.vocab_size) == ((19,), 18, 20)
  assert text.chat_ids([{"role": "user", "content": "!!!"}]) == [17, 0, 19]


@pytest.mark.slow
def test_an_export_is_an_ordinary_folder(tmp_path):
  path, theirs = both(tmp_path, "llama")
  ours = hub.local_directory(str(path))
  config, params = weights.load(ours)
  weights.export(params, config, ours, tmp_path / "out", dtype="bfloat16")
  assert {x.name for x in (tmp_path / "out").iterdir()} == {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
  }
  written = json.loads((tmp_path / "out/config.json").read_text())
  assert written["torch_dtype"] == "bfloat16"
  again, back = weights.load(tmp_path / "out", param_dtype="float32")
  assert again == config
  _, expected = weights.load(theirs)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=2**-8), back, expected
  )


@pytest.mark.parametrize(
  "kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
)
def test_types_in_a_model(tmp_path, kind):
  kind = package.GGMLQuantizationType[kind]
  kinds = dict.fromkeys(
    ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_up.weight"), kind
  )
  path, theirs = both(tmp_path, "llama", kinds=kinds)
  tensors = safetensors.load_file(theirs / "model.safetensors")
  for name in (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
  ):
    x = package.quantize(tensors[name], kind)
    tensors[name] = package.dequantize(x, kind).reshape(tensors[name].shape)
  safetensors.save_file(tensors, theirs / "model.safetensors")
  _, params = weights.load(hub.local_directory(str(path)))
  _, expected = weights.load(theirs)
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def _decodable():
  for kind, (_, num_bytes) in package.GGML_QUANT_SIZES.items():
    try:
      package.dequantize(np.zeros((1, num_bytes), np.uint8), kind)
    except NotImplementedError:
      continue
    yield kind


@pytest.mark.parametrize("kind", [*_decodable()], ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_parts_of_every_type(tmp_path, kind):
  of_block, num_bytes = package.GGML_QUANT_SIZES[kind]
  rng = np.random.default_rng(0)
  data = rng.integers(0, 256, (12, 2 * num_bytes), np.uint8)
  (tmp_path / "x").write_bytes(b"12345" + data.tobytes())
  whole = package.dequantize(data, kind)
  stored = gguf.Stored(
    tmp_path / "x", int(kind), (3, 4, 2 * of_block), 5, data.size
  )
  np.testing.assert_array_equal(stored.rows(np.array([7, 2])), whole[[7, 2]])
  view = gguf.View(stored, (4, 2 * of_block), first=4)
  part = view[1:3, 1 : 2 * of_block]
  np.testing.assert_array_equal(part, whole[5:7, 1:])
  turned = gguf.View(stored, (3, 2 * of_block, 4), is_transposed=True)
  expected = whole.reshape(3, 4, -1).swapaxes(1, 2)[1:, :1, ::3]
  np.testing.assert_array_equal(turned[1:, :1, ::3], expected)


# --- Tokenizers ---

_TEXTS = (
  *("What is 23 + 4?", "  def f(x):\n\treturn x ** 2\r\n\n"),
  *("don't WE'LL 1234567 ๑๒๓ สวัสดี", "naïve é 數学 😀\x00\x1f"),
  "<think>5</think> <answer>7</answer><eos>",
)


@functools.cache
def _model(size):
  config = {**CASES["llama"][1], "vocab_size": size}
  return config, _converted("llama", config, _tensors(config))


def _read(path, pieces, **keys):
  """Writes a model with this vocabulary; returns its tokenizer."""

  def text(writer, size):
    del size
    writer.add_token_list(pieces)
    for key, value in keys.items():
      getattr(writer, f"add_{key}")(value)

  write(path, "llama", *_model(len(pieces)), text=text)
  return tokenizer_lib.Tokenizer(hub.local_directory(str(path)))


def test_a_byte_level_tokenizer(tmp_path):
  # Its file has the steps that llama.cpp calls smollm.
  file = json.loads(tokenizer_lib.GSM8K_BPE.read_text())
  pieces = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
  added = {x["content"] for x in file["added_tokens"]}
  found = _read(
    tmp_path / "x.gguf",
    pieces,
    tokenizer_model="gpt2",
    tokenizer_pre="smollm",
    token_types=[3 if x in added else 1 for x in pieces],
    token_merges=[" ".join(pair) for pair in file["model"]["merges"]],
    eos_token_id=1,
    eot_token_id=0,
  )
  expected = tokenizer_lib.Tokenizer(end_tokens=["<eos>"])
  for text in _TEXTS:
    assert found.encode(text) == expected.encode(text)
    assert found.decode(found.encode(text)) == text.removesuffix("<eos>")
  assert found.begin_ids == []
  assert found.end_ids == (1, 0)


@pytest.mark.parametrize(
  ("rule", "begins", "words"),
  [
    ("gpt-2", 0, ["don", "'t", " 1234", " AbC"]),
    ("smollm", 0, ["don", "'t", " ", "1", "2", "3", "4", " AbC"]),
    ("refact", 0, ["don", "'t", " ", "1", "2", "3", "4", " AbC"]),
    ("qwen2", 0, ["don", "'t", " ", "1", "2", "3", "4", " AbC"]),
    ("llama-bpe", 1, ["don", "'t", " ", "123", "4", " AbC"]),
    ("tekken", 1, ["don", "'t", " ", "1", "2", "3", "4", " Ab", "C"]),
    ("gpt-4o", 0, ["don't", " ", "123", "4", " Ab", "C"]),
    ("llama4", 0, ["don't", " ", "123", "4", " Ab", "C"]),
  ],
)
def test_rules_that_cut_a_text(rule, begins, words):
  own = {"model": "gpt2", "pre": rule, "tokens": ["a", "b"], "merges": []}
  made = gguf_tokenizer._files({**own, "bos_token_id": 1}, {}, 2)
  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(made["tokenizer.json"]))
  found = tokenizer.pre_tokenizer.pre_tokenize_str("don't 1234 AbC")
  assert [word.replace("Ġ", " ") for word, _ in found] == words
  assert tokenizer.encode("a").ids == [1] * begins + [0]


_SPM = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]


def test_a_sentencepiece_tokenizer(tmp_path):
  pieces = [*_SPM, "▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "<turn>", "<t>"]
  ranks = [9, 9, 9, 9, 2, 1, 4, 3, 0, 0]
  keys = dict(
    tokenizer_model="llama",
    tokenizer_pre="default",
    token_scores=[0.0] * 259 + [-float(x) for x in ranks],
    token_types=[2, 3, 3] + [6] * 256 + [1] * 8 + [3, 4],
    bos_token_id=1,
    eos_token_id=2,
    eot_token_id=267,
  )
  at = {piece: id_ for id_, piece in enumerate(pieces)}
  found = _read(tmp_path / "x.gguf", pieces, **keys)
  assert found.begin_ids == [1]
  assert found.end_ids == (2, 267)

  def ids(text):
    return [at[piece] for piece in text.split()]

  # The best score first: b and c, although a and b are a piece too.
  assert found.encode("abc") == ids("▁a bc")
  assert found.encode(" ab") == ids("▁ ▁ab")
  assert found.encode("é<turn>b") == ids("▁ <0xC3> <0xA9> <turn> ▁ b")
  assert found.decode(found.encode("abé ab")) == "abé ab"
  assert found.encode("<t>") == ids("<t>")
  bare = _read(
    tmp_path / "y.gguf",
    pieces,
    **keys,
    add_bos_token=False,
    add_space_prefix=False,
  )
  assert bare.begin_ids == []
  assert bare.encode("ab abc") == ids("ab ▁a bc")


@pytest.mark.parametrize(
  ("keys", "message"),
  [
    ({"token_list": ["a"] * 20}, "19 pieces are there twice"),
    ({"token_list": list("abc")}, "3 pieces, and the model 20 rows"),
    ({"token_merges": ["b c"]}, "merges 'b' and 'c' to no piece"),
    ({"token_merges": ["a b c"]}, "a merge has 3 pieces"),
    ({"token_types": [1]}, "token_type has no number for each of 20"),
    ({"bos_token_id": 99}, "bos_token_id is 99"),
    ({"tokenizer_model": "llama"}, "scores has no number for each of 20"),
  ],
)
def test_vocabularies_that_are_wrong(tmp_path, keys, message):
  given = {
    "token_list": [*"abcdefghijklmnopqrs", "ab"],
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "qwen2",
    "token_merges": ["a b"],
    **keys,
  }

  def text(writer, size):
    del size
    for key, value in given.items():
      getattr(writer, f"add_{key}")(value)

  path = tmp_path / "x.gguf"
  write(path, "llama", *_model(20), text=text)
  with pytest.raises(ValueError, match=f"tokenizer of {path}: .*{message}"):
    hub.local_directory(str(path))


# --- Files that are wrong ---


def _number(key, skip, value, code):
  """A change of a number that is so many bytes behind a text."""

  def changed(text):
    at = text.index(key.encode()) + len(key) + skip
    new = struct.pack(f"<{code}", value)
    return text[:at] + new + text[at + len(new) :]

  return changed


def _renamed(old, new):
  assert len(old) == len(new)
  return lambda text: text.replace(old.encode(), new.encode())


_KERNEL = "blk.0.ffn_up.weight"
_MUCH = b"\xff" * 7 + b"\x7f"
WRONG = {
  "empty": (lambda x: b"", "empty"),
  "four bytes": (lambda x: x[:4], "bytes at 4 of 4"),
  "a text": (
    lambda x: b"GGML is older.\n" * 9,
    "begins with b'GGML'",
  ),
  "git-lfs": (lambda x: b"version https://git-lfs.github.com", "git-lfs"),
  "version 1": (lambda x: x[:4] + b"\1\0\0\0" + x[8:], "version 1;"),
  "big-endian": (lambda x: x[:4] + b"\0\0\0\3" + x[8:], "version 50331648"),
  "header cut": (lambda x: x[:700], "is damaged or"),
  "weights cut": (lambda x: x[:-99], "truncated"),
  "half": (lambda x: x[: len(x) // 2], "truncated"),
  "endless tensors": (lambda x: x[:8] + _MUCH + x[16:], f"{2**63 - 1} entries"),
  "endless keys": (lambda x: x[:16] + _MUCH + x[24:], f"{2**63 - 1} entries"),
  "endless text": (lambda x: x[:24] + _MUCH + x[32:], f"{2**63 - 1} bytes"),
  "endless array": (_number("ggml.token_type", 8, 2**62, "Q"), f"{2**62} entr"),
  "type of a key": (_number("general.architecture", 0, 99, "I"), "the type 99"),
  "family": (_renamed("qwen3", "qwens"), "architecture 'qwens'"),
  "unknown type": (_number(_KERNEL, 20, 77, "I"), "has the type 77"),
  "type not decoded": (_number(_KERNEL, 20, 9, "I"), "has the type Q8_1"),
  "axes": (_number(_KERNEL, 0, 999, "I"), "has 999 axes"),
  "no columns": (_number(_KERNEL, 4, 0, "Q"), "on the last axis"),
  "huge tensor": (_number(_KERNEL, 4, 2**50, "Q"), "truncated"),
  "far tensor": (_number(_KERNEL, 24, 2**63, "Q"), "truncated"),
  "shape": (_number(_KERNEL, 4, 16, "Q"), "is [24, 16], but"),
  "missing tensor": (
    _renamed("blk.0.attn_output.weight", "rope_factors_long.weight"),
    "no model.layers.0.self_attn.o_proj.weight",
  ),
  "unknown tensor": (_renamed(_KERNEL, "blk.0.ffn_in.weight"), "ffn_in.weight"),
  "tensor twice": (_renamed(_KERNEL, "blk.1.ffn_up.weight"), "there twice"),
  "key twice": (_renamed("value_length", "key_lengthxx"), "= 8"),
  "no embedding": (_renamed("token_embd", "token_embx"), "token_embd.weight"),
  "endless layers": (
    _number("block_count", 4, 2**32 - 1, "I"),
    "block_count is 4294967295",
  ),
  "fewer layers": (_number("block_count", 4, 1, "I"), "1 layers has no place"),
  "no heads": (_number("head_count", 4, 0, "I"), "head_count is 0"),
  "unknown key": (_renamed("value_length", "other_length"), "other_length = 8"),
  "scaling": (_renamed("linear", "magics"), "'magics'"),
  "no tokenizer": (_renamed("ggml.tokens", "ggml.others"), "no tokenizer.ggml"),
  "kind of tokenizer": (_renamed("gpt2", "bert"), "kind 'bert'"),
  "rule of tokenizer": (_renamed("qwen2", "qwenx"), "rule 'qwenx'"),
  "end token": (_number("eos_token_id", 4, 20, "I"), "eos_token_id is 20"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
  """Bytes of a small model, which tests change."""
  path, _ = both(tmp_path_factory.mktemp("good"), "qwen3")
  weights.load(hub.local_directory(str(path)))
  return path.read_bytes()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_message(tmp_path, good, name):
  change, message = WRONG[name]
  path = tmp_path / "wrong.gguf"
  path.write_bytes(change(good))
  start = time.process_time()
  tracemalloc.start()
  with pytest.raises(ValueError, match=re.escape(message)) as caught:
    weights.load(hub.local_directory(str(path)))
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert time.process_time() - start < 5
  assert peak < 2**23
  text = str(caught.value)
  assert "wrong.gguf" in text
  assert len(text) < 1000


@pytest.mark.parametrize(
  ("change", "key"),
  [
    ({"head_dim": 0}, "attention.key_length"),
    ({"rope.dimension_count": 0}, "rope.dimension_count"),
    ({"rope.dimension_count": "4"}, "rope.dimension_count"),
  ],
)
def test_heads_without_channels(tmp_path, change, key):
  name, config, extra = CASES["glm4"]
  tensors = _converted(name, config, _tensors(config))
  path = tmp_path / "wrong.gguf"
  if "head_dim" in change:
    write(path, name, config | change, tensors, extra)
  else:
    write(path, name, config, tensors, extra | change)
  with pytest.raises(ValueError, match=rf"glm4\.{key}, .* is '?[04]'?;"):
    hub.local_directory(str(path))


def test_names_of_no_file(tmp_path, good):
  with pytest.raises(FileNotFoundError, match=r"no file 'owner/x\.gguf'"):
    hub.local_directory("owner/x.gguf")
  (tmp_path / "folder.gguf").mkdir()
  with pytest.raises(ValueError, match=r"folder\.gguf has no config\.json"):
    hub.local_directory(str(tmp_path / "folder.gguf"))
  path = tmp_path / "x.GGUF"
  path.write_bytes(good)
  with pytest.raises(ValueError, match=r"model\.revision: 'main'"):
    hub.local_directory(str(path), "main")
  assert hub.local_directory(str(path)) == hub.local_directory(str(path))


def test_a_part_of_a_model(tmp_path):
  name, config, _ = CASES["llama"]
  tensors = _converted(name, config, _tensors(config))

  def text(writer, size):
    write_tokenizer(writer, size)
    writer.add_uint16("split.count", 3)

  write(tmp_path / "x.gguf", name, config, tensors, text=text)
  with pytest.raises(ValueError, match="one of 3 parts"):
    hub.local_directory(str(tmp_path / "x.gguf"))


def test_without_the_package(tmp_path, good, monkeypatch):
  monkeypatch.setitem(sys.modules, "gguf", None)
  (tmp_path / "x.gguf").write_bytes(good)
  with pytest.raises(ImportError, match=r"grpo_jax\[gguf\]"):
    hub.local_directory(str(tmp_path / "x.gguf"))


def test_frequencies_that_are_another_scaling(tmp_path):
  name, config, _ = CASES["llama"]
  tensors = _converted(name, config, _tensors(config))
  extra = {"rope_freqs.weight": [1.0, 2.0, 3.0, 4.0]}
  write(tmp_path / "x.gguf", name, config, tensors, extra)
  with pytest.raises(ValueError, match=r"is not Llama 3\.1's scaling by 4"):
    hub.local_directory(str(tmp_path / "x.gguf"))
