"""Rewards of completions: functions of arrays, functions of text, and models.

A `RewardSum` adds up the rewards of a phase. Functions of text, and models over
HTTP, are asked on the host between two halves of a step. Everything else is
part of the compiled program, also functions that read text as arrays of bytes.
`make` makes the reward of a run from its settings.
"""

from __future__ import annotations

import abc
import codecs
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import imports
from grpo_jax.data import domains
from grpo_jax.ops import masked
from grpo_jax.rewards import derived as derived_lib
from grpo_jax.rewards import registry
from grpo_jax.rollout import compaction
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.rewards import JUDGE, REWARD_MODEL
from grpo_jax.step import models, reward_models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.runtime import jit
from grpo_jax.types import Prompts, Rollout, Scored

if TYPE_CHECKING:  # Most rewards start no process.
  from grpo_jax.rewards.workers import host, judge_service

Components = Mapping[str, jax.Array]  # each [B]


@dataclasses.dataclass(frozen=True)
class InGraph:
  """A verifier of arrays.

  Attributes:
    components: (prompts, rollout) -> rewards by name; NaN: does not apply.
    steps: (prompts, rollout) -> scores of steps and where steps end, each [B,
      T]; None if it judges whole completions only.
  """

  components: Callable[[Prompts, Rollout], Components]
  steps: Callable[[Prompts, Rollout], tuple[jax.Array, jax.Array]] | None = None


def of_episodes(prompts: Prompts, rollout: Rollout) -> Components:
  """The scores of episodes, from their environment."""
  del prompts
  assert rollout.scores is not None
  return rollout.scores


class HostScores(NamedTuple):
  """Scores of rows from the host.

  Attributes:
    components: Rewards by name; NaN: does not apply.
    failed: Rows that could not be scored.
    steps: Scores of steps and where steps end; None if no steps are scored.
  """

  components: Components
  failed: jax.Array  # [B] bool
  steps: tuple[jax.Array, jax.Array] | None = None  # each [B, T]


@dataclasses.dataclass(frozen=True)
class OnHost:
  """Verifiers of text, in worker processes of the host."""

  scorer: host.HostScorer

  def score(
    self, *rows: Sequence[Any], again: str | None = None
  ) -> host.WorkerScores:
    """Scores B rows.

    Args:
      rows: See `HostScorer.score`.
      again: Component for which a row counts as wrong if it times out a second
        time, after it was asked once more (`host.score`); None: a row that
        times out is unscored.
    """
    if again is None:
      return self.scorer.score(*rows)
    from grpo_jax.rewards.workers import host

    return host.score(self.scorer, *rows, correct=again)


@dataclasses.dataclass(frozen=True)
class Derived:
  """A reward that is computed from the others and from the tokens.

  Attributes:
    function: See `rewards/derived.py`.
    sources: Names of the components that it needs.
  """

  name: str
  function: Callable[[derived_lib.RewardInputs], jax.Array]
  sources: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModelReward(abc.ABC):
  """A reward by a model of the run.

  Attributes:
    view: (parameters of all models) -> view of the model; None until a phase
      sets it.
    plan: Division of rows into micro-batches; None until a phase sets it.
  """

  name: str
  model: str
  view: Callable[[models.Params], models.ModelView] | None = None
  plan: UpdatePlan | None = None
  may_fail: ClassVar[bool] = False  # NaN means that a row is unscored.

  @abc.abstractmethod
  def score(
    self, params: models.Params, prompts: Prompts, rollout: Rollout
  ) -> tuple[Components, tuple[jax.Array, jax.Array] | None]:
    """Scores each completion, and its steps if the model scores steps."""


