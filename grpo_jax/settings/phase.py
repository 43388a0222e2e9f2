"""Settings of training: phases, optimizers, critics and reward models.

A phase also has settings of the order of its prompts (`ScheduleConfig`), of the
correction of wrong completions (`CorrectionConfig`), and of the completions
that it keeps (`KeepConfig`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from grpo_jax import ranges
from grpo_jax.models.architecture import CRITIC_TRUNKS
from grpo_jax.settings import groups, kinds
from grpo_jax.settings.groups import one_of

# The schedule of epochs: every prompt once, in an order of each epoch's own.
EPOCHS = "epochs"
ADS = "ads"
SPO = "spo"
# Draw each prompt with a weight: `prompts.WEIGHTS` has their formulas.
WEIGHTED = (
  *("uniform", "frontier", "easy_to_hard", "hard_to_easy", "interleave"),
  "target",
)
NAMES = (EPOCHS, *WEIGHTED, ADS, SPO)
DEMONSTRATION_ORDERS = ("shortest", "random")
OWN = "own"  # Name of the run's own data in `demonstrations`.
DISTINCT = ("answer", "text", "none")
WHEN_SHORT = ("fewer", "error", "duplicate")
OF_STEPS = ("min", "product", "sum")
_OF_WEIGHTS = ("pool", "uniform_share", "decay", "start_share", "pace_steps")
# Settings that each schedule reads; other schedules with weights read the same.
_READS: dict[str, tuple[str, ...]] = {
  EPOCHS: (),
  ADS: ("pool", "clusters", "drawn_clusters", "window", "rate", "tolerance"),
  SPO: ("pool", "samples", "memory_low"),
}
# Settings with paths that may contain "{seed}".
PATHS = ("clusters", "samples")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(groups.Switched):
  """The choice of prompts for the steps of a phase; see docs/schedules.md.

  Attributes:
    name: "epochs": every prompt once before any comes again, in random order.
      Other schedules draw from a pool by the share of right completions of each
      prompt so far: "uniform" (all equally likely), "frontier" (most often
      prompts that are solved half of the time), "easy_to_hard", "hard_to_easy",
      "interleave" (half of the weight by each of these two), "target" (the
      num_prompts that are nearest to being solved half of the time), or "spo"
      (by the deviation of right and wrong; it forgets as the policy moves:
      arXiv:2509.13232). "ads" draws clusters of similar prompts, and from each
      cluster a window that moves to harder or easier prompts
      (arXiv:2606.22305).
    pool: Number of the first records of the data from which prompts are drawn;
      None: all. A task makes endless problems, and needs a number.
    uniform_share: Share of the probability that is spread evenly over all
      prompts of the pool, so that none is forgotten.
    decay: Factor of the counts of a prompt's earlier completions each time that
      it is drawn; 1: they count as much as new ones.
    start_share: Share of the pool from which the first step draws
      ("easy_to_hard", "hard_to_easy", "interleave").
    pace_steps: Steps after which these schedules draw from the whole pool.
    clusters: File of clusters of the data, written by experiments.embed
      ("ads"). "{seed}" in it is replaced by the seed of the run.
    drawn_clusters: Clusters of a step, C ("ads"). drawn_clusters × window is
      num_prompts.
    window: Prompts of a cluster that a step draws, B ("ads").
    rate: Rate at which the probability of a cluster follows the share of right
      completions, α ("ads").
    tolerance: Largest difference of a prompt's share of right completions from
      ½ at which the window stays ("ads").
    samples: File of completions of the training prompts, with verdicts, written
      by grpo-generate, from which counts begin ("spo"); empty: counts
      begin with one half right and one half wrong. "{seed}" in it is replaced
      by the seed.
    memory_low: Smallest factor of the counts of a prompt's earlier completions
      when it is drawn, however far the policy has moved, ρ_low ("spo"); it must
      be below 0.96, the largest factor.
  """

  switch: ClassVar[str] = "name"
  values: ClassVar[tuple[str, ...]] = NAMES

  name: str = EPOCHS
  pool: int | None = ranges.ROWS.field(None)
  uniform_share: float = ranges.SHARE.field(0.1)
  decay: float = ranges.SHARE.field(0.9)
  start_share: float = ranges.SHARE.field(0.2)
  pace_steps: int = ranges.SIZE.field(100)
  clusters: str = ""
  drawn_clusters: int = ranges.ROWS.field(4)
  window: int = ranges.ROWS.field(32)
  rate: float = ranges.SHARE.field(0.3)
  tolerance: float = ranges.SHARE.field(0.17)
  samples: str = ""
  memory_low: float = ranges.Range(0, 0.96).field(0.875)

  @classmethod
  def read_with(cls, value: Any) -> tuple[str, ...]:
    """Returns the names of the settings that a schedule reads."""
    return ("name", *_READS.get(value, _OF_WEIGHTS))

  @property
  def chooses(self) -> bool:
    """True if the results of earlier prompts decide which are drawn."""
    return self.name != EPOCHS

  @property
  def tracks(self) -> bool:
    """True if it counts right and wrong completions of each prompt."""
    return self.name not in (EPOCHS, ADS)

  def check(self, where: str, num_prompts: int) -> None:
    """Raises ValueError if a setting is out of range.

    Args:
      where: Name of the group, such as "config.rl.schedule".
    """
    one_of(f"{where[7:]}.name", self.name, NAMES)
    ranges.check(self, where)
    if self.name != ADS:
      return
    if not self.clusters:
      raise ValueError(
        f"{where}.name={ADS!r} needs {where}.clusters, a file with the clusters"
        " of the prompts; `python -m experiments.embed` writes it."
      )
    if self.drawn_clusters * self.window != num_prompts:
      raise ValueError(
        f"{where}: drawn_clusters {self.drawn_clusters} × window {self.window}"
        f" = {self.drawn_clusters * self.window} prompts of a step, and"
        f" num_prompts is {num_prompts}; they must be equal. Change one of the"
        " three."
      )


# Place of the right answer in the sentence.
ANSWER = "{answer}"


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Guided error correction (EDGE-GRPO); docs/correction.md.

  If all three probabilities are 0, wrong completions stay as they are.

  Attributes:
    p_cue: Probability that the cue is appended to a wrong completion; then the
      policy continues it.
    p_answer: Probability that the sentence with the right answer is appended.
    p_reference: Probability that a whole right completion replaces the wrong
      one.
    cue: Text of the cue.
    sentence: Text of the sentence, in which "{answer}" is replaced by the
      answer. An end token follows.
    max_new_tokens: Most tokens that the policy writes after a cue. If draft,
      cue and these tokens exceed the budget of completions, a completion stays
      as it is, and is counted.
    max_prompt_len: Longest prompt, in tokens, whose completions are corrected.
    train_injected: Whether injected tokens are trained, as in the paper.
  """

  p_cue: float = ranges.SHARE.field(0.0)
  p_answer: float = ranges.SHARE.field(0.0)
  p_reference: float = ranges.SHARE.field(0.0)
  cue: str = " Wait! Something is wrong here."
  sentence: str = (
    " After verification, the correct answer is \\boxed{{answer}}."
  )
  max_new_tokens: int = ranges.SLOTS.field(256)
  max_prompt_len: int = ranges.SLOTS.field(256)
  train_injected: bool = False

  @property
  def corrects(self) -> bool:
    """True if any completion may be corrected."""
    return bool(self.p_cue or self.p_answer or self.p_reference)

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    ranges.check(self, where)
    total = self.p_cue + self.p_answer + self.p_reference
    if total > 1 + 1e-9:
      raise ValueError(
        f"{where}: p_cue {self.p_cue} + p_answer {self.p_answer} + p_reference"
        f" {self.p_reference} are {total}; probabilities of what happens to one"
        " completion add up to 1 at most. Lower one of them."
      )
    if self.sentence.count(ANSWER) != 1:
      raise ValueError(
        f"{where}.sentence={self.sentence!r} has {ANSWER!r}"
        f" {self.sentence.count(ANSWER)} times; write it once, where the answer"
        " goes."
      )


