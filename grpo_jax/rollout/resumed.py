"""Rows that continue: from an earlier step, after a hint, or for a request.

A row that continues reads its prompt and its tokens again, as one prompt of its
own, and draws tokens behind them.

Partial rollouts are cut at the end of a step, and continue in the next one
(`continue_rows`):

    step 7    a b c d            4 tokens, drawn by the weights of step 7
    step 8            e f </s>   3 more, by those of step 8

The tokens are read with the current weights; keys and values of older weights
are not kept. The key of a draw has the place of a token in its completion and
the step in which the completion began. So with unchanged weights the tokens are
those of a rollout that was never cut. The records of a token stay as they were
when it was drawn.

Source: Kimi Team, "Kimi k1.5: Scaling Reinforcement Learning with LLMs",
arXiv:2501.12599, Section 2.6.2 (partial rollouts). The paper keeps tokens of
earlier steps out of the loss. Here they are trained, with the log-probs of the
weights that drew them, and corrected like all old tokens.

Requests continue contexts together, each with settings of its own (`draw`). A
row has its own context, key, position of the first draw, limit, temperature and
top_p, all of which are arrays. So one program of fixed shape serves any
requests. As in `sampling`, a row's draws depend on its key and its positions
alone, never on other rows of the batch.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import logprobs
from grpo_jax.rollout import drawing, sampling, turns
from grpo_jax.types import Environment, Images, Policy, Prompts, PyTree, Rollout


def joined(
  prompts: Prompts,
  tokens: jax.Array,  # [B, T] int32
  size: jax.Array,  # [B] int32
  pad_id: int,
) -> tuple[jax.Array, jax.Array]:  # [B, S + T] int32, [B, S + T] bool
  """Joins each row's prompt and the first tokens after it, left-padded.

  Args:
    prompts: P prompts, each of B / P adjacent rows.
    tokens: Tokens after the prompts.
    size: Number of these tokens in each row, at most T.
    pad_id: Id in empty slots.
  """
  num_slots = tokens.shape[1]
  group_size = len(tokens) // len(prompts.ids)
  repeat = functools.partial(jnp.repeat, repeats=group_size, axis=0)
  exists = jnp.arange(num_slots) < size[:, None]
  both = jnp.concatenate([repeat(prompts.tokens), tokens], axis=1)
  mask = jnp.concatenate([repeat(prompts.mask), exists], axis=1)
  # Prompts end where completions begin: a shift makes the context end last.
  place = jnp.arange(both.shape[1]) - (num_slots - size)[:, None]
  at = jnp.maximum(place, 0)
  mask = jnp.take_along_axis(mask, at, axis=1) & (place >= 0)
  both = jnp.take_along_axis(both, at, axis=1)
  return jnp.where(mask, both, pad_id), mask


def _images(prompts: Prompts, num_rows: int) -> tuple[Images, ...]:
  """Images of each row's prompt, if there are any."""
  if prompts.images is None:
    return ()
  group_size = num_rows // len(prompts.ids)
  repeat = functools.partial(jnp.repeat, repeats=group_size, axis=0)
  return (jax.tree.map(repeat, prompts.images),)


def put(
  buffer: jax.Array,  # [B, T, ...]
  start: jax.Array,  # [B] int32
  exists: jax.Array,  # [B, n] bool
  x: jax.Array,  # [B, n, ...]
  rows: jax.Array | None = None,  # [B] int32
) -> jax.Array:  # [B, T, ...]
  """Writes existing entries into each row from slot `start` on, if they fit.

  With `rows`, it writes into these rows of a buffer that has more rows.
  """
  num_slots = buffer.shape[1]
  slots = start[:, None] + jnp.arange(exists.shape[1])
  slots = jnp.where(exists, slots, num_slots)  # Else out of range.
  if rows is None:
    rows = jnp.arange(len(buffer))
  return buffer.at[rows[:, None], slots].set(
    x.astype(buffer.dtype), mode="drop"
  )


