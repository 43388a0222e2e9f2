"""Imitation of labelled examples, reinforcement, or both.

The sizes were chosen after a trial run of the base alone; the rules below were
written before any arm had run. They look at one number per seed: the share of
right answers over 256 held-out sums, sampled at temperature 1, of one arm minus
that of another, or after reinforcement minus before it. The mean over five
seeds has Student's 95 % interval, and the interval decides. A claim is
confirmed if all of its checks hold. All arms but those of the smaller model
begin with the same base, so that an interval is about what follows.

Everything was run a second time, with the same rules, on another machine and
after changes of the code, so that draws are others. The verdict of S6 is
another one since: the first time it was not confirmed, with 0.169
[-0.088, 0.425] in the place of what stands below. All others are the same.

S1  More labelled examples make a better warm start: 512 are better than 64, and
    4096 better than 512.
S2  GRPO improves the base without a labelled example.
S3  After a warm start GRPO improves it further, for each number of examples.
S4  Both are better than one: with 512 examples and then GRPO the end is above
    GRPO alone with as many steps, and above 512 examples alone.
S5  GRPO alone ends above 512 labelled examples alone, at no label.
S6  A smaller model learns more from the right completions of a larger one than
    from the 512 labelled examples that the larger one had.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.arms import Size
from experiments.science.claims import Rule, change, rule, table
from experiments.sweeps import cells, figures, statistics
from grpo_jax.configs import add_steps
from grpo_jax.training.evaluation import generation
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

COUNTS = (64, 512, 4096)  # Labelled examples.
BASE, RL = "base", "rl-0"
SMALL_LABELS, SMALL_KEPT = "small-labels", "small-kept"
KEPT = "kept"  # Draws completions for the smaller model.
TEACHER = "sft-512"  # Whose completions the smaller model imitates.
# Two arms begin with a smaller model, and without a base.
SMALL = (SMALL_LABELS, SMALL_KEPT)
CHOSEN_FROM = {
  RL: "GRPO from the base, without a labelled example",
  **{f"sft-{n}": f"{n} labelled examples, then GRPO" for n in COUNTS},
  SMALL_LABELS: "a smaller model on 512 labelled examples",
  SMALL_KEPT: f"the same on right completions of `{TEACHER}`, first seed",
}
ALL = arms.Arms((BASE, *CHOSEN_FROM), {"full": Size(5)})
NUM_DRAWN = 4096  # Prompts of which completions are kept.
sweep = ALL.sweep


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, or of the base.

  The base model has read examples in which seven carries in ten are forgotten.
  Each arm goes on from it, first with a number of labelled examples, which are
  right, and then with GRPO.
  """
  name, _ = ALL.parsed(argument)
  config = add_steps.get_config("grpo")
  options = config.data.task_options
  options.level = 3
  options.teacher_error = 0.7 if name == BASE else 0.0
  config.model.width = 64
  config.model.mlp_width = 192
  config.sft.steps = 600 if name == BASE else 200
  config.rl.steps = 100
  config.eval.every = 10
  config.checkpoint.every = 0
  if name == RL:
    config.phases = ("rl",)
  elif name in SMALL:
    config.model.width = 32
    config.model.mlp_width = 96
    config.sft.steps = 1000
  if name in (BASE, *SMALL):
    config.rl.steps = 0  # It is only evaluated.
  if name.startswith("sft-"):
    config.sft.num_records = int(name.removeprefix("sft-"))
    config.sft.optimizer.learning_rate = 5e-4
  if name == SMALL_LABELS:
    config.sft.num_records = 512
  return arms.changed(config, {})


def needed(chosen: list[str]) -> list[str]:
  """Adds the arms that these need first: the base, and kept completions."""
  found = [BASE, *chosen]
  if SMALL_KEPT in chosen:
    at = found.index(SMALL_KEPT)
    found[at:at] = [*([] if TEACHER in chosen else [TEACHER]), KEPT]
  return found


def base(root: pathlib.Path) -> pathlib.Path:
  """The run that arms begin with."""
  return root / BASE / "run"


