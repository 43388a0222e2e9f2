"""The shared vocabulary and its parsers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from grpo_jax.tasks import vocabulary as vocab
from tests.tasks import strings


def test_ids_are_those_of_the_specification():
  assert vocab.VOCAB_SIZE == len(set(vocab.TOKENS)) == 64
  ids = vocab.encode("<pad><bos><eos><think></think><answer></answer>")
  assert ids == [0, 1, 2, 3, 4, 5, 6]
  assert vocab.encode("<tool></tool><obs></obs><sum></sum>;") == [*range(7, 14)]
  assert vocab.encode("09+-*=()[]{},:?#az") == [14, *range(23, 39), 63]
  assert [vocab.SEMICOLON, vocab.DIGIT_0, vocab.LETTER_A] == [13, 14, 38]
  assert [*range(24, 28)] == [
    vocab.PLUS,
    vocab.MINUS,
    vocab.TIMES,
    vocab.EQUALS,
  ]


def test_text_and_ids_are_the_same_thing():
  text = "<bos>12+7=<answer>19</answer><eos>"
  assert vocab.decode(vocab.encode(text)) == text
  assert vocab.decode([0, 0, 1, 0, 2, 0]) == "<bos><pad><eos>"
  with pytest.raises(ValueError, match=r"\['!', '<x>'\]"):
    vocab.encode("<x>1!")


def test_ids_of_a_larger_policy_are_readable():
  assert vocab.decode([38, 64, 0, 151_935, 0]) == "a<64><pad><151935>"
  tokens, mask = np.array([38, 64, 2, 70]), np.array([1, 1, 1, 0], bool)
  assert vocab.words(tokens, mask) == ["a", "<64>", "<eos>"]


@pytest.mark.parametrize(
  ("text", "tagged", "bare"),
  [
    ("<answer>12</answer><eos>", (1, 3), (0, 4)),
    ("ab<answer></answer><eos>", (3, 3), (0, 4)),
    ("12<eos>", None, (0, 2)),
    ("<eos>", None, (0, 0)),
    ("", None, None),
    ("1", None, None),
    ("<answer>12</answer>", None, None),
    ("<answer>12<eos>", None, (0, 3)),
    ("</answer>12<answer><eos>", None, (0, 4)),
    ("<answer>12</answer><pad><eos>", None, (0, 5)),
    ("<answer>12</answer><eos><pad>", None, None),
    ("<answer>12</answer><eos><eos>", None, None),
    ("<eos><answer>12</answer><eos>", None, None),
    ("<answer>1</answer><answer>2</answer><eos>", None, (0, 6)),
    ("<answer>1<answer>2</answer><eos>", None, (0, 5)),
    ("<answer>1</answer></answer><eos>", None, (0, 4)),
  ],
)
def test_answers_are_found_or_not(text, tagged, bare):
  tokens, mask = strings.row(text, num_slots=12)
  for tags, wanted in ((True, tagged), (False, bare)):
    found = vocab.answer_span(tokens, mask, tags)
    got = (int(found.start), int(found.end)) if found.ok else None
    assert got == wanted
    words = vocab.answer_words(vocab.words(tokens, mask), tags)
    assert words == (
      None if wanted is None else vocab.words(tokens, mask)[slice(*wanted)]
    )


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    ("<answer>12</answer><eos>", (1, 3)),
    ("<answer>1</answer><answer>2</answer><eos>", (4, 5)),
    ("<answer>1</answer>=<answer></answer><eos>", (5, 5)),
    ("<answer>1<answer>2</answer><eos>", (3, 4)),
    ("</answer></answer><answer>2</answer><eos>", (3, 4)),
    ("<answer>1</answer><answer>2<eos>", None),
    ("<answer>1</answer></answer><eos>", None),
    ("<answer>1</answer><answer>2</answer>3<eos>", None),
    ("<answer>1</answer><eos><answer>2</answer><eos>", None),
    ("<answer>1</answer><answer>2</answer>", None),
    ("</answer><eos>", None),
    ("<eos>", None),
    ("", None),
  ],
)
def test_the_last_of_several_answers_is_found_or_none(text, wanted):
  tokens, mask = strings.row(text, num_slots=12)
  found = vocab.answer_span(tokens, mask, tags=True, of_several=True)
  assert ((int(found.start), int(found.end)) if found.ok else None) == wanted
  words = vocab.words(tokens, mask)
  assert vocab.answer_words(words, tags=True, of_several=True) == (
    None if wanted is None else words[slice(*wanted)]
  )


def test_last_answers_agree_with_the_twin_on_random_strings():
  rng = np.random.default_rng(1)
  kinds = np.array([vocab.ANSWER, vocab.ANSWER_END, vocab.DIGIT_0], np.int32)
  tokens = rng.choice(kinds, size=(4_000, 8))
  size = rng.integers(3, 9, size=(4_000, 1))
  tokens = np.where(np.arange(8) == size - 1, vocab.EOS, tokens)
  tokens = np.where(np.arange(8) == size - 2, vocab.ANSWER_END, tokens)
  mask = np.arange(8) < size
  spans = jax.jit(
    jax.vmap(lambda t, m: vocab.answer_span(t, m, tags=True, of_several=True))
  )(tokens, mask)
  start, end, ok = jax.device_get(spans)
  assert 0.2 < ok.mean() < 0.9
  for i in range(len(tokens)):
    completion = vocab.words(tokens[i], mask[i])
    wanted = vocab.answer_words(completion, tags=True, of_several=True)
    got = completion[start[i] : end[i]] if ok[i] else None
    assert got == wanted, completion


def test_span_agrees_with_its_twin_on_random_strings():
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, 11, size=(10_000, 8), dtype=np.int32)
  mask = np.arange(8) < rng.integers(4, 9, size=(10_000, 1))
  spans = jax.jit(
    jax.vmap(lambda t, m: vocab.span(t, m, vocab.THINK, vocab.THINK_END))
  )(tokens, mask)
  start, end, ok = jax.device_get(spans)
  assert 0.04 < ok.mean() < 0.2
  for i in range(len(tokens)):
    completion = vocab.words(tokens[i], mask[i])
    wanted = vocab.words_between(completion, "<think>", "</think>")
    got = completion[start[i] : end[i]] if ok[i] else None
    assert got == wanted, completion


@pytest.mark.parametrize(
  ("text", "wanted"),
  [
    ("<think>ab</think><answer>1</answer><eos>", (1, 3)),
    ("<think></think><answer></answer><eos>", (1, 1)),
    ("a<think></think><answer></answer><eos>", None),
    ("<think></think>a<answer></answer><eos>", None),
    ("<think>a</think><answer></answer>a<eos>", None),
    ("<think>a</think><answer></answer>", None),
    ("<think>a<answer>1</answer></think><eos>", None),
    ("<answer>1</answer><think>a</think><eos>", None),
    ("<think>a<think></think><answer></answer><eos>", None),
    ("<think><eos></think><answer></answer><eos>", None),
    ("<answer>1</answer><eos>", None),
    ("", None),
  ],
)
def test_thoughts_are_found_where_the_grammar_is_followed(text, wanted):
  tokens, mask = strings.row(text, num_slots=12)
  found = vocab.thought_span(tokens, mask)
  got = (int(found.start), int(found.end)) if found.ok else None
  assert got == wanted
  completion = vocab.words(tokens, mask)
  thought = vocab.thought_words(completion)
  assert thought == (None if wanted is None else completion[slice(*wanted)])
  inside = np.flatnonzero(vocab.inside(found, 12)).tolist()
  assert inside == ([] if wanted is None else [*range(*wanted)])


def test_content_is_cut_and_padded():
  tokens = np.array([5, 14, 15, 16, 6, 2], np.int32)
  found = vocab.span(tokens, np.ones(6, bool), 5, 6)
  assert vocab.content(tokens, found, 2).tolist() == [14, 15]
  assert vocab.content(tokens, found, 7).tolist() == [14, 15, 16, 0, 0, 0, 0]
