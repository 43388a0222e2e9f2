"""Lines of Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable


def joined(lines: Iterable[str]) -> str:
  """The text of a page, which ends with one line break."""
  return "\n".join(lines).rstrip("\n") + "\n"


def paragraph(text: str) -> str:
  """Lines of at most 80 columns, and an empty one."""
  return (
    textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False) + "\n"
  )
