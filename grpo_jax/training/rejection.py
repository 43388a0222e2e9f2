"""Rejection sampling: phases that keep completions or imitate them.

A phase of the kind "rejection" draws completions, has them scored, and keeps
right ones: at most `keep.most` of each prompt, in a file beside the log,

    data-2-rejection.jsonl        # of the second phase, which has this name

A run that continues cuts this file back to its checkpoint, as it does with its
other files. So a run that was killed keeps the same completions as one that was
not. A later phase reads the file when it begins (`Stream`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import demonstrations, pipeline, sources
from grpo_jax.rewards import answers
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.training.evaluation import rows
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import files as files_lib
from grpo_jax.training.runtime import hosts


def keep(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  mesh: Mesh,
  index: int,
  step: int,
  outcome: executors.StepResult,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
  """Returns the kept completions of a step as lines, and their metrics.

  All processes call it, and get all lines.

  Args:
    index: Index of the phase, which keeps completions.
    step: Step over all phases.
  """
  assert outcome.rows is not None
  assert outcome.batch is not None
  step_rows = outcome.rows()
  arrays = rows.take(
    mesh,
    {
      "tokens": step_rows.batch.tokens,
      "mask": step_rows.batch.completion_mask,
      "observed": step_rows.observed,
      "prompt_id": step_rows.prompt_id,
      "good": step_rows.batch.valid
      & step_rows.batch.correct
      & step_rows.batch.terminated,
      "reward": step_rows.rewards,
      "components": step_rows.components,
    },
    np.arange(len(step_rows.prompt_id)),
  )
  pairs = _lines(config, problem, index, step, arrays, outcome.batch)
  groups = {row: lines for part in hosts.gather(pairs) for row, lines in part}
  completions = [line for row in sorted(groups) for line in groups[row]]
  lengths = [line["tokens"] for line in completions]
  metrics = {
    "kept/completions": float(len(completions)),
    "kept/prompts": float(np.mean([bool(x) for x in groups.values()])),
    "kept/tokens": float(np.mean(lengths)) if lengths else float("nan"),
  }
  return completions, metrics


def _lines(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  index: int,
  step: int,
  arrays: dict[str, Any],
  batch: pipeline.PromptBatch,
) -> list[tuple[int, list[dict[str, Any]]]]:
  """Returns first row and kept lines of each prompt that this process feeds."""
  keep = config.section(config.phases[index]).keep
  good = arrays["good"].copy()
  for component, minimum in keep.bounds.items():
    good &= arrays["components"][component] >= minimum
  texts = problem.texts(arrays["tokens"], arrays["mask"])
  groups = []
  for prompt_id, record in zip(
    batch.prompts.ids.tolist(), batch.records, strict=True
  ):
    group = np.flatnonzero(arrays["prompt_id"] == prompt_id)
    picks = demonstrations.selection(
      [
        demonstrations.Candidate(
          bool(good[b]),
          texts[b],
          answers.vote(texts[b], problem.answer_after),
          int(arrays["mask"][b].sum()),
        )
        for b in group
      ],
      keep.most,
      keep.order,
      keep.distinct,
      (config.seed, index, prompt_id),
    )
    lines = []
    for b in group[picks].tolist():
      mask = arrays["mask"][b]
      observed = arrays["observed"]
      line = demonstrations.line(
        problem.tokenizer,
        record,
        arrays["tokens"][b][mask],
        () if observed is None else observed[b][mask],
        prompt_id=prompt_id,
        sample=int(b - group[0]),
        step=step,
        tokens=int(mask.sum()),
        reward=float(arrays["reward"][b]),
        components={k: float(x[b]) for k, x in arrays["components"].items()},
      )
      lines.append(line)
    groups.append((int(group[0]), lines))
  return groups


def open_source(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  workdir: files_lib.Path,
  index: int,
) -> sources.Source:
  """Opens the demonstrations of a supervised phase.

  Args:
    index: Index of the phase, which has begun.

  Raises:
    FileNotFoundError, ValueError: A file is missing, empty or at fault.
  """
  phase = config.section(config.phases[index])
  own_source = problem.of_domains(problem.supervised, phase.domains)
  if phase.num_records is not None:
    own_source = demonstrations.First(own_source, phase.num_records)
  if not phase.demonstrations:
    return own_source
  is_text = isinstance(problem.train[0]["prompt"], str)
  opened: list[sources.Source] = []
  for name in phase.demonstrations:
    if name == phase_lib.OWN:
      opened.append(own_source)
      continue
    path = _path(config, workdir, index, name)
    try:
      source = demonstrations.DemonstrationSource(
        path, problem.tokenizer, is_text
      )
    except (FileNotFoundError, ValueError) as error:
      where = f"config.{config.phases[index]}.demonstrations: {name!r}"
      raise type(error)(f"{where}: {error}") from error
    opened.append(source)
  return opened[0] if len(opened) == 1 else demonstrations.Joined(opened)


def _path(
  config: config_lib.RunConfig, workdir: files_lib.Path, index: int, name: str
) -> files_lib.Path:
  """The file that a phase calls `name`.

  Of several earlier phases of that name, the last one counts.
  """
  earlier = [
    file
    for number, file in config.kept_files.items()
    if number < index and config.phases[number] == name
  ]
  return workdir / earlier[-1] if earlier else files_lib.parse(name)


class Stream:
  """Batches of demonstrations; an earlier phase may not have written them yet.

  Has `get_state` and `set_state`, as streams have.
  """

  def __init__(
    self,
    config: config_lib.RunConfig,
    problem: problem_lib.Problem,
    workdir: files_lib.Path,
    index: int,
    *arguments: Any,
  ):
    """Opens only files that no earlier phase is to write.

    Args:
      *arguments: Arguments of `Problem.supervised_stream`.

    Raises:
      FileNotFoundError, ValueError: A file that no earlier phase writes is
        missing, empty or at fault.
    """
    self._where = config, problem, workdir, index
    self._make: Callable[..., Any] = functools.partial(
      problem.supervised_stream, *arguments
    )
    self._iterator: Any = None
    phase = config.section(config.phases[index])
    has_arrays = problem.image_shapes is not None and problem.reader is None
    if has_arrays and {*phase.demonstrations} - {phase_lib.OWN}:
      raise ValueError(
        f"config.{config.phases[index]}.demonstrations={phase.demonstrations}:"
        " the prompts of the task show images, which no file of completions"
        " has, and the policy would imitate without seeing them; leave it"
        f" empty, or set it to ({phase_lib.OWN!r},)."
      )
    names = tuple(
      name for name in phase.demonstrations if name not in config.phases[:index]
    )
    if names == phase.demonstrations:
      self._open()
    elif names:  # Files that are there are checked, though others are missing.
      name = config.phases[index]
      part = config.with_section(name, demonstrations=names)
      open_source(part, problem, workdir, index)

  def _open(self) -> Any:
    if self._iterator is None:
      source = open_source(*self._where)
      self._iterator = self._make(source=source)
    return self._iterator

  def __next__(self) -> Any:
    return next(self._open())

  def get_state(self) -> Any:
    return self._open().get_state()

  def set_state(self, state: Any) -> None:
    self._open().set_state(state)