def draw_more(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  tokens: jax.Array,  # [B, t] int32
  rollout: Rollout,
  keys: jax.Array,  # [B] keys
  size: jax.Array,  # [B] int32
  limits: jax.Array,  # [B] int32
  is_open: jax.Array,  # [B] bool
  config: sampling.SamplerConfig,
  environment: Environment | None = None,
  episodes: turns.Episodes | None = None,
) -> tuple[Rollout, jax.Array, turns.Episodes | None]:  # and [B, n] bool
  """Draws more tokens in the open rows of a rollout.

  All of these rows are decoded at once, whatever `config.lanes` is. Positions
  of draws continue after the tokens that are read.

  Args:
    policy, params: The policy to sample from, and its parameters.
    prompts: P prompts.
    tokens: Tokens to read after the prompts: the first slots of the rollout.
    rollout: Rollout so far, the G rows of each prompt adjacent.
    keys: Keys of the rows.
    size: Number of tokens of each row to read before the first draw.
    limits: Most tokens to draw in each row.
    is_open: True on rows that continue.
    config: Sampling settings; `max_new_tokens` is the largest limit. Static.
    environment: The environment, or None. Static.
    episodes: Episodes of the rows so far; their slots are those of the rollout.
      None without an environment.

  Returns:
    The rollout, the mask of new tokens, and the episodes after them.
  """
  with jax.named_scope("prefill"):
    first_h, prefix, routing = policy.prefill(
      params,
      *joined(prompts, tokens, size, config.pad_id),
      *_images(prompts, len(tokens)),
    )
  before = None
  shift = size  # From slots of the draws to slots of the rollout.
  if environment is not None and episodes is not None:
    length = environment.max_action_len
    at = size[:, None] - length + jnp.arange(length)
    before = jnp.take_along_axis(tokens, jnp.maximum(at, 0), axis=1)
    shift = size - length
    episodes = turns.shift(episodes, -shift)
  decoder = sampling.Decoder(
    policy,
    policy.weights(params),
    dataclasses.replace(config, lanes=None),
    keys,
    first_h,
    prefix,
    limits,
    environment,
    offsets=size,
    before=before,
  )
  with jax.named_scope("decode"):
    state = decoder.run_from_start(routing, episodes, busy=is_open)
  exists = state.buffers["completion_mask"]
  fields: dict[str, Any] = {
    name: put(getattr(rollout, name), size, exists, x)
    for name, x in state.buffers.items()
  }
  episodes = state.episodes
  if environment is None or episodes is None:
    ends = drawing.is_end(state.buffers["tokens"], config) & exists
    fields["terminated"] = rollout.terminated | ends.any(axis=1)
  else:
    fields["terminated"] = episodes.done
    fields["scores"] = turns.scores(environment, episodes)
    episodes = turns.shift(episodes, shift)
  return dataclasses.replace(rollout, **fields), exists, episodes


def budgets(
  of_domains: tuple[int, ...], prompts: Prompts, group_size: int, num_slots: int
) -> jax.Array:  # [B] int32
  """Most tokens of each row: the limit of its prompt's domain.

  Without limits of domains, or if prompts have no domain, a row has all slots.
  """
  if not of_domains or "domain" not in prompts.extras:
    return jnp.full(len(prompts.ids) * group_size, num_slots, jnp.int32)
  own = jnp.array(of_domains, jnp.int32)[prompts.extras["domain"]]  # [P]
  return jnp.repeat(own, group_size)


# Fill values of empty slots, by name, as in `sampling`; others: 0.
_FILLS = {"kept_ids": -1}


def nothing(like: Rollout, pad_id: int) -> Rollout:
  """A rollout without tokens.

  Args:
    like: A rollout of the same rows, or its shapes.
    pad_id: Id in empty slots.
  """
  num_rows = like.tokens.shape[0]
  rows = jnp.arange(num_rows, dtype=jnp.int32) // (num_rows // like.num_groups)
  fills = _FILLS | {"tokens": pad_id}
  fields: dict[str, Any] = {
    field.name: jnp.full(x.shape, fills.get(field.name, 0), x.dtype)
    for field in dataclasses.fields(like)
    if isinstance(
      x := getattr(like, field.name), jax.Array | jax.ShapeDtypeStruct
    )
  }
  if like.scores is not None:
    fields["scores"] = {
      name: jnp.zeros(x.shape, x.dtype) for name, x in like.scores.items()
    }
  fields["version"] = jnp.zeros(like.tokens.shape, jnp.int32)
  # Two arrays: a donated array must not appear twice.
  fields["prompt_index"], fields["group_id"] = rows, jnp.copy(rows)
  return dataclasses.replace(like, **fields)