# Numbers for which a program is unrolled or compiled, once for each.
_UNROLLED = ranges.Range(1, 1024)
# Gradient steps of another model for each step of the policy.
_UPDATES = ranges.Range(0, 1024)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """An optimizer with a schedule, global-norm clipping and a decay mask.

  Attributes:
    name: "adamw"; "adafactor" (factored second moments, no first moments: the
      least memory); or "muon" (orthogonalised momentum for the matrices of the
      layers, AdamW for the rest). A learning rate makes steps of about the
      same size with each of them.
    learning_rate: Peak learning rate.
    schedule: "constant", "linear" or "cosine" decay after the warm-up, over
      all gradient steps of the phase.
    warmup_steps: Gradient steps of linear warm-up.
    final_fraction: Learning rate at the end, as a fraction of the peak.
    b1, b2, eps: AdamW's parameter of this name.
    weight_decay: Decoupled weight decay, only on matrices, not on embeddings,
      norms and biases.
    clip_norm: Largest global gradient norm.
    stochastic_rounding: Whether the sum of a bfloat16 parameter and its update
      is rounded up or down at random, so that small updates are not lost.
      Parameters in float32, such as those of adapters, are not affected.
  """

  name: str = "adamw"
  learning_rate: float = ranges.POSITIVE.field(1e-4)
  schedule: str = "constant"
  warmup_steps: int = ranges.COUNT.field(0)
  final_fraction: float = ranges.SHARE.field(0.0)
  b1: float = ranges.DECAY.field(0.9)
  b2: float = ranges.DECAY.field(0.99)
  eps: float = ranges.POSITIVE.field(1e-8)
  weight_decay: float = ranges.NOT_NEGATIVE.field(0.0)
  clip_norm: float = ranges.POSITIVE.field(1.0)
  stochastic_rounding: bool = False

  def __post_init__(self):
    one_of("optimizer.name", self.name, ("adamw", "adafactor", "muon"))
    one_of("schedule", self.schedule, ("constant", "linear", "cosine"))


