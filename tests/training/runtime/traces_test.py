"""Traces come back bit for bit, and tokens have the text of their bytes."""

import dataclasses
import json
import pathlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from grpo_jax.training.runtime import traces


def _row(size: int, **values: np.ndarray) -> traces.TraceRow:
  return traces.TraceRow(
    row=3,
    sample=1,
    context=0,
    text="a\u202e<script>\x00",
    tokens=("a",) * size,
    ids=np.arange(size, dtype=np.int32),
    reward=None,
    correct=None,
    terminated=False,
    components={"accuracy": None, "format": 0.1},
    error="row 3: \ud800 boom",
    calls=({"turn": 0, "in": "x", "out": "", "blocked": True},),
    values=values,
  )


def _group(*rows: traces.TraceRow) -> traces.Group:
  return traces.Group(
    7, "rl", "train", 12, -1, "1+1=", ("best", "random"), rows
  )


def _assert_equal(found: traces.Group, expected: traces.Group) -> None:
  assert [type(row.ids) for row in found.rows] == [np.ndarray] * len(found.rows)
  for ours, theirs in zip(found.rows, expected.rows, strict=True):
    for name in theirs.values:
      assert ours.values[name].dtype == theirs.values[name].dtype
      assert ours.values[name].tobytes() == theirs.values[name].tobytes()
    assert ours.values.keys() == theirs.values.keys()
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    rest = vars(theirs).keys() - {"ids", "values"}
    assert all(getattr(ours, k) == getattr(theirs, k) for k in rest)
  rest = vars(expected).keys() - {"rows"}
  assert all(getattr(found, k) == getattr(expected, k) for k in rest)


@hypothesis.given(st.data(), st.integers(0, 20))
@hypothesis.settings(max_examples=50, deadline=None)
def test_a_group_comes_back_bit_for_bit(data, size):
  def drawn(dtype, elements):
    return data.draw(arrays.arrays(dtype, size, elements=elements))

  bits = drawn(np.uint32, st.integers(0, 2**32 - 1))
  whole = drawn(np.int32, st.integers(-(2**31), 2**31 - 1))
  row = _row(
    size,
    new_logp=bits.view(np.float32),  # NaN of any kind, and -0.
    clipped=drawn(np.bool_, st.booleans()),
    version=whole,
  )
  group = _group(row, _row(0))
  content = traces.member([traces.line(group)])
  (found,) = traces.members(content, "x")
  _assert_equal(traces.decode(json.loads(found)), group)


def test_what_a_prompt_shows_comes_back_and_else_leaves_no_bytes():
  plain = _group(_row(2))
  assert {"images", "box"}.isdisjoint(json.loads(traces.line(plain)))
  image = {"size": [2, 1], "shape": [2, 1], "pixels": "AAAAAAAA"}
  shown = dataclasses.replace(plain, images=(image,), box=(0, 0, 1, 1))
  found = traces.decode(json.loads(traces.line(shown)))
  assert (found.images, found.box) == ((image,), (0, 0, 1, 1))


def test_equal_groups_are_equal_bytes_and_a_torn_end_is_left_out(tmp_path):
  group = _group(_row(5, ratio=np.ones(5, np.float32)))
  first, again = (traces.member([traces.line(group)] * 2) for _ in range(2))
  assert first == again
  path = pathlib.Path(tmp_path) / traces.FILE
  assert traces.read(tmp_path) == []
  for end in (b"", first[:-3], first[:1]):
    path.write_bytes(first + again + end)
    assert len(traces.read(tmp_path)) == 4
  path.write_bytes(first + b"no gzip" + again)
  with pytest.raises(ValueError, match="is damaged"):
    traces.read(tmp_path)
  with pytest.raises(FileNotFoundError, match="--workdir"):
    traces.read(tmp_path / "nothing")


@hypothesis.given(st.lists(st.binary(max_size=4), max_size=12))
def test_texts_of_tokens_join_to_the_text_of_all_bytes(pieces):
  texts = traces.texts_of_tokens(pieces)
  assert len(texts) == len(pieces)
  assert "".join(texts) == b"".join(pieces).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_the_text_of_the_last_of_them():
  smile = "🙂".encode()
  pieces = [b"a", smile[:1], smile[1:3], smile[3:] + b"b", b"\xff", smile[:2]]
  assert traces.texts_of_tokens(pieces) == (
    *("a", "", "", "🙂b", "\ufffd", "\ufffd"),
  )
