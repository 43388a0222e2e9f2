"""Problems of reasoning-gym: the same for a seed, never in both splits."""

import json
import sys
import zlib

import numpy as np
import pytest

from grpo_jax import gym as problems
from grpo_jax.data import gym, pipeline
from grpo_jax.data.encoder import Encoder

GCD = {"name": "gcd", "settings": {"max_value": 20}}


def source(*datasets, split="train", seed=0):
  return gym.GymSource(datasets or (GCD,), split, seed)


@pytest.mark.slow
def test_a_record_holds_what_makes_its_problem_again():
  record = source()[5]
  extras = record["extras"]
  assert extras == {
    "dataset": "gcd",
    "settings": {"max_value": 20},
    "level": None,
    "seed": extras["seed"],
    "domain": 0,
  }
  again = problems.problem("gcd", '{"max_value": 20}', None, extras["seed"])
  assert record["prompt"] == again.entry["question"]
  assert record["answer"] == record["completion"] == again.entry["answer"]
  assert again.score(record["answer"]) == 1.0
  assert again.score("1000") < 1
  numbers = [
    int(x) for x in record["prompt"].split(":")[1].split(".")[0].split(",")
  ]
  assert np.gcd.reduce(numbers) == int(record["answer"])
  assert isinstance(extras["domain"], np.int32)
  json.dumps(extras, default=int)


@pytest.mark.slow
def test_records_depend_on_seed_and_index_only():
  first, second = source(), source()
  assert [second[i] for i in (7, 3)] == [first[i] for i in (7, 3)]
  prompts = {first[i]["prompt"] for i in range(40)}
  assert len(prompts) > 30
  assert source(seed=1)[3] != first[3]


def test_no_question_is_in_both_splits():
  easy = {"name": "gcd", "settings": {"max_value": 4}}  # Few questions.
  train, held_out = (source(easy, split=split) for split in ("train", "test"))
  questions = [{s[i]["prompt"] for i in range(150)} for s in (train, held_out)]
  assert min(map(len, questions)) > 1
  assert not questions[0] & questions[1]


def test_weights_are_shares_and_domains_are_places():
  mixed = source(GCD, {"name": "lcm", "weight": 3.0}, {**GCD, "weight": 1e-9})
  records = [mixed[i] for i in range(400)]
  domains = [int(record["extras"]["domain"]) for record in records]
  assert abs(np.mean(domains) - 0.75) < 0.07
  names = {
    r["extras"]["dataset"]: d for r, d in zip(records, domains, strict=True)
  }
  assert names == {"gcd": 0, "lcm": 1}
  assert mixed.domains == ("gcd", "lcm", "gcd_2")
  some = mixed.only({1})
  assert {int(some[i]["extras"]["domain"]) for i in range(20)} == {1}


class Letters:
  """A tokenizer whose tokens are characters."""

  def encode(self, text):
    return [ord(letter) for letter in text]

  context_ids = encode


def test_levels_begin_after_so_many_prompts_of_a_stream():
  levels = {"name": "gcd", "levels": ((0, 0), (12, 2))}
  train, held_out = (source(levels, split=split) for split in ("train", "test"))
  assert train.starts == (0, 12)
  stream = pipeline.prompt_stream(
    train,
    Encoder(Letters()),
    batch_size=4,
    max_prompt_len=400,
    seed=3,
    pad_id=0,
  )
  found = [
    [record["extras"]["level"] for record in next(stream).records]
    for _ in range(6)
  ]
  assert found == [[0] * 4] * 3 + [[2] * 4] * 3
  assert held_out[0]["extras"]["level"] == 2
  assert held_out.starts == (0,)


def test_settings_go_before_levels():
  few = {"min_numbers": 2, "max_numbers": 2}
  made = source({"name": "gcd", "level": 3, "settings": few})
  assert all(made[i]["prompt"].count(",") == 1 for i in range(20))
  made = source({"name": "gcd", "level": 3})
  assert any(made[i]["prompt"].count(",") > 2 for i in range(20))


@pytest.mark.parametrize(
  ("entry", "message"),
  [
    ({"name": "gdc"}, r"no dataset 'gdc' \(did you mean 'gcd'\?\)"),
    ({"nam": "gcd"}, r"datasets\[0\] has \['nam'\]; it may have name, weight"),
    ({"weight": 1.0}, "has the name None"),
    ({"name": "gcd", "weight": 0}, "has the weight 0; needs a positive"),
    (
      {"name": "gcd", "settings": {"max_valu": 3}},
      r"no settings \['max_valu'\]; it has min_numbers, max_numbers",
    ),
    ({"name": "gcd", "settings": {"seed": 3}}, r"no settings \['seed'\]"),
    ({"name": "gcd", "settings": {"max_value": 0}}, "refuses the settings"),
    ({"name": "gcd", "levels": ((1, 0),)}, r"levels \(\(1, 0\),\); needs"),
    ({"name": "gcd", "level": -1}, "needs pairs"),
    ({"name": "gcd", "level": 0, "levels": ()}, "both 'level' and 'levels'"),
  ],
)
def test_a_wrong_dataset_is_refused(entry, message):
  with pytest.raises(ValueError, match=message):
    source(entry)


def test_an_empty_list_and_too_few_questions_are_refused(monkeypatch):
  with pytest.raises(ValueError, match="datasets is empty"):
    gym.GymSource((), "train", 0)
  sizes = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
  one = {"name": "chain_sum", "settings": sizes}
  monkeypatch.setattr(problems, "MAX_SEED", 1)  # A single problem.
  question = problems.problem("chain_sum", json.dumps(sizes), None, 0)
  splits = ["train", "test"]
  if zlib.crc32(question.entry["question"].encode()) % 4 == 0:
    splits.reverse()
  assert source(one, split=splits[0])[0]["prompt"]
  with pytest.raises(ValueError, match="too few different questions"):
    source(one, split=splits[1])[0]


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["spell_backward", "word_sequence_reversal", "figlet_font"]
)
def test_an_object_with_another_seed_makes_the_problem_of_a_new_one(name):
  assert name in problems.RESEEDED
  for seed in (5, 123_456, 2**31 - 5, 5):
    made = problems.problem(name, "{}", None, seed)
    new = problems._dataset(name, "{}", None, seed)
    assert made.entry == new[0]
    assert made.score(made.entry["answer"]) == 1.0


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(ImportError, match=r"pip install 'grpo-jax\[gym\]'"):
    source()
