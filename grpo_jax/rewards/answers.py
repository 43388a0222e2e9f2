r"""Final answers of completions, and the numbers that they are.

This is the only reader of answers: rewards compare its result with the right
answer, and votes (maj@k) count it.

A completion may have a thought, `<think>…</think>`. The answer comes after it:

1. It is the content of the last `<answer>…</answer>`, or of the last
`\boxed{…}`
   in that content. If `<answer>` is opened, nothing outside it is an answer.
2. Without `<answer>`, it is the last `\boxed{…}`, if no thought is left open.
3. Without a box too, it is the text behind the last marker, such as `####`, up
   to the end of the line, if a marker is named and no thought is left open.

`\fbox` is a box too. A number needs no braces: `\boxed 4`. An empty tag, box or
marker does not count, so that one behind the answer does not hide it.

Every function takes time linear in the text, because a policy that is stuck in
a loop writes a tag ten thousand times.
"""

from __future__ import annotations

import dataclasses
import fractions
import re
import unicodedata

# Longer texts are usually deeply nested repetition; an answer to a question
# with one right answer is not that long.
MAX_CHARS = 1000
# Fractions and roots within one another, as a person still writes them.
_MAX_DEPTH = 4
_MAX_EXPONENT = 100  # Of ten, in scientific notation.

# A command, an escaped character, or a brace, left to right as TeX reads.
_LATEX_TOKEN = re.compile(
  r"\\(?:boxed|fbox)\s*(?:\{|([-+]?[0-9][^\s$\\{}]*))|\\.|[{}]", re.DOTALL
)
_BEHIND_BARE = ".,;:!?)]"  # Not part of a number in a box without braces.
_THINK, _END_THINK = "<think>", "</think>"
_ANSWER, _END_ANSWER = "<answer>", "</answer>"
_PARTS = (_THINK, _END_THINK, _ANSWER, _END_ANSWER, r"\boxed", r"\fbox")


def last_boxed(text: str) -> str | None:
  r"""Returns the content of the last complete `\boxed{…}`, or None.

  Of nested boxes it is the one that starts last. A box without a closing brace
  (a truncated completion) does not count, and neither does an empty box.
  """
  open_braces: list[tuple[int, bool]] = []  # (start of content, is a box)
  start, content = -1, None
  for token in _LATEX_TOKEN.finditer(text):
    if token[1]:
      start, content = token.start(1), token[1].rstrip(_BEHIND_BARE)
    elif token.group().endswith("{") and token.group() != r"\{":
      open_braces.append((token.end(), token.group() != "{"))
    elif token.group() == "}" and open_braces:
      begin, is_box = open_braces.pop()
      if is_box and begin > start:
        inside = text[begin : token.start()]
        start, content = (begin, inside) if inside.strip() else (start, content)
  return content


def final_answer(text: str, after: str = "") -> str | None:
  """Returns the final answer of a completion, by the rules above, or None.

  `after` is the marker of the third rule; empty for none.
  """
  _, end_thought, rest = text.rpartition(_END_THINK)
  if _ANSWER in rest:
    # An answer may stand in a thought that was never closed; a box is too
    # often a try.
    content, start = "", len(rest)
    while not content:
      end = rest.rfind(_END_ANSWER, 0, start)
      start = rest.rfind(_ANSWER, 0, max(end, 0))
      if start < 0:
        return None
      content = rest[start + len(_ANSWER) : end].strip()
    boxed = last_boxed(content)
    return (content if boxed is None else boxed).strip()
  if not end_thought and _THINK in rest:
    return None
  visible = rest.partition(_THINK)[0]
  answer, mark = last_boxed(visible), len(visible)
  while not answer and after and mark >= 0:
    mark = visible.rfind(after, 0, mark + len(after) - 1)
    start = mark + len(after)
    end = visible.find("\n", start)
    answer = visible[start : end if end >= 0 else None].strip()
  return answer.strip() if answer and mark >= 0 else None