@dataclasses.dataclass(frozen=True)
class KeepConfig:
  """The choice of a prompt's completions that are kept for imitation.

  Only right completions that ended are kept.

  Attributes:
    most: Most completions of a prompt.
    order: Order of the choice: "shortest" first, or "random".
    distinct: "answer" or "text": one completion of each answer or text is kept;
      "none": all. If a prompt has one right answer, "answer" keeps one
      completion.
    least: Smallest values of components of the reward that a completion needs,
      such as ("language=0.9",).
  """

  most: int = ranges.SIZE.field(1)
  order: str = "shortest"
  distinct: str = "answer"
  least: tuple[str, ...] = ()

  @property
  def bounds(self) -> dict[str, float]:
    """Maps components of the reward to their smallest values.

    Raises:
      ValueError: An entry is not written as NAME=NUMBER.
    """
    minimums = {}
    for entry in self.least:
      name, _, value = entry.partition("=")
      try:
        minimums[name] = float(value)
      except ValueError as error:
        raise ValueError(
          f"least={entry!r}: needs NAME=NUMBER, as 'language=0.9'."
        ) from error
    return minimums

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    ranges.check(self, where)
    one_of(f"{where[7:]}.order", self.order, DEMONSTRATION_ORDERS)
    one_of(f"{where[7:]}.distinct", self.distinct, DISTINCT)
    try:
      bounds = self.bounds
    except ValueError as error:
      raise ValueError(f"{where}.{error}") from error
    if not all(map(math.isfinite, bounds.values())):
      raise ValueError(f"{where}.least={self.least}: needs finite numbers.")


