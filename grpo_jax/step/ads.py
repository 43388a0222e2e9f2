"""ADS: which clusters of prompts a step draws from, and how hard ones of them.

Prompts are clustered by what they are about, and those of a cluster are ordered
by how unlikely their reference solution was to the first policy, the likeliest
first: that is their position. A cluster k has a mini-cluster M_k of B
positions, at first the B easiest. A step draws C clusters without replacement
by p and trains on all prompts of their mini-clusters. With ρ the share of right
completions of a prompt,

    r_k ← mean of ρ over M_k  for clusters that were drawn
    p   ← (1 − α) p + α r / Σ r

A prompt with |ρ − ½| ≤ tolerance keeps its position in M_k; of others the
position moves by one: one harder if ρ is higher, one easier if it is lower
(`moved`). After N / (C B) steps all begins anew.

Source: "ADS: Adaptive Data Scheduling", arXiv:2606.22305, and the code of its
authors. Where they say nothing: a prompt without a scored completion keeps its
position, a cluster without one keeps its r, and Σ r = 0 counts as equal r. A
position at the end of the direction that is asked for goes to the nearest free
one on the other side.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import masked
from grpo_jax.step import schedules
from grpo_jax.types import Metrics, PyTree

# r of every cluster before anybody has tried it.
_START = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Ads:
  """A `schedules.Schedule` over clusters.

  Attributes:
    order: Places of the pool, those of the first cluster first, and in each
      cluster the easiest first.
    sizes: Prompts of each cluster, B or more; 0 of one that there is not, so
      that runs with fewer clusters have the arrays of those with more.
    num_drawn: C.
    window: B.
    rate: α.
    tolerance: By how much ρ may be off ½.
  """

  order: np.ndarray  # [N] int32
  sizes: np.ndarray  # [K] int32
  num_drawn: int = 4
  window: int = 32
  rate: Any = 0.3
  tolerance: Any = 0.17

  tracks: ClassVar[bool] = False
  keeps_samples: ClassVar[bool] = False

  @property
  def period(self) -> int:
    """Steps after which all begins anew."""
    return max(len(self.order) // (self.num_drawn * self.window), 1)

  def init(self) -> dict[str, jax.Array]:
    """See `schedules.Schedule`.

    The clusters are part of the state, because runs that are one program have
    different ones.
    """
    sizes = jnp.asarray(self.sizes, jnp.int32)
    return {
      "order": jnp.asarray(self.order, jnp.int32),
      "sizes": sizes,
      "clusters": jnp.zeros(self.num_drawn, jnp.int32),
      "visits": jnp.zeros(len(self.order), jnp.int32),
      **self._anew(sizes),
    }

  def _anew(self, sizes: jax.Array) -> dict[str, jax.Array]:
    """What is forgotten after a period, as it is at the start of one."""
    exists = sizes > 0
    first = jnp.arange(self.window, dtype=jnp.int32)
    return {
      "p": exists / exists.sum(dtype=jnp.float32),
      "r": jnp.where(exists, _START, 0.0),
      "windows": jnp.tile(first, (len(sizes), 1)),
    }

  def draw(
    self, state: PyTree, key: jax.Array, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """See `schedules.Schedule`; the prompts of a cluster are adjacent."""
    del step
    drawn = schedules.without_replacement(key, state["p"], self.num_drawn)
    starts = jnp.cumsum(state["sizes"]) - state["sizes"]  # [K]
    ranks = starts[drawn, None] + state["windows"][drawn]  # [C, B]
    places = state["order"][ranks].reshape(-1)
    return dict(state) | {"clusters": drawn}, places

  def update(
    self, state: PyTree, feedback: schedules.Feedback, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], Metrics]:
    """See `schedules.Schedule`."""
    drawn = state["clusters"]
    shape = self.num_drawn, self.window
    scored = feedback.scored.reshape(shape)
    seen = scored > 0
    rho = feedback.right.reshape(shape) / jnp.maximum(scored, 1)  # [C, B]
    means = jnp.where(seen, rho, 0).sum(1) / jnp.maximum(seen.sum(1), 1)
    means = jnp.where(seen.any(1), means, state["r"][drawn])
    r = state["r"].at[drawn].set(means)
    windows = jax.vmap(moved)(
      state["windows"][drawn],
      jnp.where(seen, moves(rho, self.tolerance), 0),
      state["sizes"][drawn],
    )
    changed = {
      "p": mixed(state["p"], r, state["sizes"] > 0, self.rate),
      "r": r,
      "windows": state["windows"].at[drawn].set(windows),
    }
    ends = (jnp.asarray(step) + 1) % self.period == 0
    anew = self._anew(state["sizes"])
    following = dict(state) | {
      name: jnp.where(ends, anew[name], value)
      for name, value in changed.items()
    }
    following["visits"] = state["visits"].at[state["places"]].add(1)
    said = {
      "schedule/success": masked.mean(r, state["sizes"] > 0),
      "schedule/expected": state["r"][drawn].mean(),
      **schedules.coverage(following["visits"]),
      "schedule/depth": self._depth(state | changed),
      "schedule/largest_share": changed["p"].max(),
    }
    return following, said

  def _depth(self, state: PyTree) -> jax.Array:  # []
    """Mean place of mini-clusters between the easiest, 0, and hardest, 1."""
    middle = state["windows"].mean(axis=1, dtype=jnp.float32)
    least = (self.window - 1) / 2
    room = state["sizes"] - self.window
    return masked.mean((middle - least) / jnp.maximum(room, 1), room > 0)


def mixed(
  p: jax.Array,  # [K]
  r: jax.Array,  # [K]
  exists: jax.Array,  # [K] bool
  rate: Any,
) -> jax.Array:  # [K]
  """(1 − α) p + α r / Σ r; where all r are 0, as if they were equal."""
  r = jnp.where(r.sum() > 0, r, 1.0) * exists
  return (1 - rate) * p + rate * (r / r.sum())


def moves(rho: jax.Array, tolerance: Any) -> jax.Array:  # any shape, int32
  """+1: one harder, −1: one easier, 0: where it is."""
  off = rho - 0.5
  return jnp.where(jnp.abs(off) <= tolerance, 0, jnp.sign(off)).astype(
    jnp.int32
  )


def moved(
  window: jax.Array,  # [B] int32
  move: jax.Array,  # [B] int32
  size: jax.Array | int,  # []
) -> jax.Array:  # [B] int32
  """The positions of a mini-cluster after a step, in ascending order.

  Those that stay have their position first; then those that become easier
  take theirs, in ascending order; then those that become harder, in descending
  order. A position that is taken is replaced by the nearest free one in the
  same direction, or, where there is none before the end of the cluster, by the
  nearest one in the other.

  Args:
    window: Different positions below `size`.
    move: −1, 0 or 1 for each.
    size: Prompts of the cluster, B or more.
  """
  num = len(window)
  # B − 1 others take no more than as many places beside the one asked for.
  around = jnp.arange(-num, num + 1)
  turn = jnp.where(move < 0, 1, 2 * (move > 0))
  order = jnp.lexsort((jnp.where(move > 0, -window, window), turn))

  def place(found, i):
    target = jnp.clip(window[i] + move[i], 0, size - 1)
    near = target + around
    taken = (near[:, None] == found).any(axis=1)
    free = ~taken & (near >= 0) & (near < size)
    easier = jnp.max(jnp.where(free & (around <= 0), near, -1))
    harder = jnp.min(jnp.where(free & (around >= 0), near, size))
    goes_on = jnp.where(move[i] > 0, harder < size, easier < 0)
    return found.at[i].set(jnp.where(goes_on, harder, easier)), None

  found, _ = jax.lax.scan(place, jnp.full(num, -1, window.dtype), order)
  return jnp.sort(found)
