r"""Compiles a training step for TPUs that are not there, and says what it does.

    python -m experiments.pods.report --config=configs/pods.py \
        --config.model.checkpoint=Qwen/Qwen2.5-7B \
        --topology=v5p-128 --mesh=fsdp:16,tensor:4 --save=runs/pod

The whole step: rollout, reward, reference, update and optimizer, as one program
for one mesh. libtpu, which `pip install -e '.[tpu]'` brings, has the compiler;
no TPU and no checkpoint are needed. What is printed, and written to SAVE.json
and SAVE.md:

- a verdict in a sentence;
- whether the program fits, which the compiler decides, and what fills the HBM
  of a device; --largest_batch compiles with other numbers of prompts until the
  largest that fits is known within a quarter;
- operations, HBM bytes and what is sent between chips by phase, with the trip
  counts of loops (`costs.py` has the method): every completion is taken to run
  to its full length;
- weights that are gathered for each token, and transfers to the host. Both are
  defects, and there should be none;
- what the step takes at least: of each phase the longest of operations, HBM and
  links at the vendor's peak (`chips.py`), added up. HBM bytes are an estimate:
  of what the program schedules, without what a kernel reads more than once.

--mesh=auto compiles for each mesh that is worth a look (`meshes.candidates`)
and whose estimated memory is not far above that of a device, ranks those that
fit by the least time of a step, and prints the command that starts the run on
the first of them.

The time is a bound and no forecast: latencies, element-wise work, conflicts of
links and everything that is not overlapped come on top, and kernels that do not
declare their operations, as JAX's splash attention. In a token loop, where
thousands of small collectives follow each other, latency may be the larger
part. Results, speed and start-up on real TPUs are not verified by any of this.

Deviations from what a run compiles: completions are learnt at their full length
only (config.rl.num_lengths=1; others have the same loops with fewer slots), and
verifiers on the host are left out: their scores are an input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import math
import pathlib
import re
import sys
import textwrap
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags
from jax.sharding import Mesh

from configs.recipes import models as published
from experiments import flags as flags_lib
from experiments.pods import chips, costs, meshes
from grpo_jax.data import encoder as encoder_lib
from grpo_jax.learning import stages
from grpo_jax.rewards import combine
from grpo_jax.training import config as config_lib
from grpo_jax.training import drivers, judges, models, runs, sharding
from grpo_jax.training import problem as problem_lib
from grpo_jax.types import (
  Images,
  Metrics,
  Player,
  Prompts,
  PyTree,
  Scored,
  TrainState,
)

_CONFIG = flags_lib.define_config()
_TOPOLOGY = flags_lib.define_topology()
_MESH = flags_lib.define_mesh(" `auto` compares those that are worth a look.")
_SLICES = flags_lib.define_slices()
_LARGEST = flags.DEFINE_bool(
  "largest_batch", False, "Look for the largest number of prompts that fits."
)
_SAVE = flags.DEFINE_string("save", "", "Write SAVE.json and SAVE.md.")

# Scopes of `learning/stages.py` and `rollout/sampling.py`.
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


class TooLargeError(Exception):
  """The program does not fit; says what the compiler said."""


@dataclasses.dataclass(frozen=True)
class Target:
  """What is compiled for.

  Attributes:
    slice: Kind and shape of the chips.
    num_slices: How many of them.
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
    """Two where each TensorCore is a device."""
    return len(self.devices) // self.num_chips


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A step that was compiled.

  Attributes:
    program: As JAX has it.
    text: The optimised HLO.
    lower_s, compile_s: Seconds of tracing and of compiling.
    state: Shapes of the state, with their shardings.
    cache_bytes: Of keys and values while sampling, on a device.
    weights_bytes: Of the layers that a decode step reads, on a device.
    most_tokens: Decode steps of a rollout, at most.
  """

  program: Any
  text: str
  lower_s: float
  compile_s: float
  state: TrainState
  cache_bytes: int
  weights_bytes: int
  most_tokens: int


class _Absent:
  """Verifiers whose processes are not started, because nothing is scored."""

  def close(self) -> None:
    """There is nothing to end."""


def _image_shapes(config: config_lib.RunConfig) -> Images | None:
  """Shapes of the images of a prompt in words; None where it shows none."""
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


def make_problem(config: config_lib.RunConfig) -> problem_lib.Problem:
  """The problem of a config; of one in words, what a program knows of it."""
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
  # Which ids end a completion are constants of the program, and any will do.
  ids: Any = types.SimpleNamespace(
    vocab_size=1, pad_id=0, end_ids=(0,), pieces=dict
  )
  absent: Any = None
  scorer: Any = _Absent()
  return problem_lib.Problem(
    tokenizer=ids,
    train=[],
    held_out=absent,
    supervised=absent,
    encoder=encoder_lib.Encoder(ids),
    image_shapes=_image_shapes(config),
    max_prompt_len=config.data.max_prompt_len,
    max_new_tokens=config.sampling.max_new_tokens,
    judge=judges.Sum((judges.OnHost(scorer),), {}, ""),
    truncate_completions=True,
  )


def scored_step(
  state: TrainState, prompts: Prompts, scored: Scored, *, parts: stages.Parts
) -> tuple[TrainState, Metrics, PyTree]:
  """A step whose verifiers are on the host: their scores are an input."""
  rollout = stages.sample_stage(state, prompts, parts=parts)
  greedy = None
  assert isinstance(parts.player, Player)
  if parts.player.greedy is not None:
    greedy = jax.tree.map(
      lambda x: x[:: parts.plan.group_size] if x.ndim else x, scored
    )
  return stages.learn_stage(
    state, prompts, rollout, scored, greedy, parts=parts
  )


def _prompts(problem: problem_lib.Problem, num_prompts: int):
  """Shapes of a batch, with what a verifier in the program reads."""
  if problem.judge.asks_host:
    shape = num_prompts, problem.max_prompt_len
    return Prompts(
      tokens=jax.ShapeDtypeStruct(shape, jnp.int32),
      mask=jax.ShapeDtypeStruct(shape, jnp.bool),
      ids=jax.ShapeDtypeStruct(shape[:1], jnp.int32),
      extras={},
      images=jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num_prompts, *x.shape), x.dtype),
        problem.image_shapes,
      ),
    )
  one = next(problem.prompt_stream(0, 1, None)).prompts
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((num_prompts, *x.shape[1:]), x.dtype), one
  )


def _scores(config: config_lib.RunConfig, num_rows: int):
  """Shapes of what verifiers say of so many completions."""
  names = [path.rpartition(":")[2] for path in config.rewards.functions]

  def score() -> Scored:
    components = {name: jnp.zeros(num_rows) for name in names}
    weights = dict(zip(names, config.rewards.weights, strict=True))
    failed = jnp.zeros(num_rows, bool)
    return combine.combine(components, weights, failed, names[0])

  return jax.eval_shape(score)


def compile_step(
  config: config_lib.RunConfig,
  devices: Sequence[Any],
  change: Callable[[stages.Parts, Mesh], stages.Parts] = lambda parts, _: parts,
) -> Compiled:
  """Compiles the step of the "rl" phase of a config.

  Args:
    config: Of a run; nothing is read but descriptions.
    devices: Real ones, or those of `chips.devices`.
    change: Applied to the parts of the phase; for tests.

  Raises:
    TooLargeError: The compiler says that it does not fit.
    ValueError: The config and the mesh do not go together.
  """
  with contextlib.ExitStack() as stack:
    config = stack.enter_context(published.described(config))
    problem = stack.enter_context(contextlib.closing(make_problem(config)))
    mesh = sharding.make_mesh(
      **dataclasses.asdict(config.mesh), devices=devices
    )
    stack.enter_context(jax.set_mesh(mesh))
    policy = models.make_policy(config, problem, mesh)
    phases = runs.make_phases(config, problem, policy, mesh)
    phase = config.stages[-1]
    if not phase.plays:
      raise ValueError(
        f"pods.report: config.phases={config.phases} end with a phase of the"
        f" kind {phase.kind!r}; needed is one that draws completions, as 'rl'."
      )
    parts = change(phases[-1].parts, mesh)
    state = runs.abstract_state(
      phases, runs.abstract_start(policy, config.seed)
    )
    state = sharding.abstract(state, sharding.of_state(mesh, state))
    function: Callable = stages.fused_step
    rows = [_prompts(problem, phase.num_prompts * phase.max_rounds)]
    if problem.judge.asks_host:
      function = scored_step
      rows = [
        _prompts(problem, phase.num_prompts),
        _scores(config, phase.num_rows),
      ]
    inputs = [sharding.abstract(x, sharding.of_rows(mesh, x)) for x in rows]
    start = time.perf_counter()
    lowered = drivers.jit_step(mesh, function, parts).lower(state, *inputs)
    middle = time.perf_counter()
    try:
      program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
      if "RESOURCE_EXHAUSTED" not in str(error):
        raise
      raise TooLargeError(_said(str(error))) from error
    end = time.perf_counter()
    lanes = min(config.sampling.lanes or phase.num_rows, phase.num_rows)
    waves = math.ceil(phase.num_rows / lanes)
    return Compiled(
      program=program,
      text=program.as_text(),
      lower_s=middle - start,
      compile_s=end - middle,
      state=state,
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
        models.sampling_policy(policy, config.sampling.weights_dtype, mesh),
        state.params["policy"],
      ),
      most_tokens=waves * problem.max_new_tokens - (waves == 1),
    )


def _said(error: str) -> str:
  """What the compiler says of memory, without its table of buffers."""
  found = re.search(r"Used \S+ of \S+ hbm[^\n]*|Ran out of [^\n]*", error)
  return found[0] if found else error.splitlines()[0][:400]


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
  return _bytes(sharding.abstract(caches, where))


def _weights_bytes(mesh, policy, params) -> int:
  """Bytes of the layers that a decode step reads, codes and scales included."""
  weights = jax.eval_shape(policy.weights, params)
  layers = {"layers": weights["trained"]["layers"]}
  return _bytes(sharding.abstract(layers, sharding.of_weights(mesh, layers)))


def _bytes(tree: PyTree) -> int:
  """Bytes of arrays on a device, from their shapes and shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
  )


