"""A policy, a verifier and parts that compile in a second."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective, options
from grpo_jax.models import architecture, transformer
from grpo_jax.models.policies import from_logits
from grpo_jax.rollout import sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import models, update
from grpo_jax.step import step as step_lib
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.step import Phase
from grpo_jax.training.phases import build, checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import (
  Critic,
  ModelState,
  PromptFields,
  Prompts,
  Rollout,
  Sampler,
  SamplerFields,
  Scored,
  ScoreFields,
  TrainBatch,
  TrainState,
  set_fields,
)
from tests.models import drawn

VOCAB, PAD, END = 7, 0, 1

# Objectives that between them have every shape of computation: ratios of
# tokens and of rows, anchors, pairs, extra terms, trainable parameters,
# running state, steps, and all that a reference can give.
VARIED = (
  *("grpo", "grpo_ps", "dr_grpo", "gspo", "lambda_grpo", "kl_cov"),
  *("two_grpo_dpo", "reinforce", "otb", "opd_full", "opd_topk", "sft", "ppo"),
)


# The first of the table with their loss of the policy, and those above: of the
# others what holds for every algorithm is a slow test.
OWN_LOSS = {
  *{
    algorithm.policy_loss: name
    for name, algorithm in reversed([*algorithms.ALGORITHMS.items()])
  }.values(),
  *VARIED,
}

# Of these, ratios of tokens and of rows, and values of a critic.
FAST = "grpo", "gspo", "ppo"


def each(names, fast=FAST):
  """Parameters of a test: all names, slow those that are not in `fast`."""
  return [
    pytest.param(name, marks=() if name in fast else pytest.mark.slow)
    for name in names
  ]


def tiny_policy(vocab: int = VOCAB, width: int = 8, dtype=jnp.float32):
  """Policy with embeddings, a causal mean, a tanh and a head, without Flax."""

  def logits(params, tokens, mask):
    x = params["embed"][tokens] * mask[..., None]
    count = jnp.maximum(jnp.cumsum(mask, axis=1), 1)[..., None]
    hidden = jnp.tanh(jnp.cumsum(x, axis=1) / count + x)
    return hidden.astype(dtype) @ params["head"].astype(dtype)

  def init(key):
    embed, head = jax.random.split(key)
    return {
      "embed": jax.random.normal(embed, (vocab, width)),
      "head": 0.3 * jax.random.normal(head, (width, vocab)),
    }

  return from_logits.policy_from_logits(logits, init)


# Fields of a transformer of 2 layers, whose first has the gated delta rule.
LINEAR = {
  "attention_gate": True,
  "delta": architecture.DeltaConfig(period=2, key_width=4, value_width=4),
}


def tiny_transformer(**fields):
  """Policy of one layer of width 8, unless `fields` change it."""
  sizes = {
    "vocab_size": VOCAB,
    "width": 8,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "mlp_width": 8,
  }
  config = architecture.TransformerConfig(**sizes | fields)
  return transformer.transformer_policy(config)


# Fields of a transformer whose queries see two tokens, with experts in the
# second layer.
SPARSE = {
  "width": 16,
  "num_layers": 2,
  "num_kv_heads": 2,
  "head_dim": 6,
  "rotary_width": 2,
  "latent_width": 8,
  "query_latent_width": 8,
  "num_experts": 4,
  "num_dense_layers": 1,
  "experts_per_token": 2,
  "expert_width": 8,
  "indexer": architecture.IndexerConfig(num_heads=4, head_dim=6, top_k=2),
}


def count_token(prompts: Prompts, rollout) -> Scored:
  """Reward: the share of slots that hold token 2; every token is a step."""
  del prompts
  hits = (rollout.tokens == 2) & rollout.completion_mask
  share = hits.mean(axis=-1)
  return Scored(
    rewards=share,
    valid=jnp.ones(share.shape, bool),
    correct=share > 0.5,
    components={"share": share},
    weights={"share": jnp.float32(1.0)},
    step_rewards=hits.astype(jnp.float32),
    step_mask=rollout.completion_mask,
  )


def make_phase(
  algorithm="grpo",
  *,
  policy=None,
  fields=None,
  score=count_token,
  group_size=4,
  max_new_tokens=4,
  top_k=None,
  mix=None,
  learning_rate=0.1,
  steps=50,
  critic=None,
  num_critic_updates=1,
  phase=None,
  outside=None,
  **plan,
) -> Phase:
  """Makes the functions of a small phase; an Algorithm may be passed too.

  `critic` may be a Critic in the place of one with a trunk of its own. `phase`
  has settings of the phase; its kind is "rl", or "preference" if the algorithm
  does not train a policy. `outside` has models that its settings name.
  """
  policy = policy or tiny_policy()
  if isinstance(algorithm, str):
    config = algorithms.make_config(
      algorithm, **{"kl_coef": 0.0, **(fields or {})}
    )
    algorithm = algorithms.get_algorithm(algorithm)
  else:
    config = algorithm.config_class(**(fields or {}))
  optimizer = phase_lib.OptimizerConfig(learning_rate=learning_rate)
  kind = "preference" if algorithm.policy_loss is None else "rl"
  given = {"kind": kind, "steps": steps, **(phase or {})}
  cls = phase_lib.CLASSES[given["kind"]]
  if issubclass(cls, phase_lib.PolicyUpdateConfig):
    given.setdefault("optimizer", optimizer)
  phase = cls(**given)
  algorithm, config = phase.of_kind.objective(algorithm, config)
  update_plan = UpdatePlan(
    **{"micro_batch_size": 4, "group_size": group_size, **plan}
  )
  required = options.needs(algorithm, config)
  sampler = sampling.SamplerConfig(
    max_new_tokens=max_new_tokens,
    end_ids=(END,),
    pad_id=PAD,
    temperature=update_plan.temperature,
    top_k=top_k,
    record_kept="kept_ids" in required,
    record_routing="routing" in required,
    mix=mix,
  )
  sample = functools.partial(sampling.sample, policy)
  greedy = dataclasses.replace(sampler, temperature=0.0, mix=None)
  run = config_lib.RunConfig()
  if algorithm.critic_loss is not None:
    trained = {"num_updates": num_critic_updates, "optimizer": optimizer}
    run = config_lib.RunConfig(
      critic=config_lib.CriticConfig(**trained),
      reward_model=config_lib.RewardModelConfig(**trained),
    )
  made = Models(
    *(run, phase, policy, algorithm, config, update_plan),
    outside=outside or {},
    updates=steps,
    given=critic,
  )
  return Phase(
    policy=policy,
    algorithm=algorithm,
    config=config,
    plan=update_plan,
    models=made.models(),
    losses=made.losses(),
    sampler=Sampler(
      models.by_policy(sample, config=sampler, group_size=group_size),
      models.by_policy(sample, config=greedy, group_size=1)
      if "greedy_rewards" in required
      else None,
    ),
    reward=Judge(score),
  )


def assembled(config) -> types.SimpleNamespace:
  """The parts of a run by its ConfigDict, on one device; compiles nothing."""
  settings = config_lib.resolve(config)
  problem = problem_lib.make_problem(settings)
  mesh = sharding.make_mesh(1)
  policy = policy_lib.make_policy(settings, problem, mesh)
  return types.SimpleNamespace(
    config=settings,
    problem=problem,
    mesh=mesh,
    policy=policy,
    phases=checkpointed.make_phases(settings, problem, policy, mesh),
  )


def phase_of(config, problem=None, name="rl") -> Phase:
  """The functions of a phase of a ConfigDict, for a tiny policy."""
  settings = config_lib.resolve(config)
  problem = problem or problem_lib.make_problem(settings)
  policy = tiny_policy(problem.tokenizer.vocab_size)
  mesh = sharding.make_mesh(1)
  return build.make_phase(settings, problem, policy, name, mesh)


@dataclasses.dataclass(frozen=True)
class Models(build.Models):
  """Models of a phase with so many updates, and this critic."""

  updates: int = 50
  given: Critic | None = None

  @property
  def num_updates(self):
    return self.updates

  def critic(self):
    return super().critic() and (self.given or super().critic())

  def reward_model(self):
    return super().reward_model() and (self.given or super().reward_model())


@dataclasses.dataclass(frozen=True)
class Judge:
  """Function of (prompts, rollout) as the judge of a phase."""

  function: Callable[..., Scored]

  def score(self, params, prompts, rollout, host_scores=None, step=None):
    del params, host_scores
    return self.function(prompts, rollout)


def make_state(phase: Phase, seed: int = 0):
  """Makes the state at the start of a phase with these functions."""
  return step_lib.enter_phase(
    policy_lib.initial_state(phase.policy, seed), phase, 0
  )


def drawn_state(phase: Phase, seed: int = 0, **spread):
  """Makes that state with parameters that NumPy draws, by one small program.

  Every weight matters in it; `spread` has the arguments of `drawn.params`.
  """

  def enter(params):
    state = TrainState(
      *(jnp.int32(0), jnp.int32(0), jnp.int32(0), jax.random.key(seed)),
      models={"policy": ModelState(params)},
      algorithm_state={},
    )
    return step_lib.enter_phase(state, phase, 0)

  return jax.jit(enter)(drawn.params(phase.policy, seed, **spread))


def fused(phase: Phase, **options):
  """The whole step of a phase, compiled with these options of `jax.jit`."""
  return jax.jit(functools.partial(step_lib.fused_step, phase=phase), **options)


def prepared(phase: Phase, state: TrainState, batch: TrainBatch, seed: int):
  """The scored batch, prepared for the update of a phase."""
  prepare = jax.jit(functools.partial(step_lib.prepare, phase=phase))
  return prepare(state, batch, jax.random.key(seed))


def updated(phase: Phase, state: TrainState, batch: TrainBatch, seed: int):
  """The state after the update by a prepared batch, and its metrics."""
  advance = jax.jit(functools.partial(step_lib.update, phase=phase))
  return advance(state, batch, jax.random.key(seed))


def gradient(
  phase: Phase, state: TrainState, batch: TrainBatch, is_first=False
):
  """The gradient of the first loss of a phase, and its metrics."""
  function = functools.partial(update.gradient, phase.update, phase.losses[0])
  return jax.device_get(jax.jit(function)(state.params, batch, is_first))


def state_at(step, phase_step, key, **fields):
  """A state without models at a step of a run and of its phase."""
  return TrainState(step, jnp.int32(0), phase_step, key, {}, {}, **fields)


def make_prompts(num_prompts: int = 4, slots: int = 3, first: int = 0):
  """Ragged, left-padded prompts."""
  rng = np.random.default_rng(first)
  lengths = 1 + np.arange(num_prompts) % slots
  made = Prompts(
    tokens=rng.integers(2, VOCAB, (num_prompts, slots)).astype(np.int32),
    mask=np.arange(slots) >= slots - lengths[:, None],
    ids=np.arange(first, first + num_prompts, dtype=np.int32),
    extras={},
  )
  return jax.device_put(made)  # Compiles nothing, as jnp.asarray does.


def rollout_of(tokens, mask, index, **fields) -> Rollout:
  """Completions [B, T] of the prompts `index`, each prompt with one group."""
  zeros = np.zeros(np.shape(tokens), np.float32)
  index = np.asarray(index, np.int32)
  usual = {
    "terminated": np.ones(len(index), bool),
    "prompt_index": index,
    "group_id": index,
    "num_groups": int(index.max()) + 1,
  }
  return Rollout(tokens, mask, zeros, zeros, zeros, **usual | fields)


def ragged_batch(phase: Phase, num_rows: int = 16, slots: int = 4):
  """A scored batch with empty, truncated, filtered and unscored rows."""
  rng = np.random.default_rng(3)
  lengths = rng.integers(0, slots + 1, num_rows)
  lengths[:3] = 0, 1, slots
  completion_mask = np.arange(slots) < lengths[:, None]
  valid = np.ones(num_rows, bool)
  valid[5] = False
  prompts = make_prompts()
  group_id = np.arange(num_rows) // 4
  logp = -rng.uniform(0.5, 3.0, (num_rows, slots)).astype(np.float32)
  rewards = rng.normal(size=num_rows).astype(np.float32)
  state = objective.init(phase.algorithm, phase.config)[1]
  made = TrainBatch(
    prompts=PromptFields(tokens=prompts.tokens, mask=prompts.mask),
    prompt_index=np.asarray(group_id, np.int32),
    group_id=np.asarray(group_id, np.int32),
    tokens=np.asarray(rng.integers(0, VOCAB, (num_rows, slots)), np.int32),
    completion_mask=completion_mask,
    mask=completion_mask & valid[:, None],
    rewards=rewards,
    valid=valid,
    terminated=lengths < slots,
    correct=rewards > 0,
    sampler=SamplerFields(behavior_logp=logp, logp=logp, entropy=-logp),
    scores=ScoreFields(
      components=rewards[:, None],
      component_weights=np.ones(1, np.float32),
      step_rewards=logp,
      step_mask=completion_mask,
      greedy=np.zeros(num_rows, np.float32),
      expected=np.full(num_rows, 0.5, np.float32),
    ),
    state=state["algorithm"],
    coefficients=state["coefficients"],
    num_groups=4,
  )
  return jax.device_put(made)


def given_scores(batch: TrainBatch) -> TrainBatch:
  """Scored batch with the fields of `objective.prepare` for GRPO, from NumPy.

  Its old policy is far from any policy.
  """
  rng = np.random.default_rng(5)
  logp = np.asarray(batch.sampler.logp)
  advantages = rng.normal(size=len(logp)).astype(np.float32)
  made = {
    "old_logp": logp,
    "reference.logp": logp + rng.normal(scale=0.3, size=logp.shape),
    "advantages": np.where(batch.valid, advantages, 0),
  }
  made = {name: x.astype(np.float32) for name, x in made.items()}
  return set_fields(batch, jax.device_put(made))


def given_rows(prompts, completions):
  """A batch of whole rows of ids, each with a prompt of its own."""
  rows = np.arange(len(prompts))
  everyone = np.ones(len(rows), bool)
  exists = np.ones(completions.shape, bool)
  made = TrainBatch(
    prompts=PromptFields(tokens=prompts, mask=np.ones(prompts.shape, bool)),
    prompt_index=rows,
    group_id=rows,
    tokens=completions,
    completion_mask=exists,
    mask=exists,
    rewards=np.zeros(len(rows), np.float32),
    valid=everyone,
    terminated=everyone,
    correct=everyone,
    num_groups=len(rows),
  )
  return jax.device_put(made)


def off_policy(phase: Phase) -> tuple[TrainState, TrainBatch]:
  """A state with a distant reference, and a prepared batch off its policy."""
  state = make_state(phase)
  if "reference" in state.models:
    reference = jax.jit(phase.policy.init)(jax.random.key(1))
    state = state.with_params(reference=reference)
  batch = prepared(phase, state, ragged_batch(phase), 2)
  if "old_logp" in options.needs(phase.algorithm, phase.config):
    batch = dataclasses.replace(batch, old_logp=batch.sampler.logp)
  return state, batch
