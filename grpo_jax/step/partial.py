"""Partial rollouts: rows decode a few tokens a step; finished groups train.

P·G places hold the completions of P prompts. In a step each row that has not
ended gets at most N more tokens (`rollout/resumed.py`). Then the groups whose
rows have all ended are trained. The others wait, with the tokens, log-probs and
versions that they have. An example with P = 2 places of one row, N = 4:

    step      0        1        2        3
    place 0   a 4..    a 7 END  c 4..    c 8..       a is trained in step 1
    place 1   b 3 END  d 4..    d 6 END  e 2 END     b in 0, d in 2, e in 3

A free place takes the next prompt of the stream, the first place first. So no
prompt is lost, and the prompts of a step are a function of the steps before.
`TrainState.schedule` holds them. The host reads the prompts of all places for
each step, also those of groups that continue.

A group waits for `staleness` updates at most. In its last step its rows are
decoded to their end, however many tokens that takes. So every token is trained,
with parameters that are at most `staleness` updates newer.

With an environment a row is an episode, which is cut at any token. In the graph
the state of its environment waits with it. On the host its session is created
anew (`rollout/host_turns.py`), and its observations are read whole. Tokens of
an environment count towards the tokens of a row.

A waiting group does not take part in a step: its rows have neither tokens nor
rewards there. A step in which no group has ended does not change parameters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.rollout import drawing, host_turns, turns
from grpo_jax.rollout import resumed as resumed_lib
from grpo_jax.types import Environment, Metrics, Prompts, Rollout, TrainState

_NAME = "partial"  # In `TrainState.waiting`.


@dataclasses.dataclass(frozen=True)
class Partial:
  """The settings and state changes of partial rollouts.

  Attributes:
    go_on: (parameters of models, prompts, keys, rollout, limits, step,
      episodes=…) -> the rollout and its episodes; see `resumed.py`. Not called
      if the environment is on the host.
    prompts: Shapes of the prompts of a step.
    group_size: G.
    length: N, tokens of a row in a step.
    staleness: Most updates that a group waits for.
    limits: Most tokens of a completion for each domain of prompts; empty: all
      slots.
    environment: The environment in the graph, the same as in `go_on`; None for
      rows of one turn and for environments on the host.
    on_host: True if the environment is on the host.
  """

  go_on: Callable[..., tuple[Rollout, turns.Episodes | None]]
  prompts: Prompts
  group_size: int
  pad_id: int
  length: int
  staleness: int
  limits: tuple[int, ...] = ()
  environment: Environment | None = None
  on_host: bool = False

  @property
  def num_prompts(self) -> int:
    """P, prompts of a step."""
    return len(self.prompts.ids)

  def enter(self, state: TrainState, shapes: Rollout) -> TrainState:
    """The state at the start of a phase, with empty rollouts of new prompts.

    Args:
      state: State before the first step of the phase.
      shapes: Shapes of a rollout that is drawn whole.
    """
    places = jnp.arange(self.num_prompts, dtype=jnp.int32)
    waiting: dict[str, Any] = {
      "rollout": resumed_lib.nothing(shapes, self.pad_id),
      "began": jnp.full(self.num_prompts, state.step, jnp.int32),
    }
    if self.environment is not None:
      keys = self._keys(state.key, waiting["began"], places)
      episodes = jax.eval_shape(
        functools.partial(resumed_lib.begin, self.environment),
        self.prompts,
        keys,
      )
      waiting["episodes"] = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), episodes
      )
    if self.on_host:
      num_rows = self.num_prompts * self.group_size
      waiting["episodes"] = host_turns.CutTurn.nothing(num_rows)
    return dataclasses.replace(
      state,
      schedule={"places": places, "next": jnp.int32(self.num_prompts)},
      waiting={_NAME: waiting},
    )

  def advance(
    self, state: TrainState, prompts: Prompts
  ) -> tuple[TrainState, Rollout, jax.Array, Metrics]:
    """Decodes the completions in progress for one step.

    Args:
      prompts: Prompts of all places; ids are places in the stream.

    Returns:
      As `separate_groups`.
    """
    waiting = state.waiting[_NAME]
    before = waiting["rollout"]
    keys, budget, limits = self._bounds(state, prompts)
    inputs = state.params, prompts, keys, before, limits, state.step
    rollout, episodes = self.go_on(*inputs, episodes=waiting.get("episodes"))
    lengths = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
    ended = rollout.terminated | (lengths >= budget)
    return self.separate_groups(state, rollout, ended, episodes)

  def resumed(self, state: TrainState, prompts: Prompts) -> host_turns.Resumed:
    """The rows of all places, for an environment on the host.

    Args:
      prompts: Prompts of all places; ids are places in the stream.
    """
    waiting = state.waiting[_NAME]
    keys, _, limits = self._bounds(state, prompts)
    before, cut = waiting["rollout"], waiting["episodes"]
    begins = ~before.completion_mask.any(axis=1)
    cut = jax.tree.map(
      lambda x, y: jnp.where(begins, x, y),
      *(host_turns.CutTurn.nothing(len(keys)), cut),
    )
    return host_turns.Resumed(keys, limits, before, cut)

  def of_host(
    self, state: TrainState, rollout: Rollout, cut: host_turns.CutTurn
  ) -> tuple[TrainState, Rollout, jax.Array, Metrics]:
    """Separates groups that were sampled with the host.

    Args:
      rollout: All rows, with the versions of the tokens of former steps.
    """
    before = state.waiting[_NAME]["rollout"].completion_mask
    assert rollout.version is not None
    version = jnp.where(
      rollout.completion_mask & ~before, state.step, rollout.version
    )
    rollout = dataclasses.replace(rollout, version=version)
    return self.separate_groups(state, rollout, cut.over, cut)

  def _bounds(
    self, state: TrainState, prompts: Prompts
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Keys, most tokens, and most tokens in this step, of rows, each [B]."""
    waiting = state.waiting[_NAME]
    before, began = waiting["rollout"], waiting["began"]
    budget = resumed_lib.budgets(
      self.limits, prompts, self.group_size, before.tokens.shape[1]
    )
    size = before.completion_mask.sum(axis=1, dtype=jnp.int32)
    limits = jnp.where(
      self._is_last(state), budget, jnp.minimum(budget, size + self.length)
    )
    return self._keys(state.key, began, prompts.ids), budget, limits

  def separate_groups(
    self,
    state: TrainState,
    rollout: Rollout,
    ended: jax.Array,  # [B] bool
    episodes: Any,
  ) -> tuple[TrainState, Rollout, jax.Array, Metrics]:
    """Separates the groups that are trained from those that wait.

    Args:
      ended: True on rows that get no more tokens.
      episodes: Episodes of the rows; None without an environment.

    Returns:
      The state, with the prompts of the next step; the rollout of the step, in
      which waiting rows are not whole; the mask of trained groups, [P] bool;
      and metrics of all places.
    """
    waiting = state.waiting[_NAME]
    before, began = waiting["rollout"], waiting["began"]
    size = before.completion_mask.sum(axis=1, dtype=jnp.int32)
    lengths = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
    is_whole = ended.reshape(-1, self.group_size).all(axis=1)  # [P]
    rows = self._of_rows(is_whole)
    ready = dataclasses.replace(
      resumed_lib.cleared(rollout, ~rows, self.pad_id), whole=rows
    )
    metrics = {
      "partial/trained_groups": is_whole.sum(),
      "partial/waiting_tokens": jnp.where(rows, 0, lengths).sum(),
      "partial/finished_at_once": (
        self._is_last(state) & (lengths > size + self.length)
      ).sum(),
      "tokens/generated": (lengths - size).sum(),
    }
    rank = jnp.cumsum(is_whole, dtype=jnp.int32) - 1
    places, following = state.schedule["places"], state.schedule["next"]
    state = dataclasses.replace(
      state,
      schedule={
        "places": jnp.where(is_whole, following + rank, places),
        "next": following + is_whole.sum(dtype=jnp.int32),
      },
      waiting={
        _NAME: {
          "rollout": resumed_lib.cleared(rollout, rows, self.pad_id),
          "began": jnp.where(is_whole, state.step + 1, began),
          **({} if episodes is None else {"episodes": episodes}),
        }
      },
    )
    metrics = {name: x.astype(jnp.float32) for name, x in metrics.items()}
    return state, ready, is_whole, metrics

  def _is_last(self, state: TrainState) -> jax.Array:  # [B] bool
    """True on rows that may not wait longer, and are decoded to their end."""
    began = state.waiting[_NAME]["began"]
    return self._of_rows(state.step - began >= self.staleness)

  def _of_rows(self, x: jax.Array) -> jax.Array:  # [P] -> [B]
    return jnp.repeat(x, self.group_size)

  def _keys(
    self,
    key: jax.Array,  # [] key of the run
    began: jax.Array,  # [P] int32
    ids: jax.Array,  # [P] int32
  ) -> jax.Array:  # [B] keys
    """Keys of rows, as if each were drawn whole in its first step."""

    def of_group(began, prompt_id):
      # As `step.step_keys`.
      rollout_key, _ = jax.random.split(jax.random.fold_in(key, began))
      return drawing.row_keys(rollout_key, prompt_id[None], self.group_size)

    return jax.vmap(of_group)(began, ids).reshape(-1)
