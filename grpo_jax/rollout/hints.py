"""Guided error correction: wrong completions go on from a hint.

A completion that was judged to be wrong is a draft. By a draw of its own, it

    p_cue        has a cue appended, and the policy goes on after it
    p_answer     has a sentence with the right answer appended
    p_reference  is replaced by a whole right completion

and stays as it is otherwise. The end token of a draft is removed where
something comes after it. A prompt without a reference has the answer in its
place. What was put in (*injected*) was not drawn of the policy, and is not
trained unless somebody asks for it. Everything is inside the program of the
step; whoever calls judges the rows again.

Source: "EDGE-GRPO", arXiv:2507.21848, Section 3, and its code,
ZhangXJ199/EDGE-GRPO. There `cue` is " Wait! Something is wrong here.", the
probabilities are 1/2, 1/4 and 1/4, and all tokens are trained, with a ratio of
1. Deviations: a row is wrong where the judge says so, and not where its reward
is below the largest possible one, which nobody knows of a sum of rewards; and
injected tokens are not trained by default; where they are, their ratio is 1
before the first gradient step only.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.ops import logprobs
from grpo_jax.rollout import drawing, resumed, sampling
from grpo_jax.types import Corrections, Policy, Prompts, PyTree, Rollout, Scored

# Names among the extras of prompts, each [P, n] int32 with -1 behind: what is
# appended with the answer, end token included, and a whole right completion.
# Without any token there is none.
ANSWER, REFERENCE = "correction/answer", "correction/reference"
# What is put in, as in `Corrections.kind`.
NONE, BY_CUE, BY_ANSWER, BY_REFERENCE = range(4)
# Folded into the key of a row, where tokens fold their positions.
_KIND = 2**31 - 3


@dataclasses.dataclass(frozen=True)
class Correction:
  """What is done with wrong completions.

  Attributes:
    p_cue, p_answer, p_reference: Probabilities, which add up to 1 at most.
    cue: Token ids, at least one.
    max_new_tokens: Most tokens that the policy writes after a cue.
    max_prompt_len: Rows of longer prompts stay as they are.
    train_injected: Whether what is put in is trained.
    limits: Most tokens of a completion for each domain of prompts; empty: all
      slots.
  """

  p_cue: Any
  p_answer: Any
  p_reference: Any
  cue: tuple[int, ...]
  max_new_tokens: int
  max_prompt_len: int
  train_injected: bool = False
  limits: tuple[int, ...] = ()


class Plan(NamedTuple):
  """What becomes of each row.

  Attributes:
    kind, unfit: As in `Corrections`.
    start: Where the hint begins.
    hint: What is put in.
    size: Tokens of it; 0 where a row stays as it is.
  """

  kind: jax.Array  # [B] int32
  unfit: jax.Array  # [B] bool
  start: jax.Array  # [B] int32
  hint: jax.Array  # [B, n] int32
  size: jax.Array  # [B] int32


def kinds(
  correction: Correction,
  keys: jax.Array,  # [B] keys
  has_reference: jax.Array,  # [B] bool
) -> jax.Array:  # [B] int32
  """What each row would have put in, if it were wrong.

  Args:
    correction: Its probabilities.
    keys: Of the rows.
    has_reference: Rows without one have the answer in its place.
  """
  folded = jax.vmap(jax.random.fold_in, (0, None))(keys, _KIND)
  chance = jax.vmap(lambda key: jax.random.uniform(key))(folded)  # [B]
  by_answer = correction.p_cue + correction.p_answer
  by_reference = by_answer + correction.p_reference
  kind = jnp.select(
    [
      chance < jnp.asarray(end)
      for end in (correction.p_cue, by_answer, by_reference)
    ],
    [BY_CUE, BY_ANSWER, BY_REFERENCE],
    NONE,
  )
  without = (kind == BY_REFERENCE) & ~has_reference
  return jnp.where(without, BY_ANSWER, kind).astype(jnp.int32)


def plan(
  correction: Correction,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  rollout: Rollout,
  is_wrong: jax.Array,  # [B] bool
) -> Plan:
  """What becomes of the rows of a rollout.

  Args:
    correction: What to do.
    prompts: Their extras have `ANSWER` and `REFERENCE`.
    keys: Of the rows.
    rollout: Drafts.
    is_wrong: Those that are to be corrected.
  """
  rows, slots = rollout.prompt_index, rollout.tokens.shape[1]
  answer, reference = (prompts.extras[x][rows] for x in (ANSWER, REFERENCE))
  width = max(len(correction.cue), answer.shape[1], reference.shape[1])

  def wide(ids):  # [B, n] -> [B, width]
    missing = width - ids.shape[1]
    return jnp.pad(ids, ((0, 0), (0, missing)), constant_values=-1)

  cue = jnp.broadcast_to(
    jnp.asarray(correction.cue, jnp.int32), (len(rows), len(correction.cue))
  )
  kind = kinds(correction, keys, (reference >= 0).any(axis=1))
  hints = jnp.stack([wide(x) for x in (cue, answer, reference)])  # [3, B, n]
  which = jnp.maximum(kind - 1, 0)[None, :, None]
  hint = jnp.take_along_axis(hints, which, axis=0)[0]
  size = (hint >= 0).sum(axis=1, dtype=jnp.int32)
  drafted = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
  start = jnp.where(kind == BY_REFERENCE, 0, drafted - rollout.terminated)
  group_size = len(rows) // len(prompts.ids)
  room = resumed.budgets(correction.limits, prompts, group_size, slots)
  more = jnp.where(kind == BY_CUE, correction.max_new_tokens, 0)
  fits = (start + size + more <= room) & (size > 0)
  # A draft that the budget has cut off ends anywhere, and only what replaces it
  # has room.
  fits &= rollout.terminated | (kind == BY_REFERENCE)
  is_short = prompts.mask.sum(axis=1)[rows] <= correction.max_prompt_len
  wanted = is_wrong & is_short & (kind != NONE)
  done = wanted & fits
  return Plan(
    kind=jnp.where(done, kind, NONE),
    unfit=wanted & ~fits,
    start=jnp.where(done, start, drafted),
    hint=hint,
    size=jnp.where(done, size, 0),
  )


def correct(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,  # [] key of (seed, step)
  rollout: Rollout,
  scored: Scored,
  *,
  config: sampling.SamplerConfig,
  correction: Correction,
) -> Rollout:
  """A rollout with some of its wrong rows corrected.

  The draws of a row depend on its key alone: which hint it has, and its tokens,
  whose positions count on. All rows that go on do so at once, whatever
  `config.lanes`.

  Args:
    policy: What to sample from.
    params: Its parameters.
    prompts: P prompts, whose extras have `ANSWER` and `REFERENCE`.
    key: That of the rollout; see `sampling.sample`.
    rollout: Drafts, the G of each prompt adjacent.
    scored: What was said of them.
    config: How they were drawn. Static.
    correction: What to do. Static.

  Returns:
    Rows as they were, or corrected; `behavior_logp`, `sampler_logp` and
    `entropy` are 0 at injected tokens, unless these are trained: then they are
    those of a pass over the whole row.

  Raises:
    ValueError: Inputs are mixed, or routing is recorded: what reads a draft
      again knows of neither.
  """
  if config.mix is not None or config.record_routing:
    raise ValueError(
      "correct: config.mix is set or config.record_routing is True, and a draft"
      " is read again as it is written; set neither."
    )
  group_size = len(rollout.tokens) // len(prompts.ids)
  keys = drawing.row_keys(key, prompts.ids, group_size)
  is_wrong = scored.valid & ~scored.correct
  found = plan(correction, prompts, keys, rollout, is_wrong)
  whole, injected, removed = _with_hints(rollout, found, config.pad_id)
  with jax.named_scope("correction"):
    if correction.p_cue:
      whole = _continued(
        policy, params, prompts, keys, whole, found, config, correction
      )
    if correction.train_injected:
      whole = _with_own_outputs(
        policy, params, prompts, whole, injected, config.temperature
      )
    else:
      whole = dataclasses.replace(whole, observed=injected)
  return dataclasses.replace(
    whole,
    corrections=Corrections(
      kind=found.kind,
      unfit=found.unfit,
      injected=injected,
      removed=removed,
      rewards=scored.rewards,
      valid=scored.valid,
      correct=scored.correct,
    ),
  )


def _with_hints(
  rollout: Rollout, found: Plan, pad_id: int
) -> tuple[Rollout, jax.Array, jax.Array]:
  """Drafts with hints, what is injected [B, T], and how many are gone [B]."""
  slots = jnp.arange(rollout.tokens.shape[1])
  kept = rollout.completion_mask & (slots < found.start[:, None])
  removed = rollout.completion_mask & ~kept
  exists = jnp.arange(found.hint.shape[1]) < found.size[:, None]
  injected = resumed.put(jnp.zeros_like(kept), found.start, exists, exists)
  fields: dict[str, Any] = {
    name: jnp.where(kept.reshape(*kept.shape, *[1] * (x.ndim - 2)), x, fill)
    for name, fill in (
      ("tokens", pad_id),
      ("completion_mask", False),
      ("behavior_logp", 0.0),
      ("sampler_logp", 0.0),
      ("entropy", 0.0),
      ("kept_ids", -1),
    )
    if (x := getattr(rollout, name)) is not None
  }
  for name, x in (("tokens", found.hint), ("completion_mask", exists)):
    fields[name] = resumed.put(fields[name], found.start, exists, x)
  # Hints with an answer have an end token; after a cue somebody goes on.
  terminated = jnp.where(
    found.kind == NONE, rollout.terminated, found.kind != BY_CUE
  )
  rollout = dataclasses.replace(rollout, **fields, terminated=terminated)
  return rollout, injected, removed.sum(axis=1, dtype=jnp.int32)


def _continued(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  rollout: Rollout,
  found: Plan,
  config: sampling.SamplerConfig,
  correction: Correction,
) -> Rollout:
  """The rows in which the policy has gone on after cues."""
  most = correction.max_new_tokens
  goes_on = found.kind == BY_CUE
  size = jnp.where(goes_on, found.start + found.size, 0)
  # What goes on has room for that, and a prompt that is short enough.
  tokens = rollout.tokens[:, : max(config.max_new_tokens - most, 0)]
  longest = min(prompts.tokens.shape[1], correction.max_prompt_len)
  short = dataclasses.replace(
    prompts,
    tokens=prompts.tokens[:, -longest:],
    mask=prompts.mask[:, -longest:],
  )
  longer, *_ = resumed.gone_on(
    *(policy, params, short, tokens, rollout, keys, size),
    jnp.full(len(keys), most, jnp.int32),
    goes_on,
    dataclasses.replace(config, max_new_tokens=most),
  )
  return longer


def _with_own_outputs(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  rollout: Rollout,
  injected: jax.Array,  # [B, T] bool
  temperature: Any,
) -> Rollout:
  """With what the policy says of injected tokens, as if it had drawn them."""
  h, _ = policy.hidden(
    params,
    prompts.tokens,
    prompts.mask,
    rollout.tokens,
    rollout.completion_mask,
    rollout.prompt_index,
    prompts.shown,
  )
  own = logprobs.token_outputs(
    functools.partial(policy.head, params),
    h,
    rollout.tokens,
    temperature=temperature,
    with_entropy=True,
  )
  assert own.entropy is not None
  fields: dict[str, Any] = {
    name: jnp.where(injected, x, getattr(rollout, name))
    for name, x in (
      ("behavior_logp", own.logp),
      ("sampler_logp", own.logp),
      ("entropy", own.entropy),
    )
  }
  return dataclasses.replace(rollout, **fields)
