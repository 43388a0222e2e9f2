"""The files that a run writes about itself, beside its checkpoints.

| file                 | content                                             |
|----------------------|-----------------------------------------------------|
| `metrics.jsonl`      | metrics of each step; equal runs write equal bytes  |
| `timings.jsonl`      | `time/…` and `tokens_per_second…` of each step      |
| `samples.jsonl`      | sampled completions and their rewards               |
| `traces.jsonl.gz`    | groups of completions, token by token: `traces.py`  |
| `audit.jsonl`        | verdicts of guards on each step, if guards are on   |
| `tensorboard/`       | the same metrics, settings and sampled texts        |
| `wandb_id.txt`       | W&B run to continue, if W&B is used                 |
| `trackio_id.txt`     | Trackio run to continue, if Trackio is used         |
| `config.json`        | resolved config                                     |
| `environment.json`   | versions, devices and arguments, one entry a start  |
| `inputs.json`        | digests of the files that it reads: `inputs.py`     |
| `result.json`        | result of the run; absent until it has ended        |

A resumed run cuts these files back to their sizes at its checkpoint, so that
they read as if it had never stopped.

In a bucket a `.jsonl` file is an object, which cannot be appended to: it is
held in memory and written anew at checkpoints, at the end, and otherwise at
most once a minute. A killed process loses the lines since then, but none that
a checkpoint counts. The traffic grows with the file (25 MB a minute after ten
thousand steps of 2.5 kB).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import jax
from absl import logging

from grpo_jax.settings import groups
from grpo_jax.training.runtime import commit, files, traces, trackers

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
SAMPLES = "samples.jsonl"
CONFIG = "config.json"
RESULT = "result.json"
ENVIRONMENT = "environment.json"
_UPLOAD_SECONDS = 60.0  # Seconds between two uploads of a growing object.
# Metrics that differ between equal runs, which metrics.jsonl must not.
_TIMING_PREFIXES = ("time/", "tokens_per_second")
_PACKAGES = (
  *("grpo_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain"),
  "numpy",
)


class MetricsLog:
  """Writes metrics and samples; one process of a run owns it.

  A context manager that closes at the end.

  Args:
    workdir: Folder of the run, local or gs://; made if missing.
    log: Settings that name the trackers which get them too; None: none.
    config: Settings of the run as JSON, for trackers.
    resume_step: Step of the checkpoint that was restored; None: a run from the
      start. Files of an earlier attempt are then renamed to end in `.old`.
    resume_position: `position()` at that checkpoint; later lines are cut. None
      exactly if `resume_step` is.
    more: Names of further files of lines.

  Raises:
    ImportError: A tracker is asked for and not installed.
    ValueError: Only one of `resume_step` and `resume_position` is None, or
      lines that were written before the checkpoint are missing or damaged.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    log: groups.LogConfig | None = None,
    config: Mapping[str, Any] | None = None,
    resume_step: int | None = None,
    resume_position: Mapping[str, int] | None = None,
    more: Sequence[str] = (),
  ):
    if (resume_step is None) != (resume_position is None):
      raise ValueError(
        f"resume_step={resume_step} and"
        f" resume_position={resume_position}; pass both, of one checkpoint, or"
        " neither."
      )
    self._workdir = files.parse(workdir)
    # Checks come first: if one fails, no file has been cut.
    for name, count in (resume_position or {}).items():
      _check_lines(self._workdir / name, count, resume_step)
    self._workdir.mkdir(parents=True, exist_ok=True)
    log = log or groups.LogConfig(trackers=())
    self._trackers = [
      trackers.TRACKERS[name](self._workdir, log, config, resume_step)
      for name in log.trackers
    ]
    # A run that was started again has not ended.
    (self._workdir / RESULT).unlink(missing_ok=True)
    self._files: dict[str, _File | _Object] = {}
    for name in (METRICS, TIMINGS, SAMPLES, traces.FILE, *more):
      path = self._workdir / name
      size = None if resume_position is None else resume_position.get(name, 0)
      self._files[name] = (
        _File(path, size)
        if isinstance(path, pathlib.Path)
        else _Object(path, size)
      )

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: object, *_: object) -> None:
    try:
      self.close(has_failed=kind is not None)
    except OSError:
      if kind is None:  # Otherwise the first error is reported.
        raise

  def write(self, step: int, phase: str, metrics: Mapping[str, Any]) -> None:
    """Writes the metrics of one step.

    Args:
      step: Step over all phases.
      metrics: name -> a number or an array of one. Numbers that are not finite,
        such as means over nothing, become null, since JSON cannot hold them.
        Trackers do not get them.

    Raises:
      ValueError: A metric is named "step" or "phase".
    """
    if reserved := {"step", "phase"} & metrics.keys():
      raise ValueError(
        f"a metric may not be named {sorted(reserved)}; these are"
        " fields of every line. Rename it."
      )
    values = {name: float(value) for name, value in metrics.items()}
    head = {"step": int(step), "phase": phase}
    timings = {
      name: value
      for name, value in values.items()
      if name.startswith(_TIMING_PREFIXES)
    }
    if len(timings) < len(values):
      rest = {name: values[name] for name in values.keys() - timings.keys()}
      self.append(METRICS, head | rest)
    if timings:
      self.append(TIMINGS, head | timings)
    finite = trackers.finite(values)
    self._tell(lambda tracker: tracker.write(step, finite))

  def write_samples(
    self, step: int, samples: Sequence[Mapping[str, Any]]
  ) -> None:
    """Writes sampled completions, one line each, with their step."""
    for sample in samples:
      self.append(SAMPLES, {**sample, "step": int(step)})
    self._tell(lambda tracker: tracker.samples(step, samples))

  def alert(self, step: int, title: str, text: str) -> None:
    """Shows an alarm beside the curves of trackers."""
    self._tell(lambda tracker: tracker.alert(step, title, text))

  def _tell(self, what: Callable[[trackers.Tracker], None]) -> None:
    """Tells the trackers; one that fails is warned about, and told no more.

    The files of the run have everything, so no tracker ends a run.
    """
    for tracker in [*self._trackers]:
      try:
        what(tracker)
      except Exception as error:  # A service that is gone raises anything.
        self._trackers.remove(tracker)
        logging.warning(
          "config.log.trackers: %s has failed, and gets nothing more of this"
          " start; the run goes on, and %s has all metrics: %s: %s",
          type(tracker).__name__,
          self._workdir / METRICS,
          type(error).__name__,
          error,
        )

  def write_traces(self, content: bytes) -> None:
    """Adds a member to `traces.jsonl.gz`; see `traces.member`."""
    self._files[traces.FILE].append(content)

  def write_result(
    self,
    step: int,
    before: Mapping[str, float] | None,
    after: Mapping[str, float] | None,
    num_prompts: int,
    alarms: Sequence[Mapping[str, Any]] = (),
  ) -> None:
    """Writes `result.json`, the last file of a run that has done all steps.

    Beside the arguments it has `seconds`, the sum of `time/step_s` over the
    steps of all starts: compilation counts, start-up and evaluation do not.

    Args:
      step: Steps done, over all phases.
      before, after: Held-out means; None without a phase that is evaluated.
      num_prompts: Held-out prompts behind them.
      alarms: Alarms of health rules, in their order.
    """
    self.flush()
    timings = read_lines(self._workdir / TIMINGS)
    result = {
      "step": int(step),
      "before": before,
      "after": after,
      "num_prompts": num_prompts,
      "seconds": sum(line.get("time/step_s") or 0.0 for line in timings),
      "alarms": alarms,
    }
    write_json(self._workdir / RESULT, _valid(result))
    self._tell(lambda tracker: tracker.end())

  def append(self, name: str, line: Mapping[str, Any]) -> None:
    """Adds a line to one of the files."""
    text = json.dumps(_valid(line), sort_keys=True, allow_nan=False)
    self._files[name].append(text.encode() + b"\n")

  def flush(self) -> None:
    """Forces everything to disk or bucket; call before a checkpoint is saved.

    A checkpoint of step n must never be on disk without the lines up to n.
    """
    for file in self._files.values():
      file.flush()
    self._tell(lambda tracker: tracker.flush())

  def position(self) -> dict[str, int]:
    """The size of each file, bytes; a checkpoint saved after a flush has it."""
    return {name: file.size() for name, file in self._files.items()}

  def close(self, has_failed: bool = False) -> None:
    """Flushes and closes everything; the last call.

    Args:
      has_failed: True if an exception ends the run, which trackers then show.
    """
    self.flush()
    for file in self._files.values():
      file.close()
    self._tell(lambda tracker: tracker.close(has_failed))


