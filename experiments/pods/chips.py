"""TPU chips: their figures, the slices that are sold, and their names.

Figures are the vendor's, per chip; nothing here was measured. Sources, read in
November 2026:

- cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}: peak bfloat16 operations,
  HBM and its bandwidth, bandwidth between chips ("bidirectional", of which
  half leads out of a chip; v5e: 1600 Gb/s), network of the data centre;
- links of v4 (6 of 50 GB/s): Jouppi et al., "TPU v4: An Optically
  Reconfigurable Supercomputer", arXiv:2304.01433, Table 4;
- slices: the same pages. Of v4, v5p and tpu7x those that are smaller than a
  cube of 4 × 4 × 4 are listed; larger ones have sides that are multiples of 4,
  in ascending order. Not all of them may be available: the lists of XPK
  (github.com/AI-Hypercomputer/xpk, system_characteristics.py) leave some out.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """Generation of TPUs.

  Attributes:
    name: Name in libtpu.
    products: Beginnings of the names of its slices.
    flops: Peak bfloat16 operations per second.
    hbm: Bytes of HBM.
    hbm_bandwidth: Bytes per second.
    ici_bandwidth: Bytes per second that leave a chip over all its links.
    dcn_bandwidth: Bytes per second between slices; None if it is not published.
    cores_per_chip: Number of TensorCores of a chip, if product names count
      these; 1 if they count chips.
    devices_per_chip: Number of JAX devices of a chip: two if each TensorCore is
      a device.
    slices: Shapes that are sold, without those of whole cubes.
    max_cube_chips: Number of chips of the largest slice of cubes; 0 for a
      generation in two dimensions.
  """

  name: str
  products: tuple[str, ...]
  flops: float
  hbm: int
  hbm_bandwidth: float
  ici_bandwidth: float
  dcn_bandwidth: float | None
  cores_per_chip: int
  slices: tuple[tuple[int, ...], ...]
  max_cube_chips: int = 0
  devices_per_chip: int = 1

  def is_sold(self, shape: tuple[int, ...]) -> bool:
    """True if slices of this shape exist."""
    return shape in self.slices or (
      len(shape) == 3
      and all(side > 0 and side % 4 == 0 for side in shape)
      and list(shape) == sorted(shape)
      and math.prod(shape) <= self.max_cube_chips
    )

  def shape_of(self, num_chips: int) -> tuple[int, ...] | None:
    """The sold shape of so many chips that is most like a cube, or None."""
    shapes = [s for s in self.slices if math.prod(s) == num_chips]
    if not shapes and num_chips % 64 == 0:
      sides = range(4, num_chips // 16 + 1, 4)
      shapes = [
        (a, b, num_chips // (a * b))
        for a in sides
        for b in sides
        if a * a * b <= num_chips and num_chips % (a * b) == 0
      ]
    shapes = [shape for shape in shapes if self.is_sold(shape)]
    return min(shapes, key=lambda s: (max(s), sum(s)), default=None)


_FLAT = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_DEEP = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

CHIPS = {
  chip.name: chip
  for chip in (
    Chip(
      name="v4",
      products=("v4",),
      flops=275e12,
      hbm=32 * _GIB,
      hbm_bandwidth=1200e9,
      ici_bandwidth=300e9,
      dcn_bandwidth=None,
      cores_per_chip=2,
      slices=_DEEP,
      max_cube_chips=4096,
    ),
    Chip(
      name="v5e",
      products=("v5e", "v5litepod"),
      flops=197e12,
      hbm=16 * _GIB,
      hbm_bandwidth=819e9,
      ici_bandwidth=200e9,
      dcn_bandwidth=6.4e12 / 8 / 256,  # Of a pod of 256 chips, in bits.
      cores_per_chip=1,
      slices=_FLAT,
    ),
    Chip(
      name="v5p",
      products=("v5p",),
      flops=459e12,
      hbm=95 * _GIB,
      hbm_bandwidth=2765e9,
      ici_bandwidth=600e9,
      dcn_bandwidth=50e9 / 8,
      cores_per_chip=2,
      slices=_DEEP,
      max_cube_chips=6144,
    ),
    Chip(
      name="v6e",
      products=("v6e",),
      flops=918e12,
      hbm=32 * _GIB,
      hbm_bandwidth=1638e9,
      ici_bandwidth=400e9,
      dcn_bandwidth=100e9 / 8,
      cores_per_chip=1,
      slices=_FLAT,
    ),
    Chip(
      name="tpu7x",
      products=("tpu7x",),
      flops=2307e12,
      hbm=192 * _GIB,
      hbm_bandwidth=7380e9,
      ici_bandwidth=600e9,
      dcn_bandwidth=100e9 / 8,
      cores_per_chip=2,
      slices=_DEEP,
      max_cube_chips=9216,
      devices_per_chip=2,
    ),
  )
}


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips of one kind in a shape."""

  chip: Chip
  shape: tuple[int, ...]

  @property
  def num_chips(self) -> int:
    """Number of chips in the slice."""
    return math.prod(self.shape)

  @property
  def topology(self) -> str:
    """Name of the topology in libtpu."""
    return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

  @property
  def product(self) -> str:
    """Name under which the slice is ordered."""
    count = self.num_chips * self.chip.cores_per_chip
    return f"{self.chip.products[-1]}-{count}"


