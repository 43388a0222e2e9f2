"""Workings with a planted error, credits of their segments, and sampled values.

A working of L steps is `<think>`, L times `a+b+c=s2s1;`, `</think><answer>…`,
and has K = L + 1 segments: one for each step, and the rest. Monte Carlo values
of prefixes are from completions that go on from them:

    V(s)  = share of right answers among completions that begin with s
    d_k   = V(s_k) − V(s_{k−1}),  k < K        d_K = R − V(s_{K−1})

s_k is the prompt with the first k segments of a working. Credits that force an
answer estimate d_k without a completion.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import algorithms
from grpo_jax.ops import logprobs, segments
from grpo_jax.rollout import sampling
from grpo_jax.step import models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Task
from grpo_jax.training.phases import forced
from grpo_jax.types import (
  Policy,
  PromptFields,
  Prompts,
  PyTree,
  SamplerFields,
  TrainBatch,
)

NO_ERROR = -1


def make_task(
  level: int = 2, skip: float = 0.5, teacher_error: float = 0.0
) -> Task:
  """Addition with a scratchpad by a teacher who may leave out its last steps.

  With probability `skip` a working has fewer steps, uniformly from none to all
  but one. `teacher_error` is the probability of a forgotten carry.
  """
  task = add.make(level=level, scratchpad=True, teacher_error=teacher_error)

  def example(rng: np.random.Generator, split: str) -> Example:
    made = task.example(rng, split)
    kept = int(rng.integers(level)) if rng.random() < skip else level
    first, last = 1 + add.STEP_LEN * kept, 1 + add.STEP_LEN * level
    completion = np.delete(made.completion, slice(first, last))
    return made._replace(completion=completion)

  return dataclasses.replace(task, example=example)


def working(
  operands: np.ndarray, level: int, wrong: int = NO_ERROR
) -> list[int]:
  """Tokens that add by columns, with the carry of one column flipped.

  The steps after the flip follow from it, so the rest is consistent and the
  answer is wrong. Columns are counted from the right; `NO_ERROR` is none.
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
  """Completions of problems."""

  operands: np.ndarray  # Operands of the problems, int [B, 2].
  # The completions, int and bool [B, T].
  tokens: np.ndarray
  mask: np.ndarray
  # The column of the planted error, `NO_ERROR` for none, int [B].
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


def found(run, given: Workings) -> tuple[np.ndarray, np.ndarray]:
  """Credits and entropies [B, K] of the segments of workings, by a run.

  A credit of RREDCoT is the gain of a segment in the probability of a right
  answer. The entropy is the mean over the distributions of its tokens, nats.
  """
  loaded = run.loaded
  problem, policy = loaded.problem, loaded.policy
  # Segments end at `;` alone.
  config = algorithms.make_config("rredcot", entropy_quantile=1.0)
  answers = forced.make(config, problem)
  num_rows = len(given.tokens)
  of = prompts(given.operands)
  tokens, mask = jnp.asarray(given.tokens), jnp.asarray(given.mask)
  batch = TrainBatch(
    prompts=PromptFields(tokens=of.tokens, mask=of.mask),
    prompt_index=of.ids,
    group_id=of.ids,
    tokens=tokens,
    completion_mask=mask,
    mask=mask,
    rewards=jnp.asarray(given.rewards),
    valid=jnp.ones(num_rows, bool),
    terminated=jnp.ones(num_rows, bool),
    correct=jnp.asarray(given.rewards > 0),
    sampler=SamplerFields(entropy=jnp.zeros(mask.shape)),
    num_groups=num_rows,
  )

  @jax.jit
  def said(params, batch):
    batch = answers.with_candidates(of, batch)
    view = models.policy_view(policy, {"policy": params})
    plan = UpdatePlan(micro_batch_size=num_rows)
    batch = answers.with_utilities(plan, view, batch)
    credits = segments.credits(
      batch.answers.prefix_utility,
      batch.answers.segment_end,
      batch.rewards,
      batch.mask,
    )
    ends = segments.last_included(batch.answers.segment_end, batch.mask)
    return ends, credits, _entropy(policy, params, batch)

  ends, credits, entropy = jax.device_get(said(run.params, batch))
  number = np.cumsum(ends, axis=1) - ends  # The segment of each token.
  num_segments = int(ends[0].sum())
  means = [
    np.where((number == k) & given.mask, entropy, 0).sum(axis=1)
    / ((number == k) & given.mask).sum(axis=1)
    for k in range(num_segments)
  ]
  return credits[ends].reshape(num_rows, -1), np.stack(means, axis=1)


