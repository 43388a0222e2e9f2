"""Trackers of a run's metrics: TensorBoard, Weights & Biases and Trackio.

All get the scalars of each step, the config, and the alarms. TensorBoard and
Trackio also get sampled texts. TensorBoard gets the data of the HPARAMS tab,
which compares the runs of a folder: `tensorboard --logdir=runs`. W&B gets the
traced groups of a run as a table when it has ended. Trackio needs no account
and no network: it writes to a folder of this machine (TRACKIO_DIR), and
`trackio show` shows it.
"""

from __future__ import annotations

import contextlib
import io
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.settings import groups as groups_lib
from grpo_jax.training.runtime import commit, files, traces

WANDB_ID = "wandb_id.txt"
TRACKIO_ID = "trackio_id.txt"
# Bytes of all texts of a start, so that the file stays small.
_TEXT_BYTES = 1 << 20
_SHOWN_CHARACTERS = 400  # Characters of a prompt, and of a completion.
_TABLE_ROWS = 500
# Settings that do not affect what is learnt.
_NO_HPARAMS = ("checkpoint", "health", "hosts", "log", "mesh")
_COLUMNS = (
  *("step", "phase", "split", "chosen", "prompt_id", "prompt", "sample"),
  *("completion", "reward", "correct", "terminated", "error", "num_tokens"),
)


def finite(values: Mapping[str, float]) -> dict[str, float]:
  """The values without NaN and infinity, which trackers cannot hold."""
  return {name: x for name, x in values.items() if math.isfinite(x)}


def _code(text: str) -> str:
  """Formats text as code, so that no text of a policy becomes Markdown."""
  return "\n".join(f"    {files.escaped(x)}" for x in text.split("\n"))


class Tracker:
  """A tracker that is told everything, and keeps nothing.

  Args:
    workdir: Folder of the run, local or gs://; it exists.
    log: Settings that name the project, the run, its group and its tags.
    config: Settings of the run, nested; None: they are not shown.
    resume_step: Step of the checkpoint that was restored; None: a run from the
      start.

  Raises:
    ImportError: The package of the tracker is not installed.
  """

  def __init__(
    self,
    workdir: files.Path,
    log: groups_lib.LogConfig,
    config: Mapping[str, Any] | None,
    resume_step: int | None,
  ):
    del workdir, log, config, resume_step

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds scalars."""

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Adds the texts of sampled completions."""

  def alert(self, step: int, title: str, text: str) -> None:
    """Adds an alarm."""

  def end(self) -> None:
    """Marks the run as one that has done all steps."""

  def flush(self) -> None:
    """Forces everything to disk or bucket."""

  def close(self, has_failed: bool) -> None:
    """Ends the tracker; nothing is written afterwards.

    Args:
      has_failed: True if an exception ends the run.
    """


def _id(path: files.Path, is_new: bool) -> str:
  """Returns the name of a run at a tracker; makes one if there is none."""
  if is_new or not path.exists():
    files.write(path, secrets.token_hex(4).encode())
  return path.read_text(encoding="utf-8").strip()


def _missing(name: str) -> ImportError:
  return ImportError(
    f"config.log.trackers: the package {name} is not installed; run"
    f" `pip install 'grpo_jax[{name}]'`, or leave {name!r} out."
  )


class TensorBoard(Tracker):
  """Event files in `tensorboard/`."""

  def __init__(self, workdir, log, config, resume_step):
    del log
    # Imported here, with the clients of buckets that it imports, because most
    # programs write no events.
    import tensorboardX
    from tensorboardX import summary

    self._writer = tensorboardX.SummaryWriter(
      str(workdir / "tensorboard"),
      # TensorBoard then hides the later points of the killed run.
      purge_step=0 if resume_step is None else resume_step + 1,
      # tensorboardX names files by the second, and overwrites.
      filename_suffix=f".{secrets.token_hex(4)}",
    )
    self._bytes_left = _TEXT_BYTES
    if config is not None:
      _, start, self._end = summary.hparams(hparams(config), {})
      self._writer.file_writer.add_summary(start)
      lines = (f"{name} = {x!r}" for name, x in flat(config).items())
      self._text("config", "\n".join(lines), resume_step or 0)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Adds the texts of sampled completions, as long as there is room."""
    self._text("samples", _sample_text(samples), step)

  def alert(self, step: int, title: str, text: str) -> None:
    """Adds an alarm to the texts."""
    # Alarms have no limit of bytes: rules warn once a phase.
    self._writer.add_text("alarms", _code(f"{title}: {text}"), step)

  def _text(self, tag: str, text: str, step: int) -> None:
    code = _code(text)
    self._bytes_left -= len(code.encode())
    if self._bytes_left >= 0:
      self._writer.add_text(tag, code, step)

  def end(self) -> None:
    """Marks the run in the HPARAMS tab as one that has done all steps."""
    if hasattr(self, "_end"):
      self._writer.file_writer.add_summary(self._end)

  def flush(self) -> None:
    self._writer.flush()

  def close(self, has_failed: bool) -> None:
    del has_failed
    self._writer.close()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Dotted name -> setting."""
  settings: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      settings |= flat(value, f"{prefix}{name}.")
    else:
      settings[prefix + name] = value
  return settings


