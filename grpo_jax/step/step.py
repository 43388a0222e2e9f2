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
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import objective, options
from grpo_jax.ops import routing
from grpo_jax.rollout import compaction, host_turns
from grpo_jax.step import (
  dynamic_sampling,
  models,
  partial,
  prefix_value,
  reservoir,
  reward_models,
)
from grpo_jax.step import guards as guards_lib
from grpo_jax.step import metrics as metrics_lib
from grpo_jax.step import partial as partial_lib
from grpo_jax.step import prompts as prompts_lib
from grpo_jax.step import rows as rows_lib
from grpo_jax.step import update as update_lib
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.rows import StepRows
from grpo_jax.types import (
  Algorithm,
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
)


@dataclasses.dataclass(frozen=True)
class Phase:
  """The fixed functions and settings of a phase; its steps are built from them.

  Attributes:
    policy: The policy's model.
    algorithm: The objective.
    config: Config of the algorithm.
    plan: Epochs, minibatches, micro-batches.
    members: The models of the phase, by name. Their outputs for a batch are
      computed in this order.
    losses: Losses that train the models.
    player: Sampler of completions; None if completions come from data.
    judge: Reward of completions; None if completions come from data.
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
    guards: Bounds on the influence of one prompt, or None.
    history: Reservoir of old groups for a reward model, or None.
    kept: Buffers of groups that wait for later steps, or None.
    domains: Names of the domains of prompts that have metrics of their own.
    forced: Answers that are appended after segments, for prefix values; None
      if no algorithm needs these values.
    schedule: Choice of the next prompts of a pool; None: prompts come in the
      order of the data.
    proxy: (component of the reward model, component of the verifier, True if
      scores are logits); None without a reward model.
    consistent: Component that tells if answers follow from the reasoning, or
      empty.
  """

  policy: Policy
  algorithm: Algorithm
  config: Any
  plan: UpdatePlan
  members: dict[str, models.Model]
  losses: tuple[update_lib.Loss, ...]
  player: Sampler | host_turns.EpisodeSampler | None = None
  judge: Reward | None = None
  keeps: frozenset[str] = frozenset()
  constrain_rows: Callable[[PyTree], PyTree] = lambda rows: rows
  constrain_trained: Callable[[PyTree], PyTree] = lambda trained: trained
  max_rounds: int = 1
  when_short: str = "fewer"
  staleness: int = 0
  partial: partial.Partial | None = None
  guards: guards_lib.InfluenceBounds | None = None
  history: reservoir.Reservoir | None = None
  kept: dynamic_sampling.Buffers | None = None
  domains: tuple[str, ...] = ()
  forced: prefix_value.ForcedAnswers | None = None
  schedule: prompts_lib.Schedule | None = None
  proxy: tuple[str, str, bool] | None = None
  consistent: str = ""

  def __post_init__(self):
    required = options.needs(self.algorithm, self.config)
    if required & {"routing", "router"} and not self.policy.num_experts:
      raise ValueError(
        f"algorithm {self.algorithm.name!r}: keep_routing, balance_coef and"
        " router_bias_step are about experts, and the model has none; leave"
        " them out, or use a model with experts (config.model.num_experts)."
      )

  @property
  def update(self) -> update_lib.Update:
    """The gradient steps of the phase."""
    return update_lib.Update(
      self.plan,
      self.members,
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
    return self.schedule is not None or self.partial is not None

  @property
  def trains_policy(self) -> bool:
    """True if a loss trains the policy."""
    return any("policy" in loss.trains for loss in self.losses)


# Folded into the key of an update, for draws of old completions and of groups
# to replay.
_OLD = 7
_REPLAYED = 13


def enter_phase(state: TrainState, parts: Phase, index: int) -> TrainState:
  """The state at the start of phase `index`, from the end of the phase before.

  This is a pure function, so that its `jax.eval_shape` describes a checkpoint.
  """
  _, algorithm_state = objective.init(parts.algorithm, parts.config)
  if parts.guards is not None:
    algorithm_state = algorithm_state | {"guards": parts.guards.init()}
  entered = models.enter(parts.members, state.members, parts.keeps)
  # Phases in between carry the reservoir too, so that they are one program,
  # however often they come.
  old = state.reservoir
  if parts.history is not None:
    old = parts.history.enter(old)
  chosen = None
  if parts.schedule is not None:
    chosen = prompts_lib.enter(parts.schedule, state.key, state.step)
  state = dataclasses.replace(
    state,
    phase=jnp.int32(index),
    phase_step=jnp.int32(0),
    members=entered,
    algorithm_state=algorithm_state,
    reservoir=old,
    schedule=chosen,
    kept=None,
  )
  if parts.partial is not None:
    return parts.partial.enter(state, _drawn_shapes(state, parts))
  if parts.kept is None:
    return state
  drawn = jax.eval_shape(
    functools.partial(draw_stage, parts=parts),
    *(state, parts.kept.prompts, parts.kept.said),
  )
  return dataclasses.replace(state, kept=parts.kept.enter(drawn))


def _drawn_shapes(state: TrainState, parts: Phase) -> Rollout:
  """Shapes of a rollout of all places; runs no computation."""
  assert parts.partial is not None
  prompts, player = parts.partial.prompts, parts.player
  if isinstance(player, host_turns.EpisodeSampler):
    return host_turns.shapes(
      *(player.play, state.params["policy"], prompts, state.key),
      player.score_names,
    )
  draw = functools.partial(sample_stage, parts=parts)
  return jax.eval_shape(draw, state, prompts)


def step_keys(
  state: TrainState, ahead: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
  """The rollout key and the update key: functions of (seed, step) only.

  Args:
    state: State before a step.
    ahead: Number of steps from that step to the step of the keys.
  """
  rollout_key, update_key = jax.random.split(
    jax.random.fold_in(state.key, state.step + ahead)
  )
  return rollout_key, update_key


def prepare(
  state: TrainState, batch: TrainBatch, key: jax.Array, *, parts: Phase
) -> TrainBatch:
  """Adds model outputs, advantages and all else that couples rows to a batch.

  Args:
    state: State before the update.
    batch: B rows with rewards.
    key: Random key of the algorithm.
    parts: Functions of the phase.
  """
  required = options.needs(parts.algorithm, parts.config)
  for member in parts.members.values():
    if member.fields is not None:
      batch = models.with_fields(
        parts.plan, member, state.params, batch, parts.algorithm.couples_group
      )
  if parts.forced is not None:
    batch = parts.forced.with_utilities(
      parts.plan,
      models.policy_view(parts.policy, state.params),
      batch,
      parts.algorithm.couples_group,
    )
  with jax.named_scope("advantages"):
    batch = objective.prepare(
      parts.algorithm, parts.config, dataclasses.replace(batch, key=key)
    )
  if "router" in required:  # After rejection: over trained tokens only.
    load = routing.load(
      batch.anchor_routing, batch.mask, parts.policy.num_experts
    )
    fields: dict[str, Any] = {
      "anchor_routing": None,
      "router_load": load.total / jnp.maximum(load.weight, 1),
    }
    batch = dataclasses.replace(batch, **fields)
  return batch


def update(
  state: TrainState,
  batch: TrainBatch,
  key: jax.Array,
  trains: jax.Array | None = None,
  *,
  parts: Phase,
) -> tuple[TrainState, Metrics]:
  """Takes all gradient steps on one prepared batch; see `update.run`."""
  state, metrics = update_lib.run(parts.update, state, batch, key, trains)
  if parts.trains_policy and parts.config.router_bias_step > 0:
    before = state.params["policy"]
    moved = _with_biases(before, batch.router_load, parts.config)
    state = state.with_params(policy=update_lib.chosen(trains, moved, before))
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
  missing = 1 / load.shape[-1] - load
  bias = frozen["router_bias"] + config.router_bias_step * jnp.sign(missing)
  return {**policy, "frozen": {**frozen, "router_bias": bias}}


def sample_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  *,
  parts: Phase,
) -> Rollout:
  """Samples completions of the prompts from the current policy.

  Args:
    state: State before a step.
    prompts: Prompts of the step, or of a later step.
    ahead: Number of steps later; the keys are those of the prompts' step.
    parts: Functions of the phase.
  """
  assert isinstance(parts.player, Sampler)
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("rollout"):
    rollout = parts.player.play(state.params, prompts, rollout_key)
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
  parts: Phase,
) -> Rollout | None:
  """The greedy completion of each prompt, if the algorithm needs it."""
  assert isinstance(parts.player, Sampler)
  if parts.player.greedy is None:
    return None
  rollout_key, _ = step_keys(state, ahead)
  with jax.named_scope("greedy"):
    rollout = parts.player.greedy(state.params, prompts, rollout_key)
    return compaction.last_rows(rollout)