def vote(text: str, after: str = "") -> str | None:
  """Returns the vote of a completion, or None if its answer cannot be read.

  The vote is the `canonical` form of its answer. A completion without any tag
  or box, as tasks have them, is an answer as a whole, without white space
  around it. The marker `after`, as in `final_answer`, counts as a tag.
  """
  answer = final_answer(text, after)
  if answer is not None:
    return canonical(answer) or None
  parts = (*_PARTS, after) if after else _PARTS
  return None if any(part in text for part in parts) else text.strip()


def canonical(answer: str) -> str:
  r"""Returns a form that equal answers share: 1/2 for 1/2, 2/4 and \frac12.

  A rational number becomes its value in lowest terms. Any other answer loses
  only white space, dollars, and the sizes of fractions and brackets.
  """
  number = quantity(answer)
  if number is not None and number.value is not None:
    return f"{number.value} {number.unit.removesuffix('$')}".strip()
  text = re.sub(r"\\([dt])frac", r"\\frac", unwrapped(answer))
  return re.sub(r"\\(left|right)\b|\\[,;:! ]|\s", "", text)


@dataclasses.dataclass(frozen=True)
class Quantity:
  r"""A number in a final answer.

  Attributes:
    value: The value of a rational number; None for a number with roots or π.
    places: Decimals of a number that was written with a decimal point, so that
      it may be rounded; 0 for any other.
    unit: The unit behind it, such as `cm` in `18\text{ cm}`; `$` for dollars;
      often empty.
    text: The number alone.
  """

  value: fractions.Fraction | None
  places: int
  unit: str
  text: str


_FONTS = "text|textrm|textbf|textit|mbox|mathrm|mathbf|boldsymbol"
_WRAPPED = re.compile(
  r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]"
  r"|\*\*(.*)\*\*|\*(.*)\*|__(.*)__|`(.*)`"
  r"|\\(?:displaystyle|textstyle|bf|rm|it)(?![A-Za-z])(.*)"
  rf"|(?:\\(?:{_FONTS}))?(?P<group>\{{.*\}})",
  re.DOTALL,
)
_FORMULA = re.compile(
  r"(?<!\\)\$([^$]*[^$\\])\$|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL
)
_UNIT = re.compile(
  r"(?:\\[ ,;]|~|\s)*(?:\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}"
  r"(\^\{?[23]\}?)?|\^\{?(\\circ)\}?|(\\degree|°))\.?$"
)
_BLANKS = r"(?:\\[ ,;]|~|\s)+"
# A unit that no command marks. One letter would be a variable's name.
_PLAIN_UNIT = re.compile(
  rf"{_BLANKS}((?:[A-Za-z]{{3,}}|[ckmn]m|[km]g|m[lLi]|ft|in|lb|oz|hr)"
  r"(?: [A-Za-z]+)*(?:/(?:[A-Za-z]{3,}|s|h|hr))?(?:\^[23])?"
  r"|m/s(?:\^2)?)\.?$"
)
# Units that need no command if the right answer has them.
KNOWN_UNIT = re.compile(r"[A-Za-z](?:[A-Za-z/ ]*[A-Za-z])?(?:\^[23])?")
# Words of a condition, which are not part of a unit.
CONDITION = re.compile(
  r"(?i:\b(?:or|and|if|when|where|for|mod|modulo|more|less|least|most|than|above"
  r"|below|to|only|except|not|am|pm)\b|[ap]\. ?m)"
)
_ASSIGNED = re.compile(r"(?:[A-Za-z]|\\[a-z]+)?\s*=([^=]*)")
_DOLLAR = re.compile(r"\\\$\$|\\?\$")
# Brackets around a whole number, except for its sign.
_ENCLOSED = re.compile(
  r"(?P<sign>[-+−]?\s*)"
  r"(?:(?:\\left)?\((?P<inner>[^()]*?)(?:\\right)?\)|\{(?P<group>[^{}]*)\})"
)
_VULGAR = re.compile("[¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")
RAISED: dict[str, str | int | None] = dict(
  zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True)
)
_MAX_WRAPPINGS = 4


def unwrapped(answer: str) -> str:
  r"""Returns an answer without enclosing $…$, **…**, \text{…} or {…}."""
  answer = answer.strip()
  for _ in range(_MAX_WRAPPINGS):
    answer = answer.removesuffix(".").rstrip()
    match = _WRAPPED.fullmatch(answer)
    content = match and next(x for x in match.groups() if x is not None)
    if match and (group := match["group"]):
      content = group[1:-1] if _is_group(group) else ""
    if content and not re.search(r"\$|\\[(\[]", content):
      answer = content.strip()
  return answer


