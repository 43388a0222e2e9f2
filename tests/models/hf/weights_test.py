"""Checkpoints written by the safetensors package, and read by it again."""

import dataclasses
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from safetensors import numpy as safetensors

from experiments.benchmarks import load
from grpo_jax.models import architecture, transformer
from grpo_jax.models.hf import families, weights

_ROOT = pathlib.Path(__file__).resolve().parents[3]

_SIZES = {
  "hidden_size": 8,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 6,
  "intermediate_size": 10,
  "vocab_size": 14,
  "rms_norm_eps": 1e-6,
  "torch_dtype": "float32",
}
_GEMMA3 = {
  **_SIZES,
  "model_type": "gemma3_text",
  "hidden_activation": "gelu_pytorch_tanh",
  "sliding_window": 4,
}
CONFIGS = {
  "qwen2": {**_SIZES, "model_type": "qwen2", "tie_word_embeddings": True},
  "qwen3": {**_SIZES, "model_type": "qwen3"},
  "qwen3_moe": {
    **_SIZES,
    "model_type": "qwen3_moe",
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
  },
  "llama": {**_SIZES, "model_type": "llama"},
  "mistral": {**_SIZES, "model_type": "mistral", "sliding_window": 3},
  "olmo2": {**_SIZES, "model_type": "olmo2"},
  "gemma3_text": _GEMMA3,
  "gemma3": {
    "model_type": "gemma3",
    "text_config": _GEMMA3,
    "vision_config": {"hidden_size": 3},
    "torch_dtype": "float32",
  },
}


def _tensors(config):
  """Random tensors of a model, by the names that transformers gives them."""
  rng = np.random.default_rng(0)
  if config["model_type"] == "gemma3":
    inner = _tensors(config["text_config"])
    return {
      "vision_tower.embeddings.weight": rng.normal(size=(2, 3, 3)),
      "multi_modal_projector.scale": rng.integers(9, size=3),
      **{f"language_model.{name}": x for name, x in inner.items()},
    }
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in _shapes(config).items()
  }


def _shapes(config):
  kind = config["model_type"]
  width, head = config["hidden_size"], config["head_dim"]
  queries = config["num_attention_heads"] * head
  keys = config["num_key_value_heads"] * head
  shapes = {
    "model.embed_tokens.weight": (config["vocab_size"], width),
    "model.norm.weight": (width,),
  }
  if not config.get("tie_word_embeddings", kind == "gemma3_text"):
    shapes["lm_head.weight"] = (config["vocab_size"], width)
  norms = {
    "olmo2": ["post_attention", "post_feedforward"],
    "gemma3_text": [
      "input",
      "post_attention",
      "pre_feedforward",
      "post_feedforward",
    ],
  }.get(kind, ["input", "post_attention"])
  for i in range(config["num_hidden_layers"]):
    layer = {f"{name}_layernorm.weight": (width,) for name in norms}
    for name, size in (("q", queries), ("k", keys), ("v", keys)):
      layer[f"self_attn.{name}_proj.weight"] = (size, width)
      if kind == "qwen2":
        layer[f"self_attn.{name}_proj.bias"] = (size,)
    layer["self_attn.o_proj.weight"] = (width, queries)
    if kind == "olmo2":
      layer["self_attn.q_norm.weight"] = (queries,)
      layer["self_attn.k_norm.weight"] = (keys,)
    elif kind in ("qwen3", "qwen3_moe", "gemma3_text"):
      layer["self_attn.q_norm.weight"] = (head,)
      layer["self_attn.k_norm.weight"] = (head,)
    mlps = {"mlp.": config["intermediate_size"]}
    if kind == "qwen3_moe":
      layer["mlp.gate.weight"] = (config["num_experts"], width)
      inner = config["moe_intermediate_size"]
      mlps = {f"mlp.experts.{e}.": inner for e in range(config["num_experts"])}
    for mlp, inner in mlps.items():
      layer[mlp + "gate_proj.weight"] = (inner, width)
      layer[mlp + "up_proj.weight"] = (inner, width)
      layer[mlp + "down_proj.weight"] = (width, inner)
    shapes |= {f"model.layers.{i}.{name}": s for name, s in layer.items()}
  return shapes


