"""The models of a run, who plays and who judges, and the state of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from grpo_jax.types.common import PyTree
from grpo_jax.types.rollouts import Prompts, Rollout, Rollouts, Scored


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemberState:
  """What a run knows of one of its models: of the policy, a critic, a teacher.

  Attributes:
    params: {"trained": …, "frozen": …}. A member that shares leaves with
      another, as adapters share the base of the policy, does not have them.
    opt_state: Optimizer state of the trained leaves; None where a phase does
      not train it.
    average: Moving average of the trained leaves, at least float32; or None.
  """

  params: PyTree
  opt_state: PyTree = None
  average: PyTree = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Everything that changes between steps; donated, and checkpointed whole.

  Attributes:
    step: Updates of the state so far, over all phases.
    phase: Index of the current phase.
    phase_step: Steps taken inside the phase.
    key: Base key of the run; never changes. Step n folds n into it.
    members: The models of the run by name: "policy", "critic", "reference", ….
      "algorithm" holds the scalars that an algorithm trains beside the policy.
    algorithm_state: {"algorithm": its running state (baselines, trackers),
      "coefficients": of the terms that adapt}.
    reservoir: Old completions, which a reward model goes on learning from; None
      where none does. See `step/reservoir.py`.
    schedule: What is known of the prompts that a phase draws from, and which of
      them come next; None where they come in an order of their own. See
      `step/prompts.py`.
    kept: Groups of completions that wait for a later step, by what they are
      kept for; None where a phase keeps none. See `step/dynamic_sampling.py`.
    queue: What was drawn ahead for the next steps, the nearest first; between
      steps only, the compiled stages see none.
  """

  step: jax.Array  # [] int32
  phase: jax.Array  # [] int32
  phase_step: jax.Array  # [] int32
  key: jax.Array  # [] PRNG key
  members: dict[str, MemberState]
  algorithm_state: PyTree
  reservoir: PyTree = None
  schedule: PyTree = None
  kept: PyTree = None
  queue: tuple[Rollouts, ...] = ()

  @property
  def params(self) -> dict[str, PyTree]:
    """The parameters of all members, by name."""
    return {name: member.params for name, member in self.members.items()}

  def with_members(self, **members: MemberState) -> TrainState:
    """The state with these members added or replaced."""
    return dataclasses.replace(self, members={**self.members, **members})

  def with_params(self, **params: PyTree) -> TrainState:
    """The state with the parameters of these members replaced."""
    return self.with_members(
      **{
        name: dataclasses.replace(self.members[name], params=value)
        for name, value in params.items()
      }
    )