def _entropy(
  policy: Policy, params: PyTree, batch: TrainBatch
) -> jax.Array:  # [B, T] nats
  h, _ = policy.hidden(
    params,
    batch.prompts.tokens,
    batch.prompts.mask,
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
  """Statistics of how often credits [B, K] locate the errors `wrong` [B]."""
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


def of_prefixes(
  run, given: Workings, level: int, num_samples: int, seed: int
) -> np.ndarray:  # [B, K]
  """V(s_0) … V(s_{K−1}) of workings of `level` steps, K = level + 1.

  `num_samples` completions are drawn from each prefix.
  """
  policy = run.loaded.policy
  task = add.make(level=level, scratchpad=True)
  size = given.tokens.shape[1]
  config = sampling.SamplerConfig(
    max_new_tokens=size, end_ids=task.end_ids, pad_id=task.pad_id
  )
  begun = prompts(given.operands)
  lengths = [0, *(1 + add.STEP_LEN * (k + 1) for k in range(level))]
  num_rows = len(given.tokens)
  # The prefix is a part of the prompt, padded on the left.
  width = begun.tokens.shape[1] + lengths[-1]

  @jax.jit
  def drawn(params, tokens, mask, key):
    prompts = Prompts(
      tokens=tokens, mask=mask, ids=begun.ids, extras=begun.extras
    )
    rollout = sampling.sample(policy, params, prompts, key, config, num_samples)
    return rollout.tokens, rollout.completion_mask

  values = []
  for k, length in enumerate(lengths):
    both = [np.asarray(begun.tokens), given.tokens[:, :length]]
    tokens = np.concatenate(both, axis=1)
    missing = width - tokens.shape[1]
    tokens = np.pad(tokens, ((0, 0), (missing, 0)), constant_values=vocab.PAD)
    mask = np.broadcast_to(np.arange(width) >= missing, tokens.shape)
    key = jax.random.fold_in(jax.random.key(seed), k)
    with jax.set_mesh(run.loaded.mesh):
      rest, rest_mask = drawn(
        run.params, jnp.asarray(tokens), jnp.asarray(mask), key
      )
    prefix = np.repeat(given.tokens[:, :length], num_samples, axis=0)
    right = _right(
      task,
      np.concatenate([prefix, np.asarray(rest)], axis=1),
      np.concatenate([np.ones(prefix.shape, bool), rest_mask], axis=1),
      np.repeat(given.operands, num_samples, axis=0),
    )
    values.append(right.reshape(num_rows, num_samples).mean(axis=1))
  return np.stack(values, axis=1)


def _right(
  task, tokens: np.ndarray, mask: np.ndarray, operands: np.ndarray
) -> np.ndarray:  # [N]
  verify = jax.jit(
    jax.vmap(
      lambda tokens, mask, operands: task.verify(
        tokens, mask, {"operands": operands}
      )["accuracy"]
    )
  )
  return np.asarray(verify(tokens, mask, operands))


def differences(
  values: np.ndarray, rewards: np.ndarray
) -> np.ndarray:  # [B, K], [B] -> [B, K]
  """Differences d_1 … d_K."""
  return np.diff(values, axis=1, append=rewards[:, None])


def shared_by(
  weights: np.ndarray, rewards: np.ndarray
) -> np.ndarray:  # [B, K], [B] -> [B, K]
  """Shares the outcome, ±1, in proportion to weights, such as entropies."""
  share = weights / weights.sum(axis=1, keepdims=True)
  return (2 * rewards[:, None] - 1) * share


def correlation(one: np.ndarray, other: np.ndarray) -> float:
  """Pearson's r over all segments; NaN if one side does not vary."""
  one, other = one.ravel(), other.ravel()
  if not (one.std() and other.std()):
    return float("nan")
  return float(np.corrcoef(one, other)[0, 1])


def compared(
  run, level: int, num_problems: int, num_samples: int, seed: int
) -> dict[str, float]:
  """Correlations of credits and entropies with Monte Carlo differences.

  Half of the workings of the held-out problems are right, and half have an
  error.
  """
  rng = np.random.default_rng(seed)
  operands = held_out(rng, level, num_problems)
  wrong = rng.integers(level, size=num_problems)
  wrong[: num_problems // 2] = NO_ERROR
  given = workings(operands, wrong, level)
  credits, entropy = found(run, given)
  values = of_prefixes(run, given, level, num_samples, seed)
  truth = differences(values, given.rewards)
  return {
    "credits": correlation(credits, truth),
    "entropy": correlation(shared_by(entropy, given.rewards), truth),
    "outcome": correlation(
      shared_by(np.ones_like(truth), given.rewards), truth
    ),
    "value_at_start": float(values[:, 0].mean()),
  }


def held_out(
  rng: np.random.Generator, level: int, num_problems: int
) -> np.ndarray:  # [N, 2]
  """Operands of problems that are not trained on."""
  task = add.make(level=level, scratchpad=True)
  return np.array(
    [task.example(rng, "test").extras["operands"] for _ in range(num_problems)]
  )
