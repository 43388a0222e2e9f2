"""Settings of what is trained: optimizers, phases, critics, reward models."""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo_jax import algorithms, ranges
from grpo_jax.models import critic
from grpo_jax.training import kinds
from grpo_jax.training.settings import one_of
from grpo_jax.types import Algorithm

# What a program is unrolled or compiled for, once for each.
_UNROLLED = ranges.Range(1, 1024)
# Gradient steps of another model for each one of the policy.
_UPDATES = ranges.Range(0, 1024)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """A rule with a schedule, global-norm clipping and a decay mask.

  Attributes:
    name: "adamw"; "adafactor" (factored second moments, no first ones: the
      least memory); or "muon" (orthogonalised momentum for the matrices of the
      layers, AdamW for the rest). A learning rate makes steps of about the
      same size with each.
    learning_rate: Peak.
    schedule: "constant", "linear" or "cosine" decay after the warm-up, over
      all gradient steps of the phase.
    warmup_steps: Gradient steps of linear warm-up.
    final_fraction: Learning rate at the end, as a fraction of the peak.
    b1, b2, eps: AdamW's.
    weight_decay: Decoupled; only on matrices, not on embeddings, norms and
      biases.
    clip_norm: Largest global gradient norm.
    stochastic_rounding: Round the sum of a bfloat16 parameter and its update
      up or down at random, so that small updates are not lost. Needs
      config.model.param_dtype="bfloat16".
  """

  name: str = "adamw"
  learning_rate: float = 1e-4
  schedule: str = "constant"
  warmup_steps: int = 0
  final_fraction: float = 0.0
  b1: float = 0.9
  b2: float = 0.99
  eps: float = 1e-8
  weight_decay: float = 0.0
  clip_norm: float = 1.0
  stochastic_rounding: bool = False

  def __post_init__(self):
    one_of("optimizer.name", self.name, ("adamw", "adafactor", "muon"))
    one_of("schedule", self.schedule, ("constant", "linear", "cosine"))

  def check(self, where: str) -> None:
    """Raises ValueError if a number is out of range."""
    ranges.check(
      self,
      where,
      learning_rate=ranges.POSITIVE,
      warmup_steps=ranges.COUNT,
      final_fraction=ranges.SHARE,
      b1=ranges.DECAY,
      b2=ranges.DECAY,
      eps=ranges.POSITIVE,
      weight_decay=ranges.NOT_NEGATIVE,
      clip_norm=ranges.POSITIVE,
    )


