"""Completions of given prompts, token by token.

drawn = run.sample(["27 + 58 =", "1 + 1 ="], n=4, temperature=1.0)
drawn.texts[0]                 # Four texts that continue the first prompt.
drawn[0][2].logprobs.sum()     # Of all tokens of its third one, nats.
run.sample(run.prompts(8), n=4, temperature=1.0).rewards.mean(axis=1)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.data import sources
from grpo_jax.ops import logprobs
from grpo_jax.training.evaluation import data_sets, evaluation, trace_rows
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.runtime import files
from grpo_jax.types import Policy, Prompts, PyTree, Rollout

Records = Sequence[dict[str, Any]]
_UNSCORED = "unscored"


@dataclasses.dataclass(frozen=True)
class Sample(evaluation.Completion):
  """One completion, token by token.

  `reward` is NaN, and `valid` is False, if it was not scored: the prompt was a
  text alone, without a right answer, or a verifier has failed.

  Attributes:
    tokens: Text of each token [n], those of an environment included.
    logprobs: Log-prob of each token [n], nats, under the policy at the sampling
      temperature; at temperature 1 if the most likely tokens were taken. NaN on
      tokens of an environment.
    entropies: Entropy of the distribution of each token [n], nats, at the same
      temperature. NaN also for greedy rollouts whose context is compacted.
  """

  tokens: tuple[str, ...]
  logprobs: np.ndarray
  entropies: np.ndarray


class DrawnTexts(Sequence[list[Sample]]):
  """Completions of P prompts, n of each; `samples[p][i]` is one of them."""

  def __init__(self, groups: Sequence[list[Sample]]):
    self._groups = groups

  @overload
  def __getitem__(self, index: int) -> list[Sample]: ...
  @overload
  def __getitem__(self, index: slice) -> DrawnTexts: ...
  def __getitem__(self, index: int | slice) -> list[Sample] | DrawnTexts:
    if isinstance(index, slice):
      return DrawnTexts(self._groups[index])
    return self._groups[index]

  def __len__(self) -> int:
    return len(self._groups)

  @property
  def texts(self) -> list[list[str]]:  # [P][n]
    """The texts of the completions."""
    return [[row.text for row in group] for group in self]

  @property
  def rewards(self) -> np.ndarray:  # [P, n]
    """Weighted sums of the rewards; NaN for completions without a score."""
    return np.array([[row.reward for row in group] for group in self])

  def __repr__(self) -> str:
    """Shows each prompt, and under it the rewards and the texts."""
    lines = []
    for group in self:
      lines.append(files.escaped(group[0].prompt))
      for row in group:
        reward = f"{row.reward:.3f}" if row.valid else "–"
        lines.append(f"{reward:>8}  {files.escaped(row.text)}")
    return "\n".join(lines)


class TextSampler:
  """Draws n completions of each prompt at one temperature."""

  def __init__(
    self,
    loaded: checkpointed.Loaded,
    records: Records,
    is_scored: bool,
    num_samples: int,
    temperature: float,
  ):
    """Compiles nothing yet.

    Args:
      records: Records like those to complete.
      is_scored: True if the records have the fields that verifiers need.
      temperature: 0 for the most likely tokens.
    """
    problem = loaded.problem
    if not is_scored:
      problem = unscored(problem)
    self._loaded = loaded
    self._is_scored = is_scored
    is_greedy, is_compacted = not temperature, problem.compaction is not None
    self._adds_entropy = is_greedy and not is_compacted
    self._has_entropy = not (is_greedy and is_compacted)
    self._entropy = jax.jit(functools.partial(_entropy, loaded.policy))
    count = len(records)
    self._evaluator = evaluation.Evaluator(
      dataclasses.replace(problem, held_out=self._source(records)),
      loaded.policy,
      loaded.mesh,
      count,
      count,
      temperature,
      num_samples,
    )

  def _source(self, records: Records) -> sources.Source:
    if not self._is_scored:
      return records
    loaded = self._loaded
    return data_sets.verified(loaded.config, loaded.problem, records, "sample")

  def draw(self, records: Records, seed: int) -> DrawnTexts:
    """Completes records; calls with equally many records share a program."""
    loaded, count = self._loaded, len(records)
    evaluator = self._evaluator.on(self._source(records), count, count)
    with jax.set_mesh(loaded.mesh):
      (batch,) = evaluator.parts(loaded.params, jax.random.key(seed))
      rollout = batch.rollout
      if self._adds_entropy:
        entropy = self._entropy(loaded.params, batch.prompts, rollout)
        rollout = dataclasses.replace(rollout, entropy=entropy)
    host = jax.device_get(rollout)
    rows = [self._sample(row, host, b) for b, row in batch.completions]
    size = len(rows) // len(batch.prompts.ids)
    return DrawnTexts([rows[p * size : (p + 1) * size] for p in range(count)])

  def _sample(
    self, completion: evaluation.Completion, rollout: Rollout, b: int
  ) -> Sample:
    """Row b of a rollout of NumPy arrays, with its scores."""
    exists = rollout.completion_mask[b]  # [T]
    is_own = rollout.written[b][exists]  # [n]
    fields: dict[str, Any] = dataclasses.asdict(completion)
    if not (self._is_scored and completion.valid):
      fields |= {"reward": math.nan, "correct": False}
    if not self._is_scored:
      fields["components"] = {}

    def values(x: Any, is_known: bool = True) -> np.ndarray:  # [n]
      return np.where(is_own & is_known, x[b][exists], np.nan)

    return Sample(
      **fields,
      tokens=trace_rows.texts_of(
        self._loaded.problem, np.asarray(rollout.tokens[b][exists])
      ),
      logprobs=values(rollout.sampler_logp),
      entropies=values(rollout.entropy, self._has_entropy),
    )


def unscored(problem: problem_lib.Problem) -> problem_lib.Problem:
  """The problem without rewards; all its completions are unscored."""
  reward = rewards_lib.RewardSum(
    (rewards_lib.InGraph(_nothing),), {_UNSCORED: 1.0}, _UNSCORED
  )
  return dataclasses.replace(problem, reward=reward)


def _nothing(prompts: Prompts, rollout: Rollout) -> dict[str, jax.Array]:
  """The scores of an unscored problem: NaN for each row."""
  del prompts
  return {_UNSCORED: jnp.full(len(rollout.tokens), jnp.nan)}


def _entropy(
  policy: Policy, params: PyTree, prompts: Prompts, rollout: Rollout
) -> jax.Array:  # [B, T]
  """Entropy of the distribution of each token at temperature 1, nats."""
  h, _ = policy.hidden(
    params,
    prompts.tokens,
    prompts.mask,
    rollout.tokens,
    rollout.completion_mask,
    rollout.prompt_index,
    prompts.shown,
  )
  outputs = logprobs.token_outputs(
    functools.partial(policy.head, params),
    h,
    rollout.tokens,
    temperature=1.0,
    with_entropy=True,
  )
  assert outputs.entropy is not None
  return outputs.entropy
