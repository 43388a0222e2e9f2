"""A state that was saved on one mesh is restored on any other."""

import functools

import jax
import pytest

from grpo_jax.training.runtime import checkpoints
from tests.training import states

_SHAPES = {"small": states.small, "run": functools.cache(states.of_a_run)}


@functools.cache
def _saved(directory, kind, sizes):
  """A checkpoint of this mesh."""
  shapes, mesh = _SHAPES[kind](), states.make_mesh(sizes)
  state = states.make(shapes, states.shardings(shapes, mesh))
  spread = [len(x.sharding.device_set) for x in jax.tree.leaves(state)]
  assert max(spread) == mesh.size
  path = directory / "-".join(map(str, (kind, *sizes)))
  store = checkpoints.Checkpoints(path, keep=1)
  store.save(1, state, {"mesh": sizes})
  store.close()
  return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  return tmp_path_factory.mktemp("meshes")


@pytest.mark.parametrize(
  ("kind", "source", "target"),
  [
    ("small", (2, 2, 2), (1, 1, 1)),
    pytest.param("small", (1, 8, 1), (2, 2, 2), marks=pytest.mark.slow),
    *(
      pytest.param("run", source, target, marks=pytest.mark.slow)
      # Onto the one before, onto one device, and onto itself.
      for at, source in enumerate(states.MESHES)
      for target in dict.fromkeys(
        (states.MESHES[at - 1], states.MESHES[0], source)
      )
    ),
  ],
)
def test_restored_on_another_mesh_bit_for_bit(directory, kind, source, target):
  path = _saved(directory, kind, source)
  shapes = _SHAPES[kind]()
  where = states.shardings(shapes, states.make_mesh(target))
  store = checkpoints.Checkpoints(path, keep=1)
  state, extra, _ = store.restore(states.placed(shapes, where))
  store.close()
  assert tuple(extra["mesh"]) == source
  states.assert_made(state, shapes, where)
