"""Generalisation of reinforcement and of imitation on images.

Sizes were chosen after trials of seed 0 on the two domains that are trained on;
the rules below were written before any run but those and the warm starts, whose
scores out of domain nobody had seen. They look at the
answers to 1536 held-out prompts, drawn greedily, after the last update: *in
domain* is the mean over "count" and "box", and *out of domain* the mean over
"count_colours", "box_colours" and "box_sizes". It is the share of right
answers, unless the overlap of boxes is named. A *gain* is the difference from
the warm start. Arms are compared seed by seed, with the same warm start. The
mean over seeds has Student's 95 % interval, and the interval decides. A claim
is confirmed if all of its checks hold.

L1  In domain GRPO ends above the warm start: it learns at all.
L2  So does imitation at equal updates, and at equal examples.
G1  At equal updates GRPO ends above imitation out of domain.
G2  At equal examples it does.
R1  At equal updates GRPO's gain out of domain, less its gain in domain, is
    above that of imitation: what it learns carries over better.
R2  At equal examples it is.
F1  Imitation at equal updates forgets: out of domain it ends below the warm
    start.
F2  GRPO does not: its interval is not below the warm start.
O1  At equal updates the overlap of boxes out of domain ("box_colours" and
    "box_sizes") is larger after GRPO than after imitation.
O2  At equal examples it is.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Size
from experiments.science.claims import Rule, Scores, rule, table
from experiments.sweeps import statistics
from experiments.sweeps.statistics import check, minus
from grpo_jax.configs import vision
from grpo_jax.training.monitor import style

BASE, GRPO = "base", "grpo"
SAME_UPDATES, SAME_EXAMPLES = "sft-updates", "sft-examples"
SHOWN = {
  BASE: "warm start",
  GRPO: "GRPO",
  SAME_UPDATES: "SFT, equal updates",
  SAME_EXAMPLES: "SFT, equal examples",
}
STEPS = 60  # Updates after the warm start.
TEACHER_ERROR = 0.75  # Of the warm start.
PROMPTS, GROUP = 32, 8  # Of a step of GRPO.
# Labelled images of a step, for each of GRPO's prompts: as many as it has rows,
# or one.
EXAMPLES = {SAME_UPDATES: GROUP, SAME_EXAMPLES: 1}
IN_DOMAIN = ("count", "box")
SHIFTED = ("count_colours", "box_colours", "box_sizes")
DOMAINS = (*IN_DOMAIN, *SHIFTED)
BOXES = ("box_colours", "box_sizes")
SIZES = {
  "full": Size(5, 600, STEPS, PROMPTS, 1536),
  "smoke": Size(2, 4, 2, 2, 64),
}
ALL = arms.Arms(tuple(SHOWN), SIZES, BASE, (BASE,))
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on.

  `base`, the warm start, imitates a teacher whose convention is another one in
  three answers of four: one square more than there are, and the last pixels of
  a box in the place of those behind it. All other arms see the same stream of
  images, from its beginning. One in twenty of these images or fewer were in the
  warm start.
  """
  name, size = ALL.parsed(argument)
  config = vision.get_config("grpo")
  config.data.task_options = ml_collections.ConfigDict(
    {
      "codes": True,
      "shifted": True,
      "teacher_error": TEACHER_ERROR if name == BASE else 0.0,
    }
  )
  config.sft.steps = size.imitation
  config.rl.steps, config.rl.num_prompts = size.steps, size.num_prompts
  config.rl.group_size = GROUP
  if name == BASE:
    config.phases = ("sft",)
  else:
    config.sft.steps = (
      0  # It was the warm start; its images are not seen again.
    )
  if name in EXAMPLES:
    # All arms have the same rate, over as many updates.
    config.more = copy.deepcopy(config.sft)
    config.more.steps = size.steps
    config.more.num_prompts = EXAMPLES[name] * size.num_prompts
    config.more.optimizer = copy.deepcopy(config.rl.optimizer)
    config.phases = ("sft", "more", "rl")
    config.rl.steps = 0  # It is only evaluated.
  config.eval.num_prompts = size.num_held_out
  config.eval.batch_size = min(512, size.num_held_out)
  config.eval.every = 0
  config.checkpoint.every = 0
  return arms.changed(config, {})


_REWARD = "eval/domain/{}/reward"  # Half the accuracy and half the overlap.
_ACCURACY = "eval/domain/{}/accuracy"


