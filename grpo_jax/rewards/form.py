"""Rewards for the form of a completion, and for the steps of its reasoning.

A function of steps is named by `config.rewards.steps` and has the signature of
a reward function (`registry.py`). It returns for each completion a list of
(characters of the completion up to the end of the step, score of the step).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from grpo_jax.rewards import registry

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@registry.of_rows
def think_answer_format(completion: str) -> float:
  """1.0 if the completion is one thought followed by one answer, else 0.0.

      ^<think>(?!.*<think>).*?</think>\\s*<answer>.*?</answer>\\s*$

  with `.` matching newlines, each of the four tags exactly once, and more than
  white space in the thought and in the answer. Only white space may stand
  between the parts and after the answer; nothing may stand before `<think>`, so
  a chat template must not write it already. Linear in the length of the
  completion.

  The content of the thought does not matter: any word takes this reward.

  Source: DeepSeek-AI, "DeepSeek-R1", arXiv:2501.12948, Section 2.2.2.
  """
  # Searched by hand, not with the expression above: with two lazy groups it
  # backtracks quadratically on "</think>" * n, and a policy stuck in a loop
  # writes exactly that.
  if any(completion.count(tag) != 1 for tag in _TAGS):
    return 0.0
  thought, _, rest = completion.partition("</think>")
  rest = rest.strip()
  return float(
    thought.startswith("<think>")
    and rest.startswith("<answer>")
    and rest.endswith("</answer>")
    and bool(thought.removeprefix("<think>").strip())
    and bool(rest.removeprefix("<answer>").removesuffix("</answer>").strip())
  )


@registry.of_rows
def tag_count(completion: str) -> float:
  r"""0.25 for each of the four tags that occurs exactly once.

  The tags are `<think>`, `</think>`, `<answer>` and `</answer>`. The reward is
  a part of the way to `think_answer_format`.

  Deviation: Open-R1 counts the tags together with the newlines beside them,
  as in "<think>\n"; here the tags alone count.

  Source: github.com/huggingface/open-r1, `tag_count_reward`.
  """
  return sum(completion.count(tag) == 1 for tag in _TAGS) / len(_TAGS)


# The beginnings of the Unicode names of a script's letters, behind FULLWIDTH
# and the like.
_NAMES = {
  "arabic": ("ARABIC ",),
  "cyrillic": ("CYRILLIC ",),
  "devanagari": ("DEVANAGARI ",),
  "greek": ("GREEK ",),
  "han": ("CJK UNIFIED ", "CJK COMPATIBILITY "),
  "hangul": ("HANGUL ",),
  "kana": ("HIRAGANA ", "KATAKANA ", "KATAKANA-HIRAGANA ", "HENTAIGANA "),
  "latin": ("LATIN ",),
}


@registry.of_rows
def language_consistency(
  completion: str, *, script: str = "latin"
) -> float | None:
  """The share of the letters of the thought that belong to a script.

  The thought is the text between `<think>` and the next `</think>`. Without
  `<think>` it begins with the completion, and without `</think>` it ends with
  the completion. Digits, signs, and accents that are characters of their own
  are not letters. A script is not a language: English and French have the same
  script.

  Args:
    completion: The text.
    script: "latin", "cyrillic", "greek", "arabic", "devanagari", "han", "kana"
      (Hiragana and Katakana) or "hangul".

  Returns:
    0 to 1; None if the thought has no letters.

  Raises:
    KeyError: The script is unknown.

  Source: DeepSeek-AI, "DeepSeek-R1", arXiv:2501.12948, Section 2.3.2: the
  proportion of target language words. Deviation: letters, not words, for Han
  and kana are not divided into words.
  """
  if script not in _NAMES:
    raise KeyError(
      f"language_consistency: no script {script!r}; choose from"
      f" {sorted(_NAMES)}."
    )
  before, tag, after = completion.partition("<think>")
  thought = (after if tag else before).partition("</think>")[0]
  return share_of_letters(thought, script)


def share_of_letters(text: str, script: str) -> float | None:
  """Share of a text's letters that belong to a script; None without letters."""
  letters = [x for x in text if unicodedata.category(x).startswith("L")]
  if not letters:
    return None
  own = sum(_is_of(letter, script) for letter in letters)
  return own / len(letters)


