"""Verdicts of judges, on the host and in a compiled program."""

import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards import rubrics
from grpo_jax.rewards.in_graph import text
from grpo_jax.rewards.in_graph import verdicts as on_arrays

YES_NO = {"yes": 1.0, "no": 0.0}
MARKS = {str(n): float(n) for n in range(11)}
WORDS = {"good": 1.0, "very good": 2.0, "Bad": -1.0, "3": 3.0}


@pytest.mark.parametrize(
  ("said", "words", "marker", "worth"),
  [
    ("yes", YES_NO, "", 1.0),
    ("No.", YES_NO, "", 0.0),
    ("yes and no", YES_NO, "", 0.0),
    ("not nonsense", YES_NO, "", None),
    ("no_yes yes2 éyes", YES_NO, "", None),
    ("no. Verdict: yes, not no", YES_NO, "Verdict:", 1.0),
    ("verdict: no VERDICT: YES", YES_NO, "Verdict:", 1.0),
    ("I would say yes", YES_NO, "Verdict:", None),
    ("Verdict:", YES_NO, "Verdict:", None),
    ("8/10", MARKS, "", 8.0),
    ("10/10", MARKS, "", 10.0),
    ("7.5", MARKS, "", None),
    ("7. It is", MARKS, "", 7.0),
    ("-3", MARKS, "", None),
    ("15 or 1,000", MARKS, "", None),
    ("score: 10", MARKS, "score:", 10.0),
    ("very good", WORDS, "", 2.0),
    ("so: very good", WORDS, "so:", 2.0),
    ("very, good", WORDS, "", 1.0),
    ("BAD", WORDS, "", -1.0),
    ("", YES_NO, "", None),
  ],
)
def test_known_texts(said, words, marker, worth):
  assert rubrics.read(said, words, marker) == worth
  got = float(program(tuple(words.items()), marker)(text.encoded([said], 64)))
  assert got == worth or (worth is None and math.isnan(got))


@functools.cache
def program(words, marker):
  function = functools.partial(
    on_arrays.read, verdicts=dict(words), marker=marker
  )
  return jax.jit(lambda rows: function(rows).squeeze())


PIECES = st.sampled_from(
  [*"0123 .,-/:\né_x", "yes", "no", "NO", "10", "Verdict:", "very ", "good"]
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=32))
def test_a_program_reads_what_the_host_reads(texts):
  rows = text.encoded([*texts, *[""] * (32 - len(texts))], 64)
  for words, marker in ((YES_NO | MARKS, ""), (YES_NO | WORDS, "verdict:")):
    got = np.asarray(program(tuple(words.items()), marker)(rows))
    wanted = [rubrics.read(row, words, marker) for row in texts]
    nan = [math.nan if worth is None else worth for worth in wanted]
    np.testing.assert_array_equal(got[: len(texts)], nan)


def test_of_a_text_that_is_cut_the_last_word_is_not_known():
  rows = text.encoded(["yes" + " " * 64, "so yes" + " " * 64], 64)
  last = program(tuple(YES_NO.items()), "")(rows)
  behind = program(tuple(YES_NO.items()), "so")(rows)
  assert np.isnan(last).all()
  np.testing.assert_array_equal(behind, [np.nan, 1.0])


@pytest.mark.parametrize(
  ("words", "marker", "said"),
  [
    ({}, "", "needs words"),
    ({"yes": 1.0, "YES": 0.0}, "", "differ in more than their case"),
    ({" yes": 1.0}, "", "without white space"),
    ({"já": 1.0}, "", "ASCII"),
    ({"yes": math.nan}, "", "a number up to 1e15 in size"),
    ({"yes": "1"}, "", "a number up to 1e15 in size"),
    (YES_NO, " so", "white space around"),
  ],
)
def test_words_that_cannot_be_told_are_refused(words, marker, said):
  with pytest.raises(ValueError, match=said):
    rubrics.check_verdicts(words, marker, "config.judge")
