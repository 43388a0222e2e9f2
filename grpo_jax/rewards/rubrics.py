"""What a judge is told: a rubric with places for what is judged.

    "Is this the sum?\n{prompt}\n{completion}\nAnswer yes or no."

{prompt} and {completion} are those of a row; {answer} and any other name are
fields of its record, so that each prompt may have a rubric, or a reference
answer, of its own. A value is put in once: a name in braces inside a prompt or
a completion is text like any other.
"""

from __future__ import annotations

import hashlib
import numbers
import re
from collections.abc import Mapping
from typing import Any

COMPLETION = "completion"
PROMPT = "prompt"
FENCE = "fence"
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


def check(rubric: str, where: str) -> None:
  """Raises ValueError unless a completion has its place in a rubric, once."""
  count = places(rubric).count(COMPLETION)
  if count != 1:
    raise ValueError(
      f"{where}.rubric={rubric!r:.200} has {count} places '{{completion}}';"
      " needed is one, where the judge reads what was written, and as a rule"
      " '{prompt}' before it."
    )


def places(rubric: str) -> list[str]:
  """The names of the values that a rubric asks for, in their order."""
  return _PLACE.findall(rubric)


def parts(rubric: str) -> list[tuple[bool, str]]:
  """A rubric in pieces: (whether it is the name of a value, text)."""
  pieces = _PLACE.split(rubric)
  return [(i % 2 == 1, piece) for i, piece in enumerate(pieces) if piece]


def value(name: str, prompt: str, fields: Mapping[str, Any]) -> str:
  """What stands in a rubric for a name, but for the completion.

  Args:
    name: Of the value.
    prompt: Of the row.
    fields: Of its record: its extras, and "answer".

  Raises:
    ValueError: The record has no text and no number of that name.
  """
  if name == PROMPT:
    return prompt
  found: Any = fields.get(name)
  if hasattr(found, "tolist"):
    found = found.tolist()
  if isinstance(found, str):
    return found
  if isinstance(found, numbers.Real) and not isinstance(found, bool):
    return f"{found:g}" if isinstance(found, float) else str(found)
  known = sorted(
    k for k, x in fields.items() if isinstance(x, (str, numbers.Real))
  )
  raise ValueError(
    f"config.judge.rubric: {{{name}}} is {found!r:.60} in a record, which has"
    f" the texts and numbers {known}; a rubric can also have {{prompt}} and"
    " {completion}."
  )


def filled(
  rubric: str, prompt: str, completion: str, fields: Mapping[str, Any]
) -> str:
  """A rubric with its values.

  {fence} becomes a word that nobody can write who does not know it before: a
  digest of the whole completion. Between two of them stands what is judged, and
  nothing in it can look like the second one.
  """
  digest = hashlib.blake2b(digest_size=8)
  digest.update(
    f"{len(prompt)}:{prompt}{completion}".encode("utf-8", "replace")
  )
  known = {COMPLETION: completion, FENCE: digest.hexdigest()}
  return "".join(
    (known[piece] if piece in known else value(piece, prompt, fields))
    if is_name
    else piece
    for is_name, piece in parts(rubric)
  )
