"""Images of a run: settings, the processes that look at them, and sources."""

import json
import time
import types

import numpy as np
import pytest

from grpo_jax.data.images import files, processors
from grpo_jax.rewards.workers import image_worker
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.training.evaluation import embeddings
from grpo_jax.training.phases import build
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import images as images_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import records
from grpo_jax.training.runtime import sharding
from tests.data.images import pictures
from tests.training import pictures as runs
from tests.training.problem import records_test

CHECKPOINT = str(runs.CHECKPOINTS / "qwen2_5_vl")
PROCESSOR = processors.from_folder(runs.PROCESSORS / "qwen2_5_vl")


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
  """Two processes, and a folder with files, good and broken."""
  folder = tmp_path_factory.mktemp("images")
  for name, data in pictures.BROKEN.items():
    (folder / name).write_bytes(data)
  for number in range(6):
    pictures.picture(9, 9 + number, number).save(folder / f"{number}.png")
  made = images_lib.Reader(PROCESSOR, str(folder), 2)
  yield made
  made.close()


def test_processes_say_what_this_one_would(reader):
  values = [["path", f"{number}.png"] for number in range(6)]
  values += [files.value(np.asarray(pictures.picture(20, 5)))]
  values += [files.value(pictures.written(pictures.picture(5, 20)))]
  for image, cut in zip(values, reader.cuts(values), strict=True):
    expected = PROCESSOR.cut(files.pixels(image, reader._folder))
    np.testing.assert_array_equal(cut.pixels, expected.pixels)
    assert (cut.grids, cut.rows, cut.columns) == (
      *(expected.grids, expected.rows, expected.columns),
    )
  assert reader.cuts([]) == []


def test_broken_images_do_not_end_a_process(reader):
  (before,) = reader.cuts([["path", "0.png"]])
  workers = [worker.process.pid for worker in reader._pool._workers]
  values = [["path", name] for name in pictures.BROKEN]
  values += [["bad", "no image"], ["bytes", "?"], ["path", "gone.png"]]
  for image, said in zip(values, reader.cuts(values), strict=True):
    assert isinstance(said, str), image
    if image[0] == "path" and image[1] in pictures.BROKEN:
      with pytest.raises(files.BadImage) as caught:
        files.pixels(image, reader._folder)
      assert said == str(caught.value)
  (after,) = reader.cuts([["path", "0.png"]])
  np.testing.assert_array_equal(before.pixels, after.pixels)
  assert workers == [worker.process.pid for worker in reader._pool._workers]


def test_what_a_record_holds_is_within_a_message(reader, monkeypatch):
  monkeypatch.setattr(files, "MAX_SENT_BYTES", 50)
  (said,) = reader.cuts([["bytes", "A" * 100]])
  assert said == (
    "it has 75 bytes; at most 50 are read from a record, and more from a file"
  )


def test_a_process_that_ends_costs_its_image(reader):
  """The others of the call are looked at all the same."""
  values = [["path", f"{number}.png"] for number in range(6)]
  reader.cuts(values)
  reader._pool._workers[0].process.kill()
  # Which call comes upon the process that has ended is a matter of time.
  found = [said for _ in range(3) for said in reader.cuts(values)]
  lost = [said for said in found if isinstance(said, str)]
  assert len(lost) <= 1
  assert set(lost) <= {"its decoder ended"}


def test_what_is_no_answer_is_refused():
  good = image_worker.message_of(PROCESSOR.cut(np.zeros((9, 9, 3), np.uint8)))
  assert image_worker.cut_of(good, PROCESSOR).grids
  assert image_worker.cut_of(["bad", "why"], PROCESSOR) == "why"
  kind, body, grids, rows, columns = good
  for answer in (
    *(None, [], ["bad"], ["bad", 3], ["cut", body, grids, rows]),
    [kind, "?", grids, rows, columns],
    [kind, body[:-8], grids, rows, columns],
    [kind, body, [[1, 1]], rows, columns],
    [kind, body, [], rows, columns],
    [kind, body, grids, 2, 2],
    [kind, body, [[-1, -16]], rows, columns],
    [kind, body, "ab", rows, columns],
  ):
    with pytest.raises(ValueError, match=r"said|reshape|int\(\)|unpack"):
      image_worker.cut_of(answer, PROCESSOR)


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"data__images": ()}, "image_processor=.* is for prompts with images"),
    ({"data__max_images": None}, r"needs config\.data\.max_images: arrays"),
    ({"data__max_patches": None}, r"needs config\.data\.max_patches"),
    ({"data__images": ("picture", "picture")}, "has a field twice"),
    ({"data__image_workers": 0}, r"config\.data\.image_workers"),
    ({"data__max_patches": 0}, r"config\.data\.max_patches"),
    (
      {"data__source": "task", "data__train_path": "", "data__eval_path": ""},
      r"is for config\.data\.source='tfds' or",
    ),
    ({"data__image_processor": ""}, "needs the processor of a checkpoint; set"),
    (
      {"data__image_options": {"tile": 4}},
      r"image_options has \['tile'\]; the processor of .* has min_pixels",
    ),
    ({"data__image_folder": "gs://a/b"}, "is not on a disk of this machine"),
    ({"data__image_folder": "/gone"}, "there is no such folder"),
    ({"data__images": ("photo",)}, "found no field 'photo'; the row has"),
    ({"data__tokenizer": "bytes"}, "the tokenizer has no token"),
  ],
)
def test_settings_that_do_not_fit(tmp_path, changes, message):
  config = runs.make_config(tmp_path, **changes)
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    problem_lib.make_problem(config_lib.resolve(config))


