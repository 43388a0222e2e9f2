"""Walks a compiled program and counts products, memory traffic and messages.

XLA's own `cost_analysis` counts the body of a loop once, and everything in a
training step is in loops. `analyze` walks the optimised text instead, from the
entry into every computation, and multiplies by the trip counts:

- a loop counts from a known start to a bound that is constant, or carried in
  unchanged. With further conditions, as in a decode loop that may end early,
  this is the largest possible count, and the numbers are upper bounds;
- a loop whose bound is not in the text is counted once, and named in
  `unresolved`;
- of the branches of a conditional, the one with the most products is counted.

The counted operations are matrix products (`dot`, `convolution`), the numbers
that kernels declare, and the least numbers for kernels that `kernels.py` knows.
Element-wise operations are not counted. Bytes are those that each instruction,
with all that is fused into it, reads and writes in HBM: arrays that the layout
places in VMEM are free, a slice counts the part that it takes, an update in
place the part that it writes. A collective counts the bytes that it sends. A
collective that runs beside other operations is in the text of each of them,
also in a loop, and is counted where it starts. The result is for one device;
every device runs the same program.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Sequence

from experiments.pods import hlo, kernels, loops
from experiments.pods.hlo import Array, Computation, Instruction

# The scope whose loop draws a token at a time.
_TOKENS = "decode"
# Scope of instructions without one; and how far to look for a reader's scope.
_OTHER = "other"
_READERS = 8
# Names of fusions beside whose operations a collective goes on, and what the
# fusions are tied to in which one starts or ends.
_BESIDE = "async_collective_fusion"
_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
# Collectives over less than this are flags and counts, not weights. Bytes.
_SMALL = 4096

COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "all-to-all",
  "collective-broadcast",
  "collective-permute",
  "ragged-all-to-all",
  "reduce-scatter",
)
_TRANSFERS = ("send", "recv", "infeed", "outfeed")
# Names of other values, or nothing that is done at run time.
_FREE = frozenset(
  {
    "add-dependency",
    "after-all",
    "async-done",
    "async-update",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "copy-done",
    "domain",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "slice-done",
    "tuple",
    "while",
  }
)
# Notes of the compiler, and halves of what is counted elsewhere.
_FREE_CALLS = frozenset(
  {
    "AllocateBuffer",
    "AssumeGatherIndicesInBound",
    _DONE,
    _START,
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
    "PrepareAsyncCallDone",
    "PrepareAsyncCallStart",
    "ZeroCrop",
  }
)


@dataclasses.dataclass(frozen=True)
class Loop:
  """Loop that was walked.

  Attributes:
    op_name: Place in the code where it was traced.
    trips: Number of runs of its body each time; None if the text lacks it.
    is_bound: Whether `trips` is a bound: the loop may end earlier.
  """

  op_name: str
  trips: int | None
  is_bound: bool


@dataclasses.dataclass
class Collective:
  """Communication of one instruction, over a whole step.

  Attributes:
    kind: Kind of collective, one of `COLLECTIVES`.
    name: Name of its instruction.
    op_name: Place in the code where it was traced.
    phase: Scope to which it belongs.
    count: Number of runs.
    bytes: Bytes of the whole array on a device, in each run: the array that is
      gathered, reduced or exchanged.
    group_size: Number of devices that take part together.
    is_async: Whether other work may be done meanwhile.
    in_token_loop: Whether it is run for each token.
    invariant: Whether it is in the token loop and on data that no token
      changes, such as weights.
  """

  kind: str
  name: str
  op_name: str
  phase: str
  count: int
  bytes: int
  group_size: int
  is_async: bool
  in_token_loop: bool
  invariant: bool

  @property
  def sent(self) -> float:
    """Bytes that a device sends around a ring, over the step."""
    n = self.group_size
    share = 1.0 if "permute" in self.kind else (n - 1) / n
    if self.kind == "all-reduce":
      share *= 2
    return self.count * self.bytes * share


@dataclasses.dataclass
class Transfer:
  """Send or receive that is not a collective.

  Attributes:
    opcode: "send", "recv", "infeed", "outfeed" or "custom-call".
    op_name: Place in the code where it was traced.
    phase: Scope to which it belongs.
    count: Number of runs.
    bytes: Bytes that leave the device, in each run.
    between_slices: Whether it is a part of a collective over the data-centre
      network, which does not wait for a Python process.
  """

  opcode: str
  op_name: str
  phase: str
  count: int
  bytes: int
  between_slices: bool


@dataclasses.dataclass
class Costs:
  """Operations and HBM bytes of one device over a step."""

  flops: float = 0.0
  bytes: float = 0.0


@dataclasses.dataclass
class Analysis:
  """Results of `analyze`.

  Attributes:
    phases: Scope -> costs of it.
    collectives: Collectives, each with its phase.
    transfers: Transfers, each with its kind.
    loops: Loops in the order of the walk.
    kernels: Name -> number of calls of a kernel whose operations are unknown.
    matmuls: Number of products that were walked, and number of those in the
      text; unequal numbers mean that the parser has lost a part of the program.
    instructions: Number of instructions in the text, each counted once.
  """

  phases: dict[str, Costs]
  collectives: list[Collective]
  transfers: list[Transfer]
  loops: list[Loop]
  kernels: dict[str, int]
  matmuls: tuple[int, int]
  instructions: int = 0

  @property
  def unresolved(self) -> list[Loop]:
    """Loops that were counted once because their bound is unknown."""
    return [loop for loop in self.loops if loop.trips is None]

  @property
  def weight_gathers(self) -> list[Collective]:
    """Collectives over weights in the token loop; there should be none."""
    return [one for one in self.collectives if one.invariant]

  @property
  def host_transfers(self) -> list[Transfer]:
    """Sends and receives that wait for the host; there should be none."""
    return [one for one in self.transfers if not one.between_slices]


def analyze(
  text: str, scopes: Sequence[str], most_tokens: int | None = None
) -> Analysis:
  """Counts the costs of a compiled program; see the module.

  Args:
    text: `compiled.as_text()`, of a program that is scheduled for one device
      and run by all.
    scopes: Names of `jax.named_scope` for phases. An instruction belongs to the
      innermost one in its path, or else to the scope of the computation around
      it, or to "other".
    most_tokens: End of a counter that the text bounds by 2³¹ − 1 only.

  Raises:
    ValueError: The text is not HLO.
  """
  walk = _Walk(hlo.parse(text), scopes, most_tokens)
  entry = walk.module.computations[walk.module.entry]
  walk.run(entry, _Place(_OTHER))
  return Analysis(
    phases=dict(walk.phases),
    collectives=walk.collectives,
    transfers=walk.transfers,
    loops=walk.loops,
    kernels=dict(+walk.kernels),
    matmuls=(len(walk.matmuls), walk.module.num_matmuls),
    instructions=sum(
      len(of.instructions) for of in walk.module.computations.values()
    ),
  )


@dataclasses.dataclass(frozen=True)
class _Place:
  """Position of the walk in a program.

  Attributes:
    phase: Scope of the position.
    times: Number of times that the program comes here.
    parameters: Known values of the parameters of the computation.
    in_tokens: Whether it is in a token loop.
    is_async: Whether it is in a part that runs beside the rest.
  """

  phase: str
  times: int = 1
  parameters: tuple[loops.Value, ...] = ()
  in_tokens: bool = False
  is_async: bool = False


class _Walk:
  """Adds up a program."""

  def __init__(self, module, scopes, most_tokens):
    self.module = module
    self.scopes = scopes
    self.values = loops.Values(module, most_tokens)
    self.invariants = loops.Invariants(module)
    self.matmuls: set[tuple[str, str]] = set()
    self.started = {
      _channel(one)
      for computation in module.computations.values()
      if computation.root.target == _START
      for one in computation.instructions.values()
      if one.opcode in COLLECTIVES
    }
    self.clear()

  def clear(self):
    self.phases: dict[str, Costs] = collections.defaultdict(Costs)
    self.collectives: list[Collective] = []
    self.transfers: list[Transfer] = []
    self.loops: list[Loop] = []
    self.kernels: dict[str, int] = collections.Counter()

  def scope(self, one: Instruction) -> str | None:
    """The innermost known scope of an instruction, if it has one."""
    parts = re.split(r"[/()]", one.op_name)
    found = [part for part in parts if part in self.scopes]
    return found[-1] if found else None

  def phase(
    self, computation: Computation, one: Instruction, otherwise: str
  ) -> str:
    """Scope of an instruction, of its surroundings, or of its first reader."""
    found = self.scope(one)
    if found or otherwise != _OTHER:
      return found or otherwise
    # Copies into VMEM say nothing of themselves.
    for _ in range(_READERS):
      users = computation.users.get(one.name)
      if not users:
        break
      one = users[0]
      if found := self.scope(one):
        return found
    return _OTHER

  def run(self, computation: Computation, place: _Place) -> None:
    """Walks all instructions of a computation."""
    channels: set[str] = set()
    for one in computation.instructions.values():
      phase = self.phase(computation, one, place.phase)
      here = dataclasses.replace(place, phase=phase)
      base = one.opcode.removesuffix("-start")
      if one.opcode == "while":
        self._while(computation, one, here)
      elif one.opcode == "conditional":
        self._conditional(one, here)
      elif one.opcode == "call":
        callee = self.module.computations[one.attribute("to_apply") or ""]
        parameters = tuple(
          self.values.of(computation, name, place.parameters)
          for name in one.operands
        )
        self.run(callee, dataclasses.replace(here, parameters=parameters))
      elif base in COLLECTIVES:
        is_async = place.is_async or one.opcode.endswith("-start")
        self._collective(
          computation, one, dataclasses.replace(here, is_async=is_async)
        )
      elif one.opcode in _TRANSFERS or "callback" in one.target:
        self._transfer(computation, one, here)
      else:
        self._plain(computation, one, here, channels)

  def _while(self, computation, one, place):
    is_token = _TOKENS in re.split(r"[/()]", one.op_name)
    if is_token and not place.in_tokens:
      self.invariants.enter(one)
    trips, is_bound, _ = self.values.loop(computation, one, place.parameters)
    inside = self.values.inside(computation, one, place.parameters)
    self.loops.append(Loop(one.op_name, trips, is_bound))
    within = dataclasses.replace(
      place,
      times=place.times * (1 if trips is None else trips),
      parameters=(inside,),
      in_tokens=place.in_tokens or is_token,
    )
    for part in ("condition", "body"):
      self.run(self.module.computations[one.attribute(part) or ""], within)

  def _conditional(self, one, place):
    """Counts the branch that multiplies most."""
    named = re.search(r"branch_computations=\{([^}]*)\}", one.attributes)
    names = (
      named[1]
      if named
      else " ".join(
        one.attribute(part) or ""
        for part in ("true_computation", "false_computation")
      )
    )
    outside, branches = self.__dict__.copy(), []
    for name in re.findall(r"[\w.\-]+", names):
      self.clear()
      self.run(
        self.module.computations[name],
        dataclasses.replace(place, parameters=()),
      )
      branches.append(self.__dict__.copy())
    most = max(
      branches,
      key=lambda of: [
        sum(getattr(costs, field) for costs in of["phases"].values())
        for field in ("flops", "bytes")
      ],
    )
    self.__dict__.update(outside)
    for phase, costs in most["phases"].items():
      self.phases[phase].flops += costs.flops
      self.phases[phase].bytes += costs.bytes
    self.collectives += most["collectives"]
    self.transfers += most["transfers"]
    self.loops += most["loops"]
    for target, count in most["kernels"].items():
      self.kernels[target] += count

  def _operands(self, computation, one) -> list[Array]:
    return [
      array
      for name in one.operands
      for array in computation.instructions[name].arrays
    ]

  def _collective(self, computation, one, place):
    kind = one.opcode.removesuffix("-start")
    if computation.name.startswith("all-reduce-scatter"):
      kind = "reduce-scatter"  # As a TPU writes it: a sum, and a slice of it.
    size = sum(array.size for array in self._operands(computation, one))
    group = _group_size(one.attributes, self.module.num_partitions)
    if kind == "all-gather":
      size *= group
    marked = self.invariants.names.get(computation.name, set())
    self.collectives.append(
      Collective(
        kind=kind,
        name=one.name,
        op_name=one.op_name,
        phase=place.phase,
        count=place.times,
        bytes=size,
        group_size=group,
        is_async=place.is_async,
        in_token_loop=place.in_tokens,
        invariant=place.in_tokens
        and size >= _SMALL
        and all(name in marked for name in one.operands),
      )
    )

  def _transfer(self, computation, one, place):
    self.transfers.append(
      Transfer(
        one.opcode,
        one.op_name,
        place.phase,
        place.times,
        sum(array.size for array in self._operands(computation, one)),
        "megascale" in one.attributes,
      )
    )

  def _plain(self, computation, one, place, channels):
    """Counts fusions, products, kernels, and moves of bytes."""
    if one.opcode == "async-start":
      called = self.module.computations[one.attribute("calls") or ""]
      self.run(called, dataclasses.replace(place, is_async=True, parameters=()))
      return
    costs = self.phases[place.phase]
    costs.bytes += place.times * self._hbm_bytes(computation, one)
    if one.opcode in ("dot", "convolution"):
      costs.flops += place.times * self._product(computation, one)
    elif one.opcode == "custom-call" and one.target not in _FREE_CALLS:
      declared = re.search(r'"flops":"?(\d+)', one.attributes)
      if declared and int(declared[1]):
        costs.flops += place.times * int(declared[1])
      else:
        kernel = re.sub(r"[.\d]+$", "", one.name)
        operands = self._operands(computation, one)
        flops = kernels.flops(kernel, operands, one.attributes)
        costs.flops += place.times * flops
        self.kernels[kernel] += place.times * (not flops)
    elif callee := one.attribute("calls"):
      self._fusion(self.module.computations[callee], place, channels)

  def _fusion(self, computation, place, channels):
    """Adds the products and collectives of a fusion, without its bytes."""
    for one in computation.instructions.values():
      phase = self.scope(one) or place.phase
      here = dataclasses.replace(
        place, phase=phase, is_async="async_collective" in one.attributes
      )
      if one.opcode in ("dot", "convolution"):
        flops = self._product(computation, one)
        self.phases[here.phase].flops += place.times * flops
      elif one.opcode in COLLECTIVES:
        if self._starts(computation, one, channels):
          self._collective(computation, one, here)
      elif callee := one.attribute("calls"):
        self._fusion(self.module.computations[callee], here, channels)

  def _starts(self, computation, one, channels) -> bool:
    """True if a collective in a fusion starts there, and does not go on there.

    A collective that runs beside several fusions is a part of each of them,
    with the same channel: of the fusion in which it starts, of those beside
    which it goes on, in this computation or in a loop, and of the one that
    waits for it.
    """
    channel = _channel(one)
    if channel in self.started:
      return computation.root.target == _START
    is_first = channel not in channels
    channels.add(channel)
    return is_first

  def _product(self, computation, one) -> float:
    self.matmuls.add((computation.name, one.name))
    return product_flops(computation, one)

  def _hbm_bytes(self, computation, one) -> float:
    if one.opcode in _FREE or one.opcode.endswith("-done"):
      return 0
    if one.opcode == "custom-call" and one.target in _FREE_CALLS:
      return 0
    sources = [computation.instructions[name] for name in one.operands]

    def read(source: Instruction, size: int | None = None) -> int:
      """Bytes, or at most `size` of them, if the array is in HBM."""
      found = sum(array.size for array in source.arrays if array.in_hbm)
      return found if size is None else min(found, size)

    written = sum(array.size for array in one.arrays if array.in_hbm)
    if one.opcode in ("copy-start", "slice-start"):
      # (where to, where from, context); of a slice, in the other order.
      moved = one.arrays[0 if one.opcode == "copy-start" else 1]
      return moved.size * moved.in_hbm + read(sources[0], moved.size)
    if one.opcode in ("dynamic-slice", "slice", "gather"):
      return written + read(sources[0], one.arrays[0].size)
    if one.opcode == "dynamic-update-slice":
      size = sources[1].arrays[0].size
      return read(sources[1]) + min(written, size)
    if one.opcode == "scatter":
      size = sources[-1].arrays[0].size
      return sum(read(x) for x in sources[1:]) + min(written, size)
    callee = one.attribute("calls") if one.opcode == "fusion" else None
    if callee is None:
      return written + sum(read(source) for source in sources)
    called = self.module.computations[callee]
    total = 0
    for source, parameter in zip(sources, called.parameters, strict=True):
      if not _is_handed_on(called, parameter):
        total += read(source, _read_of(called, parameter))
    root = called.root
    names = root.operands if root.opcode == "tuple" else (root.name,)
    for name, array in zip(names, one.arrays, strict=False):
      if array.in_hbm and not _is_handed_on(called, called.instructions[name]):
        total += min(array.size, _written_of(called, name))
    return total


def _channel(one: Instruction) -> str:
  """Identifier that the parts of a collective share."""
  return one.attribute("channel_id") or one.name


def _is_handed_on(computation: Computation, one: Instruction) -> bool:
  """True if a fusion holds this only for a collective that runs beside it.

  Operands and results of such a fusion are the whole arrays of the collective,
  each where it lies: the fusion itself neither reads nor writes them.
  """
  root = computation.root
  ends = root.target in (_START, _DONE)
  if not (ends or computation.name.startswith(_BESIDE)):
    return False
  if one.opcode == "parameter":
    return all(
      user.opcode in COLLECTIVES
      or (user is root and (ends or root.opcode == "tuple"))
      for user in computation.users.get(one.name, [])
    )
  return one.opcode in COLLECTIVES or (ends and one is root)


def _read_of(computation: Computation, parameter: Instruction) -> int:
  """Bytes of a parameter of a fusion that are read."""
  total = 0
  whole = sum(array.size for array in parameter.arrays)
  for user in computation.users[parameter.name]:
    first = user.operands[0] == parameter.name
    if first and user.opcode in ("dynamic-slice", "slice", "gather"):
      total += user.arrays[0].size
    elif user.opcode == "bitcast":
      total += _read_of(computation, user)
    elif not (first and user.opcode == "dynamic-update-slice"):
      return whole
  return min(total, whole)


def _written_of(computation: Computation, name: str) -> int:
  """Bytes of a result of a fusion that are written."""
  one = computation.instructions[name]
  while one.opcode == "bitcast":
    one = computation.instructions[one.operands[0]]
  if one.opcode == "dynamic-update-slice":
    one = computation.instructions[one.operands[1]]
  return sum(array.size for array in one.arrays)


def _group_size(attributes: str, num_partitions: int) -> int:
  """Devices of a replica group, in any of the ways that they are written."""
  if found := re.search(
    r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes
  ):
    sizes = {
      name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])
    }
    axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])
    return math.prod(int(part) if part else sizes[name] for name, part in axes)
  if found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes):
    return int(found[2])
  if found := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
    return len(found[1].split(","))
  return num_partitions


def product_flops(computation: Computation, one: Instruction) -> float:
  """Operations of a product: two for each multiplication."""
  left, right = (
    computation.instructions[name].arrays[0] for name in one.operands[:2]
  )
  if one.opcode == "dot":
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
    dims = [int(i) for i in contracted[1].split(",") if i] if contracted else []
    inner = math.prod(left.dims[i] for i in dims)
    return 2.0 * math.prod(one.arrays[0].dims) * inner
  return _convolution(one, left, right)


def _convolution(one: Instruction, left: Array, right: Array) -> float:
  """Operations of a convolution, which is how a TPU writes its products.

  Windows may reach into padding, which products over several dimensions use.
  Only products with an element are counted, as in XLA's own analysis.
  """
  labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
  assert labels is not None, one
  of_left, of_right, of_result = labels.groups()
  result = one.arrays[0]
  window = re.search(r"window=\{([^}]*)\}", one.attributes)
  fields = dict(re.findall(r"(\w+)=(\S+)", window[1] if window else ""))

  def field(name: str, at: int, otherwise: str) -> str:
    return fields[name].split("x")[at] if name in fields else otherwise

  valid = 1
  for at in range(sum(label.isdigit() for label in of_left)):
    label = str(at)
    low = int(field("pad", at, "0_0").split("_")[0])
    valid *= _meetings(
      left.dims[of_left.index(label)],
      int(field("size", at, "1")),
      result.dims[of_result.index(label)],
      int(field("stride", at, "1")),
      low,
      int(field("lhs_dilate", at, "1")),
      int(field("rhs_dilate", at, "1")),
    )
  groups = int(one.attribute("batch_group_count") or 1)
  return (
    2.0
    * left.dims[of_left.index("b")]
    / groups
    * result.dims[of_result.index("f")]
    * right.dims[of_right.index("i")]
    * valid
  )


@functools.cache
def _meetings(
  size: int,
  window: int,
  results: int,
  stride: int,
  low: int,
  of_left: int,
  of_right: int,
) -> int:
  """Pairs (result, place in the window) that meet an element, not padding."""
  count = 0
  end = (size - 1) * of_left  # The last element, with holes between them.
  for k in range(window):
    # Results o with 0 <= o · stride + shift <= end, on no hole.
    shift = k * of_right - low
    first = max(0, math.ceil(-shift / stride))
    last = min(results - 1, (end - shift) // stride)
    if of_left == 1:
      count += max(0, last - first + 1)
    else:
      count += sum(
        (o * stride + shift) % of_left == 0 for o in range(first, last + 1)
      )
  return count