def hparams(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
  """Settings for the comparison of runs: numbers, switches and texts.

  A list, such as that of the rewards, is its text.
  """
  return {
    name: x if isinstance(x, (bool, int, float, str)) else repr(x)
    for name, x in flat(config).items()
    if x is not None and name.split(".")[0] not in _NO_HPARAMS
  }


def _sample_text(samples: Sequence[Mapping[str, Any]]) -> str:
  lines = []
  for sample in samples:
    lines += [
      f"{name}: {_short(sample[name])}"
      for name in ("prompt", "completion", "reward", "correct")
      if name in sample
    ]
    lines.append("")
  return "\n".join(lines)


def _short(value: Any) -> str:
  text = str(value)
  if len(text) <= _SHOWN_CHARACTERS:
    return text
  return text[: _SHOWN_CHARACTERS - 1] + "…"


class Wandb(Tracker):
  """A run of Weights & Biases; a known one is continued."""

  def __init__(self, workdir, log, config, resume_step):
    del resume_step
    try:
      import wandb
    except ImportError as error:
      raise _missing("wandb") from error
    self._module, self._workdir = wandb, workdir
    # wandb writes to a disk only, and sends these files.
    remote = files.is_remote(workdir)
    self._run = wandb.init(
      project=log.project,
      name=log.name or workdir.name,
      group=log.group or None,
      tags=list(log.tags) or None,
      dir=tempfile.gettempdir() if remote else str(workdir),
      id=_id(workdir / WANDB_ID, is_new=False),
      resume="allow",
      config={**(config or {}), "grpo_jax": commit.git() or {}},
      # A run that continues may be on other devices, and have other names.
      allow_val_change=True,
    )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds scalars.

    W&B drops steps that it has seen already; they are the same.
    """
    self._run.log(dict(values), step=step)

  def alert(self, step: int, title: str, text: str) -> None:
    """Sends an alarm to people who have asked W&B for alarms."""
    self._run.alert(title=title, text=f"step {step}: {text}", level="WARN")

  def end(self) -> None:
    """Adds the traced groups as a table; see `traces.py`."""
    rows = trace_rows(traces.read(self._workdir))
    if rows:
      table = self._module.Table(columns=list(_COLUMNS), data=rows)
      self._run.log({"traces": table})

  def close(self, has_failed: bool) -> None:
    """Ends the run, as finished or failed; nothing is sent afterwards."""
    self._run.finish(exit_code=int(has_failed))


def trace_rows(groups: Sequence[traces.Group]) -> list[list[Any]]:
  """Rows of a table with `_COLUMNS`: the last groups, whole, the oldest first.

  Args:
    groups: Groups from `traces.read`.
  """
  recent: list[traces.Group] = []
  size = 0
  for group in reversed(groups):
    size += len(group.rows)
    if recent and size > _TABLE_ROWS:
      break
    recent.append(group)
  return [
    [
      *(group.step, group.phase, group.split, ", ".join(group.chosen)),
      *(group.prompt_id, group.prompt, row.sample, row.text, row.reward),
      *(row.correct, row.terminated, row.error, len(row.tokens) + row.cut),
    ]
    for group in reversed(recent)
    for row in group.rows
  ]


class Trackio(Tracker):
  """A run of Trackio, in its folder on this machine.

  A run that is resumed is continued, and what it had written after the
  checkpoint is not written again. Trackio writes twice a second: of a process
  that is killed, the last half second is missing.
  """

  def __init__(self, workdir, log, config, resume_step):
    try:
      import trackio
      from trackio import sqlite_storage
    except ImportError as error:
      raise _missing("trackio") from error
    self._module = trackio
    name = log.name or workdir.name
    id_ = _id(workdir / TRACKIO_ID, is_new=resume_step is None)
    # (step, names) of lines and (step, title) of alarms that are there.
    self._logged: set[tuple[int, Any]] = set()
    if resume_step is not None:
      storage = sqlite_storage.SQLiteStorage
      for line in storage.get_logs(log.project, name, run_id=id_):
        step = line.pop("step")
        self._logged.add((step, frozenset(line) - {"timestamp"}))
      for alarm in storage.get_alerts(log.project, name, run_id=id_):
        self._logged.add((alarm["step"], alarm["title"]))
    # Not by `init`, which knows runs by their names, and prints.
    self._run = trackio.Run(
      None,
      log.project,
      None,
      name=name,
      run_id=id_,
      group=log.group or None,
      config={
        **(config or {}),
        "grpo_jax": commit.git() or {},
        "tags": list(log.tags),
      },
    )

  def write(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds scalars, or a text."""
    if values and (step, frozenset(values)) not in self._logged:
      self._run.log(dict(values), step=step)

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    text = self._module.Markdown(_code(_sample_text(samples)))
    self.write(step, {"samples": text})

  def alert(self, step: int, title: str, text: str) -> None:
    """Adds an alarm, which Trackio would also print."""
    if (step, title) not in self._logged:
      with contextlib.redirect_stdout(io.StringIO()):
        self._run.alert(title, text, step=step)

  def close(self, has_failed: bool) -> None:
    del has_failed
    with contextlib.redirect_stdout(io.StringIO()):
      self._run.finish()


# The names of `groups.TRACKERS`.
TRACKERS: dict[str, type[Tracker]] = {
  "tensorboard": TensorBoard,
  "wandb": Wandb,
  "trackio": Trackio,
}
