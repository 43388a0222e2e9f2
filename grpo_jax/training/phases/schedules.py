"""The prompt schedule of a phase that chooses its prompts from a pool."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax import ranges
from grpo_jax.data import clusters, demonstrations, finding, pipeline, sources
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.phase import ADS, SPO
from grpo_jax.step import features
from grpo_jax.step import prompts as prompts_lib
from grpo_jax.training.phases import policy
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import files


class PromptPool(NamedTuple):
  """The prompts that a phase may draw.

  Attributes:
    numbers: Numbers of the records that fit, [N] int.
  """

  source: sources.Source
  numbers: np.ndarray


def pool(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> PromptPool:
  """Returns the pool of the phase `name`; reads its prompts.

  Raises:
    ValueError: Not all prompts can be read, or a step needs more of them.
  """
  phase = config.section(name)
  where = f"config.{name}.schedule"
  source = problem.of_domains(problem.train, phase.domains)
  if sources.starts(source) is not None:
    raise ValueError(
      f"{where}.name={phase.schedule.name!r} chooses among prompts that come"
      f" again, and those of config.data.source={config.data.source!r} are made"
      " or read one at a time, with no end; set the name to 'epochs', or read"
      " a file of them without config.data.streaming."
    )
  read: sources.Source = source
  if phase.schedule.pool is not None:
    read = demonstrations.First(source, phase.schedule.pool, f"{where}.pool")
  elif sources.task_of(source) is not None:
    raise ValueError(
      f"{where}.name={phase.schedule.name!r} with {where}.pool=None: the task"
      f" has {len(source)} problems, of which hardly any comes twice; set it to"
      " the number of those to choose from, such as 1024."
    )
  longest = phase.max_prompt_len or problem.max_prompt_len
  pipeline.check_task(source, max_prompt_len=longest)
  numbers = finding.fitting(
    read, functools.partial(finding.short_prompts, problem.encoder, longest)
  )
  if len(numbers) < phase.num_prompts:
    raise ValueError(
      f"config.{name}.num_prompts={phase.num_prompts} different prompts of a"
      f" step are more than the {len(numbers)} to choose from; lower it, or"
      f" raise {where}.pool."
    )
  return PromptPool(source, numbers)


def make(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> features.Schedule:
  """Makes the schedule of a phase.

  A problem that is only described has no records, so there is no schedule.

  Raises:
    ValueError: See `pool`.
  """
  phase = config.section(name)
  settings = phase.schedule
  if not settings.chooses or not len(problem.train):
    return features.Schedule()
  prompts = pool(config, problem, name)
  if settings.name == ADS:
    return _ads(prompts, settings, f"config.{name}.schedule")
  if settings.name == SPO:
    counts = None
    if settings.samples:
      setting = f"config.{name}.schedule.samples"
      right, scored = counted(prompts, problem, settings.samples, setting)
      counts = prompts_lib.start_counts(right, scored, settings.memory_low)
    return prompts_lib.SingleStream(
      size=len(prompts.numbers),
      num_prompts=phase.num_prompts,
      num_slots=problem.max_new_tokens,
      memory_low=settings.memory_low,
      counts=counts,
    )
  return prompts_lib.Curriculum(
    rule=settings.name,
    size=len(prompts.numbers),
    num_prompts=phase.num_prompts,
    uniform_share=settings.uniform_share,
    decay=settings.decay,
    start_share=settings.start_share,
    pace_steps=settings.pace_steps,
  )


def _ads(prompts: PromptPool, settings: Any, where: str) -> prompts_lib.Ads:
  """Makes a schedule over the clusters of a pool; reads their file.

  Raises:
    FileNotFoundError, ValueError: The file is missing, is of other data, or
      does not fit the sizes of a step.
  """
  setting = f"{where}.clusters"
  records = [prompts.source[int(number)] for number in prompts.numbers]
  labels = clusters.read(settings.clusters, records, setting)
  order, sizes = clusters.ranked(labels)
  used = sizes[sizes > 0]
  if len(used) < settings.drawn_clusters:
    raise ValueError(
      f"{setting}={settings.clusters!r} has {len(used)} clusters of the pool,"
      f" and a step draws {settings.drawn_clusters} different ones"
      f" ({where}.drawn_clusters); lower that, or write a file with more."
    )
  if used.min() < settings.window:
    raise ValueError(
      f"{setting}={settings.clusters!r}: a cluster has {used.min()} prompts of"
      f" the pool, and a step draws {settings.window} of each"
      f" ({where}.window); lower that, or write a file with fewer clusters or"
      f" with --least={settings.window}."
    )
  return prompts_lib.Ads(
    order,
    sizes,
    num_drawn=settings.drawn_clusters,
    window=settings.window,
    rate=settings.rate,
    tolerance=settings.tolerance,
  )


def counted(
  prompts: PromptPool, problem: Problem, path: str, setting: str
) -> tuple[np.ndarray, np.ndarray]:  # [N], [N]
  """Counts right and scored completions of each prompt in a file.

  Prompts are told apart by their text. A prompt that is in the pool several
  times has the completions of all its copies.

  Args:
    prompts: The N prompts.
    path: A file that `grpo-generate` has written.
    setting: The setting that names the file, for messages.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It has no verdicts, or none of a prompt of the pool.
  """
  file, where = files.parse(path), f"{setting}={path!r}"
  if not file.exists():
    raise FileNotFoundError(
      f"{where}: there is no such file; grpo-generate --prompts=train"
      " writes it."
    )
  counts: dict[str, tuple[int, int]] = {}
  for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
    try:
      row = json.loads(line)
      prompt, valid = row["prompt"], row["valid"]
      right, scored = counts.get(prompt, (0, 0))
      counts[prompt] = right + (valid and row["correct"]), scored + valid
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"{where}:{number} is not a completion with a verdict ({error!r});"
        " needs a file of grpo-generate --prompts=train, scored."
      ) from error
  texts = problem.prompt_texts(
    [prompts.source[int(number)] for number in prompts.numbers]
  )
  totals = np.array([counts.get(prompt, (0, 0)) for prompt in texts], float)
  if not totals.any():
    raise ValueError(
      f"{where} has {ranges.counted(len(counts), 'prompt')}, and none of the"
      f" {len(texts)} of"
      " the pool: it was drawn of other data, or of a run with another seed."
      " Name one of this data."
    )
  return totals[:, 0], totals[:, 1]


def stream(
  config: config_lib.RunConfig, problem: Problem, name: str, rows: Sequence[int]
) -> pipeline.ChosenPrompts:
  """The batches of a phase that chooses its prompts.

  Args:
    rows: Rows of each batch that this process makes.
  """
  phase = config.section(name)
  source, numbers = pool(config, problem, name)
  return pipeline.ChosenPrompts(
    source,
    problem.encoder,
    numbers,
    batch_size=phase.num_prompts,
    max_prompt_len=phase.max_prompt_len or problem.max_prompt_len,
    pad_id=problem.tokenizer.pad_id,
    rows=rows,
    more=problem.arrays(policy.hints(config, problem, name)),
  )
