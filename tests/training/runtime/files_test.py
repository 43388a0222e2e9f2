"""Folders here, and in a bucket of a local Google Cloud Storage."""

import hashlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import api
from grpo_jax.training import loop
from grpo_jax.training.monitor import plots
from grpo_jax.training.runtime import checkpoints, files
from grpo_jax.training.runtime import log as log_lib
from tests import fake_gcs
from tests.experiments import command, tiny_config
from tests.training import resume_test
from tests.training.runtime import log_test


@pytest.fixture(scope="module")
def bucket():
  """A server of `gs://bucket`, for this process and those it starts."""
  with fake_gcs.Server("bucket") as server, pytest.MonkeyPatch.context() as env:
    for name, value in server.environment.items():
      env.setenv(name, value)
    yield server
    assert server.unknown == []


def test_local_paths_stay_as_they_are(tmp_path):
  for text in ("runs/a", "/tmp/a", "a:b/c", ".", "~/x"):
    assert files.parse(text) == pathlib.Path(text)
  assert files.parse(tmp_path) == tmp_path
  assert not files.is_remote(files.parse("runs/a"))


@pytest.mark.parametrize(
  "text", ["gs:/bucket/run", "gs://", "gs:///run", "s3://b/run", "file:///run"]
)
def test_other_addresses_are_refused(text):
  with pytest.raises(ValueError, match="neither a local folder nor gs://BUCK"):
    files.parse(text)


def test_missing_gcsfs_names_the_extra(monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda n: None if n == "gcsfs" else find(n)
  )
  with pytest.raises(ImportError, match=r"gcsfs .*grpo_jax\[gcs\]"):
    files.parse("gs://bucket/run")


@pytest.mark.parametrize(
  "use",
  [
    lambda path: loop.train(tiny_config.get_config(), path),
    api.load,
    lambda path: checkpoints.Checkpoints(path, keep=1),
    lambda path: log_lib.MetricsLog(path),
    lambda path: plots.plot_run(path, "curves.png"),
  ],
  ids=["train", "load", "checkpoints", "log", "plot"],
)
def test_no_folder_is_made_of_an_address(tmp_path, monkeypatch, use):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match="neither a local folder nor"):
    use("gs:/bucket/run")
  assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_missing_bucket_is_a_mistake_and_is_not_made(bucket):
  with pytest.raises(FileNotFoundError):
    log_lib.save_run_info("gs://absent/run", "{}")
  assert bucket.buckets == ("bucket",)


def test_folders_of_programs_that_know_disks_only_are_published(
  bucket, tmp_path
):
  local = files.parse(tmp_path / "out")
  assert files.scratch(local) == local
  files.publish(local, local)
  remote = files.parse("gs://bucket/made")
  folder = files.scratch(remote)
  (folder / "deep").mkdir(parents=True)
  (folder / "deep/a.bin").write_bytes(bytes(range(256)) * 40_000)  # 10 MB
  (folder / "b.txt").write_bytes(b"b")
  content = (folder / "deep/a.bin").read_bytes()
  files.publish(folder, remote)
  assert bucket.names("made/") == ["made/b.txt", "made/deep/a.bin"]
  assert bucket.read("made/deep/a.bin") == content
  assert not folder.parent.exists()


write_steps = log_test.write_steps


def test_resumed_log_in_a_bucket_has_the_bytes_of_a_local_one(bucket, tmp_path):
  with log_lib.MetricsLog(tmp_path) as log:
    write_steps(log, 1, 9)
  workdir = "gs://bucket/log"
  log = log_lib.MetricsLog(workdir)
  write_steps(log, 1, 4)
  log.flush()
  position = json.loads(json.dumps(log.position()))
  write_steps(log, 5, 7)
  log.flush()
  write_steps(log, 8, 9)
  # Killed: what was not sent is lost, and the last checkpoint is of step 4.
  with log_lib.MetricsLog(
    workdir, resume_step=4, resume_position=position
  ) as log:
    assert bucket.read("log/metrics.jsonl").count(b"\n") == 4
    write_steps(log, 5, 9)
  for name in (log_lib.METRICS, log_lib.TIMINGS, log_lib.SAMPLES):
    assert bucket.read(f"log/{name}") == (tmp_path / name).read_bytes()
  lines = log_lib.read_lines(f"{workdir}/metrics.jsonl")
  assert [line["step"] for line in lines] == list(range(1, 10))


def test_objects_are_written_when_flushed_and_once_a_minute(
  bucket, monkeypatch
):
  now = time.monotonic()
  monkeypatch.setattr(time, "monotonic", lambda: now)
  log = log_lib.MetricsLog("gs://bucket/minute")

  def count() -> int:
    return bucket.read("minute/metrics.jsonl").count(b"\n")

  write_steps(log, 1, 3)
  assert count() == 0
  now += 61
  write_steps(log, 4, 5)
  assert count() == 4
  log.flush()
  assert count() == 5
  generation = bucket.objects["bucket", "minute/metrics.jsonl"][0]
  log.close()
  assert bucket.objects["bucket", "minute/metrics.jsonl"][0] == generation


def test_fresh_start_in_a_bucket_sets_earlier_files_aside(bucket):
  with log_lib.MetricsLog("gs://bucket/anew") as log:
    write_steps(log, 1, 2)
  before = bucket.read("anew/metrics.jsonl")
  log_lib.MetricsLog("gs://bucket/anew").close()
  assert bucket.read("anew/metrics.jsonl") == b""
  assert bucket.read("anew/metrics.jsonl.old") == before