@dataclasses.dataclass(frozen=True)
class RewardModel(ModelReward):
  """A reward that is the score of a reward model of the run.

  Attributes:
    steps: Steps that a process reward model scores; None if the model scores
      whole completions.
  """

  steps: reward_models.Steps | None = None

  def score(
    self, params: models.Params, prompts: Prompts, rollout: Rollout
  ) -> tuple[Components, tuple[jax.Array, jax.Array] | None]:
    """See `ModelReward.score`."""
    assert self.view is not None
    assert self.plan is not None
    outputs = reward_models.values(
      self.plan, self.view(params), prompts, rollout
    )
    if self.steps is None:
      score = reward_models.at_last(outputs, rollout.written)
      return {self.name: score}, None
    ends = self.steps.ends_of(rollout)
    p_right = masked.select(jax.nn.sigmoid(outputs), ends)
    return {self.name: self.steps.score(p_right, ends)}, (p_right, ends)


@dataclasses.dataclass(frozen=True)
class RemoteJudge:
  """A model that is asked over HTTP.

  Attributes:
    step_timeout_s: Timeout for all rows of a step, seconds.
  """

  name: str
  service: judge_service.JudgeService
  step_timeout_s: float

  def score(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    extras: Sequence[Mapping[str, Any]],
  ) -> host.WorkerScores:
    """See `JudgeService.score`."""
    return self.service.score(
      self.name, prompts, completions, extras, self.step_timeout_s
    )


# Rewards by models, which do not decide if an answer is right.
_MODELS = (ModelReward, RemoteJudge)