def hbm(compiled: Compiled) -> dict[str, int]:
  """Kind of array -> bytes on a device.

  `arguments` and `temporary` are the compiler's, with the padding of layouts;
  the kinds above them are from shapes, and `cache` and `weights` are parts of
  `temporary`.
  """
  memory = compiled.program.memory_analysis()
  members = compiled.state.members.values()
  named = {
    "parameters": _bytes([x.params for x in members if x.opt_state]),
    "optimizer": _bytes([x.opt_state for x in members]),
    "reference": _bytes([x.params for x in members if not x.opt_state]),
    "average": _bytes([x.average for x in members]),
  }
  aliased = memory.alias_size_in_bytes
  return named | {
    "arguments": memory.argument_size_in_bytes,
    "results beside the state": memory.output_size_in_bytes - aliased,
    "temporary": memory.temp_size_in_bytes,
    "cache": compiled.cache_bytes,
    "weights": compiled.weights_bytes,
    "total": memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - aliased
    + memory.temp_size_in_bytes,
  }


def traffic(analysis: costs.Analysis, phase: str) -> dict[str, Any]:
  """What a phase sends: bytes, share that runs beside other work, by kind."""
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
  """Phase -> costs of a device, and seconds that it takes at least."""
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
  """What the program does.

  Raises:
    RuntimeError: The parser has lost a part of the program.
  """
  analysis = costs.analyze(
    compiled.text, PHASES, most_tokens=compiled.most_tokens
  )
  walked, written = analysis.matmuls
  if walked != written:
    raise RuntimeError(
      f"the text of the program has {written} products and {walked} were"
      " found on the walk through it; its form is new to"
      " experiments/pods/hlo.py."
    )
  return analysis


