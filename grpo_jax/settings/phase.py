"""Settings of what is trained: optimizers, phases, critics, reward models.

Settings of the order in which a phase draws its prompts.

Settings of what a phase does with completions that are wrong.
"""

from __future__ import annotations

import dataclasses
import math

from grpo_jax import ranges
from grpo_jax.settings import groups, kinds
from grpo_jax.settings.groups import one_of

# Every prompt once, in an order of each epoch's own.
EPOCHS = "epochs"
ADS = "ads"
SPO = "spo"
# Draw each prompt with a weight: `prompts.WEIGHTS` has their formulas.
WEIGHTED = (
  "uniform",
  "frontier",
  "easy_to_hard",
  "hard_to_easy",
  "interleave",
  "target",
)
NAMES = (EPOCHS, *WEIGHTED, ADS, SPO)
DEMONSTRATION_ORDERS = ("shortest", "random")
DISTINCT = ("answer", "text", "none")
TRUNKS = ("own", "shared")
WHEN_SHORT = ("fewer", "error", "duplicate")
OF_STEPS = ("min", "product", "sum")
_OF_WEIGHTS = ("pool", "uniform_share", "decay", "start_share", "pace_steps")
# What each of them reads; of the others, those with weights read the same.
_READS = {
  EPOCHS: (),
  ADS: ("pool", "clusters", "drawn_clusters", "window", "rate", "tolerance"),
  SPO: ("pool", "samples", "memory_low"),
}
# Paths, in which the seed of a run may stand.
PATHS = ("clusters", "samples")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
  """Which prompts a step of a phase draws; docs/schedules.md.

  Attributes:
    name: "epochs": every prompt once before any comes again, in random order.
      Others draw from a pool by how often each prompt was solved so far:
      "uniform" (all alike), "frontier" (most often those that are solved half
      of the time), "easy_to_hard", "hard_to_easy", "interleave" (half of the
      weight by each of these two), "target" (the num_prompts that are
      nearest to being solved half of the time), or "spo" (by the deviation of
      right and wrong, and it forgets by how far the policy moved:
      arXiv:2509.13232). "ads" draws clusters of like prompts, and of each a
      window that moves to harder or easier ones (arXiv:2606.22305).
    pool: The first so many records of the data are drawn from; None: all. A
      task that makes its problems has no end of them, and needs a number.
    uniform_share: Share of the probability that all prompts of the pool have
      alike, so that none is forgotten.
    decay: What earlier completions of a prompt still count, each time that it
      is drawn; 1: as much as new ones.
    start_share: Of "easy_to_hard", "hard_to_easy" and "interleave": the share
      of the pool that the first step draws from.
    pace_steps: Steps after which these draw from the whole pool.
    clusters: Of "ads": the file that experiments.embed has written of the data.
      "{seed}" in it stands for the seed of the run.
    drawn_clusters: Of "ads": clusters of a step (C). Times `window` they are
      num_prompts.
    window: Of "ads": prompts of a cluster that a step draws (B).
    rate: Of "ads": how fast the probability of a cluster follows the share of
      right completions (α).
    tolerance: Of "ads": by how much that share of a prompt may be off ½ before
      the window moves on.
    samples: Of "spo": a file that experiments.generate has written of the
      training prompts, with verdicts, from which counts begin; empty: from one
      half right and one half wrong. "{seed}" stands for the seed.
    memory_low: Of "spo": the least that earlier completions of a prompt count
      when it is drawn, however far the policy has moved (ρ_low); below 0.96,
      what they count at most.
  """

  name: str = EPOCHS
  pool: int | None = None
  uniform_share: float = 0.1
  decay: float = 0.9
  start_share: float = 0.2
  pace_steps: int = 100
  clusters: str = ""
  drawn_clusters: int = 4
  window: int = 32
  rate: float = 0.3
  tolerance: float = 0.17
  samples: str = ""
  memory_low: float = 0.875

  @property
  def chooses(self) -> bool:
    """Whether prompts are chosen by what became of others."""
    return self.name != EPOCHS

  @property
  def tracks(self) -> bool:
    """Whether it counts right and wrong completions of each prompt."""
    return self.name not in (EPOCHS, ADS)

  def check(self, where: str, num_prompts: int) -> None:
    """Raises ValueError if a setting is out of range.

    Args:
      where: As "config.rl.schedule".
      num_prompts: Of a step of the phase.
    """
    one_of(f"{where[7:]}.name", self.name, NAMES)
    ranges.check(
      self,
      where,
      pool=ranges.ROWS,
      uniform_share=ranges.SHARE,
      decay=ranges.SHARE,
      start_share=ranges.SHARE,
      pace_steps=ranges.SIZE,
      drawn_clusters=ranges.ROWS,
      window=ranges.ROWS,
      rate=ranges.SHARE,
      tolerance=ranges.SHARE,
      memory_low=ranges.Range(0, 0.96),
    )
    self._check_unused(where)
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

  def _check_unused(self, where: str) -> None:
    """Raises ValueError if a setting is changed that nothing reads."""
    read = ("name", *_READS.get(self.name, _OF_WEIGHTS))
    unused = [
      field.name
      for field in dataclasses.fields(self)
      if field.name not in read and getattr(self, field.name) != field.default
    ]
    if not unused:
      return
    if not self.chooses:
      raise ValueError(
        f"{where} has {', '.join(unused)}, settings of a pool, and with"
        f" {where}.name={EPOCHS!r} every prompt comes once before any comes"
        f" again; set the name to one of {', '.join(NAMES[1:])}, or leave the"
        " others as they are."
      )
    raise ValueError(
      f"{where} has {', '.join(unused)}, which {where}.name={self.name!r} does"
      f" not read: it reads {', '.join(read[1:])}. Leave the others as they"
      " are, or choose another name."
    )


