"""Completions in a file are the same bytes on one device and on eight."""

import pytest

from grpo_jax import api
from grpo_jax.training.evaluation import data_sets, generation
from tests.training.evaluation import merging_test


def _generated(folder, count: int) -> bytes:
  merging_test.write(folder / "run", **{"mesh.data": count})
  draws = data_sets.Draws(1.0, num_samples=2)
  with api.load(folder / "run") as run:
    assert run.loaded.mesh.size == count
    *_, done = generation.generate(
      run.loaded,
      run.loaded.problem.train,
      13,
      folder / "out.jsonl",
      generation.FileSettings(draws, batch_size=5),
      {},
    )
  assert done.lines == 26
  return (folder / "out.jsonl").read_bytes()


@pytest.mark.slow
def test_eight_devices_write_the_file_of_one(tmp_path):
  one, eight = (_generated(tmp_path / str(n), n) for n in (1, 8))
  assert one == eight
