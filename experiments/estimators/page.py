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
  """Formats a number with fixed digits; "–" for NaN, and no negative zero."""
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
  """Findings over all rows, in sentences around the measured numbers."""
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
        f" {factor:.4f}. The reasons are that the mean of the group contains"
        " the completion's own reward, and that the loss is divided by the"
        " budget of T tokens. A learning rate absorbs such a factor."
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
      "**Many names, fewer estimators.** On-policy all ratios are 1, and"
      " several algorithms then have the same mean and variance to the last"
      f" digit: {listed}. They differ after the first gradient step, or in"
      " batches of several groups."
    )

  def separated():
    return (
      "**Two divisions, two biases.** Dividing by the completion's length"
      f" alone (`deepseek_v32`) turns the gradient by"
      f" {by['deepseek_v32'].angle:.1f} degrees, dividing by the deviation of"
      f" the group alone (`tic_grpo`) by {by['tic_grpo'].angle:.1f}, and both"
      f" (`grpo`) by {by['grpo'].angle:.1f}. If the loss divides by the"
      " deviation and is a mean over the tokens of the batch (`dapo`), the"
      f" angle is {by['dapo'].angle:.1f} degrees."
    )

  def length():
    first = by["deepseek_v32"].graded
    small, large = min(first), max(first)
    return (
      "**Length bias does not shrink with the group.** `deepseek_v32` has a"
      f" bias of {first[small].bias:.3f} at G = {small} and of"
      f" {first[large].bias:.3f} at G = {large}. For every G it follows the"
      " gradient of E[R/|y|] − J · E[1/|y|] with J held fixed. A bias that"
      " comes from a statistic of the group changes with G: that of `opo` from"
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
      "**With right/wrong rewards the deviation does not turn the gradient of a"
      " prompt, but weighs the prompts.** If tokens are summed (`tic_grpo`),"
      f" the cosine over both prompts is {row.verifier[MAIN_SIZE].cosine:.4f},"
      f" and with graded rewards {row.main.cosine:.4f}. At G ="
      f" {max(row.verifier)} the hard prompt's gradient counts"
      f" {hard / easy:.2f} times as much as the easy one's. As G grows, it"
      f" counts {limit:.2f} times as much, which is the ratio of the"
      " deviations. In ∇J both count the same."
    )

  def noise():
    exact = [row for row in on_j if row.verdict != "no"]
    least = min(exact, key=lambda row: row.variance)
    most = max(exact, key=lambda row: row.variance)
    reference = by["reinforce"].variance
    return (
      "**Noise of the unbiased estimators.** The variance is"
      f" {least.variance / reference:.2f} times that of REINFORCE without a"
      f" baseline for `{least.name}`, and {most.variance / reference:.2f} times"
      f" for `{most.name}`: a baseline can also add noise. If a critic knows V"
      f" exactly (`ppo`), it is {by['ppo'].variance / reference:.2f} times, and"
      f" whitening and the token mean turn the gradient by"
      f" {by['ppo'].angle:.1f} degrees."
    )

  def scales():
    linear = [x.name for x in on_j if abs(x.exponent - 1) < 0.05]
    invariant = [x.name for x in on_j if abs(x.exponent) < 0.05]
    return (
      "**Reward scale.** The gradient grows with the rewards in"
      f" {len(linear)} rows ({_list(linear)}), and does not change in"
      f" {len(invariant)} rows. No estimator that does not change is unbiased,"
      " because ∇J is linear in R."
    )

  def aggregated():
    table = dict(parts)
    best = table["lead of the best (pass@G)"]
    plain = table["R"]
    return (
      "**The aggregation alone decides.** The lead of the best completion,"
      f" summed over tokens, follows ∇ pass@G with cosine {best[0].cosine:.4f};"
      f" with the mean over the batch's tokens (`passk`) the cosine is"
      f" {best[2].cosine:.4f}. The cosine of plain REINFORCE falls to"
      f" {plain[1].cosine:.4f} and {plain[2].cosine:.4f} with the two means,"
      " because both divide by a length that depends on what was sampled."
    )

  def distillation():
    token, full = by["opd_token"], by["opd_full"]
    return (
      "**Distillation.** If the teacher judges only the sampled token"
      f" (`opd_token`), the gradient is {token.variance / full.variance:.1f}"
      " times as noisy as with the KL over the vocabulary (`opd_full`). Both"
      " divide by the tokens of the batch, so their cosines with −∇ Σ KL are"
      f" {token.main.cosine:.4f} and {full.main.cosine:.4f}."
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


def _answer(
  rows: Sequence[Row], parts: Sequence[tuple[str, list[Agreement]]]
) -> Sequence[str]:
  """The paragraph with the result of all rows together."""
  if not parts:
    return ()
  exact, scaled = (
    _list([row.name for row in rows if row.verdict == kind])
    for kind in ("yes", "× c")
  )
  grpo = next(row for row in rows if row.name == "grpo")
  return (
    f"**The answer.** Exactly unbiased are {exact}. Unbiased up to a constant"
    f" factor is {scaled}. All others are biased here. For example, the mean"
    f" gradient of GRPO at groups of {MAIN_SIZE} has a cosine of"
    f" {grpo.main.cosine:.4f} with the gradient of the objective, which is an"
    f" angle of {grpo.angle:.1f} degrees. The setting is very small: two"
    f" prompts, and completions of at most {NUM_SLOTS} tokens from a"
    f" vocabulary of {NUM_SYMBOLS}.",
  )


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
    "A loss has an advantage, and a way to average over tokens. This table has"
    " the cosine of E g with the gradient of J for each advantage with each"
    f" average, at G = {MAIN_SIZE}. In the last row the gradient is that of"
    " pass@G. Dr. GRPO sums over tokens and divides by the budget, which"
    " differs from the first column by a constant factor.",
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
  """The page: the question, the table, findings, limits."""
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
    "Does the gradient of an algorithm point, on average, along the gradient of"
    " its objective? A policy gradient is a random vector, because it is made"
    " from a group of sampled completions. Its noise averages out over many"
    " steps. Its *bias*, the difference between its mean and the gradient of"
    " the objective, does not. Here bias and noise are computed exactly for"
    " every algorithm of the library, with its own loss. The policies are so"
    " small that every possible group can be written down.",
    *_answer(rows, parts),
    "![Angle to the gradient against variance; angle by group size; map of"
    " reward scale and length](estimators.png)",
    "## The question",
    f"The policy π_θ is a table. After each prefix of at most {NUM_SLOTS - 1}"
    f" tokens it has {NUM_SYMBOLS} logits, and the last of them is that of the"
    f" end token. A completion y has 1 to {NUM_SLOTS} tokens, so there are"
    f" {number} completions. Each of two prompts has a table of its own. The"
    " objective and its gradient are",
    "    J(θ) = mean over prompts of Σ_y π_θ(y) R(y)\n"
    "    ∇J   = mean over prompts of Σ_y π_θ(y) R(y) ∇ log π_θ(y)",
    "There are two kinds of reward. A *right/wrong* reward is 1 for a right"
    " completion and 0 for any other. The hard prompt is answered right with"
    f" probability {right[0]:.2f}, and the easy prompt with {right[1]:.2f}. A"
    " *graded* reward adds a random score of every token (J ="
    f" {_number(graded[0], 2)} for the hard prompt and"
    f" {_number(graded[1], 2)} for the easy one). Numbers are for graded"
    " rewards, unless the text says otherwise.",
    "A step draws a group of G completions per prompt from π_θ itself, gives"
    " each group to the library's loss, and takes the mean over prompts. With g"
    " = −∇ loss, the mean and the variance",
    "    E g   = Σ over all groups of probability · g\n"
    "    Var g = E ‖g − E g‖²   (the trace of the covariance)",
    "are finite sums. The order of a group does not matter, so groups that"
    " differ in their order alone are computed once. At G ="
    f" {MAIN_SIZE} these are {groups} instead of {orders} groups per prompt."
    " All numbers are float64, and nothing is sampled.",
    "## How to read the table",
    "\n".join(
      textwrap.fill(line, 80, initial_indent="- ", subsequent_indent="  ")
      for line in (
        "**target**: the objective whose gradient E g is compared with. It is"
        " J as above; or pass@G, the expected maximum of G rewards; or"
        " P(right), the probability of a right completion, for algorithms that"
        " read only right or wrong; or teacher, −Σ_t KL(π_θ ‖ teacher) at"
        " sampled prefixes that are held fixed.",
        "**unbiased?**: *yes* if E g = ∇J; *× c* if E g = c ∇J with one factor"
        " c for both kinds of reward, which a learning rate can absorb; and"
        f" else *no*. Numbers count as equal up to {EXACT:.0e}.",
        "**cosine**: of E g and ∇J. 1 means the same direction.",
        "**bias**: ‖E g − c ∇J‖ / ‖c ∇J‖ with the factor **c** that makes it"
        " smallest. It is the tangent of the angle between E g and ∇J.",
        "**variance**: Var(g / c) / ‖∇J‖², the squared noise of one step over"
        " its squared signal. **÷ REINFORCE** is the variance divided by that"
        " of REINFORCE without a baseline.",
        "**cosine, G = …**: the cosine with other group sizes. All other"
        f" columns are for G = {MAIN_SIZE}, or for the G beside the name.",
        "**reward scale**: d log ‖E g‖ / d log s, if every reward is multiplied"
        " by s. 1 means that the gradient grows in proportion to s, and 0 that"
        " it does not change.",
        f"**long / short**: the weight of a token in a completion of"
        f" {NUM_SLOTS} tokens, divided by the weight of a token in a completion"
        " of one token. The group has these two completions, and either of them"
        " is the only right one in turn. 1 means that all tokens have the same"
        f" weight, and {1 / NUM_SLOTS:.2f} that a long completion has one"
        " weight to share among its tokens.",
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
        "A bias does not mean that an algorithm is bad. An estimator may be"
        " made for another objective, or trade bias for steadier steps. For"
        " example, `dpo` does not claim to follow ∇J. Optimizers such as Adam"
        " also rescale the gradient.",
        "Cosines, variances and their order depend on the two tables and"
        " rewards. The following holds in general: *yes*, *× c*, which"
        " estimators are equal, the reward scale, and what does not depend on"
        " G. A *no* is a counterexample.",
        "Everything is on-policy. At a ratio of 1, clipping and corrections do"
        " nothing. So this page does not show how clipped variants differ.",
        "A batch is one group. In training, statistics over a batch"
        " (whitening, the token mean, the mean entropy) are taken over many"
        " groups, and that is another estimator.",
        "Only the policy's gradient is measured. KL terms are off, and so is"
        " the punishment of length of `dapo`, which changes the reward. A"
        " group of equal rewards counts as a gradient of 0. `ppo` has a critic"
        " that"
        " knows V exactly; `dpo` starts at its reference and `lambda_grpo` at"
        " λ = 0; `opd_topk` has K ="
        f" {measurements.SETTINGS['opd_topk']['topk']}, and `gfpo` keeps"
        f" {measurements.SETTINGS['gfpo']['num_kept']} completions of each"
        " group; process rewards"
        " (`grpo_ps`) are the scores of tokens. All other settings are the"
        " defaults of the library.",
        "`clip_cov` draws at random which tokens it drops, and each group gets"
        " one such draw. So its row is the only one that is not exact.",
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
