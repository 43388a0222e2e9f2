"""Monte Carlo values of prefixes, from completions that go on from them.

    V(s)  = share of right answers among completions that begin with s
    d_k   = V(s_k) − V(s_{k−1}),  k < K        d_K = R − V(s_{K−1})

s_k is the prompt with the first k segments of a working. Credits that force an
answer estimate d_k without a completion.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments.planted_errors import errors
from experiments.planted_errors.errors import Workings
from grpo_jax.rollout import sampling
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.types import Prompts


def of_prefixes(
  run, given: Workings, level: int, num_samples: int, seed: int
) -> np.ndarray:  # [B, K]
  """V(s_0) … V(s_{K−1}) of workings of `level` steps, K = level + 1.

  Args:
    run: Run with the policy.
    given: The workings.
    level: Number of steps of each working.
    num_samples: Number of completions from each prefix.
    seed: Seed of the draws.
  """
  policy = run.loaded.policy
  task = add.make(level=level, scratchpad=True)
  size = given.tokens.shape[1]
  config = sampling.SamplerConfig(
    max_new_tokens=size, end_ids=task.end_ids, pad_id=task.pad_id
  )
  begun = errors.prompts(given.operands)
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
  wrong[: num_problems // 2] = errors.NO_ERROR
  given = errors.workings(operands, wrong, level)
  said = errors.found(run, given)
  values = of_prefixes(run, given, level, num_samples, seed)
  truth = differences(values, given.rewards)
  return {
    "credits": correlation(said.credits, truth),
    "entropy": correlation(shared_by(said.entropy, given.rewards), truth),
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