@dataclasses.dataclass(frozen=True)
class RewardSum:
  """Rewards that are added up.

  Attributes:
    rewards: The rewards; no two have a component of the same name.
    weights: Weight of each component; one without a weight is watched, not
      rewarded.
    correct: The component whose values of at least 1 mark a right answer.
    schedules: Weights that change: (steps of the phase, weights at these
      steps).
    domains: Numbers of the domains for which a component counts; a component
      that is not named counts for all.
  """

  rewards: tuple[InGraph | OnHost | ModelReward | RemoteJudge | Derived, ...]
  weights: Mapping[str, float]
  correct: str
  schedules: Mapping[str, tuple[Sequence[int], Sequence[float]]] = (
    dataclasses.field(default_factory=dict)
  )
  domains: Mapping[str, tuple[int, ...]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def on_host(self) -> OnHost | None:
    """The functions of text, if there are any."""
    parts = [reward for reward in self.rewards if isinstance(reward, OnHost)]
    return parts[0] if parts else None

  @property
  def service(self) -> judge_service.JudgeService | None:
    """The model over HTTP, or None."""
    services = [x.service for x in self.rewards if isinstance(x, RemoteJudge)]
    return services[0] if services else None

  @property
  def asks_host(self) -> bool:
    """True if a reward reads completions as text on the host."""
    return self.on_host is not None or self.service is not None

  @property
  def by_models(self) -> tuple[ModelReward | RemoteJudge, ...]:
    """The rewards that models give."""
    return tuple(x for x in self.rewards if isinstance(x, _MODELS))

  @property
  def is_host_alone(self) -> bool:
    """True if the total needs nothing but rewards of functions of text."""
    others = [x for x in self.rewards if not isinstance(x, OnHost)]
    return not (others or self.schedules or self.domains)

  def host_shapes(self, num_rows: int, num_slots: int) -> HostScores | None:
    """Shapes of the scores that the host gives; None if it gives none."""
    if not self.asks_host:
      return None

    def of_rows(kind: Any, *shape: int) -> Any:
      return jax.ShapeDtypeStruct((num_rows, *shape), kind)

    names = [x.name for x in self.rewards if isinstance(x, RemoteJudge)]
    steps = None
    if self.on_host is not None:
      scorer = self.on_host.scorer
      names += scorer.functions
      if scorer.has_steps:
        steps = of_rows(jnp.float32, num_slots), of_rows(jnp.bool_, num_slots)
    components = {name: of_rows(jnp.float32) for name in names}
    return HostScores(components, of_rows(jnp.bool_), steps)

  @property
  def derived(self) -> frozenset[str]:
    """Names of the derived rewards."""
    return frozenset(x.name for x in self.rewards if isinstance(x, Derived))

  def without_models(self) -> RewardSum:
    """The sum without rewards by models: the other rewards do not change.

    If only models were rewarded, the component of right answers is the reward.
    """
    names = {reward.name for reward in self.by_models}
    for reward in self.rewards:  # A derived reward comes after its sources.
      if isinstance(reward, Derived) and names & {*reward.sources}:
        names.add(reward.name)
    fields: dict[str, Any] = {
      field: {k: v for k, v in getattr(self, field).items() if k not in names}
      for field in ("weights", "schedules", "domains")
    }
    if names and not any(fields["weights"].values()):
      fields |= {"weights": {self.correct: 1.0}, "schedules": {}}
    rewards = tuple(
      x for x in self.rewards if getattr(x, "name", "") not in names
    )
    return dataclasses.replace(self, rewards=rewards, **fields)

  def weighted(self, weights: Mapping[str, float]) -> RewardSum:
    """The same rewards with other weights, which stay constant."""
    return dataclasses.replace(self, weights=weights, schedules={})

  def ranked_by(self, model: str) -> RewardSum:
    """Makes a model's score the only reward; the other rewards are watched."""
    ranker = RewardModel("ranked_by", model)
    return dataclasses.replace(
      self.weighted({ranker.name: 1.0}), rewards=(*self.rewards, ranker)
    )

  def bound(
    self,
    views: Mapping[str, Callable[[models.Params], models.ModelView]],
    plan: UpdatePlan,
    steps: reward_models.Steps | None = None,
  ) -> RewardSum:
    """Gives the rewards by models the models of a phase.

    Args:
      steps: Steps that a process reward model scores; None: it scores whole
        completions.
    """
    rewards = tuple(
      dataclasses.replace(
        reward, view=views[reward.model], plan=plan, steps=steps
      )
      if isinstance(reward, RewardModel)
      else dataclasses.replace(reward, view=views[reward.model], plan=plan)
      if isinstance(reward, ModelReward)
      else reward
      for reward in self.rewards
    )
    return dataclasses.replace(self, rewards=rewards)

  def host_scores(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[int]],
    again: str | None = None,
  ) -> host.WorkerScores:
    """Scores B rows with functions of text, and with a model over HTTP.

    In a phase that leaves out the model, there may be none of them.

    Args:
      prompts, completions, ids, extras, tokens: See `HostScorer.score`.
      again: See `OnHost.score`.
    """
    from grpo_jax.rewards.workers import host

    if not self.asks_host:
      nobody = np.zeros(len(completions), bool)
      return host.WorkerScores({}, nobody, {}, [], {})
    scores = []
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      futures = [
        threads.submit(reward.score, prompts, completions, extras)
        for reward in self.rewards
        if isinstance(reward, RemoteJudge)
      ]
      if self.on_host is not None:
        rows = prompts, completions, ids, extras, tokens
        scores.append(self.on_host.score(*rows, again=again))
      scores += [future.result() for future in futures]
    return host.together(scores)

  def score(
    self,
    params: models.Params,
    prompts: Prompts,
    rollout: Rollout,
    host_scores: HostScores | None = None,
    step: jax.Array | None = None,
  ) -> Scored:
    """Scores completions with all rewards, and adds these up.

    Args:
      prompts: P prompts.
      rollout: B completions of them.
      host_scores: The host's scores of them, if it is asked.
      step: Step of the phase, for weights that change; None: they do not.
    """
    components: dict[str, jax.Array] = {}
    failed, steps, steps_of_member = None, None, None
    if self.asks_host:
      assert host_scores is not None
      components |= host_scores.components
      failed, steps = host_scores.failed, host_scores.steps
    for reward in self.rewards:
      if isinstance(reward, ModelReward):
        scores, of_steps = reward.score(params, prompts, rollout)
        components |= scores
        steps_of_member = of_steps or steps_of_member
        if reward.may_fail:
          unread = jnp.isnan(scores[reward.name])
          unread &= self._applies(reward.name, prompts, rollout)
          failed = unread if failed is None else failed | unread
      elif isinstance(reward, InGraph):
        components |= reward.components(prompts, rollout)
        if reward.steps is not None:
          steps = reward.steps(prompts, rollout)
    components = self._of_domains(components, prompts, rollout)
    for reward in self.rewards:
      if isinstance(reward, Derived):
        value = self._derived(reward, components, prompts, rollout)
        values = {reward.name: value}
        components |= self._of_domains(values, prompts, rollout)
    scored = derived_lib.combine(
      components,
      {name: self._weight(name, step) for name in components},
      failed,
      self.correct,
    )
    # Steps of a process reward model come before those of a verifier.
    steps = steps_of_member or steps
    if steps is None:
      return scored
    return dataclasses.replace(
      scored, step_rewards=steps[0], step_mask=steps[1]
    )

  def _derived(
    self,
    reward: Derived,
    components: Components,
    prompts: Prompts,
    rollout: Rollout,
  ) -> jax.Array:  # [B]
    """A derived reward; all contexts of a rollout have that of the last one."""
    traces, last = rollout.traces, compaction.last_rows(rollout)
    if traces is not None:
      index = compaction.last_index(traces)
      components = {name: x[index] for name, x in components.items()}
    args = derived_lib.inputs_of(components, self.correct, prompts, last)
    values = reward.function(args)
    return values if traces is None else values[traces.id]

  def _of_domains(
    self, components: Components, prompts: Prompts, rollout: Rollout
  ) -> dict[str, jax.Array]:  # each [B]
    """The components, NaN for prompts of domains that they do not count for."""
    return {
      name: jnp.where(self._applies(name, prompts, rollout), values, jnp.nan)
      if name in self.domains
      else values
      for name, values in components.items()
    }

  def _applies(
    self, name: str, prompts: Prompts, rollout: Rollout
  ) -> jax.Array:  # [B] bool
    """The mask of rows for whose domain a component counts."""
    if name not in self.domains:
      return jnp.ones(len(rollout.tokens), bool)
    domain = prompts.extras["domain"][rollout.prompt_index]
    return jnp.isin(domain, jnp.array(self.domains[name]))

  def _weight(self, name: str, step: jax.Array | None) -> Any:
    """The weight of a component at a step."""
    if step is None or name not in self.schedules:
      return self.weights.get(name, 0.0)
    steps, weights = self.schedules[name]
    return jnp.interp(step, jnp.array(steps), jnp.array(weights))

  def score_on_host(self, scores: HostScores) -> Scored:
    """Scores rows by the host's scores alone; returns NumPy arrays."""
    assert self.is_host_alone
    nothing: Any = None
    return jax.device_get(self.score(nothing, nothing, nothing, scores))

  def close(self) -> None:
    """Ends the worker processes, and connections."""
    if self.on_host is not None:
      self.on_host.scorer.close()
    if self.service is not None:
      self.service.close()


