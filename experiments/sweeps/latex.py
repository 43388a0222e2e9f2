"""Tables of LaTeX, with the packages booktabs and siunitx."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SPECIAL = {
  "\\": r"\textbackslash{}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "–": "--",
  "−": "$-$",
  "λ": r"$\lambda$",
  "β": r"$\beta$",
  "ε": r"$\varepsilon$",
  "γ": r"$\gamma$",
  "₁": "$_1$",
  "₂": "$_2$",
  "≥": r"$\geq$",
  "≤": r"$\leq$",
  "×": r"$\times$",
  **{character: f"\\{character}" for character in "&%$#_{}"},
}


def escape(text: str) -> str:
  """Text as LaTeX prints it."""
  return "".join(_SPECIAL.get(character, character) for character in text)


def tabular(
  columns: str, head: Sequence[str], body: Iterable[Sequence[str]]
) -> list[str]:
  """Returns the lines of a LaTeX table, whose cells are LaTeX already.

  `columns` is their format, such as "lS[table-format=1.3]".
  """
  first, *others = (" & ".join(row) + r" \\" for row in (head, *body))
  return [
    f"\\begin{{tabular}}{{{columns}}}",
    r"\toprule",
    first,
    r"\midrule",
    *others,
    r"\bottomrule",
    r"\end{tabular}",
  ]


def table(lines: Iterable[str], caption: str, label: str) -> list[str]:
  """A floating table with its caption above, which is LaTeX already."""
  return [
    r"\begin{table}",
    r"\centering",
    r"\small",
    f"\\caption{{{caption}}}",
    f"\\label{{{label}}}",
    *lines,
    r"\end{table}",
  ]
