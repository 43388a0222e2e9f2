"""A training step as a program for devices that may not be there.

`described` makes the step of a config from shapes: it reads no data set,
checkpoint or weights. `compile_step` compiles it, and `of_program` analyses its
work and its least time. `report.py` prints the results, and `recorded.py`
compares them with the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments.pods import chips, costs
from grpo_jax.configs.recipes import models as published
from grpo_jax.data import domains as domains_lib
from grpo_jax.data import encoder as encoder_lib
from grpo_jax.rewards import derived
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.step import dynamic_sampling
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards
from grpo_jax.training.runtime import jit, sharding, terminal
from grpo_jax.types import (
  Images,
  Metrics,
  Prompts,
  PyTree,
  Sampler,
  Scored,
  TrainState,
)

# Scopes of `step/step.py` and `rollout/sampling.py`.
PHASES = (
  "prefill",
  "decode",
  "rollout",
  "greedy",
  "verifier",
  "reference",
  "anchor",
  "values",
  "advantages",
  "update",
  "critic",
  "optimizer",
)


@dataclasses.dataclass(frozen=True)
class Step:
  """Step that can be traced.

  Attributes:
    phase: Functions of its phase.
    mesh: Mesh of the devices.
    program: Function of the state, of prompts and, if the host scores, of
      scores.
    arguments: Shapes of its arguments, with their shardings.
    cache_bytes: Bytes of keys and values during sampling, on a device.
    weights_bytes: Bytes of the layers that a decode step reads, on a device.
    most_tokens: Largest number of decode steps of a rollout.
  """

  phase: step_lib.Phase
  mesh: Mesh
  program: jit.Program
  arguments: tuple[Any, ...]
  cache_bytes: int
  weights_bytes: int
  most_tokens: int


class _Absent:
  """Verifiers whose processes are not started, because no row is scored."""

  def close(self) -> None:
    """Does nothing."""


def _image_shapes(config: config_lib.RunConfig) -> Images | None:
  """Shapes of the images of a prompt in words; None without images."""
  if not config.data.images:
    return None
  tower = config.model.transformer(1).tower
  if tower is None:
    raise ValueError(
      f"pods.report: config.data.images={config.data.images} of a model that"
      " has no tower; name a checkpoint that reads images."
    )
  patches = config.data.max_patches or 0

  def shape(dtype: Any, *sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)

  return Images(
    patches=shape(jnp.float32, patches, tower.patch_width),
    image=shape(jnp.int32, patches),
    place=shape(jnp.int32, patches, 2),
    grid=shape(jnp.int32, config.data.max_images or 0, 2),
  )


def _domains(config: config_lib.RunConfig) -> tuple[str, ...]:
  """Names of domains of prompts in words, as far as settings have them.

  If only records have them, the names are those that a setting mentions.
  """
  data = config.data
  if data.source == "mixture":
    return tuple(groups.parts(data))
  if data.domains or data.datasets:
    return data.domains or data.datasets
  named = [name for phase in config.stages for name in phase.domains]
  named += [name for of in config.rewards.domains.values() for name in of]
  return tuple(dict.fromkeys([*named, *config.sampling.domain_limits]))


def make_problem(config: config_lib.RunConfig) -> problem_lib.Problem:
  """The problem of a config; for words, only the facts that a program needs."""
  if config.data.is_made_of_ids:
    made = problem_lib.make_problem(config)
    # A description of a teacher has no tokens that could be compared.
    ids = types.SimpleNamespace(
      vocab_size=made.tokenizer.vocab_size,
      pad_id=made.tokenizer.pad_id,
      end_ids=made.tokenizer.end_ids,
      pieces=dict,
    )
    return dataclasses.replace(made, tokenizer=cast("Any", ids))
  assert config.data.max_prompt_len is not None  # `RunConfig` has seen to it.
  assert config.sampling.max_new_tokens is not None
  # The ids that end a completion are constants of the program; any will do.
  ids: Any = types.SimpleNamespace(
    vocab_size=1,
    pad_id=0,
    end_ids=(0,),
    pieces=dict,
    markup_ids=lambda text: [1],
    observation_ids=lambda text, size: [1],
    token_bytes=lambda: [x.encode() for x in config.reward_model.step_ends],
  )
  absent: Any = None
  scorer: Any = _Absent()
  domains = _domains(config)
  return problem_lib.Problem(
    tokenizer=ids,
    train=[],
    held_out=absent,
    supervised=absent,
    encoder=encoder_lib.Encoder(ids),
    image_shapes=_image_shapes(config),
    max_prompt_len=config.data.max_prompt_len,
    max_new_tokens=config.sampling.max_new_tokens,
    reward=rewards.make(config, rewards.OnHost(scorer), None, domains),
    truncate_completions=True,
    components=frozenset(rewards.of_text(config)),
    domains=domains,
    limits=domains_lib.limits(
      domains, config.sampling.domain_limits, config.sampling.max_new_tokens
    ),
    # Records may have domains.
    provides=frozenset(
      ["domain", *["step_rewards"] * bool(config.rewards.steps)]
    ),
  )


def scored_step(
  state: TrainState, prompts: Prompts, scored: Scored, *, phase: step_lib.Phase
) -> tuple[TrainState, Metrics, PyTree]:
  """A step whose verifiers are on the host: their scores are an input."""
  rollout = step_lib.sample_stage(state, prompts, phase=phase)
  greedy = None
  assert isinstance(phase.sampler, Sampler)
  if phase.sampler.greedy is not None:
    greedy = jax.tree.map(
      lambda x: x[:: phase.plan.group_size] if x.ndim else x, scored
    )
  drawn = dynamic_sampling.Groups(prompts, rollout, scored, greedy)
  return step_lib.learn_stage(state, drawn, phase=phase)


def _prompts(problem: problem_lib.Problem, num_prompts: int):
  """Shapes of a batch, with the inputs of a verifier in the program."""
  if problem.reward.asks_host:
    shape = num_prompts, problem.max_prompt_len
    return Prompts(
      tokens=jax.ShapeDtypeStruct(shape, jnp.int32),
      mask=jax.ShapeDtypeStruct(shape, jnp.bool),
      ids=jax.ShapeDtypeStruct(shape[:1], jnp.int32),
      extras={"domain": jax.ShapeDtypeStruct(shape[:1], jnp.int32)}
      if problem.domains
      else {},
      images=jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num_prompts, *x.shape), x.dtype),
        problem.image_shapes,
      ),
    )
  one = next(problem.prompt_stream(0, 1, None)).prompts
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((num_prompts, *x.shape[1:]), x.dtype), one
  )


def scores(config: config_lib.RunConfig, num_rows: int):
  """Shapes of the scores of verifiers for so many completions."""
  names = [path.rpartition(":")[2] for path in config.rewards.functions]

  def score() -> Scored:
    components = {name: jnp.zeros(num_rows) for name in names}
    weights = dict(zip(names, config.rewards.weights, strict=True))
    failed = jnp.zeros(num_rows, bool)
    found = derived.combine(components, weights, failed, names[0])
    if not config.rewards.steps:
      return found
    slots = num_rows, config.sampling.max_new_tokens
    steps, ends = jnp.zeros(slots), jnp.zeros(slots, bool)
    return dataclasses.replace(found, step_rewards=steps, step_mask=ends)

  return jax.eval_shape(score)


@contextlib.contextmanager
def described(
  config: config_lib.RunConfig,
  devices: Sequence[Any],
  only_rollout: bool = False,
) -> Iterator[Step]:
  """Describes the step of a config's "rl" phase, with its mesh in force.

  Args:
    config: Config of a run; only descriptions of its files are read.
    devices: Real devices, or those of `chips.devices`.
    only_rollout: True if the program ends with the completions.

  Raises:
    ValueError: The config and the mesh do not go together.
  """
  with contextlib.ExitStack() as stack:
    config = stack.enter_context(published.described(config))
    problem = stack.enter_context(contextlib.closing(make_problem(config)))
    mesh = sharding.make_mesh(
      **dataclasses.asdict(config.mesh), devices=devices
    )
    stack.enter_context(jax.set_mesh(mesh))
    policy = policy_lib.make_policy(config, problem, mesh)
    phases = checkpointed.make_phases(config, problem, policy, mesh)
    phase = config.stages[-1]
    if not phase.samples:
      raise ValueError(
        f"pods.report: config.phases={config.phases} end with a phase of the"
        f" kind {phase.kind!r}; needs one that draws completions, as 'rl'."
      )
    parts = phases[-1].phase
    state = checkpointed.abstract_state(
      phases, checkpointed.abstract_start(policy, config.seed)
    )
    state = sharding.abstract(state, sharding.of_state(mesh, state))
    function: Callable = step_lib.fused_step
    rows = [_prompts(problem, phase.num_prompts * phase.max_rounds)]
    if problem.reward.asks_host:
      function = scored_step
      rows = [
        _prompts(problem, phase.num_prompts),
        scores(config, phase.num_rows),
      ]
    inputs = [sharding.abstract(x, sharding.of_rows(mesh, x)) for x in rows]
    lanes = min(config.sampling.lanes or phase.num_rows, phase.num_rows)
    waves = math.ceil(phase.num_rows / lanes)
    program = executors.jit_step(mesh, function, parts)
    if only_rollout:
      play = functools.partial(step_lib.sample_stage, phase=parts)
      program, inputs = jit.Program(play, sharding.replicated(mesh)), inputs[:1]
    yield Step(
      phase=parts,
      mesh=mesh,
      program=program,
      arguments=(state, *inputs),
      cache_bytes=_cache_bytes(
        mesh,
        parts.policy,
        state.params["policy"],
        rows[0],
        phase.num_rows,
        lanes,
        problem,
      ),
      weights_bytes=_weights_bytes(
        mesh,
        policy_lib.sampling_policy(policy, config.sampling.weights_dtype, mesh),
        state.params["policy"],
      ),
      most_tokens=waves * problem.max_new_tokens - (waves == 1),
    )


def _cache_bytes(
  mesh, policy, params, prompts, num_rows, lanes, problem
) -> int:
  """Bytes of keys and values of prompts, and of completions at length T.

  With fewer lanes than rows, each of them has a copy of its prompt.
  """

  def make(params, tokens, mask):
    _, prefix, _ = policy.prefill(params, tokens, mask)
    held, of_lanes = [prefix], prefix
    if lanes < num_rows:
      of_lanes = jax.tree.map(lambda x: x[jnp.zeros(lanes, int)], prefix)
      held.append(of_lanes)
    return *held, policy.allocate(lanes, problem.max_new_tokens, of_lanes)

  caches = jax.eval_shape(make, params, prompts.tokens, prompts.mask)
  where = tuple(sharding.of_cache(mesh, cache) for cache in caches)
  return held_bytes(sharding.abstract(caches, where))


def _weights_bytes(mesh, policy, params) -> int:
  """Bytes of the layers that a decode step reads, codes and scales included."""
  weights = jax.eval_shape(policy.weights, params)
  layers = {"layers": weights["trained"]["layers"]}
  return held_bytes(
    sharding.abstract(layers, sharding.of_weights(mesh, layers))
  )


def held_bytes(tree: PyTree) -> int:
  """Bytes of arrays on a device, from their shapes and shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
  )


