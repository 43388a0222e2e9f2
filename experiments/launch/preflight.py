"""Checks of a run before a launcher asks the cloud for anything.

A mistake that shows when the machines are there costs money and an hour. So
this module makes the parts of the run as experiments.train makes them there,
for a mesh of the requested chips. It reports what the machines will lack:
extras of setup.py, credentials, a token. Records of text, weights, verifiers,
sessions and services may be on the machines alone, and are not checked here.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

import jax
from absl import flags

from experiments.launch import job, with_secrets
from experiments.pods import meshes, steps
from grpo_jax.cli import flags as flags_lib
from grpo_jax.configs.recipes import models as published
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import environment as environment_lib
from grpo_jax.settings import overrides
from grpo_jax.training import run as run_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import served, sessions, tokens
from grpo_jax.training.runtime import sharding

# Owners and families on the Hugging Face hub whose checkpoints are handed out
# to those who have accepted a license.
_GATED = ("meta-llama/", "google/gemma", "mistralai/", "CohereLabs/")
_TOKEN = "HF_TOKEN"
# Settings of weights that no program reads from a bucket.
_FOLDERS = ("model.checkpoint", "model.adapter_checkpoint")
# Beginning of an import path -> the extra that installs it.
_OF_ENVIRONMENT = {
  "verifiers:": "verifiers",
  "grpo_jax.rewards.agents.tools:": "tools",
  "grpo_jax.rewards.agents.coding:": "tools",
  "grpo_jax.rewards.agents.harbor:": "tools",
  "grpo_jax.rewards.agents.python_session:": "tools",
  "grpo_jax.rewards.agents.games:": "games",
  "grpo_jax.rewards.agents.openenv:": "openenv",
}
# Each of these has the tokenizers of text.
_WITH_TOKENIZERS = {
  *("hf", "math", "code", "serve", "verifiers", "tools", "vision", "test"),
  "openenv",
  "dev",
}


def check(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Checks for mistakes that would show later.

  Args:
    values: The flags of a launcher.
    arguments: Arguments for experiments.train, beside the config and the
      workdir.

  Returns:
    Sentences about settings that may be mistakes.

  Raises:
    ValueError: A setting is a mistake; the message says what to do.
  """
  config = resolved(job.train_arguments(values, arguments))
  pod = job.parse_topology(values.topology)
  num_slices = job.num_slices(values)
  mesh = meshes.whole(config.mesh, pod.num_devices * num_slices, num_slices)
  _check_extras(values.extras, needed_extras(config, values.workdir))
  _check_token(config, job.secrets(values))
  _check_folders(config)
  notes = _local_files(config) + check_parts(config, mesh)
  if problem := _no_credentials(values):
    if not values.dry_run:
      raise ValueError(problem)
    notes.append(f"without --dry_run this would be refused: {problem}")
  return notes


def code_of(values: flags.FlagValues, arguments: Sequence[str]) -> job.Code:
  """Checks a run, prints notes, and stores secrets; returns what to send.

  Raises:
    ValueError: A setting is a mistake; the message says what to do.
  """
  job.check_shared(values.workdir)
  notes = check(values, arguments)
  code = job.Code(values.allow_dirty)
  for note in notes:
    print(f"note: {note}", file=sys.stderr)
  store(values)
  return code


def resolved(arguments: Sequence[str]) -> config_lib.RunConfig:
  """Returns the config that experiments.train makes of its command line.

  Raises:
    ValueError: experiments.train would refuse the command line; the message
      is its own.
  """
  values = flags.FlagValues()
  command_line = ["train", *arguments]
  flags_lib.define_config(values, command_line)
  flags_lib.define_processes(values)
  flags.DEFINE_string("workdir", None, "Folder of the run.", flag_values=values)
  try:
    flags_lib.parse(command_line, values)
    return config_lib.resolve(values.config)
  except (KeyError, TypeError, ValueError, ImportError) as error:
    raise _refusal(error) from error