@dataclasses.dataclass(frozen=True)
class PhaseConfig:
  """One phase of a run.

  Attributes:
    kind: Where its batches come from, and what they train: see `kinds.py`.
    steps: Batches.
    num_prompts: Prompts per batch.
    group_size: Completions per prompt (1 in a supervised phase).
    max_rounds: With dynamic sampling, draw up to so many batches of prompts in
      a step, until num_prompts of them have completions with different
      rewards; those are trained, and what the last round has beyond them is
      dropped. If there are fewer, the others are left out of the loss as with
      1, which draws one batch. A step takes max_rounds × num_prompts prompts
      from the data, drawn or not: where the data stands is then a function of
      the step, and a run resumes exactly.
    max_prompt_len: Longer prompts are left out of this phase and counted,
      tokens; None: as in config.data.
    num_epochs: Passes over each batch.
    num_minibatches: Gradient steps per pass, on whole groups in random order;
      on single rows if the groups do not divide by it.
    micro_batch_size: Rows per forward/backward pass; None: a good size for
      the backend. Changes time and memory, never the gradient.
    num_lengths: Completion lengths that the update is compiled for, from T down
      to T / 8 by equal factors, none below 16 slots: rows of about the same
      length go together, and completions that end early cost less. Each takes a
      compilation of its own; 1 for T only. In a single micro-batch the longest
      row decides for all.
    logits_chunk_mib: What the float32 logits of a chunk may take on a device,
      MiB; None: a good size for the backend. Changes time and memory only.
    reset_optimizer: Start the phase with a fresh optimizer state.
    set_reference: Start the phase with the reference policy set to the
      current one.
    reference_workdirs: Take the reference policy from the last checkpoint of
      this run instead: a teacher of the same architecture and vocabulary. With
      several, the number of a prompt's domain says which of them is its own.
    ema_decay: Of the average of the parameters, per step; None keeps none.
    staleness: Updates that the parameters of a rollout may be behind those
      that it trains. 0 is exact: the device waits for the host's verifiers.
      With k, rollouts of the next k batches are on their way while the host
      verifies one; needs verifiers on the host, and an algorithm that corrects
      what has changed in between (config.algorithm.importance_mode, …).
    optimizer: Of this phase.
  """

  kind: str = "rl"
  steps: int = 100
  num_prompts: int = 32
  group_size: int = 1
  max_rounds: int = 1
  max_prompt_len: int | None = None
  num_epochs: int = 1
  num_minibatches: int = 1
  micro_batch_size: int | None = None
  num_lengths: int = 4
  logits_chunk_mib: int | None = None
  reset_optimizer: bool = True
  set_reference: bool = True
  reference_workdirs: tuple[str, ...] = ()
  ema_decay: float | None = None
  staleness: int = 0
  optimizer: OptimizerConfig = OptimizerConfig()

  @property
  def num_rows(self) -> int:
    """Completions per batch."""
    return self.num_prompts * self.group_size

  @property
  def of_kind(self) -> kinds.Kind:
    """What phases of this kind have in common."""
    return kinds.KINDS[self.kind]

  @property
  def plays(self) -> bool:
    """Whether completions are drawn, or come with the data."""
    return self.of_kind.plays

  @property
  def trains(self) -> tuple[str, ...]:
    """Members that it may train."""
    return self.of_kind.trains

  def objective(self, algorithm: tuple[str, Any]) -> tuple[Algorithm, Any]:
    """The objective of the phase and its config, from those of the run.

    Raises:
      ValueError: The run's algorithm has nothing that this kind trains.
    """
    name, config = algorithm
    return self.of_kind.objective(algorithms.get_algorithm(name), config)

  def check(self, name: str) -> None:
    """Raises ValueError with the equation of sizes if they do not fit."""
    one_of(f"{name}.kind", self.kind, tuple(kinds.KINDS))
    ranges.check(
      self,
      f"config.{name}",
      steps=ranges.COUNT,
      num_prompts=ranges.ROWS,
      group_size=ranges.ROWS,
      max_rounds=_UNROLLED,
      max_prompt_len=ranges.SLOTS,
      num_epochs=_UNROLLED,
      num_minibatches=ranges.ROWS,
      num_lengths=_UNROLLED,
      logits_chunk_mib=ranges.SIZE,
      ema_decay=ranges.DECAY,
      staleness=ranges.Range(0, 1024),
    )
    drawn = self.max_rounds * self.num_rows
    if drawn not in ranges.ROWS:
      raise ValueError(
        f"config.{name}: num_prompts {self.num_prompts} × group_size"
        f" {self.group_size} × max_rounds {self.max_rounds} = {drawn} rows of a"
        f" step must be {ranges.ROWS}. Lower one of them."
      )
    self.of_kind.check(name, self)
    self.optimizer.check(f"config.{name}.optimizer")
    rows, minibatch = self.num_rows, self.num_rows // self.num_minibatches
    micro = self.micro_batch_size
    if rows % self.num_minibatches or (
      micro is not None and (micro < 1 or minibatch % micro)
    ):
      raise ValueError(
        f"config.{name}: the sizes do not fit together. Needed:\n"
        "  num_prompts × group_size = num_minibatches × (a whole number of)"
        " × micro_batch_size\n"
        f"  {self.num_prompts} × {self.group_size} = {rows} rows;"
        f" {self.num_minibatches} minibatches of"
        f" {rows / self.num_minibatches:g} rows; micro-batches of"
        f" {micro if micro is not None else 'automatic'} rows.\n"
        f"Change config.{name}.group_size, num_minibatches or"
        " micro_batch_size so that each divides."
      )


# The phases that every config has.
SECTIONS: dict[str, PhaseConfig] = {
  "sft": PhaseConfig(kind="supervised"),
  "value": PhaseConfig(kind="value", steps=50),
  "rl": PhaseConfig(kind="rl", group_size=8),
}


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """The critic of algorithms that have one, in the phases "value" and "rl".

  Attributes:
    trunk: "own": a copy of the policy, made where the first of these phases
      begins; or "shared": the policy's hidden states as constants.
    freeze: Names in the paths of parameters of an own trunk that are not
      trained, such as "attention" or "embed".
    num_updates: Gradient steps for each one of the policy; 0 keeps the critic
      as it is.
    optimizer: Its own; the schedule begins anew in each phase.
  """

  trunk: str = "own"
  freeze: tuple[str, ...] = ()
  num_updates: int = 1
  optimizer: OptimizerConfig = OptimizerConfig()

  def __post_init__(self):
    one_of("critic.trunk", self.trunk, critic.TRUNKS)
    ranges.check(self, "config.critic", num_updates=_UPDATES)
    self.optimizer.check("config.critic.optimizer")


@dataclasses.dataclass(frozen=True)
class RewardModelConfig:
  """A model that scores completions, where rewards have "reward_model".

  Attributes:
    workdir: The run that has trained it, in a phase of the kind "preference";
      empty: a phase of this run.
    freeze: Names in the paths of parameters of its trunk, a copy of the policy,
      that are not trained.
    num_updates: Gradient steps on each minibatch of pairs.
    optimizer: Its own; the schedule begins anew in each phase.
  """

  workdir: str = ""
  freeze: tuple[str, ...] = ()
  num_updates: int = 1
  optimizer: OptimizerConfig = OptimizerConfig()

  def __post_init__(self):
    ranges.check(self, "config.reward_model", num_updates=_UPDATES)
    self.optimizer.check("config.reward_model.optimizer")
