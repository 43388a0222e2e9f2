"""Measures saving and restoring a state, beside a plain write of equal size."""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import memory
from grpo_jax.training.runtime import checkpoints

_LEAVES = 24
_DRAWN = 1 << 23
_STEP_ROWS = 256
_CALIBRATION = 20  # Steps that are timed without a save.


def make_state(num_bytes: int) -> dict[str, jax.Array]:
  """Draws normal numbers."""
  size = max(num_bytes // 4 // _LEAVES, 1)
  drawn = np.random.default_rng(0).standard_normal(
    min(size, _DRAWN), np.float32
  )
  state = {
    f"w{number}": jax.device_put(np.resize(drawn, size))
    for number in range(_LEAVES)
  }
  return jax.block_until_ready(state)


def saved(
  num_bytes: int, folder: pathlib.Path, rounds: int
) -> dict[str, float | str]:
  """A row of the table of checkpoints, of medians of several rounds.

  Each round measures everything in turn. "stall" is the time that `save` holds
  up the next step, "written" that until the step is on the disk. The floor of
  "written" is a plain write and fsync of as many bytes, "read" a plain read of
  them, still in memory. Memory is that above the state.

  Args:
    num_bytes: Size of the state, bytes.
    folder: Folder in which a new one is written and removed.
    rounds: Number of rounds.

  Raises:
    OSError: The disk has no room for two copies of the state.
  """
  free = shutil.disk_usage(folder).free
  if free < 3 * num_bytes:
    raise OSError(
      f"benchmarks.host: {folder} has {free / 1e9:.1f} GB free, and a state of"
      f" {num_bytes / 1e9:g} GB needs three times as many bytes; set"
      " --state_folder to another disk, or --state_gb to less."
    )
  own = folder / "benchmark_of_checkpoints"
  own.mkdir()
  try:
    found = [_round(num_bytes, own) for _ in range(rounds)]
  finally:
    shutil.rmtree(own)
  of = {name: statistics.median(x[name] for x in found) for name in found[0]}
  size = of["bytes"]
  return {
    "state, GB": num_bytes / 1e9,
    "on disk": of["on_disk"] / size,
    "stall, s": of["stall"],
    "written, s": of["written"],
    "GB/s": size / 1e9 / of["written"],
    "written : floor": of["written"] / of["floor"],
    "stall : synchronous": of["stall"] / of["written"],
    "step meanwhile : alone": of["slowed"] / of["step"],
    "restore, s": of["restore"],
    "restore : read": of["restore"] / of["read"],
    "save, memory": of["save_peak"] / size,
    "restore, memory": of["restore_peak"] / size,
  }


def _round(num_bytes: int, own: pathlib.Path) -> dict[str, float]:
  """Bytes and seconds of a round, by name."""
  state = make_state(num_bytes)
  real = sum(leaf.nbytes for leaf in state.values())
  floor = _seconds(lambda: _write(own / "plain", state))
  read = _seconds(lambda: _read(own / "plain"))
  (own / "plain").unlink()
  store = checkpoints.Checkpoints(own / "c", 1)
  store.save(0, {"x": jnp.zeros(3)}, {})  # Its folder and threads are made.
  store.save(1, state, {})  # And what sums are computed by is compiled.
  store.wait()
  step = _step()
  alone = statistics.median(_seconds(step) for _ in range(_CALIBRATION))
  with memory.growth() as grown:
    start = time.perf_counter()
    store.save(2, state, {})
    stall = time.perf_counter() - start
    meanwhile = list(_while_saving(store, step))
    store.wait()
    written = time.perf_counter() - start
  on_disk = sum(
    path.stat().st_size for path in (own / "c/2").rglob("*") if path.is_file()
  )
  shapes = jax.eval_shape(lambda tree: tree, state)
  for leaf in state.values():
    leaf.delete()
  with memory.growth() as restored:
    restore = _seconds(lambda: jax.block_until_ready(store.restore(shapes)[0]))
  store.close()
  shutil.rmtree(own / "c")
  return {
    "bytes": real,
    "on_disk": on_disk,
    "stall": stall,
    "written": written,
    "floor": floor,
    "restore": restore,
    "read": read,
    "step": alone,
    "slowed": statistics.median(meanwhile) if meanwhile else alone,
    "save_peak": grown.peak,
    "restore_peak": max(restored.peak - real, 0),
  }


def _while_saving(
  store: checkpoints.Checkpoints, step: Callable[[], Any]
) -> Iterator[float]:
  """Yields the seconds of training steps until the save is written."""
  while store.is_saving():
    yield _seconds(step)


def _step() -> Callable[[], Any]:
  """Returns a function that computes for some milliseconds on a core."""
  x = jnp.ones((_STEP_ROWS, _STEP_ROWS))

  @jax.jit
  def run(x):
    return jax.lax.fori_loop(0, 8, lambda _, y: jnp.tanh(y @ x), x)

  jax.block_until_ready(run(x))
  return lambda: jax.block_until_ready(run(x))


def _seconds(function: Callable[[], Any]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


def _write(path: pathlib.Path, state: dict[str, jax.Array]) -> None:
  with path.open("wb") as file:
    for leaf in state.values():
      file.write(np.asarray(leaf).data)
    file.flush()
    os.fsync(file.fileno())


def _read(path: pathlib.Path) -> None:
  buffer = bytearray(1 << 24)
  with path.open("rb", buffering=0) as file:
    while file.readinto(buffer):
      pass