class TooLargeError(Exception):
  """Error: the program does not fit; has the message of the compiler."""


@dataclasses.dataclass(frozen=True)
class Target:
  """Target of a compilation.

  Attributes:
    slice: Kind and shape of the chips.
    num_slices: Number of slices.
    devices: The devices of all slices.
  """

  slice: chips.Slice
  num_slices: int
  devices: list[Any]

  @property
  def num_chips(self) -> int:
    """Chips of all slices."""
    return self.num_slices * self.slice.num_chips

  @property
  def devices_per_chip(self) -> int:
    """Number of devices of a chip: two if each TensorCore is a device."""
    return len(self.devices) // self.num_chips


@dataclasses.dataclass(frozen=True)
class Compiled:
  """Step that was compiled.

  Attributes:
    step: Step that was described.
    program: Compiled program of JAX.
    text: The optimised HLO.
    lower_s, compile_s: Seconds of tracing and of compiling.
  """

  step: Step
  program: Any
  text: str
  lower_s: float
  compile_s: float


def compile_described(
  step: Step, options: Mapping[str, Any] | None = None
) -> Compiled:
  """Compiles a step.

  Args:
    step: Step of `described`, which is still in force.
    options: Options of the compiler, beside those of the process.

  Raises:
    TooLargeError: The compiler says that the step does not fit.
  """
  start = time.perf_counter()
  with terminal.waiting("tracing the step"):
    lowered = step.program.lower(*step.arguments)
  middle = time.perf_counter()
  try:
    with terminal.waiting("compiling the step"):
      program = lowered.compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise TooLargeError(_said(str(error))) from error
  end = time.perf_counter()
  return Compiled(
    step, program, program.as_text(), middle - start, end - middle
  )