def _is_group(text: str) -> bool:
  """Returns True if a text's first brace is closed by its last."""
  depth = 0
  for brace in re.finditer(r"[{}]", text):
    depth += 1 if brace.group() == "{" else -1
    if not depth:
      return brace.end() == len(text)
  return False


def without_scripts(answer: str) -> str:
  """Writes `^2` for ², and `^{10}` for ¹⁰."""

  def as_power(match: re.Match[str]) -> str:
    power = match.group().translate(str.maketrans(RAISED))
    return f"^{power}" if len(power) == 1 else f"^{{{power}}}"

  return re.sub(f"[{''.join(RAISED)}]+", as_power, answer)


def with_fractions(answer: str) -> str:
  r"""Writes `\frac{1}{2}` for ½."""

  def as_fraction(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKD", match[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"

  return _VULGAR.sub(as_fraction, answer)


def formulas(answer: str) -> list[str]:
  r"""Returns the formulas of a sentence, in $…$, \(…\) or \[…\]."""
  return ["".join(parts).strip() for parts in _FORMULA.findall(answer)]


def without_formulas(answer: str) -> str:
  """Returns a sentence without its formulas."""
  return _FORMULA.sub("", answer)


def quantity(answer: str, unit: str = "") -> Quantity | None:
  r"""Reads a number and evaluates it if it is rational; None for other texts.

  | accepted              |                                                    |
  |-----------------------|----------------------------------------------------|
  | whole numbers         | 42, -7, 1,234,567, 1{,}234, 1\ 234, 1 234          |
  | decimals              | 7.50, .5, 0.1\overline{6}                          |
  | fractions of these    | 1/2, {1\over 2}, \frac{1}{2}, \frac12              |
  | mixed numbers         | 3\frac{1}{2}, 3 1/2                                |
  | scientific notation   | 1.2 \times 10^{5}, 1.2e5                           |
  | percentages           | 50\%, 50 percent: they are 0.5                     |
  | roots and π           | 2\sqrt{3}, \sqrt[3]{2}, \frac{1+\sqrt{5}}{2}, 4\pi |

  A number may stand after `x =` or a dollar; before a unit, such as
  `\text{ cm}`, ` cm` and ^\circ; in brackets; and in `$…$` or in bold, alone or
  as the only formula of a sentence. ½ and the like are fractions.

  Sums, products and powers of whole numbers are not accepted: `123 \cdot 456`
  only states a question again. Neither are chains (1 = 2 = 3), lists, units
  with a condition (`3 \text{ or more}`), and functions.

  Args:
    answer: The answer.
    unit: The unit of the right answer, if it is known. It needs neither a
      command nor a blank: `5m`.
  """
  if len(answer) > MAX_CHARS:
    return None
  answer = unwrapped(with_fractions(without_scripts(answer)))
  if parts := formulas(answer):
    if len(parts) > 1:
      return None
    answer = parts[0]
  if assignment := _ASSIGNED.fullmatch(answer):
    answer = assignment[1].strip()
  dollar = _DOLLAR.match(answer)
  answer = answer[dollar.end() if dollar else 0 :].strip()
  pattern = KNOWN_UNIT.fullmatch(unit) and re.compile(
    rf"(?:{_BLANKS}|(?<=[0-9}}]))({re.escape(unit)})\.?$"
  )
  unit = ""
  if (
    tail := _UNIT.search(answer)
    or _PLAIN_UNIT.search(answer)
    or (pattern and pattern.search(answer))
  ):
    unit = "".join(x or "" for x in tail.groups())
    unit = " ".join(re.sub("[{}]", "", unit.replace("°", r"\circ")).split())
    answer = answer[: tail.start()]
  answer = answer.removesuffix(".").strip()
  if CONDITION.search(unit):
    return None
  if brackets := _ENCLOSED.fullmatch(answer):
    sign, inner = brackets["sign"], brackets["inner"] or brackets["group"] or ""
    # Blanks replace the brackets; -(1 + 2) stays.
    if not (sign.strip() and re.search("[-+−]", inner)):
      answer = f"{sign} {inner} "
  if unit in ("degree", "degrees", r"\degree"):
    unit = r"\circ"
  elif unit == "percent":
    answer, unit = answer + "%", ""
  if unit in ("dollar", "dollars") or (dollar and not unit):
    unit = "$"
  reader = _Reader(answer)
  try:
    value = reader.whole()
  except _NotANumberError:
    return None
  decimal = _DECIMAL.fullmatch(reader.text)
  return Quantity(value, len(decimal[1]) if decimal else 0, unit, reader.text)


class _NotANumberError(Exception):
  """The text being read is not a number of the grammar."""


# Separators of thousands other than a comma.
SPACED = r"(?:,\\! ?|\{,\}|\\[,;:! ]|~|[ \u00a0\u2009\u202f])"
_DIGITS = rf"(?:[1-9][0-9]{{0,2}}(?:(?:,|{SPACED})[0-9]{{3}})+|[0-9]+)"
_REPEATED = re.compile(r"([0-9]*)\\overline\{([0-9]+)\}")
_PLAIN = re.compile(rf"{_DIGITS}(?:\.{_REPEATED.pattern}|\.[0-9]+)?|\.[0-9]+")
_DECIMAL = re.compile(rf"[-+]?{_DIGITS}?\.([0-9]+)")
_PART = re.compile(r"[0-9]+")
_DIVIDED = re.compile(r"/|\\over(?![a-z])")
_SPACE = re.compile(r"(?:\s|~|\\[ ,;:!]|\\left(?![a-z])|\\right(?![a-z]))*")
_TIMES = re.compile(r"\\cdot(?![a-z])|\\times(?![a-z])|[*×·]")
_TEN_TO = re.compile(r"10\s*\^\s*(?:([0-9])(?![0-9])|\{\s*(-?[0-9]{1,3})\s*\})")
_SHORT_POWER = re.compile(r"[eE]([-+]?[0-9]{1,3})(?![0-9])")
_FRACTION = re.compile(r"\\[dtc]?frac(?![a-z])")


class _Reader:
  """A parser by recursive descent, with the grammar

      whole = sum [%]          sum = [±] term {± term}
      term = rational | [rational [·]] irrational [/ rational]
           | rational / irrational
      rational = plain [· 10^n] | plain e n | plain / plain | \\frac
               | plain \\frac | plain digits / digits
      irrational = root | π | root π | π root | ( sum ) | \\frac

  where a sum has at most one rational term, so that nothing in it can still be
  added, and a fraction holds sums, at least one of them irrational, or two
  plain numbers. A value of None is irrational.
  """

  def __init__(self, text: str):
    self.text = text.replace("−", "-")
    self._at = 0
    self._depth = 0

  def whole(self) -> fractions.Fraction | None:
    value = self._sum()
    if value is not None and self._take(re.compile(r"\\?%")):
      value /= 100
    self._skip()
    if self._at < len(self.text):
      raise _NotANumberError
    return value

  def _skip(self) -> None:
    space = _SPACE.match(self.text, self._at)
    assert space is not None  # The match may be empty.
    self._at = space.end()

  def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
    self._skip()
    match = pattern.match(self.text, self._at)
    if match:
      self._at = match.end()
    return match

  def _next_is(self, text: str) -> bool:
    self._skip()
    return self.text.startswith(text, self._at)

  def _takes(self, text: str) -> bool:
    is_next = self._next_is(text)
    if is_next:
      self._at += len(text)
    return is_next

  def _need(self, text: str) -> None:
    if not self._takes(text):
      raise _NotANumberError

  def _sum(self) -> fractions.Fraction | None:
    self._depth += 1
    if self._depth > _MAX_DEPTH:
      raise _NotANumberError
    negative = self._takes("-")
    if not negative:
      self._takes("+")
    value = self._term()
    if value is not None and negative:
      value = -value
    num_rational = int(value is not None)
    while self._takes("+") or self._takes("-"):
      value = None
      num_rational += self._term() is not None
      if num_rational > 1:
        raise _NotANumberError
    self._depth -= 1
    return value

  def _term(self) -> fractions.Fraction | None:
    plain = self._take(_PLAIN)
    if plain is None:
      if self._next_is("\\") and _FRACTION.match(self.text, self._at):
        value = self._fraction()
        # A fraction times a root: \frac{1}{2}\sqrt{3}.
        return None if self._irrational() else value
      if not self._irrational():
        raise _NotANumberError
      if self._takes("/"):
        self._number(self._take(_PLAIN))
      return None
    number = self._number(plain)
    if power := _SHORT_POWER.match(self.text, self._at):
      self._at = power.end()
      return self._scientific(number, int(power[1]))
    if self._take(_DIVIDED):
      if (below := self._take(_PLAIN)) is not None:
        return _quotient(number, self._number(below))
      if not self._irrational():
        raise _NotANumberError
      return None
    self._skip()
    if _FRACTION.match(self.text, self._at):
      part = self._fraction()
      return None if part is None else self._mixed(plain, part)
    if above := self._take(_PART):
      if not self._take(_DIVIDED):
        raise _NotANumberError
      part = _quotient(self._number(above), self._number(self._take(_PART)))
      return self._mixed(plain, part)
    if self._take(_TIMES):
      if (power := self._take(_TEN_TO)) is not None:
        return self._scientific(number, int(power[1] or power[2]))
      if not self._irrational():
        raise _NotANumberError
    elif not self._irrational():
      return number
    if self._takes("/"):
      self._number(self._take(_PLAIN))
    return None

  def _mixed(
    self, whole: re.Match[str], part: fractions.Fraction
  ) -> fractions.Fraction:
    if "." in whole.group() or not 0 < part < 1:
      raise _NotANumberError
    return self._number(whole) + part

  def _number(self, match: re.Match[str] | None) -> fractions.Fraction:
    if match is None:
      raise _NotANumberError
    text = match.group()
    if repeated := _REPEATED.search(text):  # 0.1\overline{6}
      first, digits = repeated.groups()
      text = text[: repeated.start()] + first
      nines = (10 ** len(digits) - 1) * 10 ** len(first)
      rest = fractions.Fraction(int(digits), nines)
    else:
      rest = fractions.Fraction(0)
    return fractions.Fraction(re.sub(r"[^0-9.]", "", text)) + rest

  def _scientific(
    self, number: fractions.Fraction, exponent: int
  ) -> fractions.Fraction:
    # With another mantissa the product is still to be computed: 123 · 10^2.
    if not 1 <= number < 10 or abs(exponent) > _MAX_EXPONENT:
      raise _NotANumberError
    return number * fractions.Fraction(10) ** exponent

  def _irrational(self) -> bool:
    """Reads a root, π, both, or a sum in brackets with one of them in it."""
    if self._takes("("):
      if self._sum() is not None:
        raise _NotANumberError
      self._need(")")
      return True
    has_pi = self._pi()
    is_root = bool(self._take(re.compile(r"\\sqrt(?![a-z])")))
    if is_root:
      if self._takes("["):
        if self._take(re.compile(r"[2-9]")) is None:
          raise _NotANumberError
        self._need("]")
      self._argument()
    elif self._takes("√"):
      is_root = True
      self._number(self._take(_PLAIN))
    return has_pi or self._pi() or is_root

  def _pi(self) -> bool:
    return bool(self._take(re.compile(r"\\pi(?![a-z])|π")))

  def _argument(self) -> fractions.Fraction | None:
    """Reads {sum}, or one digit."""
    if self._takes("{"):
      value = self._sum()
      self._need("}")
      return value
    return self._number(self._take(re.compile("[0-9]")))

  def _fraction(self) -> fractions.Fraction | None:
    r"""Reads \frac; two rational parts have to be plain numbers."""
    self._take(_FRACTION)
    start = self._at
    above, below = self._argument(), self._argument()
    if above is None or below is None:
      return None
    if re.search(r"[a-z*/]", self.text[start : self._at]):
      raise _NotANumberError  # A part is a fraction or a product.
    return _quotient(above, below)


def _quotient(
  above: fractions.Fraction, below: fractions.Fraction
) -> fractions.Fraction:
  if not below:
    raise _NotANumberError
  return above / below
