"""Batches: contents, order, resumption, process split, what is left out."""

import json
import pathlib

import jax
import numpy as np
import pytest

from grpo_jax.data import observations, pipeline, sources, tokenizer
from grpo_jax.data.encoder import Encoder
from grpo_jax.tasks import copy, countdown

SAMPLE = pathlib.Path(__file__).parent / "gsm8k_sample"
TASK = copy.make(length=3)
PAD, END = TASK.pad_id, TASK.end_ids[0]
ENCODE = Encoder(observations.TaskTokenizer(TASK))


class Words:
  """A tokenizer whose tokens are words; the id is the length of the word."""

  end_ids = (END,)

  def encode(self, text):
    return [len(word) for word in text.split()]

  context_ids = encode


def task_source(num_examples=10, task=TASK):
  return sources.TaskSource(task, "train", 0, num_examples)


def prompts(source=None, encode=ENCODE, **overrides):
  options = {"batch_size": 4, "max_prompt_len": 5, "seed": 0, "pad_id": PAD}
  return pipeline.prompt_stream(
    source or task_source(), encode, **options | overrides
  )


def supervised(source=None, encode=ENCODE, **overrides):
  options = {
    "batch_size": 4,
    "max_prompt_len": 5,
    "max_completion_len": 4,
    "seed": 0,
    "pad_id": PAD,
    "end_id": END,
  }
  return pipeline.supervised_stream(
    source or task_source(), encode, **options | overrides
  )


def jsonl(tmp_path, *records):
  path = tmp_path / "data.jsonl"
  path.write_text("\n".join(map(json.dumps, records)))
  return sources.JsonlSource(path)


def take(iterator, num_batches):
  return [next(iterator) for _ in range(num_batches)]


def letters(batches):
  """The answers of a stream of copy prompts, which identify its records."""
  answers = [batch.prompts.extras["answer"] for batch in batches]
  return [tuple(row) for row in np.concatenate(answers).tolist()]


def assert_same(batches, others):
  leaves, structure = jax.tree.flatten(batches)
  other_leaves, other_structure = jax.tree.flatten(others)
  assert structure == other_structure
  for x, y in zip(leaves, other_leaves, strict=True):
    np.testing.assert_array_equal(x, y, strict=not isinstance(x, str))


def test_prompts_are_left_padded_with_extras_and_records():
  task = countdown.make()  # Prompts of 9 or 10 tokens.
  encode = Encoder(observations.TaskTokenizer(task))
  batch = next(prompts(task_source(50, task), encode, max_prompt_len=12))
  tokens, mask = batch.prompts.tokens, batch.prompts.mask
  assert tokens.shape == mask.shape == (4, 12)
  assert (tokens.dtype, mask.dtype) == (np.int32, bool)
  assert len(batch.records) == 4
  for row, record in enumerate(batch.records):
    size = len(record["prompt"])
    np.testing.assert_array_equal(tokens[row, 12 - size :], record["prompt"])
    assert (tokens[row, : 12 - size] == task.pad_id).all()
    np.testing.assert_array_equal(mask[row], np.arange(12) >= 12 - size)
    for name, value in record["extras"].items():
      np.testing.assert_array_equal(batch.prompts.extras[name][row], value)


def test_text_goes_through_template_and_tokenizer(tmp_path):
  record = {
    "prompt": "a {b} ccc",
    "answer": "7",
    "completion": "dddd ee",
    "extras": {"level": 3},
  }
  source = jsonl(tmp_path, record)
  encode = Encoder(Words(), template="{x} {prompt} !")
  batch = next(prompts(source, encode, batch_size=2, max_prompt_len=6))
  np.testing.assert_array_equal(
    batch.prompts.tokens, [[PAD, 3, 1, 3, 3, 1]] * 2
  )
  # JSON values are for the host only: they may have any type and shape.
  assert batch.prompts.extras == {}
  assert batch.records == [record] * 2


def test_text_goes_through_the_chat_template(tmp_path):
  template = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ sign }}{% endif %}"
  )
  tok = tokenizer.Tokenizer(chat_template=template)
  source = jsonl(tmp_path, {"prompt": "{a}?", "completion": "{b}"})
  encode = Encoder(tok, "chat", {"sign": "<think>"})
  ends = {"end_id": tok.end_ids[0], "pad_id": tok.pad_id}
  batch = next(supervised(source, encode, max_prompt_len=16, **ends))
  for row in batch.prompt_tokens:
    assert tok.decode(row) == "user: {a}?<think>"
  # What is to be learnt is the answer, not a template around it.
  assert tok.decode(batch.tokens[0]) == "{b}"
  np.testing.assert_array_equal(encode.prompt({"prompt": [3, 4]}), [3, 4])


