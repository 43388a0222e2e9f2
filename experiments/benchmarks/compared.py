"""Whole steps that are compared with each other in the same rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from jax.sharding import Mesh

from experiments.benchmarks import inputs, timing, workload
from experiments.benchmarks import step as step_benchmark
from grpo_jax.step import step
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts

_SIZE = 2048  # Rows and columns of the matrices of the large product.


class Step:
  """A compiled step with its inputs.

  Args:
    work: Sizes and lengths.
    mesh: Mesh of the devices.
    shown: Function that changes the prompts of the workload.
    **options: Options of `inputs.make_phase`.
  """

  def __init__(
    self,
    work: workload.Work,
    mesh: Mesh,
    shown: Callable[[Prompts], Prompts] = lambda prompts: prompts,
    **options: Any,
  ):
    self.work = work
    with contextlib.closing(inputs.make_problem(work, "fused")) as of:
      phase, self._state = inputs.make_phase(work, of, mesh, **options)
    self.parameters = sum(x.size for x in jax.tree.leaves(self._state.params))
    prompts = shown(inputs.make_batch(work).prompts)
    self._prompts = jax.device_put(prompts, sharding.by_rows(mesh))
    self.program = timing.compiled(
      executors.jit_step(mesh, step.fused_step, phase),
      self._state,
      self._prompts,
    )

  def __call__(self) -> None:
    """Runs a step."""
    self._state, metrics, _ = jax.block_until_ready(
      self.program.call(self._state, self._prompts)
    )
    written = int(metrics["tokens/generated"])
    if written != self.work.rows * self.work.completion_len:
      raise RuntimeError(f"a step wrote {written} tokens, not all slots.")


def measure(
  work: workload.Work,
  repeats: int,
  make: Callable[[Mesh], Mapping[str, Step]],
  base: str,
  floors: Callable[[str, float], dict[str, float]],
) -> dict[str, Any]:
  """Seconds, bytes and floors of all cases.

  Args:
    work: Sizes and lengths of the whole comparison.
    repeats: Rounds; each has every case once.
    make: (mesh) -> the step of each case, by its name.
    base: The case that the others are compared with.
    floors: (case, FLOP/s of a large product) -> numbers of its row.
  """
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    cases = make(mesh)
    product = jax.jit(jnp.matmul)
    x = jax.random.normal(jax.random.key(0), (_SIZE, _SIZE), work.dtype)
    seconds = timing.measure(
      {"product": lambda: product(x, x), **cases}, repeats
    )
  rate = 2 * _SIZE**3 / min(seconds["product"])
  rows = {
    name: {
      **timing.spread(seconds[name]),
      f"of_{base.lower()}": statistics.median(
        a / b for a, b in zip(seconds[name], seconds[base], strict=True)
      ),
      **floors(name, rate),
      "program_bytes": case.program.bytes,
      "parameters": case.parameters,
      "compile_s": case.program.compile_s,
    }
    for name, case in cases.items()
  }
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "jax": jax.__version__,
    "work": dataclasses.asdict(work),
    "gflops_per_s": rate / 1e9,
    "repeats": repeats,
    "cases": rows,
  }


def machine(results: dict[str, Any]) -> str:
  """The date, machine and model size of a measurement, as a line of text."""
  work = results["work"]
  return (
    f"{results['date']}, {results['device']}, {results['cores']} cores, JAX"
    f" {results['jax']}, {results['gflops_per_s']:.0f} GFLOP/s; hidden"
    f" {work['hidden']}, {work['layers']} layers"
  )


def run(
  measured: Callable[[workload.Work, int], dict[str, Any]],
  table: Callable[[dict[str, Any]], str],
) -> int:
  """Measures with the flags, prints the table and writes the file."""
  results = measured(step_benchmark.work_of_flags(), flags.FLAGS.repeats)
  print(table(results))
  if flags.FLAGS.json:
    text = json.dumps(results, indent=2) + "\n"
    pathlib.Path(flags.FLAGS.json).write_text(text, encoding="utf-8")
  return 0
