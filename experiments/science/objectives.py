"""One loud objective beside others, on a bandit and two tasks.

Sizes were chosen after trial runs of one seed or a few, each of a single arm
(MO-GRPO on the bandit and on `multi`, the reward for language A, the buggy
verifier), and before any two were compared; the rules below were written then.
They look at one number per seed: at the end of training minus at its start, or
of one arm minus of another with the same seed. The mean over seeds has
Student's 95 % interval, which of five seeds is approximate, and the interval
decides. A claim is confirmed if all of its checks hold.

B1  Two rewards on ten arms. MO-GRPO and GDPO make the regrets of both smaller.
B2  GRPO makes the loud regret smaller, and the quiet one not; the latter ends
    above that of MO-GRPO.
M1  Three objectives of a text. MO-GRPO and GDPO improve all three: right
    answers, brevity, politeness.
M2  GRPO improves politeness, which is the loud one, and neither right answers
    nor brevity.
M3  Of right answers, MO-GRPO and GDPO end with more than GRPO.
L1  A reward for one language ends the mixing: the share of language A rises,
    and ends above that without such a reward.
L2  A buggy verifier is exploited, and the log says that its scores are too
    good: the share of empty answers rises (what the bug alone accepts), right
    answers end below those with the right verifier, and the warning is there in
    every run.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import pathlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science import objectives_bandit as bandit
from experiments.science.arms import Arm, Size
from experiments.science.claims import Rule, rule, table
from experiments.sweeps import cells, figures, groups
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

_OPTIONS = "data.task_options"
# A warm start that finds a right answer hard and an empty one easy.
_TEMPTED = {f"{_OPTIONS}.teacher_error": 0.75, f"{_OPTIONS}.teacher_empty": 0.1}
# All arms of a task draw the same number of completions. In all arms with the
# same teacher, a seed means the same prompts and the same warm start.
ARMS = {
  "multi-grpo": Arm("GRPO: rewards are added, and their sum normalised"),
  "multi-mo_grpo": Arm(
    "MO-GRPO: each is normalised, and they are added", "mo_grpo"
  ),
  "multi-gdpo": Arm("GDPO: the same, and normalised over the batch", "gdpo"),
  "multi-mo_grpo-empty": Arm(
    "MO-GRPO after a teacher whose thoughts may be empty, which no rule is"
    " about: brief and polite are at odds there",
    *("mo_grpo", {f"{_OPTIONS}.min_thought": 0}),
  ),
  "language-with": Arm("GRPO, rewarded for language A with weight 1"),
  "language-without": Arm(
    "GRPO without a reward for the language",
    settings={"rewards.weights": (1.0, 0.5, 0.0)},
  ),
  "language-honest": Arm(
    "GRPO with the right verifier; the teacher leaves 1 answer in 10 empty, and"
    " gets 3 in 4 of the others wrong",
    settings=_TEMPTED,
  ),
  "language-buggy": Arm(
    "the same with the verifier that accepts an empty answer",
    settings={
      **_TEMPTED,
      "rewards.functions": ("accuracy_buggy", "format", "language"),
      "rewards.correct": "accuracy_buggy",
    },
  ),
}
BANDITS = tuple(f"bandit-{name}" for name in ("grpo", "mo_grpo", "gdpo"))
CHOSEN_FROM = (*BANDITS, *ARMS)
ALL = arms.Arms(ARMS, {"full": Size(5)})
RECORDS = "runs/objectives"  # The runs themselves, which git does not hold.
sweep, follows_on = ALL.sweep, ALL.follows_on


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm on the task `multi` or `language`."""
  name, _ = ALL.parsed(argument)
  base = importlib.import_module(f"grpo_jax.configs.{name.partition('-')[0]}")
  config = base.get_config(ARMS[name].algorithm)
  traces_every = config.log.traces_every
  arms.changed(config, ARMS[name].settings)
  config.log.traces_every = traces_every
  return config


def run(job: arms.Job, arm: str) -> int:
  """Runs an arm or a bandit; returns its exit status."""
  if arm in ARMS:
    return arms.sweep(job.root / arm, job.config(arm))
  path = job.root / f"{arm}.json"
  if path.exists():
    return 0
  started = time.monotonic()
  name = arm.removeprefix("bandit-")
  seeds = jnp.arange(bandit.NUM_SEEDS)
  regrets = np.asarray(jax.vmap(lambda seed: bandit.train(name, seed))(seeds))
  end = regrets.mean(axis=0)[-1]
  seconds = time.monotonic() - started
  kept = regrets[:, ::_EVERY].round(5).tolist()
  log.write_json(path, {"seconds": round(seconds, 1), "regrets": kept})
  print(f"{arm}: regrets {end.round(3)}, {seconds:.0f} s", flush=True)
  return 0