def make(
  config: config_lib.RunConfig,
  verifier: InGraph | OnHost | None,
  correct: str | None = None,
  names: tuple[str, ...] = (),
) -> RewardSum:
  """Makes the reward of a run.

  Args:
    verifier: Verifier of completions; None for a problem that is played in
      sessions which do not exist yet.
    correct: The component that marks right answers; None: the one that the
      config names.
    names: Names of the domains of prompts, by number.

  Raises:
    ValueError: A reward is for a domain that does not exist.
  """
  rewards = config.rewards
  parts: list[Any] = [] if verifier is None else [verifier]
  if REWARD_MODEL in rewards.functions:
    parts.append(RewardModel(REWARD_MODEL, "reward"))
  of_domains = _domains(config, names)
  if config.judge.service.url and JUDGE in rewards.functions:
    client = service(config, of_domains.get(JUDGE))
    parts.append(RemoteJudge(JUDGE, client, rewards.step_timeout_s))
  for name in rewards.names:
    if name in derived_lib.DERIVED:
      options = rewards.arguments(name)
      derived_lib.check_options(name, options)
      function = functools.partial(
        derived_lib.DERIVED[name],
        **jit.numbers(f"rewards.options.{name}", options),
      )
      parts.append(Derived(name, function, derived_lib.sources(options)))
  marker = rewards.right if correct is None else correct
  if marker in derived_lib.DERIVED:
    raise ValueError(
      f"config.rewards.functions={rewards.functions}: what is right is not for"
      f" {marker!r} to say, which is made of it; name a verifier first, or as"
      " config.rewards.correct."
    )
  schedules: dict[str, Any] = {
    name: tuple(zip(*jit.schedule(name, points), strict=True))
    for name, points in rewards.schedules.items()
  }
  return RewardSum(
    tuple(parts),
    jit.numbers(
      "rewards.weights", dict(zip(rewards.names, rewards.weights, strict=True))
    ),
    marker,
    schedules,
    of_domains,
  )


