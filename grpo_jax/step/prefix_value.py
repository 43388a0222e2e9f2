"""Values of prefixes from the probabilities of known answers.

    V̂(s) = Σ_{y ∈ Y} π(y, closer | s, opener) u(y)

Y has a right answer and the distinct final answers of the group; u(y) in [0, 1]
is the verifier's score of y. Tokens are not sampled: opener, answer and closer
are appended to each prefix, and one teacher-forced pass gives their
probability. Keys and values of a row are computed once, and each prefix of the
row sees its part of them, so a pass is over the appended tokens alone. Answers
with utility 0 do not change the sum, and are not run.

The keys and values of a prefix have a hole behind them. This is right if tokens
attend to all tokens before them. A state has read the tokens of the hole too,
so models with states run each prefix whole. Splash, the kernel for TPUs, counts
the slots and not the tokens of a sliding window, so it cannot be used here.

Source: RREDCoT, arXiv:2606.06475; see `algorithms/rredcot.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import logprobs, masked, segments
from grpo_jax.step import features, passes
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import ModelView
from grpo_jax.types import (
  AnswerFields,
  Extras,
  Metrics,
  Prompts,
  TrainBatch,
  set_fields,
)


class Answers(NamedTuple):
  """A task's right answers and utilities, in the graph.

  Attributes:
    right: (extras of one problem) -> [A] int32, a right answer.
    worth: (tokens [F], mask [F], extras) -> [] in [0, 1], the utility of a
      completion.
    pad_id: Id in the slots behind a right answer.
  """

  right: Callable[[Extras], jax.Array]
  worth: Callable[[jax.Array, jax.Array, Extras], jax.Array]
  pad_id: int


@dataclasses.dataclass(frozen=True)
class ForcedAnswers(features.PrefixValues):
  """Settings and functions for answers that are appended to prefixes.

  Attributes:
    opener, closer: Token ids around an answer, at least one each.
    delimiter: True for ids that end a segment.
    entropy_quantile: See `segments.uncertain`.
    min_gap, max_segments: See `segments.ends`.
  """

  answers: Answers
  opener: tuple[int, ...]
  closer: tuple[int, ...]
  delimiter: np.ndarray  # [V] bool
  entropy_quantile: float
  min_gap: int
  max_segments: int

  def with_candidates(self, prompts: Prompts, batch: TrainBatch) -> TrainBatch:
    """Adds segments, and the answers to append after them, to a batch.

    Args:
      prompts: P prompts with their extras.
      batch: B rows, the G of each prompt adjacent.
    """
    gold = jax.vmap(self.answers.right)(prompts.extras)  # [P, A]
    size = gold.shape[1]
    finals = jax.vmap(functools.partial(self._final_answer, size=size))(
      batch.tokens, batch.completion_mask
    )  # [B, A], -1 behind an answer and without an answer.
    answers = jnp.concatenate(
      [
        jnp.where(gold == self.answers.pad_id, -1, gold)[:, None],
        finals.reshape(len(gold), -1, size),
      ],
      axis=1,
    )  # [P, C, A]
    is_again = jnp.tril((answers[:, :, None] == answers[:, None]).all(-1), -1)
    forced = jax.vmap(jax.vmap(self._forced))(answers)  # [P, C, F]

    def utilities(forced, extras):  # [C, F] -> [C]
      return jax.vmap(lambda row: self.answers.worth(row, row >= 0, extras))(
        forced
      )

    utility = jax.vmap(utilities)(forced, prompts.extras)
    # A row without an answer counts as an empty answer.
    utility = jnp.where(is_again.any(axis=-1), 0.0, masked.wide(utility))
    best = jnp.argsort(-utility, axis=1, stable=True)
    rows = batch.prompt_index
    return dataclasses.replace(
      batch,
      answers=AnswerFields(
        jnp.take_along_axis(forced, best[..., None], axis=1)[rows],
        jnp.take_along_axis(utility, best, axis=1)[rows],
        self._segment_end(batch),
      ),
    )

  def _final_answer(self, tokens, mask, *, size):  # [T], [T] -> [size]
    """The tokens between the last opener and the closer, or -1s."""
    slots = jnp.arange(len(tokens))
    opens = mask & (tokens == self.opener[-1])
    start = jnp.max(jnp.where(opens, slots, -1)) + 1
    closes = mask & (tokens == self.closer[0]) & (slots >= start)
    end = jnp.argmax(closes)
    is_complete = opens.any() & closes.any() & (end - start <= size)
    place = start + jnp.arange(size)
    ids = jnp.take(tokens, place, mode="clip")
    return jnp.where(is_complete & (place < end), ids, -1)

  def _forced(self, answer):  # [A] -> [F], -1 behind
    """Joins opener, answer and closer without a gap."""
    opener, closer = (
      jnp.array(x, jnp.int32) for x in (self.opener, self.closer)
    )
    row = jnp.concatenate([opener, answer.astype(jnp.int32), closer])
    order = jnp.argsort(row < 0, stable=True)
    return row[order]

  def _segment_end(self, batch: TrainBatch) -> jax.Array:  # [B, T] bool
    """True at ends of segments: by the settings, and before the answer."""
    mask = batch.completion_mask
    is_opener = (batch.tokens[..., None] == jnp.array(self.opener)).any(-1)
    in_thought = mask & (jnp.cumsum(is_opener & mask, axis=1) == 0)
    # A policy may have more ids than the tokenizer.
    delimiter = jnp.take(
      jnp.asarray(self.delimiter), batch.tokens, mode="fill", fill_value=False
    )
    begins = segments.uncertain(
      batch.sampler.entropy, mask, self.entropy_quantile
    )
    is_last = in_thought & ~jnp.pad(in_thought[:, 1:], ((0, 0), (0, 1)))
    return segments.ends(
      (in_thought & delimiter) | is_last,
      in_thought & begins,
      mask,
      self.min_gap,
      self.max_segments,
    )

  def with_utilities(
    self,
    plan: UpdatePlan,
    view: ModelView,
    batch: TrainBatch,
    couples_group: bool = False,
  ) -> TrainBatch:
    """Adds V̂ of each prefix to a batch, without gradient.

    Args:
      batch: Batch of `with_candidates`.
    """
    with jax.named_scope("forced_answers"):
      fields = passes.fields(
        plan,
        view.trunk,
        batch,
        functools.partial(self._of_rows, plan, view),
        couples_group,
      )
    return set_fields(batch, fields)

  def _of_rows(
    self, plan: UpdatePlan, view: ModelView, part: TrainBatch, prefix: Any
  ) -> dict[str, jax.Array]:
    """V̂ of the prefix before the segment of each token of some rows."""
    del prefix  # Of prompts alone; here a prefix has completion tokens, too.
    policy, params, _ = view.trunk
    num_rows = len(part.tokens)
    number = segments.numbers(part.answers.segment_end)  # [rows, slots]
    tokens, mask = (
      jnp.concatenate([of_prompts[part.prompt_index], of_rows], axis=1)
      for of_prompts, of_rows in (
        (part.prompts.tokens, part.tokens),
        (part.prompts.mask, part.completion_mask),
      )
    )
    first = jnp.full((num_rows, 1), self.opener[0], tokens.dtype)
    always = jnp.ones_like(first, bool)
    tokens = jnp.concatenate([tokens, first], axis=1)
    # The last slot is not run here, but together with each answer.
    cache = None
    if not policy.has_states:
      cache = policy.prefix(params, tokens, jnp.pad(mask, ((0, 0), (0, 1))))

    def of_answer(k, c, total):
      before = part.completion_mask & (number < k)
      visible = jnp.concatenate(
        [part.prompts.mask[part.prompt_index], before, always], axis=1
      )
      if cache is None:  # Rows are run whole, perhaps by models without holes.
        order = jnp.argsort(visible, axis=1, stable=True)
        of_prefix, visible = (
          jnp.take_along_axis(x, order, axis=1) for x in (tokens, visible)
        )
      else:
        of_prefix = tokens
      forced = part.answers.ids[:, c, 1:]  # [rows, F - 1]
      exists = forced >= 0
      h, _ = policy.hidden(
        params,
        of_prefix,
        visible,
        jnp.maximum(forced, 0),
        exists,
        jnp.arange(num_rows),
        None,
        cache,
      )
      logp = logprobs.token_outputs(
        view.head,
        h,
        jnp.maximum(forced, 0),
        temperature=plan.temperature,
        chunk_bytes=plan.chunk_bytes,
      ).logp
      is_answer = exists & (jnp.arange(forced.shape[1]) >= len(self.opener) - 1)
      probability = jnp.exp(masked.sum(logp, is_answer, axis=-1))  # [rows]
      weight = part.answers.utility[:, c]
      return total + jnp.where(weight > 0, weight * probability, 0.0)

    def of_prefix(k, utilities):  # [rows, K]
      total = jax.lax.fori_loop(
        0,
        (part.answers.utility > 0).sum(axis=1).max(),
        functools.partial(of_answer, k),
        jnp.zeros(num_rows, part.answers.utility.dtype),
      )
      return utilities.at[:, k].set(total)

    counts = part.answers.segment_end.sum(axis=1)  # [rows]
    utilities = jax.lax.fori_loop(
      0,
      counts.max(),
      of_prefix,
      jnp.zeros((num_rows, self.max_segments), part.answers.utility.dtype),
    )
    of_tokens = jnp.take_along_axis(
      utilities, jnp.minimum(number, self.max_segments - 1), axis=1
    )
    utility = masked.select(of_tokens, part.completion_mask)
    return {"answers.prefix_utility": utility}

  def metrics(self, batch: TrainBatch) -> Metrics:
    """Metrics of prefix values, over the rows that are trained.

    Args:
      batch: Batch of `with_utilities`.
    """
    rows = batch.mask.any(axis=1)  # [B]
    count = masked.select(batch.answers.segment_end.sum(axis=1), rows)
    is_run = batch.answers.utility > 0  # [B, C]
    sizes = (batch.answers.ids >= 0).sum(axis=-1)  # [B, C]
    forced = count * masked.sum(sizes, is_run, axis=-1)
    lengths = batch.prompts.mask[batch.prompt_index].sum(axis=1)
    lengths += batch.completion_mask.sum(axis=1)
    start = batch.answers.prefix_utility[:, 0]
    return {
      "forced_answers/tokens": (forced + masked.select(lengths, rows)).sum(),
      "forced_answers/segments": masked.mean(count, rows),
      "forced_answers/answers": masked.mean(is_run.sum(axis=-1), rows),
      "forced_answers/start": masked.mean(start, rows),
    }