def compile_step(
  config: config_lib.RunConfig,
  devices: Sequence[Any],
  only_rollout: bool = False,
) -> Compiled:
  """Compiles the step of `described`, with the same errors.

  Raises:
    TooLargeError: The compiler says that the step does not fit.
  """
  with described(config, devices, only_rollout) as step:
    return compile_described(step)


def _said(error: str) -> str:
  """Message of the compiler about memory, without its table of buffers."""
  found = re.search(r"Used \S+ of \S+ hbm[^\n]*|Ran out of [^\n]*", error)
  return found[0] if found else error.splitlines()[0][:400]


def hbm(compiled: Compiled) -> dict[str, int]:
  """Kind of array -> bytes on a device.

  `arguments` and `temporary` are the compiler's, with the padding of layouts;
  the kinds above them are from shapes, and `cache` and `weights` are parts of
  `temporary`.
  """
  memory = compiled.program.memory_analysis()
  step = compiled.step
  members = step.arguments[0].models.values()
  named = {
    "parameters": held_bytes([x.params for x in members if x.opt_state]),
    "optimizer": held_bytes([x.opt_state for x in members]),
    "reference": held_bytes([x.params for x in members if not x.opt_state]),
    "average": held_bytes([x.average for x in members]),
  }
  aliased = memory.alias_size_in_bytes
  return named | {
    "arguments": memory.argument_size_in_bytes,
    "results beside the state": memory.output_size_in_bytes - aliased,
    "temporary": memory.temp_size_in_bytes,
    "cache": step.cache_bytes,
    "weights": step.weights_bytes,
    "total": memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - aliased
    + memory.temp_size_in_bytes,
  }