class NoLog:
  """The log of a process that writes nothing: all but the first."""

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    pass

  def write(self, *_: Any) -> None:
    """Does nothing."""

  write_samples = append = write_traces = write_result = alert = flush = write

  def position(self) -> dict[str, int]:
    return {}


class _File:
  """A file of lines on a disk.

  Args:
    path: Path of the file; made if missing.
    size: Bytes to keep; None starts anew, and renames an old file to end in
      `.old`.
  """

  def __init__(self, path: pathlib.Path, size: int | None):
    if path.exists():
      if size is not None:
        # One call of the system: a kill leaves the old length or the new one.
        os.truncate(path, size)
      elif path.stat().st_size:
        path.replace(path.with_name(path.name + ".old"))
    # Every line goes to the operating system at once, so that a killed process
    # loses none, and no buffer is left that a full disk would refuse again.
    self._path = path
    self._file = path.open("ab", buffering=0)

  def append(self, line: bytes) -> None:
    try:
      while line:
        line = line[self._file.write(line) :]
    except OSError as error:
      raise OSError(
        f"{self._path} cannot be written: {error.strerror}. What a"
        " checkpoint counts is on the disk: make room, and start with the same"
        " command again to continue from there."
      ) from error

  def flush(self) -> None:
    os.fsync(self._file.fileno())

  def size(self) -> int:
    return self._file.tell()

  def close(self) -> None:
    self._file.close()


