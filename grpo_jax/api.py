"""The functions that a notebook or a script calls: training, and opened runs.

import grpo_jax as g

config = g.config("quickstart", "gspo", **{"rl.steps": 50})
run = g.train(config)
run.plot()
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from typing import TYPE_CHECKING

import jax
from ml_collections import config_dict

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import typed
from grpo_jax.training import loop
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.runtime import compilation, files, hosts, terminal

if TYPE_CHECKING:
  from grpo_jax import handle

# Folders of runs that have none of their own; removed with the process.
_FOLDERS: list[tempfile.TemporaryDirectory] = []


def _prepare() -> None:
  """Does what the commands do first, unless it has been done already."""
  compilation.use()
  root = logging.getLogger()
  # Libraries configure the root logger when they are imported. Handlers that a
  # person has chosen stay.
  of_libraries = [
    handler
    for handler in root.handlers
    if type(handler) is logging.StreamHandler
    and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
  ]
  if root.handlers == of_libraries:
    for handler in of_libraries:
      root.removeHandler(handler)
    terminal.take_over_logging()


def train(
  config: typed.Config, workdir: str | os.PathLike | None = None
) -> handle.Run:
  """Runs the phases of a config, or continues an unfinished run.

  Compiled programs are kept for the next process (`compilation.use`). Ctrl-C,
  or interrupting the kernel, finishes the step and saves; a second one is a
  KeyboardInterrupt. The same call continues the run. If the run has a temporary
  folder, `train(config, run.workdir)` continues it.

  Args:
    config: A config from `config`, or another one with the same settings.
    workdir: Folder of the run, local or gs://; an unfinished run in it is
      continued. None: a temporary folder, which is removed when the process
      ends.

  Returns:
    The run, to look at and to sample from. Its `result` is None if the run was
    stopped.

  Raises:
    KeyError, TypeError, ValueError: The config, data, checkpoint or a verifier
      is at fault, or another process trains in `workdir`; nothing that was
      written is lost.
    FloatingPointError: The loss or gradient is not finite.
  """
  if not isinstance(config, config_dict.ConfigDict):
    raise TypeError(
      f"train: config={config!r:.80} ({type(config).__name__}); needs"
      ' settings, as grpo_jax.config("quickstart") gives them.'
    )
  if workdir is None:
    if jax.process_count() > 1:
      raise ValueError(
        f"train: workdir=None, and {jax.process_count()} processes, which share"
        " one; pass a folder that all of them see."
      )
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="grpo_jax_"))
    workdir = _FOLDERS[-1].name
    hosts.say(f"workdir: {workdir}, until this process ends")
  _prepare()
  result = loop.train(config, workdir)
  if result.preempted:
    hosts.say(
      f"stopped {result.stopped}; train(config, {str(workdir)!r}) continues."
    )
  return load(workdir)


def load(workdir: str | os.PathLike, step: int | None = None) -> handle.Run:
  """Opens a run, to look at and to sample from.

  Args:
    workdir: Folder of the run, local or gs://.
    step: Step of the policy's checkpoint; None: the last one.

  Raises:
    FileNotFoundError: The folder has no run.
    ValueError: The run's config is damaged.
  """
  _prepare()
  from grpo_jax import handle  # To look at a run, which training does not.

  folder = files.parse(workdir)
  opener = functools.partial(checkpointed.opened, workdir=folder, step=step)
  return handle.Run(workdir_lib.settings(folder), folder, opener)


def load_checkpoint(config: typed.Config, checkpoint: str) -> handle.Run:
  """Opens a Hugging Face checkpoint, to evaluate and to sample from.

  Args:
    config: Data, rewards, lengths and adapters, as a run that starts from the
      checkpoint would have them (configs/checkpoint.py).
    checkpoint: Folder, name on the hub, or GGUF file.

  Raises:
    ValueError: The config is at fault.
  """
  config = config.copy_and_resolve_references()
  config.model.checkpoint = checkpoint
  settings = config_lib.resolve(config)
  if settings.start_workdir:
    raise ValueError(
      f"config.start_workdir={settings.start_workdir!r} is another policy than"
      f" the checkpoint {checkpoint!r}; name one of them."
    )
  _prepare()
  from grpo_jax import handle

  opener = functools.partial(checkpointed.opened_checkpoint, config=settings)
  return handle.Run(settings, None, opener)
