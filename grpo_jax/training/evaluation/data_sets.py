"""Data sets of an evaluation: held-out prompts of a run, or files of prompts.

A policy completes all prompts of one data set after the other, with one program
as long as their batches have the same shape.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from grpo_jax.data import domains, formats, sources
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import evaluation, scores
from grpo_jax.training.evaluation.evaluation import Completion
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import files, traces

HELD_OUT = "held_out"  # The name of the run's own prompts.
_MACRO = "macro"  # The name of the means over several.


@dataclasses.dataclass(frozen=True)
class DataSet:
  """Prompts to evaluate on.

  Attributes:
    num_prompts: Number of records to use, the first ones.
    names: Names of domains, by number.
  """

  name: str
  source: sources.Source
  num_prompts: int
  names: tuple[str, ...] = ()

  @property
  def golds(self) -> list[str]:
    """The right answer of each prompt; empty if the data have none."""
    return [self.source[i]["answer"] for i in range(self.num_prompts)]

  @property
  def domains(self) -> list[str | None]:
    """The name of the domain of each prompt; None if it has none."""
    extras = [self.source[i]["extras"] for i in range(self.num_prompts)]
    return [self._domain(x) for x in extras]

  def _domain(self, extras: Mapping[str, Any]) -> str | None:
    if (name := extras.get(formats.DOMAIN_NAME)) is not None:
      return str(name)
    if (number := extras.get("domain")) is None:
      return None
    is_known = int(number) < len(self.names)
    return self.names[int(number)] if is_known else str(int(number))


@dataclasses.dataclass(frozen=True)
class Draws:
  """Settings of the draws.

  Attributes:
    temperature: 0 for the most likely tokens.
    top_p: See `evaluation.Evaluator`.
  """

  temperature: float = 0.0
  num_samples: int = 1
  top_p: float | None = None
  seed: int = 0


def opened(
  loaded: checkpointed.Loaded,
  data: Mapping[str, str],
  num_prompts: int | None = None,
) -> list[DataSet]:
  """Opens the data sets to evaluate on.

  Args:
    data: Name -> JSON-lines file, local or gs://, with the fields of the run's
      own (`config.data.format` and `fields`). Empty: the held-out prompts of
      the run.
    num_prompts: The first so many of each, or all if there are fewer. None: all
      of a file, and `config.eval.num_prompts` held-out ones.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: A file is malformed, a name means something else already, or the
      policy reads no text.
  """
  config, problem = loaded.config, loaded.problem
  if not data:
    count = config.eval.num_prompts
    if num_prompts:
      count = min(num_prompts, len(problem.held_out))
    return [DataSet(HELD_OUT, problem.held_out, count, problem.domains)]
  if config.data.is_made_of_ids:
    raise ValueError(
      f"data={dict(data)}: the policy was trained on ids of"
      f" {config.data.shown_task}, where prompts are made; leave the data sets"
      " out."
    )
  data_sets = []
  for name, path in data.items():
    if name in ("", _MACRO):
      raise ValueError(
        f"data: the name {name!r} of {path} is empty, or that of a mean over"
        " data sets; choose another one."
      )
    if not files.parse(path).exists():
      raise FileNotFoundError(f"data {name}={path}: there is no such file.")
    source = read(config, problem, path, f"data {name}={path}")
    count = min(num_prompts or len(source), len(source))
    data_sets.append(DataSet(name, source, count, problem.domains))
  return data_sets


def read(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  path: str,
  where: str,
) -> sources.Source:
  """Reads a JSON-lines file with the fields of the run's own, as `verified`."""
  from grpo_jax.training.problem import records  # Sources.

  data = config.data
  source = sources.JsonlSource(
    path, records.format_of(data), data.fields, data.domain_key, data.images
  )
  return verified(config, problem, source, where)


