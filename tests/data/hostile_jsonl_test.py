"""JSON lines of any kind become records, or an error with the path and line."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_jax.data import sources, tokenizer
from grpo_jax.data.encoder import Encoder

FINE = {"prompt": "x", "answer": "1"}
VALUES = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-(10**20), 10**20)
  | st.floats()
  | st.text(st.characters(), max_size=5)
  | st.text(st.characters(categories=["Cs"]), max_size=2),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=8,
)
EXTRAS = st.dictionaries(st.sampled_from(["domain", "x"]), VALUES, max_size=2)
ROWS = st.fixed_dictionaries(
  {},
  optional={
    "prompt": st.text(max_size=5) | VALUES,
    "answer": st.text(max_size=5) | VALUES,
    "question": st.text(max_size=5) | VALUES,
    "completion": VALUES,
    "extras": EXTRAS | VALUES,
  },
)
LINES = st.binary(max_size=30) | (ROWS | VALUES).map(
  lambda value: json.dumps(value).encode()
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  return tmp_path_factory.mktemp("rows") / "rows.jsonl"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(LINES, st.sampled_from([None, "gsm8k"]))
@example(b'{"prompt": "\\ud800"}', None)
@example(b'{"prompt": "x", "extras": {"a": ["\\uDFFF"]}}', None)
@example(b'{"prompt": "\xff"}', None)
@example(b'{"prompt": "x", "extras": {"domain": 2147483648}}', None)
@example(b"[" * 100_000, None)
@example(b'{"prompt": "x", "extras": %s}' % (b'{"a":' * 900 + b"1"), None)
@example(b'{"prompt":' + b"[" * 500 + b"]" * 500 + b"}", None)
@example(b'{"prompt": %s}' % (b"1" * 5000), None)
@example(b'{"question": 5, "answer": ["#### 3"]}', "gsm8k")
@example(b'{"question": null, "answer": "#### 3"}', "gsm8k")
@example(b'{"prompt": "%s"}' % (b"x" * 20_000_000), None)
def test_a_line_is_a_record_or_an_error_with_its_place(path, line, layout):
  line = line.replace(b"\n", b" ")
  good = b'{"question": "a", "answer": "#### 1"}'
  if layout is None:
    good = json.dumps(FINE).encode()
  path.write_bytes(good + b"\n" + line)
  try:
    rows = list(sources.JsonlSource(path, layout))
  except ValueError as error:
    text = str(error)
    place = re.escape(str(path))
    assert re.match(rf"{place}(:2: |: 1 of 2 records)", text)
    assert len(text) < 1000 + len(str(path))
    return
  for row in rows:
    json.dumps(row, ensure_ascii=False, default=int).encode()
    assert isinstance(row["prompt"], str)
    assert isinstance(row["answer"], str)
    assert row["extras"].get("domain", 0) <= np.iinfo(np.int32).max


def test_a_mark_of_utf_8_is_no_text(path):
  path.write_bytes(b"\xef\xbb\xbf" + json.dumps(FINE).encode() + b"\r\n")
  assert sources.JsonlSource(path)[0]["prompt"] == "x"


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b'{"prompt": "\xff"}', r"rows\.jsonl:2: .*byte 0xff.* need text in UTF-8"),
    (b'{"prompt": "\\ud83d"}', r"rows\.jsonl:2: .*surrogate"),
    (
      b'{"prompt": "x", "extras": {"a": %s}}' % (b"[" * 70 + b"]" * 70),
      r"rows\.jsonl:2: .* at most 64 of them",
    ),
    (
      b'{"prompt": "x", "extras": {"domain": 2147483648}}',
      r"rows\.jsonl:2: found the domain 2147483648 .*31 bits",
    ),
    (
      b'{"prompt": "%s"}' % (b"x" * (2**22 + 1)),
      r"rows\.jsonl:2: found 'prompt' with 4194305 characters; need at most",
    ),
  ],
)
def test_what_is_wrong_is_said(path, line, message):
  path.write_bytes(json.dumps(FINE).encode() + b"\n" + line)
  with pytest.raises(ValueError, match=message):
    sources.JsonlSource(path)


def test_a_pair_of_surrogates_is_a_character(path):
  path.write_bytes(b'{"prompt": "\\ud83d\\ude00"}')
  assert sources.JsonlSource(path)[0]["prompt"] == "\N{GRINNING FACE}"


def test_half_a_pair_in_a_template_is_refused():
  encoder = Encoder(tokenizer.Tokenizer(), "\ud800{prompt}")
  with pytest.raises(ValueError, match=r"cannot encode the text '\\ud800x'"):
    encoder.prompt(FINE)
