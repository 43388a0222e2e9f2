"""What a run can be told: frozen dataclasses, checked at the boundary.

A config file (`configs/*.py`) starts from `default_config(algorithm)`, an
ml_collections `ConfigDict` with every field below, and changes what it needs.
`resolve` turns the ConfigDict back into `RunConfig`, with types, names and
sizes checked, so that nothing downstream reads a misspelt key.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import operator
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

from grpo_jax import algorithms, ranges
from grpo_jax.models import critic, families, hub, lora, transformer
from grpo_jax.rollout import sampling
from grpo_jax.training import hosts


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
  if value not in known:
    raise ValueError(
      f"config: {what} got {value!r}{_nearest(value, known)}; choose one of"
      f" {', '.join(known)}."
    )


# Seconds. Waiting for the operating system counts them in milliseconds, of
# which it knows 2³¹.
_SECONDS = ranges.Range(1e-3, 1e6)
# Logits are divided by it, and have to stay finite.
_TEMPERATURE = ranges.Range(1e-6, ranges.MAX_FLOAT)
# What a program is unrolled or compiled for, once for each.
_UNROLLED = ranges.Range(1, 1024)


def _nearest(name: str, known: typing.Iterable[str]) -> str:
  near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
  return f" (did you mean {near[0]!r}?)" if near else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(transformer.Architecture):
  """A transformer; `models/transformer.py` says what the other fields mean.

  Attributes:
    checkpoint: Folder or hub name of a Hugging Face checkpoint to start from.
      Its config.json then decides the architecture: of the other fields only
      `dtype`, `param_dtype`, `attention`, `decode_attention`, `experts`,
      `remat` and `cache_dtype` may be set. Empty: from scratch.
    revision: Commit, tag or branch of a checkpoint on the hub; with a commit a
      run starts from the same files on every day. Empty: the newest.
    adapter_checkpoint: Folder with adapters to start from, as PEFT and
      `experiments.export --adapters` write it, for this `checkpoint`. Rank, α
      and modules are the file's, and need not be set. Empty: fresh adapters.
    lora_rank: Of low-rank adapters, which alone are trained; 0 for none.
    lora_alpha: Their term is multiplied by lora_alpha / lora_rank.
    lora_modules: Projections with an adapter, of "query", "key", "value",
      "out", "gate", "up", "down"; empty: all that the layers have.
    quantization: Of the kernels beneath the adapters: "none", "int8" or
      "nf4".
  """

  checkpoint: str = ""
  revision: str = ""
  adapter_checkpoint: str = ""
  lora_rank: int = 0
  lora_alpha: float = 32.0
  lora_modules: tuple[str, ...] = ()
  quantization: str = "none"

  def __post_init__(self):
    super().__post_init__()
    ranges.check(self, "config.model", lora_alpha=ranges.POSITIVE)
    if self.lora_rank:
      ranges.check(self, "config.model", lora_rank=lora.RANKS)
    if self.revision and not self.checkpoint:
      raise ValueError(
        f"config.model.revision={self.revision!r} is of a checkpoint on the"
        " hub; set config.model.checkpoint to its name."
      )
    if self.adapter_checkpoint:
      if not self.checkpoint:
        raise ValueError(
          f"config.model.adapter_checkpoint={self.adapter_checkpoint!r}: these"
          " adapters belong to a checkpoint; set config.model.checkpoint to the"
          " one that they were trained with."
        )
      return  # Their file is read when the run begins.
    if not self.lora_rank and self.quantization != "none":
      raise ValueError(
        f"config.model.quantization={self.quantization!r} freezes the kernels"
        " of the layers, and nothing else would be trained; set"
        " config.model.lora_rank, or quantization='none'."
      )
    self.adapters()

  def adapters(self) -> lora.LoRAConfig | None:
    """The low-rank adapters, or None.

    Raises:
      FileNotFoundError: There are none in `adapter_checkpoint`.
      ValueError: A number is out of range; or the file has another one.
    """
    if self.adapter_checkpoint:
      found = lora.peft_config(self.adapter_checkpoint, self.quantization)
      for name in ("rank", "alpha", "modules"):
        setting, theirs = f"lora_{name}", getattr(found, name)
        value = getattr(self, setting)
        if value != getattr(ModelConfig, setting) and value != theirs:
          raise ValueError(
            f"config.model.{setting}={value}, and the adapters in"
            f" {self.adapter_checkpoint} have {theirs}; leave the setting out:"
            " it is taken from there."
          )
      return found
    if not self.lora_rank:
      return None
    return lora.LoRAConfig(
      rank=self.lora_rank,
      alpha=self.lora_alpha,
      modules=self.lora_modules,
      quantization=self.quantization,
    )

  def directory(self) -> pathlib.Path:
    """The folder of the checkpoint, downloaded if it is on the hub."""
    return hub.local_directory(self.checkpoint, self.revision)

  def transformer(self, vocab_size: int) -> transformer.TransformerConfig:
    """The architecture, for a vocabulary of at least this size.

    Raises:
      FileNotFoundError, ValueError: The checkpoint is missing, unsupported,
        or too small for the vocabulary; or a field contradicts it.
    """
    fields = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(transformer.Architecture)
    }
    if not self.checkpoint:
      return transformer.TransformerConfig(vocab_size=vocab_size, **fields)
    default = ModelConfig()
    ours = transformer.FIELDS_OF_A_RUN
    for name, value in fields.items():
      if name not in ours and value != getattr(default, name):
        raise ValueError(
          f"config.model.{name}={value} with config.model.checkpoint="
          f"{self.checkpoint!r}: its config.json decides the architecture; of"
          f" the model's fields only {', '.join(ours)} may be set beside it."
          " Start from configs/checkpoint.py, which sets none."
        )
    theirs, _ = families.from_config_json(self.directory())
    if theirs["vocab_size"] < vocab_size:
      raise ValueError(
        f"config.model.checkpoint={self.checkpoint!r} has"
        f" {theirs['vocab_size']} token ids and the tokenizer {vocab_size};"
        " set config.data.tokenizer to the checkpoint's own."
      )
    kept = {name: fields[name] for name in ours}
    return transformer.TransformerConfig(**{**theirs, **kept})


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Where prompts come from.

  Attributes:
    source: "task" (synthetic, `tasks/`), "tfds" or "jsonl".
    name: Task name, or TFDS dataset name ("gsm8k").
    task_options: Options of the task (`tasks/<name>.py`).
    train_path: JSON-lines file of training prompts; local or gs://.
    eval_path: JSON-lines file of held-out prompts; empty: the training file.
    format: How the rows of a JSON-lines file read; empty: the fields prompt,
      answer, completion and extras; "gsm8k": question and worked answer.
    tokenizer: Path of a `tokenizer.json` or of a checkpoint's folder, or
      "gsm8k" for the one that comes with the package; empty with a
      `model.checkpoint`: that one's. Unused by tasks, which are made of ids.
    template: How a prompt is put to the model: a text with "{prompt}", or
      "chat" for the tokenizer's own chat template.
    chat_options: What the chat template reads beside the messages.
    end_tokens: Tokens that end a completion; empty: those of the tokenizer.
    max_prompt_len: Prompt slots S; longer prompts are left out and counted.
      None: what the task needs.
    drop_tag_probability: How often the supervised teacher of worked answers
      ("gsm8k") drops one of its format tags, in [0, 1].
    environment: Import path "package.module:function" of what makes the
      sessions of an environment on the host (`types.HostEnvironment`): episodes
      of several turns, whose scores are the components of the reward. With a
      task, it takes the place of the task's verifier or environment. Empty:
      none.
  """

  source: str = "task"
  name: str = "add"
  task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  train_path: str = ""
  eval_path: str = ""
  format: str = ""
  tokenizer: str = ""
  template: str = "{prompt}"
  chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  end_tokens: tuple[str, ...] = ()
  max_prompt_len: int | None = None
  drop_tag_probability: float = 0.0
  environment: str = ""

  def __post_init__(self):
    _one_of("data.source", self.source, ("task", "tfds", "jsonl"))
    if "{prompt}" not in self.template and self.template != "chat":
      raise ValueError(
        f"config.data.template={self.template!r} does not contain"
        ' "{prompt}"; write where the prompt goes, or "chat" for the'
        " tokenizer's own template."
      )
    if self.source == "jsonl" and not self.train_path:
      raise ValueError(
        "config.data.source='jsonl' needs config.data.train_path, a file with"
        " one JSON object per line with a field 'prompt'."
      )
    ranges.check(
      self,
      "config.data",
      max_prompt_len=ranges.SLOTS,
      drop_tag_probability=ranges.SHARE,
    )


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """Turns of an environment on the host (`data.environment`).

  Attributes:
    max_turns: Most actions of an episode.
    max_action_len: Tokens after which an action ends.
    max_observation_len: Tokens to which an observation is cut.
    action_ends: Texts of tokens that end an action, beside the end tokens.

  None, and no text, mean those of the task's own environment; where there is
  none, the sizes are needed.
  """

  max_turns: int | None = None
  max_action_len: int | None = None
  max_observation_len: int | None = None
  action_ends: tuple[str, ...] = ()

  def __post_init__(self):
    names = ("max_turns", "max_action_len", "max_observation_len")
    ranges.check(
      self, "config.environment", **dict.fromkeys(names, ranges.SLOTS)
    )


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """How completions are drawn.

  Attributes:
    max_new_tokens: Budget T per completion; None: what the task needs.
    temperature: Of training rollouts, > 0.
    top_k, top_p, min_p: Filters; None switches one off.
    lanes: Completions that are decoded at once; None: all. With fewer, the
      next one begins where another has ended, which pays where their lengths
      differ, and the cache has room for as many only.
  """

  max_new_tokens: int | None = None
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  min_p: float | None = None
  lanes: int | None = None

  def __post_init__(self):
    if self.temperature not in _TEMPERATURE:
      raise ValueError(
        f"config.sampling.temperature={self.temperature} must be"
        f" {_TEMPERATURE}: training needs samples. Evaluation is greedy by"
        " itself."
      )
    share = ranges.Range(ranges.MIN_FLOAT, 1)
    ranges.check(
      self,
      "config.sampling",
      max_new_tokens=ranges.SLOTS,
      top_k=ranges.SIZE,
      top_p=share,
      min_p=share,
      lanes=ranges.ROWS,
    )

  def sampler(
    self,
    max_new_tokens: int,
    end_ids: tuple[int, ...],
    pad_id: int,
    record_kept: bool = False,
    record_routing: bool = False,
  ) -> sampling.SamplingConfig:
    """The sampler's config for a tokenizer."""
    return sampling.SamplingConfig(
      max_new_tokens=max_new_tokens,
      end_ids=end_ids,
      pad_id=pad_id,
      temperature=self.temperature,
      top_k=self.top_k,
      top_p=self.top_p,
      min_p=self.min_p,
      record_kept=record_kept,
      record_routing=record_routing,
      lanes=self.lanes,
    )


