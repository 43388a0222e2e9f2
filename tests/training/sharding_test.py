"""The mesh on one device; `tests/multi_device` has it on eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from grpo_jax.training import sharding


def test_mesh_of_one_device():
  mesh = sharding.make_mesh(1)
  assert mesh.shape == {"data": 1}
  assert sharding.make_mesh(None).size == jax.device_count()
  assert sharding.replicated(mesh).spec == P()
  assert sharding.by_rows(mesh).spec == P("data")
  rows = {"x": jnp.ones(3)}  # Not even: nothing is to be split.
  assert sharding.row_constraint(mesh)(rows) is rows


@pytest.mark.parametrize("count", [0, -1, 4096])
def test_impossible_meshes_are_explained(count):
  with pytest.raises(ValueError, match=f"mesh_data={count}: this machine has"):
    sharding.make_mesh(count)


def test_abstract_has_shapes_and_places():
  mesh = sharding.make_mesh(1)
  tree = {"key": jax.random.key(0), "x": np.ones((2, 3), np.float16)}
  abstract = sharding.abstract(tree, sharding.replicated(mesh))
  assert abstract["x"].shape == (2, 3)
  assert abstract["x"].dtype == np.float16
  assert abstract["key"].dtype == tree["key"].dtype
  assert all(
    leaf.sharding == sharding.replicated(mesh)
    for leaf in jax.tree.leaves(abstract)
  )