def _is_of(letter: str, script: str) -> bool:
  name = unicodedata.name(letter, "")
  for form in ("FULLWIDTH ", "HALFWIDTH "):
    name = name.removeprefix(form)
  return name.startswith(_NAMES[script])


_NUMBER = r"-?\$?[0-9][0-9,]{0,17}(?:\.[0-9]{1,9})?%?|-?\$?\.[0-9]{1,9}%?"
_EQUATION = re.compile(
  rf"({_NUMBER})"
  rf"((?:\s*[-+*/x×÷]\s*(?:\((?:{_NUMBER})\)|(?:{_NUMBER}))){{1,8}})"
  rf"\s*=\s*({_NUMBER})"
)
# Signs that make an equation a part of a longer one: before it, and behind it.
_OPERATORS = ("+", "-", "*", "/", "×", "÷", "^")
_GOES_ON = re.compile(r"\s*[-+*/×÷^]\s*[(0-9.]")
_TERM = re.compile(rf"\s*([-+*/x×÷])\s*\(?({_NUMBER})\)?")
# Only so many characters of a line are read: a policy may write without end.
_MAX_LINE = 500
# Written decimals are rounded: 1 / 3 = 0.33.
_DIVISIONS = ("/", "÷")


@registry.of_rows
def arithmetic_steps(completion: str) -> list[tuple[int, float]]:
  """1.0 for each line whose sums are right, 0.0 for a line with a wrong sum.

  A step is a line with at least one equation `a + b = c` of written numbers.
  Left of the equals sign are two to nine numbers with +, −, × (also `x` and
  `*`) and ÷ (`/`), in the usual order of operations. A line is right if all its
  equations are. An equation with a division has to hold up to the decimals of
  its result, any other one exactly.

  A line without an equation is not a step. A part of a longer equation, as in
  `(3 + 1) * 2 = 8`, does not count. The topic of the line does not matter:
  `1 + 1 = 2` takes this reward.

  Returns:
    A list of (characters up to the end of the line, score).

  Source: process supervision of DeepSeekMath (arXiv:2402.03300, Section
  4.1.3), with arithmetic in the place of its process reward model.
  """
  steps, start = [], 0
  for line in completion.splitlines(keepends=True):
    start += len(line)
    right = [
      _holds(*equation.groups())
      for equation in _EQUATION.finditer(line[:_MAX_LINE])
      if not _is_part(equation)
    ]
    if right:
      steps.append((start, float(all(right))))
  return steps


def _is_part(equation: re.Match[str]) -> bool:
  """Returns True for a part of a longer equation, as in 2^2 + 1 = 5."""
  text, start = equation.string, equation.start()
  if _GOES_ON.match(text, equation.end()):
    return True
  if equation.group().startswith("-") and text[max(start - 1, 0) : start]:
    before = text[start - 1]
    return before.isalnum() or before in ")}"
  prefix = text[:start].strip()  # A sign alone begins an item of a list.
  return len(prefix) > 1 and prefix.endswith(_OPERATORS)


def _holds(first: str, rest: str, result: str) -> bool:
  """Returns True if an equation holds."""
  terms, sign, last = Fraction(0), 1, _value(first)
  for operator, text in _TERM.findall(rest):
    value = _value(text)
    if operator in _DIVISIONS:
      if not value:
        return False
      last /= value
    elif operator in "+-":
      terms += sign * last
      sign, last = (1 if operator == "+" else -1), value
    else:
      last *= value
  exact, stated = terms + sign * last, _value(result)
  if not any(operator in rest for operator in _DIVISIONS):
    return exact == stated
  places = len(result.rstrip("%").partition(".")[2])
  places += 2 * result.endswith("%")
  return abs(exact - stated) <= Fraction(1, 2 * 10**places)


def _value(text: str) -> Fraction:
  value = Fraction(re.sub(r"[$,%]", "", text))
  return value / 100 if text.endswith("%") else value
