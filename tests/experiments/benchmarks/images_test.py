"""The benchmark of images: what it counts, prescribes and prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.benchmarks import images, inputs, workload
from grpo_jax.models.architecture import TowerConfig
from tests.experiments import command

TINY = workload.Work(
  hidden=16,
  layers=1,
  heads=2,
  kv_heads=1,
  vocab=32,
  prompt_len=4,
  completion_len=12,
  prompts=2,
  group=4,
)


def test_flops_of_a_tower_are_those_counted_by_hand():
  tower = TowerConfig(
    width=4,
    num_layers=2,
    num_heads=2,
    mlp_width=8,
    patch_size=1,
    channels=3,
    merge=2,
  )
  # Of a patch 3 · 4 numbers, twice 4 · 16 + 2 · 32 weights, and 4 · 16 of the
  # connector; 4 patches, 2 prompts, and 4 · 2 · 4 FLOPs of each pair.
  per_patch = 2 * (12 + 2 * 128 + 64)
  wanted = 2 * (4 * per_patch + 32 * 16)
  assert images.forward_flops(tower, TINY, num_tokens=1) == wanted


def test_prompts_with_images_are_as_long_and_hold_as_many_places():
  tower = images.tower_of(TINY)
  plain = inputs.make_batch(TINY).prompts
  prompts = images.with_images(plain, tower, 2)
  assert prompts.tokens.shape == plain.tokens.shape
  held = prompts.tokens == tower.image_token
  np.testing.assert_array_equal(held, [[True, True, False, False]] * 2)
  found = prompts.images
  assert found.patches.shape == (2, 8, 3 * 14 * 14)
  # Patches of a token are neighbours, and each place is taken once.
  np.testing.assert_array_equal(
    found.place[0, :4], [[0, 0], [0, 1], [1, 0], [1, 1]]
  )
  assert len({tuple(place) for place in found.place[1].tolist()}) == 8
  assert found.grid.tolist() == [[[2, 4]]] * 2


@pytest.mark.slow
def test_images_are_measured_beside_tokens(tmp_path):
  sizes = ("hidden", "layers", "heads", "kv_heads", "vocab", "prompt_len")
  names = (*sizes, "completion_len", "prompts", "group")
  status, out, err = command.run(
    "benchmarks.images",
    *(f"--{name}={getattr(TINY, name)}" for name in names),
    "--repeats=2",
    f"--json={tmp_path / 'images.json'}",
  )
  assert status == 0, err
  rows = json.loads((tmp_path / "images.json").read_text())["cases"]
  assert all(f"| {name} |" in out for name in rows)
  assert rows["tokens"]["of_tokens"] == 1
  assert rows["tokens"]["tower_floor_s"] == rows["unused"]["tower_floor_s"] == 0
  assert rows["images"]["tower_gflops"] == 2 * rows["frozen"]["tower_gflops"]
  assert rows["unused"]["parameters"] == rows["images"]["parameters"]
  assert rows["tokens"]["parameters"] < rows["images"]["parameters"]
  assert rows["images"]["program_bytes"] > rows["frozen"]["program_bytes"]
