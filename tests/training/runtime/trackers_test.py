"""Tests of the values of a run that trackers get."""

import contextlib
import json
import sqlite3
import struct
import subprocess
import sys

import numpy as np
import pytest
from tensorboardX.proto import plugin_hparams_pb2

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.training.runtime import files, traces, trackers
from grpo_jax.training.runtime import log as log_lib
from tests.training.runtime import log_test


def values(folder, tag):
  return [
    (event.step, value)
    for event in log_test.read_events(folder)
    for value in event.summary.value
    if value.tag == tag
  ]


def texts(folder, tag):
  return [
    (step, value.tensor.string_val[0].decode())
    for step, value in values(folder, f"{tag}/text_summary")
  ]


def config(**changes):
  made = config_lib.default_config("grpo")
  made.update_from_flattened_dict(changes)
  return json.loads(made.to_json())


def wandb_records(path):
  """The records of an offline run: a header, and blocks as of LevelDB."""
  from wandb.proto import wandb_internal_pb2

  data, at, parts = path.read_bytes(), 7, b""
  while at + 7 <= len(data):
    if (left := -at % 32768 or 32768) < 7:
      at += left
      continue
    _, size, kind = struct.unpack_from("<IHB", data, at)
    parts += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # Whole, or the last part.
      record = wandb_internal_pb2.Record.FromString(parts)
      parts = b""
      yield record.WhichOneof("record_type"), record


def traced(step, text="2", reward=1.0):
  row = traces.TraceRow(
    0, 0, 0, text, ("2",), np.array([5], np.int32), reward, True, True, {}
  )
  return traces.Group(step, "rl", "train", 3, -1, "1+1=", ("best",), (row,))


@pytest.fixture
def offline(monkeypatch):
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")


class Kept(trackers.Tracker):
  """Keeps what it is told."""

  def __init__(self, workdir, log, config, resume_step):
    self.told = []
    trackers_made.append(self)

  def write(self, step, values):
    self.told.append((step, dict(values)))

  def close(self, has_failed):
    self.told.append(has_failed)


class Broken(Kept):
  """Has a service that ends."""

  def write(self, step, values):
    super().write(step, values)
    raise BrokenPipeError("the service has ended")


trackers_made: list[Kept] = []


def test_a_tracker_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
  trackers_made.clear()
  monkeypatch.setitem(trackers.TRACKERS, "wandb", Broken)
  monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Kept)
  wanted = groups.LogConfig(trackers=("wandb", "tensorboard"), project="p")
  with (
    contextlib.suppress(KeyboardInterrupt),
    log_lib.MetricsLog(tmp_path, wanted) as log,
  ):
    for step in (1, 2):
      log.write(step, "rl", {"loss": 0.5})
    raise KeyboardInterrupt
  broken, kept = trackers_made
  assert broken.told == [(1, {"loss": 0.5})]
  assert kept.told == [(1, {"loss": 0.5}), (2, {"loss": 0.5}), True]
  assert len(log_lib.read_lines(tmp_path / "metrics.jsonl")) == 2
  assert caplog.text.count("Broken has failed") == 1


@pytest.mark.slow
def test_a_run_of_wandb_has_everything_and_is_continued(tmp_path, offline):
  import wandb  # A second, in every process that collects the tests.

  workdir = tmp_path / "my run"
  workdir.mkdir()
  log_config = groups.LogConfig(
    trackers=("wandb",), project="project", group="sweep", tags=("a", "b")
  )
  with log_lib.MetricsLog(workdir, log_config, config=config(seed=7)) as log:
    log.write(1, "rl", {"loss": 1.0})
    log.alert(1, "entropy", "it has collapsed")
    log.write_traces(traces.member([*map(traces.line, map(traced, (1, 2)))]))
    position = log.position()
  identity = (workdir / "wandb_id.txt").read_text()
  assert len(identity) == 8
  (path,) = (workdir / "wandb").glob(f"offline-run-*/run-{identity}.wandb")
  wandb.teardown()  # The file is written by a process of its own.
  records = list(wandb_records(path))
  (run,) = (record.run for kind, record in records if kind == "run")
  assert (run.project, run.run_group) == ("project", "sweep")
  assert (run.display_name, list(run.tags)) == ("my run", ["a", "b"])
  said = {
    entry.key: json.loads(entry.value_json) for entry in run.config.update
  }
  assert said["seed"] == 7
  assert said["rl"]["optimizer"]["learning_rate"] > 0  # Nested.
  assert "commit" in said["grpo_jax"] or not said["grpo_jax"]
  (alert,) = (record.alert for kind, record in records if kind == "alert")
  assert (alert.title, alert.text) == ("entropy", "step 1: it has collapsed")

  with log_lib.MetricsLog(
    workdir,
    log_config,
    config=config(seed=7, **{"mesh.fsdp": 2}),
    resume_step=1,
    resume_position=position,
  ) as log:
    log.write_result(1, None, None, 0)
  assert (workdir / "wandb_id.txt").read_text() == identity
  (table,) = workdir.glob("wandb/offline-run-*/files/media/table/*.json")
  table = json.loads(table.read_text())
  assert len(table["data"]) == 2
  first = dict(zip(table["columns"], table["data"][0], strict=True))
  assert first["completion"] == "2"
  assert (first["step"], first["reward"], first["chosen"]) == (1, 1.0, "best")


