"""Reads a compiled program: what is multiplied, moved and sent, and how often.

XLA's own `cost_analysis` counts the body of a loop once, and everything in a
training step is in loops. `analyze` walks the optimised text instead, from the
entry into every computation, and multiplies by the trip counts:

- a loop counts from a known start to a bound that is constant, or carried in
  unchanged. With further conditions, as in a decode loop that may end early,
  this is the most that it can do, and the numbers are bounds from above;
- a loop whose bound is not in the text is counted once, and named in
  `unresolved`;
- of the branches of a conditional the one that multiplies most is counted.

Counted are matrix products (`dot`, `convolution`) and what kernels declare; not
element-wise operations. Bytes are those that each instruction, with all that is
fused into it, reads and writes in HBM: what the layout says is in VMEM is free,
a slice counts what it takes, an update in place what it writes. The result is
of one device; every device runs the same program.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# A bound that is none: the loop ends by its other condition.
_INT_MAX = 2**31 - 1
# What no scope claims; and how far to look for a reader that does.
_OTHER = "other"
_READERS = 8
# Collectives over less than this are flags and counts, not weights. Bytes.
_SMALL = 4096

_BYTES = {
  "pred": 1,
  "s4": 0.5,
  "u4": 0.5,
  "s8": 1,
  "u8": 1,
  "s16": 2,
  "u16": 2,
  "f16": 2,
  "bf16": 2,
  "s32": 4,
  "u32": 4,
  "f32": 4,
  "s64": 8,
  "u64": 8,
  "f64": 8,
  "c64": 8,
  "c128": 16,
}
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
# What is known of an operand is known of the result.
_FORWARDED = frozenset(
  {
    "all-reduce",
    "bitcast",
    "broadcast",
    "convert",
    "copy",
    "copy-done",
    "opt-barrier",
    "reshape",
  }
)
# Notes of the compiler, and halves of what is counted elsewhere.
_FREE_CALLS = frozenset(
  {
    "AllocateBuffer",
    "AssumeGatherIndicesInBound",
    "AsyncCollectiveDone",
    "AsyncCollectiveStart",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
    "PrepareAsyncCallDone",
    "PrepareAsyncCallStart",
    "ZeroCrop",
  }
)


@dataclasses.dataclass(frozen=True)
class Array:
  """One array of a shape: element type, sizes, memory space (0: HBM)."""

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def in_hbm(self) -> bool:
    """Whether it is in HBM, where scalars are not."""
    return self.space == 0 and bool(self.dims)

  @property
  def size(self) -> int:
    """Bytes; padding of the layout is left out."""
    width: float | None = _BYTES.get(self.dtype)
    if width is None:  # Tokens; and floats of eight bits, of several kinds.
      width = 1 if self.dtype.startswith("f8") else 0
    return math.ceil(width * math.prod(self.dims))


@dataclasses.dataclass(frozen=True)
class Instruction:
  """A line of a computation.

  Attributes:
    name: In its computation.
    arrays: The result, flattened if it is a tuple.
    opcode: As in the text.
    operands: Names.
    literal: Between the parentheses.
    attributes: All that comes after the operands.
  """

  name: str
  arrays: tuple[Array, ...]
  opcode: str
  operands: tuple[str, ...]
  literal: str
  attributes: str

  def attribute(self, name: str) -> str | None:
    """A name or number that an attribute has, without its "%"."""
    found = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
    return found[1] if found else None

  @functools.cached_property
  def op_name(self) -> str:
    """The path of scopes that it was traced in; may be empty."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found[1] if found else ""

  @property
  def target(self) -> str:
    """What a custom call calls."""
    found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
    return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions in order; the last one that is needed is the root."""

  name: str
  instructions: dict[str, Instruction]
  root: Instruction

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """In the order of their numbers."""
    found = [
      one for one in self.instructions.values() if one.opcode == "parameter"
    ]
    return sorted(found, key=lambda one: int(one.literal))

  @functools.cached_property
  def users(self) -> dict[str, list[Instruction]]:
    """Name -> the instructions that read it."""
    found: dict[str, list[Instruction]] = collections.defaultdict(list)
    for one in self.instructions.values():
      for name in one.operands:
        found[name].append(one)
    return found


@dataclasses.dataclass(frozen=True)
class Module:
  """A parsed program.

  Attributes:
    computations: By name.
    entry: Name of the one that is run.
    num_partitions: Devices, or 1.
    num_matmuls: Products in the text, counted apart from the parser.
  """

  computations: dict[str, Computation]
  entry: str
  num_partitions: int
  num_matmuls: int


@dataclasses.dataclass(frozen=True)
class Loop:
  """A loop that was walked.

  Attributes:
    name: Of its instruction.
    op_name: Where it was traced.
    trips: How often its body is run each time; None: not in the text.
    times: How often it is entered.
    is_bound: It may end earlier.
  """

  name: str
  op_name: str
  trips: int | None
  times: int
  is_bound: bool


@dataclasses.dataclass
class Collective:
  """What one instruction sends, over a whole step.

  Attributes:
    kind: Of `COLLECTIVES`.
    name: Of its instruction.
    op_name: Where it was traced.
    phase: Scope that it belongs to.
    count: How often it is run.
    bytes: Of the whole array on a device, each time: what is gathered,
      reduced or exchanged.
    group_size: Devices that take part together.
    is_async: Other work may be done meanwhile.
    in_token_loop: It is run for each token.
    invariant: In the token loop, and on data that no token changes: weights.
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
  """A send or receive that is no collective.

  Attributes:
    opcode: "send", "recv", "infeed", "outfeed" or "custom-call".
    op_name: Where it was traced.
    phase: Scope that it belongs to.
    count: How often it is run.
    bytes: That leave the device, each time.
    between_slices: It is a part of a collective over the data-centre network,
      and does not wait for a Python process.
  """

  opcode: str
  op_name: str
  phase: str
  count: int
  bytes: int
  between_slices: bool