def verified(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  source: sources.Source,
  where: str,
) -> sources.Source:
  """Adds the fields that the verifiers of a run need to records.

  Args:
    where: Origin of the records, for messages.

  Raises:
    ValueError: The records lack a field.
  """
  rewards = config.rewards
  has_domains = formats.has_domain(source[0])
  if rewards.domains and not has_domains:
    raise ValueError(
      f"{where}: its records have no 'domain' in 'extras', and the rewards of"
      " the run are those of domains"
      f" (config.rewards.domains={dict(rewards.domains)}); add one to each"
      " record."
    )
  if has_domains and (rewards.domains or problem.limits):
    source = domains.Numbered(source, problem.domains)
  if not rewards.in_graph:
    return source
  from grpo_jax.training.problem import in_graph  # Text as rows of bytes.

  return in_graph.WithGolds(source)


def with_lengths(
  loaded: checkpointed.Loaded,
  max_prompt_len: int | None = None,
  max_new_tokens: int | None = None,
) -> checkpointed.Loaded:
  """Returns the policy with other lengths; None keeps a length.

  Raises:
    ValueError: Its task or its rewards fix the lengths.
  """
  problem = loaded.problem
  config = loaded.config
  is_same = max_prompt_len is None and max_new_tokens is None
  if max_new_tokens is not None and config.rewards.in_graph:
    raise ValueError(
      f"max_new_tokens={max_new_tokens}: rewards in the graph"
      " (config.rewards.in_graph) have room for completions of"
      f" {problem.max_new_tokens} tokens; leave it out."
    )
  if not is_same and config.data.is_made_of_ids:
    raise ValueError(
      f"max_prompt_len={max_prompt_len}, max_new_tokens={max_new_tokens}:"
      f" {config.data.shown_task} says how long prompts and completions are;"
      " leave both out."
    )
  most = max_new_tokens or problem.max_new_tokens
  own_limits = config.sampling.domain_limits
  problem = dataclasses.replace(
    problem,
    max_prompt_len=max_prompt_len or problem.max_prompt_len,
    max_new_tokens=most,
    # A domain without a limit of its own has all slots, however many.
    limits=domains.limits(
      problem.domains, {k: min(x, most) for k, x in own_limits.items()}, most
    ),
  )
  return dataclasses.replace(loaded, problem=problem)


def complete(
  loaded: checkpointed.Loaded,
  data: Sequence[DataSet],
  draws: Draws,
  batch_size: int | None = None,
) -> list[list[list[Completion]]]:
  """Draws and scores completions: by data set, then by prompt.

  Args:
    data: At least one data set.
    batch_size: Prompts per batch; None: as in the run.
  """
  batch_size = batch_size or loaded.config.eval.batch_size
  first = data[0]
  evaluator = evaluation.Evaluator(
    dataclasses.replace(loaded.problem, held_out=first.source),
    loaded.policy,
    loaded.mesh,
    first.num_prompts,
    batch_size,
    temperature=draws.temperature,
    num_samples=draws.num_samples,
    top_p=draws.top_p,
  )
  key = jax.random.key(draws.seed)
  results = []
  with jax.set_mesh(loaded.mesh):  # As in training.
    for number, part in enumerate(data):
      if number:
        evaluator = evaluator.on(part.source, part.num_prompts, batch_size)
      results.append(evaluator.completions(loaded.params, key))
  return results


def lines(
  data: DataSet, greedy: scores.Groups, sampled: scores.Groups
) -> Iterator[str]:
  """A line of JSON for each prompt, with all its completions.

  Args:
    greedy: One completion of each.
    sampled: The other completions of each.
  """
  prompts = zip(greedy, sampled, data.golds, data.domains, strict=True)
  for number, (single, several, gold, domain) in enumerate(prompts):
    record = {
      "data_set": data.name,
      "id": number,
      "domain": domain,
      "prompt": single[0].prompt,
      "gold": gold,
      "greedy": _plain(single[0]),
      "samples": [_plain(row) for row in several],
    }
    # Only ASCII: no reader splits the line at a separator within a text.
    yield json.dumps(record, allow_nan=False) + "\n"


def _plain(row: Completion) -> dict:
  """A completion without its prompt; null for numbers that are not finite."""
  return {
    "text": row.text,
    "answer": row.answer,
    "correct": row.correct,
    "valid": row.valid,
    "reward": traces.number(row.reward),
    "components": {k: traces.number(v) for k, v in row.components.items()},
    "tokens": row.num_tokens,
    "terminated": row.terminated,
  }