@dataclasses.dataclass(frozen=True)
class PhaseConfig(groups.Switched):
  """One phase of a run, with the settings that phases of all kinds have.

  Each kind has a class, which adds the settings that its phases read. The
  constants here are the values for phases that do not have the setting.

  Attributes:
    kind: Kind of the phase: its source of completions and its trained models;
      see `kinds.py`.
    steps: Number of batches.
    num_prompts: Prompts per batch.
    domains: Names of the domains whose prompts are drawn, in the proportions
      of the data; empty: all.
    max_prompt_len: Longest prompt of this phase, in tokens; longer prompts are
      left out and counted. None: as in config.data.
    micro_batch_size: Rows per forward/backward pass, of all devices together.
      It is rounded up so that each device has equally many rows, and whole
      groups if the algorithm couples the rows of a group. None: a good size for
      the backend. Changes time and memory, never the gradient.
    num_lengths: Number of completion lengths for which the update is compiled,
      from T down to T / 8 by equal factors, none below 16 slots. Rows of
      similar length are batched together, so that short completions cost less.
      Each length is compiled separately; 1 for T only. In a single micro-batch
      the longest row decides.
    logits_chunk_mib: Size of the float32 logits of a chunk on a device, MiB;
      None: a good size for the backend. Changes time and memory only.
    reset_policy: Whether the phase starts with the first policy of the run, as
      in a second warm start from the base.
  """

  switch: ClassVar[str] = "kind"
  values: ClassVar[tuple[str, ...]] = tuple(kinds.KINDS)

  kind: str
  steps: int = ranges.COUNT.field(100)
  num_prompts: int = ranges.ROWS.field(32)
  domains: tuple[str, ...] = ()
  max_prompt_len: int | None = ranges.SLOTS.field(None)
  micro_batch_size: int | None = None
  num_lengths: int = _UNROLLED.field(4)
  logits_chunk_mib: int | None = ranges.SIZE.field(None)
  reset_policy: bool = False

  num_epochs = 1
  num_minibatches = 1
  reset_optimizer = True
  optimizer = OptimizerConfig()
  ema_decay = cast("float | None", None)
  set_reference = True
  reference_workdirs = cast("tuple[str, ...]", ())
  reference_mixture = cast("tuple[float, ...]", ())
  reference_storage = "own"
  group_size = 1
  temperature = cast("float | None", None)
  schedule = ScheduleConfig()
  opponents = cast("tuple[str, ...]", ())
  keep = KeepConfig()
  reward_weights = cast("tuple[float, ...]", ())
  max_rounds = 1
  when_short = "fewer"
  staleness = 0
  partial_len = cast("int | None", None)
  recycle_surplus = False
  replay_size = 0
  correction = CorrectionConfig()
  transforms = cast("tuple[str, ...]", ())
  transform_options = cast("Mapping[str, Any]", {})
  demonstrations = cast("tuple[str, ...]", ())
  num_records = cast("int | None", None)

  @classmethod
  def usual(cls, value: Any) -> PhaseConfig:
    """Returns the defaults of phases of a kind."""
    return CLASSES.get(value, PhaseConfig)(kind=value)

  @property
  def num_rows(self) -> int:
    """Completions per batch."""
    return self.num_prompts * self.group_size

  @property
  def num_ahead(self) -> int:
    """Number of batches whose rollouts are sampled before their step."""
    return self.staleness if self.partial_len is None else 0

  @property
  def has_teachers_of_domains(self) -> bool:
    """True if the domain of a prompt chooses one of several teachers."""
    return len(self.reference_workdirs) > 1 and not self.reference_mixture

  @property
  def of_kind(self) -> kinds.PhaseKind:
    """The properties of phases of this kind."""
    return kinds.KINDS[self.kind]

  @property
  def samples(self) -> bool:
    """True if completions are sampled; False if they come with the data."""
    return self.of_kind.samples

  @property
  def trains(self) -> tuple[str, ...]:
    """Names of the models that the phase may train."""
    return self.of_kind.trains

  def check(self, name: str) -> None:
    """Raises ValueError with the equation of sizes if they do not fit."""
    ranges.check(self, f"config.{name}")
    total = self.max_rounds * self.num_rows
    if total not in ranges.ROWS:
      raise ValueError(
        f"config.{name}: num_prompts {self.num_prompts} × group_size"
        f" {self.group_size} × max_rounds {self.max_rounds} = {total} rows of a"
        f" step must be {ranges.ROWS}. Lower one of them."
      )
    if self.reset_policy and not self.reset_optimizer:
      raise ValueError(
        f"config.{name}.reset_optimizer=False with reset_policy=True: the"
        " moments would be those of another policy; set it to True."
      )
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
        f" num_minibatches {self.num_minibatches}, each of"
        f" {rows / self.num_minibatches:g} rows; micro-batches of"
        f" {micro if micro is not None else 'automatic'} rows.\n"
        f"Change config.{name}.num_prompts, group_size, num_minibatches or"
        " micro_batch_size so that each divides."
      )


@dataclasses.dataclass(frozen=True)
class UpdateConfig(PhaseConfig):
  """Settings of phases that train a model.

  Attributes:
    num_epochs: Passes over each batch.
    num_minibatches: Gradient steps per pass, on whole groups in random order;
      on single rows if the number of groups is not a multiple of it.
    reset_optimizer: Whether the phase starts with a fresh optimizer state.
  """

  num_epochs: int = _UNROLLED.field(1)
  num_minibatches: int = ranges.ROWS.field(1)
  reset_optimizer: bool = True


