"""Files to evaluate on, and completions as lines of JSON."""

import dataclasses
import json
import math
import types

import pytest

from grpo_jax.data import sources
from grpo_jax.training.evaluation import data_sets, evaluation


def _loaded(source="jsonl", held_out=None, fields=None, **rewards):
  rewards = {"domains": {}, "in_graph": False, **rewards}
  config = types.SimpleNamespace(
    rewards=types.SimpleNamespace(**rewards),
    data=types.SimpleNamespace(
      source=source,
      name="sort",
      format="",
      fields=fields or {},
      domain_key="",
      images=(),
      is_made_of_ids=source == "task",
      shown_task="the task 'sort'",
    ),
    eval=types.SimpleNamespace(num_prompts=7),
  )
  problem = types.SimpleNamespace(
    held_out=held_out, max_new_tokens=5, domains=("words", "games"), limits=None
  )
  return types.SimpleNamespace(config=config, problem=problem)


def _write(path, *rows):
  path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
  return str(path)


def test_without_files_it_is_the_held_out_prompts():
  (one,) = data_sets.opened(_loaded("task", "theirs"), {})
  assert (one.name, one.source, one.num_prompts) == ("held_out", "theirs", 7)
  for number, count in ((3, 3), (9, len("theirs"))):
    (one,) = data_sets.opened(_loaded("task", "theirs"), {}, number)
    assert one.num_prompts == count


def test_files_are_taken_whole_or_from_the_start(tmp_path):
  rows = [
    {"prompt": "a", "answer": "1", "extras": {"domain": 1}},
    {
      "prompt": "b",
      "answer": "2",
      "extras": {"domain": 0, "domain_name": "sums"},
    },
  ]
  data = {
    "two": _write(tmp_path / "two.jsonl", *rows),
    "one": _write(tmp_path / "one.jsonl", {"prompt": "c"}),
  }
  two, one = data_sets.opened(_loaded(), data)
  assert (two.name, two.num_prompts) == ("two", 2)
  assert two.golds == ["1", "2"]
  assert two.domains == ["games", "sums"]
  assert (one.name, one.num_prompts) == ("one", 1)
  assert one.golds == [""]
  assert one.domains == [None]
  assert [x.num_prompts for x in data_sets.opened(_loaded(), data, 1)] == [1, 1]
  first, _ = data_sets.opened(_loaded(), data, 1)
  assert first.golds == ["1"]


def test_files_have_the_fields_of_the_run(tmp_path):
  path = _write(tmp_path / "a.jsonl", {"q": "1 + 1?", "a": 2, "more": 3})
  fields = {"prompt": "q", "answer": "a"}
  (one,) = data_sets.opened(_loaded(fields=fields), {"a": path})
  assert (one.source[0]["prompt"], one.golds) == ("1 + 1?", ["2"])


def test_mistakes_are_named(tmp_path):
  path = _write(tmp_path / "a.jsonl", {"prompt": "a"})
  for source, data, error, message in (
    ("task", {"a": path}, ValueError, "task 'sort', where prompts are made"),
    ("jsonl", {"a": "none.jsonl"}, FileNotFoundError, "a=none.jsonl: there is"),
    ("jsonl", {"macro": path}, ValueError, "'macro' of .* a mean over data"),
    ("jsonl", {"": path}, ValueError, "is empty"),
    ("jsonl", {"a": "s3://b/a"}, ValueError, "neither a local folder nor gs"),
  ):
    with pytest.raises(error, match=message):
      data_sets.opened(_loaded(source), data)
  with pytest.raises(
    ValueError, match=r"max_new_tokens=9: the task 'sort' say"
  ):
    data_sets.with_lengths(_loaded("task"), max_new_tokens=9)
  with pytest.raises(ValueError, match=r"room for completions of 5 tokens"):
    data_sets.with_lengths(_loaded(in_graph=True), max_new_tokens=9)
  with pytest.raises(ValueError, match=r"no 'domain' in .*\{'f1': \(0, 2\)\}"):
    data_sets.opened(_loaded(domains={"f1": (0, 2)}), {"a": path})


@pytest.mark.parametrize(("most", "limits"), [(9, (3, 9)), (2, (2, 2))])
def test_limits_of_domains_follow_the_length_of_completions(most, limits):
  problem = dataclasses.make_dataclass(
    "P", ("domains", "limits", "max_new_tokens", "max_prompt_len")
  )(("words", "games"), (3, 5), 5, 4)
  config = _loaded().config
  config.sampling = types.SimpleNamespace(domain_limits={"words": 3})
  loaded = dataclasses.make_dataclass("L", ("config", "problem"))
  made = data_sets.with_lengths(loaded(config, problem), max_new_tokens=most)
  assert made.problem.limits == limits
  assert made.problem.max_new_tokens == most


def _row(text, **fields):
  defaults = {
    **{"prompt": "1 +\u2028 1", "answer": "2", "reward": 1.5, "correct": True},
    **{"valid": True, "num_tokens": 3, "terminated": True, "components": {}},
  }
  return evaluation.Completion(**defaults | fields, text=text)


def test_a_line_holds_all_completions_of_a_prompt(tmp_path):
  path = tmp_path / "a.jsonl"
  _write(
    path, {"prompt": "1 +\u2028 1", "answer": "2", "extras": {"domain": 4}}
  )
  one = data_sets.DataSet("sums", sources.JsonlSource(path), 1)
  hostile = '"}\n{"\u2028\u0085\x1b[31m\x00\\ é 😀 \ud800'
  components = {"right": 1.0, "absent": math.nan}
  sampled = [_row("a", components=components), _row("b", reward=math.inf)]
  (line,) = data_sets.lines(one, [[_row(hostile)]], [sampled])
  assert line.endswith("\n")
  assert line[:-1].isascii()
  assert line[:-1].isprintable()  # No line ends, nor what a terminal acts upon.

  def refuse(name):
    raise AssertionError(f"{name} is not JSON")

  record = json.loads(line, parse_constant=refuse)
  greedy, samples = record.pop("greedy"), record.pop("samples")
  assert record == {
    "data_set": "sums",
    "id": 0,
    "domain": "4",
    "prompt": "1 +\u2028 1",
    "gold": "2",
  }
  assert greedy == {
    "text": hostile,
    "answer": "2",
    "correct": True,
    "valid": True,
    "reward": 1.5,
    "components": {},
    "tokens": 3,
    "terminated": True,
  }
  assert [row["text"] for row in samples] == ["a", "b"]
  assert samples[0]["components"] == {"right": 1.0, "absent": None}
  assert samples[1]["reward"] is None