# In a sentence, where the right answer goes.
ANSWER = "{answer}"


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Guided error correction (EDGE-GRPO); docs/correction.md.

  With all three probabilities 0 a wrong completion stays as it is.

  Attributes:
    p_cue: Probability that a wrong completion has the cue appended, after which
      the policy goes on.
    p_answer: That it has the sentence with the right answer appended.
    p_reference: That it is replaced by a whole right completion.
    cue: Text of the cue.
    sentence: Text of the sentence, in which "{answer}" stands for the answer.
      An end token follows.
    max_new_tokens: Most tokens that the policy writes after a cue. A completion
      has room for it if draft, cue and these are within the budget of
      completions; else it stays as it is, and is counted.
    max_prompt_len: Completions of longer prompts stay as they are, tokens.
    train_injected: Whether what was put in is trained, as in the paper.
  """

  p_cue: float = 0.0
  p_answer: float = 0.0
  p_reference: float = 0.0
  cue: str = " Wait! Something is wrong here."
  sentence: str = (
    " After verification, the correct answer is \\boxed{{answer}}."
  )
  max_new_tokens: int = 256
  max_prompt_len: int = 256
  train_injected: bool = False

  @property
  def corrects(self) -> bool:
    """Whether any completion is corrected."""
    return bool(self.p_cue or self.p_answer or self.p_reference)

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    ranges.check(
      self,
      where,
      p_cue=ranges.SHARE,
      p_answer=ranges.SHARE,
      p_reference=ranges.SHARE,
      max_new_tokens=ranges.SLOTS,
      max_prompt_len=ranges.SLOTS,
    )
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


# What a program is unrolled or compiled for, once for each.
_UNROLLED = ranges.Range(1, 1024)
_IN_EPOCHS = ScheduleConfig()
_AS_THEY_ARE = CorrectionConfig()
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
      up or down at random, so that small updates are not lost. Parameters in
      float32, as those of adapters always are, lose none and stay as they are.
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
class KeepConfig:
  """Which completions of a prompt are kept to be imitated.

  Kept are right ones that came to an end.

  Attributes:
    most: How many of a prompt at most.
    order: Which come first: "shortest" or "random".
    distinct: Of completions with the same "answer", or the same "text", one is
      kept; "none": all. Where a prompt has one right answer, "answer" keeps one
      completion.
    least: The least value of a component of the reward that a completion
      needs, of one or of several: ("language=0.9",).
  """

  most: int = 1
  order: str = "shortest"
  distinct: str = "answer"
  least: tuple[str, ...] = ()

  @property
  def bounds(self) -> dict[str, float]:
    """Component -> its least value.

    Raises:
      ValueError: One is not written as NAME=NUMBER.
    """
    found = {}
    for given in self.least:
      name, _, value = given.partition("=")
      try:
        found[name] = float(value)
      except ValueError as error:
        raise ValueError(
          f"least={given!r}: needed is NAME=NUMBER, as 'language=0.9'."
        ) from error
    return found

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    ranges.check(self, where, most=ranges.SIZE)
    one_of(f"{where[7:]}.order", self.order, DEMONSTRATION_ORDERS)
    one_of(f"{where[7:]}.distinct", self.distinct, DISTINCT)
    try:
      bounds = self.bounds
    except ValueError as error:
      raise ValueError(f"{where}.{error}") from error
    if not all(map(math.isfinite, bounds.values())):
      raise ValueError(
        f"{where}.least={self.least}: needed are finite numbers."
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
      dropped, unless recycle_surplus keeps it. If there are fewer, when_short
      says what becomes of the step. 1 draws one batch. A step takes max_rounds
      × num_prompts prompts from the data, drawn or not: where the data stands
      is then a function of the step, and a run resumes exactly.
    when_short: What a step does whose rounds end with fewer such groups than
      num_prompts. "fewer": it trains on those there are. "error": it trains
      nothing, and the run is saved and ends (verl). "duplicate": if they are
      more than half of num_prompts, they are repeated in their order until the
      batch is full; if not, the step trains nothing (GLM-5, arXiv:2602.15763).
    recycle_surplus: Begin the rounds of a step with what the last one had
      beyond num_prompts. It was drawn one update earlier, so the algorithm has
      to correct for that (config.algorithm.importance_mode, …).
    replay_size: Groups of completions that are kept to be trained again, in the
      place of groups whose rewards are all equal: those with the highest sum of
      absolute advantages, times the deviation of their rewards, of all that
      were drawn in the phase. Which of them come is drawn in proportion to
      that. They are of any age, so the algorithm has to correct for it. 0:
      none.
    schedule: Which prompts of the data come next.
    correction: What is done with completions that are wrong.
    domains: Names of the domains whose prompts are drawn, in the proportions
      of the data; empty: all.
    max_prompt_len: Longer prompts are left out of this phase and counted,
      tokens; None: as in config.data.
    num_epochs: Passes over each batch.
    num_minibatches: Gradient steps per pass, on whole groups in random order;
      on single rows if the groups do not divide by it.
    micro_batch_size: Rows per forward/backward pass, of all devices together;
      rounded up so that each device has equally many of them, and whole groups
      where the algorithm couples these. None: a good size for the backend.
      Changes time and memory, never the gradient.
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
    reference_workdirs: Take the reference policy from outside instead, as a
      teacher: the workdir of a run, whose last checkpoint is read, or the
      folder or hub name of a Hugging Face checkpoint, of any size and family
      with the same tokenizer. Of several each prompt has the one of its domain,
      in the order of the domains; or all are mixed.
    reference_mixture: Weights of several teachers, ≥ 0, which are then mixed
      for all prompts: the logits of the mixture are the weighted mean of
      theirs. Empty: each prompt has the teacher of its domain.
    reference_storage: How models of reference_workdirs are kept: "own", each in
      its own dtype (a checkpoint in config.model.param_dtype); "bfloat16"; or
      "int8", the kernels of their layers in 8 bits, and the rest in bfloat16.
    reset_policy: Start the phase with the policy that the run began with, as in
      a second warm start from the base.
    demonstrations: What a supervised phase imitates: names of earlier phases of
      the kind "rejection", or files that these or experiments.generate have
      written; "own" is the run's own data. Empty: that alone.
    num_records: The first so many records of the run's own data are imitated;
      None: all.
    keep: Which completions a phase of the kind "rejection" keeps.
    temperature: Of the completions that are drawn; None: that of
      config.sampling.
    reward_weights: Of config.rewards.functions, in the place of
      config.rewards.weights and schedules; empty: these. Evaluations keep to
      config.rewards.
    opponents: Who acts in the other seats of an environment that has several,
      in a phase that draws: "start", the policy as it is at the start of the
      phase; "self", as it is now; or another run's workdir, or a checkpoint
      with the same tokenizer. Prompt n meets number n mod K of K. Nobody trains
      them, and what they write is read. Empty: "self".
    ema_decay: Of the average of the parameters, per step; None keeps none.
    staleness: Updates that the parameters of a rollout may be behind those
      that it trains. 0 is exact: the device waits for the host's verifiers.
      With k, the rollouts of the next k batches are drawn before one is
      trained, so that they are on their way while the host verifies; with an
      environment on the host, so that the update runs while sessions are waited
      for; where verifiers are in the program, for the sake of the study alone.
      Needs an algorithm that corrects what has changed in between
      (config.algorithm.importance_mode, …).
    partial_len: Decode at most so many tokens of each completion in a step,
      and go on in the next one, with its parameters. Groups are trained when
      all of their completions have ended, and wait for `staleness` updates at
      most: in the last of these steps they are decoded to their end, whatever
      that takes. Their places take the next prompts. With an
      environment episodes are cut, and what it writes counts; on the host a new
      session then answers the same actions again. None: completions are drawn
      whole.
    optimizer: The optimizer of this phase.
  """

  kind: str = "rl"
  steps: int = 100
  num_prompts: int = 32
  group_size: int = 1
  max_rounds: int = 1
  when_short: str = "fewer"
  recycle_surplus: bool = False
  replay_size: int = 0
  schedule: ScheduleConfig = _IN_EPOCHS
  correction: CorrectionConfig = _AS_THEY_ARE
  domains: tuple[str, ...] = ()
  max_prompt_len: int | None = None
  num_epochs: int = 1
  num_minibatches: int = 1
  micro_batch_size: int | None = None
  num_lengths: int = 4
  logits_chunk_mib: int | None = None
  reset_optimizer: bool = True
  set_reference: bool = True
  reference_workdirs: tuple[str, ...] = ()
  reference_mixture: tuple[float, ...] = ()
  reference_storage: str = "own"
  reset_policy: bool = False
  demonstrations: tuple[str, ...] = ()
  num_records: int | None = None
  keep: KeepConfig = KeepConfig()
  temperature: float | None = None
  reward_weights: tuple[float, ...] = ()
  opponents: tuple[str, ...] = ()
  ema_decay: float | None = None
  staleness: int = 0
  partial_len: int | None = None
  optimizer: OptimizerConfig = OptimizerConfig()

  @property
  def num_rows(self) -> int:
    """Completions per batch."""
    return self.num_prompts * self.group_size

  @property
  def num_ahead(self) -> int:
    """Batches whose rollouts are drawn before their step."""
    return self.staleness if self.partial_len is None else 0

  @property
  def has_teachers_of_domains(self) -> bool:
    """Whether the domain of a prompt chooses one of several teachers."""
    return len(self.reference_workdirs) > 1 and not self.reference_mixture

  @property
  def of_kind(self) -> kinds.PhaseKind:
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

  def check(self, name: str) -> None:
    """Raises ValueError with the equation of sizes if they do not fit."""
    one_of(f"{name}.kind", self.kind, tuple(kinds.KINDS))
    stored = self.reference_storage
    one_of(f"{name}.reference_storage", stored, groups.STORAGE)
    ranges.check(
      self,
      f"config.{name}",
      steps=ranges.COUNT,
      num_prompts=ranges.ROWS,
      group_size=ranges.ROWS,
      max_rounds=_UNROLLED,
      replay_size=ranges.Range(0, ranges.ROWS.high),
      max_prompt_len=ranges.SLOTS,
      num_epochs=_UNROLLED,
      num_minibatches=ranges.ROWS,
      num_lengths=_UNROLLED,
      logits_chunk_mib=ranges.SIZE,
      num_records=ranges.ROWS,
      temperature=groups.TEMPERATURE,
      ema_decay=ranges.DECAY,
      staleness=ranges.Range(0, 1024),
      partial_len=ranges.SLOTS,
    )
    if self.partial_len is not None and not self.staleness:
      raise ValueError(
        f"config.{name}.partial_len={self.partial_len} lets completions go on"
        f" with later parameters, and config.{name}.staleness=0 allows no"
        " update in between; set staleness to the updates that they may wait"
        " for, at least 1, or partial_len=None."
      )
    weights, teachers = self.reference_mixture, self.reference_workdirs
    if weights and (
      len(weights) != len(teachers)
      or not all(0 <= weight < math.inf for weight in weights)
      or sum(weights) == 0
    ):
      raise ValueError(
        f"config.{name}.reference_mixture={weights}: needed is a finite number"
        f" ≥ 0 for each of the {len(teachers)} models of"
        f" config.{name}.reference_workdirs, one of them above 0; or () for the"
        " teacher of each prompt's domain."
      )
    one_of(f"{name}.when_short", self.when_short, WHEN_SHORT)
    if self.when_short != "fewer" and self.max_rounds == 1:
      raise ValueError(
        f"config.{name}.when_short={self.when_short!r} is about rounds that end"
        f" too early, and config.{name}.max_rounds=1 draws one batch; raise"
        " max_rounds, or set when_short='fewer'."
      )
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
    drawn = self.max_rounds * self.num_rows
    if drawn not in ranges.ROWS:
      raise ValueError(
        f"config.{name}: num_prompts {self.num_prompts} × group_size"
        f" {self.group_size} × max_rounds {self.max_rounds} = {drawn} rows of a"
        f" step must be {ranges.ROWS}. Lower one of them."
      )
    if self.reset_policy and not self.reset_optimizer:
      raise ValueError(
        f"config.{name}.reset_optimizer=False with reset_policy=True: the"
        " moments would be those of another policy; set it to True."
      )
    self.keep.check(f"config.{name}.keep")
    self.schedule.check(f"config.{name}.schedule", self.num_prompts)
    self.correction.check(f"config.{name}.correction")
    if self.correction.corrects and self.kind != kinds.RL.name:
      raise ValueError(
        f"config.{name}.correction has p_cue={self.correction.p_cue},"
        f" p_answer={self.correction.p_answer} and"
        f" p_reference={self.correction.p_reference}, and a phase of the kind"
        f" {self.kind!r} trains no policy on what it has drawn; leave them 0,"
        " or make the phase one of the kind 'rl'."
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
        f" num_minibatches {self.num_minibatches}, each of"
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
    one_of("critic.trunk", self.trunk, TRUNKS)
    ranges.check(self, "config.critic", num_updates=_UPDATES)
    self.optimizer.check("config.critic.optimizer")


@dataclasses.dataclass(frozen=True)
class RewardModelConfig:
  """A model that scores completions, where rewards have "reward_model".

  Attributes:
    source: One that exists: the workdir of a run that has trained one, or the
      folder or hub name of a Hugging Face checkpoint with a scalar head (a
      model for sequence classification with one label; for token classification
      where step_ends is set). It keeps its own size, and reads the policy's
      tokens. A phase that trains the reward model goes on from it. Empty: a
      copy of the policy, made where the first phase begins that trains it.
    ranked_by: In phases of the kind "preference", another reward model, whose
      scores rank completions in the place of rewards; named as source is, and
      not trained. Empty: rewards rank them.
    step_ends: A process reward model: it scores each step, which ends with a
      token whose text ends like one of these, as (";",) or ("\\n",). Phases of
      the kind "process" train it. Empty: it scores whole completions.
    of_steps: How scores of steps, each the probability that the step is right,
      become that of the completion: "min", "product" or "sum".
    freeze: Names in the paths of parameters of its trunk that are not trained.
    num_updates: Gradient steps on each minibatch.
    margin: Of the loss of pairs: by how much the better score should be ahead.
    center_coef: Of the same: weight of the part that keeps scores centred.
    history_share: Of the prompts of a step that it learns from, the share that
      is old: chosen, with what was written then, from those of earlier phases.
      0.1 of 40 prompts are 4, once there are as many; 0: none.
    history_size: How many prompts are kept for that, with their completions: a
      uniform sample of all that came in such phases.
    optimizer: Its own; the schedule begins anew in each phase.
  """

  source: str = ""
  ranked_by: str = ""
  step_ends: tuple[str, ...] = ()
  of_steps: str = "min"
  freeze: tuple[str, ...] = ()
  num_updates: int = 1
  margin: float = 0.0
  center_coef: float = 0.0  # 0.01 in arXiv:2312.09244.
  history_share: float = 0.0
  history_size: int = 1024
  optimizer: OptimizerConfig = OptimizerConfig()

  def __post_init__(self):
    one_of("reward_model.of_steps", self.of_steps, OF_STEPS)
    if "" in self.step_ends:
      raise ValueError(
        f"config.reward_model.step_ends={self.step_ends}: every token ends with"
        " an empty text; name texts such as ';'."
      )
    ranges.check(
      self,
      "config.reward_model",
      num_updates=_UPDATES,
      margin=ranges.NOT_NEGATIVE,
      center_coef=ranges.NOT_NEGATIVE,
      history_share=ranges.SHARE,
      history_size=ranges.ROWS,
    )
    self.optimizer.check("config.reward_model.optimizer")

  @property
  def of_pairs(self) -> dict[str, float]:
    """Options of the loss of pairs that are set, by their name there."""
    given = {"margin": self.margin, "center_coef": self.center_coef}
    return {name: value for name, value in given.items() if value}

  def ranks(self, phase: PhaseConfig) -> bool:
    """Whether another reward model ranks the completions of a phase."""
    return bool(self.ranked_by) and phase.kind == kinds.PREFERENCE.name

  def check(self, name: str, phase: PhaseConfig) -> None:
    """Raises ValueError if a phase trains what is not asked for."""
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
