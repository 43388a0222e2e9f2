"""Questions about squares: known scores, what is drawn, and how it is read."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import observations, pipeline, sources
from grpo_jax.data.encoder import Encoder
from grpo_jax.tasks import copy, vision
from grpo_jax.tasks import task as task_lib
from tests.tasks import strings

TASK = vision.make()
NAMES = ("accuracy", "overlap", "half", "format")


def extras(question, count=1, box=(1, 1, 3, 3)):
  return {
    "domain": np.array(0, np.int32),
    "question": np.array(vision.QUESTIONS.index(question), np.int32),
    "count": np.array(count, np.int32),
    "box": np.array(box, np.int32),
  }


@pytest.mark.parametrize(
  ("answer", "scores"),
  [
    ("{[1,1,3,3]}", (1, 1, 1, 1)),
    ("{[0,0,2,2]}", (0, 1 / 7, 0, 1)),
    ("{[1,1,3,4]}", (0, 2 / 3, 1, 1)),
    ("{[1,1,2,3]}", (0, 1 / 2, 0, 1)),
    ("{[3,3,5,5]}", (0, 0, 0, 1)),
    ("{[1,1,1,3]}", (0, 0, 0, 1)),  # Empty.
    ("{[3,3,1,1]}", (0, 0, 0, 1)),  # Turned round.
    ("{[1,1,9,9]}", (0, 1 / 16, 0, 1)),  # Out of the image.
    ("[1,1,3,3]", (0, 0, 0, 0)),
    ("{[1,1,3,3,3]}", (0, 0, 0, 0)),
    ("{[1,1,3,a]}", (0, 0, 0, 0)),
    ("2", (0, 0, 0, 0)),
    ("", (0, 0, 0, 0)),
  ],
)
def test_known_scores_of_boxes(answer, scores):
  text = f"<answer>{answer}</answer><eos>"
  found = strings.judge(TASK, text, extras("box"))
  assert found == pytest.approx(dict(zip(NAMES, scores, strict=True)))


@pytest.mark.parametrize(
  ("text", "scores"),
  [
    ("<answer>2</answer><eos>", (1, 1, 1, 1)),
    ("<answer>3</answer><eos>", (0, 0, 0, 1)),
    (";<answer>2</answer><eos>", (1, 1, 1, 0)),
    ("<answer>22</answer><eos>", (0, 0, 0, 0)),
    ("<answer>{[1,1,3,3]}</answer><eos>", (0, 0, 0, 0)),
    ("<answer>2</answer>", (0, 0, 0, 0)),
    ("2<eos>", (0, 0, 0, 0)),
    ("", (0, 0, 0, 0)),
  ],
)
def test_known_scores_of_numbers(text, scores):
  found = strings.judge(TASK, text, extras("count", count=2))
  assert found == pytest.approx(dict(zip(NAMES, scores, strict=True)))


@pytest.mark.slow
def test_intersection_over_union_counts_pixels():
  rng = np.random.default_rng(0)
  boxes = rng.integers(0, 7, size=(100, 2, 4))
  judge = jax.vmap(vision.intersection_over_union)
  found = judge(*jnp.array(boxes.swapaxes(0, 1)))
  for (one, other), share in zip(boxes, found, strict=True):
    pixels = [
      {(x, y) for x in range(a, c) for y in range(b, d)}
      for a, b, c, d in (one.tolist(), other.tolist())
    ]
    wanted = len(pixels[0] & pixels[1]) / max(len(pixels[0] | pixels[1]), 1)
    assert share == pytest.approx(wanted, abs=1e-6)


def image_of(example):
  """[8, 8, 3], put together from the patches and their places."""
  image = np.full((vision.SIDE, vision.SIDE, 3), np.nan, np.float32)
  for patch, (row, column) in zip(
    example.images.patches, example.images.place, strict=True
  ):
    image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = patch.reshape(
      2, 2, 3
    )
  return image


@pytest.mark.parametrize("merge", [1, 2, 4])
def test_patches_say_where_they_are_and_merged_ones_are_adjacent(merge):
  rng = np.random.default_rng(1)
  image = rng.random((8, 8, 3)).astype(np.float32)
  images = vision.patches(image, merge)
  made = task_lib.Example(np.zeros(0), np.zeros(0), {}, images=images)
  np.testing.assert_array_equal(image_of(made), image)
  blocks = images.place.reshape(-1, merge**2, 2) // merge
  assert (blocks == blocks[:, :1]).all()
  assert len({tuple(block[0]) for block in blocks}) == 16 // merge**2
  task = vision.make(merge=merge)
  prompt = task.example(np.random.default_rng(2), "train").prompt.tolist()
  assert prompt.count(vision.PATCH_ID) == 16 // merge**2


def draw(num=400, split="train", **options):
  rng = np.random.default_rng(0)
  made = vision.make(**options)
  return made, [made.example(rng, split) for _ in range(num)]


def components(image, colour):
  """Numbers of pixels of the connected regions of a colour."""
  left = {
    (int(y), int(x)) for y, x in np.argwhere((image == colour).all(axis=-1))
  }
  sizes = []
  while left:
    region, size = [left.pop()], 0
    while region:
      y, x = region.pop()
      size += 1
      for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
        if near in left:
          left.remove(near)
          region.append(near)
    sizes.append(size)
  return sizes


@pytest.mark.parametrize("codes", [False, True])
def test_answers_are_those_of_the_image(codes):
  made, examples = draw(codes=codes)
  for example in examples:
    text = made.decode(example.prompt).rsplit("<patch>", 1)[1]
    named = text.strip("#?:=")
    colour = [int(x) for x in named] if codes else vision.COLOURS[named]
    image = image_of(example)
    assert set(map(tuple, image.reshape(-1, 3))) <= {
      (0, 0, 0),
      *(vision.COLOURS[x] for x in "rgb"),
    }
    sizes = components(image, colour)
    answer = made.decode(example.completion)
    answer = answer.removeprefix("<answer>").removesuffix("</answer><eos>")
    assert set(sizes) <= {1, 4, 9}
    if text.startswith("#"):
      assert answer == str(len(sizes))
    else:
      left, top, right, bottom = (
        int(x) for x in answer.strip("{[]}").split(",")
      )
      inside = image[top:bottom, left:right]
      assert (inside == colour).all()
      assert [inside.shape[0] * inside.shape[1]] == sizes


def test_no_constant_number_is_good_and_questions_are_asked_equally_often():
  _, examples = draw(1500)
  counts = collections.Counter(
    int(x.extras["count"]) for x in examples if not x.extras["question"]
  )
  total = sum(counts.values())
  assert total / len(examples) == pytest.approx(0.5, abs=0.05)
  assert set(counts) == {0, 1, 2, 3, 4}
  assert max(counts.values()) / total == pytest.approx(0.2, abs=0.05)


@pytest.mark.slow
def test_shifted_test_problems_are_of_all_domains_and_training_is_not():
  made, examples = draw(500, split="test", shifted=True, codes=True)
  counts = collections.Counter(int(x.extras["domain"]) for x in examples)
  assert set(counts) == set(range(len(made.domains)))
  assert min(counts.values()) > 70
  for example in examples:
    name = made.domains[int(example.extras["domain"])]
    colours = set(map(tuple, image_of(example).reshape(-1, 3))) - {(0, 0, 0)}
    usual = {vision.COLOURS[x] for x in "rgb"}
    unseen = {vision.COLOURS[x] for x in "yp"}
    assert colours <= (unseen if name.endswith("_colours") else usual)
    assert name.startswith(vision.QUESTIONS[int(example.extras["question"])])
    left, top, right, bottom = example.extras["box"].tolist()
    assert right - left == bottom - top
    sides = {"box_sizes": (4, 5), "box": (1, 2, 3), "box_colours": (1, 2, 3)}
    assert right - left in sides.get(name, (0,))
  _, examples = draw(100, shifted=True)
  assert {int(x.extras["domain"]) for x in examples} == {0, 1}
  _, examples = draw(100, split="test")
  assert {int(x.extras["domain"]) for x in examples} == {0, 1}


def test_a_teacher_in_error_counts_one_more_and_takes_the_last_pixels():
  made, examples = draw(300, teacher_error=1.0)
  _, right = draw(300)
  for example, wanted in zip(examples, right, strict=True):
    answer = made.decode(example.completion)
    left, top, x, y = wanted.extras["box"].tolist()
    if example.extras["question"]:
      named = f"{{[{left},{top},{x - 1},{y - 1}]}}"
    else:
      named = str(int(wanted.extras["count"]) + 1)
    assert answer == f"<answer>{named}</answer><eos>"


def test_images_travel_with_prompts_and_with_lessons():
  source = sources.TaskSource(TASK, "train", 0, 64)
  encode = Encoder(observations.TaskTokenizer(TASK))
  sizes = {"batch_size": 3, "max_prompt_len": TASK.max_prompt_len}
  more = {"seed": 0, "pad_id": TASK.pad_id}
  batch = next(pipeline.prompt_stream(source, encode, **sizes, **more))
  for i, record in enumerate(batch.records):
    np.testing.assert_array_equal(
      batch.prompts.images.patches[i], record["images"].patches
    )
  assert batch.prompts.images.grid.shape == (3, 1, 2)
  held = batch.prompts.tokens == vision.PATCH_ID
  assert (held.sum(axis=1) == 16).all()
  lessons = next(
    pipeline.supervised_stream(
      *(source, encode),
      max_completion_len=TASK.max_completion_len,
      end_id=TASK.end_ids[0],
      **sizes,
      **more,
    )
  )
  np.testing.assert_array_equal(
    lessons.images.patches, batch.prompts.images.patches
  )
  source = sources.TaskSource(copy.make(), "train", 0, 64)
  plain = next(pipeline.prompt_stream(source, encode, **sizes, **more))
  assert plain.prompts.images is None
