"""Tests of the completions that are kept, and of reading a file of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.data import (
  demonstrations,
  encoder,
  observations,
  pipeline,
  tokenizer,
)
from grpo_jax.settings import phase as phase_lib
from grpo_jax.tasks import add, sort

CANDIDATES = st.lists(
  st.builds(
    demonstrations.Candidate,
    is_good=st.booleans(),
    text=st.sampled_from("abc"),
    answer=st.sampled_from(["1", "2", None]),
    num_tokens=st.integers(1, 4),
  ),
  max_size=8,
)


@pytest.mark.slow
@given(
  candidates=CANDIDATES,
  most=st.integers(1, 4),
  order=st.sampled_from(phase_lib.DEMONSTRATION_ORDERS),
  distinct=st.sampled_from(phase_lib.DISTINCT),
)
def test_what_is_kept_is_right_and_different_and_not_too_much(
  candidates, most, order, distinct
):
  arguments = candidates, most, order, distinct
  found = demonstrations.selection(*arguments, (3, 4))
  assert found == demonstrations.selection(*arguments, (3, 4))
  kept = [candidates[i] for i in found]
  assert all(one.is_good for one in kept)

  def key(i):
    one = candidates[i]
    by_answer = distinct == "answer" and one.answer is not None
    return {
      "answer": (by_answer, one.answer if by_answer else one.text),
      "text": one.text,
      "none": i,
    }[distinct]

  good = {key(i) for i, one in enumerate(candidates) if one.is_good}
  assert len(found) == len({key(i) for i in found}) == min(most, len(good))
  if order == "shortest":
    sizes = [one.num_tokens for one in kept]
    assert sizes == sorted(sizes)
    left = [
      one.num_tokens
      for i, one in enumerate(candidates)
      if one.is_good and key(i) not in {key(j) for j in found}
    ]
    assert not (left and sizes) or min(left) >= max(sizes)


def test_of_equal_lengths_the_first_one_and_at_random_any():
  rows = [demonstrations.Candidate(True, str(i), None, 2) for i in range(9)]
  assert demonstrations.selection(rows, 2, "shortest", "text", ()) == [0, 1]
  drawn = {
    tuple(demonstrations.selection(rows, 1, "random", "text", (0, seed)))
    for seed in range(99)
  }
  assert len(drawn) == 9


def _task(module, **options):
  return observations.TaskTokenizer(module.make(**options))


def _write(path, *rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def test_ids_are_read_as_they_were_drawn(tmp_path):
  text = _task(sort)
  record = {
    "prompt": np.array(text.encode("ba="), np.int32),
    "answer": "",
    "extras": {},
  }
  ids = [*text.encode("ab")[1:], text.end_ids[0]]
  observed = [False] * (len(ids) - 1) + [True]
  line = demonstrations.line(text, record, ids, observed, reward=1.0)
  assert (line["prompt"], line["completion"]) == ("ba=", "ab")
  assert line["reward"] == 1.0
  source = demonstrations.DemonstrationSource(
    _write(tmp_path / "a.jsonl", line, line), text, is_text=False
  )
  assert len(source) == 2
  found = source[1]
  for name, expected in (
    ("prompt", record["prompt"]),
    ("completion", ids),
    ("observed", observed),
  ):
    np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize("end", [0, 1, None])
def test_a_completion_ends_as_it_was_drawn(end, tmp_path):
  text = tokenizer.Tokenizer(tokenizer.BYTES, end_tokens=("<eos>", "</answer>"))
  ids = text.encode("It is 2")
  ids += [] if end is None else [text.end_ids[end]]
  record = {"prompt": "1 + 1?", "answer": "2", "extras": {}}
  line = demonstrations.line(text, record, ids, terminated=end is not None)
  path = _write(tmp_path / "a.jsonl", line)
  (kept,) = demonstrations.DemonstrationSource(path, text, is_text=True)
  found, observed = pipeline.completion_ids(
    encoder.Encoder(text), kept, text.end_ids[0]
  )
  assert found.tolist() == ids
  assert not observed.any()


def test_other_tokens_read_the_text_or_nothing(tmp_path):
  ours = tokenizer.Tokenizer(tokenizer.BYTES)
  record = {"prompt": "1 + 1?", "answer": "2", "extras": {"level": 3}}
  line = demonstrations.line(ours, record, ours.encode("It is 2"))
  path = _write(tmp_path / "a.jsonl", line)
  (same,) = demonstrations.DemonstrationSource(path, ours, is_text=True)
  assert [*same["completion"]] == [*ours.encode("It is 2")]
  assert (same["prompt"], same["answer"]) == ("1 + 1?", "2")
  assert same["extras"] == {"level": 3}
  theirs = tokenizer.Tokenizer(tokenizer.GSM8K_BPE)
  (other,) = demonstrations.DemonstrationSource(path, theirs, is_text=True)
  assert other["completion"] == "It is 2"
  with pytest.raises(ValueError, match="are those of other tokens"):
    demonstrations.DemonstrationSource(path, _task(add), is_text=False)


def test_other_tokens_are_not_taught_what_the_policy_has_not_written(tmp_path):
  theirs = tokenizer.Tokenizer(tokenizer.BYTES)
  ours = tokenizer.Tokenizer(tokenizer.GSM8K_BPE)
  record = {"prompt": "1 + 1?", "answer": "2", "extras": {}}
  ids = theirs.encode("It is")
  line = demonstrations.line(theirs, record, ids, terminated=False)
  path = _write(tmp_path / "a.jsonl", line)
  (cut,) = demonstrations.DemonstrationSource(path, ours, is_text=True)
  row = pipeline.completion_ids(encoder.Encoder(ours), cut, ours.end_ids[0])
  assert row[0].tolist() == ours.encode("It is")  # Without an end.
  assert row[1].tolist() == [False] * len(row[0])
  seen = [False] * (len(ids) - 1) + [True]
  _write(path, line, demonstrations.line(theirs, record, ids, seen))
  with pytest.raises(ValueError, match=r"a\.jsonl:2: an environment has"):
    demonstrations.DemonstrationSource(path, ours, is_text=True)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "has no completion to imitate"),
    ("{", r"a.jsonl:1: Expecting"),
    ('{"prompt": "a"}', "need an object with the texts"),
    (
      '{"prompt": "a", "completion": "b", "completion_ids": [1.5]}',
      "need a list of whole numbers",
    ),
  ],
)
def test_what_is_no_such_file_is_refused(tmp_path, text, message):
  path = tmp_path / "a.jsonl"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    demonstrations.DemonstrationSource(path, _task(sort), is_text=False)


def test_ids_that_this_policy_cannot_read_are_refused(tmp_path):
  text = _task(sort)
  record = {
    "prompt": np.array(text.encode("ba="), np.int32),
    "answer": "",
    "extras": {},
  }
  line = demonstrations.line(text, record, text.encode("ab"))
  for changes, message in (
    ({"completion_ids": []}, r"'completion_ids' = \[\]; need one or more"),
    ({"completion_ids": [text.vocab_size]}, r"need one or more ids from 0 to"),
    ({"completion_ids": [-1]}, r"found 'completion_ids' = \[-1\]"),
    ({"prompt_ids": []}, r"a.jsonl:2: found 'prompt_ids' = \[\]"),
    ({"observed": [1]}, "1 numbers in 'observed'; need [23], one for each"),
  ):
    path = _write(tmp_path / "a.jsonl", line, line | changes)
    with pytest.raises(ValueError, match=message):
      demonstrations.DemonstrationSource(path, text, is_text=False)
  with pytest.raises(FileNotFoundError, match=r"no such file; .* 'rejection'"):
    demonstrations.DemonstrationSource(tmp_path, text, is_text=False)


def test_sources_one_after_the_other_and_the_first_of_one():
  joined = demonstrations.Joined([[1, 2], [], [3]])
  assert [joined[i] for i in range(len(joined))] == [1, 2, 3]
  first = demonstrations.First([1, 2, 3], 2)
  assert [first[i] for i in range(len(first))] == [1, 2]
  with pytest.raises(ValueError, match="there are 3 records"):
    demonstrations.First([1, 2, 3], 4)
