"""The page of traces: one file, which loads and runs nothing else.

Texts of a policy are data in it, never markup. They are compressed, and the
scripts put them into the page as text only. The browser enforces this: the
Content-Security-Policy allows this script and this style by their hashes, but
no address and no markup made of strings.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pathlib
from collections.abc import Sequence

from experiments.traces import pack, source

_FOLDER = pathlib.Path(__file__).parent
# In the order in which they are joined to one.
SCRIPTS = (
  "data.js",
  "text.js",
  "query.js",
  "curves.js",
  "list.js",
  "tokens.js",
  "pictures.js",
  "pane.js",
  "main.js",
)


def write(runs: Sequence[source.Run], max_bytes: int) -> str:
  """The page as HTML.

  Args:
    runs: One run, or two to compare.
    max_bytes: Largest size of the page, bytes.

  Raises:
    ValueError: Not even the metrics fit.
  """
  style = _read("page.css")
  script = '"use strict";\n' + "\n".join(_read(name) for name in SCRIPTS)
  policy = "; ".join(
    [
      "default-src 'none'",
      f"script-src '{_hash(script)}'",
      f"style-src '{_hash(style)}'",
      "base-uri 'none'",
      "form-action 'none'",
      "require-trusted-types-for 'script'",
      "trusted-types 'none'",
    ]
  )
  parts = {
    "policy": html.escape(policy),
    "title": html.escape(" and ".join(_visible(run.name) for run in runs)),
    "style": style,
    "script": script,
  }
  room = max_bytes - len(_filled(parts | {"data": ""}).encode())
  return _filled(parts | {"data": embedded(pack.pack(runs, room))})


def embedded(value: object) -> str:
  """JSON as it may stand in a script tag: nothing in it can end the tag."""
  text = json.dumps(value, allow_nan=False)
  for character in "<\u2028\u2029":
    text = text.replace(character, f"\\u{ord(character):04x}")
  return text


def _read(name: str) -> str:
  return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
  digest = hashlib.sha256(text.encode()).digest()
  return f"sha256-{base64.b64encode(digest).decode()}"


def _visible(text: str) -> str:
  return "".join(c for c in text if c.isprintable())


def _filled(parts: dict[str, str]) -> str:
  """Fills the places of `page.html` once, and not in the inserted text."""
  pieces = _read("page.html").split("{{")
  filled = [pieces[0]]
  for piece in pieces[1:]:
    name, _, rest = piece.partition("}}")
    filled += [parts[name], rest]
  return "".join(filled)
