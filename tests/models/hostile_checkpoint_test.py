"""Folders of strangers: each number and kind is read, or refused by its name.

Every key of every family's config.json gets values that no model has. What is
read has to be an architecture, and anything else one ValueError, at once.
"""

import itertools
import json
import math
import shutil
import time

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

from grpo_jax.models import architecture, transformer
from grpo_jax.models.hf import families, weights
from tests.models import contract_test

CONFIGS = {
  name: json.loads(path.read_text("utf-8"))
  for name, path in contract_test.CONFIGS.items()
}


def deep(depth):
  value = []
  for _ in range(depth):
    value = [value]
  return value


VALUES = [
  None, True, -1, 0, 1, 0.5, 10**20, 10**400, -(10**20), math.nan, math.inf,
  -math.inf, 1e-300, "x", "", [], [[5]], ["full_attention"], {}, {"a": 1},
  {"rope_type": "llama3"}, {"full_attention": 5}, deep(500),
]  # fmt: skip
ROPE = CONFIGS["llama"]["rope_scaling"]
_SMALL = ("rms_norm_eps", "hidden_size", "num_hidden_layers", "vocab_size")
_SMALL += ("intermediate_size", "num_attention_heads", "n_head")
# In which no number but those named is accepted.
POSITIVE = [
  "rms_norm_eps",
  "rope_theta",
  "rope_local_base_freq",
  "query_pre_attn_scalar",
  "final_logit_softcapping",
  "embedding_multiplier",
  "logits_scaling",
  "residual_multiplier",
  "hidden_size",
  "intermediate_size",
  "num_attention_heads",
  "n_head",
  "num_experts_per_tok",
  "num_hidden_layers",
  "vocab_size",
  "compress_rope_theta",
  "kv_lora_rank",
  "n_positions",
  "n_routed_experts",
]


def read(config):
  """The fields, or the message of the one error there may be."""
  start, message = time.process_time(), ""
  try:
    fields, _ = families.from_config_json(config)
  except ValueError as error:
    message = str(error)
  assert time.process_time() - start < 5
  assert len(message) < 2000
  return message or architecture.TransformerConfig(**fields)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_key_with_each_value(name):
  config = CONFIGS[name]
  keys = {*config, "rope_scaling", "rope_parameters", "layer_types"}
  keys |= {"sliding_window", "max_window_layers", "use_sliding_window"}
  keys |= {"text_config", "num_experts", "architectures"}
  assert isinstance(read(config), architecture.TransformerConfig)
  for key, value in itertools.product(sorted(keys), VALUES):
    read({**config, key: value})
  for part, inner in config.items():
    if isinstance(inner, dict):
      for key, value in itertools.product(inner, VALUES):
        read({**config, part: {**inner, key: value}})
      for key in inner:
        read({**config, part: {k: x for k, x in inner.items() if k != key}})
  for key in config:
    read({k: x for k, x in config.items() if k != key})
  for value in [None, *(v for v in VALUES if isinstance(v, (int, float)))]:
    if value is True or (value is not None and 0 < value < 10**6):
      continue
    for key in {*POSITIVE} & {*config}:
      if value is None and key.endswith("softcapping"):
        continue  # None is no cap.
      if value == 10**20 and not key.startswith(_SMALL):
        continue
      message = read({**config, key: value})
      assert key in str(message), (key, value)
      assert isinstance(message, str), (key, value)


@pytest.mark.parametrize("key", [k for k in ROPE if k != "rope_type"])
@pytest.mark.parametrize(
  "value", [0, -1, math.nan, math.inf, "x", None, True, []]
)
def test_scaling_of_positions(key, value):
  config = {**CONFIGS["llama"], "rope_scaling": {**ROPE, key: value}}
  assert f"rope_scaling.{key}" in read(config)


@pytest.mark.parametrize(
  "name", ["deepseek_v3", "gpt_oss", "ministral3", "olmo3", "phi4_mini"]
)
def test_each_key_of_other_scalings_with_each_value(name):
  config = CONFIGS[name]
  (form,) = {"rope_parameters", "rope_scaling"} & {*config}
  scaling = config[form] | {"attention_factor": 1.0}
  assert isinstance(read(config), architecture.TransformerConfig)
  for key, value in itertools.product(scaling, VALUES):
    read({**config, form: {**scaling, key: value}})


