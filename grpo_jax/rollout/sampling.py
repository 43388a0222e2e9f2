"""Sampling inside the compiled program: prefill, then a decode loop.

A row's draws depend on its own key and on nothing else: the key is folded from
(seed, step, occurrence of the prompt, sample index, turn, position), never from
the place of the row in a batch or on a mesh.
"""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import logprobs
from grpo_jax.rollout import filters
from grpo_jax.types import Policy, Prompts, PyTree, Rollout


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """How completions are drawn; filters apply in the order of the fields.

  Attributes:
    max_new_tokens: Completion slots T; a row that fills them is cut off.
    end_ids: Tokens that end a completion and belong to it; may be empty (all
      rows run to T) and may contain `pad_id`.
    pad_id: Written after the end; its meaning comes from the mask alone.
    temperature: Divides the logits; 0 takes the most likely token.
    top_k: Keeps the k most likely tokens, or None.
    top_p: Keeps the nucleus of mass p in (0, 1], or None.
    min_p: Keeps tokens with p ∈ (0, 1] times the largest probability, or None.
    record_kept: Whether to record the ids that the filters kept; needs top_k,
      which bounds their number.
    record_routing: Whether to record the experts that each token took.
  """

  max_new_tokens: int
  end_ids: tuple[int, ...]
  pad_id: int
  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  min_p: float | None = None
  record_kept: bool = False
  record_routing: bool = False

  def __post_init__(self):
    object.__setattr__(self, "end_ids", tuple(self.end_ids))

    def check(holds, name, need):
      if not holds:
        value = getattr(self, name)
        raise ValueError(
          f"SamplingConfig: {name} is {value}, but must be {need}."
        )

    check(self.max_new_tokens >= 1, "max_new_tokens", "at least 1")
    check(all(i >= 0 for i in self.end_ids), "end_ids", "token ids from 0 on")
    check(self.pad_id >= 0, "pad_id", "a token id from 0 on")
    check(self.temperature >= 0, "temperature", "0 (greedy) or positive")
    check(self.top_k is None or self.top_k >= 1, "top_k", "at least 1, or None")
    for name in ("top_p", "min_p"):
      value = getattr(self, name)
      check(value is None or 0 < value <= 1, name, "in (0, 1], or None")
    check(
      self.top_k is not None or not self.record_kept,
      "top_k",
      "set to record the kept ids (record_kept), whose number it bounds",
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
  """Loop carry. Slots below `cursor` are final, the others hold their fill.

  Attributes:
    cursor: Next completion slot to write.
    tokens: Sampled tokens; filled with the pad id.
    mask: True on the tokens a row wrote before or at its end; filled with
      False.
    behavior_logp, sampler_logp, entropy: As in `Rollout`; filled with 0.
    kept_ids: As in `Rollout`; filled with -1.
    done: The row has written an end token.
    cache: The policy's own; holds completion tokens below `cursor` - 1.
  """

  cursor: jax.Array  # [] int32
  tokens: jax.Array  # [B, T] int32
  mask: jax.Array  # [B, T] bool
  behavior_logp: jax.Array  # [B, T] float32
  sampler_logp: jax.Array  # [B, T] float32
  entropy: jax.Array  # [B, T] float32
  kept_ids: jax.Array | None  # [B, T, K] int32
  done: jax.Array  # [B] bool
  cache: PyTree


def row_keys(
  key: jax.Array,  # [] key of (seed, step)
  ids: jax.Array,  # [P] int32
  group_size: int,
) -> jax.Array:  # [P * G] keys
  """One key per row b = p · G + g, from (key, ids[p], g, turn)."""
  turn = 0  # Single-turn: the whole completion is one turn.

  def row_key(prompt_id, sample_index):
    folded = (prompt_id, sample_index, turn)
    return functools.reduce(jax.random.fold_in, folded, key)

  samples = jnp.tile(jnp.arange(group_size), len(ids))  # [B]
  return jax.vmap(row_key)(jnp.repeat(ids, group_size), samples)


def _filtered(logits, config):  # [B, V] -> [B, V], at temperature 1
  for function, value in (
    (filters.top_k, config.top_k),
    (filters.top_p, config.top_p),
    (filters.min_p, config.min_p),
  ):
    if value is not None:
      logits = function(logits, value)
  return logits


def _only_top(logits, count):  # [B, V] -> [B, V], [B, K]
  """The K largest logits, and their ids; -1 for those that are -inf.

  `filters.top_k` keeps ties, so it may keep more than K.
  """
  largest, ids = lax.top_k(logits, count)  # [B, K]
  rows = jnp.arange(logits.shape[0])[:, None]
  logits = jnp.full_like(logits, -jnp.inf).at[rows, ids].set(largest)
  return logits, jnp.where(jnp.isneginf(largest), -1, ids).astype(jnp.int32)


def _draw(logits, keys, position, config):  # [B, V], [B], []
  """Tokens, what the rollout records of them, each [B], and the kept ids."""
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if config.temperature == 0.0:
    tokens = jnp.argmax(logits, axis=-1)  # [B]
    zero = jnp.zeros(tokens.shape, logits.dtype)
    records = zero, logprobs.token_logprobs(logits, tokens), zero
    return tokens, records, tokens[:, None] if config.record_kept else None

  def noise(row_key):
    # Always float32, so that the bits do not depend on the model's dtype.
    token_key = jax.random.fold_in(row_key, position)
    return jax.random.gumbel(token_key, logits.shape[-1:], jnp.float32)

  scaled = filters.temperature(logits, config.temperature)
  filtered, kept_ids = _filtered(scaled, config), None
  if config.record_kept:
    filtered, kept_ids = _only_top(filtered, _num_kept(config, logits))
  tokens = jnp.argmax(filtered + jax.vmap(noise)(keys), axis=-1)  # [B]
  records = (
    logprobs.token_logprobs(filtered, tokens),
    logprobs.token_logprobs(scaled, tokens),
    logprobs.entropy_from_logits(filtered),
  )
  return tokens, records, kept_ids


def _num_kept(config: SamplingConfig, logits: jax.Array) -> int:
  """K of `Rollout.kept_ids`."""
  assert config.top_k is not None
  return 1 if config.temperature == 0 else min(config.top_k, logits.shape[-1])


def sample(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,  # [] key of (seed, step)
  config: SamplingConfig,
  group_size: int,
) -> Rollout:
  """Draws `group_size` completions of every prompt; row b = p · G + g.

  Each prompt is run once. Decoding stops when every row has ended, after at
  most T − 1 decode steps. Draws use the Gumbel-max trick: the token is
  argmax(filtered logits + noise of the row at that position).

  Args:
    policy: What to sample from.
    params: Its parameters.
    prompts: P left-padded prompts.
    key: Folded from the seed and the step; the prompt's id and the sample
      index are folded in here.
    config: How to draw. Static.
    group_size: Completions per prompt. Static.

  Returns:
    P · G completions; a group is the rows of one prompt. At temperature 0
    `behavior_logp` and `entropy` are 0 (the draw is certain) and
    `sampler_logp` is taken at temperature 1.

  Raises:
    ValueError: If `group_size` is less than 1, or the routing of a model
      without experts is to be recorded.
  """
  if group_size < 1:
    raise ValueError(
      f"sample: group_size is {group_size}, but each prompt needs at least 1"
      " completion."
    )
  if config.record_routing and not policy.num_experts:
    raise ValueError(
      "sample: record_routing is True, but the model has no experts; record"
      " none, or use a model with num_experts > 0."
    )
  chex.assert_rank([prompts.tokens, prompts.mask, prompts.ids], [2, 2, 1])
  chex.assert_equal_shape([prompts.tokens, prompts.mask])
  num_prompts = prompts.tokens.shape[0]
  num_rows, num_slots = num_prompts * group_size, config.max_new_tokens
  prompt_index = jnp.arange(num_rows, dtype=jnp.int32) // group_size  # [B]
  keys = row_keys(key, prompts.ids, group_size)  # [B]
  end_ids = jnp.asarray(config.end_ids, jnp.int32)

  def write(state, h, cache):
    """Draws token `cursor` of every row from h [B, D] and records it."""
    t = state.cursor
    tokens, records, kept_ids = _draw(policy.head(params, h), keys, t, config)
    alive = ~state.done  # [B]; also writes the end token itself.
    ended = (tokens[:, None] == end_ids).any(axis=-1)
    behavior_logp, sampler_logp, entropy = (
      buffer.at[:, t].set(jnp.where(alive, x, 0.0).astype(buffer.dtype))
      for buffer, x in zip(
        (state.behavior_logp, state.sampler_logp, state.entropy),
        records,
        strict=True,
      )
    )
    tokens = jnp.where(alive, tokens, config.pad_id).astype(jnp.int32)
    return DecodeState(
      cursor=t + 1,
      tokens=state.tokens.at[:, t].set(tokens),
      mask=state.mask.at[:, t].set(alive),
      behavior_logp=behavior_logp,
      sampler_logp=sampler_logp,
      entropy=entropy,
      kept_ids=None
      if kept_ids is None
      else state.kept_ids.at[:, t].set(jnp.where(alive[:, None], kept_ids, -1)),
      done=state.done | ended,
      cache=cache,
    )

  with jax.named_scope("prefill"):
    h, cache = policy.prefill(
      params, prompts.tokens, prompts.mask, prompt_index, num_slots
    )
    buffer = functools.partial(jnp.full, (num_rows, num_slots))
    empty = DecodeState(
      cursor=jnp.int32(0),
      tokens=buffer(config.pad_id, jnp.int32),
      mask=buffer(False),
      behavior_logp=buffer(0.0, jnp.float32),
      sampler_logp=buffer(0.0, jnp.float32),
      entropy=buffer(0.0, jnp.float32),
      kept_ids=None
      if not config.record_kept
      else jnp.full(
        (
          num_rows,
          num_slots,
          _num_kept(config, jax.eval_shape(policy.head, params, h)),
        ),
        -1,
        jnp.int32,
      ),
      done=jnp.zeros(num_rows, bool),
      cache=cache,
    )
    state = write(empty, h, cache)

  def unfinished(state):
    return (state.cursor < num_slots) & ~state.done.all()

  def step(state):
    previous = state.cursor - 1
    tokens = lax.dynamic_index_in_dim(state.tokens, previous, 1, False)  # [B]
    h, cache = policy.decode(params, tokens, previous, state.cache)
    return write(state, h, cache)

  with jax.named_scope("decode"):
    state = lax.while_loop(unfinished, step, state)
  prompt_routing, routing = None, None
  if config.record_routing:
    prompt_routing, routing = policy.routing(state.cache)
  return Rollout(
    tokens=state.tokens,
    completion_mask=state.mask,
    behavior_logp=state.behavior_logp,
    sampler_logp=state.sampler_logp,
    entropy=state.entropy,
    terminated=state.done,
    prompt_index=prompt_index,
    group_id=prompt_index,
    num_groups=num_prompts,
    kept_ids=state.kept_ids,
    routing=routing,
    prompt_routing=prompt_routing,
  )