@dataclasses.dataclass(frozen=True)
class RewardsConfig:
  """What the verifiers are and how they add up.

  Attributes:
    functions: For tasks, components of the task's verifier ("accuracy",
      …), computed inside the program. With an environment on the host, scores
      of its sessions, and "return". Otherwise host functions: a built-in
      name ("math_accuracy", "think_answer_format") or an import path
      ("my_pkg.rewards:brevity").
    weights: One weight per function.
    correct: The function whose value ≥ 1 marks a right answer (metrics
      only); empty: the first.
    row_timeout_s: Longest time for one row on the host, seconds; with an
      environment there for one action.
    step_timeout_s: Longest time for all rows of a step, seconds; of an
      evaluation, for those of a batch.
    num_workers: Processes of verifiers, or of sessions: so many rows are worked
      on at a time.
  """

  functions: tuple[str, ...] = ("accuracy",)
  weights: tuple[float, ...] = (1.0,)
  correct: str = ""
  row_timeout_s: float = 10.0
  step_timeout_s: float = 120.0
  num_workers: int = 2

  def __post_init__(self):
    if len(self.functions) != len(self.weights) or not self.functions:
      raise ValueError(
        f"config.rewards: {len(self.functions)} functions {self.functions}"
        f" and {len(self.weights)} weights {self.weights}; give one weight"
        " per function, and at least one function."
      )
    if self.correct and self.correct not in self.functions:
      raise ValueError(
        f"config.rewards.correct={self.correct!r} is not one of"
        f" config.rewards.functions={self.functions}."
      )
    for name, weight in zip(self.functions, self.weights, strict=True):
      if abs(weight) not in ranges.NOT_NEGATIVE:
        raise ValueError(
          f"config.rewards.weights={self.weights}: the weight {weight} of"
          f" {name!r} is no finite number; every reward would be none."
        )
    ranges.check(
      self,
      "config.rewards",
      row_timeout_s=_SECONDS,
      step_timeout_s=_SECONDS,
      num_workers=_UNROLLED,
    )


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
    _one_of("optimizer.name", self.name, ("adamw", "adafactor", "muon"))
    _one_of("schedule", self.schedule, ("constant", "linear", "cosine"))

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
    reference_workdir: Take the reference policy from the last checkpoint of
      this run instead: a teacher of the same architecture and vocabulary.
    ema_decay: Of the average of the parameters, per step; None keeps none.
    staleness: Updates that the parameters of a rollout may be behind those
      that it trains. 0 is exact: the device waits for the host's verifiers.
      With k, rollouts of the next k batches are on their way while the host
      verifies one; needs verifiers on the host, and an algorithm that corrects
      what has changed in between (config.algorithm.importance_mode, …).
    optimizer: Of this phase.
  """

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
  reference_workdir: str = ""
  ema_decay: float | None = None
  staleness: int = 0
  optimizer: OptimizerConfig = OptimizerConfig()

  @property
  def num_rows(self) -> int:
    """Completions per batch."""
    return self.num_prompts * self.group_size

  def check(self, name: str) -> None:
    """Raises ValueError with the equation of sizes if they do not fit."""
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
    if name == "sft" and self.staleness:
      raise ValueError(
        f"config.sft.staleness={self.staleness}: the completions of a"
        " supervised phase are given, not drawn, and are never behind; set it"
        " to 0."
      )
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
    _one_of("critic.trunk", self.trunk, critic.TRUNKS)
    ranges.check(self, "config.critic", num_updates=ranges.Range(0, 1024))
    self.optimizer.check("config.critic.optimizer")


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Held-out evaluation.

  Attributes:
    num_prompts: Held-out prompts, one completion each.
    batch_size: Prompts per evaluation batch.
    temperature: Of the completions; 0 is greedy.
    every: Steps of the "rl" phase between evaluations; 0: only before and
      after the phase.
  """

  num_prompts: int = 256
  batch_size: int = 256
  temperature: float = 0.0
  every: int = 0

  def __post_init__(self):
    ranges.check(
      self,
      "config.eval",
      num_prompts=ranges.ROWS,
      batch_size=ranges.ROWS,
      every=ranges.COUNT,
    )
    if self.temperature and self.temperature not in _TEMPERATURE:
      raise ValueError(
        f"config.eval.temperature={self.temperature} must be 0, for the most"
        f" likely tokens, or {_TEMPERATURE}."
      )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When to save.

  Attributes:
    every: Steps between checkpoints; 0: only at the end of a phase.
    keep: Latest checkpoints kept.
  """

  every: int = 0
  keep: int = 2

  def __post_init__(self):
    ranges.check(
      self, "config.checkpoint", every=ranges.COUNT, keep=ranges.SIZE
    )


@dataclasses.dataclass(frozen=True)
class LogConfig:
  """What to write beside metrics.jsonl.

  Attributes:
    tensorboard: Write TensorBoard events.
    wandb_project: W&B project (extra `wandb`); empty: no W&B.
    samples_every: Steps between sampled texts in samples.jsonl; 0: none.
    num_samples: Rows each time.
  """

  tensorboard: bool = True
  wandb_project: str = ""
  samples_every: int = 20
  num_samples: int = 4

  def __post_init__(self):
    ranges.check(
      self, "config.log", samples_every=ranges.COUNT, num_samples=ranges.COUNT
    )


@dataclasses.dataclass(frozen=True)
class HostsConfig:
  """When a run on several hosts gives one of its processes up; `hosts.py`.

  Attributes:
    timeout_s: Seconds without a sign of life from the process.
    stall_s: Seconds that it is alive and behind the others, or that none gets
      on: more than the longest compilation, evaluation or save takes.
  """

  timeout_s: float = 60.0
  stall_s: float = 3600.0

  def __post_init__(self):
    ranges.check(self, "config.hosts", timeout_s=_SECONDS, stall_s=_SECONDS)
    if self.timeout_s > hosts.MAX_TIMEOUT_S:
      raise ValueError(
        f"config.hosts.timeout_s={self.timeout_s} must be at most"
        f" {hosts.MAX_TIMEOUT_S}: JAX itself waits little longer."
      )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices = data × fsdp × expert × tensor; see `sharding.py`.

  Rows of a batch are split over data × fsdp × expert.

  Attributes:
    data: Copies of the parameters; None: as many as there are devices for.
      With several TPU slices, a multiple of their number; the gradient of
      every micro-batch is summed across them, so there a large
      `micro_batch_size` saves time.
    fsdp: Devices over which parameters, gradients and moments are split.
    tensor: Devices over which heads, MLP width and vocabulary are split;
      divides them, and the key/value heads.
    expert: Devices over which experts are split; divides their number.
  """

  data: int | None = None
  fsdp: int = 1
  tensor: int = 1
  expert: int = 1

  def __post_init__(self):
    names = ("data", "fsdp", "tensor", "expert")
    ranges.check(self, "config.mesh", **dict.fromkeys(names, ranges.SIZE))


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """A whole run.

  Attributes:
    seed: Of parameters, data order and every draw.
    start_workdir: Start with the policy of the last checkpoint of this run (its
      average, if it keeps one), of the same architecture and vocabulary;
      empty: from `model`, whose weights are not read otherwise.
    phases: Names of the phases in order, each "sft", "rl" or "value": as "rl",
      but only the critic is trained, on returns, and the policy stays.
    sft, value, rl: Their settings.
    algorithm: Objective of the phases "rl" and "value": name and fields.
    critic: Of an algorithm that has one.
    environment: Turns, where data.environment is set.
    data, model, sampling, rewards, eval, checkpoint, log, hosts: As named.
    mesh: How the devices share the work.
    profile_steps: (first, last) step of a trace for xprof, or ().
    required_accuracy: Held-out accuracy below which the command fails; None:
      no verdict.
    unpublished: Settings, as "algorithm.clip_low", that a published recipe
      does not state; what stands there is our choice.
    allow_unpublished: Whether a run may start with them.
  """

  seed: int = 0
  start_workdir: str = ""
  phases: tuple[str, ...] = ("sft", "rl")
  sft: PhaseConfig = PhaseConfig()
  value: PhaseConfig = PhaseConfig(steps=50)
  rl: PhaseConfig = PhaseConfig(group_size=8)
  critic: CriticConfig = CriticConfig()
  algorithm: Any = None
  data: DataConfig = DataConfig()
  environment: EnvironmentConfig = EnvironmentConfig()
  model: ModelConfig = ModelConfig()
  sampling: SamplingConfig = SamplingConfig()
  rewards: RewardsConfig = RewardsConfig()
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  log: LogConfig = LogConfig()
  hosts: HostsConfig = HostsConfig()
  mesh: MeshConfig = MeshConfig()
  profile_steps: tuple[int, ...] = ()
  required_accuracy: float | None = None
  unpublished: tuple[str, ...] = ()
  allow_unpublished: bool = False

  def __post_init__(self):
    ranges.check(
      self, "config", seed=ranges.COUNT, required_accuracy=ranges.SHARE
    )
    if not self.phases:
      raise ValueError("config.phases is empty; name at least one, as 'rl'.")
    for name in self.phases:
      _one_of("phases", name, ("sft", "value", "rl"))
      getattr(self, name).check(name)
    slots = (self.data.max_prompt_len or 0) + (
      self.sampling.max_new_tokens or 0
    )
    for name in self.phases:
      phase = getattr(self, name)
      rows = phase.num_rows * phase.max_rounds
      if rows * slots > ranges.MAX_INT:
        raise ValueError(
          f"config.{name}: {rows} rows of config.data.max_prompt_len +"
          f" config.sampling.max_new_tokens = {slots} slots are {rows * slots}"
          f" tokens; an array has at most {ranges.MAX_INT}. Lower one of them."
        )
    if self.sft.group_size != 1:
      raise ValueError(
        f"config.sft.group_size={self.sft.group_size}: a supervised prompt"
        " has one completion; set it to 1."
      )
    if self.sft.max_rounds != 1:
      raise ValueError(
        f"config.sft.max_rounds={self.sft.max_rounds}: a supervised phase draws"
        " nothing; set it to 1."
      )
    if self.value.optimizer != PhaseConfig().optimizer:
      raise ValueError(
        "config.value.optimizer was set, but the phase 'value' trains the"
        " critic alone, whose optimizer is config.critic.optimizer; set that"
        " one."
      )
    if self.value.ema_decay is not None:
      raise ValueError(
        f"config.value.ema_decay={self.value.ema_decay}: the policy stays what"
        " it is in the phase 'value'; set it to None."
      )
    for before, after in itertools.pairwise(self.phases):
      if after == "sft" and "value" in self.phases[: self.phases.index("sft")]:
        raise ValueError(
          f"config.phases={self.phases}: the phase 'sft' has no critic, and the"
          " one that 'value' has trained would be lost; put 'sft' first."
        )
      if (before, after) == ("value", "rl") and not self.rl.reset_optimizer:
        raise ValueError(
          "config.rl.reset_optimizer=False: the phase 'value' keeps no moments"
          " of the policy to go on with; set it to True."
        )
    if not self.data.environment and self.environment != EnvironmentConfig():
      raise ValueError(
        "config.environment was set, and config.data.environment is empty:"
        " there is no environment on the host whose turns these would be. Set"
        " that, or leave config.environment as it is."
      )
    if self.data.source != "task" and not (
      self.data.tokenizer or self.model.checkpoint
    ):
      raise ValueError(
        f"config.data.source={self.data.source!r} needs config.data.tokenizer:"
        " the path of a tokenizer.json or of a checkpoint, or 'gsm8k'."
      )
    if self.data.source != "task" and (
      self.sampling.max_new_tokens is None or self.data.max_prompt_len is None
    ):
      raise ValueError(
        f"config.data.source={self.data.source!r} needs"
        " config.data.max_prompt_len and config.sampling.max_new_tokens, in"
        " tokens."
      )
    traced = self.profile_steps
    if traced and (len(traced) != 2 or not 1 <= traced[0] <= traced[1]):
      raise ValueError(
        f"config.profile_steps={traced} must be () or (first, last), two steps"
        " from 1 on, the last not before the first."
      )


