"""Rewards for entropy, and their effect on the problems solved.

The rules below were written before any arm but `base` had been run. Known were
single runs of EDGE on this task in other sizes, with corrections and without,
in which those with corrections learned less. "Entropy" is that of the
distributions that tokens are drawn from, nats per token; a *window* is the mean
over a tenth of the steps. The *rebound* of a seed is its last window over its
least one, if that is neither the first nor the last window; else 1. "pass@1"
and "pass@16" are of 256 held-out problems, of which 16 answers each are drawn
at temperature 1, after the last step. Arms are compared seed by seed, with the
same start. The mean over five seeds has Student's 95 % interval, and the
interval decides. A claim is confirmed if all of its checks hold.

E1  GRPO's entropy falls: its last window − its first one is below 0.
E2  And does not come back: its rebound − 1.2 is not above 0.
B1  With clip-higher it does: rebound − 1.2 is above 0.
B2  So it does with GTPO.
B3  So it does with GRPO-S.
B4  So it does with EDGE.
B5  So it does with EDGE and corrections.
B6  So it does with an entropy bonus.
P1  pass@16 is higher than GRPO's with GTPO: the difference is above 0.
P2  So it is with GRPO-S.
P3  So it is with EDGE.
P4  So it is with EDGE and corrections.
C1  Corrections remove most groups without a signal early: of the groups that
    were dead before, in the first window of `edge-gec`, the share that was made
    live − 0.5 is above 0.
C2  They pay: pass@1 of `edge-gec` − `edge` is above 0.
C3  To train hints pays: pass@1 of `edge-gec-trained` − `edge-gec` is above 0.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm, Size
from experiments.science.claims import Rule, difference, rule, table
from experiments.sweeps import figures
from grpo_jax import api
from grpo_jax.configs import quickstart
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

BASE = "base"
_CORRECTED = {
  "rl.correction.p_cue": 0.5,
  "rl.correction.p_answer": 0.25,
  "rl.correction.p_reference": 0.25,
  "rl.correction.cue": "=",
  "rl.correction.sentence": "=<answer>{answer}</answer>",
  "rl.correction.max_new_tokens": 8,
}
ARMS = {
  BASE: Arm("imitates a teacher; all other arms go on from its policy"),
  "grpo": Arm("GRPO"),
  "clip-higher": Arm(
    "GRPO that clips ratios at 0.8 and 1.28, and not at 0.8 and 1.2",
    settings={"algorithm.clip_high": 0.28},
  ),
  "gtpo": Arm(
    "GTPO: the entropy of a token shapes the reward of the token", "gtpo"
  ),
  "grpo_s": Arm(
    "GRPO-S: the entropy of a completion shapes its reward", "grpo_s"
  ),
  "edge": Arm(
    "EDGE: confident completions have larger advantages", "edge_grpo"
  ),
  "edge-gec": Arm(
    "EDGE with guided error correction; what a correction puts in is not"
    " trained",
    "edge_grpo",
    _CORRECTED,
  ),
  "edge-gec-trained": Arm(
    "EDGE with guided error correction; what a correction puts in is trained as"
    " well, as in the paper",
    "edge_grpo",
    _CORRECTED | {"rl.correction.train_injected": True},
  ),
  "bonus": Arm(
    "GRPO with an entropy bonus", settings={"algorithm.entropy_coef": 1e-3}
  ),
}
SIZES = {
  "full": Size(5, 200, 160, 8, 256),
  "smoke": Size(2, 10, 4, 2, 16),
}
GROUP_SIZE = 16
EVALUATIONS = 8  # Within the steps of an arm.
ALL = arms.Arms(ARMS, SIZES, BASE)
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  config = quickstart.get_config(ARMS[name].algorithm)
  config.data.name = "countdown"
  config.data.task_options = ml_collections.ConfigDict(
    {"num_numbers": 3, "teacher_error": 0.75, "last_answer": True}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.sampling.max_new_tokens = 16
  config.phases = ("sft",) if name == BASE else ("rl",)
  config.sft.steps = size.imitation
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = GROUP_SIZE
  config.rl.num_minibatches = 2  # With one step nothing is ever clipped.
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.final_fraction = 1.0  # No end of learning by itself.
  config.eval.num_prompts = config.eval.batch_size = size.num_held_out
  config.eval.temperature = 1.0
  config.eval.every = max(1, size.steps // EVALUATIONS)
  config.required_accuracy = None
  arms.changed(config, ARMS[name].settings)
  config.checkpoint.every = size.steps // 2
  config.checkpoint.keep = 2
  return config


# Name of a quantity here -> its names in the log, of which the first that is
# there is read.
LOGGED = {
  "entropy": ("entropy/mean",),
  "accuracy": ("correction/draft_accuracy", "accuracy"),
  "dead": ("correction/draft_dead_groups", "dead_groups"),
  "made_live": ("correction/made_live",),
}
_EVALUATED = "eval/accuracy"
SAMPLES = 16
PASSES = ("pass@1", "pass@16")
WINDOWS = 10


def of_run(lines: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log.

  In each step the entropy, the accuracy before corrections and shares of
  groups; and the accuracy on held-out problems as logged.
  """
  rows = [line for line in lines if line["phase"] == "rl"]
  steps = [row for row in rows if LOGGED["entropy"][0] in row]
  evaluated = [row for row in rows if _EVALUATED in row]
  return {
    **{
      name: arms.column(steps, *keys, digits=5)
      for name, keys in LOGGED.items()
      if any(key in steps[0] for key in keys)
    },
    "held_out": arms.column(evaluated, _EVALUATED),
  }