def _write(directory, config, tensors, max_shard_bytes=None):
  """A folder as save_pretrained writes it; several files if sizes are given."""
  directory.mkdir(exist_ok=True)
  (directory / "config.json").write_text(json.dumps(config))
  if max_shard_bytes is None:
    safetensors.save_file(tensors, directory / "model.safetensors")
    return directory
  files, here, used = {}, {}, 0
  for name, tensor in tensors.items():
    if used + tensor.nbytes > max_shard_bytes:
      here, used = {}, 0
    if not here:
      file = f"model-{len({*files.values()})}.safetensors"
    here[name] = tensor
    used += tensor.nbytes
    files[name] = file
  for file in {*files.values()}:
    here = {name: x for name, x in tensors.items() if files[name] == file}
    safetensors.save_file(here, directory / file)
  index = json.dumps({"weight_map": files})
  (directory / "model.safetensors.index.json").write_text(index)
  return directory


def _expected(tensors, path, index):
  """One number of the leaf at `path`, from the tensors' definition."""
  prefix = "language_model." * any("language_model" in n for n in tensors)

  def tensor(name):
    return tensors[prefix + name]

  if path == "embed/embedding":
    return tensor("model.embed_tokens.weight")[index]
  if path == "head/kernel":
    d, v = index
    return tensor("lm_head.weight")[v, d]
  if path == "final_norm/scale":
    return tensor("model.norm.weight")[index]
  layer, *index = index
  module = path.split("/")[1:]

  def of_layer(name):
    return tensor(f"model.layers.{layer}.{name}")

  num_heads, num_kv_heads, head = 4, 2, 6
  shared = num_heads // num_kv_heads
  if module[:2] == ["attention", "qkv"]:
    *d, c, q, k = index
    if q < shared:
      name, row = "q", (c * shared + q) * head + k
    else:
      name, row = "kv"[q - shared], c * head + k
    kind = "weight" if module[2] == "kernel" else "bias"
    return of_layer(f"self_attn.{name}_proj.{kind}")[row, *d]
  if module[:2] == ["attention", "out"]:
    c, r, k, d = index
    return of_layer("self_attn.o_proj.weight")[d, (c * shared + r) * head + k]
  if module[1] in ("query_norm", "key_norm"):
    *heads, k = index
    c, r = heads or (0, 0)
    row = (c * (shared if module[1] == "query_norm" else 1) + r) * head + k
    return of_layer(f"self_attn.{module[1][0]}_norm.weight")[row]
  if module[:2] == ["mlp", "experts"]:
    e, i, o = index
    return of_layer(f"mlp.experts.{e}.{module[2]}_proj.weight")[o, i]
  if module[0] == "mlp":
    i, o = index
    name = "gate" if module[1] == "router" else f"{module[1]}_proj"
    return of_layer(f"mlp.{name}.weight")[o, i]
  both = any("pre_feedforward" in name for name in tensors)
  norm = {
    "attention_norm": "input",
    "attention_post_norm": "post_attention",
    "mlp_norm": "pre_feedforward" if both else "post_attention",
    "mlp_post_norm": "post_feedforward",
  }[module[0]]
  return of_layer(f"{norm}_layernorm.weight")[index[0]]


def _leaves(params):
  leaves, _ = jax.tree_util.tree_flatten_with_path(params["trained"])
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in leaves
  }


