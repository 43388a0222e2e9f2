"""Problems, steps and batches of the benchmarks, with a random model.

A case is a problem (tokens and a verifier), the functions of its step and a
batch. The functions that train make all of them; prompts have no text.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.benchmarks import workload
from grpo_jax import algorithms
from grpo_jax.data import pipeline
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards.workers import host
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.settings.model import TowerSettings
from grpo_jax.step import step
from grpo_jax.training.phases import build, checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem, rewards
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts, Rollout, Scored, TrainState

PAD = 0


@dataclasses.dataclass(frozen=True)
class Numbers:
  """Tokenizer that writes an id as its number."""

  vocab_size: int
  end_ids: tuple[int, ...] = ()
  pad_id: int = PAD

  def decode(self, ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))

  def pieces(self) -> dict[int, str]:
    return {id_: str(id_) for id_ in range(self.vocab_size)}


def even_share(prompts: Prompts, rollout: Rollout) -> dict[str, jax.Array]:
  """Verifier in the program: the share of even ids among the written ones."""
  del prompts
  mask = rollout.completion_mask
  even = ((rollout.tokens % 2 == 0) & mask).sum(axis=-1)
  return {"even": even / jnp.maximum(mask.sum(axis=-1), 1)}  # [B]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(problem.Problem):
  """Problem whose host verifiers take `verifier_s` seconds longer."""

  verifier_s: float = 0.0

  def host_scores(self, *arguments):
    time.sleep(self.verifier_s)
    return super().host_scores(*arguments)

  def judged_on_host(self, *arguments) -> Scored:
    """Scores of the verifiers on the host."""
    said, *_ = self.host_scores(*arguments)
    return self.reward.score_on_host(said)


def make_problem(
  work: workload.Work, mode: str, verifier_s: float = 0.0
) -> Problem:
  """Makes tokens and verifier, as training has them; `close` it."""
  tokenizer = Numbers(work.vocab)
  verifier: Any = rewards.InGraph(even_share)
  if mode == "split":
    verifier = rewards.OnHost(
      host.HostScorer(
        {"even": "experiments.benchmarks.workload:even_share"}, {"even": 1.0}
      )
    )
  return Problem(
    tokenizer=tokenizer,
    train=[],
    held_out=[],
    supervised=[],
    encoder=Encoder(tokenizer),
    max_prompt_len=work.prompt_len,
    max_new_tokens=work.completion_len,
    reward=rewards.RewardSum((verifier,), {"even": 1.0}, "even"),
    truncate_completions=False,
    verifier_s=verifier_s,
  )


def make_phase(
  work: workload.Work,
  of: problem.Problem,
  mesh: Mesh,
  lanes: int | None = None,
  algorithm: str = "grpo",
  critic: config_lib.CriticConfig | None = None,
  tower: TowerSettings | None = None,
  model: Mapping[str, Any] | None = None,
  **phase: Any,
) -> tuple[step.Phase, TrainState]:
  """The functions of the step and the state before it.

  Args:
    work: Sizes and lengths.
    of: Tokens and verifier.
    mesh: Mesh of the devices.
    lanes: Completions that the sampler decodes at once; None: all.
    algorithm: Name of an algorithm of the table.
    critic: Critic of the algorithm, if it has one.
    tower: Vision tower of the model, if it has one.
    model: Fields of `ModelConfig` that are not sizes.
    **phase: Fields of `RlConfig` that differ from their defaults.
  """
  correction = "truncate" if phase.get("staleness") else "none"
  config = config_lib.RunConfig(
    phases=("rl",),
    sections={
      "rl": phase_lib.RlConfig(
        num_prompts=work.prompts,
        group_size=work.group,
        # So small that all rounds are alike.
        optimizer=phase_lib.OptimizerConfig(learning_rate=1e-7),
        **phase,
      )
    },
    algorithm=(
      algorithm,
      algorithms.make_config(
        algorithm, kl_coef=0.0, importance_mode=correction
      ),
    ),
    critic=critic or config_lib.CriticConfig(),
    model=config_lib.ModelConfig(
      **work.model,
      tower=tower or TowerSettings(),
      **(model or {}),
    ),
    sampling=config_lib.SamplingConfig(lanes=lanes),
  )
  policy = policy_lib.make_policy(config, of, mesh)
  parts = build.make_phase(config, of, policy, "rl", mesh)
  limits = jnp.asarray(workload.lengths(work), jnp.int32)  # [B]
  sampler = dataclasses.replace(
    parts.sampler,
    sample=functools.partial(parts.sampler.sample, limits=limits),  # type: ignore
  )
  parts = dataclasses.replace(parts, sampler=sampler)
  state = checkpointed.first_state(config, of, policy, mesh)
  state = step.enter_phase(state, parts, 0)
  return parts, jax.device_put(state, sharding.of_state(mesh, state))


def make_batch(work: workload.Work) -> pipeline.PromptBatch:
  """Random prompts without padding."""
  shape = work.prompts, work.prompt_len
  tokens = np.random.default_rng(1).integers(PAD + 1, work.vocab, shape)
  prompts = Prompts(
    tokens=tokens.astype(np.int32),
    mask=np.ones(shape, bool),
    ids=np.arange(work.prompts, dtype=np.int32),
    extras={},
  )
  records = [{"prompt": row, "answer": "", "extras": {}} for row in tokens]
  return pipeline.PromptBatch(prompts, records)
