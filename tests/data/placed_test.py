"""Prompts at named places are those of the stream, whoever makes them."""

import numpy as np
import pytest

from grpo_jax.data import pipeline
from tests.data import pipeline_test

P = 4


def stream(source, encode=pipeline_test.ENCODE, **overrides):
  options = {
    "batch_size": P,
    "max_prompt_len": 5,
    "seed": 0,
    "pad_id": pipeline_test.PAD,
  }
  return pipeline.PlacedPrompts(source, encode, **options | overrides)


def test_the_prompt_at_a_place_is_that_of_the_stream():
  """Over the end of an epoch of ten records, in any order, and again."""
  source = pipeline_test.task_source(10)
  in_order = pipeline_test.take(pipeline_test.prompts(source), 4)
  numbers = [n for batch in in_order for n in batch.numbers]
  answers = pipeline_test.letters(in_order)
  made = stream(source)
  for places in ([0, 1, 2, 3], [13, 1, 12, 0], [13, 15, 2, 9]):
    batch = made.take(np.array(places))
    assert batch.prompts.ids.tolist() == places
    assert batch.numbers == tuple(numbers[n] for n in places)
    assert pipeline_test.letters([batch]) == [answers[n] for n in places]
  assert made.get_state() == {}
  made.set_state({})


def test_a_prompt_that_stays_is_not_read_again():
  """Its source may have failed meanwhile."""
  source = pipeline_test.task_source(10)
  made = stream(source)
  before = made.take(np.array([3, 1, 2, 0]))
  source.__class__ = type("Failed", (), {"__getitem__": None})
  batch = made.take(np.array([0, 1, 2, 3]))
  assert batch.numbers == tuple(before.numbers[i] for i in (3, 1, 2, 0))


def test_a_process_makes_its_own_rows():
  source, places = pipeline_test.task_source(10), np.array([7, 3, 1, 8])
  batch = stream(source, rows=[1, 3]).take(places)
  assert batch.prompts.ids.tolist() == [3, 8]
  whole = stream(source).take(places)
  np.testing.assert_array_equal(
    batch.prompts.tokens, whole.prompts.tokens[[1, 3]]
  )


def test_long_prompts_are_left_out_as_in_the_stream(tmp_path):
  records = [{"prompt": "a " * n, "answer": str(n)} for n in range(1, 9)]
  source = pipeline_test.jsonl(tmp_path, *records)
  encode = pipeline_test.Encoder(pipeline_test.Words())
  in_order = pipeline_test.prompts(source, encode)
  made = stream(source, encode)
  for first in (0, 4):
    pipeline_test.assert_same(
      next(in_order), made.take(np.arange(first, first + P))
    )
  with pytest.raises(ValueError, match="all 8 records are too long"):
    stream(source, encode, max_prompt_len=0)
