"""What `experiments.train` says of a policy at the end, in lines of text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from grpo_jax.training import escapes, evaluation, unscored


def example(completion: evaluation.Completion) -> str:
  """A held-out completion and its reward."""
  prompt, text = _short(completion.prompt, 30), _short(completion.text, 34)
  verdict = f"{completion.reward:.2f}" if completion.valid else "unscored"
  return f"  {prompt:<30} {text:<34} {verdict:>8}"


def _short(text: str, width: int) -> str:
  line = escapes.escaped(text.strip())
  return line if len(line) <= width else line[: width - 1] + "…"


def before_and_after(
  before: Mapping[str, float],
  after: Mapping[str, float],
  num_prompts: int,
  how: str,
  seconds: float,
) -> list[str]:
  """A table of held-out means, and the accuracy over all prompts.

  Args:
    before: `evaluation.summarize` before training.
    after: The same at the end.
    num_prompts: Behind them.
    how: Completions were drawn.
    seconds: That all took.
  """
  head = f"held-out, {how}, n = {num_prompts}"
  lines = [f"{head:<30} {'before':>8}  {'after':>8}"]
  for name, value in after.items():
    label = name.removeprefix("eval/")
    lines.append(
      f"  {label:<28} {_number(before[name]):>8}  {_number(value):>8}"
    )
  accuracy = after["eval/accuracy"]
  low, high = evaluation.wilson_interval(accuracy * num_prompts, num_prompts)
  return [
    *lines,
    f"accuracy {before['eval/accuracy']:.3f} -> {accuracy:.3f}"
    f" (95 % interval {low:.3f}-{high:.3f}) in {seconds:.0f} s",
  ]


def _number(value: float) -> str:
  """Three decimals; a dash for a mean over nothing."""
  return "–" if math.isnan(value) else f"{value:.3f}"


def failure(
  after: Mapping[str, float],
  num_prompts: int,
  required_accuracy: float | None,
  max_unscored: float,
) -> str | None:
  """Why a policy does not pass; None if it does, or nothing is required.

  Args:
    after: `evaluation.summarize`.
    num_prompts: Behind it, with one completion each.
    required_accuracy: Over all of them; None: any.
    max_unscored: `config.rewards.max_unscored`.
  """
  excess = unscored.excess(after["eval/unscored"], num_prompts, max_unscored)
  if excess is not None:
    return excess
  accuracy = after["eval/accuracy"]
  if required_accuracy is not None and accuracy < required_accuracy:
    return f"accuracy {accuracy:.3f} < {required_accuracy:.3f}"
  return None
