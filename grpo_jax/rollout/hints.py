"""Guided error correction: wrong completions continue from a hint.

A completion that was judged to be wrong is a draft. With these probabilities,

    p_cue        a cue is appended, and the policy goes on after it
    p_answer     a sentence with the right answer is appended
    p_reference  a whole right completion replaces the draft

and otherwise the draft stays. The end token of a draft is removed if tokens
follow. A prompt without a reference gets the answer instead. Tokens that were
put in (*injected*) are not draws of the policy, and are not trained by default.
All of this is inside the program of the step; the caller scores the rows again.

Source: "EDGE-GRPO", arXiv:2507.21848, Section 3, and its code,
ZhangXJ199/EDGE-GRPO. There `cue` is " Wait! Something is wrong here.", the
probabilities are 1/2, 1/4 and 1/4, and all tokens are trained, with a ratio of
1. Deviations: a row is wrong if it is scored as not correct; the authors ask if
its reward is below the largest possible reward, which is not known for a sum of
rewards. Injected tokens are not trained by default; if they are, their ratio is
1 before the first gradient step only.
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

# Names among the extras of prompts, each [P, n] int32 with -1 behind: the
# sentence with the answer, end token included, and a whole right completion.
# Rows of -1 stand for "none".
ANSWER, REFERENCE = "correction/answer", "correction/reference"
# Kinds of correction, as in `Corrections.kind`.
NONE, BY_CUE, BY_ANSWER, BY_REFERENCE = range(4)
# Folded into the key of a row, where tokens fold their positions.
_KIND = 2**31 - 3


@dataclasses.dataclass(frozen=True)
class Correction:
  """The settings of corrections of wrong completions.

  Attributes:
    p_cue, p_answer, p_reference: Probabilities, which add up to 1 at most.
    cue: Token ids, at least one.
    max_new_tokens: Most tokens that the policy writes after a cue.
    max_prompt_len: Rows of longer prompts stay as they are.
    train_injected: True if injected tokens are trained.
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
  """The correction of each row.

  Attributes:
    kind, unfit: As in `Corrections`.
    start: Slot at which the hint begins.
    hint: Tokens of the hint.
    size: Number of tokens of the hint; 0 if a row stays as it is.
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
  """Draws the kind of correction that each row gets if it is wrong.

  Args:
    correction: Settings with the probabilities.
    keys: Keys of the rows.
    has_reference: False on rows that get the answer instead of a reference.
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
  """Plans the corrections of the rows of a rollout.

  Args:
    correction: The settings.
    prompts: P prompts, whose extras have `ANSWER` and `REFERENCE`.
    keys: Keys of the rows.
    rollout: Drafts.
    is_wrong: True on rows to correct.
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
  draft_len = rollout.completion_mask.sum(axis=1, dtype=jnp.int32)
  start = jnp.where(kind == BY_REFERENCE, 0, draft_len - rollout.terminated)
  group_size = len(rows) // len(prompts.ids)
  room = resumed.budgets(correction.limits, prompts, group_size, slots)
  more = jnp.where(kind == BY_CUE, correction.max_new_tokens, 0)
  fits = (start + size + more <= room) & (size > 0)
  # A draft that the budget has cut off ends anywhere and has no room behind it;
  # it can only be replaced.
  fits &= rollout.terminated | (kind == BY_REFERENCE)
  is_short = prompts.mask.sum(axis=1)[rows] <= correction.max_prompt_len
  due = is_wrong & is_short & (kind != NONE)
  done = due & fits
  return Plan(
    kind=jnp.where(done, kind, NONE),
    unfit=due & ~fits,
    start=jnp.where(done, start, draft_len),
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
  """Corrects some of the wrong rows of a rollout.

  The draws of a row, of its hint and of its tokens, depend on its key alone.
  Positions continue after the hint. All rows that continue are decoded at once,
  whatever `config.lanes` is.

  Args:
    policy: The policy to sample from.
    params: Its parameters.
    prompts: P prompts, whose extras have `ANSWER` and `REFERENCE`.
    key: Key of the rollout; see `sampling.sample`.
    rollout: Drafts, the G of each prompt adjacent.
    scored: Scores of the drafts.
    config: Sampling settings of the drafts. Static.
    correction: The settings of corrections. Static.

  Returns:
    Rows as they were, or corrected. `behavior_logp`, `sampler_logp` and
    `entropy` are 0 at injected tokens, unless these are trained: then they
    come from a pass over the whole row.

  Raises:
    ValueError: Inputs are mixed, or routing is recorded: the pass that reads a
      draft again supports neither.
  """
  if config.mix is not None or config.record_routing:
    raise ValueError(
      "correct: config.mix is set or config.record_routing is True, and a draft"
      " is read again as it is written; set neither."
    )
  group_size = len(rollout.tokens) // len(prompts.ids)
  keys = drawing.row_keys(key, prompts.ids, group_size)
  is_wrong = scored.valid & ~scored.correct
  hints = plan(correction, prompts, keys, rollout, is_wrong)
  output, injected, removed = _with_hints(rollout, hints, config.pad_id)
  with jax.named_scope("correction"):
    if correction.p_cue:
      output = _continue(
        policy, params, prompts, keys, output, hints, config, correction
      )
    if correction.train_injected:
      output = _with_own_outputs(
        policy, params, prompts, output, injected, config.temperature
      )
    else:
      output = dataclasses.replace(output, observed=injected)
  return dataclasses.replace(
    output,
    corrections=Corrections(
      kind=hints.kind,
      unfit=hints.unfit,
      injected=injected,
      removed=removed,
      rewards=scored.rewards,
      valid=scored.valid,
      correct=scored.correct,
    ),
  )


def _with_hints(
  rollout: Rollout, plan: Plan, pad_id: int
) -> tuple[Rollout, jax.Array, jax.Array]:
  """Drafts with hints, the injected tokens [B, T], and removed counts [B]."""
  slots = jnp.arange(rollout.tokens.shape[1])
  keep = rollout.completion_mask & (slots < plan.start[:, None])
  removed = rollout.completion_mask & ~keep
  exists = jnp.arange(plan.hint.shape[1]) < plan.size[:, None]
  injected = resumed.put(jnp.zeros_like(keep), plan.start, exists, exists)
  fields: dict[str, Any] = {
    name: jnp.where(keep.reshape(*keep.shape, *[1] * (x.ndim - 2)), x, fill)
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
  for name, x in (("tokens", plan.hint), ("completion_mask", exists)):
    fields[name] = resumed.put(fields[name], plan.start, exists, x)
  # Hints with an answer have an end token; after a cue the policy goes on.
  terminated = jnp.where(
    plan.kind == NONE, rollout.terminated, plan.kind != BY_CUE
  )
  rollout = dataclasses.replace(rollout, **fields, terminated=terminated)
  return rollout, injected, removed.sum(axis=1, dtype=jnp.int32)


def _continue(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  keys: jax.Array,  # [B] keys
  rollout: Rollout,
  plan: Plan,
  config: sampling.SamplerConfig,
  correction: Correction,
) -> Rollout:
  """Continues rows after cues with draws of the policy."""
  most = correction.max_new_tokens
  continues = plan.kind == BY_CUE
  size = jnp.where(continues, plan.start + plan.size, 0)
  # Rows that continue have room for `most` tokens, and a short prompt.
  tokens = rollout.tokens[:, : max(config.max_new_tokens - most, 0)]
  longest = min(prompts.tokens.shape[1], correction.max_prompt_len)
  short = dataclasses.replace(
    prompts,
    tokens=prompts.tokens[:, -longest:],
    mask=prompts.mask[:, -longest:],
  )
  longer, *_ = resumed.draw_more(
    *(policy, params, short, tokens, rollout, keys, size),
    jnp.full(len(keys), most, jnp.int32),
    continues,
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
  """Adds the policy's log-probs and entropy at injected tokens to a rollout."""
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
