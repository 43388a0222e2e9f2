"""The benchmark of the host, at tiny sizes."""

import pytest

from experiments.benchmarks import host, host_rows, host_states, memory


def test_rows_go_through_a_worker_and_beside_it():
  alone, pool = host_rows.scored("format", 40, (0, 1))
  assert (alone["workers"], pool["workers"]) == (0, 1)
  for row in (alone, pool):
    assert row["rows"] == 40
    assert row["rows/s"] > 0
    assert row["seconds : loop"] > 0
  assert alone["largest worker, MB"] == 0
  assert pool["largest worker, MB"] > 1  # One was there and was looked at.


def test_about_half_of_the_completions_are_right():
  for mix in ("format", "math + format"):
    rows = host_rows.make_rows(mix, 32)
    right = [
      f"<answer>{extra['answer']}<" in text
      for _, text, _, extra in zip(*rows, strict=True)
    ]
    assert 8 < sum(right) < 24
    assert rows[2].count(0) == 8  # A group.
  programs = host_rows.make_rows("code", 32)[1]
  assert 8 < sum("print(a + b)" in text for text in programs) < 24


def test_prompts_are_read_with_threads_and_without():
  rows = list(host_rows.encoded(8, (0, 2)))
  assert [row["threads"] for row in rows] == [0, 2]
  names = "prompts/s", "seconds : loop", "first batch : loop"
  assert all(row[name] > 0 for row in rows for name in names)


@pytest.mark.slow
def test_a_state_is_saved_restored_and_removed(tmp_path):
  row = host_states.saved(10**5, tmp_path, rounds=1)
  assert row["state, GB"] == 1e-4
  assert row["on disk"] > 1
  assert 0 < row["stall, s"] < row["written, s"]
  names = "written : floor", "restore : read", "step meanwhile : alone"
  assert all(row[name] > 0 for name in names)
  assert list(tmp_path.iterdir()) == []


def test_a_state_that_the_disk_has_no_room_for_is_refused(tmp_path):
  with pytest.raises(OSError, match=r"--state_gb to less"):
    host_states.saved(10**18, tmp_path, rounds=1)
  assert list(tmp_path.iterdir()) == []


def test_memory_that_was_held_for_a_moment_is_seen():
  with memory.growth() as nothing:
    pass
  with memory.growth() as grown:
    held = bytearray(b"x" * 2**25)
    del held
  assert nothing.peak < 2**24
  # Pages that were free before are not counted.
  assert 0.9 * 2**25 < grown.peak < 2**27


@pytest.mark.parametrize("text", ["", "x", "-1"])
def test_numbers_that_are_none_are_refused(text):
  class Flag:
    name, value, default = "host_workers", text.split(","), ["0", "1"]

  with pytest.raises(ValueError, match=r"--host_workers=.*from 0 on, as 0,1"):
    host._numbers(Flag, int, 0)
