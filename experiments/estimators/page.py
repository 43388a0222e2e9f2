"""The page about estimators: `page.md` and `findings.md` with numbers."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.estimators import enumeration, measurements
from experiments.estimators.measurements import (
  EXACT,
  GROUP_SIZES,
  MAIN_SIZE,
  NUM_SLOTS,
  NUM_SYMBOLS,
  Agreement,
  Row,
)
from experiments.science import pages

_HERE = pathlib.Path(__file__).parent


def _number(value: float, digits: int) -> str:
  """Formats a number with fixed digits; "–" for NaN, and no negative zero."""
  if np.isnan(value):
    return "–"
  return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
  rule = ["---", *["---:"] * (len(head) - 1)]
  return (f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def markdown_row(row: Row, reference: float) -> list[str]:
  """The cells of an estimator; `reference` is the variance of REINFORCE."""
  main = row.main
  comparable = row.target == "J" and row.group_size == MAIN_SIZE

  def cosine(size):
    agreement = row.graded.get(size)
    return _number(agreement.cosine if agreement else float("nan"), 4)

  size = "" if row.group_size == MAIN_SIZE else f" (G = {row.group_size})"
  return [
    f"`{row.name}`{size}",
    row.target,
    row.verdict,
    _number(main.cosine, 4),
    _number(main.bias, 3),
    _number(main.scale, 3),
    _number(row.variance, 2),
    _number(row.variance / reference if comparable else float("nan"), 2),
    *(cosine(size) for size in GROUP_SIZES if size != MAIN_SIZE),
    _number(row.verifier[row.group_size].cosine, 4),
    _number(row.exponent, 1),
    _number(row.length, 2),
  ]


def _list(rows: Sequence[Row]) -> str:
  quoted = [f"`{row.name}`" for row in rows]
  if len(quoted) < 2:
    return "".join(quoted) or "none"
  return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _of_all(
  rows: Sequence[Row], parts: Sequence[tuple[str, list[Agreement]]]
) -> dict[str, Any]:
  """Values of the answer and the findings: rows by name, and over all rows."""
  by = {row.name: row for row in rows}
  on_j = [row for row in rows if row.target == "J"]
  exact = [row for row in on_j if row.verdict != "no"]
  angles = [row.angle for row in on_j if row.verdict == "no"]
  scaled = [row for row in rows if row.verdict == "× c"]
  least, most = (f(exact, key=lambda x: x.variance) for f in (min, max))
  linear = [x for x in on_j if abs(x.exponent - 1) < 0.05]
  hard, easy = by["tic_grpo"].difficulty
  p, q = (
    float(enumeration.probabilities(x.logits) @ x.rewards)
    for x in measurements.problems("verifier")
  )
  of_parts = dict(parts)
  reference = by["reinforce"].variance
  return {
    **by,
    "unbiased": _list([row for row in rows if row.verdict == "yes"]),
    "scaled": _list(scaled),
    "factors": "".join(
      f" `{row.name}` points exactly along ∇{row.target} with c ="
      f" {row.main.scale:.4f}; (G − 1)/(G T) ="
      f" {(MAIN_SIZE - 1) / MAIN_SIZE / NUM_SLOTS:.4f}. The reasons are that"
      " the mean of the group contains the completion's own reward, and that"
      " the loss is divided by the budget of T tokens. A learning rate absorbs"
      " such a factor."
      for row in scaled
    ),
    "others": f"{len(angles)} estimators of ∇J are {min(angles):.0f} to"
    f" {max(angles):.0f} degrees",
    "same": "; ".join(
      _list(x) for x in measurements.families(rows) if len(x) > 1
    ),
    "harder": hard / easy,
    "limit": np.sqrt(q * (1 - q) / p / (1 - p)),
    "best": of_parts["lead of the best (pass@G)"],
    "plain": of_parts["R"],
    "least": least,
    "most": most,
    "quiet": least.variance / reference,
    "loud": most.variance / reference,
    "critic": by["ppo"].variance / reference,
    "num_linear": len(linear),
    "linear": _list(linear),
    "num_invariant": sum(abs(x.exponent) < 0.05 for x in on_j),
    "noisier": by["opd_token"].variance / by["opd_full"].variance,
  }


def _findings(values: dict[str, Any]) -> Iterator[str]:
  """Numbered items, one for each paragraph of `findings.md`."""
  text = (_HERE / "findings.md").read_text("utf-8")
  for i, finding in enumerate(text.strip().split("\n\n"), 1):
    yield textwrap.fill(
      f"{i}. {' '.join(finding.split()).format_map(values)}",
      80,
      subsequent_indent="   ",
      break_long_words=False,
      break_on_hyphens=False,
    )


def markdown(
  rows: Sequence[Row],
  parts: Sequence[tuple[str, list[Agreement]]],
  reference: float,
) -> str:
  """The page; without `parts` it lacks what is about all rows together."""
  right, graded = (
    [
      float(enumeration.probabilities(x.logits) @ x.rewards)
      for x in measurements.problems(kind)
    ]
    for kind in ("verifier", "graded")
  )
  number = len(enumeration.completions(NUM_SYMBOLS, NUM_SLOTS).tokens)
  head = [
    "algorithm",
    "target",
    "unbiased?",
    "cosine",
    "bias",
    "c",
    "variance",
    "÷ REINFORCE",
    *(f"cosine, G = {size}" for size in GROUP_SIZES if size != MAIN_SIZE),
    "cosine, right/wrong",
    "reward scale",
    "long / short",
  ]
  lines = [markdown_row(row, reference) for row in measurements.ordered(rows)]
  values = {
    "is_as_written": bool(parts),
    "EXACT": EXACT,
    "G": MAIN_SIZE,
    "T": NUM_SLOTS,
    "V": NUM_SYMBOLS,
    "longest": NUM_SLOTS - 1,
    "share": 1 / NUM_SLOTS,
    "number": number,
    "groups": len(enumeration.multisets(number, MAIN_SIZE)[0]),
    "orders": number**MAIN_SIZE,
    "right": right,
    "graded": [_number(x, 2) for x in graded],
    "table": _table(head, lines),
    "without": "; ".join(
      f"`{name}` {why}" for name, why in measurements.WITHOUT.items()
    ),
    "parts": None,
    "findings": None,
    "topk": measurements.SETTINGS["opd_topk"]["topk"],
    "num_kept": measurements.SETTINGS["gfpo"]["num_kept"],
  }
  if parts:
    values |= _of_all(rows, parts)
    head = ["advantage", *(label for label, _ in measurements.AGGREGATIONS)]
    values["parts"] = _table(
      head, [[x, *(_number(y.cosine, 4) for y in cells)] for x, cells in parts]
    )
    values["findings"] = _findings(values)
  return pages.filled((_HERE / "page.md").read_text("utf-8"), values)