def passes(
  workdir: pathlib.Path, step: int | None, num_prompts: int
) -> list[float]:
  """Returns `PASSES` of a checkpoint on held-out problems; None: the last."""
  with api.load(workdir, step=step) as run:
    said = run.evaluate(num_prompts, temperature=1.0, num_samples=SAMPLES)
  return [round(said[f"eval/{name}"], 4) for name in PASSES]


def collected(folder: pathlib.Path, size: Size) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended.

  Beside those of the log they are `PASSES` in the middle and at the end. Of
  `base`, with which all other arms began, there are those at the end alone.
  """
  seeds = []
  for seed in range(size.num_seeds):
    workdir = folder / f"seed={seed}"
    if not (workdir / log.RESULT).exists():
      return None
    found: dict[str, Any] = {}
    steps: tuple[int | None, ...] = (None,)
    if folder.name != BASE:
      found |= of_run(log.read_lines(workdir / log.METRICS))
      steps = size.steps // 2, None
    found["passes"] = [
      passes(workdir, step, size.num_held_out) for step in steps
    ]
    seeds.append(found)
  return {"seeds": seeds}


def windows(values: np.ndarray) -> np.ndarray:  # [S, steps] -> [S, WINDOWS]
  """Means over tenths of the steps."""
  parts = np.array_split(values, WINDOWS, axis=1)
  return np.stack([np.nanmean(part, axis=1) for part in parts], axis=1)


def rebound(values: np.ndarray) -> np.ndarray:  # [S, WINDOWS] -> [S]
  """The last window over the least, if that is an inner one; else 1."""
  least = values.argmin(axis=1)
  inner = (least > 0) & (least < values.shape[1] - 1)
  return np.where(inner, values[:, -1] / values.min(axis=1), 1.0)


class Results(arms.Recorded):
  """The arms that have ended."""

  names, base = tuple(ARMS), BASE

  def passes(self, arm: str, what: str) -> np.ndarray:
    """Pass@k before the first step, in the middle and at the end [S, 3]."""
    every = [self.series(name, "passes") for name in (BASE, arm)]
    return np.concatenate(every, axis=1)[:, :, PASSES.index(what)]

  def score(self, arm: str, what: str) -> np.ndarray:
    """Returns a score of each seed [S].

    It is the "rebound", or "growth" of the entropy from the first window to the
    last; "made_live", the share of dead groups of the first window; or one of
    `PASSES` at the end.
    """
    if what in PASSES:
      return self.passes(arm, what)[:, -1]
    if what == "made_live":
      made, dead = (
        windows(self.series(arm, name))[:, 0] for name in (what, "dead")
      )
      return made / np.maximum(dead, 1e-9)
    means = windows(self.series(arm, "entropy"))
    return rebound(means) if what == "rebound" else means[:, -1] - means[:, 0]


REBOUND = 1.2
MOST = 0.5


def _rebounds(arm: str, needed: str = "above") -> Rule:
  text = f"rebound of `{arm}` − {REBOUND}"
  return rule(text, needed, (arm, "rebound"), REBOUND)


_REMEDIES = {
  "clip-higher": "clip-higher",
  "gtpo": "GTPO",
  "grpo_s": "GRPO-S",
  "edge": "EDGE",
  "edge-gec": "EDGE and corrections",
  "bonus": "an entropy bonus",
}
CLAIMS = table(
  "E1 GRPO's entropy falls.",
  rule("fall of `grpo`", "below", ("grpo", "growth")),
  "E2 GRPO's entropy does not come back.",
  _rebounds("grpo", "not above"),
  *(
    part
    for place, (arm, shown) in enumerate(_REMEDIES.items(), 1)
    for part in (f"B{place} Entropy comes back with {shown}.", _rebounds(arm))
  ),
  *(
    part
    for place, arm in enumerate(("gtpo", "grpo_s", "edge", "edge-gec"), 1)
    for part in (
      f"P{place} pass@16 is higher than GRPO's with {_REMEDIES[arm]}.",
      difference("pass@16", arm, "grpo"),
    )
  ),
  "C1 Corrections remove most groups without a signal early.",
  rule(
    f"made live of `edge-gec` − {MOST}",
    *("above", ("edge-gec", "made_live"), MOST),
  ),
  "C2 Corrections pay.",
  difference("pass@1", "edge-gec", "edge"),
  "C3 To train hints pays.",
  difference("pass@1", "edge-gec-trained", "edge-gec"),
)
CONFIRMED = "E1 E2 C1 C3"
REFUTED = "B1 B2 B4 B6 P2 P4 C2"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""

  def row(name: str) -> list[str]:
    means = windows(results.series(name, "entropy")).mean(axis=0)
    cells = [f"`{name}`", f"{means[0]:.3f}", f"{means[-1]:.3f}"]
    cells.append(pages.cell(results.scores(name, "rebound")))
    for what in PASSES:
      cells.append(f"{results.passes(name, what)[:, 0].mean():.3f}")
      cells.append(pages.cell(results.scores(name, what)))
    return cells

  head = ("arm", "first", "last", "rebound", "pass@1", "after", "pass@16")
  return {
    "arms": pages.texts(ARMS),
    "ends": pages.table((*head, "after"), map(row, results.arms)),
  }


_PANELS = {
  "entropy": ("Entropy of what tokens are drawn from", "nats per token"),
  "held_out": ("pass@1, held out", "share of right answers"),
  "dead": ("Groups without a signal, before corrections", "share of groups"),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws entropy, accuracy and dead groups over steps; and pass@16."""
  canvas, grid = style.panels(2, 2, style.PAGE, 2.3)
  looks = {
    arm: look
    for arm, look in style.looks(results.expected).items()
    if arm in results.arms
  }
  steps = SIZES["full"].steps
  every = grid.ravel()
  for axes, (what, (title, y)) in zip(every[:3], _PANELS.items(), strict=True):
    style.label(axes, title, "step", y)
    for arm, look in looks.items():
      values = results.series(arm, what)
      if what != "held_out":
        values = windows(values)
        x = (np.arange(values.shape[1]) + 0.5) / values.shape[1] * steps
      else:
        x = np.linspace(0, steps, values.shape[1])
      figures.curve(axes, x, values, look, arm)
  style.label(every[3], "pass@16, held out", "step", "share of problems")
  for arm, look in looks.items():
    values = results.passes(arm, "pass@16")
    figures.curve(every[3], np.array([0, steps / 2, steps]), values, look, arm)
  style.shared_legend(canvas, every)
  style.save(canvas, path)
