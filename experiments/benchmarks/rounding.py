r"""Cost and gain of a sampler with rounded kernels, on a random model.

    python -m experiments.benchmarks.rounding --config=configs/quickstart.py \
        --config.model.width=896 --config.model.num_layers=8 \
        --config.model.num_heads=14 --config.model.num_kv_heads=2 \
        --config.model.mlp_width=4864

The policy of the config, with random weights, samples
--completion_tokens tokens of --num_completions completions, with kernels as
they are and rounded to each kind of `config.sampling.weights_dtype`. The
program prints

- the bytes of the layers that a decode step reads;
- the seconds of a decode step: those of a rollout without those of one of one
  token, by the number of steps; the fastest of a few runs, compiled before;
- the gap: the mean of |log p − log q| over the tokens that the rounded sampler
  q drew, p the policy as it is, nats;
- KL(q ‖ p) over the whole vocabulary, the mean over these tokens, nats.

Trained weights have outliers, which random weights lack: there the gap is
larger. --config.model.checkpoint names a model of configs/recipes/models.py, of
which the sizes alone are read; other models have --vocab_size tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.configs.recipes import models as published
from grpo_jax.models import architecture, quantization
from grpo_jax.rollout import sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.types import Policy, Prompts, PyTree, Rollout

_CONFIG = flags_lib.define_config()
_ROWS = flags.DEFINE_integer(
  "num_completions", 8, "Completions, of one prompt each.", 1
)
_PROMPT = flags.DEFINE_integer("prompt_tokens", 32, "Tokens of a prompt.", 1)
_VOCAB = flags.DEFINE_integer("vocab_size", 32768, "Tokens of the model.", 2)
_TOKENS = flags.DEFINE_integer(
  "completion_tokens", 33, "Tokens of a completion.", 2
)

_REPEATS = 3


class Row(NamedTuple):
  """A line of the table: a kind of kernels and its measurements.

  Attributes:
    kind: Of `architecture.SAMPLED_DTYPES`.
    num_bytes: Bytes of the layers that a decode step reads.
    seconds: Seconds of a decode step.
    gap, kl: Gap and KL of sampler and trainer, nats a token.
  """

  kind: str
  num_bytes: int
  seconds: float
  gap: float
  kl: float


def measured(
  policy: Policy, params: PyTree, prompts: Prompts, num_tokens: int
) -> Iterator[Row]:
  """Yields a row for each kind.

  Args:
    policy: The model.
    params: Its parameters.
    prompts: Prompts; one completion of each is drawn.
    num_tokens: Tokens of a completion, at least 2.
  """
  for kind in architecture.SAMPLED_DTYPES:
    rounded = quantization.rounding(policy, kind)
    weights = jax.eval_shape(rounded.weights, params)["trained"]["layers"]
    one, all_ = (
      _timed(_sampler(rounded, n), params, prompts) for n in (1, num_tokens)
    )
    found = jax.jit(functools.partial(_compared, policy, rounded))(
      params, prompts, all_.result
    )
    yield Row(
      kind,
      sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(weights)),
      (all_.seconds - one.seconds) / (num_tokens - 1),
      *map(float, found),
    )


class _Timed(NamedTuple):
  result: Any
  seconds: float


def _timed(function: Callable, *arguments: Any) -> _Timed:
  """The fastest of a few runs, after one that is not counted."""
  result, times = None, []
  for _ in range(1 + _REPEATS):
    start = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    times.append(time.perf_counter() - start)
  return _Timed(result, min(times[1:]))


def _sampler(policy: Policy, num_tokens: int) -> Callable[..., Rollout]:
  """Makes the function (parameters, prompts) -> completions of full length."""
  config = sampling.SamplerConfig(num_tokens, (), 0)

  @jax.jit
  def sample(params, prompts):
    return sampling.sample(
      policy, params, prompts, jax.random.key(1), config, group_size=1
    )

  return sample


def _compared(
  policy: Policy,
  rounded: Policy,
  params: PyTree,
  prompts: Prompts,
  rollout: Rollout,
) -> tuple[jax.Array, jax.Array]:
  """The gap and the KL of the tokens that the rounded policy drew."""

  def log_probs(of):
    h, _ = of.hidden(
      params,
      *(prompts.tokens, prompts.mask),
      *(rollout.tokens, rollout.completion_mask, rollout.prompt_index),
    )
    return jax.nn.log_softmax(of.head(params, h).astype(jnp.float32))

  q, p = log_probs(rounded), log_probs(policy)  # [B, T, V]
  drawn = rollout.tokens[..., None]
  gap = jnp.take_along_axis(p, drawn, -1)[..., 0] - rollout.sampler_logp
  return jnp.abs(gap).mean(), (jnp.exp(q) * (q - p)).sum(axis=-1).mean()


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  given: ml_collections.ConfigDict = _CONFIG.value
  given.allow_unpublished = True  # Nothing is trained.
  with published.described(config_lib.resolve(given)) as config:
    model = config.model.transformer(vocab_size=_VOCAB.value)
  policy = policy_lib.policy_of(
    dataclasses.replace(model, remat="none"), config.model.adapters()
  )
  params = jax.jit(policy.init)(jax.random.key(0))
  shape = _ROWS.value, _PROMPT.value
  tokens = jax.random.randint(jax.random.key(2), shape, 0, model.vocab_size)
  prompts = Prompts(tokens, jnp.ones(shape, bool), jnp.arange(_ROWS.value), {})
  print(
    f"{model.num_layers} layers of width {model.width}, {model.dtype},"
    f" {_ROWS.value} rows, {_PROMPT.value} + {_TOKENS.value} tokens,"
    f" {jax.devices()[0].device_kind}"
  )
  print("| kernels | layers, MB | s a step | gap, nats | KL, nats |")
  print("|---|---|---|---|---|")
  for row in measured(policy, params, prompts, _TOKENS.value):
    print(
      f"| `{row.kind}` | {row.num_bytes / 1e6:.1f} | {row.seconds:.3g} |"
      f" {row.gap:.2g} | {row.kl:.2g} |",
      flush=True,
    )
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
