"""Parser of the text of a compiled program: computations of instructions.

`costs.py` counts its products, memory traffic and messages, and `loops.py` the
trips of its loops.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

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

_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# What follows the brace names the core that runs it, if it is not the main one.
_CLOSING = re.compile(r"^\}(?:, \w+=.*)?$")
_START = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")


@dataclasses.dataclass(frozen=True)
class Array:
  """Array of a shape: element type, sizes, memory space (0: HBM)."""

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def in_hbm(self) -> bool:
    """True for arrays in HBM; scalars are not there."""
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
  """Line of a computation.

  Attributes:
    name: Name in its computation.
    arrays: The result, flattened if it is a tuple.
    opcode: Operation, as in the text.
    operands: Names of the operands.
    literal: Text between the parentheses.
    attributes: Text after the operands.
  """

  name: str
  arrays: tuple[Array, ...]
  opcode: str
  operands: tuple[str, ...]
  literal: str
  attributes: str

  def attribute(self, name: str) -> str | None:
    """Name or number of an attribute, without its "%"."""
    found = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
    return found[1] if found else None

  @functools.cached_property
  def op_name(self) -> str:
    """Path of scopes of its trace; may be empty."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found[1] if found else ""

  @property
  def target(self) -> str:
    """Target of a custom call; "" for other instructions."""
    found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
    return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions in order; the root is the one marked ROOT, or the last one."""

  name: str
  instructions: dict[str, Instruction]
  root: Instruction

  @functools.cached_property
  def parameters(self) -> list[Instruction]:
    """Parameters in the order of their numbers."""
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
  """Parsed program.

  Attributes:
    computations: Computations by name.
    entry: Name of the computation that is run.
    num_partitions: Number of devices, or 1.
    num_matmuls: Number of products in the text, counted apart from the parser.
  """

  computations: dict[str, Computation]
  entry: str
  num_partitions: int
  num_matmuls: int


def _arrays(text: str) -> tuple[Array, ...]:
  found = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = re.search(r"S\((\d+)\)", layout)
    sizes = tuple(int(n.lstrip("<=")) for n in dims.split(",") if n)
    found.append(Array(dtype, sizes, int(space[1]) if space else 0))
  return tuple(found)


def _closing(text: str, start: int) -> int:
  """Index of the parenthesis that closes the one at `start`."""
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
  """Parses the text of `compiled.as_text()`.

  Raises:
    ValueError: The text is not HLO, or has no entry.
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
      f"hlo: no ENTRY computation in {len(text)} characters of text; needs"
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
