"""Shared parts of the launchers: command line, code archive, commands."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from experiments.pods import chips, meshes

# Generation -> software of the VM. The first three are not of `chips`, whose
# generations can be compiled for.
# Source: https://cloud.google.com/tpu/docs/runtimes, read 2026-11.
_RUNTIMES = {
  "v2": "tpu-ubuntu2204-base",
  "v3": "tpu-ubuntu2204-base",
  "v4": "tpu-ubuntu2204-base",
  "v5e": "v2-alpha-tpuv5-lite",
  "v5p": "v2-alpha-tpuv5",
  "v6e": "v2-alpha-tpuv6e",
}
# XPK says that longer ones may not fit into the names it makes of them
# (xpk 1.16.0, commands/workload.py).
_MAX_NAME = 28
# seconds; for what a command is to print. A connection that hangs gives none.
_PATIENCE_S = 600

Command = Sequence[str]


class CommandError(Exception):
  """Error of a command; its output was shown, unless it is in `stderr`."""

  def __init__(self, command: Command, status: int, stderr: str = ""):
    said = f": {stderr.strip()}" if stderr.strip() else ""
    super().__init__(f"exit status {status} of {shlex.join(command)}{said}")
    self.stderr = stderr


def define(values: flags.FlagValues) -> None:
  """Defines the flags of all launchers."""
  # Not flags.FLAGS: the names are those of experiments.train too.
  define_string, define_bool = (
    functools.partial(define_flag, flag_values=values)
    for define_flag in (flags.DEFINE_string, flags.DEFINE_bool)
  )
  define_string("name", None, "Name of the run; the resources carry it.")
  define_string("topology", None, "TPUs, such as v5e-16 or v5p-128.")
  flags.DEFINE_alias("accelerator", "topology", flag_values=values)
  define_string(
    "mesh", "", "Axes, as fsdp:16,tensor:4, instead of those of config.mesh."
  )
  define_bool("spot", False, "Spot capacity: cheaper, and may be taken away.")
  define_string("workdir", None, "Folder of the run, gs://BUCKET/PATH.")
  define_string("config", None, "As of experiments.train.")
  define_string("extras", "tpu,gcs", "Of setup.py, to install.")
  flags.DEFINE_multi_string(
    "env",
    [],
    "NAME or NAME=SECRET: a variable of experiments.train, whose value is that"
    " secret of the Secret Manager; the secret is made of the variable here"
    " unless it is there.",
    flag_values=values,
  )
  define_string(
    "project", None, "Of Google Cloud; its Secret Manager has what --env names."
  )
  define_bool("allow_dirty", False, "Send changes that are not committed.")
  define_bool("dry_run", False, "Print the commands instead of running them.")
  define_bool("follow", False, "Show what is added to the log.")
  define_bool(
    "wait",
    False,
    "After `run`, wait for the end of the job; then the exit status is 2 if it"
    " has failed.",
  )


def run(
  argv: Sequence[str],
  values: flags.FlagValues,
  actions: Mapping[str, tuple[Callable, Sequence[str]]],
  about: str | None,
) -> int:
  """Runs the action that a command line names.

  Args:
    argv: The program, an action, flags, and after `--` the arguments for
      experiments.train.
    values: The flags that are defined.
    actions: For each name a function of `values` and of the arguments for
      experiments.train, which returns the commands to run, and the flags that
      it needs.
    about: Text that --help prints before the flags.

  Returns:
    The exit status: 2 after a mistake or a command that failed.
  """
  if "--help" in itertools.takewhile("--".__ne__, argv):
    print(f"{about}\n{values.get_help()}")
    return 0
  try:
    action, arguments = _parse(argv, values, actions)
    function, needed = actions[action]
    _check(values, action, needed)
    for command in function(values, arguments):
      execute([command], values.dry_run)
    return 0
  except KeyboardInterrupt:
    print("\nstopped here; nothing was stopped elsewhere.", file=sys.stderr)
    return 130
  except (ValueError, FileNotFoundError, CommandError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2


def _parse(
  argv: Sequence[str], values: flags.FlagValues, actions: Mapping
) -> tuple[str, list[str]]:
  argv = list(argv)
  end = argv.index("--") if "--" in argv else len(argv)
  arguments = argv[end + 1 :]
  if any("\n" in argument for argument in arguments):
    raise ValueError(f"received a line break in {arguments}; leave it out.")
  try:
    _, *words = values(argv[:end])
  except flags.Error as error:
    raise ValueError(
      f"{error} (What is meant for experiments.train comes after `--`.)"
    ) from error
  if len(words) != 1 or words[0] not in actions:
    raise ValueError(
      f"received the action {' '.join(words)!r}; needs one of"
      f" {', '.join(actions)}."
    )
  return words[0], arguments


def _check(
  values: flags.FlagValues, action: str, needed: Sequence[str]
) -> None:
  """Raises ValueError if a flag is missing or has a value that cannot work."""
  for flag in needed:
    if not values[flag].value:
      raise ValueError(
        f"--{flag} is missing, and {action} needs it: {values[flag].help}"
      )
  if "name" in needed:
    _check_name(values.name)
  if "topology" in needed:
    parse_topology(values.topology)
  meshes.parse(values.mesh)
  if secrets(values) and not values.project:
    raise ValueError(
      f"--env={','.join(values.env)}: --project is missing, whose Secret"
      " Manager has the values."
    )
  if "config" in needed:
    values.config = _config_file(values.config)


def _config_file(config: str) -> str:
  """FILE or FILE:ARGUMENT of a config in the folder that is sent."""
  name, colon, argument = config.partition(":")
  path = pathlib.Path(name)
  if not path.is_file() and not name.endswith(".py"):
    path = pathlib.Path("configs") / f"{name.removeprefix('configs/')}.py"
  if not path.is_file():
    raise FileNotFoundError(
      f"--config={config}: there is no file {path} here; run this from the root"
      " of the repository."
    )
  return f"{path}{colon}{argument}"


def _check_name(name: str) -> None:
  fits = re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
  if not fits or len(name) > _MAX_NAME:
    raise ValueError(
      f"--name={name}: needs up to {_MAX_NAME} lower-case letters, digits"
      " and hyphens, a letter first and no hyphen last."
    )


def check_shared(workdir: str) -> None:
  """Raises ValueError unless a workdir is in a bucket."""
  if not re.fullmatch(r"gs://[a-z0-9][-a-z0-9_.]*[a-z0-9](/.*)?", workdir):
    raise ValueError(
      f"--workdir={workdir}: needs gs://BUCKET/PATH. The workers share the"
      " checkpoints, and a VM that is taken away takes its disk with it."
    )


@dataclasses.dataclass(frozen=True)
class Topology:
  """TPUs that a name stands for.

  Attributes:
    generation: Name of the generation, such as `v5e`.
    product: Name in Google Cloud, such as `v5litepod-16`.
    num_devices: Number of devices of a slice, as JAX counts them.
  """

  generation: str
  product: str
  num_devices: int


def parse_topology(name: str) -> Topology:
  """Parses the name of TPUs: v5e-16, v5litepod-16 or v5e:4x4.

  Raises:
    ValueError: TPUs of that name or size do not exist.
  """
  old = re.fullmatch(r"(v[23])-(8|16|32|64|128|256|512|1024|2048)", name)
  if old:
    return Topology(old[1], name, int(old[2]))
  try:
    found = chips.parse(name)
  except ValueError as error:
    raise ValueError(f"--topology={name}: {error}") from error
  num_devices = found.num_chips * found.chip.devices_per_chip
  return Topology(found.chip.name, found.product, num_devices)


def runtime(topology: str) -> str:
  """Returns the software version with which VMs of a topology start.

  Raises:
    ValueError: The topology has no VMs, only nodes of GKE.
  """
  generation = parse_topology(topology).generation
  if generation not in _RUNTIMES:
    raise ValueError(
      f"--topology={topology}: TPU VMs are of {', '.join(_RUNTIMES)};"
      f" {generation} is to be had on GKE, through experiments.launch.xpk."
    )
  return _RUNTIMES[generation]


def num_slices(values: flags.FlagValues) -> int:
  """Number of slices of a run; one if the launcher has no such flag."""
  return values.slices if "slices" in values else 1


def secrets(values: flags.FlagValues) -> dict[str, str]:
  """Variable -> name of the secret, from --env.

  Raises:
    ValueError: A value is neither NAME nor NAME=SECRET.
  """
  found = {}
  for given in values.env:
    name, _, secret = given.partition("=")
    secret = secret or name
    fits = re.fullmatch(r"[A-Za-z_]\w*", name)
    if not fits or not re.fullmatch(r"[\w-]{1,255}", secret):
      raise ValueError(
        f"--env={name}: needs NAME, or NAME=SECRET with the name of a"
        " secret of the Secret Manager (letters, digits, _ and -)."
      )
    if secret.startswith(("hf_", "sk-")) or secret == os.environ.get(name):
      raise ValueError(
        f"--env={name}=…: that looks like the value itself, and command lines"
        f" are seen by others; pass --env={name}, with {name} set in the"
        " environment."
      )
    found[name] = secret
  return found


def secret_commands(project: str, secret: str) -> tuple[Command, Command]:
  """Commands that look a secret up, and make it from their standard input."""
  start = ["gcloud", "secrets"]
  where = [secret, f"--project={project}"]
  return (
    [*start, "describe", *where, "--format=value(name)"],
    [
      *(*start, "create", *where),
      *("--replication-policy=automatic", "--data-file=-"),
    ],
  )


def train_arguments(
  values: flags.FlagValues, arguments: Sequence[str]
) -> list[str]:
  """The arguments of experiments.train."""
  return [
    f"--config={values.config}",
    f"--workdir={values.workdir}",
    *meshes.arguments(values.mesh),
    *arguments,
  ]


class Code:
  """Commit to send, as a file in .cache/launch.

  Attributes:
    commit: The commit; with --allow_dirty it holds the changes too.
    folder: Folder that `unpack` makes, for tools that take a folder.
  """

  def __init__(self, allow_dirty: bool):
    changes = capture(["git", "status", "--porcelain"])
    if changes and not allow_dirty:
      raise ValueError(
        "there are changes that are not committed, so that nobody could tell"
        " later what ran; commit them, or pass --allow_dirty (new files stay"
        f" here unless they are added):\n{changes.rstrip()}"
      )
    # A commit of what is changed, on no branch; nothing if nothing is.
    self.commit = (
      capture(["git", "stash", "create"]).strip()
      or capture(["git", "rev-parse", "HEAD"]).strip()
    )
    self.folder = pathlib.Path(".cache/launch") / f"grpo_jax-{self.commit[:12]}"

  def unpack(self) -> list[Command]:
    archive = self.folder.with_suffix(".tar.gz")
    output = f"--output={archive}"
    return [
      ["mkdir", "-p", str(archive.parent)],
      ["git", "archive", "--format=tar.gz", output, self.commit],
      ["mkdir", "-p", str(self.folder)],
      ["tar", "-xzf", str(archive), "-C", str(self.folder)],
    ]


def say(message: str) -> None:
  """Prints an event with its time."""
  now = datetime.datetime.now(datetime.UTC)
  print(f"{now:%Y-%m-%dT%H:%M:%SZ} {message}", flush=True)


def execute(commands: Sequence[Command], dry_run: bool = False) -> None:
  """Runs commands one after another, or prints them."""
  for command in commands:
    if dry_run:
      print(shlex.join(command))
      continue
    say(f"$ {shlex.join(command)}")
    _find(command[0])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
      raise CommandError(command, done.returncode)


def capture(command: Command, given: str = "") -> str:
  """Runs a command and returns its output.

  Args:
    command: The command.
    given: Text for its standard input.

  Raises:
    CommandError: The command failed, or did not end.
    FileNotFoundError: The program is not installed.
  """
  _find(command[0])
  try:
    done = subprocess.run(
      command,
      input=given,
      capture_output=True,
      text=True,
      timeout=_PATIENCE_S,
      check=False,
    )
  except subprocess.TimeoutExpired as error:
    # 124: as the program `timeout` has it.
    raise CommandError(command, 124, f"no end in {_PATIENCE_S} s") from error
  if done.returncode:
    raise CommandError(command, done.returncode, done.stderr)
  return done.stdout


def _find(program: str) -> None:
  if shutil.which(program) is None:
    raise FileNotFoundError(
      f"{program} is not installed, or not on PATH; docs/cloud.md says how to"
      " get it."
    )
