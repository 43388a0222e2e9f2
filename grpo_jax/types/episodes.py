"""Episodes of several turns: environments, and compaction of contexts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax

from grpo_jax.types.common import Extras, PyTree


class Turn(NamedTuple):
  """The answer of an environment to one action.

  Attributes:
    observation: Tokens that the policy reads next, from slot 0 on.
    mask: True on the tokens of the observation that exist; they are adjacent.
    reward: Reward of this action, for the policy that is trained.
    done: True if the episode is over; then there is no observation.
  """

  observation: jax.Array  # [O] int32
  mask: jax.Array  # [O] bool
  reward: jax.Array  # [] float32
  done: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True)
class Environment:
  """An environment as pure functions of one episode; callers `vmap` them.

  A step after the last turn changes nothing: it returns a turn that is done,
  without reward and observation.

  Attributes:
    max_turns: Most actions of an episode.
    max_action_len: A, tokens.
    max_observation_len: O, tokens.
    action_ends: Ids that end an action and belong to it; may be empty.
    reset: (key, extras) -> state, a pytree of arrays of fixed shapes.
    step: (state, tokens [A] int32, mask [A] bool) -> (state, Turn). The tokens
      that exist are adjacent and start at slot 0. An action may be unfinished
      (A tokens without an end), malformed or empty. It then counts as a turn in
      which nothing is done; it may also end a game.
    scores: (state) -> {name: [] float32}, of an episode that is over or was
      cut off. "accuracy", 0 or 1, is always among them; the names do not depend
      on the state.
    action_len: None, or (state) -> [] int32: tokens after which the next
      action ends even without an end token, at most A; None: A.
    state_id: None, or (state) -> [] int32: number of the state before the next
      action, the same for the same state of the same problem; it groups visits
      (GAGPO, GiGPO). None: states with the same last observation are the same.
    dummy: Observation after an action that an interceptor has blocked; empty
      without an interceptor.
    seat: None, or (state) -> [] int32: the writer of the next action. 0 is the
      policy that is trained. Seats from 1 on are opponents or partners, whose
      tokens the policy reads. None: there is only the policy.
  """

  max_turns: int
  max_action_len: int
  max_observation_len: int
  action_ends: tuple[int, ...]
  reset: Callable[[jax.Array, Extras], PyTree]
  step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Turn]]
  scores: Callable[[PyTree], dict[str, jax.Array]]
  action_len: Callable[[PyTree], jax.Array] | None = None
  state_id: Callable[[PyTree], jax.Array] | None = None
  dummy: tuple[int, ...] = ()
  seat: Callable[[PyTree], jax.Array] | None = None


@dataclasses.dataclass(frozen=True)
class HostEnvironment:
  """Episodes whose tools are Python, in processes of the host.

  `path` is the import path of a factory

      make(prompt: str, extras: dict, seed: int, **options) -> session

  of sessions with the methods

      step(action: str) -> (observation, reward: float, done: bool)
      scores() -> {name: float}
      close(), which may be missing

  Text goes in, text comes out. `prompt` is the prompt of the data, `extras` are
  the verifiers' extras as plain data, `seed` is a function of the row's
  sampling key, and the options come from the run's settings. Before the call,
  the generators of `random` and of NumPy, if the factory's module has imported
  it, are seeded with it.

  An action is the decoded text of its ids, with its end token and without the
  text that the model reads around it. An observation holds all that the policy
  is to read, and is cut to O tokens. It has one of these forms:

    text: a str without special tokens, whatever a tool has put into it.
    (before, text, after): a chat writes roles around the text. `before` and
      `after` may contain special tokens, and only the text is cut.
    (before, text, between, text, after), and so on: results of several tools;
      the longest texts are cut.

  `scores` must work at any time, and its names are always the same. "accuracy",
  0 or 1, is one of them; None is a score that does not apply. `scores` is
  called once, when the episode is over or was cut off; only `close` follows.

  A factory that makes its own prompts (config.data.source = "environment") has
  the attributes

      problem(seed: int, **options) -> (prompt, extras), always the same; or
        None: this seed has no problem
      lesson(prompt, extras, **options) -> [(action, observation), …]

  A warm start needs `lesson`: an episode of a teacher, with the observation
  that follows each action.

  An exception, a deadline that passes, a process that ends and a number that is
  not finite end the episode as failed: the row is unscored.

  Attributes:
    max_turns: Most actions of an episode; the episode is over after the last.
    max_action_len: A, tokens; an action ends there even without an end token.
    max_observation_len: O, tokens.
    action_ends: Ids that end an action and belong to it; may be empty.
    path: "package.module:function".
    dummy: Ids that the policy reads after an action that an interceptor has
      blocked; empty without an interceptor.
  """

  max_turns: int
  max_action_len: int
  max_observation_len: int
  action_ends: tuple[int, ...]
  path: str
  dummy: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Compaction:
  """Settings for replacing a rollout's context by a summary of the policy.

  Data only; the rollout does it. After a turn, `<sum>` is written as an
  observation, and the policy writes the summary. The next context is

      head, <sum>, summary, </sum>, last k pairs (observation, action)

  and goes on with the observation that was pending.

  Attributes:
    every: Turns between two compactions. 0: a context is compacted only when
      it is nearly full.
    context_len: C, most tokens of a context: prompt, completion and summary.
    reserve: Tokens; a context with fewer than this left is compacted.
    open_id, close_id: `<sum>`, which the rollout writes, and `</sum>`, which
      ends the summary.
    max_summary_len: Most tokens of a summary, `</sum>` included. If the policy
      did not write `</sum>`, it replaces the last token.
    keep_turns: k; fewer pairs are kept if k do not fit.
    max_compactions: Most compactions of a rollout.
    head_len: First tokens of the first prompt with which every context begins
      (1: `<bos>`).
    trains_summary: True if summaries are trained. False: they count as
      observed, as if the policy had not written them.
    keeps_summary: True if contexts begin with the summary. False: they begin
      with head and last turns alone, and the content of the summary is lost.

  Source: "CompactionRL", arXiv:2607.05378, with a reserve of 10,240 tokens,
  k = 2 and 3 compactions. The paper does not trigger by turns; `every` makes
  the contexts of a toy task equally long.
  """

  every: int
  context_len: int
  reserve: int
  open_id: int
  close_id: int
  max_summary_len: int
  keep_turns: int
  max_compactions: int
  head_len: int
  trains_summary: bool = True
  keeps_summary: bool = True


@dataclasses.dataclass(frozen=True)
class HostCompaction:
  """Compaction of episodes whose environment is on the host, in text.

  Data only. After a turn the policy reads an instruction in the place of the
  observation, and writes a summary. The next context is

      head, before, summary, after, last k pairs (observation, action)

  and goes on with the observation that was held back. The last token of a
  summary, its end, is not kept: `resume` has the ids around the summary.

  Attributes:
    every, context_len, reserve, max_summary_len, keep_turns, max_compactions:
      End of a context and its remains, as in `Compaction`. A summary's end is
      one of its tokens; a summary that is cut off loses its last token for
      it. T slots that are nearly full also make a summary due.
    instruction: Ids that are read before a summary is written.
    ends: Ids that end a summary.
    resume: Ids before and after a summary in the context that begins with it.
    prompt_len: S', slots of the beginning of a context.
    head_len: First tokens of the first prompt with which every context begins;
      None: the whole prompt.
    trains_summary, keeps_summary: Use of a summary, as in `Compaction`.
  """

  every: int
  context_len: int
  reserve: int
  instruction: tuple[int, ...]
  ends: tuple[int, ...]
  resume: tuple[tuple[int, ...], tuple[int, ...]]
  max_summary_len: int
  keep_turns: int
  max_compactions: int
  prompt_len: int
  head_len: int | None = None
  trains_summary: bool = True
  keeps_summary: bool = True

  @property
  def num_contexts(self) -> int:
    """J, the most contexts of an episode."""
    return self.max_compactions + 1
