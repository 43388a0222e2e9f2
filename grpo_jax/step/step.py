"""A training step: sample, score, update, as named stages of one program.

`fused_step` is the whole step as a function from state to state, for
verifiers that are array functions. `sample_stage` and `learn_stage` are the
same stages with the host between them, for verifiers that need text; see
`training/phases/executors.py`. Everything that changes between steps is in
`TrainState`; everything fixed is in `Phase`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import routing
from grpo_jax.rollout import compaction, host_turns
from grpo_jax.step import dynamic_sampling, features, reward_models, transforms
from grpo_jax.step import metrics as metrics_lib
from grpo_jax.step import models as models_lib
from grpo_jax.step import rows as rows_lib
from grpo_jax.step import update as update_lib
from grpo_jax.step.dynamic_sampling import Groups
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.rows import StepRows
from grpo_jax.types import (
  Algorithm,
  EpisodeSampler,
  Metrics,
  Policy,
  Prompts,
  PyTree,
  Reward,
  Rollout,
  Rollouts,
  Sampler,
  Scored,
  TrainBatch,
  TrainState,
  row_arrays,
  set_fields,
)

if TYPE_CHECKING:
  from grpo_jax.step import partial as partial_lib


@dataclasses.dataclass(frozen=True)
class Phase:
  """The fixed functions and settings of a phase; its steps are built from them.

  Attributes:
    policy: The policy's model.
    algorithm: The objective.
    config: Config of the algorithm.
    plan: Epochs, minibatches, micro-batches.
    models: The models of the phase, by name. Their outputs for a batch are
      computed in this order.
    losses: Losses that train the models.
    sampler: Sampler of completions; None if completions come from data.
    reward: Reward of completions; None if completions come from data.
    keeps: Names of models that a later phase needs and this one does not use.
    constrain_rows: Keeps row-indexed arrays sharded over the mesh.
    constrain_trained: Keeps {model: its trained leaves} sharded over the mesh.
    max_rounds: R. A step gets R · P prompts and trains on P groups, which it
      draws in up to R rounds; see `dynamic_sampling.py`.
    when_short: Choice for a step with fewer groups; see `dynamic_sampling.py`.
    staleness: Most updates between the parameters that draw a rollout and the
      parameters that it trains.
    partial: Settings for cutting rollouts at the end of a step; None: rollouts
      are drawn whole.
    schedule, waiting_groups, old_groups, prefix_values, guards: The optional
      features; see `features.py`.
    domains: Names of the domains of prompts that have metrics of their own.
    proxy: (component of the reward model, component of the verifier, True if
      scores are logits); None without a reward model.
    consistent: Component that tells if answers follow from the reasoning, or
      empty.
    transforms: Functions of scored batches; see `transforms.py`.
  """

  policy: Policy
  algorithm: Algorithm
  config: Any
  plan: UpdatePlan
  models: dict[str, models_lib.Model]
  losses: tuple[update_lib.Loss, ...]
  sampler: Sampler | EpisodeSampler | None = None
  reward: Reward | None = None
  keeps: frozenset[str] = frozenset()
  constrain_rows: Callable[[PyTree], PyTree] = lambda rows: rows
  constrain_trained: Callable[[PyTree], PyTree] = lambda trained: trained
  max_rounds: int = 1
  when_short: str = "fewer"
  staleness: int = 0
  partial: partial_lib.Partial | None = None
  schedule: features.Schedule = features.Schedule()
  waiting_groups: features.WaitingGroups = features.WaitingGroups()
  old_groups: features.OldGroups = features.OldGroups()
  prefix_values: features.PrefixValues = features.PrefixValues()
  guards: features.StepGuards = features.StepGuards()
  domains: tuple[str, ...] = ()
  proxy: tuple[str, str, bool] | None = None
  consistent: str = ""
  transforms: tuple[transforms.Transform, ...] = ()

  def __post_init__(self):
    required = options.needs(self.algorithm, self.config)
    if required & {"routing", "router"} and not self.policy.num_experts:
      raise ValueError(
        f"algorithm {self.algorithm.name!r}: keep_routing, balance_coef and"
        " router_bias_step are about experts, and the model has none; leave"
        " them out, or use a model with experts (config.model.num_experts)."
      )
    if self.config.indexer_coef > 0 and not self.policy.has_indexers:
      raise ValueError(
        f"algorithm {self.algorithm.name!r}: indexer_coef is"
        f" {self.config.indexer_coef}, and the model has no indexers that are"
        " trained; set 0, or use a checkpoint with sparse attention, without"
        " adapters."
      )

  @property
  def update(self) -> update_lib.Update:
    """The gradient steps of the phase."""
    return update_lib.Update(
      self.plan,
      self.models,
      self.losses,
      self.algorithm.couples_group,
      self.constrain_rows,
      self.constrain_trained,
    )

  @property
  def num_ahead(self) -> int:
    """Number of batches whose rollouts are drawn before their step."""
    return 0 if self.partial is not None else self.staleness

  @property
  def is_told_prompts(self) -> bool:
    """True if the state determines the prompts of a step."""
    return self.schedule.chooses or self.partial is not None

  @property
  def trains_policy(self) -> bool:
    """True if a loss trains the policy."""
    return any("policy" in loss.trains for loss in self.losses)


def enter_phase(state: TrainState, phase: Phase, index: int) -> TrainState:
  """The state at the start of phase `index`, from the end of the phase before.

  This is a pure function, so that its `jax.eval_shape` describes a checkpoint.
  """
  _, algorithm_state = objective.init(phase.algorithm, phase.config)
  # Phases in between carry the reservoir too, so that they are one program,
  # however often they come.
  state = dataclasses.replace(
    state,
    phase=jnp.int32(index),
    phase_step=jnp.int32(0),
    algorithm_state=algorithm_state,
    guards=phase.guards.enter(),
    transforms=transforms.enter(phase.transforms),
    models=models_lib.enter(phase.models, state.models, phase.keeps),
    reservoir=phase.old_groups.enter(state.reservoir),
    schedule=phase.schedule.enter(state.key, state.step),
    waiting=None,
  )
  if phase.partial is not None:
    return phase.partial.enter(state, _rollout_shapes(state, phase))
  draw = functools.partial(draw_stage, state, phase=phase)
  return dataclasses.replace(state, waiting=phase.waiting_groups.enter(draw))


def _rollout_shapes(state: TrainState, phase: Phase) -> Rollout:
  """Shapes of a rollout of all places; runs no computation."""
  assert phase.partial is not None
  prompts, sampler = phase.partial.prompts, phase.sampler
  if isinstance(sampler, EpisodeSampler):
    return sampler.turns.shapes(
      state.params["policy"], prompts, state.key, sampler.score_names
    )
  draw = functools.partial(sample_stage, phase=phase)
  return jax.eval_shape(draw, state, prompts)


def step_keys(
  state: TrainState, ahead: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
  """The rollout key and the update key: functions of (seed, step) only.

  Args:
    ahead: Number of steps from that step to the step of the keys.
  """
  rollout_key, update_key = jax.random.split(
    jax.random.fold_in(state.key, state.step + ahead)
  )
  return rollout_key, update_key


def prepare(
  state: TrainState, batch: TrainBatch, key: jax.Array, *, phase: Phase
) -> TrainBatch:
  """Adds model outputs, advantages and all else that couples rows to a batch.

  Args:
    batch: B rows with rewards.
  """
  required = options.needs(phase.algorithm, phase.config)
  for model in phase.models.values():
    if model.fields is not None:
      batch = models_lib.with_fields(
        phase.plan, model, state.params, batch, phase.algorithm.couples_group
      )
  batch = phase.prefix_values.with_utilities(
    phase.plan,
    models_lib.policy_view(phase.policy, state.params),
    batch,
    phase.algorithm.couples_group,
  )
  with jax.named_scope("advantages"):
    batch = objective.prepare(
      phase.algorithm, phase.config, dataclasses.replace(batch, key=key)
    )
  if "router" in required:  # After rejection: over trained tokens only.
    load = routing.load(
      batch.anchor.routing, batch.mask, phase.policy.num_experts
    )
    share = load.total / jnp.maximum(load.weight, 1)
    batch = set_fields(
      batch, {"anchor.routing": None, "anchor.router_load": share}
    )
  return batch


def update(
  state: TrainState,
  batch: TrainBatch,
  key: jax.Array,
  trains: jax.Array | None = None,
  *,
  phase: Phase,
) -> tuple[TrainState, Metrics]:
  """Takes all gradient steps on one prepared batch; see `update.run`."""
  state, metrics = update_lib.run(phase.update, state, batch, key, trains)
  if phase.trains_policy and phase.config.router_bias_step > 0:
    before = state.params["policy"]
    moved = _with_biases(before, batch.anchor.router_load, phase.config)
    state = state.with_params(policy=update_lib.select(trains, moved, before))
  return state, metrics


def _with_biases(policy: PyTree, load: jax.Array, config: Any) -> PyTree:
  """Moves the biases of the policy's routers against the load [layers, E]."""
  frozen = policy["frozen"]
  if "router_bias" not in frozen:
    raise ValueError(
      f"router_bias_step={config.router_bias_step} moves the biases of the"
      " routers, and the model has none; set config.model.router_bias=True, or"
      " leave it 0."
    )
  bias = frozen["router_bias"]
  # Layers whose experts a table chooses come first, and have no biases.
  missing = (1 / load.shape[-1] - load)[-len(bias) :]
  bias = bias + config.router_bias_step * jnp.sign(missing)
  return {**policy, "frozen": {**frozen, "router_bias": bias}}


