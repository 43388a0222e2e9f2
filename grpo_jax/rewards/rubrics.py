r"""Prompts for a judge, and the verdicts in its replies.

A rubric is a text with places for the values of a row:

    "Is this the sum?\n{prompt}\n{completion}\nAnswer yes or no."

{prompt} and {completion} are those of a row; {answer} and any other name are
fields of its record. So each prompt may have a rubric, or a reference answer,
of its own. A value is put in once: a name in braces inside a prompt or a
completion is text like any other.

The verdict is one of a few words in the judge's reply:

    read("It adds up. Verdict: yes", {"yes": 1.0, "no": 0.0}, "Verdict:")  # 1.0

With a marker the first word behind the last marker counts, and without one the
last word of all. `rewards/in_graph/verdicts.py` does the same with rows of
bytes.
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
  """Raises ValueError unless a rubric has exactly one place {completion}."""
  count = places(rubric).count(COMPLETION)
  if count != 1:
    raise ValueError(
      f"{where}.rubric={rubric!r:.200} has {count} places '{{completion}}';"
      " needs one, where the judge reads what was written, and as a rule"
      " '{prompt}' before it."
    )


def places(rubric: str) -> list[str]:
  """Returns the names of the values that a rubric asks for, in their order."""
  return _PLACE.findall(rubric)


def parts(rubric: str) -> list[tuple[bool, str]]:
  """Splits a rubric into pieces: (is the name of a value, text)."""
  pieces = _PLACE.split(rubric)
  return [(i % 2 == 1, piece) for i, piece in enumerate(pieces) if piece]


def value(name: str, prompt: str, fields: Mapping[str, Any]) -> str:
  """Returns the value for a name in a rubric other than the completion.

  Fields of the row's record are its extras, and "answer".

  Raises:
    ValueError: The record has neither a text nor a number of that name.
  """
  if name == PROMPT:
    return prompt
  field: Any = fields.get(name)
  text = str(field)  # NumPy's float32 has fewer digits than the same float.
  if hasattr(field, "tolist"):
    field = field.tolist()
  if isinstance(field, str):
    return field
  if isinstance(field, numbers.Real) and not isinstance(field, bool):
    return text.removesuffix(".0")
  names = sorted(
    k for k, x in fields.items() if isinstance(x, (str, numbers.Real))
  )
  raise ValueError(
    f"config.judge.rubric: {{{name}}} is {field!r:.60} in a record, which has"
    f" the texts and numbers {names}; a rubric can also have {{prompt}} and"
    " {completion}."
  )


def filled(
  rubric: str, prompt: str, completion: str, fields: Mapping[str, Any]
) -> str:
  """Returns a rubric with its values filled in.

  {fence} becomes a word that a policy cannot know before it writes: a digest of
  the whole completion. The completion stands between two of them, and nothing
  in it can look like the second one.
  """
  digest = hashlib.blake2b(digest_size=8)
  digest.update(
    f"{len(prompt)}:{prompt}{completion}".encode("utf-8", "replace")
  )
  values = {COMPLETION: completion, FENCE: digest.hexdigest()}
  return "".join(
    (values[piece] if piece in values else value(piece, prompt, fields))
    if is_name
    else piece
    for is_name, piece in parts(rubric)
  )


# Characters of words; all characters beyond ASCII are among them.
_OF_WORDS = "0-9A-Za-z_\x80-\U0010ffff"
# Characters that make digits a part of a longer number, as in 7.5 or 8/10.
BEFORE_DIGITS = "-/.,"
IN_NUMBERS = ".,"


def check_verdicts(
  verdicts: Mapping[str, float], marker: str, where: str
) -> None:
  """Raises ValueError unless the verdicts are distinct words with numbers.

  Messages begin with `where`, the name of the setting.
  """
  words = [lowered(word) for word in verdicts]
  bad = [w for w in verdicts if w != w.strip() or not w or not w.isascii()]
  if bad or not words or len(set(words)) < len(words):
    raise ValueError(
      f"{where}.verdicts={dict(verdicts)}: needs words in ASCII without"
      " white space around them that differ in more than their case, such as"
      " {'yes': 1.0, 'no': 0.0}."
    )
  for word, value in verdicts.items():
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= ranges.MAX_REWARD:
      raise ValueError(
        f"{where}.verdicts: {word!r} is worth {value!r}; needs a number up"
        " to 1e15 in size."
      )
  if not marker.isascii() or marker != marker.strip():
    raise ValueError(
      f"{where}.marker={marker!r}: needs text in ASCII without white space"
      " around it, such as 'Verdict:', or none."
    )


def lowered(text: str) -> str:
  """Returns the text with a to z for A to Z; no other letter changes."""
  return re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def read(
  text: str, verdicts: Mapping[str, float], marker: str = ""
) -> float | None:
  """Returns the reward of the verdict in a judge's reply.

  A word does not count if it is part of another word. A number does not count
  if it is part of another number, such as 5 in 7.5, in 15 or in -5, and 10 in
  8/10. Case does not matter.

  Args:
    text: The whole reply.
    verdicts: Word -> its reward.
    marker: The first word behind the last marker counts; if it is empty, the
      last word of the text counts.

  Returns:
    The reward of the word; of words that begin, or end, at the same place, the
    longest one counts. None without a word.
  """
  text, marker = lowered(text), lowered(marker)
  start = 0
  if marker:
    start = text.rfind(marker)
    if start < 0:
      return None
    start += len(marker)
  marks = []
  for word, value in verdicts.items():
    for match in re.compile(_pattern(lowered(word))).finditer(text, start):
      begin, end = match.start(), match.start() + len(word)
      marks.append(((-begin if marker else end, len(word)), value))
  return max(marks)[1] if marks else None


def _pattern(word: str) -> str:
  """Returns a pattern for a word's start; by lookahead, places may overlap."""
  before, after = f"(?<![{_OF_WORDS}])", f"(?![{_OF_WORDS}])"
  if word[0].isdigit():
    before += f"(?<![{re.escape(BEFORE_DIGITS)}])"
  if word[-1].isdigit():
    after += f"(?![{re.escape(IN_NUMBERS)}][0-9])"
  return f"{before}(?={re.escape(word)}{after})"
