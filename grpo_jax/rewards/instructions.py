r"""Reward for following instructions that a rule can check.

A record names its instructions in two lists, as the rows of IFEval do:

    {"prompt": "Write a poem. Use no commas, and at least 100 words.",
     "instruction_id_list": ["punctuation:no_comma",
                             "length_constraints:number_words"],
     "kwargs": [{}, {"relation": "at least", "num_words": 100}]}

`RULES` has the 25 instructions of IFEval. In the rows of IF-RLVR both lists are
JSON in the answer, `[{"instruction_id": [...], "kwargs": [...]}]`.

Source: Zhou et al., "Instruction-Following Evaluation for Large Language
Models", arXiv:2311.07911; Pyatkin et al., "Generalizing Verifiable Instruction
Following", arXiv:2507.02833. Deviations from IFEval's code:

- Keywords are texts. There they are regular expressions, and "c++" is an error.
- A sentence ends with ".", "!" or "?" before white space or the end of the
  text, but not with the point of an initial or an abbreviation. There a model
  of NLTK finds the ends.
- A word in capitals may have hyphens and apostrophes. There "DON'T" is two.
- A text in capitals or small letters has to be in Latin script. There it has to
  be in English.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_jax import optional
from grpo_jax.rewards import form, registry

Rule = Callable[..., bool]

# Name of an instruction -> (completion, its arguments by name) -> is followed.
RULES: dict[str, Rule] = {}

_ABBREVIATIONS = (
  *("co", "corp", "dr", "e.g", "etc", "i.e", "inc", "jr", "ltd", "mr", "mrs"),
  *("ms", "p.s", "prof", "sr", "st", "u.s", "vs"),
)
# No part is given up again: the time is linear in the text.
_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s|$)")
_LATIN = 0.9  # Least share of the letters of a text in Latin script.


def _rule(name: str) -> Callable[[Rule], Rule]:
  def add(function: Rule) -> Rule:
    RULES[name] = function
    return function

  return add


def _compared(number: int, relation: str, bound: int) -> bool:
  if relation not in ("at least", "less than"):
    raise ValueError(
      f"the relation is {relation!r}; use 'at least' or 'less than'."
    )
  return number >= bound if relation == "at least" else number < bound


def _count(text: str, part: str) -> int:
  return text.lower().count(part.strip().lower())


def _without_empty_ends(parts: Sequence[str]) -> list[str]:
  parts = [part.strip() for part in parts]
  return parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]


@_rule("keywords:existence")
def _existence(text: str, keywords: Sequence[str]) -> bool:
  return all(_count(text, word) for word in keywords)


@_rule("keywords:frequency")
def _frequency(text: str, keyword: str, relation: str, frequency: int) -> bool:
  return _compared(_count(text, keyword), relation, frequency)


@_rule("keywords:forbidden_words")
def _forbidden(text: str, forbidden_words: Sequence[str]) -> bool:
  # Not \b, which does not stand behind "c++".
  return not any(
    re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    for word in forbidden_words
  )


@_rule("keywords:letter_frequency")
def _letters(
  text: str, letter: str, let_relation: str, let_frequency: int
) -> bool:
  return _compared(_count(text, letter), let_relation, let_frequency)


@_rule("language:response_language")
def _language(text: str, language: str) -> bool:
  detector = _detector()
  try:
    return detector.detect(text) == language
  except detector.LangDetectException:  # It has no letters.
    return True


@functools.cache
def _detector() -> Any:
  user = "the instruction 'language:response_language'"
  langdetect = optional.package("langdetect", "instructions", user)
  langdetect.DetectorFactory.seed = 0  # It draws parts of the text.
  return langdetect


@_rule("length_constraints:number_sentences")
def _sentences(text: str, relation: str, num_sentences: int) -> bool:
  number, start = 0, 0
  for end in _END.finditer(text):
    *_, last = ["", *text[start : end.start()].rsplit(None, 1)]
    last = last.lower().lstrip("\"'“‘([")
    is_short = last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha())
    is_point = is_short and end.group() == "." and text[end.end() :].strip()
    if last and not is_point:
      number, start = number + 1, end.end()
  number += bool(text[start:].strip())
  return _compared(number, relation, num_sentences)


@_rule("length_constraints:number_paragraphs")
def _paragraphs(text: str, num_paragraphs: int) -> bool:
  parts = _without_empty_ends(text.split("***"))
  return all(parts) and len(parts) == num_paragraphs


@_rule("length_constraints:number_words")
def _words(text: str, relation: str, num_words: int) -> bool:
  return _compared(len(re.findall(r"\w+", text)), relation, num_words)


@_rule("length_constraints:nth_paragraph_first_word")
def _first_word(
  text: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
  parts = text.split("\n\n")
  number = sum(bool(part.strip()) for part in parts)
  if number != num_paragraphs or not 1 <= nth_paragraph <= number:
    return False
  words = parts[nth_paragraph - 1].split()
  if not words:
    return False
  word = words[0].lstrip("'").lstrip('"')
  return re.split("[.,?!'\"]", word)[0].lower() == first_word.lower()


@_rule("detectable_content:number_placeholders")
def _placeholders(text: str, num_placeholders: int) -> bool:
  count = 0
  for line in text.split("\n"):
    end = -1
    while (start := line.find("[", end + 1)) >= 0:
      if (end := line.find("]", start)) < 0:
        break
      count += 1
  return count >= num_placeholders


@_rule("detectable_content:postscript")
def _postscript(text: str, postscript_marker: str) -> bool:
  patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
  other = re.escape(postscript_marker.lower())
  return bool(re.search(patterns.get(postscript_marker, other), text.lower()))


@_rule("detectable_format:number_bullet_lists")
def _bullets(text: str, num_bullets: int) -> bool:
  stars = re.findall(r"^[^\S\n]*+\*[^*].*$", text, re.MULTILINE)
  dashes = re.findall(r"^[^\S\n]*+-.*$", text, re.MULTILINE)
  return len(stars) + len(dashes) == num_bullets


@_rule("detectable_format:constrained_response")
def _constrained(text: str) -> bool:
  return any(f"My answer is {x}." in text for x in ("yes", "no", "maybe"))


@_rule("detectable_format:number_highlighted_sections")
def _highlights(text: str, num_highlights: int) -> bool:
  matches = re.findall(r"\*[^\n*]*\*", text)
  matches += re.findall(r"\*\*[^\n*]*\*\*", text)  # In bold they count twice.
  return sum(bool(x.strip("*").strip()) for x in matches) >= num_highlights


@_rule("detectable_format:multiple_sections")
def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
  heads = re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)
  return len(heads) >= num_sections


@_rule("detectable_format:json_format")
def _is_json(text: str) -> bool:
  body = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip())
  try:
    json.loads(body)
  except (ValueError, RecursionError):
    return False
  return True


@_rule("detectable_format:title")
def _title(text: str) -> bool:
  for line in text.split("\n"):
    start, end = line.find("<<"), line.rfind(">>")
    if 0 <= start < end - 2 and line[start:end].lstrip("<").rstrip(">").strip():
      return True
  return False


@_rule("combination:two_responses")
def _two_responses(text: str) -> bool:
  parts = _without_empty_ends(text.split("******"))
  return len(parts) == 2 and all(parts) and parts[0] != parts[1]


@_rule("combination:repeat_prompt")
def _repeats(text: str, prompt_to_repeat: str) -> bool:
  return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@_rule("startend:end_checker")
def _ends(text: str, end_phrase: str) -> bool:
  end = end_phrase.strip().lower()
  return text.strip().strip('"').lower().endswith(end)


@_rule("startend:quotation")
def _quotation(text: str) -> bool:
  text = text.strip()
  return len(text) > 1 and text[0] == text[-1] == '"'


@_rule("change_case:capital_word_frequency")
def _capital_words(
  text: str, capital_relation: str, capital_frequency: int
) -> bool:
  words = re.findall(r"\w+(?:[-'’]\w+)*", text)
  number = sum(word.isupper() for word in words)
  return _compared(number, capital_relation, capital_frequency)


def _is_latin(text: str) -> bool:
  return (form.share_of_letters(text, "latin") or 0) >= _LATIN


@_rule("change_case:english_capital")
def _capitals(text: str) -> bool:
  return text.isupper() and _is_latin(text)


@_rule("change_case:english_lowercase")
def _small_letters(text: str) -> bool:
  return text.islower() and _is_latin(text)


@_rule("punctuation:no_comma")
def _no_comma(text: str) -> bool:
  return "," not in text


def follows(text: str, name: str, kwargs: Mapping[str, Any]) -> bool:
  """Returns True if a text follows an instruction; an empty text follows none.

  Args:
    text: The completion.
    name: A name of `RULES`.
    kwargs: Arguments by name. Those that the rule does not have are ignored,
      for the rows of some datasets have all of them, with None.

  Raises:
    ValueError: There is no such rule, or an argument is missing or wrong.
  """
  if name not in RULES:
    raise ValueError(
      f"there is no instruction {name!r}; known are {', '.join(RULES)}."
    )
  _, *names = inspect.signature(RULES[name]).parameters
  arguments = {key: kwargs.get(key) for key in names}
  if missing := [key for key in names if arguments[key] in (None, "", [])]:
    raise ValueError(
      f"the instruction {name!r} needs {', '.join(missing)} in 'kwargs', and"
      f" has {sorted(key for key in kwargs if kwargs[key] is not None)}."
    )
  try:
    return bool(text.strip()) and bool(RULES[name](text, **arguments))
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
      f"the instruction {name!r} cannot be read with {arguments!r:.200}:"
      f" {error}"
    ) from error


def rules_of(extra: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
  """The instructions of a record, each with its arguments.

  Raises:
    ValueError: The record has no instructions, or lists of different lengths.
  """
  fields: Any = extra
  if "instruction_id_list" not in extra:
    try:
      fields = json.loads(extra.get("answer") or "")
      fields = fields[0] if isinstance(fields, list) else fields
    except (IndexError, TypeError, ValueError):
      fields = {}
  fields = fields if isinstance(fields, Mapping) else {}
  names = fields.get("instruction_id_list", fields.get("instruction_id"))
  kwargs = fields.get("kwargs")
  if not names or not isinstance(names, list) or not isinstance(kwargs, list):
    raise ValueError(
      f"found the extras {sorted(extra)!r:.200}; the reward"
      " 'instruction_following' needs the lists 'instruction_id_list' and"
      " 'kwargs', as in IFEval, or both as JSON in the answer, as in IF-RLVR."
    )
  if len(names) != len(kwargs):
    raise ValueError(
      f"found {len(names)} instructions and {len(kwargs)} 'kwargs'; each"
      " instruction needs an entry of 'kwargs'."
    )
  return [(name, x or {}) for name, x in zip(names, kwargs, strict=True)]


def _forms(text: str) -> list[str]:
  """The text without its first and last line, and without asterisks."""
  lines = text.split("\n")
  cut = [lines, lines[1:], lines[:-1], lines[1:-1]]
  texts = [text, *("\n".join(x).strip() for x in cut[1:])]
  return texts + [x.replace("*", "") for x in texts]


@registry.of_rows
def instruction_following(
  completion: str, extra: dict, *, exact: bool = False, loose: bool = False
) -> float:
  """Share of the instructions that a completion follows.

  Args:
    completion: What follows the last `</think>` is read.
    extra: The instructions of the prompt; see the module.
    exact: If True, the reward is 1 if all instructions are followed, else 0.
    loose: If True, an instruction also counts as followed if the completion
      follows it without its first or last line, or without its asterisks.

  Raises:
    ImportError: An instruction is about a language, and langdetect is missing.
    ValueError: The record has no instructions, or wrong ones.
  """
  *_, text = completion.split("</think>")
  texts = _forms(text) if loose else [text]
  followed = [
    any(follows(version, name, kwargs) for version in texts)
    for name, kwargs in rules_of(extra)
  ]
  share = sum(followed) / len(followed)
  return float(share == 1) if exact else share