def _same(first, second):
  """Asserts that two trees are the same, bit for bit."""
  assert jax.tree.structure(first) == jax.tree.structure(second)
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  """(name) -> a folder with the tensors of `CONFIGS[name]` in a few files."""

  def make(name):
    directory = tmp_path_factory.mktemp(name)
    config = CONFIGS[name]
    return _write(directory, config, _tensors(config), 2500)

  return make


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_is_where_the_layout_says(checkpoint, name):
  tensors = _tensors(CONFIGS[name])
  config, params = weights.load(checkpoint(name))
  fields, _ = families.from_config_json(CONFIGS[name])
  assert config == architecture.TransformerConfig(**fields)
  shapes = jax.eval_shape(
    transformer.transformer_policy(config).init, jax.random.key(0)
  )
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  for path, leaf in _leaves(params).items():
    expected = np.empty_like(leaf)
    for index in np.ndindex(*leaf.shape):
      expected[index] = _expected(tensors, path, index)
    np.testing.assert_array_equal(leaf, expected, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_shard_bytes", [10**9, 1000])
def test_an_export_holds_the_tensors_it_was_loaded_from(
  checkpoint, tmp_path, name, max_shard_bytes
):
  source, out = checkpoint(name), tmp_path / "out"
  config, params = weights.load(source)
  weights.export(params, config, source, out, max_shard_bytes=max_shard_bytes)
  expected = _tensors(CONFIGS[name])
  found = {}
  for path in out.glob("*.safetensors"):
    here = safetensors.load_file(path)
    assert len(here) == 1 or sum(x.nbytes for x in here.values()) <= (
      max_shard_bytes
    )
    found |= here
  assert found.keys() == expected.keys()
  for tensor, value in expected.items():
    assert found[tensor].dtype == value.dtype
    np.testing.assert_array_equal(found[tensor], value)
  _same(weights.load(out)[1], params)
  assert json.loads((out / "config.json").read_text()) == CONFIGS[name]
  assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_numbers_are_converted_one_by_one(tmp_path):
  config = {**CONFIGS["llama"], "torch_dtype": "bfloat16"}
  tensors = {
    name: x.astype(jnp.bfloat16) for name, x in _tensors(config).items()
  }
  source = _write(tmp_path / "source", config, tensors)
  ours, wide = weights.load(source)
  assert ours.param_dtype == "float32"
  found = _leaves(wide)["embed/embedding"]
  np.testing.assert_array_equal(
    found, tensors["model.embed_tokens.weight"].astype(np.float32)
  )
  narrow_config, narrow = weights.load(source, ours, param_dtype="bfloat16")
  assert narrow_config == dataclasses.replace(ours, param_dtype="bfloat16")
  _same(narrow, jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide))

  # What transformers converts to is what is in the file.
  weights.export(wide, ours, source, tmp_path / "wide")
  written = json.loads((tmp_path / "wide/config.json").read_text())
  assert written == {**config, "torch_dtype": "float32"}
  _same(weights.load(tmp_path / "wide")[1], wide)
  weights.export(wide, ours, source, tmp_path / "narrow", dtype="bfloat16")
  written = safetensors.load_file(tmp_path / "narrow/model.safetensors")
  assert {x.dtype for x in written.values()} == {np.dtype(jnp.bfloat16)}
  assert json.loads((tmp_path / "narrow/config.json").read_text()) == config
  _same(weights.load(tmp_path / "narrow", narrow_config)[1], narrow)


def test_half_precision_is_read(tmp_path):
  config = CONFIGS["llama"]
  tensors = {n: x.astype(np.float16) for n, x in _tensors(config).items()}
  _, params = weights.load(_write(tmp_path / "source", config, tensors))
  np.testing.assert_array_equal(
    _leaves(params)["final_norm/scale"], tensors["model.norm.weight"]
  )


def test_shardings_may_be_one_or_a_tree_or_a_function(checkpoint):
  source = checkpoint("qwen2")
  _, params = weights.load(source)
  one = SingleDeviceSharding(jax.devices()[0])
  abstract = []

  def shardings(shapes):
    abstract.append(shapes)
    return jax.tree.map(lambda leaf: one, shapes)

  for given in (one, {"trained": one, "frozen": one}, shardings):
    _, placed = weights.load(source, shardings=given)
    _same(placed, params)
    assert {leaf.sharding for leaf in jax.tree.leaves(placed)} == {one}
  assert jax.tree.map(jnp.shape, abstract) == [jax.tree.map(jnp.shape, params)]


_OWN_HEAD = {**CONFIGS["qwen2"], "tie_word_embeddings": False}