def test_every_epoch_has_all_records_in_a_new_order():
  order = letters(take(prompts(), 10))  # 40 rows: four epochs of ten.
  epochs = [order[i : i + 10] for i in range(0, 40, 10)]
  assert all(set(epoch) == set(order) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 4


def test_orders_of_different_seeds_differ_in_every_epoch():
  orders = [letters(take(prompts(seed=seed), 10)) for seed in range(4)]
  epochs = {tuple(o[i : i + 10]) for o in orders for i in range(0, 40, 10)}
  assert len(epochs) == 16  # Seed 1 is not seed 0 one epoch later.


def test_ids_count_positions_in_the_stream():
  ids = np.concatenate([batch.prompts.ids for batch in take(prompts(), 6)])
  assert ids.dtype == np.int32
  np.testing.assert_array_equal(ids, np.arange(24))


@pytest.mark.parametrize("stream", [prompts, supervised])
@pytest.mark.parametrize("num_taken", [0, 1, 5])  # 5 batches: second epoch.
def test_restored_stream_continues_identically(stream, num_taken):
  original = stream()
  take(original, num_taken)
  state = json.loads(json.dumps(original.get_state()))
  expected = take(original, 6)  # Over the end of an epoch.
  fresh = stream()
  fresh.set_state(state)
  assert_same(take(fresh, 6), expected)
  used = stream()
  take(used, 3)
  used.set_state(state)
  assert_same(take(used, 6), expected)


# Of the last, none is a block: neighbours on a mesh may be of other hosts.
@pytest.mark.parametrize(
  "rows", [[[0, 1], [2, 3]], [[0], [1], [2], [3]], [[0, 2], [1, 3]]]
)
def test_processes_together_make_the_batch_of_one(rows):
  whole = take(prompts(), 6)
  for own in rows:
    for batch, part in zip(whole, take(prompts(rows=own), 6), strict=True):
      expected = jax.tree.map(lambda x, own=own: x[own], batch.prompts)
      assert_same(part.prompts, expected)
      assert_same(part.records, [batch.records[row] for row in own])


def test_state_does_not_depend_on_the_number_of_processes():
  one, two = prompts(), prompts(rows=[1, 3])
  take(one, 3)
  take(two, 3)
  assert one.get_state() == two.get_state()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_threads_that_work_ahead_change_nothing(num_threads):
  other = prompts(num_threads=num_threads)
  one = prompts()
  assert_same(take(other, 6), take(one, 6))
  assert other.get_state() == one.get_state()


def test_long_prompts_are_left_out_and_counted(tmp_path, caplog):
  source = jsonl(
    tmp_path, *({"prompt": "word " * size} for size in (1, 6, 5, 7))
  )
  with caplog.at_level("INFO", logger="absl"):
    iterator = prompts(source, Encoder(Words()))
  assert "config.data: left out 2 of 4 records" in caplog.text
  batch = next(iterator)
  assert sorted(batch.prompts.mask.sum(axis=1)) == [1, 1, 5, 5]
  with pytest.raises(ValueError, match="all 4 records are too long"):
    prompts(source, Encoder(Words(), "a b c d e {prompt}"))


def test_completions_end_with_the_end_token(tmp_path):
  source = jsonl(
    tmp_path,
    {"prompt": "a", "completion": "four four"},
    {"prompt": "a bb", "completion": ""},
  )
  batch = next(supervised(source, Encoder(Words()), batch_size=2))
  order = np.argsort(batch.prompt_mask.sum(axis=1))
  np.testing.assert_array_equal(
    batch.prompt_tokens[order],
    [[PAD, PAD, PAD, PAD, 1], [PAD, PAD, PAD, 1, 2]],
  )
  np.testing.assert_array_equal(
    batch.tokens[order], [[4, 4, END, PAD], [END, PAD, PAD, PAD]]
  )
  np.testing.assert_array_equal(batch.completion_mask.sum(1)[order], [3, 1])


def test_task_completions_get_no_second_end_token():
  batch = next(supervised())
  assert batch.completion_mask.all()  # Three letters and one end token.
  assert ((batch.tokens == END).sum(axis=1) == 1).all()
  np.testing.assert_array_equal(
    batch.tokens[:, :3], batch.prompt_tokens[:, 1:4]
  )


def test_observed_tokens_are_marked_and_nothing_is_appended():
  class Episodes:
    def __init__(self, observed):
      self._observed = observed

    def __len__(self):
      return 1

    def __getitem__(self, index):
      ids = np.array([7, 8, 9], np.int32)
      return {"prompt": ids, "completion": ids, "observed": self._observed}

  source = Episodes(np.array([False, True, True]))
  batch = next(supervised(source, batch_size=2))
  np.testing.assert_array_equal(batch.tokens, [[7, 8, 9, PAD]] * 2)
  np.testing.assert_array_equal(batch.completion_mask.sum(axis=1), [3, 3])
  np.testing.assert_array_equal(batch.observed, [[0, 1, 1, 0]] * 2)
  assert batch.observed.dtype == bool
  assert not next(supervised()).observed.any()
  cut = next(
    supervised(
      source, batch_size=2, max_completion_len=2, truncate_completions=True
    )
  )
  np.testing.assert_array_equal(cut.observed, [[0, 1]] * 2)
  with pytest.raises(ValueError, match=r"2 flags 'observed' for .* of 3"):
    supervised(Episodes(np.zeros(2, bool)))


def test_long_completions_are_left_out_or_cut(tmp_path, caplog):
  source = jsonl(
    tmp_path,
    {"prompt": "a", "completion": "a bb ccc"},  # Fits with the end token.
    {"prompt": "a", "completion": "a bb ccc dddd"},
  )
  encode = Encoder(Words())
  with caplog.at_level("INFO", logger="absl"):
    batch = next(supervised(source, encode, batch_size=2))
  assert "config.data: left out 1 of 2 records" in caplog.text
  np.testing.assert_array_equal(batch.tokens, [[1, 2, 3, END]] * 2)
  cut = next(
    supervised(source, encode, batch_size=2, truncate_completions=True)
  )
  assert sorted(cut.tokens[:, 3].tolist()) == sorted([END, 4])
  assert cut.completion_mask.all()


def test_evaluation_takes_the_first_records_in_order():
  source = task_source(10)
  batches = pipeline.evaluation_batches(
    source, ENCODE, 7, batch_size=4, max_prompt_len=5, pad_id=PAD
  )
  assert [num_real for _, num_real in batches] == [4, 3]
  order = letters([batch for batch, _ in batches])
  expected = [tuple(source[i]["extras"]["answer"].tolist()) for i in range(7)]
  assert order == [*expected, expected[-1]]
  ids = np.concatenate([batch.prompts.ids for batch, _ in batches])
  np.testing.assert_array_equal(ids, np.arange(8))


def test_evaluation_splits_over_processes():
  def make(**split):
    return pipeline.evaluation_batches(
      task_source(9),
      ENCODE,
      batch_size=4,
      max_prompt_len=5,
      pad_id=PAD,
      **split,
    )

  whole = make()
  parts = [make(rows=rows) for rows in ([0, 1], [2, 3])]
  assert [n for _, n in whole] == [4, 4, 1]
  assert [[n for _, n in part] for part in parts] == [[2, 2, 1], [2, 2, 0]]
  for (batch, _), *blocks in zip(whole, *parts, strict=True):
    tokens = [block.prompts.tokens for block, _ in blocks]
    np.testing.assert_array_equal(np.concatenate(tokens), batch.prompts.tokens)


def test_evaluation_refuses_to_leave_questions_out(tmp_path):
  source = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "a b c d e f"})
  options = {"batch_size": 2, "max_prompt_len": 5, "pad_id": 0}
  encode = Encoder(Words())
  with pytest.raises(ValueError, match="=5: held-out prompt 1 has 6 tokens"):
    pipeline.evaluation_batches(source, encode, **options)
  with pytest.raises(ValueError, match=r"num_prompts=3; .* \[1, 2\]"):
    pipeline.evaluation_batches(source, encode, 3, **options)