@dataclasses.dataclass
class Costs:
  """Of one device over a step: floating-point operations and HBM bytes."""

  flops: float = 0.0
  bytes: float = 0.0


@dataclasses.dataclass
class Analysis:
  """What `analyze` found.

  Attributes:
    phases: Scope -> costs.
    collectives: Each with its phase.
    transfers: Each with its kind.
    loops: All loops, in the order of the walk.
    kernels: Name -> how often a kernel is called that declares no cost.
    matmuls: Products that were walked, and those in the text; unequal numbers
      mean that the parser has lost a part of the program.
  """

  phases: dict[str, Costs]
  collectives: list[Collective]
  transfers: list[Transfer]
  loops: list[Loop]
  kernels: dict[str, int]
  matmuls: tuple[int, int]

  @property
  def unresolved(self) -> list[Loop]:
    """Loops that were counted once for want of a bound."""
    return [loop for loop in self.loops if loop.trips is None]

  @property
  def weight_gathers(self) -> list[Collective]:
    """Collectives over weights in the token loop; there should be none."""
    return [one for one in self.collectives if one.invariant]

  @property
  def host_transfers(self) -> list[Transfer]:
    """Sends and receives that wait for the host; there should be none."""
    return [one for one in self.transfers if not one.between_slices]


_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# What follows the brace names the core that runs it, if it is not the main one.
_CLOSING = re.compile(r"^\}(?:, \w+=.*)?$")
_START = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")


def _arrays(text: str) -> tuple[Array, ...]:
  found = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = re.search(r"S\((\d+)\)", layout)
    sizes = tuple(int(n.lstrip("<=")) for n in dims.split(",") if n)
    found.append(Array(dtype, sizes, int(space[1]) if space else 0))
  return tuple(found)


