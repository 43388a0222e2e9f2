"""Reads and writes files with a JSON object on each line."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any


def write(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes a row on each line, after all of them are made."""
  text = "".join(json.dumps(row) + "\n" for row in rows)
  path.write_text(text, encoding="utf-8")
