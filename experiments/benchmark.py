r"""Time and memory of a whole training step and of its parts, beside floors.

    python -m experiments.benchmark --preset=S
    python -m experiments.benchmark --preset=S --mode=split
    python -m experiments.benchmark --preset=S --completion_len=256 \
        --length_distribution=geometric --json=geometric.json

One GRPO step of a random Qwen2-shaped transformer (biases on queries, keys and
values, SwiGLU, tied head): sampling, verifier, one AdamW update, no KL, by the
functions that train. --mode=fused times the one program, --mode=split the
driver whose verifiers are processes of the host; --verifier_s makes these take
so much longer. With --staleness rollouts of the next steps are drawn meanwhile:
then steps are timed in trains of eight, and each has the forward pass that the
anchor of its importance weights needs. The parts are compiled alone
and called in turn, so that a load on the machine meets them all: policy
prefill; rollout (prefill and the decoding loop; "decode" is the difference);
verifier; log-probs alone, which are no part of the step; update (advantages,
gradient, optimizer, metrics) on a fixed rollout. Compilation is not counted.

There is no end token. The length of every row is prescribed
(`workload.lengths`): the sampler is told how many tokens each may have.

With --lanes the sampler has no more than so many rows at a time, and the same
rollout is timed in three ways: all rows at once until the longest has ended,
as many at a time as there are lanes until the longest of those has ended, and
in lanes that are refilled.

Floors are the FLOPs of matrix products over the best rate of a product, or the
bytes over the best rate of reading, whichever takes longer; both rates are
measured in the same rounds. `workload.py` says what is counted: "full" is every
row in full, "rows" is that without padding, "shared" has the prompt once per
group in the update as well, "least" is what exists. Weights that fit into a
cache may be read faster than memory is, so a small model could decode below its
floor.

The memory of a program is what the compiler plans for arguments, outputs and
temporaries. The peak is that of the process (of the device, on an accelerator)
once one step was compiled and run, before the parts were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax
from jax.sharding import Mesh

from experiments import flags as flags_lib
from experiments import workload
from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.data import pipeline
from grpo_jax.learning import stages
from grpo_jax.rewards import combine, host
from grpo_jax.rollout import sampling
from grpo_jax.training import assembly, drivers, problem, sharding
from grpo_jax.training import config as config_lib
from grpo_jax.types import (
  Drawn,
  Prompts,
  Rollout,
  Scored,
  TrainBatch,
  TrainState,
)

_PRESET = flags.DEFINE_enum(
  "preset", "S", list(workload.PRESETS), "Of the sizes that are not given."
)
_SIZES = {
  name: flags.DEFINE_integer(name, None, text, 1)
  for name, text in {
    "hidden": "Width of the model.",
    "layers": "Of the model.",
    "heads": "Of queries.",
    "kv_heads": "Of keys and values.",
    "mlp_width": "Inside the SwiGLU; without a preset's 4 x hidden.",
    "vocab": "Token ids; by default 1024.",
    "prompt_len": "Tokens of a prompt.",
    "completion_len": "Slots of a completion.",
    "prompts": "Of a step.",
    "group": "Completions per prompt.",
  }.items()
}
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of activations and products."
)
_DISTRIBUTION = flags.DEFINE_enum(
  "length_distribution",
  "fixed",
  list(workload.DISTRIBUTIONS),
  "Of the tokens in a completion.",
)
_LENGTH_MEAN = flags.DEFINE_float("length_mean", 36.0, "Of these, tokens.", 1)
_MODE = flags.DEFINE_enum("mode", "fused", ["fused", "split"], "Of the step.")
_STALENESS = flags.DEFINE_integer(
  "staleness", 0, "Updates that rollouts may be behind; with --mode=split.", 0
)
_VERIFIER_S = flags.DEFINE_float(
  "verifier_s", 0.0, "Seconds to sleep in each verifier; --mode=split.", 0
)
_MICRO = flags.DEFINE_integer(
  "micro_batch_size", None, "Rows; by default what training takes.", 1
)
_LANES = flags.DEFINE_integer(
  "lanes", None, "Rows that are decoded at once; by default all.", 1
)
_NUM_LENGTHS = flags.DEFINE_integer(
  "num_lengths", None, "That the update is compiled for; as training has.", 1
)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds that are counted.", 1)
_JSON = flags.DEFINE_string("json", None, "File for the same and more.")

PAD = 0
_MIB = 2**20
# More than caches hold.
_READ_BYTES = 512 * _MIB
# Decode steps that are timed together at each fill.
_WINDOW = 8
_FILLS = (0.1, 1.0)
# Steps that are timed together if they overlap.
_TRAIN = 8


@dataclasses.dataclass(frozen=True)
class Numbers:
  """A tokenizer whose text of an id is its number."""

  vocab_size: int
  end_ids: tuple[int, ...] = ()
  pad_id: int = PAD

  def decode(self, ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def score(prompts: Prompts, rollout: Rollout) -> Scored:
  """The verifier in the program: which part of the written ids is even."""
  del prompts
  mask = rollout.completion_mask
  even = ((rollout.tokens % 2 == 0) & mask).sum(axis=-1)
  share = even / jnp.maximum(mask.sum(axis=-1), 1)  # [B]
  return combine.combine({"even": share}, {"even": 1.0}, None, "even")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem(problem.Problem):
  """A problem whose host verifiers take `verifier_s` seconds longer."""

  verifier_s: float = 0.0

  def score_on_host(self, *arguments):
    time.sleep(self.verifier_s)
    return super().score_on_host(*arguments)


def make_problem(
  work: workload.Work, mode: str, verifier_s: float = 0.0
) -> Problem:
  """Tokens and verifier, as training has them; `close` it."""
  tokenizer = Numbers(work.vocab)
  scorer = None
  if mode == "split":
    scorer = host.HostScorer(
      {"even": "experiments.workload:even_share"}, {"even": 1.0}
    )
  return Problem(
    tokenizer=tokenizer,
    train=[],
    held_out=[],
    supervised=[],
    encoder=pipeline.Encoder(tokenizer),
    max_prompt_len=work.prompt_len,
    max_new_tokens=work.completion_len,
    score=score if scorer is None else None,
    scorer=scorer,
    correct="even",
    truncate_completions=False,
    verifier_s=verifier_s,
  )


def make_parts(
  work: workload.Work,
  of: problem.Problem,
  mesh: Mesh,
  lanes: int | None = None,
  algorithm: str = "grpo",
  critic: config_lib.CriticConfig | None = None,
  **phase: Any,
) -> tuple[stages.Parts, TrainState]:
  """The functions of the step and the state before it.

  Args:
    work: Sizes and lengths.
    of: Tokens and verifier.
    mesh: Of devices.
    lanes: Of the sampler.
    algorithm: Of the table.
    critic: If it has one.
    **phase: Fields of `PhaseConfig` that differ from their defaults.
  """
  correction = "truncate" if phase.get("staleness") else "none"
  config = config_lib.RunConfig(
    phases=("rl",),
    rl=config_lib.PhaseConfig(
      num_prompts=work.prompts,
      group_size=work.group,
      # So small that all rounds are alike.
      optimizer=config_lib.OptimizerConfig(learning_rate=1e-7),
      **phase,
    ),
    algorithm=(
      algorithm,
      algorithms.make_config(
        algorithm, kl_coef=0.0, importance_mode=correction
      ),
    ),
    critic=critic or config_lib.CriticConfig(),
    model=config_lib.ModelConfig(
      width=work.hidden,
      num_layers=work.layers,
      num_heads=work.heads,
      num_kv_heads=work.kv_heads,
      mlp_width=work.inner,
      qkv_bias=True,
      dtype=work.dtype,
    ),
    sampling=config_lib.SamplingConfig(lanes=lanes),
  )
  policy = assembly.make_policy(config, of, mesh)
  parts = assembly.make_parts(config, of, policy, "rl", mesh)
  limits = jnp.asarray(workload.lengths(work), jnp.int32)  # [B]
  sample = functools.partial(parts.sample, limits=limits)  # type: ignore
  parts = dataclasses.replace(parts, sample=sample)
  state = assembly.first_state(config, of, policy, mesh)
  state = assembly.enter_phase(state, parts, config.rl, 0)
  return parts, jax.device_put(state, sharding.of_state(mesh, state))


def make_batch(work: workload.Work) -> pipeline.PromptBatch:
  """Random prompts without padding."""
  shape = work.prompts, work.prompt_len
  tokens = np.random.default_rng(1).integers(PAD + 1, work.vocab, shape)
  prompts = Prompts(
    tokens=tokens.astype(np.int32),
    mask=np.ones(shape, bool),
    ids=np.arange(work.prompts, dtype=np.int32),
    extras={},
  )
  records = [{"prompt": row, "answer": "", "extras": {}} for row in tokens]
  return pipeline.PromptBatch(prompts, records)


class Program(NamedTuple):
  """A compiled function, the seconds that it took, and what it may hold."""

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
  return Program(program, seconds, held)


def peak_bytes() -> int | None:
  """Most memory so far: of the accelerator, or resident (Linux)."""
  device = jax.devices()[0]
  if device.platform != "cpu":
    return (device.memory_stats() or {}).get("peak_bytes_in_use")
  status = pathlib.Path("/proc/self/status")
  if not status.exists():
    return None
  lines = status.read_text(encoding="ascii").splitlines()
  (line,) = (line for line in lines if line.startswith("VmHWM"))
  return int(line.split()[1]) * 1024


def _prefill(state: TrainState, prompts: Prompts, *, parts):
  return parts.policy.prefill(
    state.params["policy"], prompts.tokens, prompts.mask
  )


def _log_probs(state: TrainState, batch: TrainBatch, *, parts):
  return stages.with_anchor(parts, state.params, batch).old_logp


def _decode(
  state: TrainState, tokens, cache, weights, prefix, first, *, parts, count
):
  """`count` steps of the model from completion token `first` on."""
  params = state.params["policy"]

  def one(t, carry):
    tokens, cache = carry
    h, cache, _ = parts.policy.decode(
      weights, tokens, jnp.full_like(tokens, t), t, prefix, cache
    )
    tokens = jnp.argmax(parts.policy.head(params, h), axis=-1)
    return tokens.astype(jnp.int32), cache

  return lax.fori_loop(first, first + count, one, (tokens, cache))


class Bench:
  """The compiled parts of a step, and the state that they pass on.

  Attributes:
    programs: What was compiled, by name; a split step is not one program.
    runs: Runs a part and returns when it is done.
    steps: Steps in a run of "step".
    window: Decode steps in a run of them.
    fills: Completion slots filled in such a run, on average, by its name.
    rollouts: Ways of the same rollout.
    metrics: Of the last step.
    peak_bytes: Most memory until one step was compiled and run.
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
    self._queue: tuple[Drawn, ...] = ()
    self.programs: dict[str, Program] = {}
    self.runs: dict[str, Callable[[], Any]] = {}
    self.fills: dict[str, float] = {}
    self.rollouts: dict[str, Program] = {}
    self.metrics: dict[str, float] = {}
    self.parts, self._state = make_parts(work, of, mesh, lanes, **phase)
    batch = make_batch(work)
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
    function = functools.partial(function, parts=self.parts, **fixed)
    program = compiled(
      jax.jit(function, donate_argnums=donate), self._state, *arguments
    )
    self.programs[name] = program
    return functools.partial(self._call, program)

  def _call(self, program: Program, *arguments: Any) -> Any:
    return jax.block_until_ready(program.call(self._state, *arguments))

  def _add_step(self, of, mesh, batch, prompts) -> None:
    if of.scorer is None:
      program = compiled(
        drivers.jit_step(mesh, stages.fused_step, self.parts),
        self._state,
        prompts,
      )
      self.programs["step"] = program

      def run():
        self._state, metrics, _ = self._call(program, prompts)
        self.metrics = jax.device_get(metrics)

    else:
      driver = drivers.make_driver(of, mesh, self.parts)
      batches = [batch] * (1 + self.parts.staleness)

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
    sample = self._compile("rollout", stages.sample_stage, prompts)
    rollout = sample(prompts)

    if of.scorer is None:
      verifier = compiled(jax.jit(self.parts.score), prompts, rollout)
      self.programs["verifier"] = verifier
      judge = functools.partial(verifier.call, prompts, rollout)
      scored = judge()
    else:
      judge = functools.partial(
        of.score_on_host, batch, jax.device_get(rollout)
      )
      scored = jax.device_put(judge()[0], sharding.replicated(mesh))

    rows = objective.make_train_batch(
      self.parts.algorithm,
      self.parts.config,
      prompts,
      rollout,
      scored,
      self._state.algorithm_state,
      None,
    )
    log_probs = self._compile("log-probs", _log_probs, rows)
    learn = compiled(
      drivers.jit_step(mesh, stages.learn_stage, self.parts),
      self._state,
      prompts,
      rollout,
      scored,
    )
    self.programs["update"] = learn

    def update():
      self._state, *_ = self._call(learn, prompts, rollout, scored)

    self.runs |= {
      "prefill": lambda: prefill(prompts),
      "rollout": lambda: sample(prompts),
      "verifier": lambda: jax.block_until_ready(judge()),
      "log-probs": lambda: log_probs(rows),
      "update": update,
    }

  def _add_decode_steps(self, work, prompts) -> None:
    _, prefix, _ = self._call(self.programs["prefill"], prompts)
    weights = jax.jit(self.parts.policy.weights)(self._state.params["policy"])
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
        self.parts.policy.allocate(work.rows, slots, prefix),
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
    """The rollout in lanes, and in batches of rows that wait for each other."""
    key, _ = stages.step_keys(self._state)
    lengths = jnp.asarray(workload.lengths(work), jnp.int32)  # [B]
    sampler = self.parts.sample.keywords["config"]
    for name, together, of_lanes in (
      ("all at once", work.prompts, None),
      (f"{lanes} at a time", max(1, lanes // work.group), None),
      (f"{lanes} lanes", work.prompts, lanes),
    ):
      sample = functools.partial(
        sampling.sample,
        self.parts.policy,
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
  """A function that does `amount` FLOPs, or reads as many bytes."""

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


def report(work: workload.Work, bench: Bench, repeats: int) -> dict[str, Any]:
  """Runs everything in turn; what the table and the file say of it."""
  limits = ceilings(work, bench.parts.plan.micro_batch_size)
  flat = {
    f"{unit}/{name}": ceiling
    for unit, group in limits.items()
    for name, ceiling in group.items()
  }
  before = os.getloadavg()[0]
  seconds = measure(
    {name: ceiling.run for name, ceiling in flat.items()} | bench.runs, repeats
  )
  rates = {
    unit: {
      name: ceiling.amount / min(seconds[f"{unit}/{name}"])
      for name, ceiling in group.items()
    }
    for unit, group in limits.items()
  }
  best = [max(rates[unit].values()) for unit in ("flops_per_s", "bytes_per_s")]

  def beside(measured: dict, costs: dict[str, workload.Cost]) -> dict:
    """`measured` with a floor of each kind."""
    floors = {}
    for kind, cost in costs.items():
      floor = cost.seconds(*best)
      floors[kind] = {
        "flops": float(cost.flops),
        "bytes": float(cost.bytes),
        "seconds": floor,
        "ratio": measured["median_s"] / floor,
      }
    return {**measured, "floors": floors}

  seconds["step"] = [value / bench.steps for value in seconds["step"]]
  # Of the same round, so that both have met the same load.
  seconds["decode"] = [
    whole - start
    for whole, start in zip(seconds["rollout"], seconds["prefill"], strict=True)
  ]
  costs = {kind: workload.costs(work, kind) for kind in workload.KINDS}
  phases = {}
  for name in workload.PHASES:
    each = {kind: of_kind[name] for kind, of_kind in costs.items()}
    phases[name] = beside(spread(seconds[name]), each)
    if name in bench.programs:
      program = bench.programs[name]
      phases[name] |= {
        "compile_s": program.compile_s,
        "program_bytes": program.bytes,
      }

  decode_steps = {}
  for name, filled in bench.fills.items():
    each = [value / bench.window for value in seconds[name]]
    cost = workload.decode_step(work, filled)
    decode_steps[name] = {
      "filled": filled,
      **beside(spread(each), {"full": cost}),
    }
  n = workload.lengths(work)  # [B]
  rollouts = {
    name: {
      **spread(seconds[name]),
      "tokens_per_s": float(n.sum()) / statistics.median(seconds[name]),
      "compile_s": program.compile_s,
      "program_bytes": program.bytes,
    }
    for name, program in bench.rollouts.items()
  }
  if bench.metrics["tokens/generated"] != n.sum():
    raise RuntimeError(
      f"the rollout has {bench.metrics['tokens/generated']:.0f} tokens and"
      f" {n.sum()} were prescribed; the sampler does not obey the lengths."
    )
  step_s = phases["step"]["median_s"]
  device = jax.devices()[0]
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "device": device.device_kind,
    "cores": os.cpu_count(),
    "machine": platform.machine(),
    "jax": jax.__version__,
    "load": [before, os.getloadavg()[0]],
    "work": dataclasses.asdict(work),
    "micro_batch_size": bench.parts.plan.micro_batch_size,
    "lengths_compiled": [work.completion_len, *bench.parts.plan.lengths],
    "staleness": bench.parts.staleness,
    "repeats": repeats,
    "parameters": work.layer_weights + work.head_weights,
    "lengths": {
      "mean": float(n.mean()),
      "max": int(n.max()),
      "rows": n.tolist(),
      "padding": 1 - float(n.mean()) / work.completion_len,
    },
    "ceilings": rates,
    "phases": phases,
    "decode_step": decode_steps,
    "rollouts": rollouts,
    "tokens_per_s": float(n.sum()) / step_s,
    "peak_bytes": bench.peak_bytes,
    "metrics": {name: float(value) for name, value in bench.metrics.items()},
  }


def _ratio(x: float) -> str:
  """In at most five characters."""
  return f"{x:.1f}" if x < 100 else f"{x:.0f}" if x < 1000 else f"{x:.0e}"


def table(results: dict[str, Any]) -> str:
  """What a person wants to know first; at most 100 columns."""
  work, lengths = results["work"], results["lengths"]
  rates = {unit: max(of.values()) for unit, of in results["ceilings"].items()}
  slots = map(str, results["lengths_compiled"])
  ahead = ""
  if results["mode"] == "split":
    ahead = (
      f" (staleness {results['staleness']}, verifier +"
      f" {results['verifier_s']:g} s)"
    )
  lines = [
    f"{results['date']}, {results['device']}, {results['cores']} cores,"
    f" JAX {results['jax']}, load {results['load'][0]:.1f} before and"
    f" {results['load'][1]:.1f} after",
    f"{results['mode']} step{ahead}",
    f"{results['parameters'] / 1e6:.2f} M parameters, {work['dtype']}: hidden"
    f" {work['hidden']},"
    f" {work['layers']} layers, {work['heads']} / {work['kv_heads']} heads,"
    f" vocabulary {work['vocab']}",
    f"{work['prompts']} x {work['group']} rows of {work['prompt_len']} +"
    f" {work['completion_len']} tokens, micro-batches of"
    f" {results['micro_batch_size']} rows of {' / '.join(slots)} tokens; median"
    f" of {results['repeats']}",
    f"lengths {work['length_distribution']}: mean {lengths['mean']:.1f}, max"
    f" {lengths['max']}, padding {lengths['padding']:.0%} of the slots",
    f"ceilings: {rates['flops_per_s'] / 1e9:,.0f} GFLOP/s,"
    f" {rates['bytes_per_s'] / 1e9:,.1f} GB/s",
    "",
    f"{'':<10}{'seconds':>9}{'min':>9}{'compile':>9}{'MiB':>7}"
    + "".join(f"{kind:>8}{'x':>6}" for kind in workload.KINDS),
  ]
  for name, phase in results["phases"].items():
    line = f"{name:<10}" + "".join(
      f"{phase[key]:>9.3g}" for key in ("median_s", "min_s")
    )
    if "compile_s" in phase:
      line += f"{phase['compile_s']:>9.1f}"
      line += f"{phase['program_bytes'] / _MIB:>7.0f}"
    else:
      line += " " * 16
    for floor in phase["floors"].values():
      line += f"{floor['seconds']:>8.2g}{_ratio(floor['ratio']):>6}"
    lines.append(line)

  lines += [
    "",
    f"{'floors':<10}"
    + "".join(f"{kind + ' GFLOP':>13}{'GB':>9}" for kind in workload.KINDS),
  ]
  for name, phase in results["phases"].items():
    lines.append(
      f"{name:<10}"
      + "".join(
        f"{floor['flops'] / 1e9:>13.4g}{floor['bytes'] / 1e9:>9.3g}"
        for floor in phase["floors"].values()
      )
    )

  lines.append("")
  first = None
  for name, of in results["decode_step"].items():
    floor = of["floors"]["full"]
    now = of["median_s"], floor["seconds"]
    first = first or now
    lines.append(
      f"{name:<15}: {of['filled']:.1f} filled slots, {now[0] * 1e3:.3f} ms per"
      f" token, x {now[0] / first[0]:.2f}; floor {now[1] * 1e3:.3f} ms,"
      f" x {now[1] / first[1]:.2f}"
    )
  for name, of in results["rollouts"].items():
    lines.append(
      f"rollout, {name:<14}: {of['median_s']:.3f} s,"
      f" {of['tokens_per_s']:,.0f} tokens/s without padding, compiled in"
      f" {of['compile_s']:.1f} s"
    )
  if results["peak_bytes"] is not None:
    lines.append(
      f"peak memory with the step alone: {results['peak_bytes'] / _MIB:,.0f}"
      " MiB"
    )
  lines.append(
    f"{results['tokens_per_s']:,.0f} completion tokens/s without padding"
  )
  return "\n".join(lines)


def work_of_flags() -> workload.Work:
  """The sizes that the command line asks for."""
  sizes = {name: flag.value for name, flag in _SIZES.items()}
  return workload.Work(
    **workload.PRESETS[_PRESET.value]
    | {name: value for name, value in sizes.items() if value is not None},
    dtype=_DTYPE.value,
    length_distribution=_DISTRIBUTION.value,
    length_mean=_LENGTH_MEAN.value,
  )


def main(argv: Sequence[str]) -> int:
  """Measures, prints the table and writes the file."""
  del argv
  if _MODE.value == "fused" and (_STALENESS.value or _VERIFIER_S.value):
    raise ValueError(
      f"--staleness={_STALENESS.value} --verifier_s={_VERIFIER_S.value}: the"
      " fused program has no verifier on the host; add --mode=split."
    )
  work = work_of_flags()
  mesh = sharding.make_mesh(1)
  with (
    contextlib.closing(
      make_problem(work, _MODE.value, _VERIFIER_S.value)
    ) as of,
    jax.set_mesh(mesh),
  ):
    phase = {"micro_batch_size": _MICRO.value, "staleness": _STALENESS.value}
    if _NUM_LENGTHS.value:
      phase["num_lengths"] = _NUM_LENGTHS.value
    bench = Bench(work, of, mesh, _LANES.value, **phase)
    results = {
      "mode": _MODE.value,
      "verifier_s": _VERIFIER_S.value,
      **report(work, bench, _REPEATS.value),
    }
  print(table(results))
  if _JSON.value:
    text = json.dumps(results, indent=2) + "\n"
    pathlib.Path(_JSON.value).write_text(text, encoding="utf-8")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
