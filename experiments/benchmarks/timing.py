"""Programs compiled and timed in turn, beside the best rates of the machine."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from experiments.benchmarks import inputs, memory, workload
from grpo_jax.algorithms import objective, options
from grpo_jax.rollout import sampling
from grpo_jax.step import dynamic_sampling, models, step
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Prompts, Rollouts, TrainBatch, TrainState

# More than caches hold.
_READ_BYTES = 512 * 2**20
# Decode steps that are timed together at each fill.
_WINDOW = 8
_FILLS = (0.1, 1.0)
# Steps that are timed together if they overlap.
_TRAIN = 8


class Program(NamedTuple):
  """Compiled function with its seconds and its memory."""

  call: Callable[..., Any]
  compile_s: float
  bytes: int


def compiled(function: Any, *arguments: Any) -> Program:
  """Compiles a jitted function for these arguments."""
  start = time.perf_counter()
  program = function.lower(*arguments).compile()
  seconds = time.perf_counter() - start
  memory = program.memory_analysis()
  held = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes  # Donated: an argument that is an output.
  )
  call: Callable[..., Any] = program
  if isinstance(function, jit.Program):
    call = functools.partial(program, function.inputs)
  return Program(call, seconds, held)


def peak_bytes() -> int | None:
  """Peak memory so far in bytes: of the accelerator, or resident (Linux)."""
  device = jax.devices()[0]
  if device.platform != "cpu":
    return (device.memory_stats() or {}).get("peak_bytes_in_use")
  if not pathlib.Path("/proc/self/status").exists():
    return None
  return memory.resident("VmHWM")


def _prefill(state: TrainState, prompts: Prompts, *, phase):
  return phase.policy.prefill(
    state.params["policy"], prompts.tokens, prompts.mask
  )


def _log_probs(state: TrainState, batch: TrainBatch, *, phase):
  required = options.needs(phase.algorithm, phase.config)
  policy = dataclasses.replace(
    phase.models["policy"],
    fields=functools.partial(models.anchor_fields, phase.plan, required),
  )
  return models.with_fields(phase.plan, policy, state.params, batch).old_logp


def _decode(
  state: TrainState, tokens, cache, weights, prefix, first, *, phase, count
):
  """Runs `count` steps of the model from completion token `first` on."""
  params = state.params["policy"]

  def one(t, carry):
    tokens, cache = carry
    h, cache, _ = phase.policy.decode(
      weights, tokens, jnp.full_like(tokens, t), t, prefix, cache
    )
    tokens = jnp.argmax(phase.policy.head(params, h), axis=-1)
    return tokens.astype(jnp.int32), cache

  return lax.fori_loop(first, first + count, one, (tokens, cache))


class Bench:
  """The compiled parts of a step, and the state that they pass on.

  Attributes:
    programs: Compiled programs by name; a split step is not one program.
    runs: Functions that run a part and return when it is done, by name.
    steps: Number of steps in a run of "step".
    window: Number of decode steps in a run of them.
    fills: Mean number of filled completion slots in a decode run, by its name.
    rollouts: Ways of the same rollout.
    metrics: Numbers of the last step.
    peak_bytes: Peak memory until one step was compiled and run.
  """

  def __init__(
    self,
    work: workload.Work,
    of: problem.Problem,
    mesh: Mesh,
    lanes: int | None = None,
    **phase: Any,
  ):
    self.steps = _TRAIN if phase.get("staleness") else 1
    self._queue: tuple[Rollouts, ...] = ()
    self.programs: dict[str, Program] = {}
    self.runs: dict[str, Callable[[], Any]] = {}
    self.fills: dict[str, float] = {}
    self.rollouts: dict[str, Program] = {}
    self.metrics: dict[str, float] = {}
    self.phase, self._state = inputs.make_phase(work, of, mesh, lanes, **phase)
    batch = inputs.make_batch(work)
    prompts = jax.device_put(batch.prompts, sharding.by_rows(mesh))
    self._add_step(of, mesh, batch, prompts)
    self.runs["step"]()
    self.peak_bytes = peak_bytes()  # Before the parts add to it.
    self._add_parts(work, of, mesh, batch, prompts)
    self._add_decode_steps(work, prompts)
    if lanes is not None:
      self._add_rollouts(work, prompts, lanes)

  def _compile(
    self, name: str, function: Callable, *arguments: Any, donate=(), **fixed
  ) -> Callable:
    """Compiles a function of the state; returns it with the state given."""
    function = functools.partial(function, phase=self.phase, **fixed)
    program = compiled(
      jax.jit(function, donate_argnums=donate), self._state, *arguments
    )
    self.programs[name] = program
    return functools.partial(self._call, program)

  def _call(self, program: Program, *arguments: Any) -> Any:
    return jax.block_until_ready(program.call(self._state, *arguments))

  def _add_step(self, of, mesh, batch, prompts) -> None:
    if of.reward.on_host is None:
      program = compiled(
        executors.jit_step(mesh, step.fused_step, self.phase),
        self._state,
        prompts,
      )
      self.programs["step"] = program

      def run():
        self._state, metrics, _ = self._call(program, prompts)
        self.metrics = jax.device_get(metrics)

    else:
      driver = executors.make_driver(of, mesh, self.phase)
      batches = [batch] * (1 + self.phase.staleness)

      def run():
        state = dataclasses.replace(self._state, queue=self._queue)
        before = None
        for _ in range(self.steps):
          state, outcome = driver(state, *batches)
          if before is not None:
            before.metrics()  # As in training.
          before = outcome
        jax.block_until_ready(state)
        self.metrics = outcome.metrics()
        self._queue = state.queue
        self._state = dataclasses.replace(state, queue=())

    self.runs["step"] = run

  def _add_parts(self, work, of, mesh, batch, prompts) -> None:
    prefill = self._compile("prefill", _prefill, prompts)
    sample = self._compile("rollout", step.sample_stage, prompts)
    rollout = sample(prompts)

    if of.reward.on_host is None:
      score = functools.partial(self.phase.reward.score, {})
      verifier = compiled(jax.jit(score), prompts, rollout)
      self.programs["verifier"] = verifier
      judge = functools.partial(verifier.call, prompts, rollout)
      scored = judge()
    else:
      judge = functools.partial(
        of.judged_on_host, batch, jax.device_get(rollout)
      )
      scored = jax.device_put(judge(), sharding.replicated(mesh))

    groups = dynamic_sampling.Groups(prompts, rollout, scored)
    rows = objective.make_train_batch(
      self.phase.algorithm,
      self.phase.config,
      prompts,
      rollout,
      scored,
      self._state.algorithm_state,
      None,
    )
    log_probs = self._compile("log-probs", _log_probs, rows)
    learn = compiled(
      executors.jit_step(mesh, step.learn_stage, self.phase),
      self._state,
      groups,
    )
    self.programs["update"] = learn

    def update():
      self._state, *_ = self._call(learn, groups)

    self.runs |= {
      "prefill": lambda: prefill(prompts),
      "rollout": lambda: sample(prompts),
      "verifier": lambda: jax.block_until_ready(judge()),
      "log-probs": lambda: log_probs(rows),
      "update": update,
    }

  def _add_decode_steps(self, work, prompts) -> None:
    _, prefix, _ = self._call(self.programs["prefill"], prompts)
    weights = jax.jit(self.phase.policy.weights)(self._state.params["policy"])
    steps = work.completion_len - 1
    self.window = min(_WINDOW, max(1, steps // 10))

    def add(fill):
      first = max(round(fill * steps) - self.window, 0)
      name = f"decode at {fill:.0%}"
      # The token that a step reads is in the cache when it attends.
      self.fills[name] = first + (self.window + 1) / 2
      # As large as the sampler has it by then.
      slots = next(
        size
        for size in sampling.cache_sizes(work.completion_len)
        if size >= first + self.window
      )
      carry = [
        jnp.zeros(work.rows, jnp.int32),
        self.phase.policy.allocate(work.rows, slots, prefix),
      ]
      decode = self._compile(
        f"{slots} slots",
        _decode,
        *carry,
        weights,
        prefix,
        jnp.int32(0),
        donate=(1, 2),
        count=self.window,
      )

      def run():
        carry[:] = decode(*carry, weights, prefix, jnp.int32(first))

      # Not counted: after the update nothing of the cache is near the cores.
      self.runs.setdefault("decode warm-up", run)
      self.runs[name] = run

    for fill in _FILLS:
      add(fill)

  def _add_rollouts(self, work, prompts, lanes) -> None:
    """Adds rollouts in lanes, and in batches whose rows wait for each other."""
    key, _ = step.step_keys(self._state)
    lengths = jnp.asarray(workload.lengths(work), jnp.int32)  # [B]
    sampler = self.phase.sampler.sample.keywords["config"]
    for name, together, of_lanes in (
      ("all at once", work.prompts, None),
      (f"{lanes} at a time", max(1, lanes // work.group), None),
      (f"{lanes} lanes", work.prompts, lanes),
    ):
      sample = functools.partial(
        sampling.sample,
        self.phase.policy,
        config=dataclasses.replace(sampler, lanes=of_lanes),
        group_size=work.group,
      )
      parts = [
        (
          jax.tree.map(lambda x, at=slice(p, p + together): x[at], prompts),
          lengths[p * work.group : (p + together) * work.group],
        )
        for p in range(0, work.prompts, together)
      ]
      params = self._state.params["policy"]
      program = compiled(
        jax.jit(
          lambda params, prompts, key, limits, sample=sample: sample(
            params, prompts, key, limits=limits
          )
        ),
        params,
        parts[0][0],
        key,
        parts[0][1],
      )

      def run(program=program, parts=parts):
        params = self._state.params["policy"]
        return [
          jax.block_until_ready(program.call(params, some, key, limits))
          for some, limits in parts
        ]

      self.rollouts[name] = program
      self.runs[name] = run


class Ceiling(NamedTuple):
  """Function that does `amount` FLOPs, or reads `amount` bytes."""

  run: Callable[[], Any]
  amount: float


def ceilings(
  work: workload.Work, micro_batch_size: int
) -> dict[str, dict[str, Ceiling]]:
  """Products of matrices, and readings of a long array, by unit and name."""
  micro_tokens = micro_batch_size * (work.prompt_len + work.completion_len - 1)
  shapes = [
    (2048, 2048, 2048),
    (micro_tokens, work.hidden, work.inner),
    (work.rows, work.hidden, work.inner),
  ]
  count = 1
  if jax.default_backend() != "cpu":
    # Starting one takes long beside a small one: larger, and several at once.
    shapes.append((8192, 8192, 8192))
    count = 10

  def ceiling(function, arguments, amount):
    def run():
      return [function(*arguments) for _ in range(count)]

    return Ceiling(run, count * amount)

  product = jax.jit(jnp.matmul)
  products = {}
  for m, k, n in shapes:
    keys = jax.random.split(jax.random.key(0))
    pair = (
      jax.random.normal(keys[0], (m, k), work.dtype),
      jax.random.normal(keys[1], (k, n), work.dtype),
    )
    products[f"{m} x {k} x {n}"] = ceiling(product, pair, 2 * m * k * n)
  rows = jnp.ones((_READ_BYTES // 4 // 4096, 4096), jnp.float32)
  readings = {
    "sum": ceiling(jax.jit(jnp.sum), (rows,), _READ_BYTES),
    "matrix by vector": ceiling(product, (rows, rows[0]), _READ_BYTES),
  }
  return {"flops_per_s": products, "bytes_per_s": readings}


def measure(
  runs: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
  """Seconds of each in `repeats` rounds, after one that is not counted."""
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(1 + repeats):
    for name, run in runs.items():
      start = time.perf_counter()
      jax.block_until_ready(run())
      seconds[name].append(time.perf_counter() - start)
  return {name: values[1:] for name, values in seconds.items()}


def spread(seconds: Sequence[float]) -> dict[str, float]:
  """Median and range."""
  return {
    "median_s": statistics.median(seconds),
    "min_s": min(seconds),
    "max_s": max(seconds),
  }