def report(
  name: str, config: config_lib.RunConfig, target: Target
) -> dict[str, Any]:
  """Compiles, and says everything; see the module."""
  phase = config.stages[-1]
  chip = target.slice.chip
  results: dict[str, Any] = {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "jax": jax.__version__,
    "libtpu": importlib.metadata.version("libtpu"),
    "config": name,
    "model": config.model.checkpoint,
    "topology": target.slice.topology,
    "product": target.slice.product,
    "slices": target.num_slices,
    "chips": target.num_chips,
    "devices": len(target.devices),
    "mesh": _mesh_shape(config, target.devices),
    "num_prompts": phase.num_prompts,
    "group_size": phase.group_size,
    "micro_batch_size": phase.micro_batch_size,
    "hbm_of_chip": chip.hbm,
    "chip": {
      "flops_per_s": chip.flops,
      "hbm_bytes_per_s": chip.hbm_bandwidth,
      "ici_bytes_per_s": chip.ici_bandwidth,
      "dcn_bytes_per_s": chip.dcn_bandwidth,
    },
  }
  try:
    compiled = compile_step(config, target.devices)
  except TooLargeError as error:
    return results | {"fits": False, "compiler": str(error)}
  return results | {"fits": True} | of_program(compiled, target)


def of_program(compiled: Compiled, target: Target) -> dict[str, Any]:
  """What a report says of a program that fits."""
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
    "decode_steps": compiled.most_tokens,
    "loops_without_bound": [loop.op_name for loop in analysis.unresolved],
    "kernels_without_cost": analysis.kernels,
  }


