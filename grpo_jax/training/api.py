"""Functions for a trained run: complete a prompt, evaluate.

with grpo_jax.load("runs/quickstart") as run:
  print(grpo_jax.sample(run, "dcba=", num_samples=4, temperature=1.0))
  print(grpo_jax.evaluate(run)["eval/accuracy"])
  print(grpo_jax.evaluate(run, num_samples=8, temperature=1.0)["eval/maj@8"])
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.data import pipeline
from grpo_jax.rollout import sampling
from grpo_jax.training import (
  data_sets,
  evaluation,
  players,
  runs,
  scores,
  sharding,
)
from grpo_jax.types import Prompts, Rollout


def evaluate(
  loaded: runs.Loaded,
  num_prompts: int | None = None,
  temperature: float = 0.0,
  seed: int = 0,
  num_samples: int = 1,
  data: Mapping[str, str] | None = None,
  top_p: float | None = None,
) -> dict[str, float]:
  """Figures of a policy on held-out prompts, or on files of prompts.

  Args:
    loaded: From `load` or `load_checkpoint`.
    num_prompts: The first so many prompts; None: as many held-out ones as the
      run has, or all of a file.
    temperature: Sampling temperature; 0 is greedy.
    seed: Seed of the draws.
    num_samples: Completions of each prompt.
    data: Name -> JSON-lines file, instead of the held-out prompts.
    top_p: Tokens are drawn from the most likely ones that have this share of
      the probability; None: from all.

  Returns:
    What `evaluation.summarize` and `scores.lengths` have; of several samples
    also "eval/pass@4", "eval/maj@4" and so on (`scores.of_samples`). NaN is a
    mean over nothing. With `data` they are "eval/NAME/accuracy" and so on, and
    "eval/macro/…" are the means over the data sets.

  Raises:
    FileNotFoundError, ValueError: The data or a number is at fault.
  """
  if num_samples > 1 and not temperature:
    raise ValueError(
      f"evaluate: num_samples={num_samples} and temperature=0: all samples of a"
      " prompt would be the same; set a temperature, such as 1.0."
    )
  sets = data_sets.opened(loaded, data or {}, num_prompts)
  draws = data_sets.Draws(temperature, num_samples, top_p, seed)
  found = [
    _figures(one, groups)
    for one, groups in zip(
      sets, data_sets.complete(loaded, sets, draws), strict=True
    )
  ]
  if not data:
    return found[0]
  named = dict(zip((one.name for one in sets), found, strict=True))
  named["macro"] = {
    name: float(np.mean([figures[name] for figures in found]))
    for name in found[0]
    if all(name in figures for figures in found)
  }
  return {
    name.replace("eval/", f"eval/{part}/", 1): value
    for part, figures in named.items()
    for name, value in figures.items()
  }


def _figures(
  data: data_sets.DataSet, groups: scores.Groups
) -> dict[str, float]:
  """What `evaluate` says of a data set."""
  figures: dict[str, float | None] = {**evaluation.summarize(groups)}
  for name, value in scores.lengths(groups).items():
    figures[f"eval/{name}"] = value
  if len(groups[0]) > 1:
    for name, column in scores.of_samples(groups, data.golds).items():
      figures[f"eval/{name}"] = sum(column) / len(column)
  return {k: math.nan if v is None else v for k, v in figures.items()}


def sample(
  loaded: runs.Loaded,
  prompt: str,
  num_samples: int = 1,
  temperature: float = 0.0,
  seed: int = 0,
) -> list[str]:
  """Completions of a prompt.

  Args:
    loaded: From `load`.
    prompt: Text; of a toy task in its own alphabet.
    num_samples: Completions.
    temperature: 0 is greedy.
    seed: Seed of the draws.

  Raises:
    ValueError: The prompt is too long, or the run's task has an environment in
      the graph, which a text cannot begin.
  """
  problem = loaded.problem
  if problem.environment is not None:
    raise ValueError(
      "sample: this run's task has an environment, which needs more than a text"
      " to begin with; experiments.evaluate plays its held-out problems."
    )
  ids = problem.encoder.prompt({"prompt": prompt})
  if len(ids) > problem.max_prompt_len:
    raise ValueError(
      f"sample: the prompt has {len(ids)} tokens; this run was trained with at"
      f" most {problem.max_prompt_len} (config.data.max_prompt_len)."
    )
  config = sampling.SamplingConfig(
    max_new_tokens=problem.max_new_tokens,
    end_ids=problem.tokenizer.end_ids,
    pad_id=problem.tokenizer.pad_id,
    temperature=temperature,
  )
  draw = _with_host if problem.host_environment is not None else _drawn
  batch = _batch(loaded, prompt, ids)
  rollout = draw(loaded, config, batch, num_samples, seed)
  return problem.texts(
    np.asarray(rollout.tokens[:num_samples]),
    np.asarray(rollout.completion_mask[:num_samples]),
  )


def _batch(
  loaded: runs.Loaded, prompt: str, ids: np.ndarray
) -> pipeline.PromptBatch:
  """The prompt, as often as rows are split: the first has the draws of one."""
  copies = sharding.num_row_shards(loaded.mesh)
  # As the records of the run have it: ids of a task, or else the text.
  is_text = isinstance(loaded.problem.train[0]["prompt"], str)
  record: dict[str, Any] = {
    "prompt": prompt if is_text else ids,
    "answer": "",
    "extras": {},
  }
  arrays: Any = {
    "tokens": np.tile(ids, (copies, 1)),
    "mask": np.ones((copies, len(ids)), bool),
    "ids": np.zeros(copies, np.int32),
  }
  prompts = Prompts(**arrays, extras={})
  return pipeline.PromptBatch(prompts, [record] * copies)


def _drawn(
  loaded: runs.Loaded,
  config: sampling.SamplingConfig,
  batch: pipeline.PromptBatch,
  num_samples: int,
  seed: int,
) -> Rollout:
  """Completions of the prompt."""
  sample = functools.partial(
    sampling.sample,
    loaded.policy,
    config=config,
    group_size=num_samples,
  )
  prompts = jax.tree.map(jnp.asarray, batch.prompts)
  return jax.jit(sample)(loaded.params, prompts, jax.random.key(seed))


def _with_host(
  loaded: runs.Loaded,
  config: sampling.SamplingConfig,
  batch: pipeline.PromptBatch,
  num_samples: int,
  seed: int,
) -> Rollout:
  """Episodes of the prompt; its sessions get no extras.

  Raises:
    ValueError: One has failed.
  """
  player = players.HostEpisodes(
    loaded.problem,
    loaded.mesh,
    players.make_turns(loaded.policy, loaded.problem, config, num_samples),
  )
  played = player.play(
    loaded.params,
    sharding.from_local(batch.prompts, sharding.by_rows(loaded.mesh)),
    jax.random.key(seed),
    batch,
  )
  if any(played.failures.values()):
    raise ValueError(
      "sample: a session of the environment failed, as said above; one that"
      " begins with a prompt of yours has no answer and no extras."
    )
  return played.rollout