def traffic(analysis: costs.Analysis, phase: str) -> dict[str, Any]:
  """Communication of a phase: bytes, the share beside other work, and kinds."""
  found = [one for one in analysis.collectives if one.phase == phase]
  sent = sum(one.sent for one in found)
  beside = sum(one.sent for one in found if one.is_async)
  kinds: dict[str, int] = {}
  for one in found:
    kinds[one.kind] = kinds.get(one.kind, 0) + one.count
  return {
    "sent_bytes": sent,
    "slices_bytes": sum(
      one.count * one.bytes
      for one in analysis.transfers
      if one.between_slices and one.phase == phase
    ),
    "async_share": beside / sent if sent else 0.0,
    "collectives": kinds,
  }


def phases(analysis: costs.Analysis, target: Target) -> dict[str, Any]:
  """Phase -> costs of a device, and its least seconds."""
  chip, per_chip = target.slice.chip, target.devices_per_chip
  names = [
    name
    for name in (*PHASES, "other")
    if name in analysis.phases
    or any(
      one.phase == name for one in (*analysis.collectives, *analysis.transfers)
    )
  ]
  found = {}
  for name in names:
    spent = analysis.phases.get(name, costs.Costs())
    sent = traffic(analysis, name)
    seconds = {
      "flops": spent.flops * per_chip / chip.flops,
      "hbm": spent.bytes * per_chip / chip.hbm_bandwidth,
      "links": sent["sent_bytes"] * per_chip / chip.ici_bandwidth,
    }
    if chip.dcn_bandwidth is not None:
      seconds["slices"] = sent["slices_bytes"] * per_chip / chip.dcn_bandwidth
    found[name] = {
      "flops": spent.flops,
      "hbm_bytes": spent.bytes,
      **sent,
      "seconds": seconds,
      "at_least_s": max(seconds.values()),
    }
  return found


def analyze(compiled: Compiled) -> costs.Analysis:
  """Analyzes the costs of a compiled program.

  Raises:
    RuntimeError: The parser has lost a part of the program.
  """
  analysis = costs.analyze(
    compiled.text, PHASES, most_tokens=compiled.step.most_tokens
  )
  walked, written = analysis.matmuls
  if walked != written:
    raise RuntimeError(
      f"the text of the program has {written} products and {walked} were"
      " found on the walk through it; its form is new to"
      " experiments/pods/hlo.py."
    )
  return analysis


def of_program(compiled: Compiled, target: Target) -> dict[str, Any]:
  """Results of a report for a program that fits."""
  analysis = analyze(compiled)
  found = phases(analysis, target)
  loop = [one for one in analysis.collectives if one.in_token_loop]
  return {
    "lower_s": compiled.lower_s,
    "compile_s": compiled.compile_s,
    "hbm": hbm(compiled),
    "phases": found,
    "at_least_s": sum(of["at_least_s"] for of in found.values()),
    "in_token_loop": {
      "collectives": sum(one.count for one in loop),
      "sent_bytes": sum(one.sent for one in loop),
    },
    "weight_gathers": [
      dataclasses.asdict(one) for one in analysis.weight_gathers
    ],
    "host_transfers": [
      dataclasses.asdict(one) for one in analysis.host_transfers
    ],
    "slice_transfers": sum(one.between_slices for one in analysis.transfers),
    "decode_steps": compiled.step.most_tokens,
    "loops_without_bound": [loop.op_name for loop in analysis.unresolved],
    "kernels_without_cost": analysis.kernels,
  }


def cost(results: dict[str, Any], price: float | None) -> list[str]:
  """Least price of a step, as a line; no line without a price."""
  if price is None or not results["fits"]:
    return []
  step = results["at_least_s"] / 3600 * results["chips"] * price
  return [
    f"a step costs at least {step:.3g}, 1,000 steps {1000 * step:.3g}"
    f" ({results['chips']} chips, {price:g} an hour each)"
  ]