def algorithm_config(name: str, **fields: Any) -> config_dict.ConfigDict:
  """An algorithm's config as a ConfigDict, with its name.

  Args:
    name: Of an entry of `ALGORITHMS`.
    **fields: Fields that differ from the paper's defaults.

  Raises:
    KeyError: Unknown name or field; the message lists the known ones.
  """
  config = algorithms.make_config(name, **fields)
  return _as_config_dict(config, name=name)


def default_config(algorithm: str = "grpo") -> config_dict.ConfigDict:
  """Every field of `RunConfig` with its default, and the algorithm's."""
  config = _as_config_dict(RunConfig())
  config.algorithm = algorithm_config(algorithm)
  return config


def _as_config_dict(config: Any, **extra: Any) -> config_dict.ConfigDict:
  """A dataclass as a ConfigDict; optional numbers become placeholders."""
  hints = typing.get_type_hints(type(config))
  result = config_dict.ConfigDict(extra)
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      value = _as_config_dict(value)
    elif isinstance(value, Mapping):
      value = config_dict.ConfigDict(value)
    elif value is None and hints[field.name] is not Any:
      kinds = [
        k for k in typing.get_args(hints[field.name]) if k is not type(None)
      ]
      value = config_dict.placeholder(kinds[0])
    result[field.name] = value
  return result