def _closing(text: str, start: int) -> int:
  """Where the parenthesis that opens at `start` is closed."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      return match.start()
  raise ValueError(f"hlo: no closing parenthesis in {text[start:][:200]!r}.")


def _instruction(text: str, start: re.Match) -> Instruction:
  rest = text[start.end() :]
  if rest.startswith("("):
    end = _closing(rest, 0) + 1
  else:
    shape = _ARRAY.match(rest)
    if shape is None:
      raise ValueError(f"hlo: no shape in {text[:200]!r}; is this HLO text?")
    end = shape.end()
  opening = rest.index("(", end)
  closing = _closing(rest, opening)
  literal = rest[opening + 1 : closing]
  return Instruction(
    name=start[2],
    arrays=_arrays(rest[:end]),
    opcode=rest[end:opening].strip(),
    operands=tuple(re.findall(r"%([\w.\-]+)", literal)),
    literal=literal,
    attributes=rest[closing + 1 :],
  )


def parse(text: str) -> Module:
  """Parses what `compiled.as_text()` returns.

  Raises:
    ValueError: It is no HLO text, or has no entry.
  """
  computations: dict[str, Computation] = {}
  entry = name = ""
  lines: list[str] = []
  # Kernels carry metadata of several lines: a line that starts nothing belongs
  # to the one before, and a brace at its beginning ends a computation.
  for line in text.splitlines():
    if not name:
      if header := _HEADER.match(line):
        name, lines = header[2], []
        entry = name if header[1] else entry
    elif _CLOSING.match(line):
      computations[name] = _computation(name, lines)
      name = ""
    elif lines and not _START.match(line):
      lines[-1] += line
    else:
      lines.append(line)
  if not entry:
    raise ValueError(
      f"hlo: no ENTRY computation in {len(text)} characters of text; needed is"
      " what compiled.as_text() returns."
    )
  head = text[: text.index("\n")]
  partitions = re.search(r"num_partitions=(\d+)", head)
  return Module(
    computations,
    entry,
    int(partitions[1]) if partitions else 1,
    len(re.findall(r"^\s+(?:ROOT )?%.*? (?:dot|convolution)\(", text, re.M)),
  )


def _computation(name: str, lines: Iterable[str]) -> Computation:
  instructions, root = {}, None
  for line in lines:
    start = _START.match(line)
    if start is None:
      raise ValueError(f"hlo: {name} has a line that starts nothing: {line!r}.")
    one = _instruction(line, start)
    instructions[one.name] = one
    if start[1]:
      root = one
  return Computation(name, instructions, root or one)


@dataclasses.dataclass(frozen=True)
class _Carried:
  """Element `index` of what a loop carries, plus a constant."""

  index: int
  offset: int = 0


# What is known of a value: a number, a carried one, a tuple by index, nothing.
_Value = Any
_Elements = Callable[[int], _Value]


class _Values:
  """Integers that the text determines: starts, steps and bounds of loops."""

  def __init__(self, module: Module, most_tokens: int | None):
    self.module = module
    self.most_tokens = most_tokens
    self._loops: dict[str, tuple[int | None, bool, _Elements]] = {}

  def of(
    self, computation: Computation, name: str, parameters: Sequence[_Value]
  ) -> _Value:
    """What is known of an instruction, given what is of the parameters."""
    one = computation.instructions[name]

    def operand(i: int) -> _Value:
      return self.of(computation, one.operands[i], parameters)

    if one.opcode == "parameter":
      number = int(one.literal)
      return parameters[number] if number < len(parameters) else None
    if one.opcode == "constant":
      found = re.fullmatch(r"\s*\{?(-?\d+)\}?\s*", one.literal)
      return int(found[1]) if found else None
    if one.opcode == "get-tuple-element":
      elements = operand(0)
      index = int(one.attribute("index") or 0)
      return elements(index) if callable(elements) else None
    if one.opcode == "tuple":
      return operand
    if one.opcode == "while":
      return self.loop(computation, one, parameters)[2]
    if any(math.prod(array.dims) > 1 for array in one.arrays):
      return None  # No number.
    if one.opcode in ("fusion", "call"):
      callee = one.attribute("calls") or one.attribute("to_apply")
      called = self.module.computations[callee or ""]
      values = [operand(i) for i in range(len(one.operands))]
      return self.of(called, called.root.name, values)
    if one.opcode in _FORWARDED:
      return operand(0)
    if one.opcode in ("add", "subtract"):
      left, right = operand(0), operand(1)
      sign = 1 if one.opcode == "add" else -1
      if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
      if isinstance(left, _Carried) and isinstance(right, int):
        return _Carried(left.index, left.offset + sign * right)
      if sign > 0 and isinstance(left, int) and isinstance(right, _Carried):
        return _Carried(right.index, right.offset + left)
    return None

  def conjuncts(
    self, computation: Computation, name: str, parameters: Sequence[_Value]
  ) -> list[tuple[str, _Value, _Value] | None]:
    """Comparisons that must hold together; None for any other condition."""
    one = computation.instructions[name]
    if one.opcode == "and":
      return [
        found
        for operand in one.operands
        for found in self.conjuncts(computation, operand, parameters)
      ]
    if one.opcode == "compare":
      left, right = (
        self.of(computation, operand, parameters) for operand in one.operands
      )
      return [(one.attribute("direction") or "", left, right)]
    if one.opcode in _FORWARDED:
      return self.conjuncts(computation, one.operands[0], parameters)
    if one.opcode == "parameter":
      number = int(one.literal)
      given = parameters[number] if number < len(parameters) else None
      return given if isinstance(given, list) else [None]
    if one.opcode in ("fusion", "call"):
      callee = one.attribute("calls") or one.attribute("to_apply")
      called = self.module.computations[callee or ""]
      values = []
      for operand in one.operands:
        value = self.of(computation, operand, parameters)
        if value is None:  # It may be a condition.
          value = self.conjuncts(computation, operand, parameters)
        values.append(value)
      return self.conjuncts(called, called.root.name, values)
    return [None]

  def loop(
    self,
    computation: Computation,
    one: Instruction,
    parameters: Sequence[_Value],
  ) -> tuple[int | None, bool, _Elements]:
    """(trips or None, whether they are a bound, elements after the loop)."""
    if one.name not in self._loops:
      self._loops[one.name] = self._loop(computation, one, parameters)
    return self._loops[one.name]

  def _loop(self, computation, one, parameters):
    body = self.module.computations[one.attribute("body") or ""]
    condition = self.module.computations[one.attribute("condition") or ""]
    start = self.of(computation, one.operands[0], parameters)
    start = start if callable(start) else lambda index: None

    @functools.cache
    def step(index: int) -> int | None:
      """What a trip adds to an element."""
      after = self.of(body, body.root.name, [_Carried])
      value = after(index) if callable(after) else None
      if isinstance(value, _Carried) and value.index == index:
        return value.offset
      return None

    def inside(index: int) -> _Value:
      """Of a value that every trip sees the same."""
      return start(index) if step(index) == 0 else None

    def bound(value: _Value) -> int | None:
      if isinstance(value, _Carried):
        unchanged = inside(value.index)
        value = unchanged + value.offset if isinstance(unchanged, int) else None
      return value if isinstance(value, int) else None

    config = re.search(r"known_trip_count\W+n\W+(\d+)", one.attributes)
    found = self.conjuncts(condition, condition.root.name, [_Carried])
    trips = []
    for comparison in found:
      if comparison is None:
        continue
      direction, left, right = comparison
      if not isinstance(left, _Carried) or bound(left) is not None:
        left, right = right, left
        direction = direction.translate(str.maketrans("LG", "GL"))
      last = bound(right)
      if not isinstance(left, _Carried) or last is None:
        continue
      first, by = start(left.index), step(left.index)
      if not isinstance(first, int) or not by:
        continue
      if last == _INT_MAX and self.most_tokens is not None:
        last = self.most_tokens
      away = last - first - left.offset
      away += {"LE": 1, "GE": -1}.get(direction, 0)
      trips.append(max(0, math.ceil(away / by)))
    count = min(trips, default=None)
    if config:
      count = int(config[1])

    def after(index: int) -> _Value:
      first, by = start(index), step(index)
      if by == 0:
        return first
      if isinstance(first, int) and by is not None and count is not None:
        return first + by * count
      return None

    return count, not config and len(found) > 1, after

  def inside(self, computation, one, parameters) -> _Elements:
    """What the body of a loop knows of its parameter."""
    body = self.module.computations[one.attribute("body") or ""]
    start = self.of(computation, one.operands[0], parameters)
    after = self.of(body, body.root.name, [_Carried])

    def element(index: int) -> _Value:
      if not callable(start) or not callable(after):
        return None
      return start(index) if after(index) == _Carried(index) else None

    return element


class _Invariants:
  """Which values of a token loop are made of nothing that tokens change."""

  def __init__(self, module: Module):
    self.module = module
    # Computation -> names; of those that a token loop has led to.
    self.names: dict[str, set[str]] = {}

  def enter(self, one: Instruction) -> None:
    """Marks the body of a token loop."""
    body = self.module.computations[one.attribute("body") or ""]
    root, parameter = body.root, body.parameters[0]
    passed = []
    for i, name in enumerate(root.operands):
      while body.instructions[name].opcode in ("bitcast", "copy"):
        name = body.instructions[name].operands[0]
      value = body.instructions[name]
      passed.append(
        value.opcode == "get-tuple-element"
        and value.operands[0] == parameter.name
        and int(value.attribute("index") or 0) == i
      )
    self._mark(body, [passed])

  def _mark(self, computation: Computation, parameters: Sequence[Any]) -> Any:
    """Marks a computation; returns what its root is, by element of a tuple."""
    known: dict[str, Any] = {}

    def whole(value: Any) -> bool:
      return all(value) if isinstance(value, list) else value

    for name, one in computation.instructions.items():
      operands = [known.get(operand, False) for operand in one.operands]
      value: Any = all(whole(x) for x in operands)
      if one.opcode == "parameter":
        value = parameters[int(one.literal)]
      elif one.opcode == "tuple":
        value = operands
      elif one.opcode == "get-tuple-element":
        (value,) = operands
        if isinstance(value, list):
          value = value[int(one.attribute("index") or 0)]
      elif one.opcode == "while":
        (value,) = operands
        body = self.module.computations[one.attribute("body") or ""]
        if not isinstance(value, list):
          value = [value] * len(body.root.operands)
        while True:
          after = self._mark(body, [value])
          after = after if isinstance(after, list) else [after] * len(value)
          both = [x and y for x, y in zip(value, after, strict=True)]
          if both == value:
            break
          value = both
      elif callee := one.attribute("calls") or (
        one.attribute("to_apply") if one.opcode == "call" else None
      ):
        value = self._mark(self.module.computations[callee], operands)
      known[name] = value
    # The last time counts: before, loops within were taken to change nothing.
    names = {name for name, value in known.items() if whole(value)}
    self.names[computation.name] = names
    return known[computation.root.name]


def analyze(
  text: str,
  scopes: Sequence[str],
  token_scope: str = "decode",
  most_tokens: int | None = None,
) -> Analysis:
  """Counts what a compiled program does; see the module.

  Args:
    text: `compiled.as_text()`, of a program that is scheduled for one device
      and run by all.
    scopes: Names of `jax.named_scope` that phases are called by; an instruction
      belongs to the innermost one that its path has, or else to that of what
      it is in, or to "other".
    token_scope: The scope whose loop draws a token at a time.
    most_tokens: Where a counter ends that the text bounds by 2³¹ − 1 only.

  Raises:
    ValueError: The text is no HLO.
  """
  walk = _Walk(parse(text), scopes, token_scope, most_tokens)
  entry = walk.module.computations[walk.module.entry]
  walk.run(entry, _Place(_OTHER))
  return Analysis(
    phases=dict(walk.phases),
    collectives=walk.collectives,
    transfers=walk.transfers,
    loops=walk.loops,
    kernels=dict(walk.kernels),
    matmuls=(len(walk.matmuls), walk.module.num_matmuls),
  )


@dataclasses.dataclass(frozen=True)
class _Place:
  """Where the walk is.

  Attributes:
    phase: Scope.
    times: How often it comes here.
    parameters: What is known of the parameters of the computation.
    in_tokens: In a token loop.
    is_async: In something that runs beside the rest.
  """

  phase: str
  times: int = 1
  parameters: tuple[_Value, ...] = ()
  in_tokens: bool = False
  is_async: bool = False


class _Walk:
  """Adds up a program."""

  def __init__(self, module, scopes, token_scope, most_tokens):
    self.module = module
    self.scopes = scopes
    self.token_scope = token_scope
    self.values = _Values(module, most_tokens)
    self.invariants = _Invariants(module)
    self.matmuls: set[tuple[str, str]] = set()
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
    """Its scope; or that of what it is in, or of the first that reads it."""
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
    is_token = self.token_scope in re.split(r"[/()]", one.op_name)
    if is_token and not place.in_tokens:
      self.invariants.enter(one)
    trips, is_bound, _ = self.values.loop(computation, one, place.parameters)
    inside = self.values.inside(computation, one, place.parameters)
    self.loops.append(Loop(one.name, one.op_name, trips, place.times, is_bound))
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
    """Fusions, products, kernels, and all that only moves bytes."""
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
        self.kernels[kernel] += place.times
    elif callee := one.attribute("calls"):
      self._fusion(self.module.computations[callee], place, channels)

  def _fusion(self, computation, place, channels):
    """What is multiplied and sent in a fusion; its bytes are those outside."""
    for one in computation.instructions.values():
      phase = self.scope(one) or place.phase
      here = dataclasses.replace(
        place, phase=phase, is_async="async_collective" in one.attributes
      )
      if one.opcode in ("dot", "convolution"):
        flops = self._product(computation, one)
        self.phases[here.phase].flops += place.times * flops
      elif one.opcode in COLLECTIVES:
        # One that runs beside several fusions is a part of each of them, with
        # the same channel.
        channel = one.attribute("channel_id") or one.name
        if channel not in channels:
          channels.add(channel)
          self._collective(computation, one, here)
      elif callee := one.attribute("calls"):
        self._fusion(self.module.computations[callee], here, channels)

  def _product(self, computation, one) -> float:
    """Operations of a product: two for each multiplication that is needed."""
    self.matmuls.add((computation.name, one.name))
    left, right = (
      computation.instructions[name].arrays[0] for name in one.operands[:2]
    )
    if one.opcode == "dot":
      contracted = re.search(
        r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes
      )
      dims = (
        [int(i) for i in contracted[1].split(",") if i] if contracted else []
      )
      inner = math.prod(left.dims[i] for i in dims)
      return 2.0 * math.prod(one.arrays[0].dims) * inner
    return _convolution(one, left, right)

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
      total += read(source, _read_of(called, parameter))
    root = called.root
    names = root.operands if root.opcode == "tuple" else (root.name,)
    for name, array in zip(names, one.arrays, strict=False):
      if array.in_hbm:
        total += min(array.size, _written_of(called, name))
    return total


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


def _convolution(one: Instruction, left: Array, right: Array) -> float:
  """Operations of a convolution, which is how a TPU writes its products.

  Windows may reach into padding, by which products over several dimensions are
  written; only what meets an element is counted, as XLA's own analysis does.
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