def cleared(
  rollout: Rollout,
  rows: jax.Array,  # [B] bool
  pad_id: int,
) -> Rollout:
  """Clears these rows of a rollout."""
  empty = nothing(rollout, pad_id)
  return jax.tree.map(
    lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y),
    empty,
    rollout,
  )


def continue_rows(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  rollout: Rollout,
  limits: jax.Array,  # [B] int32
  step: jax.Array,  # [] int32
  *,
  config: sampling.SamplerConfig,
  most: int,
  environment: Environment | None = None,
  episodes: turns.Episodes | None = None,
) -> tuple[Rollout, turns.Episodes | None]:
  """Continues each row that has not ended, up to its limit.

  All rows are decoded at once. With an environment a row is an episode. It may
  be cut anywhere, in an action or in an observation, and continues from the
  state of its environment.

  Args:
    policy: The policy to sample from.
    params: Its parameters.
    prompts: P prompts.
    keys: Keys of the rows, from the step in which each one began.
    rollout: Tokens so far, perhaps none, the G rows of each prompt adjacent.
    limits: Most tokens of each row, old and new together; at most T.
    step: The version of the new tokens.
    config: Sampling settings. Static.
    most: Most new tokens of any row. Static.
    environment: The environment, or None. Static.
    episodes: Episodes of the rows after the last step; those of rows without
      tokens are not read. None without an environment.

  Returns:
    The rollout, and the episodes so far.
  """
  size = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
  if environment is not None:
    episodes = _put_new(environment, prompts, keys, episodes, size == 0)
  longer, exists, episodes = draw_more(
    *(policy, params, prompts, rollout.tokens, rollout, keys, size),
    limits - size,
    ~rollout.terminated & (size < limits),
    dataclasses.replace(config, max_new_tokens=most),
    environment,
    episodes,
  )
  assert rollout.version is not None
  version = put(
    rollout.version, size, exists, jnp.broadcast_to(step, exists.shape)
  )
  return dataclasses.replace(longer, version=version), episodes


def _put_new(
  environment: Environment,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  episodes: turns.Episodes | None,
  rows: jax.Array,  # [B] bool
) -> turns.Episodes:
  """Puts new episodes into these rows."""
  fresh = begin(environment, prompts, keys)
  return jax.tree.map(
    lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y),
    *(fresh, fresh if episodes is None else episodes),
  )


def begin(
  environment: Environment,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
) -> turns.Episodes:
  """Episodes of P prompts, before the first token."""
  group_size = len(keys) // len(prompts.ids)
  extras = jax.tree.map(
    lambda x: jnp.repeat(x, group_size, axis=0), prompts.extras
  )
  return turns.begin(environment, keys, extras)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ResumedContexts:
  """Contexts to continue, each with its settings.

  Attributes:
    tokens: Token ids of P contexts, left-padded as in prompts. As many rows
      continue each of them, B / P that are adjacent.
    mask: True on the tokens that exist.
    keys: Data of the key of each row, from `jax.random.key_data`.
    first: Position of the first draw: 0, or the number of tokens of the
      completion that are already in the context.
    limits: Most tokens to draw, at least 1.
    exists: True on rows that are drawn.
    temperature: Temperature of each row; 0 takes the most likely token. Not
      read if the config decides.
    top_p: top_p of each row, in (0, 1]. Not read if the config decides.
  """

  tokens: jax.Array  # [P, C] int32
  mask: jax.Array  # [P, C] bool
  keys: jax.Array  # [B, ...] uint32
  first: jax.Array  # [B] int32
  limits: jax.Array  # [B] int32
  exists: jax.Array  # [B] bool
  temperature: jax.Array  # [B] float32
  top_p: jax.Array  # [B] float32


