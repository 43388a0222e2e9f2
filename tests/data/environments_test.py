"""Prompts of environments: the same for a seed, and games to imitate."""

import numpy as np
import pytest

from grpo_jax.data import environments, pipeline, tokenizer
from grpo_jax.data.encoder import Encoder

BYTES = tokenizer.Tokenizer(tokenizer.BYTES)


def problem(seed):
  return f"game {seed}", {"seed": seed}


def lesson(prompt, extras):
  return [
    ("[4]", "board"),
    ("pass", ("<eos>", "a long board", "<eos>")),
    ("[5]", ""),
  ]


def source(split="train", seed=0, of=problem):
  return environments.EnvironmentSource(of, split, seed)


def played(**changes):
  options = {
    "action_ends": (*BYTES.end_ids, *BYTES.encode("]")),
    "max_turns": 9,
    "max_observation_len": 8,
    **changes,
  }
  return environments.PlayedSource(source(), lesson, BYTES, **options)


def test_a_record_is_what_the_environment_shows_first():
  record = source()[5]
  number = record["extras"]["seed"]
  assert record == {
    "prompt": f"game {number}",
    "answer": "",
    "completion": None,
    "extras": {"seed": number},
  }


def test_records_depend_on_seed_and_index_only():
  numbers = [source()[i]["extras"]["seed"] for i in range(50)]
  assert numbers == [source()[i]["extras"]["seed"] for i in range(50)]
  assert len(set(numbers)) == 50
  assert source(seed=1)[0] != source()[0]


def test_no_episode_is_in_both_splits():
  train = [source()[i]["extras"]["seed"] for i in range(50)]
  held_out = [source("test")[i]["extras"]["seed"] for i in range(50)]
  first = environments.FIRST_HELD_OUT
  assert max(train) < first
  assert held_out == [first + i for i in range(50)]


@pytest.mark.parametrize("split", ["train", "test"])
def test_seeds_without_a_problem_are_replaced(split):
  def sometimes(seed):
    return problem(seed) if seed % 4 == 1 else None

  found = [source(split, of=sometimes)[i]["extras"]["seed"] for i in range(40)]
  assert all(seed % 4 == 1 for seed in found)
  assert all(
    (x >= environments.FIRST_HELD_OUT) == (split == "test") for x in found
  )
  assert len(set(found)) == 40
  with pytest.raises(ValueError, match="of 100 seeds none has a problem"):
    source(split, of=lambda seed: None)[0]


def test_a_source_ends():
  assert len(source()) > 10**9
  for index in (-1, len(source())):
    with pytest.raises(IndexError):
      source()[index]


def test_a_lesson_is_what_a_policy_would_write_and_read():
  record = played()[0]
  # What stands around an observation is special, and only the text is cut.
  texts = [
    ("[4]", 0),
    ("board", 1),
    ("pass<eos>", 0),
    ("<eos>a long<eos>", 1),
    ("[5]", 0),
  ]
  ids = [BYTES.encode(text) for text, _ in texts]
  assert record["completion"].tolist() == [x for one in ids for x in one]
  assert record["observed"].tolist() == [
    bool(flag) for (_, flag), one in zip(texts, ids, strict=True) for _ in one
  ]
  assert record["prompt"] == source()[0]["prompt"]


def test_a_lesson_has_no_more_turns_than_an_episode():
  record = played(max_turns=2)[0]
  expected = "[4]boardpass<eos>"
  assert record["completion"].tolist() == BYTES.encode(expected)
  assert not record["observed"][-1]


def test_batches_of_lessons_do_not_imitate_what_is_read():
  stream = pipeline.supervised_stream(
    played(),
    Encoder(BYTES),
    batch_size=2,
    max_prompt_len=20,
    max_completion_len=10,
    seed=0,
    pad_id=BYTES.pad_id,
    end_id=BYTES.end_ids[0],
    truncate_completions=True,
  )
  batch = next(iter(stream))
  row = [False] * 3 + [True] * 5 + [False] * 2
  np.testing.assert_array_equal(batch.observed, [row, row])
  assert batch.completion_mask.all()
