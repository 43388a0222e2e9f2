"""What a judge is told: a rubric with places for what is judged.

    "Is this the sum?\n{prompt}\n{completion}\nAnswer yes or no."

{prompt} and {completion} are those of a row; {answer} and any other name are
fields of its record, so that each prompt may have a rubric, or a reference
answer, of its own. A value is put in once: a name in braces inside a prompt or
a completion is text like any other.

What a judge has decided: one of a few words in what it wrote.

    read("It adds up. Verdict: yes", {"yes": 1.0, "no": 0.0}, "Verdict:")  # 1.0

With a marker the first word behind the last marker counts, and without one the
last word of all. `rewards/in_graph/verdicts.py` says the same of rows of bytes.
"""

from __future__ import annotations

import hashlib
import numbers
import re
from collections.abc import Mapping
from typing import Any

from grpo_jax import ranges

COMPLETION = "completion"
PROMPT = "prompt"
FENCE = "fence"
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


def check_rubric(rubric: str, where: str) -> None:
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


# Characters of words; of those beyond ASCII all are.
_OF_WORDS = "0-9A-Za-z_\x80-\U0010ffff"
# What stands between parts of a number: 7.5, 1,000, 8/10 and -3 are not 5.
BEFORE_DIGITS = "-/.,"
IN_NUMBERS = ".,"


def check_verdicts(
  verdicts: Mapping[str, float], marker: str, where: str
) -> None:
  """Raises ValueError unless these are words with numbers that can be told.

  Args:
    verdicts: Word -> what it is worth.
    marker: Behind which a word stands; or empty.
    where: Name of the setting, for messages.
  """
  words = [lowered(word) for word in verdicts]
  bad = [w for w in verdicts if w != w.strip() or not w or not w.isascii()]
  if bad or not words or len(set(words)) < len(words):
    raise ValueError(
      f"{where}.verdicts={dict(verdicts)}: needed are words in ASCII without"
      " white space around them that differ in more than their case, such as"
      " {'yes': 1.0, 'no': 0.0}."
    )
  for word, value in verdicts.items():
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= ranges.MAX_REWARD:
      raise ValueError(
        f"{where}.verdicts: {word!r} is worth {value!r}; needed is a number up"
        " to 1e15 in size."
      )
  if not marker.isascii() or marker != marker.strip():
    raise ValueError(
      f"{where}.marker={marker!r}: needed is text in ASCII without white space"
      " around it, such as 'Verdict:', or none."
    )


def lowered(text: str) -> str:
  """The text with a to z for A to Z; no other letter changes."""
  return re.sub("[A-Z]+", lambda found: found[0].lower(), text)


def read(
  text: str, verdicts: Mapping[str, float], marker: str = ""
) -> float | None:
  """What a judge has decided.

  A word is none where it is part of another one, and a number is none where it
  is part of another one, as 5 in 7.5, in 15 or in -5, and 10 in 8/10. Case does
  not count.

  Args:
    text: All that it wrote.
    verdicts: Word -> what it is worth.
    marker: Behind the last one of these the first word counts; empty: the last
      word of the text counts.

  Returns:
    What the word is worth; of words that begin, or end, at the same place, the
    longest one. None where there is none.
  """
  text, marker = lowered(text), lowered(marker)
  start = 0
  if marker:
    start = text.rfind(marker)
    if start < 0:
      return None
    start += len(marker)
  found = []
  for word, value in verdicts.items():
    for match in re.compile(_pattern(lowered(word))).finditer(text, start):
      begin, end = match.start(), match.start() + len(word)
      found.append(((-begin if marker else end, len(word)), value))
  return max(found)[1] if found else None


def _pattern(word: str) -> str:
  """Where a word begins: a look ahead, so that places may overlap."""
  before, after = f"(?<![{_OF_WORDS}])", f"(?![{_OF_WORDS}])"
  if word[0].isdigit():
    before += f"(?<![{re.escape(BEFORE_DIGITS)}])"
  if word[-1].isdigit():
    after += f"(?![{re.escape(IN_NUMBERS)}][0-9])"
  return f"{before}(?={re.escape(word)}{after})"