_RUN = """
import json, socket, sys
def refused(*_): raise OSError("there is no network")
socket.getaddrinfo = socket.create_connection = refused
from grpo_jax.settings import groups
from grpo_jax.training.runtime import log as log_lib
log_config = groups.LogConfig(
  trackers=("trackio",), project="sums", group="sweep", tags=("a", "b"))
with log_lib.MetricsLog(
  sys.argv[1], log_config, {"seed": 7, "rl": {"steps": 3}},
  *json.loads(sys.argv[2])) as log:
  start = int(sys.argv[3])
  for step in range(start, start + 3):
    log.write(step, "rl", {"loss": 0.5 * step, "reward": float("nan")})
    log.write(step, "rl", {"eval/accuracy": 1.0})
    log.write_samples(step, [{"prompt": "p", "completion": "# c"}])
    if step == 2:
      log.flush()
      position = log.position()
  log.alert(2, "entropy", "it has collapsed")
print(json.dumps([2, position] if start < 3 else None))
"""


@pytest.mark.slow  # Three processes that import trackio.
def test_a_run_of_trackio_has_everything_and_no_step_twice(
  tmp_path, monkeypatch
):
  monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))

  def run(resumed, start):
    done = subprocess.run(
      [sys.executable, "-c", _RUN, tmp_path / "my run", resumed, str(start)],
      capture_output=True,
      text=True,
      check=True,
    )
    assert done.stdout.count("\n") == 1  # Trackio itself says nothing.
    return done.stdout

  run("[]", 1)  # A run that is begun again is another one.
  position = run("[]", 1)
  run(position, 3)  # Step 3 is there already.
  (path,) = (tmp_path / "trackio").glob("sums*.db")
  identity = (tmp_path / "my run/trackio_id.txt").read_text()

  def read(table, *names):
    with contextlib.closing(sqlite3.connect(path)) as base:
      return base.execute(
        f"SELECT {', '.join(names)} FROM {table} WHERE run_id = ?", [identity]
      ).fetchall()

  ((name, text),) = set(read("configs", "run_name", "config"))
  said = json.loads(text)
  assert (name, said["_Group"], said["seed"]) == ("my run", "sweep", 7)
  assert (said["rl"], said["tags"]) == ({"steps": 3}, ["a", "b"])
  lines = [
    {"step": step, **json.loads(values)}
    for step, values in read("metrics", "step", "metrics")
  ]
  losses = [(x["step"], x["loss"]) for x in lines if "loss" in x]
  assert losses == [(step, 0.5 * step) for step in (1, 2, 3, 4, 5)]
  assert not any("reward" in x for x in lines)
  assert sum("eval/accuracy" in x for x in lines) == 5
  samples = [x["samples"]["_value"] for x in lines if "samples" in x]
  assert len(samples) == 5
  assert "    completion: # c" in samples[0]
  alerts = read("alerts", "title", "text", "step")
  assert alerts == [("entropy", "it has collapsed", 2)]


def test_a_table_has_the_last_groups_whole():
  few = [traced(step) for step in range(3)]
  assert [row[0] for row in trackers.trace_rows(few)] == [0, 1, 2]
  many = [traced(step) for step in range(1000)]
  assert [row[0] for row in trackers.trace_rows(many)] == [*range(500, 1000)]
  assert trackers.trace_rows([]) == []
  (row,) = trackers.trace_rows([traced(1, reward=None)])
  assert row[8] is None  # Unscored is not 0.


def test_runs_of_a_folder_can_be_compared_by_their_settings(tmp_path):
  """TensorBoard finds what differs, where no run says what there is."""
  found = {}
  for seed in (1, 2):
    with log_lib.MetricsLog(
      tmp_path / str(seed), groups.LogConfig(), config=config(seed=seed)
    ) as log:
      log.write(1, "rl", {"loss": 1.0})
      if seed == 1:
        log.write_result(1, None, None, 0)
    folder = tmp_path / str(seed)
    ((_, value),) = values(folder, "_hparams_/session_start_info")
    content = plugin_hparams_pb2.HParamsPluginData.FromString(
      value.metadata.plugin_data.content
    )
    found[seed] = content.session_start_info.hparams
    assert len(values(folder, "_hparams_/session_end_info")) == (seed == 1)
    assert not values(folder, "_hparams_/experiment")
  first, second = found[1], found[2]
  assert first.keys() == second.keys()
  differing = [k for k in first if str(first[k]) != str(second[k])]
  assert differing == ["seed"]
  assert first["seed"].number_value == 1
  assert first["algorithm.name"].string_value == "grpo"
  assert not any(name.startswith(("log.", "hosts.")) for name in first)
  ((_, text),) = texts(tmp_path / "1", "config")
  assert "    seed = 1\n" in text


def test_texts_are_code_and_cannot_leave_it(tmp_path):
  with log_lib.MetricsLog(tmp_path, groups.LogConfig()) as log:
    completion = "a\n# head\n<script>\x1b[31m" + "x" * 2000
    log.write_samples(
      5, [{"prompt": "p", "completion": completion, "reward": 0.5}] * 2
    )
    log.alert(6, "entropy", "it has\ncollapsed")
  ((step, text),) = texts(tmp_path, "samples")
  assert step == 5
  assert all(line.startswith("    ") for line in text.split("\n"))
  assert "\x1b" not in text
  assert "    reward: 0.5" in text
  assert len(text) < 1200
  ((step, text),) = texts(tmp_path, "alarms")
  assert (step, text) == (6, "    entropy: it has\n    collapsed")


def test_files_stay_small_whatever_is_sampled(tmp_path):
  board = trackers.TensorBoard(
    files.parse(tmp_path), groups.LogConfig(), None, None
  )
  rows = [{"prompt": "é" * 9999, "completion": "é" * 9999, "reward": 1.0}] * 8
  for step in range(500):
    board.samples(step, rows)
  board.alert(500, "entropy", "it has collapsed")
  board.close(has_failed=False)
  assert texts(tmp_path, "alarms") == [(500, "    entropy: it has collapsed")]
  size = sum(path.stat().st_size for path in tmp_path.rglob("events.*"))
  assert 0.9e6 < size < 1.2e6
