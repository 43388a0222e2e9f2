r"""The plain form of an answer that is not a number.

    plain("x <= √17")     # x\le\sqrt{17}
    plain(r"**\frac\pi2**")  # \frac{\pi}{2}

The same answer can be written in many ways: in bold, with sizes, spaces,
Unicode, the operators of programming languages, TeX with and without braces.
`plain` removes these differences, from the right answer and from the policy's
alike, and leaves a plain answer as it is. `split` then finds the members of a
list, a tuple, a set or an interval, and `as_words` the form in which texts are
compared.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from grpo_jax.rewards import answers

_SIGNS = (
  "√ sqrt, π pi, · cdot, ⋅ cdot, × times, ∞ infty, ± pm, ≤ le, ≥ ge, ≠ ne"
  ", ≡ equiv, ∈ in, ∪ cup, ∩ cap, ∅ emptyset, → to, ⟨ langle, ⟩ rangle"
  ", … ldots, α alpha, β beta, γ gamma, δ delta, θ theta, λ lambda, μ mu"
  ", φ phi, ω omega, σ sigma, Δ Delta"
)
_UNICODE: dict[str, str | int | None] = {
  **{
    sign: rf"\{name} " for sign, name in re.findall("(.) ([A-Za-z]+)", _SIGNS)
  },
  **{"÷": "/", "∗": "*", "−": "-", "°": r"^\circ ", "′": "'", "’": "'"},
  **{"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}"},
}
_LOWERED: dict[str, str | int | None] = dict(
  zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)
)
_SUBSCRIPTS = re.compile(f"[{''.join(_LOWERED)}]+")
_ASCII = (
  (re.compile(r"<=|=<"), r"\\le "),
  (re.compile(r">="), r"\\ge "),
  (re.compile(r"!=|<>"), r"\\ne "),
  (re.compile(r"->"), r"\\to "),
  (re.compile(r"\*\*"), "^"),
  # Thousands; a comma alone may also separate members.
  (
    re.compile(
      rf"(?<![0-9.])[1-9][0-9]{{0,2}}(?:{answers.SPACED}[0-9]{{3}})+(?![0-9])"
    ),
    lambda match: re.sub("[^0-9]", "", match.group()),
  ),
  # 3 1/2, before spaces are taken away.
  (
    re.compile(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])"),
    r"\1\\frac{\2}{\3}",
  ),
)
_GROUPED = re.compile(r"(?<![0-9.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])")
_MODULO = re.compile(r"\((\\mod[^()]*)\)")
_ROOT = re.compile(
  r"((?<![0-9.])[0-9]+|(?<![A-Za-z])[a-z]|\([^()]*\))"
  r"\^\{(?:1/([2-9])|\\frac\{1\}\{([2-9])\})\}"
)
_CHOICE = re.compile(
  r"(?:\\text\{)?(?i:option|choice|answer)\}?[ :]*\(?([A-Za-z])[).]?"
  r"|([A-Z])\)"
)
_BUILDER = re.compile(r"(\\\{[^|:{}0-9]*):")
_JOINED = re.compile(
  r"\s*,?(?:\s|\\[ ,;]|~)*"
  r"(?:\\(?:text|textrm|mathrm|mbox)\s*\{\s*(and|or)\s*\}"
  r"|\b(?<!\\)(and|or)\b|\\(lor|vee|land|wedge)(?![A-Za-z]))\s*"
)
_TOKEN = re.compile(
  r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[A-Za-z]+|\s+|.", re.DOTALL
)
_SPACES = (
  *(r"\ ", r"\,", r"\;", r"\:", r"\!", "~", "$", r"\quad", r"\qquad"),
  *(r"\left", r"\right", r"\middle", r"\big", r"\Big", r"\bigl", r"\bigr"),
  *(r"\displaystyle", r"\textstyle", r"\bf", r"\rm", r"\it", r"\limits"),
)
_TEXTS = (
  *(r"\text", r"\textrm", r"\textbf", r"\textit", r"\textnormal", r"\emph"),
  *(r"\mbox", r"\mathrm", r"\operatorname"),
)
_ARGUMENTS = {
  **{r"\frac": 2, r"\binom": 2, r"\mathbb": 1, r"\overline": 1, r"\vec": 1},
  **{r"\hat": 1, r"\bar": 1, r"\widehat": 1, r"\underline": 1, r"\mathcal": 1},
}
_FONTS = (
  *(r"\boxed", r"\fbox", r"\mathbf", r"\boldsymbol", r"\bm", r"\mathit"),
  r"\mathsf",
)
_SAME = {
  **{rf"\{name}frac": r"\frac" for name in "dtc"},
  **{rf"\{name}binom": r"\binom" for name in "dt"},
  **{r"\leq": r"\le", r"\leqslant": r"\le", r"\geq": r"\ge", r"\neq": r"\ne"},
  **{r"\geqslant": r"\ge", r"\lt": "<", r"\gt": ">", r"\times": r"\cdot"},
  **{"*": r"\cdot", r"\ast": r"\cdot", r"\lbrace": r"\{", r"\rbrace": r"\}"},
  **{r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|"},
  **{r"\varnothing": r"\emptyset", r"\rightarrow": r"\to", r"\colon": ":"},
  **{r"\dots": r"\ldots", r"\cdots": r"\ldots", r"\dotsc": r"\ldots"},
  **{r"\%": "%", r"\$": "", r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "("},
  **{r"\rparen": ")", r"\degree": r"^{\circ}", r"\bmod": r"\mod", ";": ","},
  **{r"\pmod": r"\mod", r"\varphi": r"\phi", r"\R": r"\mathbb{R}"},
}
# Names that are also written without a backslash.
_NAMES = {
  **{x: "\\" + x for x in ("sqrt", "pi", "infty", "theta", "alpha", "beta")},
  **{x: "\\" + x for x in ("sin", "cos", "tan", "cot", "sec", "csc", "ln")},
  **{x: "\\" + x for x in ("log", "exp", "arcsin", "arccos", "arctan", "gcd")},
  **{"infinity": r"\infty", "inf": r"\infty", "Infinity": r"\infty"},
  **{"mod": r"\mod", "lcm": r"\lcm", "percent": "%"},
  **{"degree": r"^{\circ}", "degrees": r"^{\circ}"},
}


def plain(answer: str) -> str:
  """Returns the plain form of an answer; a plain answer stays as it is."""
  text = answers.with_fractions(answers.without_scripts(answer))
  text = _SUBSCRIPTS.sub(_script, text).translate(str.maketrans(_UNICODE))
  text = answers.unwrapped(_sentence(answers.unwrapped(text)))
  for pattern, replacement in _ASCII:
    text = pattern.sub(replacement, text)
  if re.search(r",\s", text):  # Then other commas may separate thousands.
    text = _GROUPED.sub(lambda match: match.group().replace(",", ""), text)
  text = _Writer(_TOKEN.findall(_JOINED.sub(",", text))).all()
  text = _MODULO.sub(r"\1", text).rstrip(".")
  text = answers.unwrapped(_ROOT.sub(_as_root, text))
  while (inside := _inside(text)) and inside[0] == "(" and not inside[2]:
    text = answers.unwrapped(text[1:-1])
  text = _BUILDER.sub(r"\1|", text)
  choice = _CHOICE.fullmatch(text)
  return choice[1] or choice[2] if choice else text


def joints(answer: str) -> set[bool]:
  r"""Returns True for an `and` or `\land` in an answer, False for an `or`."""
  words = {word for groups in _JOINED.findall(answer) for word in groups} - {""}
  return {word in ("and", "land", "wedge") for word in words}


def _as_root(match: re.Match[str]) -> str:
  base, index = match[1], match[2] or match[3]
  base = base[1:-1] if base[0] == "(" else base
  return rf"\sqrt{'' if index == '2' else f'[{index}]'}{{{base}}}"


def _script(match: re.Match[str]) -> str:
  return "_{" + match.group().translate(str.maketrans(_LOWERED)) + "}"


def _sentence(text: str) -> str:
  """Returns the formula of a sentence, or a list of formulas alone."""
  formulas = answers.formulas(text)
  if not formulas:
    return text
  rest = re.sub(r"[\s,;.]|\b(?:and|or)\b", "", answers.without_formulas(text))
  return ", ".join(formulas) if len(formulas) == 1 or not rest else text


class _Writer:
  """Writes the tokens of a formula anew, by recursive descent."""

  def __init__(self, tokens: list[str]):
    self._tokens = tokens
    self._at = 0

  def all(self) -> str:
    parts = []
    while self._at < len(self._tokens):
      parts.append(self._until(None))
    return "".join(parts).strip()

  def _next(self) -> str:
    """Returns the next token that is not a space, without taking it."""
    for token in self._tokens[self._at :]:
      if not token.isspace() and token not in _SPACES:
        return token
      self._at += 1
    return ""

  def _until(self, end: str | None) -> str:
    """Writes the tokens before a closing token, and takes that token."""
    parts: list[str] = []
    over, command = None, ""
    while self._at < len(self._tokens):
      token = self._tokens[self._at]
      self._at += 1
      if token == end:
        break
      if token in (r"\over", r"\choose"):
        over = len(parts)
        command = r"\frac" if token == r"\over" else r"\binom"
      elif token.isspace() or token in _SPACES:
        parts.append(" ")
      else:
        parts.append(self._write(token))
    if over is None:
      return _joined(parts)
    above, below = _joined(parts[:over]), _joined(parts[over:])
    return f"{command}{{{above}}}{{{below}}}"

  @property
  def _before(self) -> str:
    """The token before the one that was taken last."""
    return self._tokens[self._at - 2] if self._at > 1 else ""

  def _write(self, token: str) -> str:
    """Writes one token with its arguments."""
    token = _SAME.get(token, token)
    if token.isalpha():
      token = _NAMES.get(token, token)
    if token == "{":
      is_argument = _is_command(self._before)
      inner = self._until("}")
      sign = r"[-+<>=]|\\(?:le|ge|ne|pm)\b"
      if is_argument:  # \sin{2x}
        sign = r"[^0-9]"
      return f"({inner})" if re.search(sign, inner) else inner
    if num := _ARGUMENTS.get(token, 0):
      several = "".join(f"{{{self._argument(1)}}}" for _ in range(num))
      return token + several
    if token == r"\sqrt":
      index = ""
      if self._next() == "[":
        self._at += 1
        index = f"[{self._until(']')}]"
      return rf"\sqrt{index}{{{self._argument()}}}"
    if token in ("^", "_"):
      return f"{token}{{{self._argument()}}}"
    if token in _FONTS:
      return self._argument()
    if token in (r"\begin", r"\end"):
      kind = re.sub("^[bBvV]?(?=matrix)", "p", self._argument())
      return rf"{token}{{{kind}}}"
    if token in _TEXTS:
      return self._text()
    return token

  def _argument(self, digits: int | None = None) -> str:
    """Writes {…}, (…), or one token; of a number so many digits."""
    token = self._next()
    self._at += 1
    if token == "{":
      return self._until("}")
    if token == "(" and digits is None and (end := self._closing()):
      inner, self._at = self._tokens[self._at : end], end + 1
      return _Writer(inner).all()
    size = 1 if token.isalpha() and token not in _NAMES else digits
    if token.isalnum() and size and len(token) > size:
      self._at -= 1
      self._tokens[self._at] = token[size:]
      return token[:size]
    if token == "-" and digits is None:
      return "-" + self._argument()
    return self._write(token) if token else ""

  def _closing(self) -> int:
    """Returns the place where the bracket opened last is closed, or 0."""
    depth = 1
    for at in range(self._at, len(self._tokens)):
      depth += (self._tokens[at] == "(") - (self._tokens[at] == ")")
      if not depth:
        return at
    return 0

  def _text(self) -> str:
    r"""Writes a word as \text{…}, and other content without the command."""
    if self._next() != "{":
      return ""
    depth, start = 0, self._at
    while self._at < len(self._tokens):
      token = self._tokens[self._at]
      self._at += 1
      depth += (token == "{") - (token == "}")
      if not depth:
        break
    content = "".join(self._tokens[start + 1 : self._at - 1]).strip()
    if content in _NAMES:
      return _NAMES[content]
    if not re.search("[A-Za-z]{2}", content):
      return _Writer(_TOKEN.findall(content)).all()
    return rf"\text{{{' '.join(content.split())}}}"


def _is_command(token: str) -> bool:
  return token[:1] == "\\" and token[1:].isalpha() and token not in _SPACES


def _joined(parts: list[str]) -> str:
  """Joins parts, with a space only where one is needed."""
  text = ""
  for part in parts:
    if part == " ":
      text += part if text[-1:].isalnum() else ""
      continue
    if text.endswith(" "):
      kinds = text[-2:-1].isdigit(), part[:1].isdigit()
      both = kinds == (True, True) or (
        text[-2:-1].isalpha() and part[:1].isalpha()
      )
      text = text if both else text[:-1]
    if re.search(r"\\[A-Za-z]+$", text) and part[:1].isalpha():
      text += " "
    text += part
  return text.strip()


class Elements(NamedTuple):
  """The members of an answer.

  Attributes:
    opening: ( [ { or <; "" for a list without brackets.
    closing: Its counterpart; an interval may have the other kind.
    parts: Plain answers: at least two, or one for a set.
  """

  opening: str
  closing: str
  parts: tuple[str, ...]


_BRACKETS = {
  **{"(": "(", "[": "[", r"\{": "{", r"\langle": "<", "{": ""},
  **{")": ")", "]": "]", r"\}": "}", r"\rangle": ">", "}": ""},
}
_OPENING = ("(", "[", r"\{", r"\langle", "{")
_MARK = re.compile(r"\\[A-Za-z]+|\\.|[][(){},]", re.DOTALL)


def _inside(text: str) -> tuple[str, str, list[int]] | None:
  """Returns the brackets around a whole text, and the commas between them.

  Commas in inner brackets do not count. None if no brackets enclose the text.
  """
  depth, commas = 0, []
  marks = list(_MARK.finditer(text))
  if not marks or marks[0].start() or marks[-1].end() != len(text):
    return None
  for mark in marks:
    token = mark.group()
    if token == "," and depth == 1:
      commas.append(mark.start())
    elif token in _BRACKETS:
      depth += 1 if token in _OPENING else -1
      if depth <= 0 and mark is not marks[-1]:
        return None
  first, last = marks[0].group(), marks[-1].group()
  if depth or not _BRACKETS.get(first) or not _BRACKETS.get(last):
    return None
  return first, last, commas


def split(text: str) -> Elements | None:
  """Returns the members of a plain answer; None for a single thing."""
  if inside := _inside(text):
    first, last, cuts = inside
    if not cuts and first != r"\{":
      return None
    opening, closing = _BRACKETS[first], _BRACKETS[last]
    bounds = [len(first) - 1, *cuts, len(text) - len(last)]
  else:
    depth, cuts, opening, closing = 0, [], "", ""
    for mark in _MARK.finditer(text):
      token = mark.group()
      if token in _BRACKETS:
        depth += 1 if token in _OPENING else -1
      elif token == "," and not depth:
        cuts.append(mark.start())
    if not cuts:
      signs = _signs(text)
      return Elements("", "", signs) if len(signs) > 1 else None
    bounds = [-1, *cuts, len(text)]
  parts = [text[a + 1 : b].strip() for a, b in itertools.pairwise(bounds)]
  if opening in ("", "{"):
    parts = [x for part in parts for x in _signs(part)]
  return Elements(opening, closing, tuple(parts))


def _signs(text: str) -> tuple[str, ...]:
  r"""Returns the two values of a term with one \pm, or the term itself."""
  if text.count(r"\pm") != 1:
    return (text,)
  return text.replace(r"\pm", "+"), text.replace(r"\pm", "-")


class Interval(NamedTuple):
  """The numbers between two numbers.

  Attributes:
    name: The variable's name; often empty.
    opening, closing: Brackets at the two ends.
    low, high: The two ends, plain answers.
  """

  name: str
  opening: str
  low: str
  high: str
  closing: str


_OPEN_OR_CLOSED = (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"))
_ORDER = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z]))")


def intervals(text: str) -> tuple[Interval, ...] | None:
  r"""Returns the intervals in `x<1`, `0<x\le1`, `(0,1]\cup(2,3)` and lists.

  None for anything else.
  """
  name, text = assignment(text)
  pieces = []
  for term in re.split(r"\\cup(?![a-z])", text):
    elements = split(term)
    parts = [term]
    if elements is not None and not elements.opening:
      parts = list(elements.parts)
    pieces += [_interval(part, name) for part in parts]
  return None if None in pieces else tuple(x for x in pieces if x)


def _interval(text: str, name: str) -> Interval | None:
  if ends := split(text):
    brackets = ends.opening, ends.closing
    if len(ends.parts) != 2 or brackets not in _OPEN_OR_CLOSED:
      return None
    return Interval(name, brackets[0], *ends.parts, brackets[1])
  if text == r"\mathbb{R}":
    return Interval(name, "(", r"-\infty", r"\infty", ")")
  terms = [x.strip() for x in _ORDER.split(text)]
  signs = terms[1::2]
  if signs and signs[0] in (">", r"\ge"):  # From small to large.
    terms.reverse()
    signs = [{">": "<", r"\ge": r"\le"}.get(x, ">") for x in signs[::-1]]
  if not signs or ">" in signs or len(signs) > 2:
    return None
  low, high = r"-\infty", r"\infty"
  if len(signs) == 2:
    low, name, high = terms[::2]
    signs_of = signs
  elif re.fullmatch(_NAME, terms[0]):
    name, high = terms[::2]
    signs_of = ["<", signs[0]]
  else:
    low, name = terms[::2]
    signs_of = [signs[0], "<"]
  if not re.fullmatch(_NAME, name):
    return None
  closed = [x == r"\le" for x in signs_of]
  return Interval(name, "(["[closed[0]], low, high, ")]"[closed[1]])


_NAME = r"(?:[A-Za-z]|\\[a-z]+)(?:_\{[^{}]*\})?(?:\([A-Za-z](?:,[A-Za-z])*\))?"
_NAMED = re.compile(
  rf"({_NAME}|\([A-Za-z](?:,[A-Za-z])+\))(?:=|\\in(?![a-z]))([^=]*)"
)


def assignment(text: str) -> tuple[str, str]:
  r"""Splits `x=3` and `x\in 3` into (`x`, `3`); ("", text) for other texts."""
  match = _NAMED.fullmatch(text)
  return (match[1], match[2].strip()) if match else ("", text)


_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_QUOTED = re.compile(r"""(?<![A-Za-z0-9"'`])["'`]+([^"'`]*)["'`]+""")
_UNSAID = re.compile(r"""["`]|(?<![0-9])[\s.]|[\s.](?![0-9])""")
_RUN = re.compile(r"\\(?:begin|end)\{\w*\}|\\[A-Za-z]+|[A-Za-z]+")


def as_words(text: str) -> str:
  """Returns the form for comparing texts, without case and blanks."""
  text = _TEXT.sub(lambda match: match[1].rstrip(" ,"), text)
  text = _QUOTED.sub(r"\1", text)
  return _UNSAID.sub("", text).lower()


def has_words(text: str) -> bool:
  r"""Returns True if a plain answer has words, not just letters of variables.

  A word is the content of \text, or a run of letters that is not a product of
  variables. Variables are small letters, three at most, and never an o. If a
  product is the whole answer, its variables are in alphabetical order.
  """
  if r"\text" in text or re.search("[A-Z] [A-Z]", text):
    return True
  runs = [x for x in _RUN.findall(text) if x[0] != "\\" and len(x) > 1]
  if any(len(x) > 3 or "o" in x or not x.islower() for x in runs):
    return True
  return runs == [text] and "".join(sorted({*text})) != text