def test_where_paths_begin(tmp_path):
  data = config_lib.resolve(runs.make_config(tmp_path)).data
  assert groups.folder(data) == str(tmp_path)
  other = tmp_path / "other"
  other.mkdir()
  (other / "eval.jsonl").write_text((tmp_path / "eval.jsonl").read_text())
  config = runs.make_config(tmp_path, data__eval_path=str(other / "eval.jsonl"))
  with pytest.raises(ValueError, match="lie in two folders; set"):
    groups.folder(config_lib.resolve(config).data)
  config.data.image_folder = str(other)
  assert groups.folder(config_lib.resolve(config).data) == str(other)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({}, "the model has no vision tower, and the prompts show images"),
    (
      {"rl__schedule__name": "frontier", "model__checkpoint": CHECKPOINT},
      r"data\.images=\('picture',\) and config\.rl\.schedule\.name='frontier'"
      " do not go together: .* images are looked at when it is",
    ),
  ],
)
def test_images_of_text_records_are_known_before_one_is_read(
  tmp_path, changes, message
):
  config = config_lib.resolve(
    runs.make_config(
      tmp_path,
      rewards__in_graph=True,  # Starts no process.
      rewards__functions=("math_accuracy",),
      phases=("rl",),
      **changes,
    )
  )
  problem = problem_lib.make_problem(config)
  assert problem.train[0].get("images") is None
  shapes = problem.image_shapes
  assert shapes.patches.shape == (16, 96)
  assert shapes.grid.shape == (1, 2)
  mesh = sharding.make_mesh(1)

  def assemble():
    policy = policy_lib.make_policy(config, problem, mesh)
    return build.make_phase(config, problem, policy, "rl", mesh)

  with pytest.raises(ValueError, match=message):
    assemble()


@pytest.mark.slow  # Starts processes of rewards too.
def test_a_problem_shows_images_and_ends_its_processes(tmp_path):
  config = runs.make_config(tmp_path)
  problem = problem_lib.make_problem(config_lib.resolve(config))
  try:
    batches = problem.prompt_stream(0, 4, None)
    found = [next(batches) for _ in range(4)]
  finally:
    problem.close()
  assert {int(r["picture"][0]) for b in found for r in _rows(b)} <= {*range(8)}
  # An epoch has 12 records, of which 4 are broken.
  assert sum(batch.num_unusable for batch in found) >= 4
  token = problem.tokenizer.encode("<|image_pad|>")[0]
  for batch in found:
    shown = (batch.prompts.images.image >= 0).sum(axis=1)
    tokens = (batch.prompts.tokens == token).sum(axis=1)
    np.testing.assert_array_equal(shown, 4 * tokens)
    assert (shown > 0).all()
    assert batch.prompts.images.patches.shape == (4, 16, 96)
  process = problem.reader._pool._workers[0].process
  deadline = time.monotonic() + 10
  while process.poll() is None and time.monotonic() < deadline:
    time.sleep(0.01)
  assert process.poll() is not None
  with pytest.raises(RuntimeError, match="reader of images is closed"):
    problem.reader.cuts([["path", "0.png"]])


def test_embeddings_of_prompts_with_images_are_refused(tmp_path):
  config = runs.make_config(tmp_path)
  problem = problem_lib.make_problem(config_lib.resolve(config))
  loaded = types.SimpleNamespace(problem=problem)
  try:
    with pytest.raises(ValueError, match=r"config\.data\.images is empty"):
      embeddings.measure(loaded, [problem.train[0]])
  finally:
    problem.close()


def _rows(batch):
  return [{"picture": x["pictures"][0][1]} for x in batch.records]


# --- TFDS --------------------------------------------------------------------


@pytest.mark.slow
def test_images_of_a_dataset(tmp_path, monkeypatch):
  import tensorflow_datasets as tfds

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  images = [pictures.picture(6, 5 + i, i) for i in range(4)]
  rows = [
    {
      "question": f"{i}?",
      "gold": i,
      "image": pictures.written(image),
      "views": [pictures.written(image), pictures.written(images[0])],
      "path": f"{i}.png",
    }
    for i, image in enumerate(images)
  ]
  records_test.write_tfds(
    tmp_path,
    "views",
    {"train": rows, "test": rows},
    {
      "question": tfds.features.Text(),
      "gold": np.int64,
      "image": tfds.features.Image(shape=(None, None, 3)),
      "views": tfds.features.Sequence(
        tfds.features.Image(shape=(None, None, 3))
      ),
      "path": tfds.features.Text(),
    },
  )
  config = config_lib.default_config()
  config.data.source, config.data.name = "tfds", "views"
  config.data.fields = {"prompt": "question", "answer": "gold"}
  config.data.images = ("image", "views", "path")
  config.data.max_images = config.data.max_patches = 9
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = config.sampling.max_new_tokens = 8
  data = config_lib.resolve(config).data
  train = records.open_sources(data, 0).train
  for number, image in enumerate(images):
    record = train[number]
    assert (record["prompt"], record["answer"]) == (f"{number}?", str(number))
    one, two, three, path = record["pictures"]
    for value, expected in ((one, image), (two, image), (three, images[0])):
      found = files.pixels(value, "")
      np.testing.assert_array_equal(found, np.asarray(expected))
    assert path == ["path", f"{number}.png"]
    json.dumps(record["pictures"])