def of_run(lines: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
  """Domain -> "accuracy" and "overlap" of each evaluation, from a run's log.

  Of GRPO there are evaluations before its first step and after its last, of
  imitation after its last.
  """
  found: dict[str, dict[str, list[float]]] = {}
  for domain in DOMAINS:
    accuracy, reward = (
      [line[name] for line in lines if name in line]
      for name in (_ACCURACY.format(domain), _REWARD.format(domain))
    )
    found[domain] = {
      "accuracy": [round(x, 4) for x in accuracy],
      "overlap": [
        round(2 * y - x, 4) for x, y in zip(accuracy, reward, strict=True)
      ],
    }
  return found


class Results(arms.Recorded):
  """The arms that have ended."""

  names, base = tuple(SHOWN), BASE

  def scores(
    self, arm: str, domains: Sequence[str], what: str = "accuracy"
  ) -> np.ndarray | None:
    """Mean over domains at the end, of each seed [S]; None while it is missing.

    GRPO's runs have evaluated the warm start, `base`.
    """
    place = 0 if arm == BASE else -1
    arm = GRPO if arm == BASE else arm
    if arm not in self._found:
      return None
    return np.array(
      [
        np.mean([seed[domain][what][place] for domain in domains])
        for seed in self._found[arm]["seeds"]
      ]
    )


def gain(of: Scores, arm: str, domains: Sequence[str]) -> np.ndarray | None:
  """Gain in right answers of an arm since the warm start [seeds]."""
  return minus(of(arm, domains), of(BASE, domains))


def carried(of: Scores, arm: str) -> np.ndarray | None:
  """Gain out of domain, less the gain in domain [seeds]."""
  return minus(gain(of, arm, SHIFTED), gain(of, arm, IN_DOMAIN))


def _gains(name: str, domains: Sequence[str], where: str, needed: str) -> Rule:
  text = f"`{name}` − `base`, {where}"
  return rule(text, needed, (name, domains), (BASE, domains))


def _above(other: str, domains: Sequence[str], what: str) -> Rule:
  text = f"`{GRPO}` − `{other}`, {what} over {', '.join(domains)}"
  return rule(text, "above", (GRPO, domains, what), (other, domains, what))


def _carries(other: str) -> Rule:
  text = f"(gain out − gain in) of `{GRPO}` − of `{other}`"

  return lambda of: check(
    text, "above", (1, minus(carried(of, GRPO), carried(of, other)))
  )


CLAIMS = table(
  "L1 GRPO learns.",
  _gains(GRPO, IN_DOMAIN, "in domain", "above"),
  "L2 Imitation learns.",
  *(_gains(name, IN_DOMAIN, "in domain", "above") for name in EXAMPLES),
  "G1 At equal updates GRPO is better out of domain.",
  _above(SAME_UPDATES, SHIFTED, "accuracy"),
  "G2 At equal examples GRPO is better out of domain.",
  _above(SAME_EXAMPLES, SHIFTED, "accuracy"),
  "R1 At equal updates more of GRPO's gain carries over.",
  _carries(SAME_UPDATES),
  "R2 At equal examples more of GRPO's gain carries over.",
  _carries(SAME_EXAMPLES),
  "F1 Imitation forgets what is out of domain.",
  _gains(SAME_UPDATES, SHIFTED, "out of domain", "below"),
  "F2 GRPO does not forget it.",
  _gains(GRPO, SHIFTED, "out of domain", "not below"),
  "O1 At equal updates GRPO's boxes overlap more out of domain.",
  _above(SAME_UPDATES, BOXES, "overlap"),
  "O2 At equal examples GRPO's boxes overlap more out of domain.",
  _above(SAME_EXAMPLES, BOXES, "overlap"),
)
CONFIRMED = "L1 L2 F2"
REFUTED = "G1 G2"
PAGE = "vision_generalises"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  groups = {
    **{domain: (domain,) for domain in DOMAINS},
    "in domain": IN_DOMAIN,
    "out of domain": SHIFTED,
  }

  def rows(what: str):
    for label, domains in groups.items():
      scores = (results.scores(arm, domains, what) for arm in SHOWN)
      yield [label, *map(pages.cell, scores)]

  head = ("domain", *SHOWN.values())
  return {
    "rows": PROMPTS * GROUP,
    **{x: pages.table(head, rows(x)) for x in ("accuracy", "overlap")},
  }


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws right answers and overlap of each domain, arm by arm."""
  canvas, grid = style.panels(1, 2, style.PAGE, 2.5, sharey=True)
  panels = grid[0]
  names = [domain.replace("_", "\n") for domain in DOMAINS]
  looks = {BASE: style.FigureStyle(style.GREY, "X")}
  looks |= style.looks(results.expected)
  panels[0].set_ylabel("mean over held-out prompts")
  for axes, what in zip(panels, ("accuracy", "overlap"), strict=True):
    axes.set_title(what)
    for shift, (name, look) in enumerate(looks.items()):
      scores = [results.scores(name, (domain,), what) for domain in DOMAINS]
      known = [x for x in range(len(scores)) if scores[x] is not None]
      means = np.array([scores[x].mean() for x in known])
      ends = np.array([statistics.interval(scores[x]) for x in known])
      if known:
        axes.errorbar(
          [x + 0.15 * (shift - 1.5) for x in known],
          *(means, np.abs(ends.T - means)),
          fmt=look.marker,
          color=look.colour,
          label=SHOWN[name],
        )
    axes.axvline(len(IN_DOMAIN) - 0.5, color="#CCCCCC", lw=1)
    axes.set_xticks(range(len(DOMAINS)), names)
    axes.set_ylim(bottom=-0.02)
    axes.grid(visible=False, axis="x")
  style.shared_legend(canvas, panels)
  style.save(canvas, path)
