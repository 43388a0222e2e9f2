"""JSON by its standard: without NaN, and with finite numbers only.

Python reads NaN, Infinity and 1e999, and writes the first two again, which
other readers of JSON refuse.
"""

from __future__ import annotations

import json
import math
from typing import Any


def _refuse(name: str) -> Any:
  raise ValueError(f"{name} is no number of JSON")


def _number(text: str) -> float:
  value = float(text)
  if math.isinf(value):
    raise ValueError(f"{text:.40} is beyond the numbers of float64")
  return value


DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_number)


def loads(text: str | bytes) -> Any:
  """Parses a JSON value.

  Raises:
    ValueError: The text is not JSON, or has a number that is not finite.
    RecursionError: The value is nested too deeply.
  """
  return json.loads(text, parse_constant=_refuse, parse_float=_number)
