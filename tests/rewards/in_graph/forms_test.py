"""Forms and scripts in a compiled program, beside those on the host."""

import functools
import math
import random
import sys
import unicodedata

import jax
import numpy as np
import pytest

from grpo_jax.rewards import form
from grpo_jax.rewards.in_graph import forms, text

SIZE, ROWS = 160, 256
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PARTS = (*TAGS, *TAGS, "a", " ", "\n", "\u3000", "é", "<", "5")
LETTERS = (*"aZéßяЖαΩعनक漢字あアー한글１٣5²!ʰก\u0301😀\n", *TAGS[:2])


@functools.cache
def program(name, **options):
  return jax.jit(functools.partial(getattr(forms, name), **options))


def both(name, texts, **options):
  """Values of the program, and those of the host."""
  rows = text.encoded([*texts, *[""] * (ROWS - len(texts))], SIZE)
  got = np.asarray(program(name, **options)(rows))[: len(texts)].tolist()
  size = len(texts)
  host = getattr(form, name)(
    [""] * size, texts, [0] * size, [{}] * size, **options
  )
  return got, host


@pytest.mark.parametrize("name", ["think_answer_format", "tag_count"])
def test_random_parts(name):
  rng = random.Random(0)
  good = ["<think>", "a", "</think>", " ", "<answer>", "5", "</answer>", "\n"]
  for _ in range(8):
    texts = []
    for _ in range(ROWS):
      parts = list(good)
      for _ in range(rng.randrange(4)):
        at = rng.randrange(len(parts))
        parts[at : at + rng.randrange(2)] = [rng.choice(PARTS)]
      texts.append("".join(parts))
    got, host = both(name, texts)
    assert got == host
    assert len({*host}) > 1


def test_a_cut_text_has_no_form():
  full = "<think>a</think><answer>5</answer>" + " " * SIZE
  (got,), _ = both("think_answer_format", [full])
  assert got == 0.0


@pytest.mark.slow
def test_known_shares_of_letters():
  texts = [
    *("<think>abя</think>яяя", "aя1", "12 + 3", "", "<think>ab", "ab</think>я"),
    *("я<think>a", "<think></think>a"),
  ]
  wanted = [2 / 3, 0.5, None, None, 1.0, 1.0, 1.0, None]
  got, host = both("language_consistency", texts, script="latin")
  assert host == wanted
  np.testing.assert_allclose(
    got, [math.nan if x is None else x for x in wanted], rtol=1e-6
  )


@pytest.mark.parametrize("script", ["latin", "han", "kana", "cyrillic"])
def test_random_letters(script):
  rng = random.Random(0)
  texts = [
    "".join(rng.choices(LETTERS, k=rng.randrange(16))) for _ in range(ROWS)
  ]
  got, host = both("language_consistency", texts, script=script)
  np.testing.assert_allclose(
    got, [math.nan if x is None else x for x in host], rtol=1e-6
  )
  assert 0 < np.nanmean(got) < 1


@pytest.mark.slow
def test_every_character_has_the_script_of_its_name():
  points = [x for x in range(1, sys.maxunicode + 1) if not 0xD800 <= x < 0xE000]
  joined = "".join(map(chr, points))
  rows = text.encoded(
    [joined[k : k + 2000] for k in range(0, len(joined), 2000)], 8000
  )
  found = np.asarray(jax.jit(forms.code_points)(rows.bytes))
  assert found[found > 0].tolist() == points
  letters = [x for x in points if unicodedata.category(chr(x))[0] == "L"]
  for script, blocks in forms.BLOCKS.items():
    inside = [
      x for x in letters if any(low <= x <= high for low, high in blocks)
    ]
    own = [x for x in letters if form._is_of(chr(x), script)]
    assert inside == own, script
    assert len(own) > 50


def test_what_is_no_utf_8_is_no_letter():
  broken = (
    *(b"\xc3", b"\xc3a", b"\xa9", b"\xc1\x81", b"\xe0\x81\x81", b"\xff"),
    *(b"\xf0\x80\x81\x81", b"\xf5\x80\x80\x80", b"\xe6\xbc", b"\xf4\x90\x80"),
  )
  data = np.zeros((len(broken), 8), np.uint8)
  for row, content in zip(data, broken, strict=True):
    row[: len(content)] = [*content]
  found = np.asarray(forms.code_points(data))
  wanted = [content.decode("utf-8", "ignore") for content in broken]
  assert [[chr(x) for x in row if x] for row in found] == [[*x] for x in wanted]


@pytest.mark.slow
def test_an_unknown_script_is_named():
  rows = text.encoded(["a"], 8)
  with pytest.raises(KeyError, match="no script 'klingon'; choose from"):
    forms.language_consistency(rows, "klingon")
  with pytest.raises(KeyError, match="no script 'klingon'; choose from"):
    form.language_consistency([""], ["a"], [0], [{}], script="klingon")
