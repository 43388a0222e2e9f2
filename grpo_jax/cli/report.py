"""Reports of `train` and `evaluate` on a policy, in lines of text."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from grpo_jax.training.evaluation import data_sets, evaluation, scores
from grpo_jax.training.problem import unscored
from grpo_jax.training.runtime import files, traces
from grpo_jax.training.runtime import log as log_lib


def example(completion: evaluation.Completion, width: int = 80) -> str:
  """Line with a held-out completion and its reward.

  Args:
    completion: Completion, cut if it is too long.
    width: Largest number of columns of the line.
  """
  room = min(width, 76) - 12  # Beside blanks and the reward.
  sizes = room * 30 // 64, room - room * 30 // 64
  prompt = _short(completion.prompt, sizes[0])
  text = _short(completion.text, sizes[1])
  verdict = f"{completion.reward:.2f}" if completion.valid else "unscored"
  return f"  {prompt:<{sizes[0]}} {text:<{sizes[1]}} {verdict:>8}"


def _short(text: str, width: int) -> str:
  line = files.escaped(text.strip())
  return line if len(line) <= width else line[: width - 1] + "…"


def before_and_after(
  before: Mapping[str, float],
  after: Mapping[str, float],
  num_prompts: int,
  how: str,
  seconds: float,
) -> list[str]:
  """Table of held-out means, and the accuracies with Wilson's intervals.

  Means over nothing are "–", never 0.

  Args:
    how: Description of how completions were drawn.
  """
  head = f"held-out, {how}, n = {num_prompts}"
  lines = [f"{head:<30} {'before':>8}  {'after':>8}  {'change':>8}"]
  for name, value in after.items():
    if name.startswith("eval/domain/") and not name.endswith("/accuracy"):
      continue  # In metrics.jsonl; here they would be most of the lines.
    label = _short(name.removeprefix("eval/"), 28)
    cells = [_number(before[name]), _number(value)]
    change = _number(value - before[name], "+")
    lines.append(f"  {label:<28} {cells[0]:>8}  {cells[1]:>8}  {change:>8}")
  shares = [x["eval/accuracy"] for x in (before, after)]
  intervals = [
    "{:.3f}-{:.3f}".format(
      *scores.wilson_interval(x * num_prompts, num_prompts)
    )
    for x in shares
    if not math.isnan(x)
  ]
  text = f", 95 % intervals {' and '.join(intervals)}," if intervals else ""
  return [
    *lines,
    f"accuracy {' -> '.join(map(_number, shares))}{text} in {seconds:.0f} s",
  ]


def _number(value: float, sign: str = "") -> str:
  """Three decimals; a dash for a mean over nothing."""
  return "–" if math.isnan(value) else f"{value:{sign}.3f}"


def places(
  workdir: files.Path, plot: files.Path | None, tensorboard: bool
) -> list[str]:
  """Lines about the existing outputs of a run, with the commands to open them.

  Args:
    tensorboard: Whether there are TensorBoard events.
  """
  samples, log = workdir / log_lib.SAMPLES, workdir / traces.FILE
  folder = shlex.quote(str(workdir))
  lines = []
  if _has_content(log):
    page = (  # A program of the checkout; the package does without.
      f"python -m experiments.traces --workdir={folder}"
      f" --out={folder}/traces.html"
    )
    is_there = importlib.util.find_spec("experiments")
    lines.append(f"traces: {page if is_there else log}")
  if _has_content(samples):
    lines.append(f"samples: {samples}")
  if plot is not None:
    lines.append(f"plot: {plot}")
  if tensorboard:
    lines.append(f"curves: tensorboard --logdir={folder}")
  return lines


def _has_content(path: files.Path) -> bool:
  """True for a file that is not empty, on a disk or in a bucket."""
  if not path.exists():
    return False
  with path.open("rb") as file:
    return bool(file.read(1))


def alarms(workdir: files.Path) -> str | None:
  """Line with the health rules that have warned, as in result.json.

  Returns:
    "alarms: H01 all_groups_dead (rl, step 110), …"; None if none has warned.
  """
  result = json.loads((workdir / log_lib.RESULT).read_text())
  texts = [
    f"{alarm['rule']} {alarm['name']} ({alarm['phase']}, step {alarm['step']})"
    for alarm in result["alarms"]
  ]
  return f"alarms: {', '.join(texts)}" if texts else None


def failure(
  after: Mapping[str, float],
  num_prompts: int,
  required_accuracy: float | None,
  max_unscored: float,
) -> str | None:
  """Reason why a policy does not pass; None if it does, or nothing is required.

  Args:
    num_prompts: Number of prompts of it, with one completion each.
    required_accuracy: Required accuracy over all of them; None: any.
    max_unscored: `config.rewards.max_unscored`.
  """
  excess = unscored.excess(after["eval/unscored"], num_prompts, max_unscored)
  if excess is not None:
    return excess
  accuracy = after["eval/accuracy"]
  if required_accuracy is None or accuracy >= required_accuracy:
    return None
  if math.isnan(accuracy):
    return f"no completion was scored; needs {required_accuracy:.3f}"
  return f"accuracy {accuracy:.3f} < {required_accuracy:.3f}"


def evaluation_tables(
  title: str, how: str, content: Mapping[str, Any]
) -> list[str]:
  """Lines that `grpo-evaluate` prints.

  Args:
    how: Description of how completions were sampled.
    content: Content of evaluation.json.
  """
  lines = []
  for name, section in content["data_sets"].items():
    prompts = "held-out prompts"
    if name != data_sets.HELD_OUT:
      prompts = f"prompts of {_short(name, 24)}"
    lines += [
      f"{title}: {section['num_prompts']} {prompts},",
      f"greedy, and {how}",
      *_figures(section["figures"]),
      *_lengths(section),
    ]
    if "domains" in section:
      lines += _by_part("domain", section["domains"], section["macro"])
    lines.append("")
  if "macro" in content:
    lines += [*_by_part("data set", content["data_sets"], content["macro"]), ""]
  return lines[:-1]


def _figures(figures: Mapping[str, Mapping[str, float | None]]) -> list[str]:
  """A line for each figure, with its interval."""
  return [
    f"  {name:<13} {_or_dash(row['value'], 5)}"
    f"   (95 % interval {row['low']:.3f}-{row['high']:.3f})"
    for name, row in figures.items()
  ]


def _lengths(section: Mapping[str, Any]) -> list[str]:
  """Line about tokens of completions, and numbers of cut and unscored ones."""
  greedy, sampled = section["greedy"], section["sampled"]
  lines = [f"  {'':<22} {'greedy':>9} {'sampled':>9}"]
  for name, label, digits in (
    ("length_right", "tokens of right ones", 1),
    ("length_wrong", "tokens of wrong ones", 1),
    ("truncated", "share cut off", 3),
  ):
    cells = [_or_dash(x[name], 9, digits) for x in (greedy, sampled)]
    lines.append(f"  {label:<22} {cells[0]} {cells[1]}")
  counts = f"{greedy['unscored']:>9} {sampled['unscored']:>9}"
  return [*lines, f"  {'unscored':<22} {counts}"]


def _by_part(
  kind: str,
  parts: Mapping[str, Mapping[str, Any]],
  mean: Mapping[str, Mapping[str, float | None]],
) -> list[str]:
  """Lines for each domain or data set, and for their mean.

  Args:
    parts: Name -> "num_prompts" and "figures".
    mean: Result of `scores.macro` for them.
  """
  names = [name for name in mean if name.startswith(("greedy", "avg@"))]
  count = names[-1].removeprefix("avg@")
  names += [f"pass@{count}", f"maj@{count}"]
  lines = [
    f"  {kind:<22} {'prompts':>8}" + "".join(f"{name:>10}" for name in names)
  ]
  rows = {name: (x["num_prompts"], x["figures"]) for name, x in parts.items()}
  rows[f"mean of {kind}s"] = ("", mean)
  for name, (count, figures) in rows.items():
    cells = "".join(_or_dash(figures[k]["value"], 10) for k in names)
    lines.append(f"  {_short(name, 22):<22} {count:>8}{cells}")
  return lines


def _or_dash(value: float | None, width: int, digits: int = 3) -> str:
  """A number; a dash for a mean over nothing."""
  text = "  –  " if value is None else f"{value:.{digits}f}"
  return text.rjust(width)
