"""The texts of RREDCoT's settings as token ids, and what is refused."""

import types

import numpy as np
import pytest

from grpo_jax import algorithms, tasks
from grpo_jax.data import observations
from grpo_jax.step import prefix_value
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.phases import forced


def _problem(pieces=None):
  text = observations.TaskTokenizer(tasks.make_task("add", scratchpad=True))
  return types.SimpleNamespace(
    tokenizer=text,
    pieces=text.token_bytes() if pieces is None else pieces,
    answers=prefix_value.Answers(len, len, vocab.PAD),
  )


def _made(pieces=None, **fields):
  config = algorithms.make_config("rredcot", **fields)
  return forced.make(config, _problem(pieces))


def test_texts_become_tokens_of_the_task():
  made = _made()
  assert made.opener == (vocab.THINK_END, vocab.ANSWER)
  assert made.closer == (vocab.ANSWER_END, vocab.EOS)
  assert np.flatnonzero(made.delimiter).tolist() == [vocab.SEMICOLON]
  assert not _made(delimiters=()).delimiter.any()


def test_words_are_whole_tokens_and_signs_end_them():
  pieces = [b" so", b"so", b"also", b"x.", b".x", b"\n\n", b"\xff"]
  assert _made(pieces).delimiter.tolist() == [1, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"opener": "So:"}, r"opener='So:' is not made of tokens.*'S'"),
    ({"closer": "<end>"}, r"closer='<end>' is not made of tokens.*'<end>'"),
    ({"delimiters": ("§",)}, r"delimiters=\('§',\) name the end of no token"),
  ],
)
def test_texts_without_tokens_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    _made(**fields)


def test_the_settings_must_say_how_answers_are_forced():
  with pytest.raises(ValueError, match="GRPOConfig does not say how answers"):
    forced.make(algorithms.make_config("grpo"), _problem())