def test_bounds_of_the_scaling_differ():
  scaling = {**ROPE, "low_freq_factor": 5.0}
  message = read({**CONFIGS["llama"], "rope_scaling": scaling})
  assert "make rope_high_freq the larger one" in message


@pytest.mark.parametrize("text", ["[" * 99_999, '{"a":' * 99_999, "\xff", "{"])
def test_a_file_that_is_no_json(tmp_path, text):
  (tmp_path / "config.json").write_text(text, encoding="latin-1")
  with pytest.raises(
    ValueError, match=rf"{tmp_path}: config\.json is not JSON"
  ):
    families.from_config_json(tmp_path)


# --- indices and files -------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """A checkpoint in files of one array each, with an index."""
  parent = tmp_path_factory.mktemp("exported")
  directory = parent / "model"
  directory.mkdir()
  config = CONFIGS["llama"]
  (directory / "config.json").write_text(json.dumps(config))
  ours = read(config)
  init = transformer.transformer_policy(ours).init
  shapes = jax.eval_shape(init, jax.random.key(0))
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params = jax.tree.map(jax.numpy.asarray, params)
  weights.export(params, ours, directory, parent / "out", max_shard_bytes=1)
  assert weights.load(parent / "out")[0] == ours
  return parent / "out"


@pytest.fixture
def folder(exported, tmp_path):
  """A copy of the checkpoint, which a test may change."""
  return shutil.copytree(exported, tmp_path / "out")


def change_index(folder, change):
  path = folder / "model.safetensors.index.json"
  index = json.loads(path.read_text())
  change(index["weight_map"])
  path.write_text(json.dumps(index))


@pytest.mark.parametrize(
  "name",
  [
    *("../{}", "{absolute}", "a/../{}", "./{}", "..", "", 5, None, ["x"]),
    *("x" * 300, "é" * 130, "a\0b", "\ud800"),
  ],
)
def test_an_index_names_files_beside_it(folder, name):
  first = next(folder.glob("*-00001-of-*"))
  (folder.parent / first.name).write_bytes(first.read_bytes())

  def outside(files):
    tensor = next(t for t, file in files.items() if file == first.name)
    files[tensor] = name
    if isinstance(name, str):
      absolute = folder.parent / first.name
      files[tensor] = name.format(first.name, absolute=absolute)

  change_index(folder, outside)
  with pytest.raises(ValueError, match=r"index\.json has no weight_map"):
    weights.load(folder)


@pytest.mark.parametrize(
  "text", ["[" * 99_999, "[]", "5", '{"weight_map": 5}', '{"weight_map": []}']
)
def test_an_index_of_another_kind(folder, text):
  (folder / "model.safetensors.index.json").write_text(text)
  with pytest.raises(ValueError, match=r"index\.json has no weight_map"):
    weights.load(folder)


@pytest.mark.parametrize(
  "entry",
  [
    5,
    {},
    {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4.0]},
    {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
    {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**20]},
    {"dtype": "F32", "shape": [10**20], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]},
    {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [1], "data_offsets": [math.nan, 4]},
  ],
)
def test_an_entry_of_a_header(tmp_path, entry):
  header = json.dumps({"x": entry}).encode()
  path = tmp_path / "model.safetensors"
  path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
  (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
  with pytest.raises(
    ValueError, match=r"damaged or not a safetensors file|has 1"
  ):
    weights.load(tmp_path)


def test_layers_that_no_file_has_are_not_looked_for(tmp_path):
  safetensors.save_file(
    {"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors"
  )
  config = CONFIGS["qwen3_moe"] | {
    "num_hidden_layers": 4096,
    "num_experts": 65536,
  }
  (tmp_path / "config.json").write_text(json.dumps(config))
  start = time.process_time()
  with pytest.raises(ValueError, match=r"1 tensors, .* 4096 layers with 65536"):
    weights.load(tmp_path)
  assert time.process_time() - start < 5
