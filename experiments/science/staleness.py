"""Old completions, and corrections for them.

The rules below were written before any arm had been run with the seeds that are
shown, 0 to 5, and none was changed. Seeds 100 and 101 were for trials, of which
nothing is shown: `none-s0` at a learning rate of 1e-3 on a teacher in error
every second time, where accuracy fell on policy too; then `none-s0`, `none-s16`
and `tis-s16` at 3e-4 on the teacher that is shown, and `none-s16` at 6e-4. At
3e-4 `none-s0` rose, `none-s16` fell, and `tis-s16` fell and came back; so that
rate was taken.

"Accuracy" is the share of right answers to 512 held-out problems, one answer
each, drawn at temperature 1. The *end* is its mean over the last four of 16
evaluations; the *start* is what the arm began with. Arms are compared seed by
seed, with the same start. The mean over six seeds has Student's 95 % interval,
and the interval decides. A claim is confirmed if all of its checks hold. `c` is
each of `tis`, `dis`, `mis`, `opsm` and `reject`.

L1  On policy there is something to learn: `none-s0`, end − start, is above 0.
A1  One update costs nothing: `none-s1` − `none-s0` is not below 0.
A2  Four updates cost accuracy: `none-s4` − `none-s0` is below 0.
A3  Sixteen cost more: `none-s16` − `none-s4` is below 0.
Z1  Corrections cost nothing where nothing is old: `c-s0` − `none-s0` is not
    below 0, for each c.
B1  Truncated weights help after 16 updates: `tis-s16` − `none-s16` is above 0.
B2  So does the mask of tokens: `dis-s16` − `none-s16` is above 0.
B3  So does the mask of completions: `mis-s16` − `none-s16` is above 0.
B4  So does it to leave bad completions out: `opsm-s16` − `none-s16` is above 0.
B5  So does it to leave out all that has moved: `reject-s16` − `none-s16` is
    above 0.
R1  After four updates corrections make up for all of it: `c-s4` − `none-s0` is
    not below 0, for each c.
R2  So they do after 16: `c-s16` − `none-s0` is not below 0, for each c.
D1  To mask tokens is better than to truncate their weights: `dis-s16` −
    `tis-s16` is above 0 (SAO, arXiv:2607.07508, has the mask).
D2  To mask completions is better than that: `mis-s16` − `tis-s16` is above 0.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm, Size
from experiments.science.claims import Rule, change, difference, table
from experiments.sweeps import figures
from grpo_jax.configs import quickstart
from grpo_jax.training.monitor import style

BASE = "base"
STALENESS = (0, 1, 4, 16)  # Updates.
# The first leaves out what is 10⁶ nats a token away, which nothing is: it takes
# old completions for new.
CORRECTIONS = {
  "none": Arm(
    "nothing: old completions are taken for new ones",
    settings={"algorithm.off_policy_threshold": 1e6},
  ),
  "tis": Arm(
    "weights of tokens, truncated at 2 (TIS)",
    settings={
      "algorithm.importance_mode": "truncate",
      "algorithm.importance_max": 2.0,
    },
  ),
  "dis": Arm(
    "weights of tokens, 0 outside of 0.7 to 6 (the DIS of SAO, for one gradient"
    " step on each batch)",
    settings={
      "algorithm.importance_mode": "mask",
      "algorithm.importance_min": 0.7,
      "algorithm.importance_max": 6.0,
    },
  ),
  "mis": Arm(
    "weights of completions, 0 above 3 (MIS)",
    settings={
      "algorithm.importance_mode": "mask",
      "algorithm.importance_level": "sequence",
      "algorithm.importance_max": 3.0,
    },
  ),
  "opsm": Arm(
    "bad completions that have become less likely by more than 0.5 nats a token"
    " are left out (OPSM)",
    settings={"algorithm.off_policy_threshold": 0.5},
  ),
  "reject": Arm(
    "completions whose geometric mean ratio is not in 0.5 to 2 are left out",
    settings={
      "algorithm.rejection": "seq_mean_k1",
      "algorithm.rejection_low": 0.5,
      "algorithm.rejection_high": 2.0,
    },
  ),
}


def _settings(correction: str, staleness: int) -> dict[str, Any]:
  settings = CORRECTIONS[correction].settings
  # It leaves completions out but weighs none, which would be refused alone.
  uncorrected = "algorithm.off_policy_threshold" in settings
  more = {"rl.staleness": staleness, "sampling.uncorrected": uncorrected}
  return {**settings, **more}


# Name -> the settings of the arm.
ARMS: dict[str, dict[str, Any]] = {
  BASE: {},
  **{
    f"{correction}-s{staleness}": _settings(correction, staleness)
    for correction in CORRECTIONS
    for staleness in STALENESS
  },
}
SIZES = {
  "full": Size(6, 200, 96, 8, 512),
  "smoke": Size(2, 10, 4, 2, 16),
}
GROUP_SIZE = 16
EVALUATIONS = 16  # Within the steps of an arm.
LEARNING_RATE = 3e-4
ALL = arms.Arms(ARMS, SIZES, BASE)
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  return arms.changed(on_brackets(size, name == BASE), ARMS[name])


def on_brackets(size: Size, imitates: bool) -> ml_collections.ConfigDict:
  """GRPO on brackets, or imitation of a teacher, without a correction."""
  config = quickstart.get_config("grpo")
  config.data.name = "bracket"
  config.data.task_options = ml_collections.ConfigDict(
    {"max_len": 16, "max_depth": 6, "teacher_error": 0.75, "tags": False}
  )
  config.model.width = 64
  config.model.mlp_width = 192
  config.phases = ("sft",) if imitates else ("rl",)
  config.sft.steps = size.imitation
  config.sft.num_prompts = 64
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.group_size = GROUP_SIZE
  # One gradient step on a batch: all that is off-policy is what arms are about.
  config.rl.num_minibatches = config.rl.num_epochs = 1
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = LEARNING_RATE
  config.rl.optimizer.schedule = "constant"
  config.rl.optimizer.final_fraction = 1.0  # No end of learning by itself.
  config.algorithm.kl_coef = 0.0
  config.eval.num_prompts = config.eval.batch_size = size.num_held_out
  config.eval.temperature = 1.0
  config.eval.every = max(1, size.steps // EVALUATIONS)
  config.checkpoint.every = 0
  config.required_accuracy = None
  return config


# Name here -> name of the metric in the log.
LOGGED = {
  "age": "staleness/mean",
  "weight": "policy_weight/mean",
  "gap": "sampler_gap/mean",
  "entropy": "entropy/mean",
  "drawn": "tokens/generated",
  "trained": "tokens/trained",
}
_EVALUATED = "eval/accuracy"
WINDOW = 4  # Evaluations of the end.
PARTS = 12  # Of the steps.


def of_run(
  lines: list[dict[str, Any]], logged: dict[str, str] = LOGGED
) -> dict[str, list[float]]:
  """The numbers of one run, from its log; those of the phase "rl".

  The accuracy on held-out problems at each evaluation, and means of what is
  `logged` over twelfths of the steps.
  """
  rows = [line for line in lines if line["phase"] == "rl"]
  steps = [row for row in rows if "tokens/generated" in row]
  found = {
    name: [
      _rounded(np.mean(part))
      for part in np.array_split([row[key] for row in steps], PARTS)
      if part.size
    ]
    for name, key in logged.items()
    if steps and key in steps[0]
  }
  found["held_out"] = [
    _rounded(row[_EVALUATED]) for row in rows if _EVALUATED in row
  ]
  return found


def _rounded(value: float) -> float:
  return float(f"{value:.4g}")


class Results(arms.Recorded):
  """The arms that have ended."""

  names, base = tuple(ARMS), BASE

  def mean(self, arm: str, what: str, digits: str = ".3f") -> str:
    """Mean of a number in `LOGGED` over steps and seeds; a dash without any."""
    values = self.series(arm, what)
    return "–" if values is None else f"{np.nanmean(values):{digits}}"

  def trained(self, arm: str) -> float:
    """Share of the drawn tokens that were trained."""
    trained, drawn = (
      np.nanmean(self.series(arm, x)) for x in ("trained", "drawn")
    )
    return trained / drawn

  def score(self, arm: str, what: str) -> np.ndarray:
    """The "start", "end" or "least" accuracy, or the mean "gap" [S]."""
    if what == "gap":
      return self.series(arm, what).mean(axis=1)
    values = self.series(arm, "held_out")
    if what == "start":
      return values[:, 0]
    if what == "least":
      return values.min(axis=1)
    return values[:, -WINDOW:].mean(axis=1)

  def accuracies(self, arm: str) -> list[str]:
    """Cells of a table: the accuracy at the start, the least, at the end."""
    start, least = (self.scores(arm, x).mean() for x in ("start", "least"))
    return [f"{start:.3f}", f"{least:.3f}", pages.cell(self.scores(arm, "end"))]


FRESH = "none-s0"


compared = functools.partial(difference, "end", shown="accuracy")


def _each(staleness: int) -> Iterator[Rule]:
  for name in list(CORRECTIONS)[1:]:
    yield compared(f"{name}-s{staleness}", FRESH, "not below")


CLAIMS = table(
  "L1 On policy there is something to learn.",
  change(f"accuracy of `{FRESH}`, end − start", FRESH, "end", "start"),
  "A1 One update costs nothing.",
  compared("none-s1", FRESH, "not below"),
  "A2 Four updates cost accuracy.",
  compared("none-s4", FRESH, "below"),
  "A3 Sixteen updates cost more than four.",
  compared("none-s16", "none-s4", "below"),
  "Z1 Corrections cost nothing where nothing is old.",
  *_each(0),
  "B1 Truncated weights help after 16 updates.",
  compared("tis-s16", "none-s16", "above"),
  "B2 The mask of tokens helps after 16 updates.",
  compared("dis-s16", "none-s16", "above"),
  "B3 The mask of completions helps after 16 updates.",
  compared("mis-s16", "none-s16", "above"),
  "B4 To leave bad completions out helps after 16 updates.",
  compared("opsm-s16", "none-s16", "above"),
  "B5 To leave out all that has moved helps after 16 updates.",
  compared("reject-s16", "none-s16", "above"),
  "R1 After four updates corrections make up for all of it.",
  *_each(4),
  "R2 After 16 updates corrections make up for all of it.",
  *_each(16),
  "D1 To mask tokens is better than to truncate their weights.",
  compared("dis-s16", "tis-s16", "above"),
  "D2 To mask completions is better than to truncate weights of tokens.",
  compared("mis-s16", "tis-s16", "above"),
)
CONFIRMED = "L1 A2 A3 Z1 B1 B3 B4 B5"
REFUTED = "A1 R1 R2"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""
  rows = (
    [
      f"`{name}`",
      *results.accuracies(name),
      *(results.mean(name, what) for what in ("gap", "weight")),
      f"{results.trained(name):.3f}",
    ]
    for name in results.arms
  )
  head = ("arm", "start", "least", "end", "gap", "weight", "trained")
  return {
    "corrections": pages.texts(CORRECTIONS, "what it does", "correction"),
    "ends": pages.table(head, rows),
  }


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over steps for each correction, a panel for each age."""
  canvas, grid = style.panels(2, 2, style.PAGE, 2.2, sharex=True, sharey=True)
  every = grid.ravel()
  for axes, staleness in zip(every, STALENESS, strict=True):
    updates = "update" if staleness == 1 else "updates"
    axes.set_title(f"Completions {staleness} {updates} old")
    named = {x: f"{x}-s{staleness}" for x in CORRECTIONS}
    accuracies(axes, results, named, SIZES["full"].steps)
  for axes in every[2:]:
    axes.set_xlabel("step")
  for axes in every[::2]:
    axes.set_ylabel("right answers, held out")
  style.shared_legend(canvas, every)
  style.save(canvas, path)


def accuracies(
  axes: Any, results: Results, named: dict[str, str], steps: int
) -> None:
  """Draws accuracies of arms over steps, by label."""
  for label, look in style.looks(tuple(named)).items():
    if named[label] in results.arms:
      values = results.series(named[label], "held_out")
      x = np.linspace(0, steps, values.shape[1])
      figures.curve(axes, x, values, look, label)
