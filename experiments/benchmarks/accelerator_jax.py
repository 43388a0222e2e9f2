"""Rows of `accelerator.py` that JAX computes."""

from __future__ import annotations

import ast
import contextlib
import math
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import grpo_jax
from experiments.benchmarks import compared, inputs, timing, workload
from grpo_jax.models import architecture, transformer
from grpo_jax.rollout import sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.step import dynamic_sampling
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Rollout

_COUNT = 10  # Products or copies that are timed together.
_REPEATS = 3
_GIB = 2**30
# The quickstart, with sizes that compile quickly. An untrained model is never
# right: the entropy alone has a gradient.
_SMALL = (
  "phases=('rl',) data.task_options.min_len=3 data.task_options.max_len=4"
  " model.width=64 model.num_heads=2 model.mlp_width=128 rl.num_prompts=4"
  " rl.group_size=4 rl.num_lengths=1 rl.optimizer.warmup_steps=0"
  " algorithm.entropy_coef=0.1"
)


def _settings(text: str) -> dict[str, Any]:
  """Reads "name=value" of each word; what is no literal is a text."""
  found = {}
  for word in text.split():
    name, _, value = word.partition("=")
    found[name] = value
    with contextlib.suppress(ValueError):
      found[name] = ast.literal_eval(value)
  return found


def feature(settings: str) -> dict[str, float | None]:
  """Runs two steps of a small quickstart.

  Args:
    settings: An algorithm, and settings that are changed.

  Raises:
    FloatingPointError: The gradient of a step is not finite.
  """
  algorithm, _, changed = settings.partition(" ")
  named = _settings(f"{_SMALL} {changed}")
  config = config_lib.resolve(grpo_jax.config("quickstart", algorithm, **named))
  mesh, seconds = sharding.make_mesh(1), []
  with (
    contextlib.closing(problem_lib.make_problem(config)) as problem,
    jax.set_mesh(mesh),
  ):
    policy, phases, _, streams = run_lib.prepare(config, problem, mesh)
    phase, enter, *_ = phases[0]
    state = checkpointed.first_state(config, problem, policy, mesh)
    state = enter(checkpointed.with_outside(state, phase))
    state = jax.device_put(state, sharding.of_state(mesh, state))
    driver = executors.make_driver(problem, mesh, phase)
    for _ in range(2):
      start = time.perf_counter()
      state, outcome = driver(state, next(streams[0]))
      metrics = outcome.metrics()
      seconds.append(time.perf_counter() - start)
      gap = metrics["sampler_gap/max"]
      if not math.isfinite(norm := metrics["gradient_norm"]):
        raise FloatingPointError(f"gradient_norm is {norm}")
  return {
    "compilation, s": seconds[0] - seconds[1],
    "step, ms": seconds[1] * 1e3,
    # NaN if no token is trained, as when all groups are dead.
    "gap, nats": None if math.isnan(gap) else gap,
    "gradient norm": norm,
  }


def ceiling(dtype: str | None, size: int = 8192) -> dict[str, float]:
  """The rate of products of square matrices, or of copies without a dtype."""
  keys = jax.random.split(jax.random.key(0))
  if dtype is None:
    x = jax.random.normal(keys[0], (8, size, size))
    run, unit, amount = jax.jit(lambda x: x + 1), "GB/s", 2 * x.nbytes / 1e9
    arguments = [x]
  else:
    wide = jnp.int32 if dtype == "int8" else None
    run = jax.jit(lambda x, y: lax.dot(x, y, preferred_element_type=wide))
    unit, amount = "TFLOP/s", 2 * size**3 / 1e12
    arguments = [
      (16 * jax.random.normal(key, (size, size))).astype(dtype) for key in keys
    ]
  many = {unit: lambda: [run(*arguments) for _ in range(_COUNT)]}
  return {unit: _COUNT * amount / min(timing.measure(many, _REPEATS)[unit])}