def test_tied_embeddings_may_come_with_their_head(tmp_path):
  config = CONFIGS["qwen2"]
  tensors = _tensors(config)
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3)
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
  source = _write(tmp_path / "same", config, tensors)
  ours, params = weights.load(source)
  assert "head" not in params["trained"]
  weights.export(params, ours, source, tmp_path / "out")
  written = safetensors.load_file(tmp_path / "out/model.safetensors")
  assert written.keys() == _tensors(config).keys()

  tensors["lm_head.weight"][3, 1] += 1
  other = _write(tmp_path / "other", config, tensors)
  message = r"lm_head.weight in .*model.safetensors is not model.embed_tokens"
  with pytest.raises(ValueError, match=message):
    weights.load(other)
  _, params = weights.load(_write(tmp_path / "apart", _OWN_HEAD, tensors))
  assert "head" in params["trained"]


_QUERIES = "model.layers.0.self_attn.q_proj.weight"
WRONG = {
  # What is done to the tensors, and what the message says.
  "missing": (
    lambda x: x.pop("model.layers.1.mlp.up_proj.weight"),
    r"has no model\.layers\.1\.mlp\.up_proj\.weight; config.json describes a"
    " model with 21 tensors",
  ),
  "extra": (
    lambda x: x.update({"model.layers.2.mlp.up_proj.weight": np.ones(3)}),
    r"model\.safetensors has model\.layers\.2\.mlp\.up_proj\.weight",
  ),
  "biases": (
    lambda x: x.update({"model.layers.0.self_attn.o_proj.bias": np.ones(8)}),
    r"has model\.layers\.0\.self_attn\.o_proj\.bias",
  ),
  "shape": (
    lambda x: x.update({"model.norm.weight": np.ones((1, 8), np.float32)}),
    r"model\.norm\.weight in .*model\.safetensors is \[1, 8\].*make it \[8\]",
  ),
  "transposed": (
    lambda x: x.update({_QUERIES: np.ascontiguousarray(x[_QUERIES].T)}),
    r"q_proj\.weight in .*is \[8, 24\], but .*make it \[24, 8\]",
  ),
  "integers": (
    lambda x: x.update({"model.norm.weight": np.ones(8, np.int8)}),
    r"model\.norm\.weight in .*model\.safetensors is I8; supported are F64",
  ),
  "eight bits": (
    lambda x: x.update({_QUERIES: x[_QUERIES].astype(jnp.float8_e4m3fn)}),
    r"q_proj\.weight in .*is F8_E4M3 and has no .*q_proj\.weight_scale_inv",
  ),
  "prefix": (
    lambda x: [x.update({f"base.{name}": x.pop(name)}) for name in [*x]],
    r"has no model\.embed_tokens\.weight, .* It has base\.lm_head\.weight, .*"
    "instead",
  ),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_are_exactly_those_of_the_config(tmp_path, case):
  change, message = WRONG[case]
  tensors = _tensors(CONFIGS["llama"])
  change(tensors)
  source = _write(tmp_path / "source", CONFIGS["llama"], tensors)
  with pytest.raises(ValueError, match=message):
    weights.load(source)


def _with_header(data, change):
  """A safetensors file with another header."""
  length = int.from_bytes(data[:8], "little")
  header = json.loads(data[8 : 8 + length])
  change(header)
  text = json.dumps(header).encode()
  return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _overlap(header):
  header["model.norm.weight"]["data_offsets"] = [0, 8 * 4]


def _wrong_size(header):
  header["lm_head.weight"]["shape"] = [14, 7]


def _negative(header):
  header["lm_head.weight"]["data_offsets"] = [-4, 8 * 14 * 4 - 4]


def _no_offsets(header):
  del header["lm_head.weight"]["data_offsets"]


DAMAGED = {
  "truncated": (lambda data: data[:-5], r"ends at byte \d+ of \d+: truncated"),
  "truncated header": (lambda data: data[:100], "header of .* a file of 100"),
  "empty": (lambda data: b"", "not a safetensors file"),
  "longer": (lambda data: data + b"123", "3 bytes after the last tensor"),
  "no safetensors": (lambda data: b"PK\3\4" * 500, "header of"),
  "garbled header": (
    lambda data: data[:20] + b"\xff" + data[21:],
    "can't decode",
  ),
  "overlap": (
    lambda data: _with_header(data, _overlap),
    "does not begin where the one before ends",
  ),
  "size": (lambda data: _with_header(data, _wrong_size), "448 bytes, not 392"),
  "offsets": (
    lambda data: _with_header(data, _no_offsets),
    r"its entry of lm_head\.weight is \{'dtype': 'F32'",
  ),
  "negative offsets": (
    lambda data: _with_header(data, _negative),
    "does not begin where the one before ends",
  ),
  "a header that is a list": (
    lambda data: (2).to_bytes(8, "little") + b"[]",
    "its header is not an object of tensors",
  ),
  "a header that never ends": (
    lambda data: (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "its header is not JSON",
  ),
  "short header": (
    lambda data: (50).to_bytes(8, "little") + data[8:],
    "its header is not JSON",
  ),
  "git-lfs": (
    lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "a pointer of git-lfs, which git lfs pull resolves",
  ),
}


def test_a_flipped_bit_of_a_listed_file_is_seen(tmp_path):
  config = CONFIGS["llama"]
  path = _write(tmp_path / "source", config, _tensors(config))
  path = path / "model.safetensors"
  data = bytearray(path.read_bytes())
  digest = hashlib.sha256(data).hexdigest()
  (path.parent / "SHA256SUMS").write_text(f"{digest}  {path.name}\n")
  weights.load(path.parent)
  data[-1] ^= 1
  path.write_bytes(data)
  with pytest.raises(
    ValueError, match=r"model\.safetensors is not the file of"
  ):
    weights.load(path.parent)


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named(tmp_path, case):
  change, message = DAMAGED[case]
  source = _write(
    tmp_path / "source", CONFIGS["llama"], _tensors(CONFIGS["llama"])
  )
  path = source / "model.safetensors"
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(ValueError, match=rf"model\.safetensors is .*{message}"):
    weights.load(source)


def test_files_and_index_agree(checkpoint, tmp_path):
  source = checkpoint("llama")
  (source / "model-1.safetensors").rename(tmp_path / "kept")
  with pytest.raises(
    FileNotFoundError, match=r"names model-1\.safetensors for"
  ):
    weights.load(source)
  (tmp_path / "kept").rename(source / "model-1.safetensors")
  index = source / "model.safetensors.index.json"
  text = index.read_text()
  norm = '"model.norm.weight": "model-'
  moved = text.replace(norm + "0", norm + "2")
  assert moved != text
  index.write_text(moved)
  with pytest.raises(ValueError, match=r"disagree about model\.norm\.weight"):
    weights.load(source)
  for damaged in ("{", "[]", '{"weight_map": 3}'):
    index.write_text(damaged)
    with pytest.raises(ValueError, match=r"index\.json has no weight_map"):
      weights.load(source)
  files = json.loads(text)
  files["weight_map"]["model.layers.9.x"] = "model-1.safetensors"
  index.write_text(json.dumps(files))
  with pytest.raises(ValueError, match=r"disagree about model\.layers\.9\.x"):
    weights.load(source)
  index.unlink()
  (source / "pytorch_model.bin").write_bytes(b"PK")
  with pytest.raises(
    FileNotFoundError, match=r"neither model\.safetensors nor"
  ):
    weights.load(source)


def test_a_config_that_is_not_the_files_is_refused(checkpoint, tmp_path):
  source = checkpoint("qwen2")
  config, params = weights.load(source)
  other = dataclasses.replace(config, rope_theta=5.0, remat="full")
  with pytest.raises(ValueError, match=r"rope_theta is 5\.0 and there"):
    weights.load(source, other)
  with pytest.raises(ValueError, match=r"rope_theta is 5\.0 and there"):
    weights.export(params, other, source, tmp_path / "out")


def test_an_export_is_whole_or_not_there(checkpoint, tmp_path):
  source, out = checkpoint("qwen2"), tmp_path / "out"
  config, params = weights.load(source)
  (source / "additional_chat_templates").mkdir()
  further = "additional_chat_templates/tool_use.jinja"
  for name in ("tokenizer.json", "generation_config.json", "LICENSE", further):
    (source / name).write_text(name)
  for name in ("trainer_state.json", "pytorch_model.bin"):
    (source / name).write_text("not copied")

  lost = weights.load(source)[1]
  lost["trained"]["final_norm"]["scale"].delete()
  with pytest.raises(RuntimeError, match="deleted"):
    weights.export(lost, config, source, out)
  assert not list(tmp_path.iterdir())

  with pytest.raises(ValueError, match="adapters"):
    weights.export({"trained": {}, "frozen": params}, config, source, out)
  with pytest.raises(ValueError, match="dtype is 'int8'"):
    weights.export(params, config, source, out, dtype="int8")
  out.mkdir()
  weights.export(params, config, source, out)
  assert {path.name for path in out.iterdir()} == {
    *("LICENSE", "config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "additional_chat_templates"),
  }
  assert (out / further).read_text() == further
  other = tmp_path / "other"
  other.mkdir()
  (other / "tokenizer.json").write_text("another")
  for number, path in enumerate((other, other / "tokenizer.json")):
    target = tmp_path / f"out{number}"
    weights.export(params, config, source, target, tokenizer=path)
    assert (target / "tokenizer.json").read_text() == "another"
    assert not (target / further).exists()
  with pytest.raises(ValueError, match="is not an empty folder; nothing was"):
    weights.export(params, config, source, out)
  below = out / "LICENSE/out"
  with pytest.raises(
    OSError, match=r"writing .*/LICENSE/out failed .*room for"
  ):
    weights.export(params, config, source, below)


_PROGRAM = """
import sys
import jax
import numpy as np
from experiments.benchmarks import load
from grpo_jax.models.hf import weights

directory, axis, address, process = sys.argv[1:]
if address:
  jax.distributed.initialize(address, 2, int(process))
shardings = load.split(int(axis)) if axis else None
params, *sizes = load.measure(directory, "bfloat16", shardings)
print(*sizes)

_, whole = weights.load(directory, param_dtype="bfloat16")
pairs = zip(jax.tree.leaves(params), jax.tree.leaves(whole), strict=True)
for leaf, other in pairs:
  other = np.asarray(other).view(np.uint16)
  for shard in leaf.addressable_shards:
    found = np.asarray(shard.data).view(np.uint16)
    np.testing.assert_array_equal(found, other[shard.index])
"""


@pytest.fixture(scope="module")
def big_checkpoint(tmp_path_factory):
  """A folder, the bytes of its largest file and of all its tensors."""
  directory = tmp_path_factory.mktemp("big") / "checkpoint"
  load.make(directory)
  sizes = [path.stat().st_size for path in directory.glob("*.safetensors")]
  assert len(sizes) == 6
  index = json.loads((directory / "model.safetensors.index.json").read_text())
  return directory, max(sizes), index["metadata"]["total_size"]


def _start(directory, axis="", address="", process="", num_devices=1):
  flag = f"--xla_force_host_platform_device_count={num_devices}"
  return subprocess.Popen(
    [sys.executable, "-c", _PROGRAM, directory, axis, address, process],
    env=os.environ | {"XLA_FLAGS": flag, "PYTHONPATH": str(_ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _peak_and_result(process):
  output, errors = process.communicate(timeout=300)
  assert process.returncode == 0, errors
  peak, result = map(int, output.split()[-2:])
  return peak, result


# The last axis is a range of columns of many tensors.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("num_devices", "axis"),
  [(8, "-1"), (1, "")],
)
def test_the_host_holds_little_more_than_the_result(
  big_checkpoint, num_devices, axis
):
  directory, largest_file, num_bytes = big_checkpoint
  process = _start(directory, axis, num_devices=num_devices)
  peak, result = _peak_and_result(process)
  assert result == num_bytes
  assert peak <= 1.3 * (largest_file + result)


@pytest.mark.slow
def test_a_process_reads_only_what_its_devices_need(big_checkpoint):
  directory, largest_file, num_bytes = big_checkpoint
  with socket.create_server(("localhost", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
  processes = [_start(directory, "0", address, str(i)) for i in range(2)]
  try:
    for process in processes:
      peak, result = _peak_and_result(process)
      assert result == num_bytes // 2
      assert peak <= 1.3 * (largest_file + result)
      assert peak < num_bytes
  finally:
    for process in processes:
      process.kill()
