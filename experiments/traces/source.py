"""A run as its page shows it: metrics, alarms and the policy's texts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.training.rules import rules
from grpo_jax.training.runtime import files, log, traces

# Of groups that come from samples.jsonl, where nothing chose them.
SAMPLED = "sample"
_ALARM = "alarm/"


@dataclasses.dataclass(frozen=True)
class Alarm:
  """Rule that a run has broken.

  Attributes:
    step: First step at which the rule was broken.
    rule: Number and name of the rule.
    text: Text of the rule; one sentence or a few.
  """

  step: int
  rule: str
  text: str


@dataclasses.dataclass(frozen=True)
class Run:
  """Metrics, alarms and groups of a run.

  Attributes:
    name: Name of its folder.
    algorithm: Name of the algorithm; "" without a config.
    metrics: Lines of metrics.jsonl, in the order of steps.
    alarms: Alarms in the order of steps.
    doubts: Sentences of result.json with doubts about the run.
    groups: Traced groups, and those of samples.jsonl that were not traced; in
      the order of steps.
  """

  name: str
  algorithm: str
  metrics: tuple[dict[str, Any], ...]
  alarms: tuple[Alarm, ...]
  doubts: tuple[str, ...]
  groups: tuple[traces.Group, ...]


def read(workdir: str | os.PathLike) -> Run:
  """Reads a run, which may still be going on.

  Args:
    workdir: Its folder, local or gs://.

  Raises:
    FileNotFoundError: The folder does not exist, or has no log.
    ValueError: A file is damaged.
  """
  folder = files.parse(workdir)
  if not (folder / log.METRICS).exists():
    raise FileNotFoundError(
      f"traces: there is no {log.METRICS} in {folder}; pass the"
      " --workdir of a run that has done a step."
    )
  traced = traces.read(folder)
  sampled: list[traces.Group] = []
  if (folder / log.SAMPLES).exists():
    lines = log.read_lines(folder / log.SAMPLES)
    sampled = of_samples(lines, {(x.step, x.prompt) for x in traced})
  config = _json(folder / log.CONFIG)
  result = _json(folder / log.RESULT)
  metrics = log.read_lines(folder / log.METRICS)
  return Run(
    name=folder.absolute().name if not files.is_remote(folder) else folder.name,
    algorithm=str(config.get("algorithm", {}).get("name", "")),
    metrics=tuple(metrics),
    alarms=tuple(alarms(metrics)),
    doubts=tuple(str(x) for x in result.get("doubts") or ()),
    groups=tuple(sorted([*traced, *sampled], key=lambda group: group.step)),
  )


def _json(path: files.Path) -> dict[str, Any]:
  return log.read_json(path, dict) if path.exists() else {}


def of_samples(
  lines: Sequence[Mapping[str, Any]], traced: Iterable[tuple[int, str]]
) -> list[traces.Group]:
  """Reads the groups of samples.jsonl, without numbers for tokens.

  The file lacks whether a completion came to an end, and the record of its
  prompt.

  Args:
    lines: Lines of the file; the rows of a group are neighbours.
    traced: Steps and prompts of groups that are left out.
  """
  known = set(traced)
  groups: list[traces.Group] = []
  for line in lines:
    step, prompt = int(line["step"]), str(line["prompt"])
    if (step, prompt) in known:
      continue
    if not groups or (groups[-1].step, groups[-1].prompt) != (step, prompt):
      groups.append(
        traces.Group(step, "", "train", -1, -1, prompt, (SAMPLED,), ())
      )
    last = groups[-1]
    row = _of_sample(line, len(last.rows))
    groups[-1] = dataclasses.replace(last, rows=(*last.rows, row))
  return groups


def _of_sample(line: Mapping[str, Any], sample: int) -> traces.TraceRow:
  scored = bool(line["valid"])
  return traces.TraceRow(
    row=-1,
    sample=sample,
    context=0,
    text=str(line["completion"]),
    tokens=(),
    ids=np.zeros((0,), np.int32),
    reward=line["reward"] if scored else None,
    correct=bool(line["correct"]) if scored else None,
    terminated=True,
    components=dict(line.get("components", {})),
  )


def alarms(metrics: Iterable[Mapping[str, Any]]) -> list[Alarm]:
  """Alarms of the rules, in the order of steps.

  Args:
    metrics: Lines of metrics.jsonl. `alarm/NAME` is in the line of the step.
  """
  found = []
  for line in metrics:
    for key in sorted(line):
      if not key.startswith(_ALARM) or not line[key]:
        continue
      name = key.removeprefix(_ALARM)
      # Another version of the library may have others.
      rule = rules.BY_NAME.get(name)
      text = f"{rule.meaning} {rule.advice}" if rule else ""
      known_as = f"{rule.number} {name}" if rule else name
      found.append(Alarm(line["step"], known_as, text))
  return found


def call_texts(call: Mapping[str, Any]) -> dict[str, str]:
  """Fields of a tool call as texts, by name."""
  return {
    str(name): value if isinstance(value, str) else json.dumps(value)
    for name, value in call.items()
    if value is not None
  }