def check_parts(
  config: config_lib.RunConfig, sizes: Mapping[str, int]
) -> list[str]:
  """Makes the parts of a run as experiments.train does, and no array.

  Args:
    config: Settings of the run.
    sizes: Axis of the mesh -> devices.

  Returns:
    Sentences about what could not be checked.

  Raises:
    ValueError: The trainer would refuse the config; the message is its own.
  """
  mesh = jax.sharding.AbstractMesh(
    tuple(sizes[axis] for axis in sharding.AXES),
    sharding.AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(sharding.AXES),
    abstract_device=jax.sharding.AbstractDevice("TPU", None, "tpu"),
  )
  try:
    with (
      published.described(config) as config,
      jax.sharding.use_abstract_mesh(mesh),
    ):
      run_lib.prepare(config, problem_of(config), mesh)
  except OSError as error:
    return [f"the models and phases of this run are not checked here: {error}"]
  except (KeyError, TypeError, ValueError) as error:
    raise _refusal(error) from error
  return []


def _refusal(error: Exception) -> ValueError:
  return ValueError(
    f"experiments.train would refuse this: {overrides.text_of(error)}"
  )


def problem_of(config: config_lib.RunConfig) -> problem_lib.Problem:
  """The problem of a config; for text a description, which has no records."""
  if config.data.is_made_of_ids:
    return problem_lib.make_problem(config, starts=False)
  problem = steps.make_problem(config)
  if not config.data.environment:
    return problem
  if environment_lib.is_served(config.data.environment):
    environment = served.environment(config, problem.tokenizer)
    return dataclasses.replace(problem, host_environment=environment)
  # Settings that only a tokenizer could check are left out.
  plain = {"template": "{prompt}", "chat_options": {}}
  data = dataclasses.replace(config.data, **plain)
  turns = dataclasses.replace(
    config.environment,
    action_ends=(),
    compaction=dataclasses.replace(config.environment.compaction, ends=()),
  )
  return sessions.with_sessions(
    dataclasses.replace(config, data=data, environment=turns),
    problem,
    starts=False,
  )


def needed_extras(config: config_lib.RunConfig, workdir: str) -> set[str]:
  """Extras of setup.py without which a run on TPUs cannot start."""
  data = config.data
  needed = {"tpu"}
  paths = [workdir, *_files(config).values(), *_models(config).values()]
  if any(str(path).startswith("gs://") for path in paths):
    needed.add("gcs")
  if any(is_on_hub(name) for name in _models(config).values()):
    needed.add("hf")
  names = {path.rpartition(":")[2] for path in config.rewards.functions}
  needed |= {
    extra
    for name, extra in (("math_accuracy", "math"), ("code", "code"))
    if name in names
  }
  needed |= {
    extra
    for start, extra in _OF_ENVIRONMENT.items()
    if str(data.environment).startswith(start)
  }
  for has, extra in (
    (data.source == "reasoning_gym", "gym"),
    (config.judge.service.url, "judge"),
    (data.images, "vision"),
    ("wandb" in config.log.trackers, "wandb"),
    ("trackio" in config.log.trackers, "trackio"),
  ):
    if has:
      needed.add(extra)
  if not data.is_made_of_ids and not needed & _WITH_TOKENIZERS:
    needed.add("hf")
  return needed


def is_on_hub(checkpoint: str) -> bool:
  """True for a name, owner/name, of the hub that is not a folder here."""
  named = re.fullmatch(r"[\w.-]+/[\w.-]+", checkpoint)
  return bool(named) and not pathlib.Path(checkpoint).is_dir()


def _check_extras(given: str, needed: set[str]) -> None:
  listed = [name for name in given.split(",") if name]
  missing = needed - {*listed}
  if missing:
    every = ",".join([*listed, *sorted(missing)])
    raise ValueError(
      f"--extras={given}: this run needs {', '.join(sorted(missing))} too, and"
      f" would end when it is started; pass --extras={every}."
    )


def _check_token(
  config: config_lib.RunConfig, secrets: Mapping[str, str]
) -> None:
  for setting, name in _models(config).items():
    if is_on_hub(name) and name.startswith(_GATED) and _TOKEN not in secrets:
      raise ValueError(
        f"config.{setting}={name}: the hub gives it to those alone who have"
        " accepted its license. Accept it there, make a token that may read,"
        f" set {_TOKEN} here and pass --env={_TOKEN}; the value goes to the"
        " Secret Manager and into no command."
      )


