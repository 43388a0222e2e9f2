"""Text of a model on a terminal."""

import pytest

from grpo_jax.training.runtime import files


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("so x = 5, \\boxed{5} – é 数", "so x = 5, \\boxed{5} – é 数"),
    ("a\nb\r\tc", r"a\nb\r\tc"),
    ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
    ("\x9b31m\x00\x7f", r"\x9b31m\x00\x7f"),
    ("\u202egpj.exe\u2028\u200b", r"\u202egpj.exe\u2028\u200b"),
    ("\ud800", r"\ud800"),
    ("", ""),
  ],
)
def test_what_a_terminal_acts_upon_is_written_out(text, shown):
  assert files.escaped(text) == shown
  assert files.escaped(text).isprintable()
