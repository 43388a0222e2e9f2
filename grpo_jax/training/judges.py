"""Who scores completions: functions of arrays, functions of text, members.

A `Sum` of judges is the verdict of a phase. What needs text is asked on the
host between two halves of a step; everything else is part of the compiled
program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.learning import members
from grpo_jax.learning.micro_batches import UpdatePlan
from grpo_jax.rewards import combine, derived, host, retries
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
    source: Name of the component that it cannot do without; or empty.
  """

  name: str
  function: Callable[[derived.Seen], jax.Array]
  source: str = ""


@dataclasses.dataclass(frozen=True)
class ByMember:
  """A model of the run that scores completions: a reward model.

  Attributes:
    name: Name of the component.
    member: Name of the member.
    view: How the member is run; None until a phase has it.
    plan: How rows are run; as `view`.
  """

  name: str
  member: str
  view: Callable[[members.Params], members.View] | None = None
  plan: UpdatePlan | None = None

  def components(
    self, params: members.Params, prompts: Prompts, rollout: Rollout
  ) -> Components:
    """The score of each completion."""
    assert self.view is not None
    assert self.plan is not None
    scores = members.scores(self.plan, self.view(params), prompts, rollout)
    return {self.name: scores}


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

  judges: tuple[InGraph | OnHost | ByMember | Derived, ...]
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
    """The judge that reads text, if there is one."""
    found = [judge for judge in self.judges if isinstance(judge, OnHost)]
    return found[0] if found else None

  @property
  def by_members(self) -> tuple[ByMember, ...]:
    """The judges that are models of the run."""
    return tuple(x for x in self.judges if isinstance(x, ByMember))

  @property
  def is_host_alone(self) -> bool:
    """Whether the verdict needs nothing but what the host says."""
    others = [x for x in self.judges if not isinstance(x, OnHost)]
    return not (others or self.schedules or self.domains)

  def without_members(self) -> Sum:
    """The judges that are no models: what is true does not change."""
    gone = {judge.name for judge in self.by_members}
    gone |= {
      judge.name
      for judge in self.judges
      if isinstance(judge, Derived) and judge.source in gone
    }
    kept: dict[str, Any] = {
      field: {k: v for k, v in getattr(self, field).items() if k not in gone}
      for field in ("weights", "schedules", "domains")
    }
    judges = tuple(x for x in self.judges if getattr(x, "name", "") not in gone)
    return dataclasses.replace(self, judges=judges, **kept)

  def bound(
    self,
    views: Mapping[str, Callable[[members.Params], members.View]],
    plan: UpdatePlan,
  ) -> Sum:
    """These judges with the members of a phase."""
    judges = tuple(
      dataclasses.replace(judge, view=views[judge.member], plan=plan)
      if isinstance(judge, ByMember)
      else judge
      for judge in self.judges
    )
    return dataclasses.replace(self, judges=judges)

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
    failed, steps = None, None
    for judge in self.judges:
      if isinstance(judge, OnHost):
        assert said is not None
        components |= said.components
        failed = said.failed
        steps = said.steps or steps
      elif isinstance(judge, ByMember):
        components |= judge.components(params, prompts, rollout)
      elif isinstance(judge, InGraph):
        components |= judge.components(prompts, rollout)
        if judge.steps is not None:
          steps = judge.steps(prompts, rollout)
    for judge in self.judges:
      if isinstance(judge, Derived):
        seen = derived.seen(components, self.correct, rollout)
        components[judge.name] = judge.function(seen)
    scored = combine.combine(
      self._of_domains(components, prompts, rollout),
      {name: self._weight(name, step) for name in components},
      failed,
      self.correct,
    )
    if steps is None:
      return scored
    return dataclasses.replace(
      scored, step_rewards=steps[0], step_mask=steps[1]
    )

  def _of_domains(
    self, components: Components, prompts: Prompts, rollout: Rollout
  ) -> Components:
    """The components, where they are for the domain of the prompt."""
    if not self.domains:
      return components
    domain = prompts.extras["domain"][rollout.prompt_index]
    return {
      name: jnp.where(
        jnp.isin(domain, jnp.array(self.domains[name])), values, jnp.nan
      )
      if name in self.domains
      else values
      for name, values in components.items()
    }

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
    """Ends the worker processes."""
    if self.on_host is not None:
      self.on_host.scorer.close()
