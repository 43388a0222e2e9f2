"""Generation: completions of many prompts, written to a file that grows.

    for done in generation.generate(loaded, source, num, out, wanted): …

A line of the file is a completion (`data/demonstrations.py`). Beside it,
`OUT.position.json` has the progress of the file, and is written after each
batch. So a program that was killed continues with the batch that it was in, and
ends with the bytes of one that was not. The draws for a prompt depend on the
seed and on the place of the prompt alone: neither on the number of prompts at a
time nor, but for rounding, on the devices.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import ml_collections

from grpo_jax import ranges
from grpo_jax.data import demonstrations, pipeline, sources
from grpo_jax.settings.phase import KeepConfig
from grpo_jax.training.evaluation import draws, evaluation
from grpo_jax.training.evaluation.data_sets import Draws
from grpo_jax.training.evaluation.evaluation import Completion
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.runtime import files, hosts, log


class Counts(NamedTuple):
  """The progress of a file.

  Attributes:
    tokens: Tokens that were drawn for them.
  """

  prompts: int
  lines: int
  tokens: int


@dataclasses.dataclass(frozen=True)
class FileSettings:
  """The settings of a file of completions.

  Attributes:
    keep: Rule for the completions to keep; None: all.
    is_scored: True if verifiers score them.
    batch_size: Prompts at a time; it changes no line.
  """

  draws: Draws
  keep: KeepConfig | None = None
  is_scored: bool = True
  batch_size: int = 256

  def check(self) -> None:
    """Raises ValueError if two settings do not go together."""
    if self.draws.num_samples > 1 and not self.draws.temperature:
      raise ValueError(
        f"num_samples={self.draws.num_samples} and temperature=0: all"
        " completions of a prompt would be the same; set a temperature, such"
        " as 1.0."
      )
    if self.keep is not None:
      self.keep.check("config.keep")
      if not self.is_scored:
        raise ValueError(
          "what is kept has to be right, and nobody is to score; keep all"
          " completions, or have them scored."
        )


def position_of(out: pathlib.Path) -> pathlib.Path:
  """The file with the progress of `out`."""
  return out.with_name(out.name + ".position.json")


def check_prompts(
  loaded: checkpointed.Loaded, source: sources.Source, num_prompts: int
) -> None:
  """Reads all prompts before anything is drawn.

  Raises:
    ValueError: There are not so many, or one is too long.
  """
  if not 1 <= num_prompts <= len(source):
    raise ValueError(
      f"num_prompts={num_prompts}: the source has"
      f" {ranges.counted(len(source), 'prompt')}."
    )
  if loaded.config.data.is_made_of_ids:
    return  # Made to fit, and perhaps a million.
  limit = loaded.problem.max_prompt_len
  for number in range(num_prompts):
    size = loaded.problem.encoder.prompt(source[number]).size
    if size > limit:
      raise ValueError(
        f"prompt {number} has {ranges.counted(size, 'token')}, and there"
        f" is room for {limit}; raise max_prompt_len, or take the prompt out."
      )


def settings_of(
  config: ml_collections.ConfigDict | None,
) -> dict[str, Any] | None:
  """The settings of a config on which a file depends; None without a config.

  Args:
    config: Config of a checkpoint; a run has its own, which does not change.
  """
  if config is None:
    return None
  sections = ("data", "model", "rewards", "sampling")
  return {name: json.loads(config[name].to_json()) for name in sections}


def generate(
  loaded: checkpointed.Loaded,
  source: sources.Source,
  num_prompts: int,
  out: pathlib.Path,
  options: FileSettings,
  settings: Mapping[str, Any],
) -> Iterator[Counts]:
  """Completes the first prompts of a source, or those that are left.

  Every process calls it; the first one writes.

  Args:
    settings: Further settings on which the file depends, as JSON.

  Yields:
    The progress of the file: at the start, and after each batch.

  Raises:
    ValueError: `out` exists and is not of these settings.
  """
  settings = json.loads(
    json.dumps(
      {
        **settings,
        "num_prompts": num_prompts,
        "draws": dataclasses.asdict(options.draws),
        "keep": options.keep and dataclasses.asdict(options.keep),
        "is_scored": options.is_scored,
      }
    )
  )
  counts, size = _read(out, settings)
  hosts.check_same(prompts=counts.prompts)
  if hosts.is_main():
    _save(out, counts, size, settings)
  yield counts
  if counts.prompts == num_prompts:
    return
  problem = dataclasses.replace(loaded.problem, held_out=source)
  if not options.is_scored:
    problem = draws.unscored(problem)
  batch_size = min(options.batch_size, num_prompts)
  evaluator = evaluation.Evaluator(
    problem,
    loaded.policy,
    loaded.mesh,
    batch_size,
    batch_size,
    temperature=options.draws.temperature,
    num_samples=options.draws.num_samples,
    top_p=options.draws.top_p,
    keeps_ids=True,
  )
  key = jax.random.key(options.draws.seed)
  while counts.prompts < num_prompts:
    first = counts.prompts
    with jax.set_mesh(loaded.mesh):  # As in training.
      part = evaluator.on(source, num_prompts, batch_size, first, first + 1)
      groups = part.completions(loaded.params, key)
    lines = [
      line
      for number, group in enumerate(groups, start=first)
      for line in _lines(loaded, source[number], number, group, options)
    ]
    counts = Counts(
      first + len(groups),
      counts.lines + len(lines),
      counts.tokens + sum(row.num_tokens for group in groups for row in group),
    )
    if hosts.is_main():
      size = _append(out, size, lines)
      _save(out, counts, size, settings)
    yield counts


def _read(out: pathlib.Path, settings: Mapping[str, Any]) -> tuple[Counts, int]:
  """The progress of the file, and its bytes up to there."""
  path = position_of(out)
  if not path.exists():
    if out.exists() and out.stat().st_size:
      raise ValueError(
        f"{out} exists, and {path.name} is missing, which would say what it is;"
        " nothing was changed. Move it away, or name another file."
      )
    return Counts(0, 0, 0), 0
  state = log.read_json(path, dict)
  if missing := {"bytes", "done", "settings"} - state.keys():
    raise ValueError(
      f"{path} has no {', '.join(sorted(missing))}: it was not written by"
      " grpo-generate. Nothing was changed; name another file."
    )
  old = log.flatten(state["settings"])
  new = log.flatten(dict(settings))
  names = sorted(
    name for name in new.keys() | old.keys() if new.get(name) != old.get(name)
  )
  if names:
    diff = "; ".join(
      f"{name} was {old.get(name, 'absent')}, and is {new.get(name, 'absent')}"
      for name in names
    )
    raise ValueError(
      f"{out} was begun with other settings: {diff}. Nothing was changed; name"
      " another file, or the same settings."
    )
  size = int(state["bytes"])
  num_bytes = out.stat().st_size if out.exists() else 0
  if num_bytes < size:
    raise ValueError(
      f"{out} has {num_bytes} bytes, and {path.name} counts {size}: it was cut."
      " Remove both to begin anew."
    )
  return Counts(**state["done"]), size


def _append(out: pathlib.Path, size: int, lines: list[dict[str, Any]]) -> int:
  """Writes lines after the first `size` bytes; returns the new size."""
  text = "".join(json.dumps(x, sort_keys=True) + "\n" for x in lines).encode()
  with out.open("r+b" if out.exists() else "w+b") as file:
    file.truncate(size)
    file.seek(size)
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  return size + len(text)


def _save(
  out: pathlib.Path, counts: Counts, size: int, settings: Mapping[str, Any]
) -> None:
  state = {"done": counts._asdict(), "bytes": size, "settings": settings}
  files.write(position_of(out), json.dumps(state, indent=1).encode())


def _lines(
  loaded: checkpointed.Loaded,
  record: pipeline.Record,
  number: int,
  group: list[Completion],
  options: FileSettings,
) -> list[dict[str, Any]]:
  """The lines of a prompt."""
  numbers = list(range(len(group)))
  if options.keep is not None:
    numbers = demonstrations.selection(
      [_candidate(row, options.keep) for row in group],
      options.keep.most,
      options.keep.order,
      options.keep.distinct,
      (options.draws.seed, number),
    )
  return [
    demonstrations.line(
      loaded.problem.tokenizer,
      record,
      group[i].ids,
      group[i].observed,
      prompt_id=number,
      sample=i,
      tokens=group[i].num_tokens,
      terminated=group[i].terminated,
      **(_scores(group[i]) if options.is_scored else {}),
    )
    for i in numbers
  ]


def _candidate(row: Completion, keep: KeepConfig) -> demonstrations.Candidate:
  good = row.right and row.terminated
  for name, minimum in keep.bounds.items():
    good &= row.components[name] >= minimum
  return demonstrations.Candidate(good, row.text, row.answer, row.num_tokens)


def _scores(row: Completion) -> dict[str, Any]:
  """The scores of verifiers; null for missing ones."""
  return {
    "valid": row.valid,
    "correct": row.right,
    "reward": row.reward if row.valid else None,
    "components": {
      name: value if value == value else None
      for name, value in row.components.items()
    },
  }
