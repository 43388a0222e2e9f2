"""Pictures of traced prompts: what they show, and how large they may be."""

from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest

from grpo_jax.tasks import vision
from grpo_jax.training.evaluation import trace_rows


def pixels_of(picture):
  columns, rows = picture["shape"]
  data = base64.b64decode(picture["pixels"])
  return np.frombuffer(data, np.uint8).reshape(rows, columns, 3)


@pytest.mark.parametrize("merge", [1, 2])
def test_a_picture_is_the_image_of_its_task(merge):
  task = vision.make(questions="box", merge=merge)
  example = task.example(np.random.default_rng(0), "train")
  found = trace_rows.of_record(
    {"images": example.images, "extras": example.extras}
  )
  (picture,) = found["images"]
  assert picture["size"] == picture["shape"] == [8, 8]
  left, top, right, bottom = found["box"]
  square = pixels_of(picture)[top:bottom, left:right].reshape(-1, 3)
  assert (square == square[0]).all()
  assert sorted(square[0].tolist()) == [0, 0, 255]
  task = vision.make(questions="count")
  example = task.example(np.random.default_rng(0), "train")
  record = {"images": example.images, "extras": example.extras}
  assert trace_rows.of_record(record)["box"] == ()


def test_large_pictures_are_thinned_out_and_strange_patches_are_none():
  rng = np.random.default_rng(0)
  rows, columns = 5, 80
  place = np.indices((rows, columns)).reshape(2, -1).T
  images = dataclasses.replace(
    vision.patches(np.zeros((8, 8, 3), np.float32)),
    patches=rng.random((rows * columns, 12)).astype(np.float32),
    image=np.zeros(rows * columns, np.int32),
    place=place,
    grid=np.array([[rows, columns], [0, 0]]),
  )
  (picture,) = trace_rows.of_patches(images)
  assert picture["size"] == [160, 10]
  assert max(picture["shape"]) <= trace_rows.MAX_SIDE
  assert pixels_of(picture).shape == (4, 54, 3)
  normalized = dataclasses.replace(images, patches=images.patches - 0.5)
  assert trace_rows.of_patches(normalized) == []
  other = dataclasses.replace(images, patches=images.patches[:, :10])
  assert trace_rows.of_patches(other) == []


def test_pictures_of_files_are_names_and_prompts_of_tokens_show_nothing():
  pictures = [("path", f"{i}.png") for i in range(20)]
  found = trace_rows.of_record({"pictures": pictures, "extras": {}})
  assert len(found["images"]) == trace_rows.MAX_PICTURES
  assert found["images"][1] == {"name": "1.png"}
  assert found["box"] == ()
  assert trace_rows.of_record({"extras": {"box": np.ones(4)}}) == {}