@dataclasses.dataclass(frozen=True)
class Policy:
  """A causal language model seen from outside: pure functions.

  Parameters are `{"trained": tree, "frozen": tree}`; gradients and optimizer
  state exist for the trained part only. `h` is whatever `head` understands;
  for a transformer the final hidden state.

  Attributes:
    init: (key) -> params.
    hidden: (params, prompt_tokens [P, S], prompt_mask [P, S],
      tokens [B, T], completion_mask [B, T], prompt_index [B], extras=None,
      prefix=None) -> (h [B, T, D], aux). `h[:, t]` is the state *from which*
      completion token t is predicted, so it sees the prompt and tokens < t.
      Row b continues prompt `prompt_index[b]`. `extras` is None or model inputs
      beside tokens, by their names in a `TrainBatch`; its `images` are those of
      the P prompts. `aux` is None or `RouterOutputs`. With `prefix` prompts are
      not run again, and row b continues prompt b.
    prefix: (params, prompt_tokens [P, S], prompt_mask [P, S], extras=None) ->
      what `hidden` needs to know of prompts that several rows continue, a tree
      of floats [N, P, ...]; None if there is nothing, and `hidden` runs each
      row whole.
    head: (params, or what `weights` makes of them; h [..., D]) -> logits
      [..., V], any float dtype.
    prefill: (params, prompt_tokens [P, S], prompt_mask [P, S], images=None) ->
      (h [P, D], prefix, prompt_routing). Runs each prompt, with the `Images`
      that it shows; `h` predicts completion token 0. `prefix` is a tree of
      [P, ...], what decoding reads of each prompt; `prompt_routing` is as in
      `Rollout`, None without experts.
    weights: (params) -> what `decode` and `head` read of them, made once for
      all steps.
    allocate: (num_rows, num_slots, prefix=None) -> cache with free completion
      slots, for rows that continue these prompts. The same cache with more
      slots is this one padded at the ends of its arrays. `prefix` may be left
      out where `decode` reads it and not a copy in the cache, as `admit` says.
    admit: (prefix, cache, num_rows) -> the cache for rows that continue other
      prompts from now on: a model whose cache holds a copy of the prompts
      writes it here.
    decode: (weights, tokens [B], t [B], slot [], prefix, cache, mix=None) ->
      (h [B, D], cache, routing [B, layers, k]). Writes completion token t of
      each row to the slot; `h` predicts token t + 1. The other tokens of a row
      are in the t slots before, where slot -1 is the last one; what other
      slots hold is not seen. `prefix` is of P' ≤ B prompts, each of B / P'
      adjacent rows. `routing` says which experts token t took, or is None.
      `mix` is None or (ids [B, k], weights [B, k]) of the rows of the embedding
      table that are read in the place of the tokens.
    extend: (weights, tokens [B, L], t [B], count [B], prefix, cache) ->
      (h [B, D], cache, routing [B, L, layers, k]). As `decode` for the first
      `count` of L tokens, which are the tokens t, t + 1, … of each row, with
      token n of a row in slot n: rows may be at different places, and none
      moves if its count is 0. `h` predicts token t + count, and is anything
      where that is 0.
    embeddings: (params) -> the table [V, D], of which a token id is a row; None
      if there is none, and inputs cannot be mixed.
    num_experts: Experts of each layer; 0 for a model without.
    only_head: Names in "trained" of what `head` alone reads.
  """

  init: Callable[..., PyTree]
  hidden: Callable[..., tuple[jax.Array, PyTree]]
  head: Callable[..., jax.Array]
  prefill: Callable[..., tuple[jax.Array, PyTree, jax.Array | None]]
  allocate: Callable[..., PyTree]
  decode: Callable[..., tuple[jax.Array, PyTree, jax.Array | None]]
  extend: Callable[..., tuple[jax.Array, PyTree, jax.Array | None]]
  prefix: Callable[..., PyTree] = lambda *args: None
  weights: Callable[[PyTree], PyTree] = lambda params: params
  admit: Callable[[PyTree, PyTree, int], PyTree] = (
    lambda prefix, cache, num_rows: cache
  )
  embeddings: Callable[[PyTree], jax.Array] | None = None
  num_experts: int = 0
  only_head: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Critic:
  """What the rest of a completion is worth: a trunk with one number at its end.

  Parameters are `{"trained": tree, "frozen": tree}` as those of a policy.

  Attributes:
    trunk: Policy whose `prefix` and `hidden` are run.
    is_shared: Whether the trunk's parameters are the policy's. Then no gradient
      of the critic enters it.
    init: (params of the policy) -> params.
    trunk_params: (params, params of the policy) -> params of the trunk.
    head: (params, h [..., D]) -> values [...], at least float32, of the states
      from which the next token is predicted.
  """

  trunk: Policy
  is_shared: bool
  init: Callable[[PyTree], PyTree]
  trunk_params: Callable[[PyTree, PyTree], PyTree]
  head: Callable[[PyTree, jax.Array], jax.Array]


class Reward(Protocol):
  """Who scores the completions of a phase; see `training/problem/rewards.py`."""

  def score(
    self,
    params: Mapping[str, PyTree],
    prompts: Prompts,
    rollout: Rollout,
    said: Any = None,
    step: jax.Array | None = None,
  ) -> Scored:
    """The verdict on B completions.

    Args:
      params: Parameters of all members; a reward model is one.
      prompts: P prompts.
      rollout: Completions of them.
      said: What verifiers of text on the host say, if there are any.
      step: Step of the phase, [] int; None where weights do not change.
    """


@dataclasses.dataclass(frozen=True)
class Sampler:
  """Who writes the completions of a phase, in the graph.

  Attributes:
    play: (parameters of members by name, prompts, key) -> a rollout.
    greedy: The greedy completion of each prompt; None if no algorithm needs it.
    correct: (parameters of members by name, prompts, key, rollout, what was
      said of it) -> the rollout with some of its wrong rows corrected; None
      where all stay as they are.
  """

  play: Callable[..., Rollout]
  greedy: Callable[..., Rollout] | None = None
  correct: Callable[..., Rollout] | None = None
