"""Settings of the mesh of devices."""

from __future__ import annotations

import dataclasses

from grpo_jax import ranges


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices = data × fsdp × expert × tensor; see `sharding.py`.

  Rows of a batch are split over data × fsdp × expert.

  Attributes:
    data: Copies of the parameters; None: as many as there are devices for.
      With several TPU slices, a multiple of their number; the gradient of
      every micro-batch is summed across them, so there a large
      `micro_batch_size` saves time.
    fsdp: Devices over which parameters, gradients and moments are split.
    tensor: Devices over which heads, MLP width and vocabulary are split;
      divides them, and the key/value heads.
    expert: Devices over which experts are split; divides their number.
  """

  data: int | None = None
  fsdp: int = 1
  tensor: int = 1
  expert: int = 1

  def __post_init__(self):
    names = ("data", "fsdp", "tensor", "expert")
    ranges.check(self, "config.mesh", **dict.fromkeys(names, ranges.SIZE))
