"""A folder has one run at a time, on a disk and in a bucket."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from grpo_jax.training import loop, many
from grpo_jax.training.runtime import files, hosts, lock
from tests.experiments import command, tiny_config
from tests.training.runtime import files_test

# Holds the lock of a folder until it is killed.
_HOLDER = """
import sys, time
from grpo_jax.training.runtime import lock, files
with lock.held(files.parse(sys.argv[1])):
  print("held", flush=True)
  time.sleep(600)
"""


bucket = files_test.bucket


def held(workdir):
  return lock.held(files.parse(workdir))


def test_a_second_run_is_refused_and_the_first_is_named(tmp_path):
  with held(tmp_path):
    before = (tmp_path / lock.NAME).read_bytes()
    with pytest.raises(ValueError, match="is in use by process") as caught:
      held(tmp_path).__enter__()
    message = str(caught.value)
    assert f"{tmp_path} is in use by process {os.getpid()} on " in message
    assert "another --workdir" in message
    assert os.listdir(tmp_path) == [lock.NAME]
    assert (tmp_path / lock.NAME).read_bytes() == before
  with held(tmp_path):
    pass


def test_what_was_made_for_the_lock_is_removed(tmp_path):
  with pytest.raises(KeyError), held(tmp_path / "runs/a"):
    raise KeyError
  assert os.listdir(tmp_path) == []
  with held(tmp_path / "runs/a"):
    (tmp_path / "runs/a/metrics.jsonl").write_text("")
  assert os.listdir(tmp_path / "runs/a") == ["metrics.jsonl"]


@pytest.mark.slow
def test_a_killed_run_can_be_continued_at_once(tmp_path):
  with subprocess.Popen(
    [sys.executable, "-c", _HOLDER, str(tmp_path)],
    cwd=command.ROOT,
    env=command.ENVIRONMENT,
    stdout=subprocess.PIPE,
    text=True,
  ) as holder:
    try:
      assert holder.stdout.readline() == "held\n"
      with pytest.raises(ValueError, match=f"by process {holder.pid} on "):
        held(tmp_path).__enter__()
    finally:
      holder.kill()
  assert (tmp_path / lock.NAME).exists()
  with held(tmp_path):
    owner = json.loads((tmp_path / lock.NAME).read_text())
    assert owner["pid"] == os.getpid()
  assert os.listdir(tmp_path) == []


def test_every_process_of_a_run_hears_of_the_refusal(tmp_path, monkeypatch):
  with held(tmp_path), monkeypatch.context() as patch:
    # What process 0 has sent, in another one, which takes no lock itself.
    patch.setattr(hosts, "is_main", lambda: False)
    patch.setattr(hosts, "gather", lambda own: ["taken", own])
    with pytest.raises(ValueError, match="taken"):
      held(tmp_path).__enter__()
    patch.setattr(hosts, "gather", lambda own: [None, own])
    with held(tmp_path):
      pass


def test_training_in_a_folder_that_is_in_use_changes_nothing(tmp_path):
  config = tiny_config.get_config("grpo")
  one, two = tmp_path / "one", tmp_path / "two"
  with held(two):
    with pytest.raises(ValueError, match="two is in use by process"):
      loop.train(config, two)
    with config.unlocked():
      config.mesh.data = 1
    with pytest.raises(ValueError, match="two is in use by process"):
      many.train([config, config], [one, two])
    assert not one.exists()
    assert os.listdir(two) == [lock.NAME]


@pytest.fixture
def quick(monkeypatch):
  monkeypatch.setattr(lock, "_RENEW_S", 0.1)
  monkeypatch.setattr(lock, "_STALE_S", 0.5)


def leave_owner(bucket, folder: str, **changes) -> None:
  """Leaves the lock of a process of this machine that was killed."""
  with subprocess.Popen(["true"]) as ended:
    pass
  owner = lock._owner() | {"pid": ended.pid} | changes
  bucket.store(
    "bucket", f"{folder}/{lock.NAME}", json.dumps(owner).encode(), {}
  )


def test_a_bucket_has_one_owner_who_gives_it_back(bucket, quick):
  with held("gs://bucket/one"):
    pid = json.loads(bucket.read(f"one/{lock.NAME}"))["pid"]
    assert pid == os.getpid()
    with pytest.raises(ValueError, match=f"in use by process {pid} on "):
      held("gs://bucket/one").__enter__()
    # It is still that of the first.
    time.sleep(0.3)
    assert json.loads(bucket.read(f"one/{lock.NAME}"))["pid"] == pid
  assert bucket.names("one/") == []
  with held("gs://bucket"):
    assert bucket.names(lock.NAME) == [lock.NAME]


def test_a_bucket_of_a_killed_process_of_this_machine_is_taken_at_once(bucket):
  leave_owner(bucket, "killed")
  started = time.monotonic()
  with held("gs://bucket/killed"):
    assert time.monotonic() - started < lock._STALE_S / 2
  assert bucket.names("killed/") == []


@pytest.mark.slow
def test_a_silent_owner_elsewhere_is_waited_for_and_replaced_by_one(
  bucket, quick
):
  leave_owner(bucket, "silent", host="elsewhere")
  outcomes = []

  def take():
    try:
      with held("gs://bucket/silent"):
        outcomes.append("taken")
        time.sleep(2)
    except ValueError:
      outcomes.append("refused")

  started = time.monotonic()
  takers = [threading.Thread(target=take) for _ in range(2)]
  for taker in takers:
    taker.start()
  for taker in takers:
    taker.join()
  assert sorted(outcomes) == ["refused", "taken"]
  assert time.monotonic() - started > lock._STALE_S


def test_a_process_that_has_lost_its_bucket_ends(bucket, quick, monkeypatch):
  ended = []
  monkeypatch.setattr(hosts, "end_at_once", ended.append)
  name = f"lost/{lock.NAME}"
  with held("gs://bucket/lost"):
    other = {"pid": 7, "host": "elsewhere", "since": "now", "id": "x"}
    bucket.store("bucket", name, json.dumps(other).encode(), {})
    while not ended:
      time.sleep(0.05)
  assert "gs://bucket/lost was taken over by process 7 on elsewhere" in ended[0]
  # And leaves what is not its own.
  assert json.loads(bucket.read(name))["pid"] == 7


def test_an_answer_that_was_lost_is_no_other_owner(bucket, quick, monkeypatch):
  ended = []
  monkeypatch.setattr(hosts, "end_at_once", ended.append)
  with held("gs://bucket/again"):
    for _ in range(5):  # Written, and never heard of.
      _, content = bucket.objects["bucket", f"again/{lock.NAME}"]
      bucket.store("bucket", f"again/{lock.NAME}", content, {})
      time.sleep(0.15)
  assert ended == []
  assert bucket.names("again/") == []


def test_missing_bucket_is_named(bucket):
  with pytest.raises(FileNotFoundError, match=r"gs://absent/run: .*no such bu"):
    held("gs://absent/run").__enter__()