class _Object:
  """A file in a bucket, which is only ever written whole."""

  def __init__(self, path: files.Path, size: int | None):
    self._path = path
    content = path.read_bytes() if path.exists() else b""
    if size is None and content:
      path.with_name(path.name + ".old").write_bytes(content)
    self._content = bytearray(content[: size or 0])
    self._upload()

  def _upload(self) -> None:
    self._path.write_bytes(bytes(self._content))
    self._uploaded = len(self._content)
    self._next = time.monotonic() + _UPLOAD_SECONDS

  def append(self, line: bytes) -> None:
    self._content += line
    if time.monotonic() >= self._next:
      self._upload()

  def flush(self) -> None:
    if len(self._content) > self._uploaded:
      self._upload()

  def size(self) -> int:
    return len(self._content)

  def close(self) -> None:
    self.flush()


def _check_lines(path: files.Path, size: int, step: int | None) -> None:
  """Raises unless the first `size` bytes of a log are whole lines of JSON."""
  content = path.read_bytes() if path.exists() else b""
  head = content[:size]
  is_gzip = path.name == traces.FILE
  ends = is_gzip or head.endswith(b"\n")
  if len(head) < size or (size and not ends):
    problem = f"has {len(content)} bytes" if content else "is missing or empty"
    if len(head) == size:
      problem = "has other lines"
    raise ValueError(
      f"{path} {problem}, and had {size} when the checkpoint of step"
      f" {step} was saved: a part of the run's history is lost. Nothing was"
      " changed. Put a copy of the file back, or pass another --workdir; with"
      f" --config.start_workdir={path.parent} a new run starts from the policy"
      " of this one."
    )
  if is_gzip:
    head = b"".join(traces.members(head, path))
  _parse(head, path)


def _valid(value: Any) -> Any:
  """The value in a form that JSON can hold; array scalars and NaN included."""
  if value is None or isinstance(value, (str, bool, int)):
    return value
  if isinstance(value, Mapping):
    return {name: _valid(item) for name, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_valid(item) for item in value]
  number = float(value)
  return number if math.isfinite(number) else None


def read_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
  """The objects of a `.jsonl` file, without a half-written last line.

  Raises:
    ValueError: Another line is not JSON.
  """
  return _parse(files.parse(path).read_bytes(), path)


def _parse(content: bytes, path: str | os.PathLike) -> list[dict[str, Any]]:
  *lines, _ = content.split(b"\n")
  values = []
  for number, line in enumerate(lines, start=1):
    try:
      values.append(json.loads(line))
    except ValueError as error:
      raise ValueError(
        f"line {number} of {path} is not JSON: {line[:60]!r}."
        " The file is damaged; put a copy of it back."
      ) from error
  return values


def read_json(path: files.Path, kind: type) -> Any:
  """Reads a file of `write_json`.

  Raises:
    ValueError: It is not JSON, or of another kind.
  """
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    problem = str(error) or type(error).__name__
  else:
    if isinstance(value, kind):
      return value
    problem = f"needs a JSON {kind.__name__}"
  raise ValueError(
    f"{path} is damaged: {problem}. Put a copy of it back, or move it away: a"
    " run that continues writes it anew."
  )


