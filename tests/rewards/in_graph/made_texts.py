"""Completions and golds for comparisons with the host: made, then damaged."""

from __future__ import annotations

import random

from grpo_jax.rewards import answers, math_accuracy

GOLDS = (
  *("18", "0", "-7", "1234567", "0.5", "2.50", "-0.125", "1/3", "-22/7"),
  *(r"\frac{7}{2}", r"3\frac{1}{2}", "120000", r"50\%", "0.333333"),
  *(r"18\text{ cm}", r"18\text{ square  cm}^2", r"90^\circ", "33.3333333"),
  *(
    *("35 cm", "5 cents", r"\$0.50", r"60 \text{ percent}", "90 degrees"),
    *("3 1/2", "1 000"),
  ),
  *("0.0000005", "123456789012345678901234567890", r"0.1\overline{6}"),
  *("1000", "100", "10", "1", r"2.5\times10^{-3}", "16666.666667", "-0.5"),
)

# Pieces of answers and of completions.
_PIECES = (
  *("<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "}", "{"),
  *("\\", "\n", " ", "#### ", "####", r"\boxed {", "$", "$$", r"\(", r"\)"),
  *(r"\[", r"\]", ",", r"\,", r",\!", "{,}", ".", "-", "−", "+", "/", "%"),
  *(r"\%", r"\frac", r"\dfrac", r"\frac{", "x =", "=", r"\alpha=", r"\$"),
  *(r"\text{", r"\text{ cm}", "^2", "^{3}", r"^\circ", r"^{\circ}", "°"),
  *(r"\overline{", "6}", r"\times", "*", "10^", "10^{", r"\cdot ", "\t"),
  *("~", r"\ ", r"\;", r"\!", r"\left", r"\right", "\u00a0", "\u3000", "é"),
  *("0", "1", "2", "3", "5", "6", "7", "8", "000", "333333", "1/3", "0.5"),
  *("18", "12", "234", "567", "\u2003", "１", "٣", "²", "\x1c", "\x00", "π"),
  *("**", "*", "`", "__", r"\displaystyle", r"\bf", r"\over", " percent", "·"),
  *(" cm", " degrees", r"\text{ percent}", " 1/2", "\u202f", "×", r"\boxed 7"),
  *("the answer is", "x", "ab", "cm", r"\circ", r"\mathrm{m}", r"\sqrt", "("),
  *(")", r"\left(", r"\right)", "e", "E-", r"\fbox{", " cents", r"\degree"),
)


def written(value, rng: random.Random) -> str:
  """Writes a number in one of several forms."""
  whole = abs(int(value))
  below = rng.choice((1, 2, 3, 7, 100))
  grouped = f"{whole:,}"
  separator = rng.choice((",", r",\!", "{,}", r"\,", " ", r",\! ", "~", r"\ "))
  return rng.choice(
    (
      str(whole),
      f"-{whole}",
      f"−{whole}",
      f"+{whole}",
      grouped.replace(",", separator),
      grouped.replace(",", separator) + ".50",
      f"{whole}.{'0' * rng.randrange(9)}",
      f"{'0' * rng.randrange(4)}{whole}",
      f"{whole * below}/{below}",
      rf"\frac{{{whole * below}}}{{{below}}}",
      rf"\dfrac{{-{whole}}}{{{below}}}",
      rf"{{{whole * below}\over {below}}}",
      f"{whole} 1/{below}",
      f"{whole * 100} percent",
      rf"{whole}\frac{{1}}{{{below}}}",
      rf"{whole}\frac{below % 10}9",
      rf"{whole / below:.{rng.randrange(10)}f}",
      rf"{rng.randrange(1, 9)}.{whole}\times10^{{{rng.randrange(-3, 5)}}}",
      rf"1.2 \cdot 10^{rng.randrange(9)}",
      f"{rng.randrange(12)}.{whole}e{rng.randrange(-3, 5)}",
      rf"{whole}.{below}\overline{{{rng.randrange(100)}}}",
      f".{whole}",
      f"{whole * 100}\\%",
      f"{whole}%",
    )
  )


def dressed(number: str, rng: random.Random) -> str:
  """Adds text around a number."""
  for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
    number = rng.choice(
      (
        f"${number}$",
        f"$${number}$$",
        rf"\({number}\)",
        rf"\[{number}\]",
        rf"\text{{{number}}}",
        f"It is ${number}$.",
        rf"so \({number}\) and \(x\)",
        f"x = {number}",
        rf"\theta={number}",
        f"${number}",
        rf"\${number}",
        rf"{number}\text{{ cm}}",
        rf"{number}\ \mathrm{{ square cm }}^2",
        rf"{number}^\circ",
        f"**{number}**",
        rf"\bf{{{number}}}",
        rf"{{\displaystyle {number}}}",
        f"{number} cm",
        f"{number} degrees",
        f"{number}°.",
        f"{number}.",
        f"({number})",
        rf"-\left({number}\right)",
        f"-{{{number}}}",
        f"= {number}",
        f"{number} dollars",
        f" {number} ",
        f"{number}\\,",
      )
    )
  return number


def placed(answer: str, rng: random.Random) -> str:
  """Places an answer in a completion."""
  other = rng.choice(("7", "", "x", r"\frac{1}{2}", "}", "{"))
  return rng.choice(
    (
      f"<think>a</think><answer>{answer}</answer>",
      f"<think>\na {other}</think>\n<answer> {answer} </answer>\n",
      rf"so \boxed{{{answer}}}.",
      rf"so \boxed{{{other}}}, no, \boxed{{{answer}}}",
      rf"<answer>\boxed{{{answer}}} or {other}</answer>",
      rf"<answer>{answer}</answer> as <answer></answer>",
      rf"so $x=\boxed {answer}$. \boxed{{}}",
      rf"<think>\boxed{{{other}}}</think> \boxed {{{answer}}}",
      f"<answer>{other}</answer><answer>{answer}</answer>",
      f"a\n#### {answer}\nb {other}",
      f"<think>#### {other}</think>#### {answer}",
      rf"\boxed{{\boxed{{{answer}}}}}",
      rf"\fbox{{{other}}}, so \fbox{{{answer}}}",
      rf"<think>\boxed{{{answer}}}",
      f"<answer>{answer}",
    )
  )


def damaged(text: str, rng: random.Random) -> str:
  """The text after a few random edits."""
  for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
    at = rng.randrange(len(text) + 1)
    to = at + rng.choice((0, 0, 0, 1, 1, 3))
    piece = rng.choice((*_PIECES, ""))
    text = text[:at] + piece + text[to:]
  return text


def rubble(rng: random.Random, size: int) -> str:
  """Pieces in a random order."""
  return "".join(rng.choice(_PIECES) for _ in range(rng.randrange(size)))


def cases(seed: int, count: int) -> list[tuple[str, str]]:
  """Makes (completion, gold), about a third of which are right."""
  rng = random.Random(seed)
  made = []
  for _ in range(count):
    gold = rng.choice(GOLDS)
    kind = rng.randrange(8)
    if kind == 0:
      text = rubble(rng, 24)
    elif kind == 1:
      text = placed(rubble(rng, 12), rng)
    elif kind < 5:
      value = answers.quantity(gold).value
      text = placed(dressed(written(value, rng), rng), rng)
    else:
      text = placed(dressed(gold, rng), rng)
    made.append((damaged(text, rng), gold))
  return made


def host_accuracy(completion: str, gold: str, after: str) -> float:
  """The reward on the host, without math-verify: golds are rational."""
  found = answers.final_answer(completion, after)
  quantity = None if found is None else answers.quantity(found)
  if quantity is None:
    return 0.0
  return math_accuracy._of_quantities(quantity, answers.quantity(gold))