def kept(root: pathlib.Path) -> pathlib.Path:
  """The completions that the smaller model imitates."""
  return root / KEPT / "kept.jsonl"


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name what an arm begins with, or imitates."""
  if name == SMALL_KEPT:
    return [f"--config.sft.demonstrations={kept(root)}"]
  if name in (BASE, SMALL_LABELS):
    return []
  return [f"--config.start_workdir={base(root)}"]


def run(job: arms.Job, arm: str) -> int:
  """Runs the base, an arm, or the sampling; returns its exit status."""
  return {BASE: _run_base, KEPT: _draw}.get(arm, lambda x: x.record(arm))(job)


def _run_base(job: arms.Job) -> int:
  workdir, status = base(job.root), 0
  if cells.read_result(workdir) is None:
    status = arms.timed(
      job.root / BASE,
      *("experiments.train", f"--config={job.config(BASE)}"),
      f"--workdir={workdir}",
    )
  found = cells.read_result(workdir)
  if found is not None:
    _write(job, BASE, {"accuracy": found["after"]["eval/accuracy"]})
  return status


def _draw(job: arms.Job) -> int:
  """Keeps right completions; a file that is complete stays as it is."""
  teacher, status = job.root / TEACHER, 0
  if not arms.has_ended(teacher):
    return 1
  if num_drawn(job.root) is None:
    status = arms.timed(
      job.root / KEPT,
      "experiments.generate",
      f"--workdir={teacher / next(iter(cells.read_manifest(teacher)))}",
      "--prompts=train",
      f"--num_prompts={NUM_DRAWN}",
      "--num_samples=4",
      "--keep=1",
      f"--out={kept(job.root)}",
    )
  tokens = num_drawn(job.root)
  if tokens is not None:
    _write(job, KEPT, {"tokens": tokens})
  return status


def num_drawn(root: pathlib.Path) -> int | None:
  """Number of tokens drawn for `kept`; None while some are missing."""
  path = generation.position_of(kept(root))
  if not path.exists():
    return None
  done = json.loads(path.read_text("utf-8"))["done"]
  return done["tokens"] if done["prompts"] == NUM_DRAWN else None


def _write(job: arms.Job, name: str, found: dict[str, Any]) -> None:
  taken = {"seconds": arms.seconds(job.root / name)}
  log.write_json(job.out / f"{name}.json", found | taken)


def of_run(lines: list[dict[str, Any]]) -> list[list[float]]:
  """[Tokens drawn until then, right answers] of each evaluation of a run."""
  drawn, points = 0.0, []
  for line in lines:
    drawn += line.get("tokens/generated") or 0.0
    if "eval/accuracy" in line:
      points.append([drawn, round(line["eval/accuracy"], 4)])
  return points


class Results(arms.Recorded):
  """The runs that have left numbers."""

  names = (BASE, KEPT, *CHOSEN_FROM)

  @property
  def arms(self) -> list[str]:
    return [name for name in self._found if name in CHOSEN_FROM]

  def of(self, name: str, what: str, missing: float) -> float:
    """A number of the base, or of the completions that are kept."""
    return self._found.get(name, {what: missing})[what]

  def curve(self, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens drawn by each seed, and its accuracy.

    Returns:
      Tokens [S, N] that were drawn in training until an evaluation, and the
      held-out accuracy [S, N] there. The first one is before reinforcement.
    """
    points = np.array(self._found[arm]["seeds"], float)
    return points[..., 0], points[..., 1]

  def score(self, arm: str, when: str) -> np.ndarray:
    """Held-out accuracy "before" or "after" reinforcement [S]."""
    return self.curve(arm)[1][:, 0 if when == "before" else -1]

  @property
  def all_minutes(self) -> float:
    """Minutes of all starts of all runs."""
    return np.nansum([x["seconds"] for x in self._found.values()]) / 60


_FEW, _SOME, _MANY = (f"sft-{n}" for n in COUNTS)


def _gap(text: str, one: tuple[str, str], other: tuple[str, str]) -> Rule:
  return rule(text, "above", one, other)


def _rise(arm: str) -> Rule:
  return change(f"`{arm}`, after GRPO − before", arm, "after", "before")


