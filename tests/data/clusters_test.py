"""Clusters of records, and the file of them."""

import numpy as np
import pytest

from grpo_jax.data import clusters


def record(number, solution="x"):
  return {
    "prompt": np.array([number, 7], np.int32),
    "answer": "",
    "completion": solution,
    "extras": {},
  }


RECORDS = [record(n) for n in range(6)]
KNOWN = clusters.Clusters(
  np.array([2, 0, 2, 0, 2, 5]), np.array([0.5, 0.1, 0.3, 0.1, 0.9, 2.0]), 7
)


@pytest.fixture
def path(tmp_path):
  made = tmp_path / "clusters.npz"
  made.write_bytes(clusters.packed(RECORDS, KNOWN, {"step": 3}))
  return made


def test_a_file_knows_its_records_in_any_order(path):
  found = clusters.read(path, RECORDS[4:1:-1], "config.x")
  assert found.clusters.tolist() == [2, 0, 2]
  assert found.number == 7
  np.testing.assert_allclose(found.losses, [0.9, 0.1, 0.3])


def test_a_file_of_other_data_is_refused(path, tmp_path):
  others = [*RECORDS[:3], record(9), record(3, solution="y")]
  with pytest.raises(ValueError, match=r"config\.x=.*not 2 of the 5 of the"):
    clusters.read(path, others, "config.x")
  with pytest.raises(FileNotFoundError, match=r"experiments\.embed"):
    clusters.read(tmp_path / "none.npz", RECORDS, "config.x")
  for content in (b"", b"PK nonsense", b"[1]"):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a file of clusters"):
      clusters.read(path, RECORDS, "config.x")
  np.savez(path, digests=np.zeros((1, 16)))
  with pytest.raises(ValueError, match="is not a file of clusters"):
    clusters.read(path, RECORDS, "config.x")


def test_members_are_ordered_from_easy_to_hard():
  order, sizes = clusters.ranked(KNOWN)
  assert sizes.tolist() == [2, 0, 3, 0, 0, 1, 0]
  assert order.tolist() == [1, 3, 2, 0, 4, 5]


def test_small_clusters_join_the_nearest_ones():
  rng = np.random.default_rng(0)
  centres = np.repeat([[0.0, 0.0], [10.0, 0.0], [10.0, 4.0]], [9, 8, 2], axis=0)
  x = centres + 0.1 * rng.normal(size=centres.shape)
  own = clusters.k_means(x, 3, 1, seed=1)
  assert [len({*part}) for part in np.split(own, [9, 17])] == [1, 1, 1]
  assert len({*own}) == 3
  joined = clusters.k_means(x, 3, 4, seed=1)
  assert len({*joined[:9]}) == len({*joined[9:]}) == len({*joined}) - 1 == 1
  assert {*joined} == {0, 1}
  np.testing.assert_array_equal(joined, clusters.k_means(x, 3, 4, seed=1))
  with pytest.raises(ValueError, match="there are 19 prompts"):
    clusters.k_means(x, 20, 1, seed=0)
