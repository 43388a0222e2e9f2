"""Rungs of DAPO's ladder, and ways to fill a batch of live groups.

The rules below were written before any arm had been run, and none was changed.
All arms were then run with a learning rate of 5e-5 and one pass over a batch,
for 60 updates. No more than 0.2 % of the tokens of a step were clipped there,
and `grpo` and `clip-higher` were the same to the last digit: the second rung
could not be seen. So the rate became 3e-4 and the passes four, after a trial of
seed 0 of `grpo`, in which 3 to 8 % were clipped; the updates became 40, because
it was nearly always right after them. Everything was run again. The verdicts of
the first time: confirmed L1, O1, O3, D1 to D3, A1, U1, R1, P1 and P2, and not
confirmed C1, C2, T1, O2, A2 and R2.

"Accuracy" is the share of right answers among all completions that were drawn,
also those of groups that were left out afterwards; the other numbers are of the
batch that was trained on. The end is the mean over the last 10 of 40 updates;
at equal completions it is that of the 10 updates before the arm has drawn as
many completions as `grpo` has in all. Arms are compared seed by seed, with the
same start. The mean over five seeds has Student's 95 % interval, and the
interval decides. A claim is confirmed if all of its checks hold.

L1  GRPO learns: accuracy of `grpo`, end − its first 10 updates, is above 0.
C1  Clip-higher keeps entropy: `clip-higher` − `grpo` at the end is above 0.
C2  And more is right: the accuracy of `clip-higher` − `grpo` is above 0.
T1  The mean over tokens adds accuracy: `token-mean` − `clip-higher` is above 0.
O1  The punishment of length makes for fewer completions that are cut off:
    `overlong` − `token-mean` is below 0.
O2  And adds accuracy: `overlong` − `token-mean` is above 0.
O3  The filter does not make them fewer, as it says nothing against them:
    the share of `overlong-filter` − `token-mean` is not below 0.
D1  Dynamic sampling adds accuracy at equal updates: `dapo` − `overlong` is
    above 0.
D2  It is not free: it draws more completions, `dapo` − `overlong` above 0, and
    at equal completions it is not better, `dapo` − `overlong` not above 0.
D3  Drawing on is what helps: at equal updates the accuracy of `dapo` − `mask`,
    which leaves dead groups out as well, is above 0.
A1  All parts together are better than GRPO at equal updates: `dapo` − `grpo` is
    above 0.
A2  And at equal completions.
U1  Repeated groups are as good as missing ones: at equal updates the accuracy
    of `duplicate` − `dapo` is not below 0.
R1  Recycling saves completions, `recycled` − `dapo` below 0, and costs no
    accuracy at equal updates, `recycled` − `dapo` not below 0.
R2  At equal completions it is better than dropping: `recycled` − `dapo` is
    above 0.
P1  Replay is better than leaving dead groups out, and draws as much: the
    accuracy of `replay` − `mask` is above 0.
P2  At equal completions it is better than drawing on: `replay` − `dapo` is
    above 0.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Arm, Size
from experiments.science.claims import change, difference, table
from experiments.sweeps import figures
from grpo_jax.configs import add_filler
from grpo_jax.training.monitor import style

_HIGHER = {"algorithm.clip_high": 0.28}
_TOKENS = _HIGHER | {
  "algorithm.dynamic_sampling": False,
  "algorithm.overlong_cache": 0.0,
}
_SHAPED = _TOKENS | {"algorithm.overlong_cache": 0.2}
_LIVE = _SHAPED | {"algorithm.dynamic_sampling": True}
_ROUNDS = _LIVE | {"rl.max_rounds": 4}
_CORRECTED = {"algorithm.importance_mode": "truncate"}

BASE = "base"
# Each rung has all parts of the rung before, and another one.
RUNGS = {
  "grpo": Arm("GRPO", settings={"algorithm.clip_high": 0.2}),
  "clip-higher": Arm("and ratios are clipped at 1.28", settings=_HIGHER),
  "token-mean": Arm("and the loss is a mean over tokens", "dapo", _TOKENS),
  "overlong": Arm("and long completions are punished", "dapo", _SHAPED),
  "dapo": Arm(
    *("and groups are drawn until a batch of them lives: DAPO", "dapo"), _ROUNDS
  ),
}
# All have all parts of DAPO. They differ in the use of groups whose rewards are
# all equal, and of groups beyond a batch.
FILLED = {
  "mask": Arm("DAPO; dead groups leave the loss, none is drawn", "dapo", _LIVE),
  "duplicate": Arm(
    "DAPO; if groups are missing, others are repeated",
    *("dapo", _ROUNDS | {"rl.when_short": "duplicate"}),
  ),
  "recycled": Arm(
    "DAPO; groups beyond a batch begin the next one",
    *("dapo", _ROUNDS | _CORRECTED | {"rl.recycle_surplus": True}),
  ),
  "replay": Arm(
    "DAPO; earlier groups take the place of dead ones, none is drawn",
    *("dapo", _LIVE | _CORRECTED | {"rl.replay_size": 64}),
  ),
}
ARMS = {
  BASE: Arm("imitation of a wordy teacher; all others go on"),
  **RUNGS,
  "overlong-filter": Arm(
    "as `overlong`, but completions that are cut off leave the loss",
    *("dapo", _TOKENS | {"algorithm.overlong_filter": True}),
  ),
  **FILLED,
}
BUDGET = 20  # Tokens of a completion.
GROUP_SIZE = 8
SIZES = {
  "full": Size(5, 200, 40, 16),
  "smoke": Size(2, 10, 4, 4),
}
ALL = arms.Arms(ARMS, SIZES, BASE, (BASE,))
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  config = add_filler.get_config(ARMS[name].algorithm)
  config.rewards.functions = ("accuracy",)
  config.rewards.weights = (1.0,)
  config.rewards.options = ml_collections.ConfigDict()
  config.sft.steps = size.imitation
  if name == BASE:
    config.phases = ("sft",)
  else:
    config.phases = ("rl",)
    # About one in ten of the teacher's completions is longer.
    config.sampling.max_new_tokens = BUDGET
  config.rl.steps = size.steps
  config.rl.num_prompts = size.num_prompts
  config.rl.optimizer.learning_rate = 3e-4
  config.rl.group_size = GROUP_SIZE
  # 16 gradient steps on a batch: of fewer and smaller ones none is clipped.
  config.rl.num_epochs = 4
  config.rl.num_minibatches = 4
  config.rl.num_lengths = 1  # Compiles faster.
  # The numbers are those of completions that are drawn in training.
  config.eval.num_prompts = config.eval.batch_size = 16
  config.eval.every = 0
  config.checkpoint.every = 0
  return arms.changed(config, ARMS[name].settings)


# Name here -> names of the metric in the log, of which the first one counts.
LOGGED = {
  "accuracy": ("drawn/accuracy", "accuracy"),
  "completions": ("completions/generated",),
  "tokens": ("tokens/generated",),
  "entropy": ("entropy/mean",),
  "truncated": ("truncated",),
  "length": ("length/mean",),
  "dead": ("dead_groups",),
  "age": ("staleness/mean",),
}
WINDOW = 10  # steps
REFERENCE = "grpo"  # As many completions as this arm has drawn.


def of_run(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
  """The numbers of one run, from its log; those of the phase "rl".

  In each step the number of completions drawn, and the statistics of these
  before any was left out.
  """
  steps = [line for line in lines if "completions/generated" in line]
  return {name: arms.column(steps, *keys) for name, keys in LOGGED.items()}


class Results(arms.Recorded):
  """The arms that have ended.

  The end of an arm is the mean over its last `WINDOW` steps.
  """

  names, base = tuple(ARMS), BASE

  def drawn(self, arm: str) -> np.ndarray:
    """Completions drawn until the end of each step [S, steps]."""
    return np.cumsum(self.series(arm, "completions"), axis=1)

  def at_equal_completions(self, arm: str, what: str) -> np.ndarray:
    """Values after as many completions as `REFERENCE` has drawn [S].

    They are means over `WINDOW` steps before the step in which the arm has
    drawn as many completions.
    """
    total = self.drawn(REFERENCE)[:, -1]
    values, drawn = self.series(arm, what), self.drawn(arm)
    found = []
    for seed, most in enumerate(total):
      steps = max(int((drawn[seed] <= most).sum()), 1)
      found.append(values[seed, max(steps - WINDOW, 0) : steps].mean())
    return np.array(found)

  def score(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while `REFERENCE` is missing.

    It is a name in `LOGGED` at the end; "start/accuracy" and the like in the
    first `WINDOW` steps; "equal/accuracy" and the like at equal completions; or
    "drawn", the number of completions in all.
    """
    when, _, name = what.rpartition("/")
    if what == "drawn":
      return self.drawn(arm)[:, -1]
    if when == "start":
      return self.series(arm, name)[:, :WINDOW].mean(axis=1)
    if when == "equal":
      known = REFERENCE in self._found
      return self.at_equal_completions(arm, name) if known else None
    return self.series(arm, name)[:, -WINDOW:].mean(axis=1)


