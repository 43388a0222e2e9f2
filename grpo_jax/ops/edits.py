"""Edit distances of sequences and of ordered trees, all costs 1.

Arrays have fixed sizes, and the used part is data: a sequence has a length, and
a tree has a number of nodes. So rows of a batch can be `vmap`ped.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class EditTree(NamedTuple):
  """An ordered tree with labels, its nodes in postorder.

  Attributes:
    labels: Labels of the nodes; children come before their parent, from the
      left to the right, and the root is the last.
    first: Place of the leftmost leaf below each node; a leaf's own.
    size: Number of nodes; later entries are ignored.
  """

  labels: jax.Array  # [N] int32
  first: jax.Array  # [N] int32
  size: jax.Array  # [] int32


def levenshtein(
  a: jax.Array,  # [N] int
  a_len: jax.Array,  # [] int
  b: jax.Array,  # [M] int
  b_len: jax.Array,  # [] int
) -> jax.Array:  # [] int32
  """Least number of insertions, deletions and replacements from a to b.

      D[i, j] = min(D[i−1, j] + 1, D[i, j−1] + 1, D[i−1, j−1] + 1[a_i ≠ b_j])

  Args:
    a, b: Sequences.
    a_len, b_len: Numbers of their elements.

  Source: Levenshtein, "Binary codes capable of correcting deletions, insertions
  and reversals", 1966; the table is that of Wagner and Fischer, 1974.
  """
  chex.assert_rank([a, b], 1)
  place = jnp.arange(b.shape[0] + 1, dtype=jnp.int32)

  def next_row(row, i):  # [M + 1]
    costs = jnp.minimum(row[1:] + 1, row[:-1] + (a[i] != b))
    best = jnp.concatenate([row[:1] + 1, costs])
    # Insertions: min over k ≤ j of best_k + (j − k).
    new = jax.lax.cummin(best - place) + place
    return jnp.where(i < a_len, new, row), None

  row, _ = jax.lax.scan(next_row, place, jnp.arange(a.shape[0]))
  return row[b_len]


def tree_distance(a: EditTree, b: EditTree) -> jax.Array:  # [] int32
  """Least number of insertions, deletions and renamings from tree a to tree b.

  With F[i, x] the forest of the nodes i to x − 1 of a postorder, and l(x) the
  leftmost leaf below x, of D[i, x; j, y], the distance of F[i, x] and F'[j, y],

      D[i, x+1; j, y+1] = min( D[i, x; j, y+1] + 1,  D[i, x+1; j, y] + 1,
        D[i, l(x); j, l(y)] + D[l(x), x; l(y), y] + 1[label x ≠ label y] )

  All pairs i, j are computed at once, also pairs that Zhang and Shasha's
  algorithm skips: N · M steps of N · M numbers each, all of which are kept.
  That suits trees of a few dozen nodes.

  Args:
    a, b: Trees with room for N and M nodes; an empty one is of size 0.

  Source: Zhang and Shasha, "Simple fast algorithms for the editing distance
  between trees and related problems", SIAM J. Comput. 18(6), 1989.
  """
  n, m = a.labels.shape[0], b.labels.shape[0]
  i, j = jnp.arange(n)[:, None], jnp.arange(m)  # [N, 1], [M]

  def size(start, end):
    return jnp.maximum(end - start, 0)

  # If one of the forests is empty, the other one is inserted.
  x, y = (
    jnp.arange(n + 1)[:, None, None, None],
    jnp.arange(m + 1)[:, None, None],
  )
  table = size(i, x) + size(j, y)  # [N + 1, M + 1, N, M]

  def step(table, pair):
    x, y = pair
    left, above = a.first[x], b.first[y]
    below = table[x, y, left, above] + (a.labels[x] != b.labels[y])
    best = jnp.minimum(table[x, y + 1] + 1, table[x + 1, y] + 1)
    best = jnp.minimum(best, table[left, above] + below)
    both = (i <= x) & (j <= y)
    return table.at[x + 1, y + 1].set(
      jnp.where(both, best, table[x + 1, y + 1])
    ), None

  pairs = jnp.divmod(jnp.arange(n * m), m)
  # No distance is above N + M.
  kind = jnp.int8 if n + m < 127 else jnp.int32
  table, _ = jax.lax.scan(step, table.astype(kind), pairs)
  return table[a.size, b.size, 0, 0].astype(jnp.int32)