@dataclasses.dataclass(frozen=True)
class PolicyUpdateConfig(UpdateConfig):
  """Settings of phases that train the policy.

  Attributes:
    ema_decay: Decay, per step, of the average of the parameters, which
      evaluations, exports and other runs read. It ends with the phase: the next
      one goes on from the parameters themselves. None keeps no average.
    optimizer: The optimizer of this phase.
  """

  ema_decay: float | None = ranges.DECAY.field(None)
  optimizer: OptimizerConfig = OptimizerConfig()

  def check(self, name: str) -> None:
    """Raises ValueError if a setting is out of range."""
    super().check(name)
    ranges.check(self.optimizer, f"config.{name}.optimizer")


@dataclasses.dataclass(frozen=True)
class ReferenceConfig(PhaseConfig):
  """Settings of phases whose algorithm may read a reference policy.

  Attributes:
    set_reference: Whether the phase starts with the current policy as the
      reference policy.
    reference_workdirs: Reference policies from outside, as teachers: the
      workdir of a run, whose last checkpoint is read, or the folder or hub name
      of a Hugging Face checkpoint, of any size and family with the same
      tokenizer. If there are several, each prompt has the teacher of its
      domain, in the order of the domains; or all are mixed.
    reference_mixture: Weights of several teachers, ≥ 0, which are mixed for all
      prompts: the logits of the mixture are the weighted mean of theirs. Empty:
      each prompt has the teacher of its domain.
    reference_storage: Format of the models of reference_workdirs: "own", each
      in its own dtype (a checkpoint in config.model.param_dtype); "bfloat16";
      or "int8", the kernels of their layers in 8 bits, and the rest in
      bfloat16.
  """

  set_reference: bool = True
  reference_workdirs: tuple[str, ...] = ()
  reference_mixture: tuple[float, ...] = ()
  reference_storage: str = "own"

  def check(self, name: str) -> None:
    """Raises ValueError if a setting does not fit the teachers."""
    super().check(name)
    storage = self.reference_storage
    one_of(f"{name}.reference_storage", storage, groups.STORAGE)
    weights, teachers = self.reference_mixture, self.reference_workdirs
    if weights and (
      len(weights) != len(teachers)
      or not all(0 <= weight < math.inf for weight in weights)
      or sum(weights) == 0
    ):
      raise ValueError(
        f"config.{name}.reference_mixture={weights}: needs a finite number"
        f" ≥ 0 for each of the {len(teachers)} models of"
        f" config.{name}.reference_workdirs, one of them above 0; or () for the"
        " teacher of each prompt's domain."
      )


@dataclasses.dataclass(frozen=True)
class SampledConfig(PhaseConfig):
  """Settings of phases whose completions are sampled.

  Attributes:
    group_size: Completions per prompt.
    temperature: Temperature of sampled completions; None: that of
      config.sampling.
    schedule: The choice of prompts.
    opponents: Players of the other seats of an environment with several seats:
      "start", the policy at the start of the phase; "self", the current policy;
      or another run's workdir, or a checkpoint with the same tokenizer. With K
      opponents, prompt n has opponent n mod K. They are not trained, and the
      policy reads their tokens. Empty: "self".
  """

  group_size: int = ranges.ROWS.field(8)
  temperature: float | None = groups.TEMPERATURE.field(None)
  schedule: ScheduleConfig = ScheduleConfig()
  opponents: tuple[str, ...] = ()

  def check(self, name: str) -> None:
    """Raises ValueError if a setting is out of range."""
    super().check(name)
    self.schedule.check(f"config.{name}.schedule", self.num_prompts)


@dataclasses.dataclass(frozen=True)
class RejectionConfig(SampledConfig):
  """A phase that keeps right completions, for later phases to imitate.

  Attributes:
    keep: The choice of completions that are kept.
  """

  kind: str = "rejection"
  keep: KeepConfig = KeepConfig()

  def check(self, name: str) -> None:
    """Raises ValueError if a setting is out of range."""
    super().check(name)
    self.keep.check(f"config.{name}.keep")