def sample_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  *,
  phase: Phase,
) -> Rollout:
  """Samples completions of the prompts from the current policy.

  Args:
    prompts: Prompts of the step, or of a later step.
    ahead: Steps from `state` to the step of the prompts, which gives the keys.
  """
  assert isinstance(phase.sampler, Sampler)
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("rollout"):
    rollout = phase.sampler.sample(state.params, prompts, rollout_key)
  return with_version(state, rollout)


def with_version(state: TrainState, rollout: Rollout) -> Rollout:
  """Adds the step of the state that drew a rollout."""
  version = jnp.where(rollout.completion_mask, state.step, 0)  # [B, T]
  return dataclasses.replace(rollout, version=version)


def greedy_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  *,
  phase: Phase,
) -> Rollout | None:
  """The greedy completion of each prompt, if the algorithm needs it."""
  assert isinstance(phase.sampler, Sampler)
  if phase.sampler.greedy is None:
    return None
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("greedy"):
    rollout = phase.sampler.greedy(state.params, prompts, rollout_key)
    return compaction.last_rows(rollout)


def learn_stage(
  state: TrainState,
  groups: Groups,
  trains: jax.Array | None = None,
  *,
  phase: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Updates on scored groups; jit with donated state.

  The order of a step: count results for the schedule of prompts, replay groups,
  make the batch, mix old completions in, cut segments for prefix values, keep
  samples for the schedule, apply transforms, leave out groups that guards
  refuse, compute model outputs and advantages (`prepare`), scale groups down,
  measure, take gradient steps, update the algorithm's state, draw the next
  prompts, hand rows out.

  Args:
    trains: True if the step trains, [] bool; None: it trains. If False,
      parameters, moments, averages, the algorithm's state and memories stay.
    phase: Functions of the phase; features that it does not use do nothing.

  Returns:
    The next state, the metrics, and the rows of the step.
  """
  feedback = phase.schedule.feedback(groups)
  _, key = step_keys(state)
  order_key, draw_key = jax.random.split(key)
  state, groups, replayed = phase.waiting_groups.mix(
    state, groups, key, phase.constrain_rows
  )
  fresh = _batch(state, groups, trains, phase)
  state, batch, is_old, reservoir = phase.old_groups.mix(state, fresh, key)
  batch = phase.prefix_values.with_candidates(groups.prompts, batch)
  batch = set_fields(batch, phase.constrain_rows(row_arrays(batch)))
  feedback = phase.schedule.with_samples(
    phase.plan, phase.policy, state, groups, batch, feedback
  )
  state, batch, transformed = transforms.advance(
    phase.transforms, state, batch, trains
  )
  batch, guarded = phase.guards.admit(state, groups, batch)
  batch = prepare(state, batch, draw_key, phase=phase)
  state, batch, guarded = phase.guards.weigh(state, batch, guarded)
  metrics = _before_update(state, groups, batch, phase) | reservoir | guarded
  state, updated = update(state, batch, order_key, trains, phase=phase)
  metrics |= updated
  num_rollouts = groups.rollout.is_last.sum()
  state = _with_algorithm_state(
    state, num_rollouts, batch, metrics, trains, phase
  )
  state, scheduled = phase.schedule.advance(state, feedback)
  batch = phase.old_groups.shown(fresh, batch, is_old)
  required = options.needs(phase.algorithm, phase.config)
  rows = rows_lib.step_rows(groups, batch, required)
  return state, metrics | scheduled | replayed | transformed, rows


def _batch(
  state: TrainState, groups: Groups, trains: jax.Array | None, phase: Phase
) -> TrainBatch:
  """The rows of groups before `prepare`; none is trained without `trains`."""
  batch = objective.make_train_batch(
    phase.algorithm,
    phase.config,
    groups.prompts,
    groups.rollout,
    groups.scored,
    state.algorithm_state,
    groups.greedy,
  )
  if trains is not None:
    batch = dataclasses.replace(batch, mask=batch.mask & trains)
  if "expected" in options.needs(phase.algorithm, phase.config):
    expected = phase.schedule.expected(state, groups)
    batch = set_fields(batch, {"scores.expected": expected})
  return batch


def _with_algorithm_state(
  state: TrainState,
  num_rollouts: jax.Array | int,
  batch: TrainBatch,
  metrics: Metrics,
  trains: jax.Array | None,
  phase: Phase,
) -> TrainState:
  """Updates the algorithm's state, in phases that train the policy."""
  if not phase.trains_policy:
    return state
  before = state.algorithm_state
  after = objective.update_state(
    phase.algorithm, phase.config, before, metrics, batch, num_rollouts
  )
  after = update_lib.select(trains, after, before)
  return dataclasses.replace(state, algorithm_state=after)


def _before_update(
  state: TrainState, groups: Groups, batch: TrainBatch, phase: Phase
) -> Metrics:
  """The metrics of a prepared batch before its update."""
  rollout, scored = groups.rollout, groups.scored
  metrics = metrics_lib.rollout_metrics(rollout, scored, batch)
  if rollout.corrections is not None:
    metrics |= metrics_lib.hint_metrics(rollout, scored)
  if phase.domains:
    metrics |= metrics_lib.domain_metrics(
      phase.domains, groups.prompts, rollout, scored, batch
    )
  metrics |= phase.prefix_values.metrics(batch)
  if batch.critic.values is not None:
    metrics |= metrics_lib.critic_metrics(batch)
  if not phase.losses:  # Completions are measured only; nothing is trained.
    del metrics["advantages/std"]
    metrics["tokens/trained"] = jnp.float32(0)
  if phase.proxy is not None:
    metrics |= reward_models.proxy_metrics(rollout, scored, *phase.proxy)
  if phase.consistent:
    metrics |= metrics_lib.quadrants(rollout, scored, phase.consistent)
  if phase.staleness or phase.waiting_groups.waits:
    metrics |= metrics_lib.staleness_metrics(rollout, state.step)
  return metrics


def rollout_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  host_scores: Any = None,
  *,
  phase: Phase,
) -> Rollouts:
  """Samples the completions of a step and corrects wrong rows.

  Args:
    state, prompts, ahead, phase: As in `sample_stage`.
    host_scores: As in `draw_stage`.
  """
  assert isinstance(phase.sampler, Sampler)
  rollout = sample_stage(state, prompts, ahead, phase=phase)
  greedy = greedy_stage(state, prompts, ahead, phase=phase)
  if phase.sampler.correct is not None:
    scored = _score(state, prompts, rollout, host_scores, phase)
    rollout_key, _ = step_keys(state, ahead)
    with jax.named_scope("verifier"):
      rollout = with_version(
        state,
        phase.sampler.correct(
          state.params, prompts, rollout_key, rollout, scored
        ),
      )
  return Rollouts(rollout, greedy)