@jax.custom_batching.custom_vmap
def any_of_all(x: jax.Array) -> jax.Array:  # [...] bool -> [] bool
  """True if any entry of any policy that is run is True."""
  return x.any()


@any_of_all.def_vmap
def _of_policies(size, is_mapped, x):
  del size, is_mapped
  return any_of_all(x), False


@dataclasses.dataclass(frozen=True)
class _Each(sampling.Decoder):
  """A decoder whose rows have a temperature and a top_p of their own."""

  contexts: ResumedContexts | None = None

  def is_busy(self, state):  # [] bool
    """True if a lane is busy, of any policy that is run together with this."""
    return any_of_all(state.busy)

  def draw_tokens(self, state, logits, keys, positions):  # [W, V], [W], [W]
    """Draws with the settings of each row; see `drawing.draw`."""
    assert self.contexts is not None
    return draw_each(
      logits,
      keys,
      positions,
      self.in_lanes(self.contexts.temperature, state.row),
      self.in_lanes(self.contexts.top_p, state.row),
    )


def draw_each(
  logits: jax.Array,  # [B, V]
  keys: jax.Array,  # [B] keys
  positions: jax.Array,  # [B] int32
  temperature: jax.Array,  # [B] float32
  top_p: jax.Array,  # [B] float32
) -> tuple[jax.Array, dict[str, jax.Array], None, jax.Array]:
  """Draws with a temperature and a top_p for each row.

  If the temperature is 0, the records are 0 and the log-prob at temperature 1,
  as in `drawing.draw`. Kept ids are not recorded.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  is_random = (temperature > 0)[:, None]  # [B, 1]
  scaled = logits / jnp.where(is_random, temperature[:, None], 1.0)

  def filtered_by_mass():
    p = top_p[:, None]  # [B, 1]
    return jnp.where(is_random & (p < 1), drawing.top_p(scaled, p), scaled)

  # A sort of the vocabulary, which most requests do not need.
  filtered = lax.cond(any_of_all(top_p < 1), filtered_by_mass, lambda: scaled)

  noises = drawing.noise(logits, keys, positions)  # [B, V]
  tokens = drawing.argmax(filtered + jnp.where(is_random, noises, 0.0))  # [B]
  is_random = is_random[:, 0]
  values = (
    jnp.where(is_random, logprobs.token_logprobs(filtered, tokens), 0.0),
    logprobs.token_logprobs(scaled, tokens),
    jnp.where(is_random, logprobs.entropy_from_logits(filtered), 0.0),
  )
  records = dict(zip(drawing.RECORDS, values, strict=True))
  return tokens, records, None, filtered


def draw(
  policy: Policy,
  params: PyTree,
  contexts: ResumedContexts,
  config: sampling.SamplerConfig,
  is_own: bool,
) -> dict[str, jax.Array]:  # each [B, T]
  """Continues every context.

  Args:
    policy: The policy to sample from.
    params: Its parameters.
    contexts: The rows.
    config: Most tokens, end ids, and, unless `is_own`, the settings of draws.
      Static; without lanes.
    is_own: True if rows have temperatures and a top_p of their own.

  Returns:
    "tokens", "completion_mask" and `drawing.RECORDS`, as in a `Rollout`.
  """
  with jax.named_scope("prefill"):
    first_h, prefix, routing = policy.prefill(
      params, contexts.tokens, contexts.mask
    )
  fields: dict[str, Any] = {
    "policy": policy,
    "weights": policy.weights(params),
    "config": config,
    "keys": jax.random.wrap_key_data(contexts.keys),
    "first_h": first_h,
    "prefix": prefix,
    "limits": jnp.clip(contexts.limits, 1, config.max_new_tokens),
    "offsets": contexts.first,
  }
  decoder = (
    _Each(**fields, contexts=contexts) if is_own else sampling.Decoder(**fields)
  )
  with jax.named_scope("decode"):
    state = decoder.run_from_start(routing, busy=contexts.exists)
  return state.buffers


class Alternatives(NamedTuple):
  """Log-probs of tokens and of the likeliest tokens in their places, nats.

  Slot t is about token t + 1 of a row, which begins with its context.
  """

  logp: jax.Array  # [B, C + T - 1]
  ids: jax.Array  # [B, C + T - 1, k] int32
  top_logp: jax.Array  # [B, C + T - 1, k]


def alternatives(
  policy: Policy,
  params: PyTree,
  contexts: ResumedContexts,
  draws: dict[str, jax.Array],  # each [B, T]
  k: int,
  chunk_bytes: int = 2**26,
) -> Alternatives:
  """Runs contexts and their drawn tokens once more, whole.

  Log-probs of a context's tokens are at temperature 1. Log-probs of drawn
  tokens are those of their sampling distribution; of a greedy row, at
  temperature 1.

  Args:
    policy, params, contexts: As in `draw`, with settings of each row.
    draws: Result of `draw`.
    k: Number of likeliest tokens of each place, at most V.
    chunk_bytes: Bytes of float32 logits that are computed at a time.

  Returns:
    Log-probs; -inf of tokens that top_p leaves out. Slots after the last token
    of a row are arbitrary.
  """
  num_rows = len(draws["tokens"])
  share = num_rows // len(contexts.tokens)
  of_context, context_mask = (
    jnp.repeat(x, share, axis=0) for x in (contexts.tokens, contexts.mask)
  )
  tokens = jnp.concatenate([of_context, draws["tokens"]], axis=1)  # [B, L]
  size = context_mask.sum(axis=1) + draws["completion_mask"].sum(axis=1)  # [B]
  # Shifted to slot 0: the first token is the prompt of the others.
  places = jnp.arange(tokens.shape[1]) + context_mask.argmax(axis=1)[:, None]
  tokens = jnp.take_along_axis(tokens, places % tokens.shape[1], axis=1)
  mask = jnp.arange(tokens.shape[1]) < size[:, None]  # [B, L]
  h, _ = policy.hidden(
    params,
    tokens[:, :1],
    jnp.ones((num_rows, 1), bool),
    tokens[:, 1:],
    mask[:, 1:],
    jnp.arange(num_rows),
  )
  num_slots = h.shape[1]
  size_of_context = context_mask.sum(axis=1)[:, None]  # [B, 1]
  is_drawn = jnp.arange(1, num_slots + 1) >= size_of_context
  is_drawn &= (contexts.temperature > 0)[:, None]  # [B, L - 1]
  temperature = jnp.where(is_drawn, contexts.temperature[:, None], 1.0)
  top_p = jnp.where(is_drawn, contexts.top_p[:, None], 1.0)

  def head(h):
    logits = policy.head(params, h)
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

  size = logprobs.chunk_size(head, h, chunk_bytes)
  logits = jax.eval_shape(head, logprobs.positions(h, 1))  # [B, 1, V]
  k = min(k, logits.shape[-1])

  def write(start, is_new, buffers):
    del is_new
    h_, tokens_, temperature_, p = logprobs.take(
      (h, tokens[:, 1:], temperature, top_p), start, size
    )
    logits = head(h_) / temperature_[..., None]  # [B, size, V]

    def filtered():
      rows = logits.reshape(-1, logits.shape[-1])
      top = drawing.top_p(rows, p.reshape(-1, 1)).reshape(logits.shape)
      return jnp.where(p[..., None] < 1, top, logits)

    logits = lax.cond(any_of_all(p < 1), filtered, lambda: logits)
    total = jax.nn.logsumexp(logits, axis=-1)  # [B, size]
    values, ids = logprobs.top_k(logits, k)  # [B, size, k]
    own = jnp.take_along_axis(logits, tokens_[..., None], axis=-1)
    # One formula for all, so that the likeliest token has the largest log-prob.
    chunk = Alternatives(
      (own - total[..., None])[..., 0], ids, values - total[..., None]
    )
    return logprobs.put(buffers, chunk, start)

  shape = (num_rows, num_slots)
  buffers = Alternatives(
    jnp.zeros(shape, logits.dtype),
    jnp.zeros((*shape, k), jnp.int32),
    jnp.zeros((*shape, k), logits.dtype),
  )
  return logprobs.fold(write, buffers, num_slots, size)
