r"""Requests of several clients of grpo-tinker, together and one after another.

    python -m experiments.benchmarks.clients --config=configs/quickstart.py \
        --config.model.width=576 --config.model.num_layers=30 \
        --config.model.num_heads=9 --config.model.num_kv_heads=3 \
        --config.model.mlp_width=1536 --base_vocab_size=49152

Each of --num_clients clients has adapters over the policy of the config, whose
weights are random, and asks for a pass with gradients of --client_rows rows,
and for as many samples. The program prints seconds, and seconds of all
processor cores, of one program for all clients and of one for each: the fastest
of a few runs, after one that compiles.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.serving import engine
from grpo_jax.serving.tinker import device as device_lib
from grpo_jax.serving.tinker import losses, wire
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Policy, PyTree

_CONFIG = flags_lib.define_config()
_CLIENTS = flags.DEFINE_integer("num_clients", 4, "Clients.", 2)
_ROWS = flags.DEFINE_integer("client_rows", 8, "Rows of a client.", 1)
_LEN = flags.DEFINE_integer("client_row_tokens", 64, "Tokens of a row.", 2)
_NEW = flags.DEFINE_integer("client_sample_tokens", 32, "Drawn by a sample.", 1)
_VOCAB = flags.DEFINE_integer(
  "base_vocab_size", 32768, "Tokens of the model.", 2
)
_RANK = flags.DEFINE_integer("client_rank", 8, "Rank of the adapters.", 1)

_REPEATS = 3


class Row(NamedTuple):
  """A line of the table.

  Attributes:
    request: What each client asks for.
    apart: Seconds, and those of the processor, of one client after another.
    together: The same of one program.
  """

  request: str
  apart: tuple[float, float]
  together: tuple[float, float]


def measure(
  policy: Policy,
  params: PyTree,
  vocab_size: int,
  *,
  num_clients: int,
  num_rows: int,
  row_tokens: int,
  completion_tokens: int,
  rank: int,
) -> Iterator[Row]:
  """Yields a row for passes and one for samples.

  Args:
    policy, params: The base, and its parameters.
    vocab_size: V.
    num_clients, num_rows: Clients, and the rows of each.
    row_tokens, completion_tokens: Tokens of a row and of a completion.
    rank: Rank of the adapters.
  """
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  text = types.SimpleNamespace(vocab_size=vocab_size, pad_id=0, end_ids=())
  apart, together = (
    device_lib.Device(
      *(policy, params, mesh, text),
      num_rows=num_rows,
      max_len=row_tokens,
      max_new_tokens=completion_tokens,
      max_rank=rank,
      max_together=most,
    )
    for most in (1, num_clients)
  )
  draws = np.random.default_rng(0)
  ids = draws.integers(1, vocab_size, (num_rows, row_tokens + 1), np.int32)
  weights = np.ones(row_tokens, np.float32)
  rows = [
    wire.Row(x[:-1], {"target_tokens": x[1:].astype(int), "weights": weights})
    for x in ids
  ]
  asks = [
    engine.Ask(x[: row_tokens // 2], engine.key_of(0, i), completion_tokens)
    for i, x in enumerate(ids.tolist())
  ]
  loss = losses.named("cross_entropy", {})
  with jax.set_mesh(mesh):
    config = apart.config(rank, True, True)
    clients = [apart.new_adapters(config, seed) for seed in range(num_clients)]
    passes = [device_lib.ClientRows(x, rows, loss, False) for x in clients]
    samples = [(x, asks) for x in clients]
    requests: dict[str, Callable[[device_lib.Device], Any]] = {
      "`forward_backward`": lambda device: device.run(passes),
      "`sample`": lambda device: device.draw(samples, True),
    }
    for name, request in requests.items():
      times: dict[device_lib.Device, list[tuple[float, float]]] = {
        apart: [],
        together: [],
      }
      for _ in range(1 + _REPEATS):
        for device, seconds in times.items():
          start = perf_counter(), process_time()
          list(request(device))
          jax.block_until_ready([x.gradient for x in clients])
          seconds.append((perf_counter() - start[0], process_time() - start[1]))
      yield Row(name, min(times[apart][1:]), min(times[together][1:]))


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  given: ml_collections.ConfigDict = _CONFIG.value
  model = config_lib.resolve(given).model.transformer(vocab_size=_VOCAB.value)
  policy = policy_lib.policy_of(model, None)
  params = jax.jit(policy.init)(jax.random.key(0))
  print(
    f"{_CLIENTS.value} clients, each {_ROWS.value} rows of {_LEN.value} tokens,"
    f" samples of {_LEN.value // 2} + {_NEW.value} tokens; {model.num_layers}"
    f" layers of width {model.width}, {model.dtype},"
    f" {jax.devices()[0].device_kind}"
  )
  print("| request | one after another, s (processor) | together | ratio |")
  print("|---|---|---|---|")
  for row in measure(
    *(policy, params, _VOCAB.value),
    num_clients=_CLIENTS.value,
    num_rows=_ROWS.value,
    row_tokens=_LEN.value,
    completion_tokens=_NEW.value,
    rank=_RANK.value,
  ):
    ratios = [x / y for x, y in zip(row.apart, row.together, strict=True)]
    cells = [f"{x:.3g} ({y:.3g})" for x, y in (row.apart, row.together, ratios)]
    print(f"| {row.request} | {' | '.join(cells)} |", flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