def _domains(
  config: config_lib.RunConfig, names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
  """The numbers of the domains of each reward that is for some alone."""
  return {
    name: domains.numbers(names, wanted, f"config.rewards.domains[{name!r}]")
    for name, wanted in config.rewards.domains.items()
  }


def service(
  config: config_lib.RunConfig, of_domains: tuple[int, ...] | None = None
) -> judge_service.JudgeService:
  """Makes the client of a judge over HTTP."""
  from grpo_jax.rewards.workers import judge_service

  judge = config.judge
  return judge_service.JudgeService(
    judge.service.url,
    judge.model,
    judge.rubric,
    judge.verdicts,
    judge.marker,
    max_tokens=judge.max_new_tokens,
    key_variable=judge.service.key_variable,
    options=judge.service.options,
    limits=judge_service.JudgeLimits(
      judge.service.timeout_s,
      judge.service.max_tries,
      judge.service.max_calls,
      judge.service.max_in_flight,
    ),
    domains=of_domains,
  )


def on_host(
  config: config_lib.RunConfig,
  tokenizer: tuple[str, list, dict],
  names: tuple[str, ...] = (),
) -> OnHost:
  """Starts the config's functions of text in processes of their own.

  Args:
    tokenizer: Import path and arguments of the tokenizer, for functions that
      ask for it.
    names: Names of the domains of prompts, by number.

  Raises:
    ValueError: A reward is for a domain that does not exist.
  """
  from grpo_jax.rewards.workers import host

  rewards = config.rewards
  functions = of_text(config)
  wanted = _domains(config, names)
  context = registry.Context(
    tokenizer=tokenizer,
    answer_after=rewards.answer_after,
    sandbox=rewards.sandbox,
    conversational=config.data.template == "chat",
  )
  weights = dict(zip(rewards.names, rewards.weights, strict=True))
  scorer = host.HostScorer(
    functions,
    {name: weights[name] for name in functions},
    row_timeout_s=rewards.row_timeout_s,
    step_timeout_s=rewards.step_timeout_s,
    num_workers=rewards.num_workers,
    variables=rewards.variables,
    worker_memory_gib=rewards.worker_memory_gib,
    options={name: rewards.arguments(name) for name in functions},
    steps=rewards.steps,
    context=context,
    domains={name: wanted[name] for name in functions if name in wanted},
  )
  correct = registry.load_function(functions.get(rewards.right, ACCURACY))
  if registry.kind(correct).sees_group:
    scorer.close()
    raise ValueError(
      f"config.rewards.functions={rewards.functions}: what is right is not for"
      f" {rewards.right!r} to say, which compares the completions of a prompt;"
      " name a verifier first, or as config.rewards.correct, with a weight of 0"
      " if it is only watched."
    )
  return OnHost(scorer)


ACCURACY = "math_accuracy"


def token_scores(
  steps: Sequence[Sequence[tuple[int, float]]],
  texts: Sequence[str],
  tokens: np.ndarray,  # [B, T]
  mask: np.ndarray,  # [B, T] bool
  pieces: Sequence[bytes],
) -> tuple[np.ndarray, np.ndarray]:  # [B, T] float32, [B, T] bool
  """Assigns scores of steps of texts to the tokens with which the steps end.

  Args:
    steps: For each text pairs of (characters up to the end of a step, its
      score).

  Returns:
    The score of the step that ends with a token, and where steps end. If
    several steps end with one token, the lowest score counts.
  """
  scores = np.full(tokens.shape, np.inf, np.float32)
  for b, (of_row, text) in enumerate(zip(steps, texts, strict=True)):
    slots = np.flatnonzero(mask[b])
    if not of_row or not len(slots):
      continue
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends = np.cumsum([len(decoder.decode(pieces[tokens[b, t]])) for t in slots])
    ends -= max(ends[-1] - len(text), 0)  # Spaces dropped at the beginning.
    for end, score in of_row:
      place = min(int(np.searchsorted(ends, end)), len(slots) - 1)
      slot = slots[place]
      scores[b, slot] = min(scores[b, slot], score)
  is_end = np.isfinite(scores)
  return np.where(is_end, scores, 0.0).astype(np.float32), is_end


def of_text(config: config_lib.RunConfig) -> dict[str, str]:
  """The rewards that read text: name -> import path or built-in name.

  Raises:
    ValueError: There is no such reward.
  """
  others = {REWARD_MODEL, JUDGE, *derived_lib.DERIVED}
  names = zip(config.rewards.names, config.rewards.functions, strict=True)
  functions = {name: path for name, path in names if path not in others}
  if not functions:
    raise ValueError(
      f"config.rewards.functions={config.rewards.functions}: none of them reads"
      " what was written; add a verifier, with a weight of 0 if it is only to"
      f" say what is right: {', '.join(registry.BUILTIN)}, or an import"
      " path."
    )
  return functions


def check_names(
  who: str, config: config_lib.RunConfig, known: Sequence[str]
) -> None:
  """Checks rewards that a verifier of its own, or sessions, give by name.

  Raises:
    KeyError: It lacks one of them, or marks no right answers.
    ValueError: A setting is for functions of text.
  """
  rewards, others = config.rewards, {REWARD_MODEL, JUDGE, *derived_lib.DERIVED}
  options = {k: v for k, v in rewards.options.items() if k not in others}
  for field, value in ("options", options), ("steps", rewards.steps):
    if value:
      raise ValueError(
        f"config.rewards.{field}={value!r} is for functions of text, and {who}"
        " gives the rewards; leave it out, or set what that takes"
        " (config.data.task_options, config.environment.options)."
      )
  if unknown := {*config.rewards.functions} - {*known, *others}:
    hint = ""
    if any(":" in name for name in unknown):
      hint = (
        " A function of text scores records of text, as those of"
        ' config.data.source="jsonl"; what a task rewards is returned by its'
        " own verifier."
      )
    missing = sorted(
      name.rpartition(":")[2] if imports.is_object(name) else name
      for name in unknown
    )
    raise KeyError(
      f"config.rewards.functions: {who} has no component {missing}; it has"
      f" {sorted(known)}. Made of these and of the tokens:"
      f" {sorted(derived_lib.DERIVED)}.{hint}"
    )
  marker = config.rewards.correct or "accuracy"
  if marker not in {*known, *derived_lib.DERIVED}:
    raise KeyError(
      f"{who} has no component {marker!r}, which marks right answers in metrics"
      f" and evaluations; it has {sorted(known)}. Return it too, 1 for a right"
      " answer and 0 for a wrong one; or set config.rewards.correct to the"
      " reward that is 1 for right answers."
    )


def plain_extras(record: Mapping[str, Any]) -> dict[str, Any]:
  """The extras and the answer of a record, as Python values.

  If the prompt is a list of messages, it is added as `prompt_messages`.
  """
  extras = {**record["extras"], "answer": record["answer"]}
  if messages := getattr(record["prompt"], "messages", None):
    extras["prompt_messages"] = messages
  return {
    name: value.tolist() if hasattr(value, "tolist") else value
    for name, value in extras.items()
  }
