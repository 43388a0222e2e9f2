"""Files a run writes about itself."""

import json
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.settings import groups
from grpo_jax.training.runtime import log as log_lib
from grpo_jax.training.runtime import traces

_PROJECT = groups.LogConfig(trackers=("wandb", "tensorboard"))


def write_steps(log, first: int, last: int) -> None:
  for step in range(first, last + 1):
    metrics = {"reward/mean": jnp.float32(0.1) * step, "loss": 1 / step}
    timings = {"time/step": 0.5 * step, "tokens_per_second": 1e4}
    log.write(step, "rl", metrics | timings)
    log.write_samples(step, [{"text": f"ü{step}", "reward": 0.5}])
    log.write_traces(traces.member([json.dumps({"step": step}).encode()]))


def read(workdir: pathlib.Path) -> dict[str, bytes]:
  return {
    name: (workdir / name).read_bytes()
    for name in (log_lib.METRICS, log_lib.TIMINGS, log_lib.SAMPLES, traces.FILE)
  }


def test_lines_are_sorted_round_trip_and_without_timings(tmp_path):
  log = log_lib.MetricsLog(tmp_path)
  log.write(
    np.int64(3),
    "sft",
    {
      "loss": np.float32(0.1),
      "accuracy": jnp.array(0.3),
      "z": 1 / 3,
      "time/step": 2.0,
      "tokens_per_second_per_device": 3.0,
    },
  )
  log.write(4, "rl", {"tokens_per_second": 3.0})
  log.write(5, "rl", {"loss": float("nan"), "a": float("-inf")})
  log.close()
  assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
    '{"accuracy": 0.30000001192092896, "loss": 0.10000000149011612,'
    ' "phase": "sft", "step": 3, "z": 0.3333333333333333}',
    '{"a": null, "loss": null, "phase": "rl", "step": 5}',
  ]
  assert (tmp_path / "timings.jsonl").read_text().splitlines() == [
    '{"phase": "sft", "step": 3, "time/step": 2.0,'
    ' "tokens_per_second_per_device": 3.0}',
    '{"phase": "rl", "step": 4, "tokens_per_second": 3.0}',
  ]
  first = log_lib.read_lines(tmp_path / "metrics.jsonl")[0]
  assert np.float32(first["loss"]) == np.float32(0.1)


def test_samples_hold_text_numbers_and_nested_values(tmp_path):
  log = log_lib.MetricsLog(tmp_path)
  sample = {
    "text": 'a\nb"\u2028é\ud800',
    "reward": jnp.float32(0.5),
    "components": {"format": float("nan"), "right": np.bool_(True)},
    "tokens": np.arange(2).tolist(),
    "terminated": True,
  }
  log.write_samples(7, [sample, {"text": ""}])
  log.close()
  lines = log_lib.read_lines(tmp_path / "samples.jsonl")
  assert lines == [
    {
      **sample,
      "step": 7,
      "reward": 0.5,
      "components": {"format": None, "right": 1.0},
    },
    {"step": 7, "text": ""},
  ]


@pytest.mark.parametrize("name", ["step", "phase"])
def test_metric_named_like_a_field_is_refused(tmp_path, name):
  log = log_lib.MetricsLog(tmp_path)
  with pytest.raises(ValueError, match=f"may not be named .*{name}"):
    log.write(1, "rl", {name: 1.0})
  log.close()


