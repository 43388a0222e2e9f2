"""The features that exclude each other, looked at before compilation.

A feature is anything that a config switches on and that excludes another
feature (`FEATURES`). A row of `compatibility.toml` has two features that
exclude each other, the reason, and a remedy.
`tests/settings/compatibility_test.py` tries every row, and the pairs that the
table allows.
"""

from __future__ import annotations

import dataclasses
import operator
import pathlib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_jax.settings import environment as environment_lib
from grpo_jax.settings.phase import EPOCHS, SPO

if TYPE_CHECKING:
  from grpo_jax.types import Algorithm

GIVEN_PAIRS = "given pairs"  # A feature of phases that do not sample.


@dataclasses.dataclass(frozen=True)
class Setup:
  """Settings and parts of a phase, from which features are read.

  Attributes:
    config: Settings of the run.
    name: Name of the phase.
    phase: Its section of the config.
    problem: Prompts and verifiers.
    algorithm, objective: The objective of the phase and its config.
    required: Optional inputs that the objective reads.
  """

  config: Any
  name: str
  phase: Any
  problem: Any
  algorithm: Algorithm
  objective: Any
  required: frozenset[str]


class Feature(NamedTuple):
  """A feature that a phase may have.

  Attributes:
    is_on: Function that tells whether a phase has the feature.
    shown: Function that names it in messages: the setting and its value.
  """

  is_on: Callable[[Setup], bool]
  shown: Callable[[Setup], str]


def _set(path: str, is_on: Callable[[Any], Any] = bool) -> Feature:
  """Makes the feature of a setting of the config, phase or objective.

  Args:
    path: Path of the setting from a `Setup`, such as "phase.staleness".
    is_on: Function that tells whether a value has the feature.
  """
  read = operator.attrgetter(path)
  root, _, field = path.partition(".")

  def shown(setup: Setup) -> str:
    group = {"phase": f"config.{setup.name}", "objective": "config.algorithm"}
    value = read(setup)
    value = dict(value) if isinstance(value, Mapping) else value
    return f"{group.get(root, root)}.{field}={value!r}"

  return Feature(lambda setup: bool(is_on(read(setup))), shown)


def _is_set(value: Any) -> bool:
  return value is not None


def _shown(path: str) -> Callable[[Setup], str]:
  return _set(path).shown


def _environment(setup: Setup) -> str:
  if setup.problem.host_environment is not None:
    return f"config.data.environment={setup.config.data.environment!r}"
  return f"the environment of the task {setup.config.data.name!r}"


def _uncorrected(setup: Setup) -> bool:
  """True if all completions count as those of the policy that is trained.

  The mask of bad old completions leaves some out, but does not weigh others, so
  it is not a correction.
  """
  objective = setup.objective
  return (
    objective.importance_mode == "none"
    and objective.rejection == "none"
    and "behavior_logp" not in setup.algorithm.needs
    and not setup.config.sampling.uncorrected
  )


def _no_correction(setup: Setup) -> str:
  if setup.objective.off_policy_threshold > 0:
    option = _shown("objective.off_policy_threshold")(setup)
    return f"{option} alone, which weighs no completion that it keeps,"
  return f"algorithm {setup.algorithm.name!r} without a correction"


def _joint_option(setup: Setup) -> str:
  """The option that needs all tokens of a completion together, or ""."""
  objective = setup.objective
  options = {
    "importance_level": objective.importance_mode != "none"
    and objective.importance_level == "sequence",
    "rejection": objective.rejection.startswith("seq_"),
    "off_policy_threshold": objective.off_policy_threshold > 0,
    "opd_early": objective.opd_coef > 0 and objective.opd_early > 0,
  }
  return next((name for name, is_on in options.items() if is_on), "")


def _compaction(setup: Setup) -> str:
  if (size := setup.config.environment.compaction.context_len) is not None:
    return f"config.environment.compaction.context_len={size}"
  return f"the task {setup.config.data.name!r}, which compacts its contexts"


def _seats(setup: Setup) -> bool:
  """Returns True if an environment in the graph has seats for others."""
  environment = setup.problem.environment
  return environment is not None and environment.seat is not None


def _filters(setup: Setup) -> bool:
  sampling = setup.config.sampling
  return (
    sampling.top_k is not None
    or sampling.min_p is not None
    or sampling.top_p not in (None, 1)
  )


