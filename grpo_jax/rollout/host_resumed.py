"""Episodes on the host that are cut where a step ends, and go on in another.

    step 7    action 1, observation 1, the first tokens of action 2
    step 8    the rest of action 2, observation 2, action 3    by its parameters

A row that goes on reads its prompt and its tokens again, with the parameters of
now, and writes on behind them, as with an environment in the graph
(`resumed.py`). What the step before has left is arrays alone. A session lives
for one step: where its episode goes on, a new one is made with the same seed,
gets the same actions, and has to answer as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from grpo_jax.rollout import host_state, host_turns, turns
from grpo_jax.types import Prompts, PyTree, Rollout


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cut:
  """How far rows have come, beside what is written.

  Attributes:
    start, turn, state: As in `host_state.Episodes`.
    over: The episode has ended, or its session has failed.
  """

  start: jax.Array  # [B] int32
  turn: jax.Array  # [B] int32
  state: jax.Array  # [B] int32
  over: jax.Array  # [B] bool

  @classmethod
  def nothing(cls, num_rows: int) -> Cut:
    """Of rows that have not begun."""
    # Arrays of their own: where they are donated, each is given away once.
    start, turn = (jnp.zeros(num_rows, jnp.int32) for _ in range(2))
    state = turns.last_seen(start[:, None], start)
    return cls(start, turn, state, jnp.zeros(num_rows, bool))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Resumed:
  """Rows that go on, or begin, in a step that may end before they do.

  Attributes:
    keys: Of the rows, from the step in which each one began.
    limits: Tokens of each row after which it waits for the next step; all
      slots: it does not wait.
    rollout: What is written, maybe nothing, the G rows of each prompt adjacent.
    cut: How far they have come.
  """

  keys: jax.Array  # [B] keys
  limits: jax.Array  # [B] int32
  rollout: Rollout
  cut: Cut


def begin(
  play: host_turns.HostTurns, params: PyTree, prompts: Prompts, resumed: Resumed
) -> tuple[host_state.Fixed, host_state.Episodes, jax.Array]:
  """As `HostTurns.begin`, with what rows have come to in the steps before."""
  fixed, episodes, _ = play.begin(params, prompts, resumed.keys[0])
  fixed = dataclasses.replace(fixed, keys=resumed.keys, limits=resumed.limits)
  before, cut = resumed.rollout, resumed.cut
  episodes = dataclasses.replace(
    episodes,
    written={name: getattr(before, name) for name in episodes.written},
    size=before.completion_mask.sum(axis=1, dtype=jnp.int32),
    start=cut.start,
    turn=cut.turn,
    state=cut.state,
    doing=jnp.where(cut.over, host_state.OVER, episodes.doing),
  )
  return fixed, episodes, jax.vmap(turns.seed)(resumed.keys)


def pause(
  play: host_turns.HostTurns,
  prompts: Prompts,
  resumed: Resumed,
  fixed: host_state.Fixed,
  episodes: host_state.Episodes,
  done: jax.Array,  # [B] bool
  scores: dict[str, jax.Array],  # each [B]
) -> tuple[Rollout, Cut]:
  """The rollout as far as it has come, once no row has anything left to do.

  Args:
    play, prompts, resumed: As in `begin`.
    fixed, episodes, done, scores: As in `HostTurns.finish`; what is said of
      rows whose episodes did not end in this step is not read.
  """
  before = resumed.rollout
  is_over = episodes.doing == host_state.OVER
  assert before.scores is not None
  kept = {
    name: jnp.where(
      resumed.cut.over, before.scores[name], jnp.where(is_over, x, 0)
    )
    for name, x in scores.items()
  }
  done = before.terminated | (done & is_over)
  rollout = play.finish(prompts, fixed, episodes, done, kept)
  cut = Cut(episodes.start, episodes.turn, episodes.state, is_over)
  return dataclasses.replace(rollout, version=before.version), cut


def shapes(
  play: host_turns.HostTurns,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,
  score_names: Iterable[str],
) -> Rollout:
  """Shapes of a rollout; nothing is run.

  Args:
    play, params, prompts, key: As in `HostTurns.begin`.
    score_names: What sessions score, beside the "return".
  """

  def played(params, prompts, key):
    fixed, episodes, seeds = play.begin(params, prompts, key)
    scores = jnp.zeros(len(seeds), jnp.float32)
    names = *sorted(score_names), "return"
    return play.finish(
      *(prompts, fixed, episodes, jnp.zeros(len(seeds), bool)),
      dict.fromkeys(names, scores),
    )

  return jax.eval_shape(played, params, prompts, key)