def test_resumed_run_writes_the_same_bytes(tmp_path):
  whole, resumed = tmp_path / "whole", tmp_path / "resumed"
  with log_lib.MetricsLog(whole) as log:
    write_steps(log, 1, 9)

  with log_lib.MetricsLog(resumed) as log:
    write_steps(log, 1, 4)
    log.flush()
    position = log.position()
    # A later line of the same step, as an evaluation writes it, goes too.
    log.write(4, "rl", {"eval/accuracy": 0.5})
    write_steps(log, 5, 7)
  for name in (log_lib.METRICS, log_lib.SAMPLES, traces.FILE):
    with (resumed / name).open("ab") as file:
      file.write(b'{"half": 0.')  # Killed inside a line.
  position = json.loads(json.dumps(position))
  with log_lib.MetricsLog(
    resumed, resume_step=4, resume_position=position
  ) as log:
    assert [
      line["step"] for line in log_lib.read_lines(resumed / log_lib.METRICS)
    ] == [1, 2, 3, 4]
    assert log.position() == position
    write_steps(log, 5, 9)
  assert read(resumed) == read(whole)


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    ("metrics.jsonl", None, "is missing or empty, and had {size} when"),
    (
      "metrics.jsonl",
      lambda x: b"",
      "is missing or empty, and had {size} when",
    ),
    (
      "samples.jsonl",
      lambda x: x[:-1],
      "has {less} bytes, and had {size} when",
    ),
    ("metrics.jsonl", lambda x: x[9:] + b"n" * 9, "has other lines, and had"),
    ("timings.jsonl", lambda x: b"\0" * 8 + x[8:], "line 1 of .* is not JSON"),
    ("traces.jsonl.gz", lambda x: x[:-1], "has {less} bytes, and had {size}"),
    ("traces.jsonl.gz", lambda x: b"\0" * 8 + x[8:], "is damaged"),
    (
      "metrics.jsonl",
      lambda x: x[:-30] + b"\0" * 29 + x[-1:],
      "line 4 of .* is not JSON",
    ),
  ],
)
def test_a_log_that_has_lost_lines_is_refused_and_not_cut(
  tmp_path, name, change, message
):
  with log_lib.MetricsLog(tmp_path) as log:
    write_steps(log, 1, 4)
    position = log.position()
    log.write_result(4, None, None, 8)
  path = tmp_path / name
  content = path.read_bytes()
  path.unlink()
  if change is not None:
    path.write_bytes(change(content))
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  size = len(content)
  with pytest.raises(
    ValueError, match=message.format(size=size, less=size - 1)
  ) as caught:
    log_lib.MetricsLog(tmp_path, resume_step=4, resume_position=position)
  assert str(path) in str(caught.value)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_damaged_line_is_named(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text('{"step": 1}\ngarbage\n{"step": 2}\n')
  with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl"):
    log_lib.read_lines(path)


@pytest.mark.parametrize(("step", "position"), [(1, None), (None, {})])
def test_half_of_a_resume_point_is_refused(tmp_path, step, position):
  with pytest.raises(ValueError, match="pass both"):
    log_lib.MetricsLog(tmp_path, resume_step=step, resume_position=position)


def test_fresh_start_sets_files_of_an_earlier_attempt_aside(tmp_path):
  log = log_lib.MetricsLog(tmp_path)
  write_steps(log, 1, 2)
  log.close()
  before = read(tmp_path)
  log_lib.MetricsLog(tmp_path).close()
  assert set(read(tmp_path).values()) == {b""}
  for name, content in before.items():
    assert (tmp_path / f"{name}.old").read_bytes() == content


@pytest.mark.slow
def test_written_lines_survive_a_killed_process(tmp_path):
  program = (
    "import os, signal, sys; from grpo_jax.training.runtime import log;"
    "log = log.MetricsLog(sys.argv[1]);"
    "log.write(1, 'rl', {'loss': 1.0});"
    "os.kill(os.getpid(), signal.SIGKILL)"
  )
  subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
  assert [
    line["step"] for line in log_lib.read_lines(tmp_path / "metrics.jsonl")
  ] == [1]


def test_a_full_disk_is_named_and_hides_no_other_error(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.symlink_to("/dev/full")
  log = log_lib.MetricsLog(tmp_path)
  with pytest.raises(
    OSError, match="cannot be written: No space left"
  ) as caught:
    log.write(1, "rl", {"loss": 1.0})
  assert str(path) in str(caught.value)
  assert "start with the same command again" in str(caught.value)
  log.close = lambda has_failed: log.write(1, "rl", {"loss": 1.0})
  with pytest.raises(OSError, match="written: No space left"):
    log.__exit__(None, None, None)
  # The error that ends a run is the one to hear of.
  log.__exit__(KeyError, KeyError(), None)


def read_events(directory: pathlib.Path) -> list:
  """Events of all TensorBoard files in order of their names, with CRCs."""
  from tensorboardX.proto import event_pb2
  from tensorboardX.record_writer import masked_crc32c

  events = []
  for path in sorted(directory.rglob("events.*")):
    data = path.read_bytes()
    while data:
      (size,) = np.frombuffer(data[:8], "<u8")
      size = int(size)
      body, data = data[12 : 12 + size], data[12 + size :]
      assert np.frombuffer(data[:4], "<u4")[0] == masked_crc32c(body)
      events.append(event_pb2.Event.FromString(body))
      data = data[4:]
  return events


def test_tensorboard_holds_every_metric_and_purges_on_resume(tmp_path):
  log = log_lib.MetricsLog(tmp_path, groups.LogConfig())
  write_steps(log, 1, 2)
  position = log.position()
  write_steps(log, 3, 3)
  log.close()
  # Within the same second, to files of other names.
  log = log_lib.MetricsLog(
    tmp_path, groups.LogConfig(), resume_step=2, resume_position=position
  )
  write_steps(log, 3, 4)
  log.flush()
  log.close()
  events = read_events(tmp_path / "tensorboard")
  starts = [
    event.step
    for event in events
    if event.session_log.status == event.session_log.START
  ]
  assert sorted(starts) == [0, 3]
  rewards = sorted(
    (event.step, value.simple_value)
    for event in events
    for value in event.summary.value
    if value.tag == "reward/mean"
  )
  steps = np.array([1, 2, 3, 3, 4])
  np.testing.assert_array_equal([step for step, _ in rewards], steps)
  np.testing.assert_allclose([value for _, value in rewards], 0.1 * steps, 1e-6)
  tags = {value.tag for event in events for value in event.summary.value}
  assert tags == {
    *("reward/mean", "loss", "time/step", "tokens_per_second"),
    "samples/text_summary",
  }


def test_means_over_nothing_are_absent_everywhere(tmp_path, monkeypatch):
  logged = []
  fake = types.SimpleNamespace(
    init=lambda **_: types.SimpleNamespace(
      log=lambda values, step: logged.append((step, values)),
      finish=lambda: None,
    )
  )
  monkeypatch.setitem(sys.modules, "wandb", fake)
  with log_lib.MetricsLog(tmp_path, _PROJECT) as log:
    log.write(1, "rl", {"reward/mean": jnp.float32(jnp.nan), "unscored": 4.0})
  assert logged == [(1, {"unscored": 4.0})]
  (line,) = log_lib.read_lines(tmp_path / "metrics.jsonl")
  assert line == {"step": 1, "phase": "rl", "reward/mean": None, "unscored": 4}
  tags = [
    value.tag
    for event in read_events(tmp_path / "tensorboard")
    for value in event.summary.value
  ]
  assert tags == ["unscored"]


def test_the_result_has_the_seconds_of_all_starts(tmp_path):
  with log_lib.MetricsLog(tmp_path) as log:
    log.write(1, "rl", {"time/step_s": 1.5})
    position = log.position()
  with log_lib.MetricsLog(
    tmp_path, resume_step=1, resume_position=position
  ) as log:
    log.write(2, "rl", {"time/step_s": 2.0})
    log.write_result(2, {"eval/accuracy": 0.5}, {"eval/accuracy": np.nan}, 8)
  assert json.loads((tmp_path / "result.json").read_text()) == {
    "step": 2,
    "before": {"eval/accuracy": 0.5},
    "after": {"eval/accuracy": None},
    "num_prompts": 8,
    "seconds": 3.5,
    "alarms": [],
  }


def test_a_run_that_starts_again_has_no_result(tmp_path):
  with log_lib.MetricsLog(tmp_path) as log:
    log.write_result(0, None, None, 8)
  log_lib.MetricsLog(tmp_path).close()
  assert not (tmp_path / "result.json").exists()


def test_missing_wandb_names_the_extra_and_cuts_nothing(tmp_path, monkeypatch):
  (tmp_path / "metrics.jsonl").write_text('{"step": 9}\n')
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ImportError, match=r"grpo_jax\[wandb\]"):
    log_lib.MetricsLog(tmp_path, _PROJECT)
  assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 9}\n'