def resolve(config: ml_collections.ConfigDict) -> RunConfig:
  """Checks a ConfigDict and freezes it.

  Raises:
    KeyError: A key that no field reads, with the nearest known name.
    TypeError: A value of the wrong type.
    ValueError: A value out of range, sizes that do not divide, or values that
      were not published and are not allowed.
  """
  values = dict(config.items())
  algorithm = dict(_group(values.pop("algorithm", None), "config.algorithm"))
  name = _typed(str, algorithm.pop("name", None), "config.algorithm.name")
  entry = algorithms.get_algorithm(name)
  objective = _freeze(entry.config_class, algorithm, "config.algorithm")
  settings = _freeze(RunConfig, values, "config", skip=("algorithm",))
  if entry.critic_loss is None and settings.critic != CriticConfig():
    raise ValueError(
      f"config.critic was set, and algorithm {name!r} has no critic; leave it"
      " as it is, or choose an algorithm with one, such as 'ppo'."
    )
  if settings.unpublished and not settings.allow_unpublished:
    chosen = {path: _setting(config, path) for path in settings.unpublished}
    raise ValueError(
      "config: the source of this recipe does not publish these settings, and"
      " their values are our own choice:"
      f" {', '.join(f'{path}={value!r}' for path, value in chosen.items())}."
      " Set them to yours, or keep them; either way add"
      " --config.allow_unpublished=True."
    )
  return dataclasses.replace(settings, algorithm=(name, objective))


