"""Edit distances of arrays: known ones, and other ways to the same number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zss

from grpo_jax.ops import edits
from grpo_jax.rewards import trees
from grpo_jax.tasks import ir_tree

SIZE = 8
DISTANCES = jax.jit(jax.vmap(edits.tree_distance))
EDITS = jax.jit(jax.vmap(edits.levenshtein))


def _padded(x, size):
  return np.pad(np.array(x, np.int32), (0, size - len(x)), constant_values=-7)


def _levenshtein(pairs):
  rows = [
    (_padded(a, SIZE), len(a), _padded(b, SIZE), len(b)) for a, b in pairs
  ]
  return EDITS(*(np.stack(x) for x in zip(*rows, strict=True))).tolist()


def _tree(text):
  """`f(d(a,c(b)),e)` as `(f (d a (c b)) e)` of one letter each."""
  return ir_tree.nested(list(text.replace(" ", "")))


def _flat(tree):
  """A tree as arrays, by recursion."""
  labels, first = [], []

  def visit(node):
    start = len(labels)
    for child in node[1]:
      visit(child)
    labels.append(ord(node[0]))
    first.append(start)

  visit(tree)
  return edits.EditTree(
    _padded(labels, SIZE), _padded(first, SIZE), len(labels)
  )


def _distances(pairs):
  stacked = [
    jax.tree.map(lambda *x: np.stack(x), *(_flat(tree) for tree in side))
    for side in zip(*pairs, strict=True)
  ]
  return DISTANCES(*stacked).tolist()


def _random_tree(rng, size):
  """Any shape of `size` nodes, with three labels."""
  label = "abc"[rng.integers(3)]
  below = []
  size -= 1
  while size:
    part = int(rng.integers(1, size + 1))
    below.append(_random_tree(rng, part))
    size -= part
  return label, tuple(below)


def _on_host(a, b):
  def listed(node):
    return node[0], [listed(child) for child in node[1]]

  return trees.distance(
    trees._postorder(listed(a)), trees._postorder(listed(b))
  )


@pytest.mark.parametrize(
  ("a", "b", "apart"),
  [
    ("kitten", "sitting", 3),
    ("", "abc", 3),
    ("abc", "", 3),
    ("", "", 0),
    ("abc", "abc", 0),
    ("abcdefgh", "bcdefgha", 2),
  ],
)
def test_known_edits_of_sequences(a, b, apart):
  assert _levenshtein([([*map(ord, a)], [*map(ord, b)])]) == [apart]
  assert trees.levenshtein([*a], [*b]) == apart


def test_edits_of_sequences_are_those_of_the_recursion():
  rng = np.random.default_rng(0)
  pairs = [
    tuple(rng.integers(0, 3, rng.integers(0, SIZE + 1)) for _ in range(2))
    for _ in range(100)
  ]
  found = _levenshtein(pairs)
  for (a, b), apart in zip(pairs, found, strict=True):
    a, b = (tuple(map(str, x)) for x in (a, b))
    assert apart == ir_tree._edits(a, b) == trees.levenshtein([*a], [*b])


@pytest.mark.parametrize(
  ("a", "b", "apart"),
  [
    # Zhang and Shasha's example: d goes, and comes again above c's children.
    ("(f(da(cb))e)", "(f(c(dab))e)", 2),
    ("(f)", "(g)", 1),
    ("(fab)", "(fba)", 2),
    ("(fab)", "(f)", 2),
    ("(f(gab))", "(fab)", 1),
  ],
)
def test_known_edits_of_trees(a, b, apart):
  a, b = _tree(a), _tree(b)
  assert _distances([(a, b), (b, a), (a, a)]) == [apart, apart, 0]
  assert _on_host(a, b) == apart


def test_a_tree_without_nodes_is_as_far_as_all_of_the_other():
  empty = edits.EditTree(jnp.zeros(8, int), jnp.zeros(8, int), jnp.array(0))
  tree = jax.tree.map(jnp.asarray, _flat(_tree("(f(gab))")))
  rows = jax.tree.map(lambda x, y: jnp.stack([x, y]), empty, tree)
  other = jax.tree.map(lambda x, y: jnp.stack([x, y]), tree, empty)
  assert DISTANCES(rows, other).tolist() == [4, 4]


def test_edits_of_trees_are_those_of_other_implementations():
  rng = np.random.default_rng(0)
  made = [_random_tree(rng, rng.integers(1, SIZE + 1)) for _ in range(100)]
  pairs = list(zip(made, made[1:] + made[:1], strict=True))
  found = _distances(pairs)
  for (a, b), apart in zip(pairs, found, strict=True):
    library = zss.simple_distance(
      a, b, lambda x: list(x[1]), lambda x: x[0], lambda x, y: int(x != y)
    )
    by_recursion = ir_tree.forest_distance((a,), (b,))
    assert apart == library == by_recursion == _on_host(a, b)
  back = _distances([(b, a) for a, b in pairs])
  assert back == found
  assert _distances([(a, a) for a in made]) == [0] * 100
  around = _distances(list(zip(made, made[2:] + made[:2], strict=True)))
  for i in range(100):
    assert around[i] <= found[i] + found[(i + 1) % 100]