FEATURES = {
  "lanes": _set("config.sampling.lanes", _is_set),
  "environment": Feature(
    lambda s: bool(s.problem.environment or s.problem.host_environment),
    _environment,
  ),
  "environment in the graph": Feature(
    lambda s: s.problem.environment is not None, _environment
  ),
  "environment on the host": Feature(
    lambda s: s.problem.host_environment is not None, _environment
  ),
  "environment that asks over HTTP": Feature(
    lambda s: environment_lib.is_served(s.config.data.environment), _environment
  ),
  "compaction": Feature(
    lambda s: s.problem.compaction is not None, _compaction
  ),
  "rounds": _set("phase.max_rounds", lambda x: x > 1),
  "recycled surplus": _set("phase.recycle_surplus"),
  "replay": _set("phase.replay_size"),
  "staleness": _set("phase.staleness"),
  "partial rollouts": _set("phase.partial_len", _is_set),
  "guards": Feature(lambda s: s.config.guards.on, lambda s: "config.guards"),
  "empty rows count": _set("objective.count_empty"),
  "schedule": _set("phase.schedule.name", lambda x: x != EPOCHS),
  "past completions": _set("phase.schedule.name", lambda x: x == SPO),
  GIVEN_PAIRS: Feature(
    lambda s: s.phase.of_kind.num_given == 2, _shown("phase.kind")
  ),
  "kept completions": _set("phase.kind", lambda x: x == "rejection"),
  "images": Feature(
    lambda s: s.problem.image_shapes is not None,
    lambda s: (
      f"config.data.images={s.config.data.images!r}"
      if s.config.data.images
      else f"config.data.name={s.config.data.name!r}, whose prompts show"
      " images,"
    ),
  ),
  "prompts in chunks": _set("config.model.prefill_chunk"),
  "single completions": _set("phase.group_size", lambda x: x == 1),
  "dynamic sampling": _set("objective.dynamic_sampling"),
  "no dynamic sampling": _set("objective.dynamic_sampling", operator.not_),
  "scale of the group": _set(
    "objective.advantage_scale", lambda x: x == "group"
  ),
  "max_live_groups": _set("objective.max_live_groups"),
  "overlong_cache": _set("objective.overlong_cache"),
  "cut contexts that stand alone": Feature(
    lambda s: (
      "final_value" in s.required
      and s.objective.boundary in ("outcome", "compaction_rl")
    ),
    lambda s: (
      f"config.algorithm.bootstrap_cut=True with"
      f" boundary={s.objective.boundary!r}"
    ),
  ),
  "final values of a shared trunk": Feature(
    lambda s: "final_value" in s.required and s.config.critic.trunk == "shared",
    lambda s: (
      "config.algorithm.bootstrap_cut=True with config.critic.trunk='shared'"
    ),
  ),
  "coupled groups": Feature(
    lambda s: s.algorithm.couples_group,
    lambda s: f"algorithm {s.algorithm.name!r}, which couples completions",
  ),
  "whole completions": Feature(
    lambda s: s.algorithm.whole_completions,
    lambda s: f"algorithm {s.algorithm.name!r}, which reads whole completions",
  ),
  "text in the graph": _set("config.rewards.in_graph"),
  "steps of a text": _set("config.rewards.steps"),
  "weights that change": _set("config.rewards.schedules"),
  "options of whole completions": Feature(
    lambda s: bool(_joint_option(s)),
    lambda s: _shown(f"objective.{_joint_option(s)}")(s),
  ),
  "no correction": Feature(_uncorrected, _no_correction),
  "sampling mask": Feature(
    lambda s: "kept_ids" in s.required, _shown("objective.keep_sampling_mask")
  ),
  "no top_k": _set("config.sampling.top_k", lambda x: x is None),
  "filters without a record": Feature(
    lambda s: _filters(s) and "kept_ids" not in s.required,
    lambda s: (
      "config.sampling, which filters tokens (top_k, top_p or min_p) and"
      " records nothing of it,"
    ),
  ),
  "recorded log-probs": Feature(
    lambda s: "behavior_logp" in s.required,
    lambda s: f"algorithm {s.algorithm.name!r}, which compares log-probs",
  ),
  "teachers of domains": Feature(
    lambda s: s.phase.has_teachers_of_domains,
    _shown("phase.reference_workdirs"),
  ),
  "limits by domain": Feature(
    lambda s: bool(s.problem.limits),
    _shown("config.sampling.domain_limits"),
  ),
  "prompts without domains": Feature(
    lambda s: "domain" not in s.problem.provides,
    lambda s: f"config.data.source={s.config.data.source!r} without domains",
  ),
  "reward model": Feature(
    lambda s: bool(s.problem.reward.by_models),
    _shown("config.rewards.functions"),
  ),
  "pairs ranked by a model": Feature(
    lambda s: s.config.reward_model.ranks(s.phase),
    _shown("config.reward_model.ranked_by"),
  ),
  "old completions": _set("config.reward_model.history_share"),
  "forced answers": Feature(
    lambda s: "prefix_utility" in s.required,
    lambda s: f"algorithm {s.algorithm.name!r}, which forces answers",
  ),
  "opponents": _set("phase.opponents"),
  "single player": Feature(
    lambda s: not _seats(s),
    lambda s: f"config.data.name={s.config.data.name!r}, for one player,",
  ),
  "several players": Feature(
    lambda s: _seats(s),
    lambda s: f"the task {s.config.data.name!r}, which has several players",
  ),
  "rounded kernels": _set(
    "config.sampling.weights_dtype", lambda x: x != "model"
  ),
  "rounding to be corrected": Feature(
    lambda s: (
      s.config.sampling.weights_dtype != "model" and "policy" in s.phase.trains
    ),
    _shown("config.sampling.weights_dtype"),
  ),
  "quantized base": _set("config.model.quantization", lambda x: x != "none"),
  "mixed inputs": _set("config.sampling.mix_rate"),
  "correction": Feature(
    lambda s: s.phase.correction.corrects,
    lambda s: (
      f"config.{s.name}.correction with p_cue={s.phase.correction.p_cue},"
      f" p_answer={s.phase.correction.p_answer} and"
      f" p_reference={s.phase.correction.p_reference}"
    ),
  ),
  "trained hints": Feature(
    lambda s: s.phase.correction.corrects and s.phase.correction.train_injected,
    lambda s: f"config.{s.name}.correction.train_injected=True",
  ),
  "text": Feature(
    lambda s: not s.config.data.is_made_of_ids,
    lambda s: f"config.data.source={s.config.data.source!r}, which is text,",
  ),
  "verifiers on the host": Feature(
    lambda s: s.problem.reward.asks_host,
    _shown("config.rewards.functions"),
  ),
  "kept routing": Feature(
    lambda s: "routing" in s.required, _shown("objective.keep_routing")
  ),
  "capped influence": Feature(
    lambda s: s.config.guards.on and s.config.guards.influence_cap > 0,
    _shown("config.guards.influence_cap"),
  ),
  "current teacher": Feature(
    lambda s: s.objective.opd_coef > 0 and s.objective.opd_anchor == "current",
    _shown("objective.opd_anchor"),
  ),
  "canaries with a KL": Feature(
    lambda s: (
      s.config.guards.on
      and s.config.guards.canary_every > 0
      and s.config.guards.canary_max_kl > 0
    ),
    _shown("config.guards.canary_max_kl"),
  ),
}


