"""Text of a model or a verifier, as a terminal and a log may show it."""

from __future__ import annotations


def escaped(text: str) -> str:
  r"""The text on one line, without anything that a terminal would act upon.

  Characters that are not printed are written as in a Python string: a new line
  as \n, the escape that begins a colour as \x1b, one that reverses the order of
  writing as \u202e. Backslashes stay: there are too many in formulas.
  """
  return "".join(
    c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
  )
