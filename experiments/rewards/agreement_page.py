"""The page about verifiers, as markdown with the measured numbers in it."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.rewards.mutations import Case

_MAX_CHARS = 60
_EXAMPLES = 2


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  def joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

  rule = ["---", *["---:"] * (len(header) - 1)]
  return "\n".join(map(joined, (header, rule, *lines)))


def _said(score: float) -> str:
  return "failed" if np.isnan(score) else f"{score:g}"


def _quoted(text: str) -> str:
  shown = ascii(text)[1:-1].replace("|", r"\|").replace("\\\\", "\\")
  if len(shown) > _MAX_CHARS:
    shown = f"{shown[: _MAX_CHARS // 2]} … {shown[-_MAX_CHARS // 3 :]}"
  return f"`` {shown} ``"


def _share(mask: np.ndarray) -> str:
  return f"{mask.sum()}" if len(mask) else "–"


def _by_kind(cases: Sequence[Case], scores: Mapping[str, np.ndarray]) -> str:
  """Table with a line for each kind of completion."""
  kinds = np.array([case.kind for case in cases])
  lines = []
  for kind in dict.fromkeys(case.kind for case in cases):
    rows = kinds == kind
    right = [case.right for case in cases if case.kind == kind]
    known = {True: "right", False: "wrong", None: "open"}
    counted = collections.Counter(known[x] for x in right)
    truth = ", ".join(
      x if len(counted) == 1 else f"{n} {x}" for x, n in counted.most_common()
    )
    says = [_share(scores[name][rows] == 1.0) for name in scores]
    agree = [
      _share(scores[a][rows] == scores[b][rows]) for a, b in _pairs(scores)
    ]
    lines.append([kind, truth, str(rows.sum()), *says, *agree])
  pairs = [f"{a} = {b}" for a, b in _pairs(scores)]
  header = ["kind", "answer", "rows", *(f"1 by {x}" for x in scores), *pairs]
  return _table(header, lines)


def _pairs(scores: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
  """Pairs of the program and each other verifier."""
  return [("program", name) for name in scores if name != "program"]


def _classes(cases: Sequence[Case], scores: Mapping[str, np.ndarray]) -> str:
  """Table of all kinds of disagreement, with examples and the right answer."""
  found: dict[tuple, list[Case]] = collections.defaultdict(list)
  for i, case in enumerate(cases):
    said = tuple(_said(scores[name][i]) for name in scores)
    if len(set(said)) > 1:
      found[case.kind, case.right, said].append(case)
  lines = []
  for (kind, right, said), some in sorted(
    found.items(), key=lambda x: (-len(x[1]), x[0][0])
  ):
    if right is None:
      verdict = "a matter of rules"
    else:
      wanted = _said(float(right))
      names = [n for n, x in zip(scores, said, strict=True) if x == wanted]
      verdict = f"{wanted}: {', '.join(names) or 'none'}"
    examples = "; ".join(
      f"{_quoted(case.text)} for {case.gold}" for case in some[:_EXAMPLES]
    )
    lines.append([kind, str(len(some)), *said, verdict, examples])
  if not lines:
    return "There are none."
  header = ["kind", "rows", *scores, "right are", "examples"]
  return _table(header, lines)


def _against_truth(
  cases: Sequence[Case], scores: Mapping[str, np.ndarray]
) -> str:
  known = np.array([case.right is not None for case in cases])
  right = np.array([bool(case.right) for case in cases])
  lines = []
  for name, said in scores.items():
    lines.append(
      [
        name,
        str(int(known.sum())),
        str(int((known & right & (said != 1.0)).sum())),
        str(int((known & ~right & (said == 1.0)).sum())),
        str(int(np.isnan(said).sum())),
      ]
    )
  header = [
    *("verifier", "rows whose answer is known", "right ones refused"),
    *("wrong ones rewarded", "failed"),
  ]
  return _table(header, lines)


def markdown(
  cases: Sequence[Case],
  scores: Mapping[str, np.ndarray],
  rows_per_s: Mapping[str, float],
) -> str:
  """The page: the question, the tables, the speed, limits.

  Args:
    cases: The N completions.
    scores: Scores of each verifier [N]; "program" and "host" are among them.
    rows_per_s: The rows a second of each verifier.
  """
  num_plain = sum(case.kind == "plain" for case in cases)
  same = int((scores["program"] == scores["host"]).sum())
  speed = [[name, f"{rows_per_s[name]:.0f}"] for name in scores]
  paragraphs = (
    "# Which verifier says what",
    "<!-- Written by `python -m experiments.rewards.agreement`. -->",
    "The reward `math_accuracy` has to find the final answer of a"
    " completion and to compare it with the right one. This page compares"
    " four ways to do so on the same completions. *program* is"
    " `math_accuracy` inside the compiled step. *host* is `math_accuracy` on"
    " the host. *math-verify* is the library of that name, which gets the"
    " right answer and the answer that *host* has found, each in a box."
    " *math-verify alone* is the library, which reads the completion as it"
    " is.",
    f"There are {len(cases)} completions: all {num_plain} gold answers of GSM8K"
    " (training and test split) as the teacher writes them, and"
    f" {len(cases) - num_plain} mutations of them with a fixed seed. The"
    " way in which a mutation was made says whether its answer is right.",
    f"The program and the host agree on {same} of {len(cases)} rows.",
    "## Against what is known",
    _against_truth(cases, scores),
    "math-verify alone is not made for answer tags: it finds no number in"
    " `<answer>18</answer>`, but does in `<answer>$18$</answer>`. Most of the"
    " right answers that it refuses are of that sort, and say nothing about"
    " how it compares.",
    "## By kind",
    "The column *answer* says whether the answers of a kind are right."
    " *open* means that rules may differ. The columns *1 by* count the"
    " completions that a verifier rewards. The columns *a = b* count the"
    " completions on which two verifiers agree.",
    _by_kind(cases, scores),
    "## Every class of disagreement",
    "Characters that are not ASCII are written as escapes, and the middle of"
    " long completions is left out.",
    _classes(cases, scores),
    "## Speed",
    "Rows a second on the CPU that wrote this page, while other programs ran."
    " The program scores 1024 rows of 1024 bytes at a time, without the time"
    " of compilation and of making the rows; the others score rows one by"
    " one in two processes.",
    _table(["verifier", "rows/s"], speed),
    "## Limits",
    "\n".join(
      textwrap.fill(line, 80, initial_indent="- ", subsequent_indent="  ")
      for line in (
        "All gold answers of GSM8K are whole numbers. Where a gold answer has"
        " roots or letters, or is no number, the program cannot compare and"
        " the host can.",
        "The program looks at answers of up to 256 bytes; the host at 1000"
        " characters.",
        "A repeating decimal in a fraction or before a power of ten, and a"
        " mixed number with a decimal point in its fraction, are numbers on"
        " the host and none in the program. No completion here has one.",
      )
    ),
    "## Rerun",
    "    python -m experiments.rewards.agreement",
    "writes this page anew. It needs GSM8K under TFDS_DATA_DIR, and"
    " math-verify.",
  )

  def filled(paragraph: str) -> str:
    if paragraph.startswith(("#", "|", "- ", "    ", "<!--")):
      return paragraph
    return textwrap.fill(
      paragraph, 80, break_long_words=False, break_on_hyphens=False
    )

  return "\n\n".join(map(filled, paragraphs)) + "\n"
