"""The page about estimators, as markdown with the measured numbers in it."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence

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


def _number(value: float, digits: int) -> str:
  """Fixed digits; "–" where there is none, and no negative zero."""
  if np.isnan(value):
    return "–"
  return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  def joined(cells):
    return f"| {' | '.join(cells)} |"

  rule = ["---", *["---:"] * (len(header) - 1)]
  return "\n".join(map(joined, (header, rule, *lines)))


def markdown_row(row: Row, reference: float) -> list[str]:
  """The cells of one estimator.

  Args:
    row: Its numbers.
    reference: Variance of REINFORCE without a baseline.
  """
  main = row.main
  comparable = row.target == "J" and row.group_size == MAIN_SIZE

  def cosine(size):
    found = row.graded.get(size)
    return _number(found.cosine if found else float("nan"), 4)

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


def _list(found: Sequence[str]) -> str:
  quoted = [f"`{name}`" for name in found]
  if len(quoted) < 2:
    return "".join(quoted) or "none"
  return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _findings(
  rows: Sequence[Row], parts: Sequence[tuple[str, list[Agreement]]]
) -> list[str]:
  """What stands out of all rows, in sentences around the measured numbers."""
  by = {row.name: row for row in rows}
  same = [
    [row.name for row in family]
    for family in measurements.families(rows)
    if len(family) > 1
  ]
  yes = [row.name for row in rows if row.verdict == "yes"]
  constant = [row for row in rows if row.verdict == "× c"]
  on_j = [row for row in rows if row.target == "J"]

  def unbiased():
    text = f"**Exactly unbiased:** {_list(yes)}."
    factor = (MAIN_SIZE - 1) / MAIN_SIZE / NUM_SLOTS
    for row in constant:
      text += (
        f" `{row.name}` points exactly along ∇{row.target} with c ="
        f" {row.main.scale:.4f}; (G − 1)/(G T) ="
        f" {factor:.4f}, because the mean of"
        " the group contains the completion's own reward and the loss is"
        " divided by the budget. A learning rate absorbs it."
      )
    others = [row for row in on_j if row.verdict == "no"]
    if others:
      angles = [row.angle for row in others]
      text += (
        f" The other {len(others)} estimators of ∇J are"
        f" {min(angles):.0f} to {max(angles):.0f} degrees away from it."
      )
    return text

  def identical():
    listed = "; ".join(_list(names) for names in same)
    return (
      "**Many names, fewer estimators.** On-policy, with a ratio of 1, these"
      f" have the same mean and variance to the last digit: {listed}. They"
      " differ after the first gradient step, or in batches of several groups."
    )

  def separated():
    return (
      "**Two divisions, two biases.** Dividing by the completion's length"
      f" alone (`deepseek_v32`) turns the gradient by"
      f" {by['deepseek_v32'].angle:.1f} degrees, dividing by the deviation of"
      f" the group alone (`tic_grpo`) by {by['tic_grpo'].angle:.1f}, and both"
      f" (`grpo`) by {by['grpo'].angle:.1f}. With the tokens of the batch"
      f" averaged instead (`dapo`) it is {by['dapo'].angle:.1f}."
    )

  def length():
    first = by["deepseek_v32"].graded
    small, large = min(first), max(first)
    return (
      "**Length bias does not shrink with the group.** `deepseek_v32` has a"
      f" bias of {first[small].bias:.3f} at G = {small} and of"
      f" {first[large].bias:.3f} at G = {large}: it follows the gradient of"
      " E[R/|y|] − J · E[1/|y|] with J held fixed, whatever G is. Biases that"
      " come from a statistic of the group change with it: that of `opo` from"
      f" {by['opo'].graded[small].bias:.3f} to"
      f" {by['opo'].graded[large].bias:.3f}, that of `otb` from"
      f" {by['otb'].graded[small].bias:.3f} to"
      f" {by['otb'].graded[large].bias:.3f}, that of `dapo` from"
      f" {by['dapo'].graded[small].bias:.3f} to"
      f" {by['dapo'].graded[large].bias:.3f}."
    )

  def difficulty():
    row = by["tic_grpo"]
    hard, easy = row.difficulty
    p, q = (
      float(enumeration.probabilities(x.logits) @ x.rewards)
      for x in measurements.problems("verifier")
    )
    limit = np.sqrt(q * (1 - q) / p / (1 - p))
    return (
      "**With right/wrong rewards the deviation turns nothing inside a prompt;"
      " it weighs prompts.** With the tokens summed (`tic_grpo`) the cosine is"
      f" {row.verifier[MAIN_SIZE].cosine:.4f} over both prompts, against"
      f" {row.main.cosine:.4f} with graded rewards. The hard prompt's gradient"
      f" counts {hard / easy:.2f} times the easy one's at G ="
      f" {max(row.verifier)}, and {limit:.2f} times, the ratio of the"
      " deviations, as G grows; in ∇J both count alike."
    )

  def noise():
    exact = [row for row in on_j if row.verdict != "no"]
    least = min(exact, key=lambda row: row.variance)
    most = max(exact, key=lambda row: row.variance)
    reference = by["reinforce"].variance
    return (
      "**Noise of the unbiased ones.** Relative to REINFORCE without a"
      f" baseline it is {least.variance / reference:.2f} for `{least.name}`"
      f" and {most.variance / reference:.2f} for `{most.name}`: a baseline"
      " can also add noise. A critic that knows V exactly (`ppo`) has"
      f" {by['ppo'].variance / reference:.2f}, and"
      f" {by['ppo'].angle:.1f} degrees of bias from whitening and the token"
      " mean."
    )

  def scales():
    linear = [x.name for x in on_j if abs(x.exponent - 1) < 0.05]
    invariant = [x.name for x in on_j if abs(x.exponent) < 0.05]
    return (
      "**Reward scale.** The gradient grows with the rewards in"
      f" {len(linear)} rows ({_list(linear)}) and does not in"
      f" {len(invariant)}. Among the latter none is unbiased: an invariant"
      " estimator cannot be linear in R, as ∇J is."
    )

  def aggregated():
    table = dict(parts)
    best = table["lead of the best (pass@G)"]
    plain = table["R"]
    return (
      "**The aggregation alone decides.** The lead of the best completion,"
      f" summed over tokens, follows ∇ pass@G with cosine {best[0].cosine:.4f};"
      f" with the batch's token mean (`passk`) with {best[2].cosine:.4f}. Plain"
      f" REINFORCE falls to {plain[1].cosine:.4f} and {plain[2].cosine:.4f} by"
      " the two means, because both divide by a length that depends on what"
      " was sampled."
    )

  def distillation():
    token, full = by["opd_token"], by["opd_full"]
    return (
      "**Distillation.** Judging only the sampled token (`opd_token`) is"
      f" {token.variance / full.variance:.1f} times as noisy as the KL over"
      f" the vocabulary (`opd_full`). Both divide by the tokens of the batch,"
      f" which leaves cosines of {token.main.cosine:.4f} and"
      f" {full.main.cosine:.4f} with −∇ Σ KL."
    )

  return [
    unbiased(),
    identical(),
    separated(),
    length(),
    difficulty(),
    aggregated(),
    noise(),
    scales(),
    distillation(),
  ]


def _standing_out(
  rows: Sequence[Row], parts: Sequence[tuple[str, list[Agreement]]]
) -> Sequence[str]:
  """The section of findings, which are about all rows together."""
  if not parts:
    return ()
  return (
    "## What stands out",
    "\n".join(
      textwrap.fill(
        f"{i}. {text}",
        80,
        subsequent_indent="   ",
        break_long_words=False,
        break_on_hyphens=False,
      )
      for i, text in enumerate(_findings(rows, parts), 1)
    ),
  )


def _title() -> str:
  root = pathlib.Path(__file__).resolve().parents[2]
  for line in (root / "CITATION.cff").read_text().splitlines():
    if line.startswith("title:"):
      return line.partition(":")[2].strip().strip('"')
  raise ValueError(f"{root / 'CITATION.cff'} has no title; add one.")


def _taken_apart(
  parts: Sequence[tuple[str, list[Agreement]]],
) -> Sequence[str]:
  """The section about advantages and aggregations, if they were measured."""
  if not parts:
    return ()
  lines = [
    [label, *(_number(cell.cosine, 4) for cell in cells)]
    for label, cells in parts
  ]
  return (
    "## Which part turns the gradient",
    "The same losses taken apart: cosine of E g with the gradient of J (last"
    f" line: of pass@G), at G = {MAIN_SIZE}, for each advantage with each way"
    " of averaging over tokens. Dr. GRPO's sum over the budget differs from the"
    " first column by a constant.",
    _table(
      ["advantage", *(label for label, _ in measurements.AGGREGATIONS)],
      lines,
    ),
  )


def markdown(
  rows: Sequence[Row],
  parts: Sequence[tuple[str, list[Agreement]]],
  reference: float,
) -> str:
  """The page: the question, the table, what stands out, limits."""
  made = measurements.problems("verifier"), measurements.problems("graded")
  number = len(enumeration.completions(NUM_SYMBOLS, NUM_SLOTS).tokens)
  orders = number**MAIN_SIZE
  groups = len(enumeration.multisets(number, MAIN_SIZE)[0])
  right, graded = (
    [float(enumeration.probabilities(x.logits) @ x.rewards) for x in kind]
    for kind in made
  )
  others = [size for size in GROUP_SIZES if size != MAIN_SIZE]
  header = [
    "algorithm",
    "target",
    "unbiased?",
    "cosine",
    "bias",
    "c",
    "variance",
    "÷ REINFORCE",
    *(f"cosine, G = {size}" for size in others),
    "cosine, right/wrong",
    "reward scale",
    "long / short",
  ]
  lines = [markdown_row(row, reference) for row in measurements.ordered(rows)]
  excluded = "; ".join(
    f"`{name}` {why}" for name, why in measurements.WITHOUT.items()
  )
  paragraphs = (
    "# What each published variant really estimates",
    "<!-- Written by `python -m experiments.estimators.report`. -->",
    "A policy gradient is a random vector, made from a group of sampled"
    " completions. Its noise averages out over many steps; the difference"
    " between its mean and the gradient of the objective does not. Here both"
    " are computed exactly for every algorithm of the library, with its own"
    " loss, on policies that are small enough to write down every group.",
    "![Angle to the gradient against variance; angle by group size; map of"
    " reward scale and length](estimators.png)",
    "## The question",
    f"The policy π_θ is a table: after each prefix of at most"
    f" {NUM_SLOTS - 1} tokens, {NUM_SYMBOLS} logits, of which the last is the"
    f" end token. A completion y has 1 to {NUM_SLOTS} tokens; there are"
    f" {number}. Two prompts have a table each, with the objective",
    "    J(θ) = mean over prompts of Σ_y π_θ(y) R(y)\n"
    "    ∇J   = mean over prompts of Σ_y π_θ(y) R(y) ∇ log π_θ(y)",
    "Two kinds of reward: *right/wrong*, 1 for a right completion and else 0"
    f" (the hard prompt is answered with probability {right[0]:.2f}, the easy"
    f" one with {right[1]:.2f}); and *graded*, to which a random score of"
    f" every token is added (J = {_number(graded[0], 2)} and"
    f" {_number(graded[1], 2)}). Graded rewards are meant unless it says"
    " otherwise.",
    "A step draws G completions per prompt from π_θ itself, gives each group"
    " to the library's loss and takes the mean over prompts. With g = −∇ loss,",
    "    E g   = Σ over all groups of probability · g\n"
    "    Var g = E ‖g − E g‖²   (the trace of the covariance)",
    "are finite sums. No draw depends on the order of a group, so multisets"
    f" are summed with their multiplicity: {groups} instead of {orders} groups"
    f" per prompt at G = {MAIN_SIZE}. Everything is float64; nothing is"
    " sampled.",
    "## How to read the table",
    "\n".join(
      textwrap.fill(line, 80, initial_indent="- ", subsequent_indent="  ")
      for line in (
        "**target**: what E g is compared with. J as above; pass@G: the"
        " expected maximum of G rewards; P(right): the probability of a right"
        " completion, for algorithms that read only right or wrong; teacher:"
        " −Σ_t KL(π_θ ‖ teacher) at sampled prefixes that are held fixed.",
        "**unbiased?**: *yes* if E g = ∇J; *× c* if E g = c ∇J with one c for"
        f" both kinds of reward; *no* otherwise (limit {EXACT:.0e}).",
        "**cosine** of E g and ∇J; **bias** = ‖E g − c ∇J‖ / ‖c ∇J‖ with the"
        " **c** that makes it least, which is the tangent of the angle.",
        "**variance** = Var(g / c) / ‖∇J‖²: squared noise over squared signal"
        " of one step. **÷ REINFORCE**: relative to REINFORCE without a"
        " baseline.",
        "**cosine, G = …**: with other group sizes; everything else is G ="
        f" {MAIN_SIZE}, or the G beside the name.",
        "**reward scale**: d log ‖E g‖ / d log s when every reward is"
        " multiplied by s. 1: linear; 0: invariant.",
        f"**long / short**: weight of a token in a completion of {NUM_SLOTS}"
        " tokens, divided by that in one of a single token, each as the only"
        " right one in a group of the two. 1: all tokens alike;"
        f" {1 / NUM_SLOTS:.2f}: a long completion shares one weight.",
      )
    ),
    _table(header, lines),
    textwrap.fill(f"Not in the table: {excluded}.", 80),
    *_taken_apart(parts),
    *_standing_out(rows, parts),
    "## Limits",
    "\n".join(
      textwrap.fill(line, 80, initial_indent="- ", subsequent_indent="  ")
      for line in (
        "Bias is no verdict. An estimator may be made for another objective, or"
        " trade bias for steadier steps; optimizers such as Adam rescale what"
        " comes out. `dpo` for one does not claim to follow ∇J.",
        "Cosines, variances and their order depend on the two tables and"
        " rewards. *yes*, *× c*, equal estimators, reward scale and what does"
        " not depend on G hold in general; a *no* is a counterexample.",
        "On-policy only: clipping, ratios and corrections have nothing to do"
        " at a ratio of 1. What tells clipped variants apart is not here.",
        "A batch is one group. Statistics over a batch (whitening, the token"
        " mean, the mean entropy) are taken over many groups in training,"
        " which is another estimator.",
        "Only the policy's gradient: KL terms are off, and so is the"
        " punishment of length of `dapo`, which changes the reward. Groups of"
        " equal rewards count as gradients of 0. `ppo` has a critic that"
        " knows V exactly; `dpo` starts at its reference and `lambda_grpo` at"
        " λ = 0; `opd_topk` has K ="
        f" {measurements.SETTINGS['opd_topk']['topk']}, and `gfpo` keeps"
        f" {measurements.SETTINGS['gfpo']['num_kept']} completions of each"
        " group; process rewards"
        " (`grpo_ps`) are the scores of tokens. Otherwise the defaults of the"
        " library.",
        "`clip_cov` draws which tokens it drops; each group gets one draw, so"
        " its row alone is not exact.",
      )
    ),
    "## Rerun and cite",
    "    python -m experiments.estimators.report",
    "writes this page and the figure anew, in one to three minutes on two CPU"
    " cores. [`tests/algorithms/enumeration_test.py`]"
    "(../tests/algorithms/enumeration_test.py) holds the exact statements"
    " against an independent NumPy enumeration. An algorithm that is added to"
    " the library gets a row by itself; `--algorithms=NAME --out=FOLDER`"
    " shows it alone. To cite, use [CITATION.cff](../CITATION.cff):"
    f" *{_title()}*.",
  )

  def filled(text):
    verbatim = text.startswith(("#", "|", "- ", "1. ", "    ", "<!--", "!["))
    if verbatim or "\n" in text:
      return text
    return textwrap.fill(
      text, 80, break_long_words=False, break_on_hyphens=False
    )

  return "\n\n".join(map(filled, paragraphs)) + "\n"