REGRETS = ("quiet regret", "loud regret")
EXPLOITED = "exploited"  # Answers that the bug accepts, and nothing else does.
WARNED = "warned"  # 1 where the log doubts the scores of a run.
_EVERY = 5  # Steps of the bandit between numbers that are kept.


def warned(output: str) -> set[str]:
  """The folders of runs that a warning about perfect scores is about."""
  found = set()
  for line in output.splitlines():
    if "Suspicious by default" in line:
      found |= {*re.findall(r"([^/\s]+)/samples\.jsonl", line)}
  return found


class Results:
  """Results of the runs in a root that have ended."""

  expected = CHOSEN_FROM

  def __init__(self, root: pathlib.Path):
    self._root = root
    self.arms = [x for x in BANDITS if self._bandit(x).exists()]
    self.arms += [x for x in ARMS if arms.has_ended(root / x)]

  def _bandit(self, name: str) -> pathlib.Path:
    return self._root / f"{name}.json"

  def regrets(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and regrets [S, N, 2] of an algorithm on the bandit."""
    text = self._bandit(name).read_text("utf-8")
    found = np.array(json.loads(text)["regrets"])
    return _EVERY * np.arange(found.shape[1]), found

  def curve(self, arm: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] and values [S, N] of a metric of the log."""
    [group], _ = groups.collect(self._root / arm, metric)
    steps = group.curves[0][0]
    return steps, np.array([values for _, values in group.curves])

  def scores(self, arm: str, metric: str, when: str) -> np.ndarray | None:
    """A score "before" or "after" the phase "rl" [S]; None if it has not ended.

    For a bandit it is a name in `REGRETS`; for an arm, `EXPLOITED`, `WARNED` or
    a held-out reward.
    """
    if arm not in self.arms:
      return None
    if arm in BANDITS:
      _, regrets = self.regrets(arm)
      return regrets[:, 0 if when == "before" else -1, REGRETS.index(metric)]
    if metric == EXPLOITED:
      buggy, right = (
        self._held_out(arm, x, when) for x in ("accuracy_buggy", "accuracy")
      )
      return buggy - right
    if metric == WARNED:
      text = (self._root / arm / arms.OUTPUT).read_text("utf-8")
      names = cells.read_manifest(self._root / arm)
      return np.array([float(name in warned(text)) for name in names])
    return self._held_out(arm, metric, when)

  def _held_out(self, arm: str, metric: str, when: str) -> np.ndarray:
    folder = self._root / arm
    return np.array(
      [
        cells.read_result(folder / name)[when][f"eval/reward/{metric}"]
        for name in cells.read_manifest(folder)
      ]
    )

  def seconds(self, arm: str) -> float:
    """Seconds of all starts of an arm, with compilation and evaluation."""
    if arm in BANDITS:
      return json.loads(self._bandit(arm).read_text("utf-8"))["seconds"]
    return arms.seconds(self._root / arm)

  def date(self) -> str:
    """Day on which the last run ended, YYYY-MM-DD."""
    paths = [
      self._bandit(x) if x in BANDITS else self._root / x / arms.SECONDS
      for x in self.arms
    ]
    last = max(path.stat().st_mtime for path in paths)
    return datetime.date.fromtimestamp(last).isoformat()


NORMALISING = ("mo_grpo", "gdpo")
OF_TEXTS = ("accuracy", "brevity", "politeness")


def _change(arm: str, metric: str, needed: str) -> Rule:
  """Rule that a metric has risen or fallen from the start to the end."""
  text = f"{metric} of `{arm}`, end − start"
  return rule(text, needed, (arm, metric, "after"), (arm, metric, "before"))


def _gap(one: str, other: str, metric: str) -> Rule:
  """Rule that one arm ends above another."""
  text = f"{metric}, `{one}` − `{other}`"
  return rule(text, "above", (one, metric, "after"), (other, metric, "after"))


CLAIMS = table(
  "B1 MO-GRPO and GDPO make both regrets of the bandit smaller.",
  *(
    _change(f"bandit-{name}", regret, "below")
    for name in NORMALISING
    for regret in REGRETS
  ),
  "B2 GRPO makes the loud regret smaller and the quiet one not.",
  _change("bandit-grpo", REGRETS[1], "below"),
  _change("bandit-grpo", REGRETS[0], "not below"),
  _gap("bandit-grpo", "bandit-mo_grpo", REGRETS[0]),
  "M1 MO-GRPO and GDPO improve all three objectives of `multi`.",
  *(
    _change(f"multi-{name}", objective, "above")
    for name in NORMALISING
    for objective in OF_TEXTS
  ),
  "M2 GRPO improves the loud objective alone.",
  *(_change("multi-grpo", x, "not above") for x in OF_TEXTS[:2]),
  _change("multi-grpo", "politeness", "above"),
  "M3 MO-GRPO and GDPO end with more right answers than GRPO.",
  *(_gap(f"multi-{x}", "multi-grpo", "accuracy") for x in NORMALISING),
  "L1 A reward for one language ends the mixing.",
  _change("language-with", "language", "above"),
  _gap("language-with", "language-without", "language"),
  "L2 A buggy verifier is exploited, and the warning about it is there.",
  _change("language-buggy", EXPLOITED, "above"),
  _gap("language-honest", "language-buggy", "accuracy"),
  rule(
    f"{WARNED} of `language-buggy` − 0.99",
    *("above", ("language-buggy", WARNED, "after"), 0.99),
  ),
)
CONFIRMED = "B1 B2 M1 L1"
REFUTED = "M2"
_OF_MULTI = (*OF_TEXTS, "first_half")
OF_LANGUAGE = ("accuracy", "accuracy_buggy", "format", "language", "spelling")


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  multi, language = (
    [name for name in ARMS if name.startswith(x)] for x in ("multi", "language")
  )
  chances = (
    [name, *(f"{x:.2f}" for x in bandit.probabilities()[:, place])]
    for place, name in enumerate("pq")
  )
  counts = {x: results.scores(x, WARNED, "after") for x in ARMS}
  return {
    "date": results.date(),
    "cores": os.cpu_count(),
    "chances": pages.table(("arm", *map(str, range(bandit.NUM_ARMS))), chances),
    "regrets": _table(results, BANDITS, REGRETS),
    "multi": _table(results, multi, _OF_MULTI),
    "multi_by_seed": _by_seed(results, multi),
    "language": _table(results, language, OF_LANGUAGE),
    "language_by_seed": _by_seed(results, language),
    "warned": pages.table(
      ("arm", "runs with the warning"),
      (
        [f"`{name}`", f"{count.sum():.0f} of {len(count)}"]
        for name, count in counts.items()
        if count is not None
      ),
    ),
    "costs": _costs(results),
  }


def _table(
  results: Results, names: Sequence[str], metrics: Sequence[str]
) -> Iterator[str]:
  """The table of values before and after, of each arm that has ended."""
  rows = (
    [
      f"`{name}`",
      word,
      *(pages.bootstrap(results.scores(name, x, when)) for x in metrics),
    ]
    for name in names
    if name in results.arms
    for when, word in (("before", "start"), ("after", "end"))
  )
  return pages.table(("arm", "", *metrics), rows)


def _by_seed(results: Results, names: Sequence[str]) -> Iterator[str]:
  yield "Right answers at the end, seed by seed:\n"
  for name in names:
    ends = results.scores(name, "accuracy", "after")
    if ends is not None:
      yield f"- `{name}`: {', '.join(f'{x:.2f}' for x in ends)}"


def _costs(results: Results) -> Iterator[str]:
  for name in results.arms:
    seconds = results.seconds(name)
    if name in BANDITS:
      yield f"- `{name}`: {bandit.NUM_SEEDS} seeds, {seconds:.0f} seconds."
    else:
      yield f"- `{name}`: {ARMS[name].text}; {seconds / 60:.1f} minutes."


_RED = style.FigureStyle(style.RED, "^")
_BLUE = style.FigureStyle(style.BLUE, "s")
_ALGORITHMS = {
  "bandit-grpo": ("GRPO", _RED),
  "bandit-mo_grpo": ("MO-GRPO", _BLUE),
  "bandit-gdpo": ("GDPO", style.FigureStyle(style.GREEN, "D")),
}
_OF_TEXTS = {
  name.replace("bandit", "multi"): look for name, look in _ALGORITHMS.items()
} | {
  "multi-mo_grpo-empty": (
    "MO-GRPO, empty thoughts",
    style.FigureStyle(style.GREY, "o"),
  )
}
_OF_LANGUAGES = {
  "language-with": ("with the reward", _BLUE),
  "language-without": ("without", _RED),
}
_OF_VERIFIERS = {
  ("language-buggy", "accuracy_buggy"): ("buggy: its score", _RED),
  ("language-buggy", "accuracy"): (
    "buggy: right answers",
    style.FigureStyle(style.RED, "v"),
  ),
  ("language-honest", "accuracy"): ("right verifier", _BLUE),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws regrets of the bandit, and rewards of texts over the steps."""
  canvas, axes = style.panels(3, 3, style.PAGE, 2.2)
  for place, title in enumerate(("quiet reward", "loud reward")):
    _bandit(axes[0, place], results, place)
    axes[0, place].set_title(f"Bandit: regret of the {title}")
  _plane(axes[0, 2], results)
  for one, metric in zip(
    axes[1], ("accuracy", "brevity", "politeness"), strict=True
  ):
    curves = {(arm, metric): look for arm, look in _OF_TEXTS.items()}
    _lines(one, results, curves)
    one.set_title(f"MULTI: {metric}")
  for one, metric in zip(axes[2], ("language", "accuracy"), strict=False):
    curves = {(arm, metric): look for arm, look in _OF_LANGUAGES.items()}
    _lines(one, results, curves)
    one.set_ylim(-0.03, 1.03)
  axes[2, 0].set_title("LANGUAGE: share of language A")
  axes[2, 1].set_title("LANGUAGE: right answers")
  _lines(axes[2, 2], results, _OF_VERIFIERS)
  axes[2, 2].set_ylim(-0.03, 1.03)
  axes[2, 2].set_title("LANGUAGE: two verifiers")
  for one in axes.flat:
    if one.get_legend_handles_labels()[0]:
      one.legend()
  for one in axes[1, ::2]:  # Its three have the same lines, and one has room.
    if one.get_legend():
      one.get_legend().remove()
  style.save(canvas, path)


def _bandit(axes: Any, results: Results, place: int) -> None:
  for name in filter(results.arms.__contains__, BANDITS):
    steps, regrets = results.regrets(name)
    label, look = _ALGORITHMS[name]
    figures.curve(axes, steps, regrets[..., place], look, label)
  axes.set_xlabel("step")
  axes.set_ylim(bottom=0)


def _plane(axes: Any, results: Results) -> None:
  """Draws the arms and the seeds' final regrets in the plane of regrets."""
  for arm, chances in enumerate(np.eye(bandit.NUM_ARMS)):
    place = np.asarray(bandit.regrets(chances))
    axes.plot(*place, ".", color=style.GREY)
    axes.annotate(
      str(arm), place, (4, 4), textcoords="offset points", color=style.GREY
    )
  for name in filter(results.arms.__contains__, BANDITS):
    label, look = _ALGORITHMS[name]
    _, regrets = results.regrets(name)
    axes.plot(
      *regrets[:, -1].T,
      look.marker,
      color=look.colour,
      fillstyle="none",
      ms=6 if name == "bandit-gdpo" else 3.5,  # They end in the same places.
      label=label,
    )
    axes.plot(*regrets[0, 0], "x", color=style.BLACK, ms=6)
  axes.set_xlabel("regret of the quiet reward")
  axes.set_ylabel("regret of the loud reward")
  axes.set_title("Bandit: start (×), arms, ends of all seeds")


def _lines(
  axes: Any,
  results: Results,
  curves: Mapping[tuple[str, str], tuple[str, style.FigureStyle]],
) -> None:
  for (arm, metric), (label, look) in curves.items():
    if arm not in results.arms:
      continue
    steps, values = results.curve(arm, f"reward/{metric}")
    first = steps.min()
    smooth = np.array(list(map(_smooth, values)))
    figures.curve(axes, steps - first + 1, smooth, look, label)
  axes.set_xlabel("step of reinforcement learning")


def _smooth(values: np.ndarray) -> np.ndarray:
  """Means over up to five neighbours."""
  window = np.ones(min(5, len(values)))
  sums = np.convolve(values, window, mode="same")
  return sums / np.convolve(np.ones(len(values)), window, mode="same")
