"""What the launchers have in common: command line, code archive, commands."""

from __future__ import annotations

import datetime
import itertools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import flags

# Of the launcher itself: 0, 1 and 2 are those of experiments.train.
GAVE_UP = 3

# Prefix of an accelerator type -> software of the VM.
# Source: https://cloud.google.com/tpu/docs/runtimes, read 2026-11.
_RUNTIMES = {
  "v6e": "v2-alpha-tpuv6e",
  "v5p": "v2-alpha-tpuv5",
  "v5litepod": "v2-alpha-tpuv5-lite",
  "v4": "tpu-ubuntu2204-base",
  "v3": "tpu-ubuntu2204-base",
  "v2": "tpu-ubuntu2204-base",
}
# Up to 8 chips (v5litepod, v6e) or 8 cores (the others) are one VM.
# Source: https://cloud.google.com/tpu/docs/v5e and its neighbours.
_MAX_ON_ONE_VM = 8
# XPK says that longer ones may not fit into the names it makes of them
# (xpk 1.16.0, commands/workload.py).
_MAX_NAME = 28
# seconds; for what a command is to print. A connection that hangs gives none.
_PATIENCE_S = 600

Command = Sequence[str]


class CommandError(Exception):
  """A command failed; what it printed was shown, unless it is in `stderr`."""

  def __init__(self, command: Command, status: int, stderr: str = ""):
    said = f": {stderr.strip()}" if stderr.strip() else ""
    super().__init__(f"exit status {status} of {shlex.join(command)}{said}")
    self.stderr = stderr


def define(values: flags.FlagValues) -> None:
  """Defines the flags of all launchers."""
  # Not flags.FLAGS: the names are those of experiments.train too.
  define_string = _definer(flags.DEFINE_string, values)
  define_bool = _definer(flags.DEFINE_bool, values)
  define_string("name", None, "Name of the run; the resources carry it.")
  define_string("accelerator", None, "Type and size, such as v5litepod-16.")
  define_bool("spot", False, "Spot capacity: cheaper, and may be taken away.")
  define_string("workdir", None, "Folder of the run, gs://BUCKET/PATH.")
  define_string("config", None, "As of experiments.train.")
  define_string("extras", "tpu,gcs", "Of setup.py, to install.")
  define_bool("allow_dirty", False, "Send changes that are not committed.")
  define_bool("dry_run", False, "Print the commands instead of running them.")


def define_place(values: flags.FlagValues) -> None:
  """Defines the flags of launchers that are told where to run."""
  define_string = _definer(flags.DEFINE_string, values)
  define_string("project", None, "Google Cloud project.")
  define_string("zone", None, "Zone, such as us-central1-a.")
  flags.DEFINE_integer(
    "slices", 1, "Slices of --accelerator.", 1, flag_values=values
  )
  flags.DEFINE_integer(
    "max_restarts", 20, "Restarts before giving up.", 0, flag_values=values
  )


def define_logs(values: flags.FlagValues) -> None:
  """Defines the flags of the action `logs`."""
  flags.DEFINE_integer("lines", 100, "Of the log.", 1, flag_values=values)
  _definer(flags.DEFINE_bool, values)(
    "follow", False, "Show what is added to the log."
  )


def _definer(define_flag, values: flags.FlagValues) -> Callable[..., None]:
  def call(name, default, text):
    define_flag(name, default, text, flag_values=values)

  return call


def run(
  argv: Sequence[str],
  values: flags.FlagValues,
  actions: Mapping[str, tuple[Callable, Sequence[str]]],
  about: str | None,
) -> int:
  """Runs the action that a command line names.

  Args:
    argv: The program, an action, flags, and after `--` what is passed on to
      experiments.train.
    values: The flags that are defined.
    actions: For each name a function of `values` and of the arguments for
      experiments.train, and the flags that it needs.
    about: What --help prints before the flags.

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
    return function(values, arguments)
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
      f"received the action {' '.join(words)!r}; needed is one of"
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
  if "accelerator" in needed:
    _split(values.accelerator)
  if "config" in needed:
    path = values.config.partition(":")[0]
    if not pathlib.Path(path).is_file():
      raise FileNotFoundError(
        f"--config={values.config}: there is no file {path} here; run this from"
        " the root of the repository."
      )


def _check_name(name: str) -> None:
  fits = re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
  if not fits or len(name) > _MAX_NAME:
    raise ValueError(
      f"--name={name}: needed are up to {_MAX_NAME} lower-case letters, digits"
      " and hyphens, a letter first and no hyphen last."
    )


def check_shared(workdir: str) -> None:
  """Raises ValueError unless a workdir is in a bucket."""
  if not re.fullmatch(r"gs://[a-z0-9][-a-z0-9_.]*[a-z0-9](/.*)?", workdir):
    raise ValueError(
      f"--workdir={workdir}: needed is gs://BUCKET/PATH. The workers share the"
      " checkpoints, and a VM that is taken away takes its disk with it."
    )


def _split(accelerator: str) -> tuple[str, int]:
  """Generation and size of an accelerator type."""
  match = re.fullmatch(r"([a-z0-9]+)-(\d+)", accelerator)
  if not match or match[1] not in _RUNTIMES:
    raise ValueError(
      f"--accelerator={accelerator}: needed is TYPE-SIZE, such as"
      f" v5litepod-16; types: {', '.join(_RUNTIMES)}."
    )
  return match[1], int(match[2])


def runtime(accelerator: str) -> str:
  """The software version that VMs of an accelerator type are started with."""
  return _RUNTIMES[_split(accelerator)[0]]


def several_workers(accelerator: str, slices: int = 1) -> bool:
  return slices > 1 or _split(accelerator)[1] > _MAX_ON_ONE_VM


def train_arguments(
  values: flags.FlagValues, arguments: Sequence[str]
) -> list[str]:
  """The arguments of experiments.train."""
  return [
    f"--config={values.config}",
    f"--workdir={values.workdir}",
    *arguments,
  ]


class Code:
  """The commit that is sent, as a file in .cache/launch.

  Attributes:
    commit: The commit; with --allow_dirty one that holds the changes too.
    archive: Where `pack` writes it.
    folder: Where `unpack` unpacks it, for tools that take a folder.
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
    stem = pathlib.Path(".cache/launch") / f"grpo_jax-{self.commit[:12]}"
    self.archive = stem.with_suffix(".tar.gz")
    self.folder = stem

  def pack(self) -> list[Command]:
    return [
      ["mkdir", "-p", str(self.archive.parent)],
      [
        "git",
        "archive",
        "--format=tar.gz",
        f"--output={self.archive}",
        self.commit,
      ],
    ]

  def unpack(self) -> list[Command]:
    return [
      *self.pack(),
      ["mkdir", "-p", str(self.folder)],
      ["tar", "-xzf", str(self.archive), "-C", str(self.folder)],
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


def capture(command: Command) -> str:
  """Runs a command and returns what it printed."""
  _find(command[0])
  try:
    done = subprocess.run(
      command,
      stdin=subprocess.DEVNULL,
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
