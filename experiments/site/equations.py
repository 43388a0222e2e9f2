"""Equations of notebooks as text: the site loads no program that draws them."""

from __future__ import annotations

import re

_DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"\$([^$\n]+)\$")
# In this order: what is between braces first.
_RULES = (
  (r"\\(?:text|operatorname|mathbb|mathrel)\{([^{}]*)\}", r"\1"),
  (r"\^\{([^{}]*)\}", r"^(\1)"),
  (r"_\{([^{}]*)\}", r"[\1]"),
  (r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)"),
  (r"\\sqrt\{([^{}]*)\}", r"√\1"),
  (r"\\bar (\w)", "\\1\u0304"),
  (r"\\big\b", ""),
  (r"\\qquad\b|\\[,; ]", " "),
)
_SIGNS = {
  "Delta": "Δ",
  "beta": "β",
  "dots": "…",
  "ell": "ℓ",
  "in": "∈",
  "log": "log",
  "min": "min",
  "partial": "∂",
  "pi": "π",
  "pm": "±",
  "sum": "Σ",
  "theta": "θ",
}


def as_text(markdown: str) -> str:
  """Markdown with each equation as code.

  Args:
    markdown: Text of a notebook, with equations between $ or $$.

  Raises:
    ValueError: An equation has a command that is not known here.
  """
  markdown = _DISPLAYED.sub(lambda m: f"\n\n    {_plain(m[1])}\n\n", markdown)
  return _INLINE.sub(lambda m: f"`{_plain(m[1])}`", markdown)


def _plain(equation: str) -> str:
  for pattern, replacement in _RULES:
    equation = re.sub(pattern, replacement, equation)
  equation = re.sub(r"\\([A-Za-z]+)", _sign, equation)
  return " ".join(equation.split()).replace("-", "−")


def _sign(match: re.Match[str]) -> str:
  if match[1] not in _SIGNS:
    raise ValueError(
      f"equations: \\{match[1]} is not known; add it to `_SIGNS` of"
      " experiments/site/equations.py, or write the equation without it."
    )
  return _SIGNS[match[1]]