def _check_folders(config: config_lib.RunConfig) -> None:
  for setting in _FOLDERS:
    path = getattr(config.model, setting.removeprefix("model."))
    if "://" in path:
      raise ValueError(
        f"config.{setting}={path}: these weights are read from a folder of"
        " each VM, and from no bucket. Copy them to the VMs, as `gcloud storage"
        " cp --recursive` does, and name the copy; a checkpoint may also be a"
        " name on the hub."
      )


def _models(config: config_lib.RunConfig) -> dict[str, str]:
  """Settings that name a checkpoint, in a folder or on the hub."""
  judge = config.judge
  return {
    "model.checkpoint": config.model.checkpoint,
    # A service knows its model itself.
    "judge.model": "" if judge.service.url else judge.model,
  }


def _files(config: config_lib.RunConfig) -> dict[str, str]:
  """Settings that name a file or a folder, without those on the hub."""
  data = config.data
  is_ours = data.is_made_of_ids or data.tokenizer in tokens.OURS
  return {
    "model.adapter_checkpoint": config.model.adapter_checkpoint,
    "data.train_path": data.train_path,
    "data.eval_path": data.eval_path,
    "data.tokenizer": "" if is_ours else data.tokenizer,
    "data.quarantine": data.quarantine,
    "start_workdir": config.start_workdir,
  }


def _local_files(config: config_lib.RunConfig) -> list[str]:
  """Warnings for the files of this machine that the config names."""
  models = _models(config).items()
  named = {name: path for name, path in models if not is_on_hub(path)}
  return [
    f"config.{name}={path} is on this machine; the TPU VMs have it only if it"
    " is part of the commit. Copy it to"
    f" {'each VM' if name in _FOLDERS else 'a bucket, or to each VM'}."
    for name, path in (named | _files(config)).items()
    if path and "://" not in str(path)
  ]


def _no_credentials(values: flags.FlagValues) -> str | None:
  """Reason why gs:// could not be read, or None if it could."""
  if not values.workdir.startswith("gs://"):
    return None
  variable = "GOOGLE_APPLICATION_CREDENTIALS"
  given = os.environ.get(variable)
  if given and not pathlib.Path(given).is_file():
    return (
      f"{variable}={given}: there is no such file; name that of a key, or unset"
      " it."
    )
  folder = os.environ.get("CLOUDSDK_CONFIG", "~/.config/gcloud")
  usual = pathlib.Path(folder, "application_default_credentials.json")
  if given or usual.expanduser().is_file():
    return None
  return (
    f"--workdir={values.workdir}: there are no credentials for gs:// on this"
    " machine; run `gcloud auth application-default login`, or set"
    f" {variable} to the file of a key."
  )


def store(values: flags.FlagValues) -> None:
  """Puts the variables of --env into the Secret Manager, unless they are there.

  The value comes from the environment and goes to the standard input of gcloud:
  it is in no command line, no file, no log and no metadata of a machine.

  Raises:
    ValueError: A secret is not there, and neither is its value.
  """
  for name, secret in job.secrets(values).items():
    described, created = job.secret_commands(values.project, secret)
    if values.dry_run:
      print(
        f"# The secret {secret}, unless it is there; {name} of this environment"
        " goes to the standard input:"
      )
      job.execute([described, created], dry_run=True)
      continue
    try:
      job.capture(described)
    except job.CommandError as error:
      if "NOT_FOUND" not in error.stderr:
        raise
    else:
      continue
    if not os.environ.get(name):
      raise ValueError(
        f"--env={name}: the Secret Manager of {values.project} has no secret"
        f" {secret}, and {name} is not set here; set it for this command once."
      )
    job.say(f"$ {' '.join(created)} < the value of {name}")
    job.capture(created, os.environ[name])


def command(
  python: str, values: flags.FlagValues, arguments: Sequence[str]
) -> list[str]:
  """Command of a worker, with the secrets of --env in its environment."""
  train = [
    *(python, "-m", "experiments.train"),
    *job.train_arguments(values, arguments),
  ]
  secrets = job.secrets(values)
  if not secrets:
    return train
  return [
    *(python, "-m", "experiments.launch.with_secrets"),
    with_secrets.spelled(values.project, secrets),
    *train,
  ]