def parse(name: str) -> Slice:
  """The slice of a name: of libtpu ("v5p:4x4x4") or of a product ("v5p-128").

  Raises:
    ValueError: The generation does not exist, or slices of that shape or size
      are not sold.
  """
  known = ", ".join(
    product for chip in CHIPS.values() for product in chip.products
  )
  match = re.fullmatch(r"([a-z0-9]+)[:-]([\dx]+)", name.lower())
  if match is None:
    raise ValueError(
      f"topology {name!r} is no name of TPUs; needs GENERATION:SHAPE, as"
      " v5p:4x4x4, or the name of a product, as v5litepod-16."
    )
  generation, size = match.groups()
  chip = next(
    (chip for chip in CHIPS.values() if generation in chip.products), None
  )
  if chip is None:
    raise ValueError(
      f"topology {name!r}: there is no generation {generation!r} here; known:"
      f" {known}."
    )
  sold = ", ".join("x".join(map(str, shape)) for shape in chip.slices)
  if chip.max_cube_chips:
    sold += (
      f", and AxBxC of multiples of 4 in ascending order, up to"
      f" {chip.max_cube_chips} chips"
    )
  if ":" in name:
    if re.fullmatch(r"\d+(x\d+)+", size):
      shape = tuple(int(side) for side in size.split("x"))
      if chip.is_sold(shape):
        return Slice(chip, shape)
    raise ValueError(
      f"topology {name!r}: no slice of {chip.name} has that shape; there are"
      f" {sold}."
    )
  count = int(size) if size.isdigit() else 0
  found = None
  if count % chip.cores_per_chip == 0:
    found = chip.shape_of(count // chip.cores_per_chip)
  if found is None:
    counted = "TensorCores, two a chip" if chip.cores_per_chip > 1 else "chips"
    raise ValueError(
      f"topology {name!r}: no slice of {chip.name} has {size} (the number in"
      f" its name counts {counted}); there are {sold}."
    )
  return Slice(chip, found)


def devices(of: Slice, num_slices: int = 1) -> list[Any]:
  """Devices of TPUs that are not there: to compile for, never to run on.

  Raises:
    ImportError: libtpu, which has the compiler, is not installed.
  """
  # Launchers read the table above, and start faster without JAX.
  import jax
  from jax.experimental import topologies

  if importlib.util.find_spec("libtpu") is None:
    raise ImportError(
      f"--topology={of.topology}: libtpu, which has the compiler for TPUs, is"
      f' not installed; run `pip install "jax[tpu]=={jax.__version__}"`. No TPU'
      " is needed."
    )
  for name, value in {
    # Else a second process that compiles dies of the lock of the first.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # These are looked up on the network of a TPU, and missed aloud elsewhere.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
  }.items():
    os.environ.setdefault(name, value)
  slices = {"num_slices": num_slices} if num_slices > 1 else {}
  return topologies.get_topology_desc(
    platform="tpu", topology_name=of.topology, **slices
  ).devices
