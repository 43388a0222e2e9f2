"""Lines of Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence


def joined(lines: Iterable[str]) -> str:
  """The text of a page, which ends with one line break."""
  return "\n".join(lines).rstrip("\n") + "\n"


def paragraph(text: str) -> str:
  """Lines of at most 80 columns, and an empty one."""
  return (
    textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False) + "\n"
  )


def table(
  head: Sequence[str],
  rows: Iterable[Iterable[str]],
  align: Sequence[str] = (),
) -> Iterator[str]:
  """The lines of a table; `align` is that of its first columns, as "---:"."""
  rule = [*align, *["---"] * (len(head) - len(align))]
  yield f"| {' | '.join(head)} |".replace("|  |", "| |")
  yield f"|{'|'.join(rule)}|"
  for row in rows:
    yield f"| {' | '.join(row)} |"
