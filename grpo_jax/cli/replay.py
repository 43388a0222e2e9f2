"""Draws a completion of a run again, and prints it with all its numbers.

    grpo-replay --workdir=runs/quickstart \
        --step=320 --prompt=312 --sample=7
    grpo-replay --workdir=runs/quickstart --check=10

The prompt is its occurrence in the stream, `prompt_id` in traces.jsonl.gz;
samples of a prompt are counted from 0. The run is repeated from the last
checkpoint before the step, or from its start; its folder is left as it is. If
the step was traced, the completion is compared with the trace, bit for bit.
`--check` does so with the given number of traced completions, chosen at random
from the whole run.

Each number is written so that it stands for exactly one float32. Exit status:
0; 1 if a completion differs from its trace; 2 a mistake in the command or the
workdir.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files, traces

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_STEP = flags.DEFINE_integer("step", None, "Over all phases, from 1.", 1)
_PROMPT = flags.DEFINE_integer("prompt", None, "Occurrence in the stream.", 0)
_SAMPLE = flags.DEFINE_integer("sample", 0, "Of the prompt, from 0.", 0)
_CHECK = flags.DEFINE_integer(
  "check", None, "Instead: compare as many traced completions, at random.", 1
)
_COLUMNS = 4  # Of numbers, side by side.
_WIDTH = 16  # Characters of each.


def main(argv: Sequence[str]) -> int:
  """Prints the completion drawn again, and its comparison with the trace."""
  del argv
  if _CHECK.value is not None:
    return _check(_WORKDIR.value, _CHECK.value)
  if _STEP.value is None or _PROMPT.value is None:
    raise ValueError(
      "replay: --step and --prompt say which completion is drawn again; pass"
      " both, or --check=10 for ten traced ones at random."
    )
  return _show(_WORKDIR.value, _STEP.value, _PROMPT.value)


def _show(workdir: str, step: int, prompt: int) -> int:
  """Prints a completion, and its comparison with the trace."""
  from grpo_jax.training import replay

  (group,) = replay.replay(workdir, step, prompt)
  rows = _rows(group)
  if not rows:
    count = 1 + max(row.sample for row in group.rows)
    raise ValueError(
      f"--sample={_SAMPLE.value}: prompt {prompt} has {count} samples in step"
      f" {step}, 0 to {count - 1}."
    )
  print(f"step {step} ({group.phase}), prompt {prompt}, record {group.record}:")
  print(f"  {files.escaped(group.prompt)}")
  for row in rows:
    print("\n".join(_described(row)))
  expected = replay.recorded(workdir, step, prompt)
  if expected is None:
    print("the step was not traced with this prompt: nothing to compare with")
    return 0
  differing = [
    name
    for row, traced in zip(rows, _rows(expected), strict=True)
    for name in replay.differences(row, traced)
  ]
  if differing:
    print(f"FAIL: it differs from its trace in {', '.join(differing)}")
    _print_changes(workdir)
    return 1
  print("equal to its trace, bit for bit")
  return 0


def _check(workdir: str, number: int) -> int:
  """Draws traced completions again, and prints for each whether it is equal."""
  from grpo_jax.training import replay

  traced = [
    (group, index)
    for group in traces.read(workdir)
    if group.split == "train"
    for index in range(len(group.rows))
  ]
  if not traced:
    raise ValueError(
      f"replay: {workdir} has no traced completion of a training step; a run"
      " with --config.log.traces_every of 1 or more has some."
    )
  order = np.random.default_rng(0).permutation(len(traced))[:number]
  picks = [traced[index] for index in sorted(order)]
  prompts: dict[int, dict[int, None]] = {}
  for group, _ in picks:
    prompts.setdefault(group.step, {})[group.prompt_id] = None
  again = {
    (group.step, group.prompt_id): group
    for group in replay.replay_steps(
      workdir, {step: list(ids) for step, ids in prompts.items()}
    )
  }
  num_failed = tokens = numbers = 0
  for group, index in picks:
    row = group.rows[index]
    new_row = again[group.step, group.prompt_id].rows[index]
    differing = replay.differences(new_row, row)
    num_failed += bool(differing)
    tokens += len(row.ids)
    numbers += len(row.ids) * len(row.values)
    context = f", context {row.context}" if row.context else ""
    verdict = f"FAIL: {', '.join(differing)}" if differing else "equal"
    print(
      f"step {group.step}, prompt {group.prompt_id}, sample {row.sample}"
      f"{context}: {verdict}"
    )
  equal = len(picks) - num_failed
  print(
    f"{equal} of {len(picks)} are equal, bit for bit: {tokens} tokens and"
    f" {numbers} of their numbers were compared"
  )
  if num_failed:
    _print_changes(workdir)
  return int(num_failed > 0)


def _print_changes(workdir: str) -> None:
  """Prints other differences: numbers are equal only on equal versions."""
  from grpo_jax.training.runtime import log

  changes = log.changes_since(workdir)
  for line in changes or ["versions, devices and commit are those of the run"]:
    print(f"  {line}")


def _rows(group: traces.Group) -> list[traces.TraceRow]:
  return [row for row in group.rows if row.sample == _SAMPLE.value]


def _described(row: traces.TraceRow) -> list[str]:
  """A row with its numbers, as lines."""
  context = f", context {row.context}" if row.context else ""
  lines = [f"sample {row.sample}{context}: {files.escaped(row.text)}"]
  table = {"reward": row.reward, "correct": row.correct, **row.components}
  table["terminated"] = row.terminated
  lines += [f"  {name}: {'–' if x is None else x}" for name, x in table.items()]
  if row.error:
    lines.append(f"  error: {files.escaped(row.error)}")
  for call in row.calls:
    question, answer = files.escaped(call["in"]), files.escaped(call["out"])
    lines.append(f"  turn {call['turn']}: {question} -> {answer}")
  names = sorted(row.values)
  for start in range(0, len(names), _COLUMNS):
    group = names[start : start + _COLUMNS]
    head = "".join(name.rjust(_WIDTH) for name in group)
    lines.append(f"{'token'.ljust(14)}{head}")
    for t, token in enumerate(row.tokens):
      numbers = "".join(_exact(row.values[k][t]).rjust(_WIDTH) for k in group)
      lines.append(f"{files.escaped(token)[:13].ljust(14)}{numbers}")
  return lines


def _exact(x: np.generic) -> str:
  """Text of a number that no other number of its dtype has."""
  return "–" if x != x else str(x)


run = functools.partial(flags_lib.run, main)