@dataclasses.dataclass(frozen=True)
class RewardedConfig(SampledConfig, UpdateConfig):
  """Settings of phases that train on sampled completions and their rewards.

  Phases that train a reward model on them have no others.

  Attributes:
    reward_weights: Weights of config.rewards.functions that replace
      config.rewards.weights and schedules; empty: these. Evaluations always
      use config.rewards.
    max_rounds: Most rounds of dynamic sampling. A step samples for up to so
      many batches of prompts, until num_prompts groups have different rewards.
      Those are trained, and further groups of the last round are dropped unless
      recycle_surplus keeps them; if there are fewer, see when_short. 1: one
      batch. A step takes max_rounds × num_prompts prompts from the data,
      sampled or not, so that the position in the data is a function of the
      step, and a run resumes exactly.
    when_short: Rule for a step with fewer such groups than num_prompts.
      "fewer": it trains on them. "error": it trains nothing, and the run is
      saved and ends (verl). "duplicate": if they are more than half of
      num_prompts, they are repeated in their order until the batch is full;
      else the step trains nothing (GLM-5, arXiv:2602.15763).
    staleness: Most updates by which the parameters of a rollout are behind
      those that it trains. 0 is exact: the device waits for the host's
      verifiers. With k, the rollouts of the next k batches are sampled before
      one batch is trained, so that the device samples while the host verifies;
      with an environment on the host, the update runs while sessions wait. If
      verifiers are in the program it saves nothing, and is for studies only.
      Needs an algorithm that corrects for the updates in between
      (config.algorithm.importance_mode, …).
    partial_len: Most tokens of each completion that a step decodes; the next
      step continues with its own parameters. A group is trained when all of its
      completions have ended, and waits for at most `staleness` updates: in the
      last of these steps it is decoded to its end. The next prompts take its
      place. With an environment episodes are cut, and tokens of observations
      count; on the host a new session then answers the same actions again.
      None: completions are sampled whole.
  """

  reward_weights: tuple[float, ...] = ()
  max_rounds: int = _UNROLLED.field(1)
  when_short: str = "fewer"
  staleness: int = ranges.Range(0, 1024).field(0)
  partial_len: int | None = ranges.SLOTS.field(None)

  def check(self, name: str) -> None:
    """Raises ValueError if a setting does not fit the others."""
    super().check(name)
    if self.partial_len is not None and not self.staleness:
      raise ValueError(
        f"config.{name}.partial_len={self.partial_len} lets completions go on"
        f" with later parameters, and config.{name}.staleness=0 allows no"
        " update in between; set staleness to the updates that they may wait"
        " for, at least 1, or partial_len=None."
      )
    one_of(f"{name}.when_short", self.when_short, WHEN_SHORT)
    if self.when_short != "fewer" and self.max_rounds == 1:
      raise ValueError(
        f"config.{name}.when_short={self.when_short!r} is about rounds that end"
        f" too early, and config.{name}.max_rounds=1 draws one batch; raise"
        " max_rounds, or set when_short='fewer'."
      )


@dataclasses.dataclass(frozen=True)
class ValueConfig(RewardedConfig, ReferenceConfig):
  """A phase that trains the critic alone."""

  kind: str = "value"
  steps: int = ranges.COUNT.field(50)
  group_size: int = ranges.ROWS.field(1)


@dataclasses.dataclass(frozen=True)
class RlConfig(RewardedConfig, PolicyUpdateConfig, ReferenceConfig):
  """A phase that trains the policy, and a critic, on sampled completions.

  Attributes:
    recycle_surplus: Whether the rounds of a step begin with the surplus groups
      of the step before. They were sampled one update earlier, so the algorithm
      must correct for that (config.algorithm.importance_mode, …).
    replay_size: Number of groups that are kept for replay, which replace groups
      whose rewards are all equal. Of all groups of the phase, those with the
      highest priority are kept: the sum of absolute advantages times the
      deviation of the rewards. Kept groups are drawn in proportion to it. They
      may have any age, so the algorithm must correct for that. 0: none.
    correction: The correction of wrong completions.
    transforms: Functions that change a scored batch before its advantages, by
      their import paths; see `step/transforms.py`.
    transform_options: Arguments of these functions by name, the part of a path
      after ":". For example, {"short": {"limit": 200.0}}.
  """

  kind: str = "rl"
  recycle_surplus: bool = False
  replay_size: int = ranges.Range(0, ranges.ROWS.high).field(0)
  correction: CorrectionConfig = CorrectionConfig()
  transforms: tuple[str, ...] = ()
  transform_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def check(self, name: str) -> None:
    """Raises ValueError if a setting does not fit the others."""
    super().check(name)
    if self.recycle_surplus and self.max_rounds == 1:
      raise ValueError(
        f"config.{name}.recycle_surplus=True is about what rounds have beyond a"
        f" batch, and config.{name}.max_rounds=1 draws one batch, no more;"
        " raise max_rounds, or set recycle_surplus=False."
      )
    if self.replay_size and self.when_short != "fewer":
      raise ValueError(
        f"config.{name}.replay_size={self.replay_size} and"
        f" config.{name}.when_short={self.when_short!r} both say what becomes"
        " of a batch that is short of groups; set when_short='fewer', or"
        " replay_size=0."
      )
    self.correction.check(f"config.{name}.correction")