CONFIG = {"steps": 10, "algorithm": {"name": "grpo", "clip_high": 0.2}}


def changed(**algorithm) -> dict:
  return {**CONFIG, "algorithm": CONFIG["algorithm"] | algorithm}


def test_run_info_describes_the_run_and_each_start(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["train.py", "--workdir=x"])
  for _ in range(2):
    log_lib.save_run_info(tmp_path, json.dumps(CONFIG))
  assert json.loads((tmp_path / "config.json").read_text()) == CONFIG
  starts = json.loads((tmp_path / "environment.json").read_text())
  assert len(starts) == 2
  start = starts[-1]
  assert start["argv"] == ["train.py", "--workdir=x"]
  assert start["python"] == ".".join(map(str, sys.version_info[:3]))
  for package in ("grpo_jax", "jax", "jaxlib", "flax", "optax", "numpy"):
    assert start["packages"][package]
  assert start["packages"]["orbax-checkpoint"]
  assert start["num_devices"] >= 1
  assert start["device_kind"]
  if start["git"] is not None:  # None where the package is not a checkout.
    assert len(start["git"]["commit"]) == 40
    assert isinstance(start["git"]["dirty"], bool)


def test_what_changed_since_the_last_start_is_named(tmp_path):
  log_lib.save_run_info(tmp_path, json.dumps(CONFIG))
  assert log_lib.changes_since(tmp_path) == []
  path = tmp_path / "environment.json"
  (start,) = json.loads(path.read_text())
  older = start | {"git": {"commit": "0" * 40, "dirty": False}}
  older["packages"] = start["packages"] | {"jax": "0.0.1"}
  path.write_text(json.dumps([start, older]))
  changes = log_lib.changes_since(tmp_path)
  assert f'packages.jax: "0.0.1" then, "{jax.__version__}" now' in changes
  assert any(line.startswith("git") and "0" * 40 in line for line in changes)
  assert not any("argv" in line for line in changes)


