"""The table of features that exclude each other, read before compilation.

A feature is anything that a config switches on and that excludes another
feature (`FEATURES`). A row of `TABLE` has two features that exclude each other,
the reason, and a remedy. `tests/settings/compatibility_test.py` tries every
row, and the pairs that the table allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_jax.settings import environment as environment_lib
from grpo_jax.settings.phase import SPO

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


def _phase_setting(field: str) -> Callable[[Setup], str]:
  return lambda s: f"config.{s.name}.{field}={getattr(s.phase, field)!r}"


def _option(field: str) -> Callable[[Setup], str]:
  return lambda s: f"config.algorithm.{field}={getattr(s.objective, field)!r}"


def _environment(setup: Setup) -> str:
  if setup.problem.host_environment is not None:
    return f"config.data.environment={setup.config.data.environment!r}"
  return f"the environment of the task {setup.config.data.name!r}"


def _rounding(setup: Setup) -> str:
  return (
    f"config.sampling.weights_dtype={setup.config.sampling.weights_dtype!r}"
  )


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
    option = _option("off_policy_threshold")(setup)
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
  "lanes": Feature(
    lambda s: s.config.sampling.lanes is not None,
    lambda s: f"config.sampling.lanes={s.config.sampling.lanes}",
  ),
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
    lambda s: environment_lib.is_served(s.config.data.environment),
    _environment,
  ),
  "compaction": Feature(
    lambda s: s.problem.compaction is not None,
    _compaction,
  ),
  "rounds": Feature(
    lambda s: s.phase.max_rounds > 1, _phase_setting("max_rounds")
  ),
  "recycled surplus": Feature(
    lambda s: s.phase.recycle_surplus, _phase_setting("recycle_surplus")
  ),
  "replay": Feature(
    lambda s: s.phase.replay_size > 0, _phase_setting("replay_size")
  ),
  "staleness": Feature(
    lambda s: s.phase.staleness > 0, _phase_setting("staleness")
  ),
  "partial rollouts": Feature(
    lambda s: s.phase.partial_len is not None, _phase_setting("partial_len")
  ),
  "guards": Feature(lambda s: s.config.guards.on, lambda s: "config.guards"),
  "empty rows count": Feature(
    lambda s: s.objective.count_empty, _option("count_empty")
  ),
  "schedule": Feature(
    lambda s: s.phase.schedule.chooses,
    lambda s: f"config.{s.name}.schedule.name={s.phase.schedule.name!r}",
  ),
  "past completions": Feature(
    lambda s: s.phase.schedule.name == SPO,
    lambda s: f"config.{s.name}.schedule.name={s.phase.schedule.name!r}",
  ),
  GIVEN_PAIRS: Feature(
    lambda s: s.phase.of_kind.num_given == 2, _phase_setting("kind")
  ),
  "images": Feature(
    lambda s: s.problem.image_shapes is not None,
    lambda s: (
      f"config.data.images={s.config.data.images!r}"
      if s.config.data.images
      else f"config.data.name={s.config.data.name!r}, whose prompts show"
      " images,"
    ),
  ),
  "prompts in chunks": Feature(
    lambda s: s.config.model.prefill_chunk > 0,
    lambda s: f"config.model.prefill_chunk={s.config.model.prefill_chunk}",
  ),
  "single completions": Feature(
    lambda s: s.phase.group_size == 1, _phase_setting("group_size")
  ),
  "dynamic sampling": Feature(
    lambda s: s.objective.dynamic_sampling, _option("dynamic_sampling")
  ),
  "no dynamic sampling": Feature(
    lambda s: not s.objective.dynamic_sampling, _option("dynamic_sampling")
  ),
  "scale of the group": Feature(
    lambda s: s.objective.advantage_scale == "group",
    _option("advantage_scale"),
  ),
  "max_live_groups": Feature(
    lambda s: s.objective.max_live_groups > 0, _option("max_live_groups")
  ),
  "overlong_cache": Feature(
    lambda s: s.objective.overlong_cache > 0, _option("overlong_cache")
  ),
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
  "text in the graph": Feature(
    lambda s: s.config.rewards.in_graph,
    lambda s: f"config.rewards.in_graph={s.config.rewards.in_graph}",
  ),
  "steps of a text": Feature(
    lambda s: bool(s.config.rewards.steps),
    lambda s: f"config.rewards.steps={s.config.rewards.steps!r}",
  ),
  "weights that change": Feature(
    lambda s: bool(s.config.rewards.schedules),
    lambda s: f"config.rewards.schedules={dict(s.config.rewards.schedules)}",
  ),
  "options of whole completions": Feature(
    lambda s: bool(_joint_option(s)), lambda s: _option(_joint_option(s))(s)
  ),
  "no correction": Feature(_uncorrected, _no_correction),
  "sampling mask": Feature(
    lambda s: "kept_ids" in s.required, _option("keep_sampling_mask")
  ),
  "no top_k": Feature(
    lambda s: s.config.sampling.top_k is None,
    lambda s: "config.sampling.top_k=None",
  ),
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
    _phase_setting("reference_workdirs"),
  ),
  "limits by domain": Feature(
    lambda s: bool(s.problem.limits),
    lambda s: (
      f"config.sampling.domain_limits={dict(s.config.sampling.domain_limits)}"
    ),
  ),
  "prompts without domains": Feature(
    lambda s: "domain" not in s.problem.provides,
    lambda s: f"config.data.source={s.config.data.source!r} without domains",
  ),
  "reward model": Feature(
    lambda s: bool(s.problem.reward.by_models),
    lambda s: f"config.rewards.functions={s.config.rewards.functions}",
  ),
  "pairs ranked by a model": Feature(
    lambda s: s.config.reward_model.ranks(s.phase),
    lambda s: (
      f"config.reward_model.ranked_by={s.config.reward_model.ranked_by!r}"
    ),
  ),
  "old completions": Feature(
    lambda s: s.config.reward_model.history_share > 0,
    lambda s: (
      f"config.reward_model.history_share={s.config.reward_model.history_share}"
    ),
  ),
  "forced answers": Feature(
    lambda s: "prefix_utility" in s.required,
    lambda s: f"algorithm {s.algorithm.name!r}, which forces answers",
  ),
  "opponents": Feature(
    lambda s: bool(s.phase.opponents), _phase_setting("opponents")
  ),
  "single player": Feature(
    lambda s: not _seats(s),
    lambda s: f"config.data.name={s.config.data.name!r}, for one player,",
  ),
  "several players": Feature(
    lambda s: _seats(s),
    lambda s: f"the task {s.config.data.name!r}, which has several players",
  ),
  "rounded kernels": Feature(
    lambda s: s.config.sampling.weights_dtype != "model", _rounding
  ),
  "rounding to be corrected": Feature(
    lambda s: (
      s.config.sampling.weights_dtype != "model" and "policy" in s.phase.trains
    ),
    _rounding,
  ),
  "quantized base": Feature(
    lambda s: s.config.model.quantization != "none",
    lambda s: f"config.model.quantization={s.config.model.quantization!r}",
  ),
  "mixed inputs": Feature(
    lambda s: bool(s.config.sampling.mix_rate),
    lambda s: f"config.sampling.mix_rate={s.config.sampling.mix_rate}",
  ),
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
    lambda s: f"config.rewards.functions={s.config.rewards.functions}",
  ),
  "kept routing": Feature(
    lambda s: "routing" in s.required, _option("keep_routing")
  ),
  "canaries with a KL": Feature(
    lambda s: (
      s.config.guards.on
      and s.config.guards.canary_every > 0
      and s.config.guards.canary_max_kl > 0
    ),
    lambda s: f"config.guards.canary_max_kl={s.config.guards.canary_max_kl}",
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

TABLE = (
  Exclusion(
    "opponents",
    "single player",
    "its environment has no seat for another one",
    "leave config.{name}.opponents empty, or choose a task for several players,"
    " such as 'nim'",
  ),
  Exclusion(
    "several players",
    "compaction",
    "who writes is not asked between two contexts",
    "choose a task without compaction",
  ),
  Exclusion(
    "canaries with a KL",
    "compaction",
    "the KL of a canary is of completions in one row",
    "set config.guards.canary_max_kl=0, or do without compaction",
  ),
  Exclusion(
    "images",
    "environment",
    "what an environment shows is tokens, and the images of a prompt are read"
    " once, before the first of them",
    "choose a task without an environment, or prompts without images",
  ),
  Exclusion(
    "images",
    "compaction",
    "a later context begins with a summary, in which nothing is shown",
    "choose a task without compaction, or prompts without images",
  ),
  Exclusion(
    "images",
    GIVEN_PAIRS,
    "two completions of a prompt are compared without its images",
    "leave config.phases without {name!r}, or choose prompts without images",
  ),
  Exclusion(
    "images",
    "prompts in chunks",
    "what images are read as belongs to a prompt in one piece",
    "set config.model.prefill_chunk=0, or choose prompts without images",
  ),
  Exclusion(
    "images",
    "forced answers",
    "an answer is forced behind the tokens of a prompt and a completion, which"
    " are read again without images",
    "choose another algorithm, such as 'grpo', or prompts without images",
  ),
  Exclusion(
    "images",
    "old completions",
    "a group of an earlier phase is kept as tokens, without its images",
    "set config.reward_model.history_share=0, or choose prompts without images",
  ),
  Exclusion(
    "lanes",
    "environment in the graph",
    "the rows of an environment in the graph are all decoded at once",
    "set config.sampling.lanes=None",
  ),
  Exclusion(
    "lanes",
    "environment that asks over HTTP",
    "its requests are answered when they come, without lanes",
    "set config.sampling.lanes=None, and config.served.num_rows to how many are"
    " answered at a time",
  ),
  Exclusion(
    "correction",
    "environment",
    "an episode goes on by what its environment says, and not by a hint",
    "leave config.{name}.correction out, or choose a task of one turn",
  ),
  Exclusion(
    "correction",
    "text",
    "right answers are put in where tasks make the prompts, whose verifiers are"
    " in the program",
    "leave config.{name}.correction out, or choose a task",
  ),
  Exclusion(
    "correction",
    "verifiers on the host",
    "what was written is judged twice within one step, which does not leave the"
    " device",
    "leave config.{name}.correction out, or config.rewards.functions that ask"
    " the host",
  ),
  Exclusion(
    "correction",
    "mixed inputs",
    "a draft is read again as it is written, and not as it was read",
    "leave config.{name}.correction out, or set config.sampling.mix_rate=0",
  ),
  Exclusion(
    "correction",
    "kept routing",
    "nobody has recorded which experts what was put in takes",
    "leave config.{name}.correction out, or set"
    " config.algorithm.keep_routing=False",
  ),
  Exclusion(
    "correction",
    "recycled surplus",
    "what is said of corrections is about the draws of the step, and some"
    " groups of its batch would be of the step before",
    "leave config.{name}.correction out, or set"
    " config.{name}.recycle_surplus=False",
  ),
  Exclusion(
    "correction",
    "replay",
    "what is said of corrections is about the draws of the step, and some"
    " groups of its batch would be of earlier steps",
    "leave config.{name}.correction out, or set config.{name}.replay_size=0",
  ),
  Exclusion(
    "trained hints",
    "sampling mask",
    "the sampler has kept no ids where tokens were put in, so that they would"
    " have no log-prob and leave the loss",
    "set config.{name}.correction.train_injected=False, or"
    " config.algorithm.keep_sampling_mask=False",
  ),
  Exclusion(
    "correction",
    "forced answers",
    "what the policy expects after a prefix is asked of its own words, and a"
    " hint is not its own",
    "leave config.{name}.correction out, or choose another algorithm",
  ),
  Exclusion(
    "mixed inputs",
    "forced answers",
    "an answer is forced behind the tokens of a completion, and not behind what"
    " the policy has read of them",
    "set config.sampling.mix_rate=0, or choose another algorithm",
  ),
  Exclusion(
    "mixed inputs",
    "environment",
    "what an environment writes is read as it is, and so is a context that it"
    " compacts",
    "set config.sampling.mix_rate=0, or choose a task of one turn",
  ),
  Exclusion(
    "partial rollouts",
    "environment that asks over HTTP",
    "it keeps its conversations to itself, and they end with the step",
    "set config.{name}.partial_len=None, or use an environment with sessions",
  ),
  Exclusion(
    "partial rollouts",
    "compaction",
    "a rollout whose context is compacted is several rows, which do not wait",
    "set config.{name}.partial_len=None, or do without compaction",
  ),
  Exclusion(
    "partial rollouts",
    "several players",
    "a reward is credited to who has written, when an episode has ended",
    "set config.{name}.partial_len=None, or choose a task for one player",
  ),
  Exclusion(
    "partial rollouts",
    "lanes",
    "the rows that go on are all decoded at once",
    "set config.sampling.lanes=None",
  ),
  Exclusion(
    "partial rollouts",
    "verifiers on the host",
    "completions are decoded and judged in one program",
    "set config.{name}.partial_len=None, or take verifiers of the task",
  ),
  Exclusion(
    "partial rollouts",
    "correction",
    "a draft is judged when it has ended, and would go on in another step",
    "leave config.{name}.correction out, or set config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "mixed inputs",
    "what is written is read again as it is, and not as it was read",
    "set config.sampling.mix_rate=0, or config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "kept routing",
    "what is written is read again, through whichever experts it takes then",
    "set config.algorithm.keep_routing=False, or "
    "config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "forced answers",
    "an answer is forced behind completions that have all ended",
    "set config.{name}.partial_len=None, or choose another algorithm",
  ),
  Exclusion(
    "partial rollouts",
    "rounds",
    "a round is drawn to its end, and rows that go on are not",
    "set config.{name}.max_rounds=1, or config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "replay",
    "groups that wait would stand beside those that are replayed",
    "set config.{name}.replay_size=0, or config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "schedule",
    "both say which prompts come next",
    "set config.{name}.schedule.name='epochs', or "
    "config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "old completions",
    "a completion that is kept is whole",
    "set config.reward_model.history_share=0, or "
    "config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "guards",
    "they count the prompts of a step, and some would be there again "
    "without being trained",
    "set config.guards.on=False, or config.{name}.partial_len=None",
  ),
  Exclusion(
    "partial rollouts",
    "empty rows count",
    "completions that go on have no tokens in a step, and would count",
    "set config.algorithm.count_empty=False, or config.{name}.partial_len=None",
  ),
  Exclusion(
    "rounds",
    "environment on the host",
    "its episodes are drawn in one round",
    "set config.{name}.max_rounds=1, which leaves groups without different"
    " rewards out of the loss",
  ),
  Exclusion(
    "rounds",
    "compaction",
    "a rollout whose context is compacted is several rows, which rounds do not"
    " sort",
    "set config.{name}.max_rounds=1",
  ),
  Exclusion(
    "schedule",
    "staleness",
    "it chooses the prompts of a step by what became of those before, and the"
    " next batches are drawn before that is known",
    "set config.{name}.schedule.name='epochs', or config.{name}.staleness=0",
  ),
  Exclusion(
    "schedule",
    "rounds",
    "it has to see every group that is drawn, and rounds drop those without"
    " different rewards",
    "set config.{name}.schedule.name='epochs', or config.{name}.max_rounds=1",
  ),
  Exclusion(
    "past completions",
    "environment",
    "it asks the policy again about completions of earlier steps, which have"
    " one turn",
    "set config.{name}.schedule.name='frontier', or choose a task without an"
    " environment",
  ),
  Exclusion(
    "past completions",
    "mixed inputs",
    "it asks the policy again about the tokens of earlier completions, and not"
    " about what was read of them",
    "set config.{name}.schedule.name='frontier', or config.sampling.mix_rate=0",
  ),
  Exclusion(
    "coupled groups",
    "compaction",
    "a rollout whose context is compacted is several rows of a group",
    "choose another algorithm, or do without compaction",
  ),
  Exclusion(
    "whole completions",
    "compaction",
    "a rollout whose context is compacted has its tokens in several rows",
    "choose another algorithm, such as 'grpo' or 'compaction_rl', or do"
    " without compaction",
  ),
  Exclusion(
    "options of whole completions",
    "compaction",
    "a rollout whose context is compacted has its tokens in several rows",
    "choose what is about single tokens, such as"
    " config.algorithm.importance_level='token' or"
    " config.algorithm.rejection='token_k1', or set"
    " config.algorithm.off_policy_threshold=0 and config.algorithm.opd_early=0,"
    " or do without compaction",
  ),
  Exclusion(
    "empty rows count",
    "compaction",
    "a rollout has a row for each context that it may have, and those that it"
    " did not need would count",
    "set config.algorithm.count_empty=False, or do without compaction",
  ),
  Exclusion(
    "forced answers",
    "environment",
    "an answer is forced where a completion goes on, and an environment would"
    " have something to say there",
    "choose another algorithm, such as 'grpo', or a task without an"
    " environment",
  ),
  Exclusion(
    "forced answers",
    "reward model",
    "utilities are what the verifier says of an answer, and credits are the"
    " difference of a reward to them",
    "leave it out of config.rewards.functions, or choose another algorithm",
  ),
  Exclusion(
    "overlong_cache",
    "compaction",
    "it is a share of the budget of a completion, and a rollout whose context"
    " is compacted has one for each context",
    "set config.algorithm.overlong_cache=0",
  ),
  Exclusion(
    "cut contexts that stand alone",
    "compaction",
    "each context is paid the outcome of its rollout there and nothing beyond,"
    " so that what follows a cut would reach the last context alone",
    "set config.algorithm.boundary='chain', 'bootstrap' or"
    " 'compaction_rl_bootstrap', or config.algorithm.bootstrap_cut=False",
  ),
  Exclusion(
    "final values of a shared trunk",
    "kept routing",
    "nobody has recorded which experts a last token takes",
    "set config.critic.trunk='own', config.algorithm.keep_routing=False or"
    " config.algorithm.bootstrap_cut=False",
  ),
  Exclusion(
    "reward model",
    "compaction",
    "a reward model, or a judge, reads a completion in one row",
    "leave it out of config.rewards.functions, or do without compaction",
  ),
  Exclusion(
    "pairs ranked by a model",
    "environment on the host",
    "what its sessions say is the whole reward of an episode",
    "leave config.reward_model.ranked_by empty, or use an environment in the"
    " graph",
  ),
  Exclusion(
    "pairs ranked by a model",
    "compaction",
    "a reward model reads a completion in one row",
    "leave config.reward_model.ranked_by empty, or do without compaction",
  ),
  Exclusion(
    "old completions",
    "compaction",
    "a completion that is kept is one row",
    "set config.reward_model.history_share=0, or do without compaction",
  ),
  Exclusion(
    "reward model",
    "environment on the host",
    "what its sessions say is the whole reward of an episode",
    "leave it out of config.rewards.functions, or use an environment in the"
    " graph",
  ),
  Exclusion(
    "rounds",
    "no dynamic sampling",
    "rounds are drawn until enough groups have rewards that differ, which"
    " dynamic sampling alone asks for",
    "set config.algorithm.dynamic_sampling=True, or config.{name}.max_rounds=1",
  ),
  Exclusion(
    "rounds",
    "max_live_groups",
    "they are two ways to a batch of live groups",
    "to draw on until there are enough, set config.{name}.num_prompts to their"
    " number and config.algorithm.max_live_groups=0; to choose them from one"
    " large batch, set config.{name}.max_rounds=1",
  ),
  Exclusion(
    "dynamic sampling",
    "single completions",
    "it compares the completions of a prompt, and nothing would be trained",
    "set config.algorithm.dynamic_sampling=False, or config.{name}.group_size"
    " to 2 or more",
  ),
  Exclusion(
    "scale of the group",
    "single completions",
    "it compares the completions of a prompt, and nothing would be trained",
    "set config.algorithm.advantage_scale='none', or config.{name}.group_size"
    " to 2 or more",
  ),
  Exclusion(
    "staleness",
    "rounds",
    "the next batches are drawn before this one is verified, and rounds draw"
    " more of this one after that",
    "set config.{name}.staleness=0, or config.{name}.max_rounds=1",
  ),
  Exclusion(
    "staleness",
    "no correction",
    "completions of earlier parameters would be taken for the current ones'",
    f"{_CORRECT}; or set config.{{name}}.staleness=0",
  ),
  Exclusion(
    "rounding to be corrected",
    "no correction",
    "completions of rounded kernels would be taken for those of the kernels"
    " that are trained",
    _CORRECT,
  ),
  Exclusion(
    "rounded kernels",
    "quantized base",
    "its kernels are codes already, and would not be rounded again",
    "set config.sampling.weights_dtype='model'",
  ),
  Exclusion(
    "recycled surplus",
    "no correction",
    "groups of the last step's parameters would be taken for the current ones'",
    f"{_CORRECT}; or set config.{{name}}.recycle_surplus=False",
  ),
  Exclusion(
    "recycled surplus",
    "weights that change",
    "the rewards of a step would be sums with the weights of two",
    "leave config.rewards.schedules empty, or set"
    " config.{name}.recycle_surplus=False",
  ),
  Exclusion(
    "replay",
    "no correction",
    "groups of earlier parameters would be taken for the current ones'",
    f"{_CORRECT}; or set config.{{name}}.replay_size=0",
  ),
  Exclusion(
    "replay",
    "weights that change",
    "the rewards of a step would be sums with the weights of several",
    "leave config.rewards.schedules empty, or set config.{name}.replay_size=0",
  ),
  Exclusion(
    "replay",
    "single completions",
    "it keeps groups whose rewards differ, and no group would",
    "set config.{name}.replay_size=0, or config.{name}.group_size to 2 or more",
  ),
  Exclusion(
    "replay",
    "past completions",
    "the schedule keeps what was written for the prompts of a step, and some"
    " of a batch would be of other prompts",
    "set config.{name}.schedule.name='frontier', or"
    " config.{name}.replay_size=0",
  ),
  Exclusion(
    "replay",
    "environment on the host",
    "what is kept of a group are arrays of the compiled program, and its"
    " episodes are put together outside of it",
    "set config.{name}.replay_size=0, or use an environment in the graph",
  ),
  Exclusion(
    "replay",
    "compaction",
    "a rollout whose context is compacted is several rows, which are not put in"
    " the place of one",
    "set config.{name}.replay_size=0, or do without compaction",
  ),
  Exclusion(
    "sampling mask",
    "no top_k",
    "top_k bounds the number of tokens that are recorded",
    "set config.sampling.top_k, as 64, or config.algorithm.keep_sampling_mask="
    "False",
  ),
  Exclusion(
    "recorded log-probs",
    "filters without a record",
    "the recorded log-probs are not of the policy that is trained",
    "set config.algorithm.keep_sampling_mask=True and config.sampling.top_k,"
    " the most ids that are recorded of a token, as 64; or leave the filters"
    " out: top_k, top_p and min_p None",
  ),
  Exclusion(
    "teachers of domains",
    "prompts without domains",
    "the domain of a prompt chooses its teacher",
    "set config.data.domain_key, name one teacher, or mix them with"
    " config.{name}.reference_mixture",
  ),
  Exclusion(
    "images",
    "schedule",
    "it chooses from prompts that fit, and images are looked at when it is"
    " their turn",
    "set config.{name}.schedule.name='epochs', or leave config.data.images"
    " empty",
  ),
  Exclusion(
    "limits by domain",
    "environment",
    "an episode ends where its environment says so",
    "leave config.sampling.domain_limits empty",
  ),
  Exclusion(
    "limits by domain",
    "overlong_cache",
    "it is a share of one budget, that of all completions",
    "set config.algorithm.overlong_cache=0, or leave"
    " config.sampling.domain_limits empty",
  ),
  Exclusion(
    "text in the graph",
    "steps of a text",
    "steps of a text are scored by functions on the host",
    "set config.rewards.in_graph=False, or leave config.rewards.steps empty",
  ),
  Exclusion(
    "weights that change",
    "environment on the host",
    "scores of sessions are added up where they come in, without the step",
    "leave config.rewards.schedules empty",
  ),
)


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