def _mesh_shape(config, devices) -> dict[str, int]:
  mesh = sharding.make_mesh(**dataclasses.asdict(config.mesh), devices=devices)
  return dict(mesh.shape)


def largest_batch(config: config_lib.RunConfig, target: Target) -> int:
  """The largest number of prompts that fits, within a quarter; 0 for none.

  Doubles or halves until one fits and one does not, and then tries the middle.
  """
  phase = config.stages[-1]
  shards = math.prod(
    size
    for axis, size in _mesh_shape(config, target.devices).items()
    if axis != "tensor"
  )
  rows = phase.num_minibatches * (phase.micro_batch_size or 1)
  # Every device has whole groups, and micro-batches divide.
  unit = math.lcm(shards, rows // math.gcd(rows, phase.group_size))

  def fits(num_prompts: int) -> bool:
    changed = config.with_section(config.phases[-1], num_prompts=num_prompts)
    try:
      compile_step(changed, target.devices)
    except TooLargeError:
      return False
    return True

  low, high = 0, 0
  tried = max(phase.num_prompts // unit, 1) * unit
  while not (low and high):
    if fits(tried):
      low, tried = tried, 2 * tried
    else:
      high, tried = tried, tried // 2 // unit * unit
    if not tried:
      return low
  while high - low > max(low // 4, unit):
    middle = (low + high) // 2 // unit * unit
    low, high = (middle, high) if fits(middle) else (low, middle)
  return low


def verdict(results: dict[str, Any]) -> str:
  """In a sentence: whether it fits, how well, and what takes longest."""
  if not results["fits"]:
    return "verdict: does NOT fit into the memory of a device."
  per_chip = results["devices"] // results["chips"]
  longest, phase = max(
    results["phases"].items(), key=lambda item: item[1]["at_least_s"]
  )
  seconds = phase["seconds"]
  share = phase["at_least_s"] / max(results["at_least_s"], 1e-30)
  text = (
    f"verdict: fits, with {_gib(results['hbm']['total'])} of"
    f" {_gib(results['hbm_of_chip'] / per_chip)} GiB; a step takes at least"
    f" {results['at_least_s']:.3g} s, {share:.0%} of it in {longest}"
    f" ({max(seconds, key=seconds.__getitem__)})"
  )
  defects = [
    what
    for key, what in (
      ("weight_gathers", "weights are gathered for each token"),
      ("host_transfers", "it sends to the host"),
    )
    if results[key]
  ]
  return text + "".join(f"; DEFECT: {what}" for what in defects) + "."


def table(results: dict[str, Any]) -> str:
  """What a person wants to know first; at most 80 columns."""
  mesh = " x ".join(f"{axis} {n}" for axis, n in results["mesh"].items())
  slices = f"{results['slices']} x " if results["slices"] > 1 else ""
  lines = [
    *textwrap.wrap(verdict(results), 80, subsequent_indent="  "),
    " ".join(filter(None, (results["config"], results["model"]))),
    f"{slices}{results['topology']} ({slices}{results['product']}):"
    f" {results['chips']} chips, {results['devices']} devices",
    f"mesh {mesh}",
    f"{results['num_prompts']} prompts x {results['group_size']} completions,"
    f" micro-batches of {results['micro_batch_size'] or 'all'} rows",
    f"{results['date']}, jax {results['jax']}, libtpu {results['libtpu']}",
  ]
  if not results["fits"]:
    return "\n".join([*lines, f"fits: NO. {results['compiler']}"])
  lines.append(
    f"compiled in {results['compile_s']:.0f} s (traced in"
    f" {results['lower_s']:.0f} s)"
  )
  per_chip = results["devices"] // results["chips"]
  lines.append(
    f"fits: yes, {_gib(results['hbm']['total'])} of"
    f" {_gib(results['hbm_of_chip'] / per_chip)} GiB on a device"
  )
  if "largest_batch" in results:
    lines.append(f"largest batch that fits: {results['largest_batch']} prompts")
  lines += ["", f"{'HBM of a device':<28}{'GiB':>9}"]
  for kind, size in results["hbm"].items():
    if not size:
      continue
    shown = {
      "cache": "  of it keys and values",
      "weights": "  of it layers to sample",
    }.get(kind, kind)
    lines.append(f"  {shown:<26}{_gib(size):>9}")
  lines += [
    "",
    f"{'step of a device':<12}{'TFLOP':>8}{'HBM GB':>9}{'sent GB':>9}"
    f"{'async':>7}{'at least s':>12}  of",
  ]
  for name, phase in results["phases"].items():
    seconds = phase["seconds"]
    lines.append(
      f"  {name:<14}{phase['flops'] / 1e12:>8.3g}"
      f"{phase['hbm_bytes'] / 1e9:>9.3g}{phase['sent_bytes'] / 1e9:>9.3g}"
      f"{phase['async_share']:>7.0%}{phase['at_least_s']:>12.4f}"
      f"  {max(seconds, key=seconds.__getitem__)}"
    )
  lines.append(f"  {'together':<47}{results['at_least_s']:>12.4f}")
  lines += ["", "collectives of a step"]
  for name, phase in results["phases"].items():
    if phase["collectives"]:
      kinds = ", ".join(
        f"{count:,} {kind}" for kind, count in phase["collectives"].items()
      )
      lines += textwrap.wrap(
        f"  {name:<14}{kinds}", 80, subsequent_indent=" " * 16
      )
  loop = results["in_token_loop"]
  lines += [
    "",
    f"in the token loop, of at most {results['decode_steps']:,} steps:"
    f" {loop['collectives']:,} collectives, {loop['sent_bytes'] / 1e9:.3g} GB",
    f"weights gathered for each token: {len(results['weight_gathers'])}",
    f"transfers to the host: {len(results['host_transfers'])}",
  ]
  if results["slices"] > 1:
    sent = sum(of["slices_bytes"] for of in results["phases"].values())
    lines.append(
      f"between slices: {results['slice_transfers']} transfers,"
      f" {sent / 1e9:.3g} GB leave a device"
    )
  if results["loops_without_bound"]:
    lines.append(
      "loops that are counted once, for want of a bound:"
      f" {len(results['loops_without_bound'])}"
    )
  if results["kernels_without_cost"]:
    lines.append("kernels whose operations are not counted")
    for name, count in results["kernels_without_cost"].items():
      lines.append(f"  {count:>9,} {name[:68]}")
  return "\n".join(lines)


def _gib(size: float) -> str:
  return f"{size / 2**30:.2f}"


def with_mesh(config: config_lib.RunConfig, axes: str) -> config_lib.RunConfig:
  """The config with axes, "fsdp:16,tensor:4", instead of its own.

  Raises:
    ValueError: That is not how axes are written.
  """
  if not axes:
    return config
  sizes = meshes.parse(axes)
  return dataclasses.replace(config, mesh=type(config.mesh)(**sizes))


def main(argv: Sequence[str]) -> int:
  """Compiles, prints and writes; 1 if it does not fit."""
  del argv
  # The host must not look for a TPU: libtpu is nothing but a compiler here.
  jax.config.update("jax_platforms", "cpu")
  # What is compiled for devices elsewhere is written there and never read.
  jax.config.update("jax_enable_compilation_cache", False)
  of = chips.parse(_TOPOLOGY.value)
  devices = chips.devices(of, _SLICES.value)
  target = Target(of, _SLICES.value, devices)
  given: ml_collections.ConfigDict = _CONFIG.value
  given.allow_unpublished = True  # Nothing is trained.
  axes = "" if _MESH.value == "auto" else _MESH.value
  config = with_mesh(config_lib.resolve(given), axes)
  config = config.with_section(config.phases[-1], num_lengths=1)
  if _MESH.value == "auto":
    from experiments.pods import ranking  # Which reports on each mesh.

    given_args = [x for x in sys.argv[1:] if x.startswith("--config")]
    return ranking.main(report, config, target, given_args)
  results = report(_name(flags.FLAGS), config, target)
  if _LARGEST.value:
    results["largest_batch"] = largest_batch(config, target)
  print(table(results))
  if _SAVE.value:
    write(pathlib.Path(_SAVE.value), results)
  return 0 if results["fits"] else 1


def _name(values: flags.FlagValues) -> str:
  return str(values["config"].config_filename)


def write(stem: pathlib.Path, results: dict[str, Any]) -> None:
  """Writes STEM.json and STEM.md."""
  stem.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(results, indent=2) + "\n"
  stem.with_name(stem.name + ".json").write_text(text, encoding="utf-8")
  page = f"# {stem.name}\n\n```\n{table(results)}\n```\n"
  stem.with_name(stem.name + ".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
  flags_lib.run(main)