@dataclasses.dataclass(frozen=True)
class SupervisedConfig(PolicyUpdateConfig):
  """A phase in which the policy imitates completions of the data.

  Attributes:
    demonstrations: Sources of completions: names of earlier phases of the kind
      "rejection", or files that these or grpo-generate have written;
      "own" is the run's own data. Empty: the run's own data alone.
    num_records: Number of the first records of the run's own data that are
      imitated; None: all.
  """

  kind: str = "supervised"
  demonstrations: tuple[str, ...] = ()
  num_records: int | None = ranges.ROWS.field(None)

  def check(self, name: str) -> None:
    """Raises ValueError if a setting does not fit the others."""
    super().check(name)
    reads_own = not self.demonstrations or OWN in self.demonstrations
    if self.num_records is not None and not reads_own:
      raise ValueError(
        f"config.{name}.num_records={self.num_records} is about the run's own"
        f" data, which are not among config.{name}.demonstrations="
        f"{self.demonstrations}; add 'own' to them, or set it to None."
      )
    others = [x for x in self.demonstrations if x != OWN]
    if self.domains and others:
      raise ValueError(
        f"config.{name}.domains={self.domains} chooses among the run's own"
        f" data, and config.{name}.demonstrations has {others[0]!r}, of which"
        " all is imitated; leave domains empty, and set those of the phase that"
        " keeps completions."
      )


@dataclasses.dataclass(frozen=True)
class ComparisonConfig(UpdateConfig):
  """A phase that trains a reward model on pairs of the data."""

  kind: str = "comparison"
  group_size = 2

  def check(self, name: str) -> None:
    """Raises ValueError if minibatches part pairs."""
    super().check(name)
    if self.num_minibatches > self.num_prompts:
      raise ValueError(
        f"config.{name}.num_minibatches={self.num_minibatches} would part the"
        f" pairs of {self.num_prompts} prompts; set it to that or less."
      )


@dataclasses.dataclass(frozen=True)
class PairsConfig(ComparisonConfig, PolicyUpdateConfig, ReferenceConfig):
  """A phase that trains the policy on pairs of the data."""

  kind: str = "pairs"


# Kind of a phase -> class of its settings.
CLASSES: dict[str, type[PhaseConfig]] = {
  "supervised": SupervisedConfig,
  "rl": RlConfig,
  "value": ValueConfig,
  "preference": RewardedConfig,
  "process": RewardedConfig,
  "rejection": RejectionConfig,
  "pairs": PairsConfig,
  "comparison": ComparisonConfig,
}
# Groups of a config whose algorithm has a critic.
OF_CRITIC = ("critic", "value")
# The phases that every config has, except those of a critic.
SECTIONS: dict[str, PhaseConfig] = {
  "sft": SupervisedConfig(),
  "value": ValueConfig(),
  "rl": RlConfig(),
}


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """The critic of algorithms that have one, in the phases "value" and "rl".

  Attributes:
    trunk: "own": a copy of the policy, made when the first of these phases
      begins; or "shared": the policy's hidden states as constants.
    freeze: Names in the paths of parameters of an own trunk that are not
      trained, such as "attention" or "embed".
    num_updates: Gradient steps for each step of the policy; 0 keeps the critic
      as it is.
    optimizer: The critic's optimizer; its schedule begins anew in each phase.
  """

  trunk: str = "own"
  freeze: tuple[str, ...] = ()
  num_updates: int = _UPDATES.field(1)
  optimizer: OptimizerConfig = OptimizerConfig()

  def __post_init__(self):
    one_of("critic.trunk", self.trunk, CRITIC_TRUNKS)
    ranges.check(self, "config.critic")
    ranges.check(self.optimizer, "config.critic.optimizer")