def score_stage(
  state: TrainState,
  prompts: Prompts,
  rollouts: Rollouts,
  host_scores: Any = None,
  *,
  phase: Phase,
) -> Groups:
  """Scores the rollouts of a step; see `draw_stage`."""
  scored = _score(state, prompts, rollouts.rollout, host_scores, phase)
  baseline = None
  if rollouts.greedy is not None:
    baseline = _score(state, prompts, rollouts.greedy, host_scores, phase)
  return Groups(prompts, rollouts.rollout, scored, baseline)


def _score(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  host_scores: Any,
  phase: Phase,
) -> Scored:
  """Scores a rollout in the graph, at the state's step of the phase."""
  assert phase.reward is not None
  with jax.named_scope("verifier"):
    return phase.reward.score(
      state.params,
      prompts,
      rollout,
      host_scores=host_scores,
      step=state.phase_step,
    )


def draw_stage(
  state: TrainState, prompts: Prompts, host_scores: Any = None, *, phase: Phase
) -> Groups:
  """Samples and scores completions of the prompts.

  Args:
    host_scores: Scores of verifiers on the host, if only shapes are computed;
      None without such verifiers.
  """
  rollouts = rollout_stage(state, prompts, 0, host_scores, phase=phase)
  return score_stage(state, prompts, rollouts, host_scores, phase=phase)