class Exclusion(NamedTuple):
  """Two features that exclude each other.

  Attributes:
    feature, excludes: Names of the features.
    why: The reason, a clause of a message.
    remedy: The remedy; may contain {name}, the name of the phase.
  """

  feature: str
  excludes: str
  why: str
  remedy: str


_CORRECT = (
  "set config.algorithm.importance_mode='truncate' or 'mask', or"
  " config.algorithm.rejection; or set config.sampling.uncorrected=True, to"
  " train without any"
)


def _table() -> Iterator[Exclusion]:
  path = pathlib.Path(__file__).with_suffix(".toml")
  for feature, pairs in tomllib.loads(path.read_text("utf-8")).items():
    for excludes, row in pairs.items():
      remedy = row["remedy"].replace("{correct}", _CORRECT)
      yield Exclusion(feature, excludes, row["why"], remedy)


TABLE = tuple(_table())


def check(setup: Setup) -> None:
  """Raises ValueError with all pairs of features that exclude each other.

  If a phase does not sample, only rows with given pairs are checked: the other
  rows are about sampling and scoring.
  """
  complaints = []
  for row in TABLE:
    names = row.feature, row.excludes
    if not (setup.phase.samples or GIVEN_PAIRS in names):
      continue
    features = [FEATURES[name] for name in names]
    if all(feature.is_on(setup) for feature in features):
      first, second = (feature.shown(setup) for feature in features)
      complaints.append(
        f"{first} and {second} do not go together: {row.why};"
        f" {row.remedy.format(name=setup.name)}."
      )
  if complaints:
    raise ValueError("\n".join(complaints))