def learn_stage(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  greedy: Scored | None = None,
  trains: jax.Array | None = None,
  *,
  parts: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Updates on a scored rollout, from advantages on; jit with donated state.

  Args:
    state: State before the step.
    prompts: P prompts.
    rollout: B completions of these prompts.
    scored: Their scores.
    greedy: Scores of the greedy completion of each prompt, if needed.
    trains: True if the step trains, [] bool; None: it trains. If False,
      parameters, moments, averages and the algorithm's state stay.
    parts: Functions of the phase.

  Returns:
    The next state, the metrics, and the rows of the step.
  """
  schedule, feedback = parts.schedule, None
  if schedule is not None:  # Before groups of other prompts are replayed.
    feedback = prompts_lib.feedback_of(rollout, scored, len(prompts.ids))
  _, update_key = step_keys(state)
  order_key, draw_key = jax.random.split(update_key)
  replayed: Metrics = {}
  if parts.kept is not None and parts.kept.replay is not None:
    state, groups, replayed = _with_replayed(
      state,
      dynamic_sampling.Groups(prompts, rollout, scored, greedy),
      jax.random.fold_in(update_key, _REPLAYED),
      parts=parts,
    )
    prompts, rollout = groups.prompts, groups.rollout
    scored, greedy = groups.scored, groups.greedy
  batch = objective.make_train_batch(
    parts.algorithm,
    parts.config,
    prompts,
    rollout,
    scored,
    state.algorithm_state,
    greedy,
  )
  if trains is not None:
    batch = dataclasses.replace(batch, mask=batch.mask & trains)
  required = options.needs(parts.algorithm, parts.config)
  if "expected" in required:
    expected = prompts_lib.expected(state.schedule, rollout)
    batch = dataclasses.replace(batch, expected=expected)
  guards = parts.guards
  guarded: dict[str, PyTree] = {}
  said: Metrics = {}
  mixed = None
  if parts.history is not None:
    mixed = parts.history.mix(
      state.reservoir,
      batch,
      jax.random.fold_in(update_key, _OLD),
      state.step,
      state.step - state.phase_step,
    )
    fresh, batch, said = batch, mixed.batch, mixed.metrics
    state = dataclasses.replace(state, reservoir=mixed.state)
  if parts.forced is not None:
    batch = parts.forced.with_candidates(prompts, batch)
  batch = dataclasses.replace(batch, **parts.constrain_rows(row_arrays(batch)))
  if feedback is not None and schedule is not None and schedule.keeps_samples:
    feedback = prompts_lib.with_samples(
      parts.plan, parts.policy, state, rollout, batch, feedback
    )
  if guards is not None:
    past = state.algorithm_state["guards"]
    batch, said = guards.admit(past, prompts, rollout, batch)
  batch = prepare(state, batch, draw_key, parts=parts)
  if guards is not None:
    batch, past, said = guards.weigh(past, batch, said)
    guarded = {"guards": past}
  metrics = _before_update(state, prompts, rollout, scored, batch, parts=parts)
  metrics |= said
  state, update_metrics = update(state, batch, order_key, trains, parts=parts)
  metrics |= update_metrics
  if parts.trains_policy:
    running = objective.update_state(
      parts.algorithm,
      parts.config,
      state.algorithm_state,
      metrics,
      batch,
      rollout.is_last.sum(),
    )
    before = {name: state.algorithm_state[name] for name in running}
    running = update_lib.chosen(trains, running, before)
    state = dataclasses.replace(state, algorithm_state=running | guarded)
  if schedule is not None and feedback is not None:
    chosen, said = prompts_lib.advance(
      *(schedule, state.schedule, feedback),
      *(state.key, state.step, state.phase_step),
    )
    metrics |= said
    state = dataclasses.replace(state, schedule=chosen)
  if mixed is not None:
    assert parts.history is not None
    batch = parts.history.shown(fresh, batch, mixed.is_old)
  rows = rows_lib.written(prompts, rollout, scored, batch, required)
  return state, metrics | replayed, rows


def _before_update(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  batch: TrainBatch,
  *,
  parts: Phase,
) -> Metrics:
  """The metrics of a prepared batch before its update."""
  metrics = metrics_lib.rollout_metrics(rollout, scored, batch)
  if rollout.corrections is not None:
    metrics |= metrics_lib.hint_metrics(rollout, scored)
  if parts.domains:
    metrics |= metrics_lib.domain_metrics(
      parts.domains, prompts, rollout, scored, batch
    )
  if parts.forced is not None:
    metrics |= prefix_value.metrics(batch)
  if batch.values is not None:
    metrics |= metrics_lib.critic_metrics(batch)
  if not parts.losses:  # Completions are measured only; nothing is trained.
    del metrics["advantages/std"]
    metrics["tokens/trained"] = jnp.float32(0)
  if parts.proxy is not None:
    metrics |= reward_models.proxy_metrics(rollout, scored, *parts.proxy)
  if parts.consistent:
    metrics |= metrics_lib.quadrants(rollout, scored, parts.consistent)
  if parts.staleness or parts.kept is not None:
    metrics |= metrics_lib.staleness_metrics(rollout, state.step)
  return metrics


def _with_replayed(
  state: TrainState,
  fresh: dynamic_sampling.Groups,
  key: jax.Array,
  *,
  parts: Phase,
) -> tuple[TrainState, dynamic_sampling.Groups, Metrics]:
  """Replaces dead groups by replayed groups.

  The metrics of the batch then differ from the metrics of the rollouts, as in
  dynamic sampling with several rounds; both are returned.
  """
  assert parts.kept is not None
  assert parts.kept.replay is not None
  found = parts.kept.replay.mix(state.kept["replay"], fresh, key, state.step)
  drawn = dynamic_sampling.metrics(
    dynamic_sampling.add(None, fresh, parts.config.min_reward_std)
  )
  return (
    dataclasses.replace(state, kept=state.kept | {"replay": found.state}),
    parts.constrain_rows(found.groups),
    drawn | found.metrics,
  )


def drawn_stage(
  state: TrainState,
  prompts: Prompts,
  ahead: jax.Array | int = 0,
  said: Any = None,
  *,
  parts: Phase,
) -> Rollouts:
  """Samples the completions of a step and corrects wrong rows.

  Args:
    state, prompts, ahead, parts: As in `sample_stage`.
    said: As in `draw_stage`.
  """
  assert isinstance(parts.player, Sampler)
  rollout = sample_stage(state, prompts, ahead, parts=parts)
  greedy = greedy_stage(state, prompts, ahead, parts=parts)
  if parts.player.correct is not None:
    scored = _scored(state, prompts, rollout, said, parts)
    rollout_key, _ = step_keys(state, ahead)
    with jax.named_scope("verifier"):
      rollout = with_version(
        state,
        parts.player.correct(
          state.params, prompts, rollout_key, rollout, scored
        ),
      )
  return Rollouts(rollout, greedy)


def judged_stage(
  state: TrainState,
  prompts: Prompts,
  drawn: Rollouts,
  said: Any = None,
  *,
  parts: Phase,
) -> dynamic_sampling.Groups:
  """Scores the rollouts of a step; see `draw_stage`."""
  scored = _scored(state, prompts, drawn.rollout, said, parts)
  baseline = None
  if drawn.greedy is not None:
    baseline = _scored(state, prompts, drawn.greedy, said, parts)
  return dynamic_sampling.Groups(prompts, drawn.rollout, scored, baseline)


def _scored(
  state: TrainState, prompts: Prompts, rollout: Rollout, said: Any, parts: Phase
) -> Scored:
  """Scores a rollout in the graph, at the state's step of the phase."""
  assert parts.judge is not None
  with jax.named_scope("verifier"):
    return parts.judge.score(
      state.params, prompts, rollout, said=said, step=state.phase_step
    )


def draw_stage(
  state: TrainState, prompts: Prompts, said: Any = None, *, parts: Phase
) -> dynamic_sampling.Groups:
  """Samples and scores completions of the prompts.

  Args:
    state: State before a step.
    prompts: Prompts of a round.
    said: Scores of verifiers on the host, if only shapes are computed; None
      without such verifiers.
    parts: Functions of the phase.
  """
  drawn = drawn_stage(state, prompts, 0, said, parts=parts)
  return judged_stage(state, prompts, drawn, said, parts=parts)


def stale_step(
  state: TrainState, prompts: Prompts, drawn: Rollouts, *, parts: Phase
) -> tuple[TrainState, Metrics, StepRows]:
  """Scores rollouts drawn ahead, and updates; jit with `donate_argnums=0`."""
  groups = judged_stage(state, prompts, drawn, parts=parts)
  return learn_stage(
    state,
    groups.prompts,
    groups.rollout,
    groups.scored,
    groups.greedy,
    parts=parts,
  )


def fused_step(
  state: TrainState, prompts: Prompts, *, parts: Phase
) -> tuple[TrainState, Metrics, StepRows]:
  """Samples, scores and updates once; jit with `donate_argnums=0`."""
  if parts.partial is not None:
    return _partial_step(state, prompts, parts.partial, parts)
  draw = functools.partial(draw_stage, state, parts=parts)
  if parts.max_rounds == 1:
    groups, trains, drawn = draw(prompts), None, {}
  else:
    collected = dynamic_sampling.collect(
      draw,
      prompts,
      parts.max_rounds,
      parts.constrain_rows,
      parts.config.min_reward_std,
      dynamic_sampling.surplus(state.kept),
    )
    state = dataclasses.replace(
      state, kept=dynamic_sampling.with_surplus(state.kept, collected)
    )
    groups, trains = dynamic_sampling.settle(collected, parts.when_short)
    groups, drawn = (
      parts.constrain_rows(groups),
      dynamic_sampling.metrics(collected),
    )
  state, metrics, rows = learn_stage(
    state,
    groups.prompts,
    groups.rollout,
    groups.scored,
    groups.greedy,
    trains,
    parts=parts,
  )
  return state, metrics | drawn, rows


def _partial_step(
  state: TrainState,
  prompts: Prompts,
  partial: partial_lib.Partial,
  parts: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Runs a step that extends rows by a few tokens; see `partial.py`."""
  with jax.named_scope("rollout"):
    found = partial.advance(state, prompts)
  rollout = found[1]
  greedy = greedy_stage(state, prompts, parts=parts)
  groups = judged_stage(state, prompts, Rollouts(rollout, greedy), parts=parts)
  return _trained(prompts, found, groups.scored, groups.greedy, parts)


def partial_step_of_host(
  state: TrainState,
  prompts: Prompts,
  rollout: Rollout,
  cut: host_turns.CutTurn,
  scored: Scored,
  greedy: Scored | None = None,
  *,
  parts: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Runs a step whose rows the host has extended; jit with donated state.

  Args:
    state, prompts: State before the step; prompts of all places.
    rollout, cut: Results of `host_turns.pause`.
    scored: Scores of the sessions; those of waiting rows are not read.
    greedy: Scores of the greedy completion of each prompt, if needed.
    parts: Functions of the phase.
  """
  assert parts.partial is not None
  found = parts.partial.of_host(state, rollout, cut)
  return _trained(prompts, found, scored, greedy, parts)


def _trained(
  prompts: Prompts,
  found: tuple[TrainState, Rollout, jax.Array, Metrics],
  scored: Scored,
  greedy: Scored | None,
  parts: Phase,
) -> tuple[TrainState, Metrics, StepRows]:
  """Updates on the groups that have ended; see `Partial.settle`."""
  state, rollout, is_whole, drawn = found
  kept = parts.constrain_rows(state.kept)
  assert rollout.whole is not None
  state, metrics, rows = learn_stage(
    dataclasses.replace(state, kept=kept),
    prompts,
    rollout,
    dataclasses.replace(scored, valid=scored.valid & rollout.whole),
    greedy,
    is_whole.any(),
    parts=parts,
  )
  metrics = partial_lib.of_trained_groups(metrics, is_whole)
  return state, metrics | drawn, rows


def supervised_step(
  state: TrainState, batch: TrainBatch, *, parts: Phase
) -> tuple[TrainState, Metrics]:
  """Updates once on completions from data; jit with `donate_argnums=0`."""
  batch = dataclasses.replace(batch, **parts.constrain_rows(row_arrays(batch)))
  _, update_key = step_keys(state)
  order_key, draw_key = jax.random.split(update_key)
  batch = prepare(state, batch, draw_key, parts=parts)
  state, metrics = update(state, batch, order_key, parts=parts)
  metrics["tokens/trained"] = batch.mask.sum().astype(jnp.float32)
  return state, metrics
