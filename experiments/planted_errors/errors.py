"""Workings with and without a planted error, and the credits of their segments.

A working of L steps is `<think>`, L times `a+b+c=s2s1;`, `</think><answer>…`,
and has L + 1 segments: one for each step, and the rest.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import algorithms
from grpo_jax.algorithms.rredcot import RREDCoTConfig
from grpo_jax.ops import logprobs, segments
from grpo_jax.step import models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.phases import forced
from grpo_jax.types import Policy, Prompts, PyTree, TrainBatch

NO_ERROR = -1


def working(
  operands: np.ndarray, level: int, wrong: int = NO_ERROR
) -> list[int]:
  """A completion that adds by columns, with the carry of one column flipped.

  The steps after the flip follow from it, so the rest is consistent and the
  answer is wrong.

  Args:
    operands: Both numbers [2].
    level: Number of digits of both.
    wrong: The column, from the right; `NO_ERROR`: none.

  Returns:
    Its tokens.
  """
  a, b = (int(x) for x in operands)
  text, answer, carry = "<think>", 0, 0
  for k in range(level):
    x, y = a // 10**k % 10, b // 10**k % 10
    if k == wrong:
      carry = 1 - carry
    total = x + y + carry
    text += f"{x}+{y}+{carry}={total:02d};"
    answer += total % 10 * 10**k
    carry = total // 10
  answer += carry * 10**level
  return vocab.encode(f"{text}</think><answer>{answer}</answer><eos>")


class Workings(NamedTuple):
  """Completions of problems.

  Attributes:
    operands: Operands of the problems, int [B, 2].
    tokens, mask: The completions, int and bool [B, T].
    wrong: The column of the planted error, `NO_ERROR` for none, int [B].
  """

  operands: np.ndarray
  tokens: np.ndarray
  mask: np.ndarray
  wrong: np.ndarray

  @property
  def rewards(self) -> np.ndarray:  # [B]
    """1 without an error, 0 with one."""
    return (self.wrong == NO_ERROR).astype(np.float32)


def workings(operands: np.ndarray, wrong: np.ndarray, level: int) -> Workings:
  """Workings of problems [B, 2] with errors in the columns `wrong` [B]."""
  size = add.make(level=level, scratchpad=True).max_completion_len
  texts = [
    working(row, level, int(k)) for row, k in zip(operands, wrong, strict=True)
  ]
  tokens = np.stack([vocab.padded(text, size) for text in texts])
  mask = np.arange(size) < np.array([[len(text)] for text in texts])
  return Workings(operands, tokens, mask, wrong)


def prompts(operands: np.ndarray) -> Prompts:
  """The prompts of problems [B, 2], all of the same length."""
  texts = [
    [vocab.BOS, *vocab.number(a), vocab.PLUS, *vocab.number(b), vocab.EQUALS]
    for a, b in operands.tolist()
  ]
  return Prompts(
    tokens=jnp.array(texts),
    mask=jnp.ones((len(texts), len(texts[0])), bool),
    ids=jnp.arange(len(texts)),
    extras={"operands": jnp.asarray(operands)},
  )


def settings() -> RREDCoTConfig:
  """Settings of RREDCoT, with segments that end at `;` alone."""
  return algorithms.make_config("rredcot", entropy_quantile=1.0)


class Found(NamedTuple):
  """Measurements of segments [B, K].

  Attributes:
    credits: Credits of RREDCoT: the gain of a segment in the probability of a
      right answer.
    entropy: Mean entropy of the distributions of its tokens, nats.
  """

  credits: np.ndarray
  entropy: np.ndarray


def found(run, given: Workings) -> Found:
  """The credits and entropies of the segments of workings, by a run."""
  loaded = run.loaded
  problem, policy = loaded.problem, loaded.policy
  answers = forced.make(settings(), problem)
  num_rows = len(given.tokens)
  of = prompts(given.operands)
  tokens, mask = jnp.asarray(given.tokens), jnp.asarray(given.mask)
  batch = TrainBatch(
    prompt_tokens=of.tokens,
    prompt_mask=of.mask,
    prompt_index=of.ids,
    group_id=of.ids,
    tokens=tokens,
    completion_mask=mask,
    mask=mask,
    rewards=jnp.asarray(given.rewards),
    valid=jnp.ones(num_rows, bool),
    terminated=jnp.ones(num_rows, bool),
    correct=jnp.asarray(given.rewards > 0),
    entropy=jnp.zeros(mask.shape),
    num_groups=num_rows,
  )

  @jax.jit
  def said(params, batch):
    batch = answers.with_candidates(of, batch)
    view = models.policy_view(policy, {"policy": params})
    plan = UpdatePlan(micro_batch_size=num_rows)
    batch = answers.with_utilities(plan, view, batch)
    credits = segments.credits(
      batch.prefix_utility, batch.segment_end, batch.rewards, batch.mask
    )
    ends = segments.last_included(batch.segment_end, batch.mask)
    return ends, credits, _entropy(policy, params, batch)

  ends, credits, entropy = jax.device_get(said(run.params, batch))
  number = np.cumsum(ends, axis=1) - ends  # The segment of each token.
  num_segments = int(ends[0].sum())
  means = [
    np.where((number == k) & given.mask, entropy, 0).sum(axis=1)
    / ((number == k) & given.mask).sum(axis=1)
    for k in range(num_segments)
  ]
  return Found(credits[ends].reshape(num_rows, -1), np.stack(means, axis=1))


def _entropy(
  policy: Policy, params: PyTree, batch: TrainBatch
) -> jax.Array:  # [B, T] nats
  h, _ = policy.hidden(
    params,
    batch.prompt_tokens,
    batch.prompt_mask,
    batch.tokens,
    batch.completion_mask,
    batch.prompt_index,
  )
  said = logprobs.token_outputs(
    functools.partial(policy.head, params),
    h,
    batch.tokens,
    temperature=1.0,
    with_entropy=True,
  )
  assert said.entropy is not None
  return said.entropy


def located(
  credits: np.ndarray, wrong: np.ndarray, level: int
) -> dict[str, object]:
  """Statistics of how often the credits locate the error.

  Args:
    credits: Credits of wrong completions [B, K].
    wrong: Index of the segment with the error [B].
    level: Number of segments that may have an error.
  """
  is_found = credits.argmin(axis=1) == wrong
  return {
    "located": float(is_found.mean()),
    "located_by_step": [
      float(is_found[wrong == k].mean()) for k in range(level)
    ],
    "chance": 1 / credits.shape[1],
    "credit_of_the_error": float(credits[np.arange(len(wrong)), wrong].mean()),
    "problems": len(wrong),
  }
