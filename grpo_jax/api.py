"""What a notebook or a script calls: configs, training, runs.

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
from typing import Any

import jax
from ml_collections import config_dict

from grpo_jax import handle
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides, typed
from grpo_jax.training import loop
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.runtime import compilation, files, hosts, terminal

# Folders of runs that have none of their own; removed with the process.
_FOLDERS: list[tempfile.TemporaryDirectory] = []


def config(
  name: str | os.PathLike, algorithm: Any = None, **settings: Any
) -> typed.Config:
  """A config of a file, with some settings changed.

      config("quickstart", "gspo", **{"rl.steps": 50, "seed": 1})
      config("jsonl", data=[{"prompt": "1 + 1 =", "answer": "2"}])

  More are changed by assignment, `config.rl.steps = 100`. There a name that no
  setting has is an AttributeError; a new phase, as `phase_config` makes it, is
  added `with config.unlocked()`.

  Args:
    name: Of a file in configs/, as "quickstart" or "recipes/dapo"; or the path
      of another one, which ends in ".py".
    algorithm: What the file's `get_config` takes: an algorithm, or a model for
      a recipe; None: its default.
    **settings: By their names; those with dots as `**{"rl.steps": 50}`. `data`
      may be the records themselves: a list of dictionaries, a data set of
      Hugging Face's `datasets`, or a dictionary of both parts, "train" and
      "test". Columns beside those of a record are among its extras, which
      reward functions read. The run keeps a copy.

  Raises:
    FileNotFoundError: There is no such file.
    KeyError: There is no such setting, or it is a group of them; the message
      has the nearest one.
    TypeError: A value is of another kind.
    ValueError: The file makes no config, or `settings` has the algorithm.
  """
  arguments = () if algorithm is None else (algorithm,)
  found = overrides.load(str(overrides.find(name)), *arguments)
  overrides.apply(found, overrides.with_rows(settings))
  overrides.lock(found)
  return found


def _prepare() -> None:
  """What the commands do before anything else, where nobody has done it."""
  compilation.use()
  root = logging.getLogger()
  # Libraries configure it when they are imported. What a person has chosen
  # stays.
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
  """Runs the phases of a config, or what is left of them.

  Compiled programs are kept for the next process (`program_cache.use`). Ctrl-C,
  or interrupting the kernel, finishes the step and saves; a second one
  is a KeyboardInterrupt. The same call continues: of a run without a folder of
  its own `train(config, run.workdir)`.

  Args:
    config: From `config`, or another one with its settings.
    workdir: Folder of the run, local or gs://; an unfinished run in it is
      continued. None: a temporary folder, which is removed when the process
      ends.

  Returns:
    The run, to look at and to sample from. Its `result` is None if it was
    stopped.

  Raises:
    KeyError, TypeError, ValueError: The config, data, checkpoint or a verifier
      is at fault, or another process trains in `workdir`; nothing that was
      written is lost.
    FloatingPointError: The loss or gradient is not finite.
  """
  if not isinstance(config, config_dict.ConfigDict):
    raise TypeError(
      f"train: config={config!r:.80} ({type(config).__name__}); needed are"
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
  """A run, to look at and to sample from.

  Args:
    workdir: Folder of the run, local or gs://.
    step: Checkpoint of the policy; None: the last one.

  Raises:
    FileNotFoundError: There is no run.
    ValueError: Its config is damaged.
  """
  _prepare()
  folder = files.parse(workdir)
  opened = functools.partial(checkpointed.opened, workdir=folder, step=step)
  return handle.Run(workdir_lib.settings(folder), folder, opened)


def load_checkpoint(config: typed.Config, checkpoint: str) -> handle.Run:
  """A Hugging Face checkpoint, to evaluate and to sample from.

  Args:
    config: Data, rewards and lengths, as a run from that checkpoint would have
      them (configs/checkpoint.py); adapters too.
    checkpoint: Folder, or name on the hub.

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
  opened = functools.partial(checkpointed.opened_checkpoint, config=settings)
  return handle.Run(settings, None, opened)
