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

from grpo_jax.learning import members
from grpo_jax.learning.micro_batches import UpdatePlan
from grpo_jax.rewards import combine, host, retries
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
  """

  components: Components
  failed: jax.Array  # [B] bool


@dataclasses.dataclass(frozen=True)
class OnHost:
  """Verifiers of text, in worker processes of the host.

  Attributes:
    scorer: The processes.
  """

  scorer: host.HostScorer

  def ask(
    self,
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    again: str | None = None,
  ) -> tuple[Said, dict[str, int], list[str]]:
    """What they say of B rows, failures by kind, and example messages.

    Args:
      prompts, completions, ids, extras: See `HostScorer.score`.
      again: Rows that time out are asked once more, and are then wrong by this
        component (`retries.py`); None: they are unscored.
    """
    rows = prompts, completions, ids, extras
    if again is None:
      scores = self.scorer.score(*rows)
    else:
      scores = retries.score(self.scorer, *rows, correct=again)
    components: dict[str, Any] = dict(scores.components)
    failed: Any = scores.failed
    return Said(components, failed), scores.failures, scores.errors


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
  """

  judges: tuple[InGraph | OnHost | ByMember, ...]
  weights: Mapping[str, float]
  correct: str

  @property
  def on_host(self) -> OnHost | None:
    """The judge that reads text, if there is one."""
    found = [judge for judge in self.judges if isinstance(judge, OnHost)]
    return found[0] if found else None

  @property
  def by_members(self) -> tuple[ByMember, ...]:
    """The judges that are models of the run."""
    return tuple(x for x in self.judges if isinstance(x, ByMember))

  def without_members(self) -> Sum:
    """The judges that are no models: what is true does not change."""
    others = tuple(x for x in self.judges if not isinstance(x, ByMember))
    names = {judge.name for judge in self.by_members}
    return dataclasses.replace(
      self,
      judges=others,
      weights={k: v for k, v in self.weights.items() if k not in names},
    )

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
  ) -> Scored:
    """The verdict.

    Args:
      params: Parameters of all members, by name.
      prompts: P prompts.
      rollout: B completions of them.
      said: What the host says of them, if it is asked.
    """
    components: dict[str, jax.Array] = {}
    failed, steps = None, None
    for judge in self.judges:
      if isinstance(judge, OnHost):
        assert said is not None
        components |= said.components
        failed = said.failed
      elif isinstance(judge, ByMember):
        components |= judge.components(params, prompts, rollout)
      else:
        components |= judge.components(prompts, rollout)
        if judge.steps is not None:
          steps = judge.steps(prompts, rollout)
    scored = combine.combine(
      components,
      {name: self.weights.get(name, 0.0) for name in components},
      failed,
      self.correct,
    )
    if steps is None:
      return scored
    return dataclasses.replace(
      scored, step_rewards=steps[0], step_mask=steps[1]
    )

  def score_on_host(self, said: Said) -> Scored:
    """The verdict of the host alone, as NumPy arrays."""
    nothing: Any = None
    return jax.device_get(self.score(nothing, nothing, nothing, said))

  def close(self) -> None:
    """Ends the worker processes."""
    if self.on_host is not None:
      self.on_host.scorer.close()
