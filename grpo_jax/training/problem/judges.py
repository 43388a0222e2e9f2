"""Who scores completions: functions of arrays, functions of text, members.

A `Sum` of judges is the verdict of a phase. Functions of text are asked on the
host between two halves of a step; everything else, also what reads text as
arrays of bytes, is part of the compiled program.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.ops import masked
from grpo_jax.rewards import combine, derived
from grpo_jax.rewards.workers import host, judge_service, retries
from grpo_jax.step import members, reward_models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.problem import readers
from grpo_jax.types import Prompts, Rollout, Scored

Components = Mapping[str, jax.Array]  # each [B]


@dataclasses.dataclass(frozen=True)
class InGraph:
  """A verifier of arrays.

  Attributes:
    components: (prompts, rollout) -> rewards by name; NaN: does not apply.
    steps: (prompts, rollout) -> scores of steps and where steps end, each
      [B, T]; None if it judges whole completions only.
  """

  components: Callable[[Prompts, Rollout], Components]
  steps: Callable[[Prompts, Rollout], tuple[jax.Array, jax.Array]] | None = None


def of_episodes(prompts: Prompts, rollout: Rollout) -> Components:
  """What environments say of their episodes."""
  del prompts
  assert rollout.scores is not None
  return rollout.scores


class Said(NamedTuple):
  """What the host says of rows.

  Attributes:
    components: Rewards by name; NaN: does not apply.
    failed: Rows that could not be scored.
    steps: Scores of steps and where steps end; None if nobody scores steps.
  """

  components: Components
  failed: jax.Array  # [B] bool
  steps: tuple[jax.Array, jax.Array] | None = None  # each [B, T]


@dataclasses.dataclass(frozen=True)
class OnHost:
  """Verifiers of text, in worker processes of the host.

  Attributes:
    scorer: The processes.
  """

  scorer: host.HostScorer

  def ask(
    self, *rows: Sequence[Any], again: str | None = None
  ) -> host.HostScores:
    """What they say of B rows.

    Args:
      rows: See `HostScorer.score`.
      again: Rows that time out are asked once more, and are then wrong by this
        component (`retries.py`); None: they are unscored.
    """
    if again is None:
      return self.scorer.score(*rows)
    return retries.score(self.scorer, *rows, correct=again)


@dataclasses.dataclass(frozen=True)
class Derived:
  """A reward that is made of the others and of the tokens.

  Attributes:
    name: Name of the component.
    function: See `rewards/derived.py`.
    sources: Names of the components that it cannot do without.
  """

  name: str
  function: Callable[[derived.Seen], jax.Array]
  sources: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ByMember:
  """A model of the run that scores completions: a reward model.

  Attributes:
    name: Name of the component.
    member: Name of the member.
    steps: Of a process reward model, what its steps are; None of one that
      scores whole completions.
    view: How the member is run; None until a phase has it.
    plan: How rows are run; as `view`.
  """

  name: str
  member: str
  steps: reward_models.Steps | None = None
  view: Callable[[members.Params], members.View] | None = None
  plan: UpdatePlan | None = None

  def said(
    self, params: members.Params, prompts: Prompts, rollout: Rollout
  ) -> tuple[Components, tuple[jax.Array, jax.Array] | None]:
    """The score of each completion, and scores of steps if it has any."""
    assert self.view is not None
    assert self.plan is not None
    values = reward_models.values(
      self.plan, self.view(params), prompts, rollout
    )
    if self.steps is None:
      score = reward_models.at_last(values, rollout.written)
      return {self.name: score}, None
    ends = self.steps.found(rollout)
    right = masked.select(jax.nn.sigmoid(values), ends)
    return {self.name: self.steps.score(right, ends)}, (right, ends)


@dataclasses.dataclass(frozen=True)
class ByService:
  """A model that is asked over HTTP.

  Attributes:
    name: Name of the component.
    service: Who is asked.
    step_timeout_s: For all rows of a step, seconds.
  """

  name: str
  service: judge_service.JudgeService
  step_timeout_s: float

  def ask(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    extras: Sequence[Mapping[str, Any]],
  ) -> host.HostScores:
    """See `JudgeService.score`."""
    return self.service.score(
      self.name, prompts, completions, extras, self.step_timeout_s
    )


# Who says what is not for it to say what is right.
_MODELS = (ByMember, readers.ByReading, ByService)


@dataclasses.dataclass(frozen=True)
class Sum:
  """Judges whose rewards add up.

  Attributes:
    judges: They have no name of a component in common.
    weights: Weight of each component; one without is watched, not rewarded.
    correct: The component whose values of at least 1 mark a right answer.
    schedules: Weights that change: (steps of the phase, weights at them).
    domains: Of some components the domains of prompts that they are for.
  """

  judges: tuple[
    InGraph | OnHost | ByMember | readers.ByReading | ByService | Derived, ...
  ]
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
    """The judge that runs functions of text, if there is one."""
    found = [judge for judge in self.judges if isinstance(judge, OnHost)]
    return found[0] if found else None

  @property
  def service(self) -> judge_service.JudgeService | None:
    """The model that is asked over HTTP, if there is one."""
    found = [x.service for x in self.judges if isinstance(x, ByService)]
    return found[0] if found else None

  @property
  def asks_host(self) -> bool:
    """Whether completions have to be text for a judge."""
    return self.on_host is not None or self.service is not None

  @property
  def by_models(
    self,
  ) -> tuple[ByMember | readers.ByReading | ByService, ...]:
    """The judges that are models."""
    return tuple(x for x in self.judges if isinstance(x, _MODELS))

  @property
  def is_host_alone(self) -> bool:
    """Whether the verdict needs nothing but what the host says."""
    others = [x for x in self.judges if not isinstance(x, OnHost)]
    return not (others or self.schedules or self.domains)

  def said_shapes(self, num_rows: int, num_slots: int) -> Said | None:
    """Shapes of what the host says of so many rows; None: it is not asked."""
    if not self.asks_host:
      return None

    def of_rows(kind: Any, *shape: int) -> Any:
      return jax.ShapeDtypeStruct((num_rows, *shape), kind)

    names = [x.name for x in self.judges if isinstance(x, ByService)]
    steps = None
    if self.on_host is not None:
      scorer = self.on_host.scorer
      names += scorer.functions
      if scorer.has_steps:
        steps = of_rows(jnp.float32, num_slots), of_rows(jnp.bool_, num_slots)
    components = {name: of_rows(jnp.float32) for name in names}
    return Said(components, of_rows(jnp.bool_), steps)

  @property
  def derived(self) -> frozenset[str]:
    """Names of the rewards that are made of others."""
    return frozenset(x.name for x in self.judges if isinstance(x, Derived))

  def without_models(self) -> Sum:
    """The judges that are no models: what is true does not change.

    Where a model alone was rewarded, what is right is the reward.
    """
    gone = {judge.name for judge in self.by_models}
    for judge in self.judges:  # What is made of another comes after it.
      if isinstance(judge, Derived) and gone & {*judge.sources}:
        gone.add(judge.name)
    kept: dict[str, Any] = {
      field: {k: v for k, v in getattr(self, field).items() if k not in gone}
      for field in ("weights", "schedules", "domains")
    }
    if gone and not any(kept["weights"].values()):
      kept |= {"weights": {self.correct: 1.0}, "schedules": {}}
    judges = tuple(x for x in self.judges if getattr(x, "name", "") not in gone)
    return dataclasses.replace(self, judges=judges, **kept)

  def weighted(self, weights: Mapping[str, float]) -> Sum:
    """These judges with other weights, which do not change."""
    return dataclasses.replace(self, weights=weights, schedules={})

  def ranked_by(self, member: str) -> Sum:
    """A member whose score is the reward, while these judges watch."""
    asked = ByMember("ranked_by", member)
    return dataclasses.replace(
      self.weighted({asked.name: 1.0}), judges=(*self.judges, asked)
    )

  def bound(
    self,
    views: Mapping[str, Callable[[members.Params], members.View]],
    plan: UpdatePlan,
    steps: reward_models.Steps | None = None,
  ) -> Sum:
    """These judges with the members of a phase.

    Args:
      views: How members are run, by name.
      plan: How rows are run.
      steps: Of a process reward model; None: it scores whole completions.
    """
    judges = tuple(
      dataclasses.replace(
        judge, view=views[judge.member], plan=plan, steps=steps
      )
      if isinstance(judge, ByMember)
      else dataclasses.replace(judge, view=views[judge.member], plan=plan)
      if isinstance(judge, readers.ByReading)
      else judge
      for judge in self.judges
    )
    return dataclasses.replace(self, judges=judges)

  def ask(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[int]],
    again: str | None = None,
  ) -> host.HostScores:
    """What functions of text, and a model over HTTP, say of B rows.

    Args:
      prompts, completions, ids, extras, tokens: See `HostScorer.score`.
      again: See `OnHost.ask`.
    """
    assert self.asks_host
    found = []
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      asked = [
        threads.submit(judge.ask, prompts, completions, extras)
        for judge in self.judges
        if isinstance(judge, ByService)
      ]
      if self.on_host is not None:
        rows = prompts, completions, ids, extras, tokens
        found.append(self.on_host.ask(*rows, again=again))
      found += [future.result() for future in asked]
    return host.together(found)

  def score(
    self,
    params: members.Params,
    prompts: Prompts,
    rollout: Rollout,
    said: Said | None = None,
    step: jax.Array | None = None,
  ) -> Scored:
    """The verdict.

    Args:
      params: Parameters of all members, by name.
      prompts: P prompts.
      rollout: B completions of them.
      said: What the host says of them, if it is asked.
      step: Of the phase, for weights that change; None: they do not.
    """
    components: dict[str, jax.Array] = {}
    failed, steps, steps_of_member = None, None, None
    if self.asks_host:
      assert said is not None
      components |= said.components
      failed, steps = said.failed, said.steps
    for judge in self.judges:
      if isinstance(judge, ByMember):
        found, of_steps = judge.said(params, prompts, rollout)
        components |= found
        steps_of_member = of_steps or steps_of_member
      elif isinstance(judge, readers.ByReading):
        worth = judge.verdicts(params, prompts, rollout)
        components[judge.name] = worth
        unread = jnp.isnan(worth) & self._applies(judge.name, prompts, rollout)
        failed = unread if failed is None else failed | unread
      elif isinstance(judge, InGraph):
        components |= judge.components(prompts, rollout)
        if judge.steps is not None:
          steps = judge.steps(prompts, rollout)
    for judge in self.judges:
      if isinstance(judge, Derived):
        seen = derived.seen(components, self.correct, prompts, rollout)
        components[judge.name] = judge.function(seen)
    scored = combine.combine(
      self._of_domains(components, prompts, rollout),
      {name: self._weight(name, step) for name in components},
      failed,
      self.correct,
    )
    # A process reward model is there to be asked.
    steps = steps_of_member or steps
    if steps is None:
      return scored
    return dataclasses.replace(
      scored, step_rewards=steps[0], step_mask=steps[1]
    )

  def _of_domains(
    self, components: Components, prompts: Prompts, rollout: Rollout
  ) -> Components:
    """The components, where they are for the domain of the prompt."""
    return {
      name: jnp.where(self._applies(name, prompts, rollout), values, jnp.nan)
      if name in self.domains
      else values
      for name, values in components.items()
    }

  def _applies(
    self, name: str, prompts: Prompts, rollout: Rollout
  ) -> jax.Array:  # [B] bool
    """Whether a component is for the domain of the prompt."""
    if name not in self.domains:
      return jnp.ones(len(rollout.tokens), bool)
    domain = prompts.extras["domain"][rollout.prompt_index]
    return jnp.isin(domain, jnp.array(self.domains[name]))

  def _weight(self, name: str, step: jax.Array | None) -> Any:
    """Weight of a component at a step."""
    if step is None or name not in self.schedules:
      return self.weights.get(name, 0.0)
    steps, weights = self.schedules[name]
    return jnp.interp(step, jnp.array(steps), jnp.array(weights))

  def score_on_host(self, said: Said) -> Scored:
    """The verdict of the host alone, as NumPy arrays."""
    assert self.is_host_alone
    nothing: Any = None
    return jax.device_get(self.score(nothing, nothing, nothing, said))

  def close(self) -> None:
    """Ends the worker processes, and connections."""
    if self.on_host is not None:
      self.on_host.scorer.close()
    if self.service is not None:
      self.service.close()