def _setting(config: ml_collections.ConfigDict, path: str) -> Any:
  """The value of a setting that `unpublished` names."""
  try:
    return functools.reduce(operator.getitem, path.split("."), config)
  except (KeyError, TypeError) as error:
    raise KeyError(
      f"config.unpublished: {path!r} is no setting of this config; name one as"
      " 'algorithm.clip_low'."
    ) from error


def _group(value: Any, where: str) -> Mapping[str, Any]:
  """A value that has settings of its own."""
  if not isinstance(value, (Mapping, config_dict.ConfigDict)):
    raise TypeError(
      f"{where} got {value!r} ({type(value).__name__}); it is a group of"
      " settings, each with a name."
    )
  return dict(value.items())


_hints = functools.cache(typing.get_type_hints)  # 2 of 3 ms of `resolve`.


def _freeze(
  cls: type, values: Mapping[str, Any], where: str, skip: tuple[str, ...] = ()
) -> Any:
  hints = _hints(cls)
  known = [f.name for f in dataclasses.fields(cls) if f.name not in skip]
  result = {}
  for name, value in values.items():
    if name not in known:
      raise KeyError(
        f"{where}.{name} is not a setting{_nearest(name, known)}. {where}"
        f" has: {', '.join(known)}."
      )
    result[name] = _typed(hints[name], value, f"{where}.{name}")
  return cls(**result)