def test_changed_config_is_refused_with_both_values(tmp_path):
  log_lib.save_run_info(tmp_path, json.dumps(CONFIG))
  given = changed(clip_high=0.3, delta=[1])
  with pytest.raises(ValueError, match="another config") as caught:
    log_lib.check_config(tmp_path, given, allowed=["steps"])
  message = str(caught.value)
  assert "algorithm.clip_high: 0.2 stored, 0.3 given" in message
  assert "algorithm.delta: absent stored, [1] given" in message
  assert str(tmp_path) in message
  assert "name" not in message
  assert json.loads((tmp_path / "config.json").read_text()) == CONFIG


@pytest.mark.parametrize(
  "allowed", [["algorithm.clip_high"], ["algorithm"], ["steps", "algorithm"]]
)
def test_allowed_fields_may_change(tmp_path, allowed):
  log_lib.save_run_info(tmp_path, json.dumps(CONFIG))
  given = changed(clip_high=0.3)
  log_lib.check_config(tmp_path, given, allowed)
  log_lib.save_run_info(tmp_path, json.dumps(given))
  assert json.loads((tmp_path / "config.json").read_text()) == given


def test_a_field_is_not_allowed_by_the_start_of_its_name(tmp_path):
  log_lib.save_run_info(tmp_path, json.dumps(CONFIG))
  with pytest.raises(ValueError, match="clip_high"):
    log_lib.check_config(
      tmp_path, changed(clip_high=0.3), allowed=["algo", "algorithm.clip"]
    )


def test_directory_without_a_config_passes(tmp_path):
  log_lib.check_config(tmp_path / "missing", CONFIG)


def test_a_config_that_is_missing_does_not_allow_another_one(tmp_path):
  saved = log_lib.config_hash(CONFIG, ["steps"])
  allowed = {**CONFIG, "steps": 11}
  log_lib.check_config(tmp_path, allowed, ["steps"], saved)
  with pytest.raises(ValueError, match=r"config\.json is missing") as caught:
    log_lib.check_config(tmp_path, changed(clip_high=0.3), ["steps"], saved)
  assert "Put a copy of the file back" in str(caught.value)
  # Nor one that was put in its place.
  log_lib.save_run_info(tmp_path, json.dumps(changed(clip_high=0.3)))
  with pytest.raises(ValueError, match=r"config\.json has been changed"):
    log_lib.check_config(tmp_path, changed(clip_high=0.3), ["steps"], saved)
  log_lib.save_run_info(tmp_path, json.dumps(allowed))
  log_lib.check_config(tmp_path, CONFIG, ["steps"], saved)


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 9, b"3", b"\xff{}"])
def test_damaged_files_of_a_run_are_named(tmp_path, content):
  for name, use in (
    ("config.json", lambda: log_lib.check_config(tmp_path, CONFIG)),
    ("environment.json", lambda: log_lib.save_run_info(tmp_path, "{}")),
  ):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: ") as caught:
      use()
    assert str(path) in str(caught.value)
    assert "Put a copy of it back, or move it away" in str(caught.value)
    assert path.read_bytes() == content
  # Nothing was written before the error.
  assert (tmp_path / "config.json").read_bytes() == content
