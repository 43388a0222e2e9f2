"""Tokens become the bytes that the decoder writes."""

import random

import jax
import numpy as np
import pytest

from grpo_jax.rewards.in_graph import text

TOKENS = [
  b"",
  b"a",
  b" bc",
  b"\xc3\xa9",
  b"\xf0\x9f",
  b"\x98\x80",
  b" ",
  b"####",
]

WRITTEN = jax.jit(text.written, static_argnums=3)


def loop(tokens, mask, strips, size):
  """The same with loops: (bytes, length, cut, ends)."""
  data, ends = b"", []
  for token, exists in zip(tokens, mask, strict=True):
    if exists and 0 <= token < len(TOKENS):
      data += TOKENS[token]
    ends.append(len(data))
  spaces = min(len(data) - len(data.lstrip(b" ")), strips)
  data = data[spaces:]
  ends = [max(end - spaces, 0) for end in ends]
  return data[:size], min(len(data), size), len(data) > size, ends


@pytest.mark.slow
@pytest.mark.parametrize("strips", [0, 1])
def test_random_tokens(strips):
  rng = np.random.default_rng(0)
  tokens = rng.integers(-1, len(TOKENS) + 2, (64, 12)).astype(np.int32)
  mask = rng.random((64, 12)) < 0.8
  table = text.table(TOKENS, strips)
  got = WRITTEN(table, tokens, mask, 20)
  ends = np.asarray(jax.jit(text.ends)(table, tokens, mask))
  assert got.bytes.shape == (64, 20)
  for b in range(64):
    data, length, cut, wanted = loop(tokens[b], mask[b], strips, 20)
    assert bytes(got.bytes[b]) == data.ljust(20, b"\0")
    assert int(got.length[b]) == length
    assert bool(got.cut[b]) == cut
    assert ends[b].tolist() == wanted
  assert 0 < int(got.cut.sum()) < 64


@pytest.mark.slow
def test_no_token_writes_nothing():
  table = text.table([b"", b"a"])
  none = np.zeros((2, 3), bool)
  got = WRITTEN(table, np.ones((2, 3), np.int32), none, 4)
  assert not np.asarray(got.bytes).any()
  assert got.length.tolist() == [0, 0]
  assert not got.cut.any()


def test_the_table_is_as_large_as_its_tokens():
  """One long token does not make room for all to be as long."""
  table = text.table([b"ab", b"", b"c" * 128, b"d"])
  assert table.bytes.shape == (132,)
  tokens = np.array([[3, 2, 1, 0]])
  got = WRITTEN(table, tokens, np.ones_like(tokens, bool), 140)
  assert bytes(got.bytes[0, : int(got.length[0])]) == b"d" + b"c" * 128 + b"ab"


def test_encoded_texts_are_the_same_rows():
  got = text.encoded(["aé", "", "abcdef"], 4)
  assert [bytes(x) for x in got.bytes] == [b"a\xc3\xa9\0", b"\0" * 4, b"abcd"]
  assert got.length.tolist() == [3, 0, 4]
  assert got.cut.tolist() == [False, False, True]


def test_unusable_arguments_are_refused():
  with pytest.raises(ValueError, match="received no tokens"):
    text.table([])
  with pytest.raises(ValueError, match="strips is 9; needs 0 to 8"):
    text.table(TOKENS, 9)


def test_texts_longer_than_a_batch_of_tokens():
  """Linear memory: a row of 8192 tokens is 57 344 bytes of room."""
  rng = random.Random(0)
  tokens = np.array([[rng.randrange(len(TOKENS)) for _ in range(8192)]])
  mask = np.ones_like(tokens, bool)
  got = WRITTEN(text.table(TOKENS), tokens, mask, 57344)
  data = b"".join(TOKENS[x] for x in tokens[0])
  assert bytes(got.bytes[0, : int(got.length[0])]) == data
