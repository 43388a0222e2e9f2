"""Configs of mixtures, and of domains that a field names."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import records


def _problem(**data):
  config = config_lib.default_config()
  for name, value in data.items():
    config.data[name] = value
  config.rewards.functions = ("accuracy",)
  return problem_lib.make_problem(config_lib.resolve(config))


def _domains(batch):
  return collections.Counter(batch.prompts.extras["domain"].tolist())


def test_tasks_of_a_mixture_are_domains():
  made = _problem(
    source="mixture",
    mixture=(
      {"name": "add"},
      {"name": "sort", "weight": 3.0, "task_options": {"max_len": 4}},
      {"name": "sort", "domain": "long", "weight": 0},
    ),
  )
  assert made.domains == ("add", "sort", "long")
  assert made.provides == {"domain"}
  assert made.max_prompt_len == 10
  batch = next(made.prompt_stream(0, 400, None))
  found = _domains(batch)
  assert found[0] / 400 == pytest.approx(0.25, abs=0.06)
  assert set(found) == {0, 1}
  only = next(made.prompt_stream(0, 20, None, names=("add",)))
  assert set(_domains(only)) == {0}
  taught = next(made.supervised_stream(0, 20, None, names=("add",)))
  assert "+" in made.tokenizer.decode(taught.prompt_tokens[0].tolist())
  held_out = [int(made.held_out[i]["extras"]["domain"]) for i in range(6)]
  assert held_out == [0, 1, 2, 0, 1, 2]
  with pytest.raises(ValueError, match=r"domains \[2\] have no weight"):
    made.prompt_stream(0, 4, None, names=("long",))


def _lines(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_files_of_a_mixture_and_fields_that_name_domains(tmp_path):
  one = _lines(tmp_path / "one.jsonl", *({"prompt": f"a{i}"} for i in range(4)))
  two = _lines(
    tmp_path / "two.jsonl",
    *({"prompt": f"b{i}", "topic": "xy"[i % 2]} for i in range(4)),
  )
  mixed = records.open_sources(
    groups.DataConfig(
      source="mixture",
      mixture=(
        {"source": "jsonl", "train_path": one},
        {"source": "text", "train_path": two, "domain": "lines"},
      ),
    ),
    0,
  )
  assert mixed.domains == ("one", "lines")
  assert mixed.held_out[2]["prompt"] == "a1"
  assert {mixed.train[i]["prompt"][0] for i in range(8)} == {"a", "{"}

  labelled = groups.DataConfig(
    source="jsonl", train_path=two, domain_key="topic"
  )
  opened = records.open_sources(labelled, 0)
  assert opened.domains == ("x", "y")
  assert opened.train[1]["extras"]["domain"] == np.int32(1)


def _data(**fields):
  return groups.DataConfig(source="mixture", **fields)


@pytest.mark.parametrize(
  ("parts", "error", "message"),
  [
    ((), ValueError, "config.data.mixture is empty"),
    (({"name": "add"}, {"name": "add"}), ValueError, "the domain 'add'; give"),
    (({"nam": "add"},), ValueError, r"mixture\[0\] has \['nam'\]; it may have"),
    (({"name": 3},), TypeError, r"mixture\[0\]: name is 3; it needs a str"),
    (({"name": "add", "weight": -1},), ValueError, "has the weight -1"),
    (({"name": "add", "weight": 0},), ValueError, "all weights are 0"),
    (({"source": "mixture"},), ValueError, "is a mixture itself"),
    (("add",), TypeError, "is 'add'; needs a group"),
    (
      ({"name": "add"}, {"source": "text", "train_path": "x"}),
      ValueError,
      "a policy has one tokenizer",
    ),
  ],
)
def test_parts_that_are_none_are_named(parts, error, message):
  with pytest.raises(error, match=message):
    _data(mixture=parts)


def test_parts_have_names_of_their_own():
  found = groups.parts(
    _data(
      mixture=(
        {"source": "text", "train_path": "gs://b/poems.txt"},
        {"source": "reasoning_gym", "datasets": ({"name": "gcd"},)},
        {"source": "tfds", "name": "gsm8k", "weight": 2},
      )
    )
  )
  assert list(found) == ["poems", "gcd", "gsm8k"]
  assert found["gsm8k"].weight == 2.0
  assert found["poems"].data.train_path == "gs://b/poems.txt"


@pytest.mark.parametrize("name", ["domain_key", "domains"])
def test_domains_that_no_record_has_are_refused(tmp_path, name):
  path = _lines(tmp_path / "a.jsonl", {"prompt": "a"})
  value = {"domain_key": "topic", "domains": ("x",)}[name]
  data = groups.DataConfig(source="jsonl", train_path=path, **{name: value})
  with pytest.raises(ValueError, match=f"config.data.{name}=.* have no domain"):
    records.open_sources(data, 0)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"train_path": "a.jsonl"}, "train_path='a.jsonl' is for .*it is 'task'"),
    (
      {"source": "tfds", "name": "gsm8k", "eval_path": "a.jsonl"},
      "eval_path='a.jsonl' is for .*'jsonl' or .* it is 'tfds'",
    ),
    (
      {"source": "text", "train_path": "a.txt", "format": "gsm8k"},
      "format='gsm8k' is for .*it is 'text'",
    ),
    (
      {"source": "jsonl", "train_path": "a.jsonl", "train_split": "train[:9]"},
      r"train_split='train\[:9\]' is for .*'tfds' or .* it is 'jsonl'",
    ),
    (
      {"chat_options": {"enable_thinking": False}},
      r"chat_options=\{'enable_thinking': False\} are inputs of a chat temp",
    ),
  ],
)
def test_data_that_nothing_would_read_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    groups.DataConfig(**given)
