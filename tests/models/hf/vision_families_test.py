"""Families that read images: positions by hand, names of adapters, errors."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

from grpo_jax.models import (
  architecture,
  rope,
  vision_inputs,
  vision_parts,
  vision_towers,
)
from grpo_jax.models.hf import peft, weights
from grpo_jax.models.policies import lora
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Images
from tests.models import parity_test

TOWER = vision_parts.TowerConfig(
  kind="qwen2_5_vl", width=16, frames=2, window=2, full_layers=(1,)
)
CONFIG = architecture.TransformerConfig(
  vocab_size=9,
  head_dim=16,
  rope_sections=(2, 3, 3),
  tower=TOWER,
  image_token=7,
)


def test_positions_of_images_are_places_in_a_grid():
  # 2 × 3 tokens after two of text, and 1 × 1 after one more; the image stands
  # at 2, and what follows at 2 + 3.
  tokens = np.array([[0, 1, 2, *[7] * 6, 3, 7, 4], [0] * 9 + [1, 2, 3]])
  mask = np.array([[False] + [True] * 11, [False] * 9 + [True] * 3])
  order = [
    (2 * r + i, 2 * c + j)
    for r in range(2)
    for c in range(3)
    for i in (0, 1)
    for j in (0, 1)
  ]
  place = [*order, (0, 0), (0, 1), (1, 0), (1, 1)]
  images = Images(
    patches=np.zeros((2, 28, 1), np.float32),
    image=np.array([[0] * 24 + [1] * 4, [-1] * 28]),
    place=np.stack([place, np.zeros((28, 2), int)]),
    grid=np.array([[[4, 6], [2, 2]], [[0, 0], [0, 0]]]),
  )

  @jax.jit
  def positions(tokens, mask, images):
    which = vision_inputs.index(CONFIG, tokens, mask, images)
    return vision_inputs.positions(CONFIG, mask, which, images)

  found, end = jax.device_get(positions(tokens, mask, images))
  np.testing.assert_array_equal(
    found[:, 0],
    [
      [0, 0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
      [0, 0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
      [0, 0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ],
  )
  np.testing.assert_array_equal(found[:, 1], [[0] * 9 + [0, 1, 2]] * 3)
  np.testing.assert_array_equal(end, [8, 3])


def test_pairs_of_channels_are_turned_by_time_row_or_column():
  assert rope.rows(CONFIG) == (0, 0, 1, 1, 1, 2, 2, 2)
  mixed = dataclasses.replace(
    CONFIG, rope_sections=(4, 2, 2), rope_sections_mixed=True
  )
  assert rope.rows(mixed) == (0, 1, 2, 0, 1, 2, 0, 0)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"rope_sections": (2, 3)}, r"rope_sections is \(2, 3\).*the 8 of a head"),
    ({"rope_sections": (2, 3, 4)}, r"add up to the 8 of a head"),
    ({"rope_sections_mixed": True}, r"every third of the 8 pairs"),
  ],
)
def test_impossible_sections_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"kind": "clip"}, r"kind is 'clip'; use one of siglip, qwen2_vl"),
    ({"full_layers": (1, 2)}, r"full_layers is \(1, 2\).*from 0 to 1"),
    ({"full_layers": (1, 0)}, r"each once and in their order"),
    ({"deep_layers": (1,)}, r"deep_layers is set, which kind 'qwen2_5_vl'"),
    ({"width": 24}, r"heads are 6 wide.*multiple of 4"),
    ({"kind": "siglip", "window": 0, "full_layers": ()}, r"frames is set"),
  ],
)
def test_impossible_towers_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(TOWER, **change)


def test_patches_of_another_size_are_refused():
  images = Images(
    patches=np.zeros((1, 4, 3 * 14 * 14), np.float32),  # Of one frame.
    image=np.zeros((1, 4), np.int32),
    place=np.zeros((1, 4, 2), np.int32),
    grid=np.full((1, 1, 2), 2),
  )
  with pytest.raises(ValueError, match=r"588 numbers.*pixels, 1176"):
    vision_towers.encode(TOWER, {}, images)


# Modules of a tower, as PEFT 0.21 names them in transformers 5.24; B of one
# that is queries, keys and values has the queries of all heads first.
ADAPTED = {
  "idefics3": (
    ("tower_query", "tower_key", "tower_value", "tower_out", "tower_up"),
    "model.vision_model.encoder.layers.2.self_attn.q_proj",
    "model.text_model.layers.1.self_attn.q_proj",
  ),
  "qwen2_5_vl": (
    ("tower_qkv", "tower_out", "tower_gate", "tower_up", "tower_down"),
    "model.visual.blocks.3.attn.qkv",
    "model.language_model.layers.1.mlp.gate_proj",
  ),
  "qwen2_vl": (
    ("tower_qkv", "tower_out", "tower_up", "tower_down"),
    "model.visual.blocks.1.mlp.fc1",
    "model.language_model.layers.1.mlp.gate_proj",
  ),
  "qwen3_vl": (
    ("tower_qkv", "tower_out", "tower_up", "tower_down"),
    "model.visual.blocks.3.mlp.linear_fc2",
    "model.language_model.layers.1.mlp.gate_proj",
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", ADAPTED)
def test_adapters_of_towers_have_the_names_of_peft(family, tmp_path):
  modules, of_tower, of_layers = ADAPTED[family]
  config = lora.LoRAConfig(rank=2, modules=("query", "gate", *modules))
  _, base = weights.load(parity_test.CHECKPOINTS / family)
  params = lora.wrap(base, config, jax.random.key(0))
  params["trained"] = jax.tree.map(
    lambda x: np.arange(x.size, dtype=x.dtype).reshape(x.shape),
    params["trained"],
  )
  peft.save(tmp_path, params, config)
  tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")
  for name in (of_tower, of_layers):
    assert f"base_model.model.{name}.lora_A.weight" in tensors
  settings = json.loads((tmp_path / "adapter_config.json").read_text())
  assert of_tower in settings["target_modules"]
  if "qkv" in of_tower:
    b = params["trained"]["tower"]["layers"]["qkv"]["b"][3]  # [r, H, 3, K]
    there = tensors[f"base_model.model.{of_tower}.lora_B.weight"]
    np.testing.assert_array_equal(there[:16].T, b[:, :, 0].reshape(2, -1))
  assert {*peft.config_of(tmp_path).modules} == {*config.modules}
  fresh = lora.wrap(base, config, jax.random.key(1))
  loaded = peft.load(tmp_path, fresh, config)
  jax.tree.map(
    np.testing.assert_array_equal, loaded["trained"], params["trained"]
  )


@pytest.mark.slow
@pytest.mark.parametrize("family", ADAPTED)
def test_every_parameter_has_a_place_on_a_mesh(family):
  modules, *_ = ADAPTED[family]
  _, base = weights.load(parity_test.CHECKPOINTS / family)
  config = lora.LoRAConfig(rank=2, modules=("query", *modules))
  params = lora.wrap(base, config, jax.random.key(0))
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  for tree in (base, params):
    sharding.of_params(mesh, tree)
