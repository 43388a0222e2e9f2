"""Trackers of a run's metrics: TensorBoard, and Weights & Biases.

Both get the scalars of each step, the config, and the alarms. TensorBoard also
gets sampled texts, and the data of the HPARAMS tab, which compares the runs of
a folder: `tensorboard --logdir=runs`. W&B gets the traced groups of a run as a
table when it has ended.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.settings import groups as groups_lib
from grpo_jax.training.runtime import files, traces

WANDB_ID = "wandb_id.txt"
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


class TensorBoard:
  """Event files in `tensorboard/`.

  Args:
    workdir: Folder of the run, local or gs://.
    resume_step: Step of the checkpoint that was restored; None: a run from the
      start.
    config: Settings of the run, nested; None: they are not shown.
  """

  def __init__(
    self,
    workdir: files.Path,
    resume_step: int | None,
    config: Mapping[str, Any] | None,
  ):
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
    self._left = _TEXT_BYTES
    if config is not None:
      _, start, self._end = summary.hparams(hparams(config), {})
      self._writer.file_writer.add_summary(start)
      lines = (f"{name} = {x!r}" for name, x in flat(config).items())
      self._text("config", "\n".join(lines), resume_step or 0)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds scalars."""
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)

  def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Adds the texts of sampled completions, as long as there is room."""
    shown = []
    for sample in samples:
      shown += [
        f"{name}: {_short(sample[name])}"
        for name in ("prompt", "completion", "reward", "correct")
        if name in sample
      ]
      shown.append("")
    self._text("samples", "\n".join(shown), step)

  def alert(self, step: int, title: str, text: str) -> None:
    """Adds an alarm to the texts."""
    # Alarms have no limit of bytes: rules warn once a phase.
    self._writer.add_text("alarms", _code(f"{title}: {text}"), step)

  def _text(self, tag: str, text: str, step: int) -> None:
    code = _code(text)
    self._left -= len(code.encode())
    if self._left >= 0:
      self._writer.add_text(tag, code, step)

  def end(self) -> None:
    """Marks the run in the HPARAMS tab as one that has done all steps."""
    if hasattr(self, "_end"):
      self._writer.file_writer.add_summary(self._end)

  def flush(self) -> None:
    """Forces everything to disk or bucket."""
    self._writer.flush()

  def close(self) -> None:
    """Closes the event file; nothing is written afterwards."""
    self._writer.close()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Dotted name -> setting."""
  found: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      found |= flat(value, f"{prefix}{name}.")
    else:
      found[prefix + name] = value
  return found


def hparams(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
  """Settings for the comparison of runs: numbers, switches and texts.

  A list, such as that of the rewards, is its text.
  """
  return {
    name: x if isinstance(x, (bool, int, float, str)) else repr(x)
    for name, x in flat(config).items()
    if x is not None and name.split(".")[0] not in _NO_HPARAMS
  }


def _short(value: Any) -> str:
  text = str(value)
  if len(text) <= _SHOWN_CHARACTERS:
    return text
  return text[: _SHOWN_CHARACTERS - 1] + "…"


class Wandb:
  """A run of Weights & Biases; a known one is continued.

  Args:
    workdir: Folder of the run, local or gs://; made if missing.
    log: Settings that name the project, the run, its group and its tags.
    config: Settings of the run, nested.
    package: Commit of the program.

  Raises:
    ImportError: wandb is not installed.
  """

  def __init__(
    self,
    workdir: files.Path,
    log: groups_lib.LogConfig,
    config: Mapping[str, Any] | None,
    package: Mapping[str, Any] | None,
  ):
    try:
      import wandb
    except ImportError as error:
      raise ImportError(
        "config.log.wandb_project: the package wandb is not installed;"
        " run `pip install 'grpo_jax[wandb]'`, or unset the"
        " project."
      ) from error
    path = workdir / WANDB_ID
    if not path.exists():
      files.write(path, secrets.token_hex(4).encode())
    self._module, self._workdir = wandb, workdir
    # wandb writes to a disk only, and sends these files.
    remote = files.is_remote(workdir)
    self._run = wandb.init(
      project=log.wandb_project,
      name=log.wandb_name or workdir.name,
      group=log.wandb_group or None,
      tags=list(log.wandb_tags) or None,
      dir=tempfile.gettempdir() if remote else str(workdir),
      id=path.read_text(encoding="utf-8").strip(),
      resume="allow",
      config={**(config or {}), "grpo_jax": dict(package or {})},
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
    self._run.alert(
      title=title,
      text=f"step {step}: {text}",
      level="WARN",
    )

  def end(self) -> None:
    """Adds the traced groups as a table; see `traces.py`."""
    rows = trace_rows(traces.read(self._workdir))
    if rows:
      table = self._module.Table(columns=list(_COLUMNS), data=rows)
      self._run.log({"traces": table})

  def close(self) -> None:
    """Ends the run at Weights & Biases; nothing is sent afterwards."""
    self._run.finish()


def trace_rows(groups: Sequence[traces.Group]) -> list[list[Any]]:
  """Rows of a table with `_COLUMNS`: the last groups, whole, the oldest first.

  Args:
    groups: Groups from `traces.read`.
  """
  chosen: list[traces.Group] = []
  size = 0
  for group in reversed(groups):
    size += len(group.rows)
    if chosen and size > _TABLE_ROWS:
      break
    chosen.append(group)
  return [
    [
      *(group.step, group.phase, group.split, ", ".join(group.chosen)),
      *(group.prompt_id, group.prompt, row.sample, row.text, row.reward),
      *(row.correct, row.terminated, row.error, len(row.tokens) + row.cut),
    ]
    for group in reversed(chosen)
    for row in group.rows
  ]