@dataclasses.dataclass(frozen=True)
class RewardModelConfig:
  """The reward model, for the reward "reward_model" and phases that train it.

  Attributes:
    source: An existing reward model: the workdir of a run that has trained one,
      or the folder or hub name of a Hugging Face checkpoint with a scalar head
      (a model for sequence classification with one label; for token
      classification if step_ends is set). It keeps its own size, and reads the
      policy's tokens. A phase that trains the reward model continues from it.
      Empty: a copy of the policy, made when the first phase that trains it
      begins.
    ranked_by: Another reward model whose scores rank completions instead of
      rewards, in phases of the kind "preference"; named as source is, and not
      trained. Empty: rewards rank them.
    step_ends: Ends of texts of tokens that end a step, such as (";",) or
      ("\\n",), for a process reward model, which scores each step. Phases of
      the kind "process" train it. Empty: the model scores whole completions.
    of_steps: Function from scores of steps, each the probability that the step
      is right, to the score of the completion: "min", "product" or "sum".
    freeze: Names in the paths of parameters of its trunk that are not trained.
    num_updates: Gradient steps on each minibatch.
    margin: Margin by which the better score should be ahead, in the loss of
      pairs.
    center_coef: Weight of the term of that loss that keeps scores centred.
    history_share: Share of a step's prompts that come from earlier phases, with
      their completions of that time. 0.1 of 40 prompts are 4, once there are as
      many; 0: none.
    history_size: Number of prompts that are kept for that, with their
      completions: a uniform sample of all prompts of such phases.
    optimizer: The reward model's optimizer; its schedule begins anew in each
      phase.
  """

  source: str = ""
  ranked_by: str = ""
  step_ends: tuple[str, ...] = ()
  of_steps: str = "min"
  freeze: tuple[str, ...] = ()
  num_updates: int = _UPDATES.field(1)
  margin: float = ranges.NOT_NEGATIVE.field(0.0)
  # 0.01 in arXiv:2312.09244.
  center_coef: float = ranges.NOT_NEGATIVE.field(0.0)
  history_share: float = ranges.SHARE.field(0.0)
  history_size: int = ranges.ROWS.field(1024)
  optimizer: OptimizerConfig = OptimizerConfig()

  def __post_init__(self):
    one_of("reward_model.of_steps", self.of_steps, OF_STEPS)
    if "" in self.step_ends:
      raise ValueError(
        f"config.reward_model.step_ends={self.step_ends}: every token ends with"
        " an empty text; name texts such as ';'."
      )
    ranges.check(self, "config.reward_model")
    ranges.check(self.optimizer, "config.reward_model.optimizer")

  @property
  def of_pairs(self) -> dict[str, float]:
    """Options of the loss of pairs that are set, by name."""
    options = {"margin": self.margin, "center_coef": self.center_coef}
    return {name: value for name, value in options.items() if value}

  def ranks(self, phase: PhaseConfig) -> bool:
    """Returns True if another reward model ranks a phase's completions."""
    return bool(self.ranked_by) and phase.kind == kinds.PREFERENCE.name

  def check(self, name: str, phase: PhaseConfig) -> None:
    """Raises ValueError if a phase does not fit these settings."""
    if "reward" not in phase.trains:
      return
    if self.ranks(phase) and phase.reward_weights:
      raise ValueError(
        f"config.{name}.reward_weights={phase.reward_weights} and"
        f" config.reward_model.ranked_by={self.ranked_by!r} both say which"
        " completion is better; leave one of them empty."
      )
    on_steps = phase.kind == kinds.PROCESS.name
    if on_steps != bool(self.step_ends):
      raise ValueError(
        f"config.{name}.kind={phase.kind!r} trains a reward model to score"
        f" {'steps' if on_steps else 'whole completions'}, and with"
        f" config.reward_model.step_ends={self.step_ends} its scores are those"
        f" of {'whole completions' if on_steps else 'steps'}; "
        + (
          "name the texts that end a step there."
          if on_steps
          else "leave it empty, or choose the kind 'process'."
        )
      )