def decode(cache_dtype: str = "model", **sizes: Any) -> dict[str, Any]:
  """Samples completions of several lengths, each once."""
  of = workload.of_preset(**sizes, dtype="bfloat16")
  config = architecture.TransformerConfig(
    vocab_size=of.vocab,
    **of.model,
    param_dtype=of.dtype,
    cache_dtype=cache_dtype,
  )
  policy, slots = transformer.transformer_policy(config), of.completion_len
  sampler = sampling.SamplerConfig(slots, (), inputs.PAD)

  def sample(params, prompts, limits):
    key = jax.random.key(1)
    return sampling.sample(
      policy, params, prompts, key, sampler, of.group, limits
    ).tokens

  with jax.set_mesh(sharding.make_mesh(1)):
    params = jax.jit(policy.init)(jax.random.key(0))
    prompts = jax.device_put(inputs.make_batch(of).prompts)
    limits = jnp.full(of.rows, slots, jnp.int32)  # [B]
    program = timing.compiled(jax.jit(sample), params, prompts, limits)

    def seconds(tokens: int) -> float:
      start = time.perf_counter()
      few = jnp.minimum(limits, tokens)
      jax.block_until_ready(program.call(params, prompts, few))
      return time.perf_counter() - start

    fifth = slots // 5
    seconds(1)  # Not counted.
    taken = {n: seconds(n) for n in (1, fifth, slots - fifth, slots)}
    _, prefix, _ = jax.eval_shape(policy.prefill, params, *prompts.read)
    cache = jax.eval_shape(
      lambda prefix: policy.allocate(of.rows, slots, prefix), prefix
    )
  held = [
    sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    for tree in (prefix, cache)
  ]
  weights = (of.layer_weights + of.head_weights) * of.item_bytes
  floors = {
    f"a token at {share * 100:.0f} %": {
      "seconds": (taken[last] - taken[first]) / (last - first),
      "flops": workload.decode_step(of, share * slots).flops,
      "bytes": weights + held[0] + share * held[1],
    }
    for share, first, last in ((0.1, 1, fifth), (0.9, slots - fifth, slots))
  }
  return {
    "tokens/s": of.rows * slots / taken[slots],
    "prefill, s": taken[1],
    "floors": floors,
    **_compiled(program),
  }


def _compiled(program: timing.Program) -> dict[str, float]:
  return {
    "compilation, s": program.compile_s,
    "program, GiB": program.bytes / _GIB,
  }


def _groups(of: workload.Work, score: Any) -> dynamic_sampling.Groups:
  """Completions of random tokens, scored."""
  prompts = jax.device_put(inputs.make_batch(of).prompts)
  shape = of.rows, of.completion_len
  index = jnp.arange(of.rows, dtype=jnp.int32) // of.group
  logp = jnp.full(shape, -math.log(of.vocab))
  rollout = Rollout(
    tokens=jax.random.randint(jax.random.key(2), shape, 1, of.vocab),
    completion_mask=jnp.ones(shape, bool),
    behavior_logp=logp,
    sampler_logp=logp,
    entropy=-logp,
    terminated=jnp.zeros(of.rows, bool),
    prompt_index=index,
    group_id=index,
    num_groups=of.prompts,
    version=jnp.zeros(shape, jnp.int32),
  )
  scored = score({}, prompts, rollout)
  return dynamic_sampling.Groups(prompts, rollout, scored)


def update(
  model: dict[str, Any] | None = None,
  logits_chunk_mib: int | None = None,
  **sizes: Any,
) -> dict[str, Any]:
  """Times the update of a batch of completions of full length."""
  of = workload.of_preset(**sizes, dtype="bfloat16")
  mesh = sharding.make_mesh(1)
  phase = {"logits_chunk_mib": logits_chunk_mib, "num_lengths": 1}
  before = timing.peak_bytes() or 0
  with (
    contextlib.closing(inputs.make_problem(of, "fused")) as problem,
    jax.set_mesh(mesh),
  ):
    parts, state = inputs.make_phase(of, problem, mesh, model=model, **phase)
    groups = _groups(of, parts.reward.score)
    learn = executors.jit_step(mesh, step_lib.learn_stage, parts)
    program = timing.compiled(learn, state, groups)

    def run():
      nonlocal state
      state, *_ = program.call(state, groups)
      return state

    seconds = min(timing.measure({"update": run}, _REPEATS)["update"])
  flops, moved = workload.costs(of, "shared")["update"]
  if model and "lora_rank" in model:
    flops *= 2 / 3  # Frozen kernels have no gradients.
    moved = 2 * (of.layer_weights + of.head_weights) * of.item_bytes
  after = timing.peak_bytes() or 0
  return {
    "tokens/s": of.rows * of.completion_len / seconds,
    "floors": {"update": {"seconds": seconds, "flops": flops, "bytes": moved}},
    "rows at once": parts.plan.micro_batch_size,
    **_compiled(program),
    # The largest so far of the process: known if this row has raised it.
    "peak, GiB": after / _GIB if after > before else None,
  }


def step(**sizes: Any) -> dict[str, Any]:
  """Times the fused step on completions of full length."""
  of = workload.of_preset(**sizes, dtype="bfloat16")
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    case = compared.Step(of, mesh, num_lengths=1)
    seconds = min(timing.measure({"step": case}, _REPEATS)["step"])
  cost = workload.costs(of, "shared")["step"]
  return {
    "tokens/s": of.rows * of.completion_len / seconds,
    "floors": {"step": {"seconds": seconds, **cost._asdict()}},
    **_compiled(case.program),
  }


def learn(
  config: str, argument: str | None = None, settings: str = ""
) -> dict[str, Any]:
  """Trains a config of the library to its end."""
  made = grpo_jax.config(config, argument, **_settings(settings))
  start = time.perf_counter()
  with tempfile.TemporaryDirectory() as folder:
    result = loop.train(made, f"{folder}/run")
  return {
    "steps": result.step,
    "accuracy before": (result.before or {}).get("eval/accuracy"),
    "after": (result.after or {}).get("eval/accuracy"),
    "seconds": time.perf_counter() - start,
  }
