"""Interfaces of models, samplers and rewards, and the state of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from grpo_jax.types.common import PyTree
from grpo_jax.types.rollouts import Prompts, Rollout, Rollouts, Scored


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelState:
  """The state of one model of a run: of the policy, a critic, a teacher.

  Attributes:
    params: {"trained": …, "frozen": …}. Leaves that the model shares with
      another model, as adapters share the base of the policy, are left out.
    opt_state: Optimizer state of the trained leaves; None if the phase does not
      train the model.
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
    models: The models of the run by name: "policy", "critic", "reference", ….
      "algorithm" holds the scalars that an algorithm trains beside the policy.
    algorithm_state: {"algorithm": its running state (baselines, trackers),
      "coefficients": of the terms that adapt}.
    guards: Memory of the bounds on the influence of a prompt, or None. See
      `step/guards.py`.
    transforms: Memories of transforms, or None. See `step/transforms.py`.
    reservoir: Old completions that a reward model goes on learning from, or
      None. See `step/reservoir.py`.
    schedule: Statistics of the prompts that a phase draws from, and its next
      prompts; None if prompts come in the order of the data. See
      `step/prompts.py`.
    waiting: Groups of completions that wait for a later step, by the purpose
      that they wait for; None if the phase does not keep groups. See
      `step/dynamic_sampling.py`.
    queue: Rollouts that were drawn ahead for the next steps, the next step
      first. Empty inside compiled stages.
  """

  step: jax.Array  # [] int32
  phase: jax.Array  # [] int32
  phase_step: jax.Array  # [] int32
  key: jax.Array  # [] PRNG key
  models: dict[str, ModelState]
  algorithm_state: PyTree
  guards: PyTree = None
  transforms: PyTree = None
  reservoir: PyTree = None
  schedule: PyTree = None
  waiting: PyTree = None
  queue: tuple[Rollouts, ...] = ()

  @property
  def params(self) -> dict[str, PyTree]:
    """The parameters of all models, by name."""
    return {name: model.params for name, model in self.models.items()}

  def with_models(self, **models: ModelState) -> TrainState:
    """Returns the state with these models added or replaced."""
    return dataclasses.replace(self, models={**self.models, **models})

  def with_params(self, **params: PyTree) -> TrainState:
    """Returns the state with the parameters of these models replaced."""
    return self.with_models(
      **{
        name: dataclasses.replace(self.models[name], params=value)
        for name, value in params.items()
      }
    )


@dataclasses.dataclass(frozen=True)
class Policy:
  """A causal language model as pure functions.

  Parameters are `{"trained": tree, "frozen": tree}`; gradients and optimizer
  state exist for the trained part only. `h` is the input of `head`: for a
  transformer, the final hidden state.

  Attributes:
    init: (key) -> params.
    hidden: (params, prompt_tokens [P, S], prompt_mask [P, S],
      tokens [B, T], completion_mask [B, T], prompt_index [B], extras=None,
      prefix=None) -> (h [B, T, D], aux). `h[:, t]` is the state *from which*
      completion token t is predicted, so it sees the prompt and tokens < t.
      Row b continues prompt `prompt_index[b]`. `extras` is None or model inputs
      beside tokens, by their names in a `Rollout`; its `images` are those of
      the P prompts. `aux` is None or `RouterOutputs`. With `prefix` prompts are
      not run again, and row b continues prompt b.
    prefix: (params, prompt_tokens [P, S], prompt_mask [P, S], extras=None) ->
      a tree of floats [N, P, ...] that `hidden` reads of prompts which several
      rows continue; None if `hidden` runs each row whole.
    head: (params or the result of `weights`, h [..., D]) -> logits [..., V],
      any float dtype.
    prefill: (params, prompt_tokens [P, S], prompt_mask [P, S], images=None) ->
      (h [P, D], prefix, prompt_routing). Runs each prompt, with the `Images`
      that the prompt shows; `h` predicts completion token 0. `prefix` is a tree
      of [P, ...] that decoding reads of each prompt; `prompt_routing` is as
      in `Rollout`, None without experts and indexers.
    weights: (params) -> the tree that `decode` and `head` read, computed once
      for all decoding steps.
    allocate: (num_rows, num_slots, prefix=None) -> cache with free completion
      slots, for rows that continue these prompts. The same cache with more
      slots is this one padded at the ends of its arrays. `prefix` may be left
      out if `decode` reads it directly and not from a copy in the cache; see
      `admit`.
    admit: (prefix, cache, num_rows) -> the cache for rows that continue other
      prompts from now on: a model whose cache holds a copy of the prompts
      writes the copy here.
    decode: (weights, tokens [B], t [B], slot [], prefix, cache, mix=None) ->
      (h [B, D], cache, routing [B, layers, k]). Writes completion token t of
      each row to the slot; `h` predicts token t + 1. The other tokens of a row
      are in the t slots before, where slot -1 is the last one; other slots are
      not read. `prefix` is of P' ≤ B prompts, each of B / P' adjacent rows.
      `routing` holds the choices for token t, or is None. `mix` is None or
      (ids [B, k], weights [B, k]) of the rows of the embedding table that are
      read in the place of the tokens.
    extend: (weights, tokens [B, L], t [B], count [B], prefix, cache) ->
      (h [B, D], cache, routing [B, L, layers, k]). Runs `decode` for the first
      `count` of L tokens, which are the tokens t, t + 1, … of each row, with
      token n of a row in slot n. Rows may be at different places, and a row
      with count 0 stays where it is. `h` predicts token t + count, and is
      arbitrary if the count is 0.
    embeddings: (params) -> the embedding table [V, D]; None if the model has
      no table, and inputs cannot be mixed.
    num_experts: Experts of each layer; 0 without experts.
    has_indexers: True if indexers, which are trained, choose what tokens see.
    has_states: True if prefixes are states, which have read all their tokens:
      `hidden` cannot mask one of these later.
    only_head: Names in "trained" of the parameters that `head` alone reads.
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
  has_indexers: bool = False
  has_states: bool = False
  only_head: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Critic:
  """A value function of prefixes: a trunk with a scalar head.

  Parameters are `{"trained": tree, "frozen": tree}` as those of a policy.

  Attributes:
    trunk: Policy whose `prefix` and `hidden` are run.
    is_shared: True if the trunk's parameters are the policy's. Then the
      critic's gradient does not enter the trunk.
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
  """Scores the completions of a phase; see `training/problem/rewards.py`."""

  def score(
    self,
    params: Mapping[str, PyTree],
    prompts: Prompts,
    rollout: Rollout,
    host_scores: Any = None,
    step: jax.Array | None = None,
  ) -> Scored:
    """Scores B completions.

    Args:
      params: Parameters of all models; a reward model is one of them.
      prompts: P prompts.
      rollout: B completions of these prompts.
      host_scores: Scores of verifiers of text on the host, if there are any.
      step: Step of the phase, [] int; None if weights do not change.
    """


@dataclasses.dataclass(frozen=True)
class Sampler:
  """The sampler of a phase's completions, in the graph.

  Attributes:
    sample: (parameters of models by name, prompts, key) -> a rollout.
    greedy: As `sample`, for the greedy completion of each prompt; None if the
      algorithm does not need it.
    correct: (parameters of models by name, prompts, key, rollout, its scores)
      -> the rollout with some of its wrong rows corrected; None without
      corrections.
  """

  sample: Callable[..., Rollout]
  greedy: Callable[..., Rollout] | None = None
  correct: Callable[..., Rollout] | None = None


@dataclasses.dataclass(frozen=True)
class EpisodeSampler:
  """The sampler of a phase's completions, with the host between the turns.

  Attributes:
    turns: The compiled parts of a rollout, a `rollout.host_turns.HostTurns`.
    greedy: Those of the greedy completion of each prompt; None if the algorithm
      does not need it.
    score_names: Names of the scores of sessions, beside "return".
  """

  turns: Any
  greedy: Any = None
  score_names: tuple[str, ...] = ()
