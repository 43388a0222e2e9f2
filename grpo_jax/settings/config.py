"""The settings of a run: frozen dataclasses, checked at the boundary.

A config file (`configs/*.py`) starts from `default_config(algorithm)`, an
ml_collections `ConfigDict` with every field below, and changes some of them.
`resolve` turns the ConfigDict back into `RunConfig`, with types, names and
sizes checked, so that no code after it reads a misspelt key.

Paths may contain the seed of the run:

    config.start_workdir = "runs/base/seed={seed}"

So each run of a sweep over seeds can continue a run of its own, or learn from
teachers of its own. "{seed}" is replaced by the seed in every path to another
run or to a file of completions or clusters: in `start_workdir`, in
`reward_model`, in `judge.model`, and in the sections of phases.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ml_collections
from ml_collections import config_dict

from grpo_jax import algorithms, imports, ranges
from grpo_jax.settings import groups, kinds, overrides, typed
from grpo_jax.settings import phase as phase_lib
from grpo_jax.settings.environment import (
  SERVICE,
  EnvironmentConfig,
  InterceptorConfig,
  ServedConfig,
)
from grpo_jax.settings.groups import (
  CheckpointConfig,
  DataConfig,
  EvalConfig,
  HostsConfig,
  LogConfig,
  SamplingConfig,
  nearest,
  one_of,
)
from grpo_jax.settings.model import MeshConfig, ModelConfig
from grpo_jax.settings.monitor import GuardsConfig, HealthConfig
from grpo_jax.settings.phase import (
  SECTIONS,
  CriticConfig,
  PhaseConfig,
  RewardModelConfig,
)
from grpo_jax.settings.rewards import (
  JUDGE,
  REWARD_MODEL,
  JudgeConfig,
  RewardsConfig,
)

if TYPE_CHECKING:
  from grpo_jax.types import Algorithm

SEED = "{seed}"


def with_seed(config: Any) -> Any:
  """Replaces "{seed}" by the seed in the paths of a `RunConfig`."""
  seed = str(config.seed)
  return _map(config, config, lambda text, _: text.replace(SEED, seed))


def with_paths_of(config: Any, other: Any) -> Any:
  """The `RunConfig` with the paths of a config that has another seed."""
  return _map(config, other, lambda _, text: text)


def _map(config: Any, other: Any, change: Callable[[str, str], str]) -> Any:
  sections = {}
  for name, section in config.sections.items():
    source = other.sections[name]
    sections[name] = _texts(section, source, change)
    if isinstance(section, phase_lib.SampledConfig):
      paths: dict[str, Any] = {
        field: change(
          getattr(section.schedule, field), getattr(source.schedule, field)
        )
        for field in phase_lib.PATHS
      }
      schedule = dataclasses.replace(section.schedule, **paths)
      sections[name] = dataclasses.replace(sections[name], schedule=schedule)
  return dataclasses.replace(
    config,
    start_workdir=change(config.start_workdir, other.start_workdir),
    reward_model=_texts(config.reward_model, other.reward_model, change),
    judge=dataclasses.replace(
      config.judge, model=change(config.judge.model, other.judge.model)
    ),
    sections=sections,
  )


def _texts(settings: Any, other: Any, change: Callable[[str, str], str]) -> Any:
  """A group of settings with its texts, and the texts in tuples, changed."""

  def visit(text: Any, source: Any) -> Any:
    if isinstance(text, str):
      return change(text, source)
    if isinstance(text, tuple):
      return tuple(visit(*pair) for pair in zip(text, source, strict=True))
    return text

  fields = {
    field.name: visit(getattr(settings, field.name), getattr(other, field.name))
    for field in dataclasses.fields(settings)
    if not dataclasses.is_dataclass(getattr(settings, field.name))
  }
  return dataclasses.replace(settings, **fields)


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The settings of a whole run.

  Attributes:
    seed: Seed of parameter initialisation, data order and sampling.
    start_workdir: Workdir of a run whose last checkpoint has the first policy
      of this run (its average, if it keeps one), with the same architecture and
      vocabulary; empty: the policy of `model`, whose weights are not read
      otherwise. "{seed}" in it, and in the paths of phases, is the seed of the
      run (`config.py`).
    phases: Names of the phases in order.
    sections: Settings of phases by name; in a config each is a section of its
      own, such as `config.rl`. Sections other than "sft", "value" and "rl" are
      made by `phase_config`.
    algorithm: The algorithm of phases that sample: name and fields.
    critic: The critic of an algorithm that has one.
    reward_model: A model that scores completions, or learns to score them.
    judge: A model that reads completions and gives verdicts.
    environment: Turns of the environment, if data.environment is set.
    interceptor: The interceptor of calls to such an environment.
    served: Process of an environment of the package verifiers.
    data, model, sampling, rewards, eval, checkpoint, log, health, hosts: As
      named.
    guards: Guards against data and rewards that would spoil the policy.
    mesh: Split of the work over the devices.
    profile_steps: (first, last) step of a trace for xprof, or (); a run that
      continues between them traces what is left.
    required_accuracy: Held-out accuracy below which the command fails; None,
      or a run without a phase that is evaluated ("rl", "pairs"): no verdict.
    unpublished: Settings, such as "algorithm.clip_low", that a published recipe
      does not state; their values are our choice.
    allow_unpublished: Whether a run may start with such settings.
  """

  seed: int = ranges.COUNT.field(0)
  start_workdir: str = ""
  phases: tuple[str, ...] = ("sft", "rl")
  sections: Mapping[str, PhaseConfig] = dataclasses.field(
    default_factory=lambda: dict(SECTIONS)
  )
  critic: CriticConfig = dataclasses.field(default_factory=CriticConfig)
  reward_model: RewardModelConfig = dataclasses.field(
    default_factory=RewardModelConfig
  )
  judge: JudgeConfig = dataclasses.field(default_factory=JudgeConfig)
  algorithm: Any = None
  data: DataConfig = dataclasses.field(default_factory=DataConfig)
  environment: EnvironmentConfig = dataclasses.field(
    default_factory=EnvironmentConfig
  )
  interceptor: InterceptorConfig = dataclasses.field(
    default_factory=InterceptorConfig
  )
  served: ServedConfig = dataclasses.field(default_factory=ServedConfig)
  model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
  sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
  rewards: RewardsConfig = dataclasses.field(default_factory=RewardsConfig)
  eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
  checkpoint: CheckpointConfig = dataclasses.field(
    default_factory=CheckpointConfig
  )
  log: LogConfig = dataclasses.field(default_factory=LogConfig)
  health: HealthConfig = dataclasses.field(default_factory=HealthConfig)
  guards: GuardsConfig = dataclasses.field(default_factory=GuardsConfig)
  hosts: HostsConfig = dataclasses.field(default_factory=HostsConfig)
  mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
  profile_steps: tuple[int, ...] = ()
  required_accuracy: float | None = ranges.SHARE.field(None)
  unpublished: tuple[str, ...] = ()
  allow_unpublished: bool = False

  def __post_init__(self):
    ranges.check(self, "config")
    if not self.phases:
      raise ValueError("config.phases is empty; name at least one, as 'rl'.")
    for name in self.phases:
      one_of("phases", name, tuple(self.sections))
      self.sections[name].check(name)
    slots = (self.data.max_prompt_len or 0) + (
      self.sampling.max_new_tokens or 0
    )
    for name, phase in zip(self.phases, self.stages, strict=True):
      rows = phase.num_rows * phase.max_rounds
      if rows * slots > ranges.MAX_INT:
        raise ValueError(
          f"config.{name}: {rows} rows of config.data.max_prompt_len +"
          f" config.sampling.max_new_tokens = {slots} slots are {rows * slots}"
          f" tokens; an array has at most {ranges.MAX_INT}. Lower one of them."
        )
    self._check_history()
    self._check_pairs()
    self._check_reward_models()
    for index, name in enumerate(self.phases):
      self._check_stage(index, name)
      self.reward_model.check(name, self.section(name))
    for before, after in itertools.pairwise(self.phases):
      past, present = self.sections[before], self.sections[after]
      continues = "policy" in present.trains and not present.reset_optimizer
      if continues and "policy" not in past.trains:
        raise ValueError(
          f"config.{after}.reset_optimizer=False: the phase {before!r} keeps no"
          " moments of the policy to go on with; set it to True."
        )
    self._check_judge()
    key = self.judge.service.key_variable
    if self.judge.service.url and key in self.rewards.variables:
      raise ValueError(
        f"config.rewards.variables={self.rewards.variables} has {key!r}, the"
        " key of config.judge.service, which is for no verifier; leave it out."
      )
    if not self.data.environment and self.environment != EnvironmentConfig():
      raise ValueError(
        "config.environment was set, and config.data.environment is empty:"
        " there is no environment on the host whose turns these would be. Set"
        " that, or leave config.environment as it is."
      )
    self.served.check(self.data, self.environment, self.interceptor)
    if self.interceptor.rules and not self.data.environment:
      raise ValueError(
        f"config.interceptor.rules={self.interceptor.rules} are for the calls"
        " of an environment on the host, and config.data.environment is empty;"
        " set that, or leave the rules empty. A task in the graph may have an"
        " interceptor of its own (config.data.task_options)."
      )
    if not self.data.is_made_of_ids and not (
      self.data.tokenizer or self.model.checkpoint
    ):
      raise ValueError(
        f"config.data.source={self.data.source!r} needs config.data.tokenizer:"
        " the path of a tokenizer.json or of a checkpoint, or 'gsm8k'."
      )
    if not self.data.is_made_of_ids and (
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
    num_steps = sum(phase.steps for phase in self.stages)
    if traced and traced[1] > num_steps:
      raise ValueError(
        f"config.profile_steps={traced}: the phases {self.phases} have"
        f" {num_steps} steps in all, so this trace would not end; choose two of"
        " them, or set it to ()."
      )

  def _check_judge(self) -> None:
    """Raises ValueError unless the rubric has one user, or both are unset."""
    rewards = JUDGE in self.rewards.functions
    guards = self.interceptor.asks_service
    if guards and (rewards or not self.judge.service.url):
      raise ValueError(
        f"config.interceptor.judge={SERVICE!r} is config.judge, with"
        f" service.url={self.judge.service.url!r}, and"
        f" config.rewards.functions={self.rewards.functions}: needs an"
        f" address and no reward {JUDGE!r}, because one rubric cannot ask"
        " both whether a call is bad and how good a completion is."
      )
    if (rewards or guards) != bool(self.judge.rubric):
      raise ValueError(
        f"config.judge.rubric={self.judge.rubric!r:.200} and"
        f" config.rewards.functions={self.rewards.functions}: a reward"
        f" {JUDGE!r} needs a rubric, and a rubric that reward or"
        f" config.interceptor.judge={SERVICE!r}; set both, or none."
      )

  def _check_history(self) -> None:
    """Raises ValueError if no phase can supply the old completions."""
    share = self.reward_model.history_share
    count = sum(stage.of_kind.learns_from_drawn for stage in self.stages)
    if share and count < 2:
      raise ValueError(
        f"config.reward_model.history_share={share}: old completions are those"
        " of earlier phases in which a reward model learns from what is drawn,"
        f" and config.phases={self.phases} has {count} of them; set it to 0, or"
        " let phases come again, as in ('sft', 'preference', 'rl',"
        " 'preference', 'rl')."
      )

  def _check_pairs(self) -> None:
    """Raises ValueError for options of a loss of pairs that no phase reads."""
    options = self.reward_model.of_pairs
    if not options:
      return
    option, value = next(iter(options.items()))
    if self.algorithm[0] == kinds.OF_PAIRS:
      raise ValueError(
        f"config.reward_model.{option}={value}: the run's algorithm is that"
        f" loss itself; set config.algorithm.{option}, and this one to 0."
      )
    learn_pairs = kinds.PREFERENCE.name, kinds.COMPARISON.name
    if not any(stage.kind in learn_pairs for stage in self.stages):
      raise ValueError(
        f"config.reward_model.{option}={value} is about the loss of pairs, and"
        f" no phase of config.phases={self.phases} trains a reward model on"
        " them; set it to 0, or add a phase of the kind 'preference' or"
        " 'comparison'."
      )

  def _check_reward_models(self) -> None:
    """Raises ValueError for a reward model from outside that nothing reads."""
    scoring, phases = self.reward_model, f"config.phases={self.phases}"
    rewards = f"config.rewards.functions={self.rewards.functions}"
    trains = any("reward" in stage.trains for stage in self.stages)
    for field, is_read, readers in (
      (
        "source",
        trains or REWARD_MODEL in self.rewards.functions,
        f"{phases} train no reward model, and {rewards} lack {REWARD_MODEL!r}",
      ),
      (
        "ranked_by",
        any(scoring.ranks(stage) for stage in self.stages),
        f"{phases} have none of the kind {kinds.PREFERENCE.name!r}",
      ),
    ):
      if (path := getattr(scoring, field)) and not is_read:
        raise ValueError(
          f"config.reward_model.{field}={path!r} would not be read: {readers}."
          " Add one of these, or leave it empty."
        )

  def _check_stage(self, index: int, name: str) -> None:
    """Raises ValueError if a phase does not fit the run or earlier phases."""
    phase, rewards = self.sections[name], self.rewards
    weights = phase.reward_weights
    if weights and len(weights) != len(rewards.functions):
      raise ValueError(
        f"config.{name}.reward_weights={weights} are {len(weights)} numbers for"
        f" the {len(rewards.functions)} rewards {rewards.functions}; give one"
        " for each."
      )
    weight_of = dict(zip(rewards.functions, weights, strict=False))
    models = [x for x in (REWARD_MODEL, JUDGE) if weight_of.get(x)]
    if "reward" in phase.trains and weight_of and not any(weight_of.values()):
      raise ValueError(
        f"config.{name}.reward_weights={weights}: all completions would be"
        " equally good, and there would be no pair; set one of them above 0."
      )
    if "reward" in phase.trains and models:
      raise ValueError(
        f"config.{name}.reward_weights={weights} asks {models[0]!r}, and what a"
        " reward model learns from is not for it or a judge to say; set that"
        " weight to 0. Another reward model ranks completions with"
        " config.reward_model.ranked_by."
      )
    for component in phase.keep.bounds:
      one_of(f"{name}.keep.least", component, rewards.names)
    for source in phase.demonstrations:
      if source in self.sections and source != phase_lib.OWN:
        kind = self.sections[source].kind
        if source not in self.phases[:index] or kind != "rejection":
          raise ValueError(
            f"config.{name}.demonstrations names the phase {source!r}, of the"
            f" kind {kind!r}; needs one of the kind 'rejection' that comes"
            f" before it in config.phases={self.phases}."
          )
        if not self.sections[source].steps:
          raise ValueError(
            f"config.{source}.steps=0: that phase keeps nothing, and"
            f" config.{name}.demonstrations asks for it; set it to 1 or more,"
            " or leave the phase out of both."
          )
    endless = self.data.streaming or (
      self.data.source in ("task", "reasoning_gym", "environment")
    )
    joins = (
      len(phase.demonstrations) > 1 and phase_lib.OWN in phase.demonstrations
    )
    if joins and endless and phase.num_records is None:
      raise ValueError(
        f"config.{name}.demonstrations={phase.demonstrations} joins files and"
        " the run's own data, of which nobody reads all; set"
        f" config.{name}.num_records to how many of these there are to be."
      )

  def section(self, name: str) -> PhaseConfig:
    """The settings of a phase."""
    return self.sections[name]

  def objective(self, name: str) -> tuple[Algorithm, Any]:
    """The objective of a phase and its config.

    Raises:
      ValueError: The run's algorithm has no objective for this phase.
    """
    base, options = self.algorithm
    kind = self.sections[name].of_kind
    algorithm, options = kind.objective(algorithms.get_algorithm(base), options)
    if algorithm.name == kinds.OF_PAIRS != base:
      options = dataclasses.replace(options, **self.reward_model.of_pairs)
    return algorithm, options

  @property
  def stages(self) -> tuple[PhaseConfig, ...]:
    """The settings of the phases in order."""
    return tuple(self.sections[name] for name in self.phases)

  @property
  def kept_files(self) -> dict[int, str]:
    """The file of each phase that keeps completions, by its index."""
    return {
      index: f"data-{index + 1}-{name}.jsonl"
      for index, name in enumerate(self.phases)
      if not self.section(name).trains
    }

  def with_section(self, name: str, **fields: Any) -> RunConfig:
    """The config with some settings of a phase replaced."""
    changed = dataclasses.replace(self.sections[name], **fields)
    return dataclasses.replace(self, sections={**self.sections, name: changed})


def phase_config(kind: str, **fields: Any) -> typed.AnyPhase:
  """Makes the section of a config for a phase, to be named in `config.phases`.

  Args:
    kind: A kind of `kinds.py`.

  Raises:
    KeyError: Phases of this kind do not have such a setting.
    ValueError: There is no such kind.
  """
  cls = _class_of(kind, "kind")
  values = {"kind": kind, **fields}
  return _as_config_dict(_freeze(cls, values, f"phase_config({kind!r})"))


def algorithm_config(name: str | Algorithm, **fields: Any) -> typed.Algorithm:
  """An algorithm's config as a ConfigDict, with its name.

  Args:
    name: Name of an entry of `ALGORITHMS`, an import path, "my_pkg.foo:FOO", or
      an `Algorithm`.
    **fields: Fields that differ from the paper's defaults.

  Raises:
    KeyError: Unknown name or field; the message lists the known ones.
    ValueError: There is no algorithm at the path.
  """
  config = algorithms.make_config(name, **fields)
  return _as_config_dict(config, name=algorithms.name_of(name))


def default_config(algorithm: str | Algorithm = "grpo") -> typed.Config:
  """A config with every field of `RunConfig`, and those of the algorithm.

  The groups of a critic, "critic" and "value", are left out if it has none.
  """
  config = _as_config_dict(RunConfig())
  del config["sections"]
  for name, section in SECTIONS.items():
    config[name] = _as_config_dict(section)
  config.algorithm = algorithm_config(algorithm)
  if not algorithms.get_algorithm(algorithm).has_critic:
    for name in phase_lib.OF_CRITIC:
      del config[name]
  return config


class _Settings(config_dict.ConfigDict):
  """A ConfigDict of a group of settings.

  Objects are stored by their names. If the group has a switch, there are the
  settings that are read with its value.
  """

  _group: type[groups.Switched] | None = None

  def __setitem__(self, key: str, value: Any) -> None:
    try:
      super().__setitem__(key, imports.named(value))
    except TypeError:  # Its message has the whole value, of any size.
      raise overrides.misfit(key, value, self.get_type(key)) from None
    if self._group and key == self._group.switch:
      self._fit(self._group, self[key])

  def _fit(self, group: type[groups.Switched], value: Any) -> None:
    usual, names = group.usual(value), group.read_with(value)
    for name in self._fields.keys() - {*names}:
      del self._fields[name]
    for name in names:
      if name not in self._fields:
        self._fields[name] = _as_setting(usual, name)
    if self.is_locked:
      self.unlock()
      self.lock()  # What is new too.

  def lock(self) -> _Settings:
    """Locks it against new settings, but for names of the user's choice."""
    super().lock()
    for value in self.values():
      if type(value) is config_dict.ConfigDict:
        value.unlock()
    return self

  def _of(self, cls: type) -> _Settings:
    """Marks it as a group of a class of settings."""
    if issubclass(cls, groups.Switched):
      object.__setattr__(self, "_group", cls)
    return self

  def copy_and_resolve_references(self, visit_map: Any = None) -> _Settings:
    """Copies it; the copy is a group of the same class."""
    copy = super().copy_and_resolve_references(visit_map)
    return copy._of(self._group or type(None))

  def __setstate__(self, state: dict[str, Any]) -> None:
    self._of(state.get("_group") or type(None))
    super().__setstate__(state)


def _as_config_dict(config: Any, **extra: Any) -> config_dict.ConfigDict:
  """Converts a dataclass to a ConfigDict."""
  names = [field.name for field in dataclasses.fields(config)]
  if isinstance(config, groups.Switched):
    names = [*config.read_with(getattr(config, config.switch))]
  result = _Settings(extra)
  for name in names:
    result[name] = _as_setting(config, name)
  return result._of(type(config))


def _as_setting(config: Any, name: str) -> Any:
  """Converts a field; None becomes a typed placeholder."""
  cls: type = type(config)
  value, hint = getattr(config, name), _hints(cls)[name]
  if dataclasses.is_dataclass(value):
    return _as_config_dict(value)
  if isinstance(value, Mapping):
    return config_dict.ConfigDict(value)
  if value is None and hint is not Any:
    kinds = [k for k in typing.get_args(hint) if k is not type(None)]
    return config_dict.placeholder(kinds[0])
  return value


def resolve(config: ml_collections.ConfigDict) -> RunConfig:
  """Checks a ConfigDict and freezes it.

  Raises:
    KeyError: A key is unknown; the message has the nearest known name.
    TypeError: A value has the wrong type.
    ValueError: A value is out of range, sizes do not divide, or a value is
      unpublished and not allowed.
  """
  values = dict(config.items())
  algorithm = dict(_group(values.pop("algorithm", None), "config.algorithm"))
  name = _cast(str, algorithm.pop("name", None), "config.algorithm.name")
  entry = algorithms.get_algorithm(name)
  objective = _freeze(entry.config_class, algorithm, "config.algorithm")
  sections = {}
  for key in section_names(values):
    section = values.pop(key)
    cls = _class_of(section["kind"], f"{key}.kind")
    sections[key] = _freeze(cls, section, f"config.{key}")
  settings = _freeze(
    RunConfig,
    values,
    "config",
    also=tuple(sections),
    made={"sections": {**SECTIONS, **sections}, "algorithm": (name, objective)},
  )
  if not entry.has_critic and settings.critic != CriticConfig():
    raise ValueError(
      f"config.critic was set, and algorithm {name!r} has no critic; leave it"
      " as it is, or choose an algorithm with one, such as 'ppo'."
    )
  if settings.unpublished and not settings.allow_unpublished:
    choices = {path: _setting(config, path) for path in settings.unpublished}
    raise ValueError(
      "config: the source of this recipe does not publish these settings, and"
      " their values are our own choice:"
      f" {', '.join(f'{path}={value!r}' for path, value in choices.items())}."
      " Set them to yours, or keep them; either way add"
      " --config.allow_unpublished=True."
    )
  return with_seed(settings)


def _setting(config: ml_collections.ConfigDict, path: str) -> Any:
  """The value of a setting in `unpublished`, by its name."""
  try:
    return functools.reduce(operator.getitem, path.split("."), config)
  except (KeyError, TypeError) as error:
    raise KeyError(
      f"config.unpublished: {path!r} is no setting of this config; name one as"
      " 'algorithm.clip_low'."
    ) from error


def _group(value: Any, where: str) -> Mapping[str, Any]:
  """The settings in a group, by name; raises if the value is not a group."""
  if not isinstance(value, (Mapping, config_dict.ConfigDict)):
    raise TypeError(
      f"{where} got {value!r:.80} ({type(value).__name__}); it is a group of"
      " settings, each with a name."
    )
  return dict(value.items())


def section_names(config: Mapping | config_dict.ConfigDict) -> tuple[str, ...]:
  """Names of the groups of settings that are phases.

  Raises:
    TypeError: A section that every config has is not a group.
  """
  groups = (Mapping, config_dict.ConfigDict)
  for name in SECTIONS:
    _group(config.get(name, {}), f"config.{name}")
  return tuple(
    name
    for name, value in config.items()
    if isinstance(value, groups) and "kind" in value
  )


def _class_of(kind: Any, where: str) -> type[PhaseConfig]:
  """The class of the settings of a kind of phases."""
  one_of(where, _cast(str, kind, f"config.{where}"), tuple(phase_lib.CLASSES))
  return phase_lib.CLASSES[kind]


@functools.cache  # It would take half of the time of a config.
def _hints(cls: type) -> dict[str, Any]:
  """Types of a class's fields by name."""
  return typing.get_type_hints(cls)


def _freeze(
  cls: type,
  values: Mapping[str, Any],
  where: str,
  also: tuple[str, ...] = (),
  made: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
  """Makes an object of a config class; fields in `made` are ready objects."""
  hints = _hints(cls)
  names = [f.name for f in dataclasses.fields(cls) if f.name not in made]
  switched = cls if issubclass(cls, groups.Switched) else None
  result = {}
  for name, value in values.items():
    if name not in names:
      hint = f"{nearest(name, [*names, *also])}."
      if switched:
        hint += switched.hint(name, values.get(switched.switch))
      raise KeyError(
        f"{where}.{name} is not a setting{hint} {where} has:"
        f" {', '.join([*names, *also])}."
      )
    result[name] = _cast(hints[name], value, f"{where}.{name}")
  group = cls(**result, **made)
  if switched:
    group.check_unread(where)
  return group


def _cast(hint: Any, value: Any, where: str) -> Any:
  """Converts a value to the field's type: ints to floats, lists to tuples."""
  if dataclasses.is_dataclass(hint):
    return _freeze(typing.cast(type, hint), _group(value, where), where)
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (types.UnionType, typing.Union):
    if value is None:
      return None
    hint = next(k for k in arguments if k is not type(None))
    return _cast(hint, value, where)
  if origin is tuple:
    if not isinstance(value, (tuple, list)):
      value = (value,)
    return tuple(_cast(arguments[0], item, where) for item in value)
  if origin is not None:
    options = dict(_group(value, where))
    for name, option in options.items():
      _fits(type(option), option, f"{where}.{name}")
      if isinstance(option, config_dict.ConfigDict):  # Workers get plain data.
        options[name] = option.to_dict()
    return options
  if not isinstance(value, hint) or (isinstance(value, bool) != (hint is bool)):
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (hint is float and is_whole):
      raise TypeError(
        f"{where} got {value!r:.80} ({type(value).__name__}); it needs a"
        f" {hint.__name__}."
      )
  _fits(hint, value, where)
  return float(value) if hint is float else value


def _fits(kind: type, value: Any, where: str) -> None:
  """Raises ValueError if an array on a device cannot hold a number."""
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
  """Rows per micro-batch: the config's number, or a good default.

  Args:
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
  limit = min(max(_CPU_TOKENS // slots, 1), minibatch)
  return max(d for d in range(1, limit + 1) if minibatch % d == 0)


def lengths(phase: PhaseConfig, max_new_tokens: int) -> tuple[int, ...]:
  """Numbers of completion slots below the maximum for shorter micro-batches.

  They are descending, and the maximum is not among them.
  """
  steps = phase.num_lengths - 1
  shares = (8 ** (-i / steps) for i in range(1, steps + 1))
  slots = (8 * round(share * max_new_tokens / 8) for share in shares)
  return tuple(n for n in slots if 16 <= n < max_new_tokens)


# Tokens per micro-batch on a CPU. Gradients of 512 rows of 11 tokens at the
# quickstart's width took 217 ms with 352 tokens at once, 195 with 704, 140 with
# 1408 and 440 with all 5632 (2 cores of a shared machine, one round).
_CPU_TOKENS = 1536