def test_gsm8k_sample_runs_through_the_shipped_tokenizer():
  tok = tokenizer.Tokenizer()
  source = sources.JsonlSource(SAMPLE / "train.jsonl", format="gsm8k")
  encode = Encoder(tok, template="{prompt}\n")
  batch = next(prompts(source, encode, batch_size=8, max_prompt_len=256))
  for row, record in zip(batch.prompts.tokens, batch.records, strict=True):
    assert tok.decode(row) == record["prompt"] + "\n"


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (
      lambda: prompts(batch_size=3, rows=[1, 3]),
      r"rows=\[1, 3\] of batch_size=3",
    ),
    (lambda: prompts(batch_size=0), "batch_size=0"),
    (lambda: prompts(rows=[1, 0]), "in ascending order"),
    (lambda: prompts(max_prompt_len=4), "needs max_prompt_len 5, and it is 4"),
    (
      lambda: supervised(max_completion_len=3),
      "'copy': the task needs max_completion_len 4",
    ),
    (lambda: Encoder(Words(), "Q:"), "lacks '{prompt}'"),
    (
      lambda: Encoder(Words()).prompt({"prompt": " "}),
      "no prompt tokens",
    ),
    (
      lambda: Encoder(Words()).completion({"completion": None}),
      "no completion",
    ),
  ],
)
def test_unusable_arguments_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()