_EQUAL = "accuracy at equal completions"
CLAIMS = table(
  "L1 GRPO learns.",
  change(
    *("accuracy of `grpo`, end − start", "grpo", "accuracy", "start/accuracy")
  ),
  "C1 Clip-higher keeps entropy.",
  difference("entropy", "clip-higher", "grpo"),
  "C2 Clip-higher adds accuracy.",
  difference("accuracy", "clip-higher", "grpo"),
  "T1 The mean over tokens adds accuracy.",
  difference("accuracy", "token-mean", "clip-higher"),
  "O1 The punishment of length makes for fewer completions that are cut off.",
  difference(
    *("truncated", "overlong", "token-mean", "below", "share cut off")
  ),
  "O2 The punishment of length adds accuracy.",
  difference("accuracy", "overlong", "token-mean"),
  "O3 The filter does not make completions that are cut off fewer.",
  difference(
    *("truncated", "overlong-filter", "token-mean", "not below"),
    "share cut off",
  ),
  "D1 Dynamic sampling adds accuracy at equal updates.",
  difference("accuracy", "dapo", "overlong"),
  "D2 Dynamic sampling is not free.",
  difference("drawn", "dapo", "overlong", "above", "completions drawn"),
  difference("equal/accuracy", "dapo", "overlong", "not above", _EQUAL),
  "D3 Drawing on is what helps.",
  difference("accuracy", "dapo", "mask"),
  "A1 All parts together are better than GRPO at equal updates.",
  difference("accuracy", "dapo", "grpo"),
  "A2 All parts together are better than GRPO at equal completions.",
  difference("equal/accuracy", "dapo", "grpo", shown=_EQUAL),
  "U1 Repeated groups are as good as missing ones.",
  difference("accuracy", "duplicate", "dapo", "not below"),
  "R1 Recycling saves completions and costs no accuracy.",
  difference("drawn", "recycled", "dapo", "below", "completions drawn"),
  difference("accuracy", "recycled", "dapo", "not below"),
  "R2 Recycling is better than dropping at equal completions.",
  difference("equal/accuracy", "recycled", "dapo", shown=_EQUAL),
  "P1 Replay is better than leaving dead groups out.",
  difference("accuracy", "replay", "mask"),
  "P2 Replay is better than drawing on at equal completions.",
  difference("equal/accuracy", "replay", "dapo", shown=_EQUAL),
)
CONFIRMED = "L1 O3 D1 D2 A1 U1 R1 P2"
REFUTED = "A2"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""
  columns = {
    "what it is": lambda x: ARMS[x].text,
    "accuracy, equal updates": pages.scored(results, "accuracy"),
    "completions drawn": pages.scored(results, "drawn", 0),
    "cut off": pages.scored(results, "truncated"),
    "accuracy, equal completions": pages.scored(results, "equal/accuracy"),
    "minutes": results.minutes,
  }
  return {"ends": pages.by_arm(results.arms, columns)}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over updates, and over completions."""
  canvas, grid = style.panels(1, 3, style.PAGE, 2.6, sharey=True)
  rungs, updates, completions = grid[0]
  style.label(rungs, "Rungs, equal updates", "updates", "right answers, drawn")
  style.label(updates, "Ways to fill a batch", "updates")
  style.label(
    completions, "The same, over draws", "completions, mean over seeds"
  )
  filled = ("overlong", "dapo", *FILLED)
  looks = style.looks(dict.fromkeys((*RUNGS, *filled)))
  _lines(rungs, results, looks, RUNGS, False)
  _lines(updates, results, looks, filled, False)
  _lines(completions, results, looks, filled, True)
  completions.locator_params(axis="x", nbins=4)
  style.shared_legend(canvas, grid.flat)
  style.save(canvas, path)


def _lines(
  axes,
  results: Results,
  looks: Mapping[str, style.FigureStyle],
  names: Iterable[str],
  over_completions: bool,
) -> None:
  """Means over seeds and `WINDOW` steps, with their interval."""
  for name in names:
    if name not in results.arms:
      continue
    found = results.series(name, "accuracy")  # [S, steps]
    size = min(WINDOW, found.shape[1])
    ends = range(size, found.shape[1] + 1)
    values = [found[:, end - size : end].mean(axis=1) for end in ends]
    x = np.array(ends, float)
    if over_completions:
      x = results.drawn(name).mean(axis=0)[size - 1 :]
    figures.curve(axes, x, np.stack(values, axis=1), looks[name], name)
