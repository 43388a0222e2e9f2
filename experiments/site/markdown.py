"""Docstrings as Markdown."""

from __future__ import annotations

import re

_SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields", "Shapes")
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")


def prose(text: str) -> str:
  """A docstring as Markdown.

  Lines that are indented by four more spaces are equations and stay as they
  are. Sections such as Args become lists.
  """
  out: list[str] = []
  section = None
  for line in text.splitlines():
    name = line.rstrip(":")
    if line.endswith(":") and name in _SECTIONS:
      section = name
      out += ["", f"**{name}**", ""]
    elif section and line.strip() and not line.startswith(" "):
      section = None
      out += ["", escaped(line)]
    elif section:
      out.append(_entry(line))
    elif line.startswith("    "):
      out.append(line)
    else:
      out.append(escaped(line))
  return "\n".join(out).strip("\n")


def _entry(line: str) -> str:
  """A line of a section: a new bullet, or the rest of one."""
  entry = _ENTRY.fullmatch(line.strip())
  if entry and re.match(r"  \S", line):
    return f"- `{entry[1]}`: {escaped(entry[2])}"
  return escaped(line.strip() and "  " + line.strip())


def escaped(text: str) -> str:
  """A line of text in which nothing is taken for HTML.

  Text between backticks stays as it is: Markdown shows entities there.
  """
  return re.sub(r"(`[^`]*`)|<(?=[\w/!])", lambda m: m[1] or "&lt;", text)


def cell(text: str) -> str:
  """A text in a cell of a table."""
  return escaped(" ".join(text.split())).replace("|", "\\|")