def _typed(hint: Any, value: Any, where: str) -> Any:
  """`value` as the field's type; ints pass for floats, lists for tuples."""
  if dataclasses.is_dataclass(hint):
    return _freeze(typing.cast(type, hint), _group(value, where), where)
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    if value is None:
      return None
    hint = next(k for k in arguments if k is not type(None))
    return _typed(hint, value, where)
  if origin is tuple:
    if not isinstance(value, (tuple, list)):
      value = (value,)
    return tuple(_typed(arguments[0], item, where) for item in value)
  if origin is not None:
    options = _group(value, where)
    for name, option in options.items():
      _fits(type(option), option, f"{where}.{name}")
    return options
  if not isinstance(value, hint) or (isinstance(value, bool) != (hint is bool)):
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (hint is float and is_whole):
      raise TypeError(
        f"{where} got {value!r} ({type(value).__name__}); it needs a"
        f" {hint.__name__}."
      )
  _fits(hint, value, where)
  return float(value) if hint is float else value


def _fits(kind: type, value: Any, where: str) -> None:
  """Raises ValueError if no number of an array on a device is this one."""
  if kind is float and value and abs(value) not in ranges.POSITIVE:
    raise ValueError(
      f"{where}={value} must be 0, or a number whose size is {ranges.POSITIVE}:"
      " float32 has no others. For no bound write a large one, such as 1e9."
    )
  if kind is int and abs(value) > ranges.MAX_INT:
    raise ValueError(
      f"{where}={value} must be a whole number of at most {ranges.MAX_INT}."
    )


