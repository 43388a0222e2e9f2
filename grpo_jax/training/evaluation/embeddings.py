"""Embeddings of prompts by a policy, and losses of their reference solutions.

known = embeddings.measure(run.loaded, records)
known.embeddings    # [N, D]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.data import pipeline
from grpo_jax.data.sources import Record
from grpo_jax.ops import logprobs, masked
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Policy


class Measured(NamedTuple):
  """Embeddings and losses of N records.

  Attributes:
    embeddings: Mean over the tokens of the prompt of the hidden states that
      predict the next token.
    losses: Mean negative log-prob of the reference solution, its end token
      included, nats per token.
  """

  embeddings: np.ndarray  # [N, D] float32
  losses: np.ndarray  # [N] float32


def measure(
  loaded: checkpointed.Loaded, records: Sequence[Record], batch_size: int = 256
) -> Measured:
  """Runs a policy over prompts, and over their solutions.

  The completion of a record is its reference solution. If a text is longer than
  the budget of a completion, the part that fits is read.

  Args:
    records: N records of its data, whose prompts fit.
    batch_size: Records at a time; splits over the devices.

  Raises:
    ValueError: A record has no completion, or prompts show images.
  """
  problem = loaded.problem
  if problem.encoder.image_encoder is not None:
    raise ValueError(
      "the prompts of this run show images, and an embedding is the mean over"
      " tokens of a text; measure a policy whose config.data.images is empty."
    )
  limit = problem.max_new_tokens if problem.truncate_completions else None
  encode, end_id = problem.encoder, problem.tokenizer.end_ids[0]
  encoded = [
    (encode.prompt(x), pipeline.completion_ids(encode, x, end_id, limit))
    for x in records
  ]
  batch_size = min(batch_size, len(records))
  batch_size += -batch_size % sharding.num_row_shards(loaded.mesh)
  rows = sharding.by_rows(loaded.mesh)
  program = jit.Program(
    lambda params, *arrays: _of_rows(loaded.policy, params, *arrays),
    sharding.replicated(loaded.mesh),
  )
  batches_of_rows = []
  with jax.set_mesh(loaded.mesh):  # As in training.
    for first in range(0, len(records), batch_size):
      part = encoded[first : first + batch_size]
      part += [part[-1]] * (batch_size - len(part))
      prompts, completions = zip(*part, strict=True)
      batch = pipeline.supervised_batch(
        prompts,
        completions,
        problem.max_prompt_len,
        problem.max_new_tokens,
        problem.tokenizer.pad_id,
      )
      arrays = jax.device_put(
        (
          batch.prompt_tokens,
          batch.prompt_mask,
          batch.tokens,
          batch.completion_mask,
          batch.observed,
        ),
        rows,
      )
      batches_of_rows.append(program(loaded.params, *arrays))
  embeddings, losses = (
    np.concatenate([np.asarray(x) for x in column])[: len(records)]
    for column in zip(*batches_of_rows, strict=True)
  )
  return Measured(embeddings, losses)


def _of_rows(
  policy: Policy,
  params: Any,
  prompt_tokens: jax.Array,  # [P, S]
  prompt_mask: jax.Array,  # [P, S]
  tokens: jax.Array,  # [P, T]
  completion_mask: jax.Array,  # [P, T]
  observed: jax.Array,  # [P, T]
) -> tuple[jax.Array, jax.Array]:  # [P, D], [P]
  """The embeddings and losses of a batch."""
  index = jnp.arange(len(tokens), dtype=jnp.int32)
  # `hidden` gives states of completions only, so the prompt is passed as the
  # completion of its first token.
  num_slots = prompt_tokens.shape[1]
  sizes = prompt_mask.sum(axis=1)  # [P]
  slots = jnp.arange(num_slots)
  aligned = (slots + (num_slots - sizes)[:, None]) % num_slots
  prompts = jnp.take_along_axis(prompt_tokens, aligned, axis=1)  # From slot 0.
  h, _ = policy.hidden(
    params,
    prompts[:, :1],
    jnp.ones((len(tokens), 1), bool),
    jnp.roll(prompts, -1, axis=1),
    slots < sizes[:, None] - 1,
    index,
  )  # [P, S, D]
  exists = slots < sizes[:, None]
  embeddings = masked.mean(masked.wide(h), exists[..., None], axis=1)

  h, _ = policy.hidden(
    params, prompt_tokens, prompt_mask, tokens, completion_mask, index
  )
  outputs = logprobs.token_outputs(
    lambda h: policy.head(params, h), h, tokens, temperature=1.0
  )
  losses = -masked.mean(outputs.logp, completion_mask & ~observed, axis=-1)
  return embeddings, losses
