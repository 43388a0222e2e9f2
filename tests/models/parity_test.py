"""Every family against transformers, on the tiny checkpoints.

`reference.npz` beside each holds the logits and the greedy continuation of
transformers in float32; scripts/make_tiny_checkpoints.py made them.
"""

import dataclasses
import functools
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors import numpy

from experiments.parity import outputs
from grpo_jax.models import transformer
from grpo_jax.models.hf import safetensors, weights

CHECKPOINTS = pathlib.Path(__file__).parent.parent / "data" / "checkpoints"
FAMILIES = (
  "deepseek_r1_distill",
  "deepseek_v3",
  "deepseek_v32",
  "deepseek_v4",
  "gemma2",
  "gemma3_text",
  "gemma4_text",
  "glm4",
  "glm4_moe",
  "glm_moe_dsa",
  "gpt2",
  "gpt_oss",
  "granite",
  "kimi_k2",
  "llama",
  "llama4_text",
  "ministral3",
  "mistral",
  "mixtral",
  "nanochat",
  "olmo2",
  "olmo3",
  "phi4_mini",
  "qwen2",
  "qwen3",
  "qwen3_5",
  "qwen3_5_moe",
  "qwen3_moe",
  "qwen3_next",
  "smollm3",
)
# Whose prompts show images.
SHOWN = ("idefics3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
# One of each kind of layer; what holds for the others are slow tests.
SMALL = "gemma2", "gpt2", "llama", "mixtral", "phi4_mini", "qwen2", "qwen3_moe"
TOLERANCE = 2e-4


def _families(*fast):
  """A parameter: all families, those that are not `fast` marked slow."""
  return pytest.mark.parametrize(
    "family",
    [
      pytest.param(name, marks=() if name in fast else pytest.mark.slow)
      for name in (*FAMILIES, *SHOWN)
    ],
  )


def load(family, dtype="float32"):
  """Reads a family's checkpoint; (config, params)."""
  config, params = weights.load(CHECKPOINTS / family, param_dtype=dtype)
  return dataclasses.replace(config, dtype=dtype, param_dtype=dtype), params


@functools.cache
def recorded(family):
  """The arrays of a family's reference."""
  with np.load(CHECKPOINTS / family / "reference.npz") as archive:
    return dict(archive)


def reference(family):
  return outputs.read_reference(CHECKPOINTS / family / "reference.npz")


# In float64, one of each kind of attention and of layer, and one with images.
@pytest.mark.parametrize(
  ("family", "dtype"),
  [
    *((family, "float32") for family in SMALL),
    *(
      pytest.param(x, "float32", marks=pytest.mark.slow)
      for x in (*FAMILIES, *SHOWN)
      if x not in SMALL
    ),
    *(
      pytest.param(x, "float64", marks=pytest.mark.slow)
      for x in (
        *("gemma2", "qwen3_moe", "deepseek_v3", "deepseek_v32", "gpt_oss"),
        *("llama4_text", "gemma4_text", "qwen3_vl", "qwen3_next"),
        "deepseek_v4",
      )
    ),
  ],
)
def test_logits_equal_those_of_transformers(family, dtype):
  with jax.enable_x64(dtype == "float64"):
    config, params = load(family, dtype)
    found = outputs.compare(config, params, reference(family))
  assert found.num_positions == reference(family).attention_mask.sum() > 40
  assert found.largest <= TOLERANCE
  assert found.num_agreeing == found.num_positions


@_families(*SMALL)
def test_the_side_of_the_padding_is_irrelevant(family):
  # The reference is padded on the left.
  left = reference(family)
  shifts = left.attention_mask.argmax(axis=1)
  right = outputs.Reference(
    *(
      np.stack(
        [np.roll(x, -n, axis=0) for x, n in zip(array, shifts, strict=True)]
      )
      for array in left[:3]
    ),
    left.images,
  )
  assert right.attention_mask[:, 0].all()
  found = outputs.compare(*load(family), right)
  assert found.largest <= TOLERANCE


# The last prompt is shorter than the windows; with its continuation all rows
# are longer.
@_families()
def test_decoding_equals_the_full_forward(family):
  config, params = load(family)
  arrays, images = recorded(family), reference(family).images
  ids = np.concatenate([arrays["input_ids"], arrays["greedy"]], axis=1)
  mask = np.pad(arrays["attention_mask"], ((0, 0), (0, 12)), mode="edge")
  split = 20 if images is None else arrays["input_ids"].shape[1]
  prompts, rest = (ids[:, :split], mask[:, :split]), ids[:, split:]
  if images is None:
    full = outputs.logits(config, params, ids, mask)[:, split - 1 :]
  else:
    full = outputs.logits_of_completions(config, params, *prompts, rest, images)
  cached = outputs.step_by_step(config, params, *prompts, rest, images)
  cached = cached[:, : full.shape[1]]
  np.testing.assert_allclose(cached, full, rtol=0, atol=1e-4)


# The sampler takes the largest logit of any family: of these, one of each kind
# of attention, of layer and of tower. All have the logits of transformers, also
# step by step: see above.
@pytest.mark.slow
@pytest.mark.parametrize(
  "family",
  [
    *("gemma2", "qwen3_moe", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
    *("gpt_oss", "llama4_text", "gemma4_text", "qwen2_5_vl", "qwen3_vl"),
    *("qwen3_5_moe", "qwen3_next", "deepseek_v4"),
  ],
)
def test_greedy_sampling_equals_that_of_transformers(family):
  config, params = load(family)
  arrays = recorded(family)
  tokens = outputs.greedy(
    *(config, params, arrays["input_ids"], arrays["attention_mask"], 12),
    reference(family).images,
  )
  np.testing.assert_array_equal(tokens, arrays["greedy"])


def _other(x):
  """Other numbers: negative ones, and other experts of a table."""
  return 1 - x // 4 if x.dtype == "int32" else -np.asarray(x)


@_families(*SMALL)
def test_exported_parameters_are_loaded_bit_by_bit(family, tmp_path):
  config, params = weights.load(CHECKPOINTS / family)
  # Not a copy of the files; NumPy's, so that nothing is compiled for it.
  params = jax.device_put(jax.tree.map(_other, params))
  weights.export(
    params,
    config,
    CHECKPOINTS / family,
    tmp_path / "exported",
    max_shard_bytes=20_000,
  )
  assert len(list((tmp_path / "exported").glob("*.safetensors"))) > 1
  again, loaded = weights.load(tmp_path / "exported")
  assert again == config
  jax.tree.map(np.testing.assert_array_equal, loaded, params)


@_families(*SMALL)
def test_what_nothing_changed_is_exported_byte_by_byte(family, tmp_path):
  config, params = weights.load(CHECKPOINTS / family)
  weights.export(params, config, CHECKPOINTS / family, tmp_path / "exported")
  there, here = (
    safetensors.find(path)
    for path in (CHECKPOINTS / family, tmp_path / "exported")
  )
  assert there.keys() == here.keys()
  assert all(safetensors.equal(there[name], here[name]) for name in there)


@pytest.mark.slow
def test_all_experts_of_a_layer_may_be_one_tensor(tmp_path):
  source = CHECKPOINTS / "qwen3_5_moe"
  tensors = numpy.load_file(source / "model.safetensors")
  start = "model.language_model.layers.{}.mlp.experts."
  one = {k: x for k, x in tensors.items() if ".mlp.experts." not in k}
  for layer in map(start.format, range(2)):
    gate, up, down = (
      np.stack([tensors[f"{layer}{n}.{name}_proj.weight"] for n in range(4)])
      for name in ("gate", "up", "down")
    )
    one[layer + "gate_up_proj"] = np.concatenate([gate, up], axis=1)
    one[layer + "down_proj"] = down
  folder = tmp_path / "in_one"
  folder.mkdir()
  numpy.save_file(one, folder / "model.safetensors")
  shutil.copy(source / "config.json", folder)
  config, found = weights.load(folder)
  expected = weights.load(source)[1]
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  weights.export(found, config, folder, tmp_path / "exported")
  again = numpy.load_file(tmp_path / "exported" / "model.safetensors")
  assert again.keys() == one.keys()
  for name, x in again.items():
    np.testing.assert_array_equal(x, one[name])


@pytest.mark.slow
def test_gradients_of_deepseek_v4_equal_those_of_transformers(tmp_path):
  config, params = load("deepseek_v4")
  source = CHECKPOINTS / "deepseek_v4"
  shutil.copy(source / "config.json", tmp_path)
  shutil.copy(source / "gradient.safetensors", tmp_path / "model.safetensors")
  wanted = weights.load(tmp_path)[1]["trained"]
  tokens, exists, *_ = reference("deepseek_v4")
  found = outputs.gradient(config, params, tokens, exists)
  for (path, x), y in zip(
    jax.tree_util.tree_leaves_with_path(found),
    jax.tree.leaves(wanted),
    strict=True,
  ):
    # Nothing has a gradient through the choice of windows.
    assert (abs(y).max() > 0) == ("indexer" not in weights.name(path))
    # Sums of large terms: embeddings have gradients up to 555.
    atol = 2e-4 + 1e-5 * abs(y).max()
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol)


def test_old_files_of_gpt2_have_shorter_names_and_masks(tmp_path):
  source = CHECKPOINTS / "gpt2"
  tensors = numpy.load_file(source / "model.safetensors")
  old = {name.removeprefix("transformer."): x for name, x in tensors.items()}
  old["h.0.attn.bias"] = np.tri(64, dtype=np.float32)[None, None]
  old["h.0.attn.masked_bias"] = np.float32([-1e4])
  numpy.save_file(old, tmp_path / "model.safetensors")
  shutil.copy(source / "config.json", tmp_path)
  found, expected = (weights.load(x)[1] for x in (tmp_path, source))
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_sequences_longer_than_the_table_of_positions_are_refused():
  config, _ = weights.load(CHECKPOINTS / "gpt2")
  policy = transformer.transformer_policy(config)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  tokens = np.zeros((1, 60), np.int32)
  _, prefix, _ = jax.eval_shape(policy.prefill, params, tokens, tokens > -1)
  with pytest.raises(ValueError, match=r"65 slots, .* 64 learned positions"):
    policy.allocate(1, 5, prefix)
  longer = np.zeros((1, 65), np.int32)
  with pytest.raises(ValueError, match=r"65 slots, .*max_new_tokens"):
    jax.eval_shape(policy.prefill, params, longer, longer > -1)


# Without what a family adds, its logits are others: the tests above would
# notice.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("family", "change"),
  [
    ("qwen2", {"qkv_bias": False}),
    ("qwen2", {"rope_theta": 10_000.0}),
    ("qwen2", {"sliding_window": 8}),
    ("qwen3", {"qk_norm": "none"}),
    ("qwen3_5", {"norm_plus_one": False}),
    ("qwen3_5", {"rotary_width": None}),
    ("qwen3_5_moe", {"shared_gate": False}),
    ("qwen3_next", {"norm_topk": False}),
    ("olmo2", {"qk_norm": "none"}),
    ("olmo2", {"post_norm": False, "pre_norm": True}),
    ("llama", {"rope_scaling": "none"}),
    ("llama", {"rope_factor": 4.0}),
    ("llama", {"rope_high_freq": 2.0}),
    ("llama", {"rope_low_freq": 2.0}),
    ("llama", {"rope_original_len": 8192}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 9}),
    ("ministral3", {"query_scaling": 0.0}),
    ("ministral3", {"rope_scaling": "none"}),
    ("mixtral", {"norm_topk": False}),
    ("gpt2", {"norm": "rms"}),
    ("gpt2", {"mlp_bias": False}),
    ("gpt2", {"learned_positions": 0, "rotary_width": 6}),
    ("nanochat", {"activation": "gelu"}),
    ("nanochat", {"embedding_norm": False}),
    ("nanochat", {"final_softcap": None}),
    ("nanochat", {"rotary_backward": False}),
    ("gemma2", {"attention_softcap": None}),
    ("gemma2", {"final_softcap": None}),
    ("gemma2", {"attention_scale": None}),
    ("gemma2", {"sliding_layers": ()}),
    ("gemma2", {"activation": "silu"}),
    ("gemma2", {"norm_plus_one": False}),
    ("gemma2", {"embedding_scale": 1.0}),
    ("granite", {"attention_scale": None}),
    ("granite", {"embedding_scale": 1.0}),
    ("granite", {"logit_scale": 1.0}),
    ("granite", {"residual_scale": 1.0}),
    ("gemma3_text", {"local_rope_theta": None}),
    ("gemma3_text", {"rope_scaling": "none"}),
    ("gemma3_text", {"sliding_layers": (False, True, True, True)}),
    ("gemma3_text", {"qk_norm": "none"}),
    ("phi4_mini", {"rotary_width": None, "rope_scaling": "none"}),
    ("phi4_mini", {"rope_amplitude": 1.0}),
    ("phi4_mini", {"long_context": True}),
    ("deepseek_v3", {"attention_scale": None}),
    ("deepseek_v3", {"groups_per_token": 4}),
    ("deepseek_v3", {"norm_topk": False}),
    ("deepseek_v3", {"rope_amplitude": 1.0}),
    ("deepseek_v3", {"rotary_interleaved": False}),
    ("deepseek_v3", {"router_scale": 1.0}),
    ("deepseek_v3", {"router_scores": "softmax"}),
    ("deepseek_v32", {"indexer": {"interleaved": True}}),
    ("deepseek_v32", {"indexer": {"top_k": 5}}),
    ("glm_moe_dsa", {"indexer": {"interleaved": False}}),
    ("deepseek_v4", {"activation": "silu"}),
    ("deepseek_v4", {"deepseek4": {"stream_eps": 0.1}}),
    ("deepseek_v4", {"deepseek4": {"sinkhorn_steps": 1}}),
    ("deepseek_v4", {"local_rope_theta": 10.0}),
    ("deepseek_v4", {"rope_scaling": "none"}),
    ("deepseek_v4", {"rope_theta": 10.0}),
    ("deepseek_v4", {"router_scale": 1.0}),
    ("deepseek_v4", {"router_scores": "sigmoid"}),
    ("deepseek_v4", {"sliding_window": 5}),
    ("kimi_k2", {"rope_high_freq": 32.0}),
    ("glm4", {"rotary_interleaved": False}),
    ("olmo3", {"local_rope_theta": None}),
    ("olmo3", {"rope_amplitude": 1.0}),
    ("olmo3", {"sliding_layers": ()}),
    ("smollm3", {"rotary_layers": ()}),
    ("llama4_text", {"llama4": {"head_norm": False}}),
    ("llama4_text", {"llama4": {"temperature": 0.0}}),
    ("llama4_text", {"llama4": {"temperature_len": 6}}),
    ("llama4_text", {"rope_scaling": "none"}),
    ("gemma4_text", {"attention_scale": None}),
    ("gemma4_text", {"final_softcap": None}),
    ("gemma4_text", {"gemma4": {"full_turned": 16}}),
    ("gemma4_text", {"local_rope_theta": 100.0}),
    ("gemma4_text", {"rope_theta": 100.0}),
    ("gemma4_text", {"sliding_window": 9}),
    ("llama4_text", {"rotary_layers": ()}),
    ("llama4_text", {"sliding_window": 9}),
    ("llama4_text", {"sliding_window": None}),
    ("glm4_moe", {"rotary_width": None}),
    ("glm4_moe", {"qk_norm": "none"}),
    ("gpt_oss", {"attention_sinks": False}),
    ("gpt_oss", {"activation": "silu"}),
    ("gpt_oss", {"swiglu_limit": 7.0}),
    ("gpt_oss", {"swiglu_slope": 1.0}),
    ("gpt_oss", {"out_bias": False}),
    ("qwen2_5_vl", {"rope_sections": ()}),
    ("qwen2_5_vl", {"rope_sections": (1, 2, 1)}),
    ("qwen3_vl", {"rope_sections_mixed": False}),
    ("qwen2_5_vl", {"tower": {"full_layers": ()}}),
    ("qwen2_5_vl", {"tower": {"window": 3}}),
    ("qwen3_vl", {"tower": {"deep_layers": (1, 2)}}),
    ("qwen3_vl", {"tower": {"norm_eps": 0.1}}),
    ("idefics3", {"tower": {"norm_eps": 0.1}}),
    ("qwen2_vl", {"tower": {"norm_eps": 0.1}}),
  ],
)
def test_switches_show_in_the_logits(family, change):
  config, params = load(family)
  if change.get("pre_norm"):
    layers = params["trained"]["layers"]
    params["trained"]["layers"] = layers | {
      "attention_norm": layers["attention_post_norm"],
      "mlp_norm": layers["mlp_post_norm"],
    }
  for name in {"tower", "indexer", "llama4", "gemma4", "deepseek4"} & {*change}:
    part = dataclasses.replace(getattr(config, name), **change[name])
    change = {name: part}
  config = dataclasses.replace(config, **change)
  found = outputs.compare(config, params, reference(family))
  assert found.largest > 50 * TOLERANCE
