"""Errors that are planted into workings, and the credits of their steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import algorithms
from grpo_jax.learning import members
from grpo_jax.learning.micro_batches import UpdatePlan
from grpo_jax.ops import segments
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training import forced
from grpo_jax.types import Prompts, TrainBatch


def planted(
  rng: np.random.Generator, operands: np.ndarray, level: int
) -> tuple[list[int], int]:
  """A completion with one flipped carry, and the number of its step."""
  a, b = (int(x) for x in operands)
  wrong = int(rng.integers(level))
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
  return vocab.encode(f"{text}</think><answer>{answer}</answer><eos>"), wrong


def credits(run, operands, completions) -> np.ndarray:  # [B, K]
  """The credits of the segments of wrong completions, one for each `;`."""
  loaded = run.loaded
  problem, policy = loaded.problem, loaded.policy
  settings = algorithms.make_config("rredcot", entropy_quantile=1.0)
  answers = forced.make(settings, problem)
  num_rows, num_slots = len(completions), problem.max_new_tokens
  tokens = np.stack([vocab.padded(x, num_slots) for x in completions])
  mask = np.arange(num_slots) < np.array([[len(x)] for x in completions])
  texts = [
    [vocab.BOS, *vocab.number(a), vocab.PLUS, *vocab.number(b), vocab.EQUALS]
    for a, b in operands.tolist()
  ]
  prompts = Prompts(
    tokens=jnp.array(texts),
    mask=jnp.ones((num_rows, len(texts[0])), bool),
    ids=jnp.arange(num_rows),
    extras={"operands": jnp.asarray(operands)},
  )
  rows = jnp.ones(num_rows, bool)
  batch = TrainBatch(
    prompt_tokens=prompts.tokens,
    prompt_mask=prompts.mask,
    prompt_index=prompts.ids,
    group_id=prompts.ids,
    tokens=jnp.asarray(tokens),
    completion_mask=jnp.asarray(mask),
    mask=jnp.asarray(mask),
    rewards=jnp.zeros(num_rows),
    valid=rows,
    terminated=rows,
    correct=~rows,
    entropy=jnp.zeros(mask.shape),
    num_groups=num_rows,
  )

  @jax.jit
  def found(params, batch):
    batch = answers.with_candidates(prompts, batch)
    view = members.policy_view(policy, {"policy": params})
    plan = UpdatePlan(micro_batch_size=num_rows)
    batch = answers.with_utilities(plan, view, batch)
    return batch.segment_end, segments.credits(
      batch.prefix_utility, batch.segment_end, batch.rewards, batch.mask
    )

  ends, values = jax.device_get(found(run.params, batch))
  return values[ends].reshape(num_rows, -1)


def measure(run, level: int, num_problems: int, seed: int) -> dict[str, object]:
  """How often the step with the planted error has the most negative credit."""
  rng = np.random.default_rng(seed)
  task = add.make(level=level, scratchpad=True)
  operands = np.array(
    [task.example(rng, "test").extras["operands"] for _ in range(num_problems)]
  )
  pairs = [planted(rng, row, level) for row in operands]
  wrong = np.array([step for _, step in pairs])
  found = credits(run, operands, [text for text, _ in pairs])
  is_found = found.argmin(axis=1) == wrong
  shares = [float(is_found[wrong == k].mean()) for k in range(level)]
  return {
    "located": float(is_found.mean()),
    "located_by_step": shares,
    "chance": 1 / found.shape[1],
    "credit_of_the_error": float(found[np.arange(len(found)), wrong].mean()),
    "problems": num_problems,
  }