@pytest.mark.slow
def test_checkpoints_in_a_bucket_are_restored_byte_for_byte(bucket):
  directory = "gs://bucket/checkpoints"
  state = {
    "w": jax.random.normal(jax.random.key(1), (64, 32)),
    "key": jax.random.key(7),
    "none": None,
  }
  store = checkpoints.Checkpoints(directory, keep=2)
  assert store.latest_step() is None
  for step in (1, 2, 3):
    store.save(step, jax.tree.map(lambda x: x, state), {"step": step})
  store.close()
  store = checkpoints.Checkpoints(directory, keep=2)
  assert store.steps() == [2, 3]
  restored, extra, _ = store.restore(jax.eval_shape(lambda: state))
  store.close()
  assert extra == {"step": 3}
  np.testing.assert_array_equal(restored["w"], state["w"])
  assert jnp.array_equal(
    jax.random.key_data(restored["key"]), jax.random.key_data(state["key"])
  )
  assert bucket.names("checkpoints/1/") == []


def test_folder_of_someone_else_in_a_bucket_is_refused(bucket):
  bucket.store("bucket", "foreign/notes.txt", b"mine", {})
  with pytest.raises(ValueError, match="not written by grpo_jax"):
    checkpoints.Checkpoints("gs://bucket/foreign", keep=3)


@pytest.mark.slow
def test_step_that_was_not_finished_in_a_bucket_is_none(bucket):
  directory = "gs://bucket/unfinished"
  store = checkpoints.Checkpoints(directory, keep=3)
  for step in (1, 2):
    store.save(step, {"w": jnp.full((8,), step)}, {})
  store.close()
  # As a process leaves it that is killed while it writes step 2.
  del bucket.objects["bucket", "unfinished/2/commit_success.txt"]
  store = checkpoints.Checkpoints(directory, keep=3)
  assert store.latest_step() == 1
  store.restore({"w": jnp.zeros((8,), jnp.int32)})
  store.save(2, {"w": jnp.full((8,), 5)}, {})
  store.close()
  store = checkpoints.Checkpoints(directory, keep=3)
  restored, _, step = store.restore({"w": jnp.zeros((8,), jnp.int32)})
  store.close()
  assert step == 2
  np.testing.assert_array_equal(restored["w"], np.full((8,), 5))


def _download(bucket: fake_gcs.Server, prefix: str, folder: pathlib.Path):
  for name in bucket.names(f"{prefix}/"):
    path = folder / name.removeprefix(f"{prefix}/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bucket.read(name))


def _program(bucket: fake_gcs.Server, *arguments: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", *arguments],
    cwd=command.ROOT,
    env=command.ENVIRONMENT | bucket.environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
def test_killed_run_in_a_bucket_ends_with_the_bytes_of_a_local_one(
  bucket, tmp_path
):
  config = tiny_config.get_config("reinforce")
  config.log.curves = True
  loop.train(config, tmp_path / "local")
  workdir = "gs://bucket/runs/tiny"
  train = ["experiments.train", f"{command.TINY}:reinforce"]
  train += [f"--workdir={workdir}", "--config.profile_steps=(2,3)"]
  train += ["--config.log.curves=True"]

  def saved(step: int) -> bool:
    name = f"runs/tiny/checkpoints/{step}/commit_success.txt"
    return bool(bucket.names(name))

  def saving(step: int) -> bool:
    return not saved(step) and bool(
      bucket.names(f"runs/tiny/checkpoints/{step}/")
    )

  for due, number in (
    (lambda: saving(10) or saved(10), signal.SIGKILL),
    (lambda: saved(13), signal.SIGTERM),
  ):
    with _program(bucket, *train) as process:
      while not due():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
      process.send_signal(number)
      _, err = process.communicate()
    expected = 143 if number == signal.SIGTERM else -number
    assert process.returncode == expected, err
  with _program(bucket, *train) as process:
    out, err = process.communicate()
  assert process.returncode == 0, err
  assert "continuing after step" in out
  assert f"plot: {workdir}/curves.png" in out

  copy = tmp_path / "copy"
  _download(bucket, "runs/tiny", copy)
  local = resume_test.everything(tmp_path / "local")
  remote = resume_test.everything(copy)
  # The profile is the only setting that differs.
  configs = [json.loads(x.pop("config.json")) for x in (local, remote)]
  assert configs[0] != configs[1]
  for config in configs:
    del config["profile_steps"]
  assert configs[0] == configs[1]
  resume_test.assert_same(remote, local)
  assert len(list(copy.glob("tensorboard/events.*"))) >= 2
  assert list(copy.glob("profile/**/*.xplane.pb"))
  assert (copy / "curves.png").read_bytes().startswith(b"\x89PNG")
  # Of each start.
  assert len(json.loads((copy / "environment.json").read_text())) == 3

  digests = {name: hashlib.sha256(bucket.read(name)) for name in bucket.names()}
  with _program(
    bucket,
    "experiments.evaluate",
    f"--workdir={workdir}",
    "--num_samples=1",
    f"--completions={workdir}/completions.jsonl",
  ) as process:
    _, err = process.communicate()
  assert process.returncode == 0, err
  table = json.loads(bucket.read("runs/tiny/evaluation.json"))
  assert table["policy"] == workdir
  lines = bucket.read("runs/tiny/completions.jsonl").splitlines()
  assert len(lines) == table["data_sets"]["held_out"]["num_prompts"]
  # And nothing else was touched.
  assert {*bucket.names()} - {*digests} == {
    "runs/tiny/evaluation.json",
    "runs/tiny/completions.jsonl",
  }
  assert all(
    hashlib.sha256(bucket.read(name)).digest() == digest.digest()
    for name, digest in digests.items()
  )
  assert not (command.ROOT / "gs:").exists()