def micro_batch_size(
  phase: PhaseConfig, max_prompt_len: int, max_new_tokens: int, backend: str
) -> int:
  """Rows per micro-batch: what the config says, or a good default.

  Args:
    phase: Of the run.
    max_prompt_len: Slots of a prompt.
    max_new_tokens: Slots of a completion.
    backend: "cpu", "gpu" or "tpu".

  Returns:
    On a CPU, the largest divisor of a minibatch whose activations stay in the
    cache (about `_CPU_TOKENS` tokens); elsewhere the whole minibatch.
  """
  if phase.micro_batch_size is not None:
    return phase.micro_batch_size
  minibatch = phase.num_rows // phase.num_minibatches
  if backend != "cpu":
    return minibatch
  slots = max_new_tokens
  if phase.group_size == 1 or minibatch % phase.group_size:
    slots += max_prompt_len  # Each row is run with its prompt.
  most = min(max(_CPU_TOKENS // slots, 1), minibatch)
  return max(d for d in range(1, most + 1) if minibatch % d == 0)


def lengths(phase: PhaseConfig, max_new_tokens: int) -> tuple[int, ...]:
  """Completion slots that micro-batches may have instead of all, descending."""
  steps = phase.num_lengths - 1
  shares = (8 ** (-i / steps) for i in range(1, steps + 1))
  slots = (8 * round(share * max_new_tokens / 8) for share in shares)
  return tuple(n for n in slots if 16 <= n < max_new_tokens)


# Tokens per micro-batch on a CPU. Gradients of 512 rows of 11 tokens at the
# quickstart's width took 217 ms with 352 tokens at once, 195 with 704, 140 with
# 1408 and 440 with all 5632 (2 cores of a shared machine, one round).
_CPU_TOKENS = 1536