def check_config(
  workdir: str | os.PathLike,
  config: Mapping[str, Any],
  allowed: Collection[str] = (),
  saved_hash: str | None = None,
) -> None:
  """Raises if the run in `workdir` was started with another config.

  Args:
    workdir: Directory of the run; one without a config passes.
    config: Resolved config of this start, as JSON.
    allowed: Fields that may differ, with dots for nested ones; a group allows
      all fields below it.
    saved_hash: `config_hash` at the checkpoint that is to be continued; None:
      there is no checkpoint.

  Raises:
    ValueError: Another field differs; the message names each with both values.
      Or `config.json` is damaged. Or it shows no difference, and the hash
      differs.
  """
  path = files.parse(workdir) / CONFIG
  saved, current = {}, _fixed(config, allowed)
  if path.exists():
    saved = _fixed(read_json(path, dict), allowed)
  differing = [
    f"{name}: {saved.get(name, 'absent')} stored,"
    f" {current.get(name, 'absent')} given"
    for name in sorted(saved.keys() | current.keys())
    if path.exists() and saved.get(name) != current.get(name)
  ]
  if differing:
    edited = "object@" in "".join(differing)
    raise ValueError(
      f"{path} is of a run with another config:"
      f" {'; '.join(differing)}. Start it with the stored values; or pass"
      f" another --workdir, and --config.start_workdir={workdir} to go on from"
      " its policy, for more steps too."
      + edited
      * " An object of a notebook is another one after an edit."
    )
  if saved_hash not in (None, config_hash(config, allowed)):
    raise ValueError(
      f"the last checkpoint in {workdir} is of a run with another"
      f" config than this one, and {path}"
      f" {'has been changed' if path.exists() else 'is missing'}, which said"
      " in what. Nothing was changed. Put a copy of the file back, give the"
      " settings that it had, or pass another --workdir."
    )


def config_hash(
  config: Mapping[str, Any], allowed: Collection[str] = ()
) -> str:
  """A hash that tells apart configs that differ beyond the `allowed` fields."""
  text = json.dumps(_fixed(config, allowed), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _fixed(config: Any, allowed: Collection[str]) -> dict[str, str]:
  """The settings that may not differ, in the form of `flatten`."""
  return {
    name: value
    for name, value in flatten(config).items()
    if not any(f"{name}.".startswith(f"{field}.") for field in allowed)
  }


def flatten(config: Any, prefix: str = "") -> dict[str, str]:
  """Dotted name -> JSON, for every setting of a nested config."""
  if not isinstance(config, Mapping) or not config:
    return {prefix.removesuffix("."): json.dumps(config, sort_keys=True)}
  flat: dict[str, str] = {}
  for name, value in config.items():
    flat |= flatten(value, f"{prefix}{name}.")
  return flat


def save_run_info(workdir: str | os.PathLike, config_json: str) -> None:
  """Writes `config.json`, and adds this start to `environment.json`.

  Args:
    workdir: Folder of the run, local or gs://; made if missing. A config in it
      is replaced: call `check_config` first.
    config_json: Resolved config, as a JSON object.

  Raises:
    ValueError: `environment.json` is damaged; nothing was changed.
  """
  folder = files.parse(workdir)
  path = folder / ENVIRONMENT
  starts = read_json(path, list) if path.exists() else []
  folder.mkdir(parents=True, exist_ok=True)
  write_json(folder / CONFIG, json.loads(config_json))
  write_json(path, [*starts, environment()])


def changes_since(workdir: str | os.PathLike) -> list[str]:
  """Lists the differences between the last start of a run and this process.

  Args:
    workdir: Folder of the run, local or gs://.

  Returns:
    Lines such as "packages.jax: 0.10.0 then, 0.10.1 now"; empty if versions,
    devices and commit are the same.
  """
  then = flatten(read_json(files.parse(workdir) / ENVIRONMENT, list)[-1])
  now = flatten(environment())
  return [
    f"{name}: {then.get(name, 'unknown')} then, {now.get(name, 'unknown')} now"
    for name in sorted(then.keys() | now.keys())
    if name != "argv" and then.get(name) != now.get(name)
  ]


def write_json(path: files.Path, value: Any) -> None:
  """Writes a value as JSON; a kill leaves the old file or the new one."""
  text = json.dumps(value, indent=2, sort_keys=True) + "\n"
  files.write(path, text.encode())


def environment() -> dict[str, Any]:
  """Versions, devices and arguments of this process, in a form for JSON."""
  versions: dict[str, str | None] = {}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None
  return {
    "packages": versions,
    "python": platform.python_version(),
    "platform": platform.platform(),
    "backend": jax.default_backend(),
    "device_kind": jax.devices()[0].device_kind,
    "num_devices": jax.device_count(),
    "num_processes": jax.process_count(),
    "git": commit.git(),
    "argv": sys.argv,
  }