def stale_step(
  state: TrainState, prompts: Prompts, rollouts: Rollouts, *, phase: Phase
) -> tuple[TrainState, Metrics, StepRows]:
  """Scores rollouts drawn ahead, and updates; jit with `donate_argnums=0`."""
  groups = score_stage(state, prompts, rollouts, phase=phase)
  return learn_stage(state, groups, phase=phase)


def fused_step(
  state: TrainState, prompts: Prompts, *, phase: Phase
) -> tuple[TrainState, Metrics, StepRows]:
  """Samples, scores and updates once; jit with `donate_argnums=0`."""
  if phase.partial is not None:
    return _partial_step(state, prompts, phase.partial, phase)
  draw = functools.partial(draw_stage, state, phase=phase)
  if phase.max_rounds == 1:
    groups, trains, of_rounds = draw(prompts), None, {}
  else:
    collected = dynamic_sampling.collect(
      draw,
      prompts,
      phase.max_rounds,
      phase.constrain_rows,
      phase.config.min_reward_std,
      dynamic_sampling.surplus(state.waiting),
    )
    state = dynamic_sampling.with_surplus(state, collected)
    groups, trains = dynamic_sampling.choose_groups(collected, phase.when_short)
    groups, of_rounds = (
      phase.constrain_rows(groups),
      dynamic_sampling.metrics(collected),
    )
  state, metrics, rows = learn_stage(state, groups, trains, phase=phase)
  return state, metrics | of_rounds, rows