CLAIMS = table(
  "S1 More labelled examples make a better warm start",
  _gap("512 examples − 64", (_SOME, "before"), (_FEW, "before")),
  _gap("4096 examples − 512", (_MANY, "before"), (_SOME, "before")),
  "S2 GRPO improves the base without a labelled example",
  _rise(RL),
  "S3 After a warm start GRPO improves it further",
  *map(_rise, (_FEW, _SOME, _MANY)),
  "S4 512 examples and then GRPO are better than either alone",
  _gap("both − GRPO alone", (_SOME, "after"), (RL, "after")),
  _gap("both − examples alone", (_SOME, "after"), (_SOME, "before")),
  "S5 GRPO alone ends above 512 labelled examples alone",
  _gap("GRPO alone − 512 examples", (RL, "after"), (_SOME, "before")),
  "S6 A smaller model learns more from kept completions than from the labels",
  _gap(
    "kept completions − 512 examples",
    *((SMALL_KEPT, "after"), (SMALL_LABELS, "after")),
  ),
)
CONFIRMED = "S1 S2 S6"
REFUTED = "S3 S5"
PAGE = "sft_or_rl"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""

  def row(arm: str) -> list[str]:
    count = results.curve(arm)[0][:, -1].mean()
    if arm == SMALL_KEPT:
      count = results.of(KEPT, "tokens", 0) + results.curve(TEACHER)[0][0, -1]
    before, after = (
      pages.bootstrap(results.scores(arm, x)) for x in ("before", "after")
    )
    before = "–" if arm in SMALL else before
    return [f"`{arm}`", CHOSEN_FROM[arm], before, after, f"{count / 1e6:.2f}"]

  head = ("arm", "", "before GRPO", "after", "tokens generated, millions")
  return {
    "minutes": results.all_minutes,
    "base_accuracy": results.of(BASE, "accuracy", np.nan),
    "ends": pages.table(head, map(row, results.arms)),
    "crossings": pages.table(
      ("labelled examples alone", "GRPO alone is as good after"),
      _crossings(results),
    )
    if RL in results.arms
    else (),
  }


def _crossings(results: Results):
  """Yields the tokens after which GRPO alone equals labelled examples alone."""
  tokens, accuracy = (x.mean(axis=0) for x in results.curve(RL))
  for count in COUNTS:
    labelled = results.scores(f"sft-{count}", "before")
    if labelled is not None:
      above = np.flatnonzero(accuracy >= labelled.mean())
      found = "never"
      if above.size:
        found = f"{tokens[above[0]] / 1e6:.2f} million tokens"
      yield [f"{count}: {labelled.mean():.3f}", found]


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy over labels, and over tokens."""
  canvas, grid = style.panels(1, 2, style.PAGE, 2.7, sharey=True)
  left, right = grid[0]
  with_grpo = [f"sft-{n}" for n in COUNTS]
  for number, (when, text) in enumerate(
    (("before", "imitation"), ("after", "and then GRPO"))
  ):
    points = [(n, results.scores(f"sft-{n}", when)) for n in COUNTS]
    scores = [(n, x) for n, x in points if x is not None]
    if scores:
      counts = np.array([n for n, _ in scores])
      values = np.stack([x for _, x in scores], axis=1)
      figures.curve(left, counts, values, style.look(number), text)
  for number, (arm, text) in enumerate(
    zip(SMALL, ("smaller, on labels", "smaller, on kept ones"), strict=True),
    start=2,
  ):
    if (ends := results.scores(arm, "after")) is not None:
      low, high = statistics.interval(ends)
      error = [[ends.mean() - low], [high - ends.mean()]]
      look = style.look(number)
      left.errorbar(
        *([512], [ends.mean()], error),
        **{"fmt": look.marker, "color": look.colour, "label": text},
      )
  base_accuracy = results.of(BASE, "accuracy", np.nan)
  left.axhline(base_accuracy, color=style.GREY, ls=":", label="base")
  left.set_xscale("log")
  style.label(left, x="labelled examples", y="right answers")
  names = [x for x in (RL, *with_grpo) if x in results.arms]
  for name, look in style.looks(names).items():
    tokens, accuracy = results.curve(name)
    figures.curve(right, tokens.mean(axis=0) / 1e6, accuracy, look, name)
  style.label(right, x="tokens generated, millions")
  style.shared_legend(canvas, [left])
  style.name_lines(canvas, right)
  style.save(canvas, path)