def _partial_step(
  state: TrainState,
  prompts: Prompts,
  partial: partial_lib.Partial,
  phase: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Runs a step that extends rows by a few tokens; see `partial.py`."""
  with jax.named_scope("rollout"):
    advanced = partial.advance(state, prompts)
  rollout = advanced[1]
  greedy = greedy_stage(state, prompts, phase=phase)
  groups = score_stage(state, prompts, Rollouts(rollout, greedy), phase=phase)
  return _learn(prompts, advanced, groups.scored, groups.greedy, phase)


def partial_step_of_host(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  cut: host_turns.CutTurn,
  scored: Scored,
  greedy: Scored | None = None,
  *,
  phase: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Runs a step whose rows the host has extended; jit with donated state.

  Args:
    state, prompts: State before the step; prompts of all places.
    rollout, cut: Results of `host_turns.pause`.
    scored: Scores of the sessions; those of waiting rows are not read.
    greedy: Scores of the greedy completion of each prompt, if needed.
  """
  assert phase.partial is not None
  advanced = phase.partial.of_host(state, rollout, cut)
  return _learn(prompts, advanced, scored, greedy, phase)


def _learn(
  prompts: Prompts,
  advanced: tuple[TrainState, Rollout, jax.Array, Metrics],
  scored: Scored,
  greedy: Scored | None,
  phase: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Updates on the groups that have ended; see `Partial.separate_groups`."""
  state, rollout, is_whole, of_places = advanced
  waiting = phase.constrain_rows(state.waiting)
  assert rollout.whole is not None
  scored = dataclasses.replace(scored, valid=scored.valid & rollout.whole)
  state, metrics, rows = learn_stage(
    dataclasses.replace(state, waiting=waiting),
    Groups(prompts, rollout, scored, greedy),
    is_whole.any(),
    phase=phase,
  )
  return state, metrics | of_places, rows


def supervised_step(
  state: TrainState, batch: TrainBatch, *, phase: Phase
) -> tuple[TrainState, Metrics]:
  """Updates once on completions from data; jit with `donate_argnums=0`."""
  batch = set_fields(batch, phase.constrain_rows(row_arrays(batch)))
  of_algorithm = state.algorithm_state
  batch = dataclasses.replace(
    batch,
    state=of_algorithm["algorithm"],
    coefficients=of_algorithm["coefficients"],
  )
  _, update_key = step_keys(state)
  order_key, draw_key = jax.random.split(update_key)
  batch = prepare(state, batch, draw_key, phase=phase)
  state, metrics = update(state, batch, order_key, phase=phase)
  state = _with_algorithm_state(
    state, len(batch.mask), batch, metrics, None, phase
  )
  metrics["tokens/trained"] = batch.mask.sum().astype(jnp.float32)
  return state, metrics
