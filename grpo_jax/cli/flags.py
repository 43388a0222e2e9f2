"""Command lines of all programs: flags in, clear errors out.

JAX, and what needs it, is imported when a command line has been read, so that
`--help` answers at once.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import os
import pathlib
import re
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_dict, config_flags
from ml_collections.config_flags import config_flags as parsers

from grpo_jax.settings import overrides
from grpo_jax.training.runtime import files, terminal

# What a bad config, data set or checkpoint raises; anything else is a defect
# of ours and keeps its traceback.
USER_ERRORS = (
  KeyError,
  TypeError,
  ValueError,
  OSError,
  FloatingPointError,
  ImportError,
)
_INTERRUPTED = 130  # As a shell has it.
_NO_READER = 141  # Likewise, of SIGPIPE.
# Platform -> what JAX needs for it, and the extra that installs it.
_PLUGINS = {
  "tpu": ("libtpu", "tpu"),
  "cuda": ("jax_cuda13_plugin", "gpu"),
  "gpu": ("jax_cuda13_plugin", "gpu"),
}
_PARSERS: dict[type, tuple[Any, str]] = {
  int: (flags.IntegerParser(), "a whole number"),
  float: (flags.FloatParser(), "a number"),
  bool: (flags.BooleanParser(), "true or false"),
}


def define_config(
  flag_values: flags.FlagValues = flags.FLAGS, argv: Sequence[str] | None = None
) -> flags.FlagHolder:
  """Defines --config=FILE[:ARGUMENT] and its --config.key=value overrides.

  `parse` finds the file: FILE is a path, or the name of a config that comes
  with the library.

  Args:
    argv: Command line with the overrides; None: `sys.argv`.
  """
  if flag_values is flags.FLAGS and "config" in flag_values:
    # By a program that this one, or a test of both, has imported.
    return flags.FlagHolder(flag_values, flag_values["config"])
  holder = config_flags.DEFINE_config_file(
    "config",
    None,
    "Config file with get_config(), or the name of one that comes with the"
    " library; optionally with an argument: quickstart:gspo.",
    flag_values=flag_values,
    sys_argv=argv,
  )
  flag_values["config"].parser = _Parser(argv)
  return holder


class _Parser(parsers.ConfigFileFlagParser):
  """Reads a config file; groups have the settings that the overrides ask for.

  ml_collections looks for all settings before it changes one.
  """

  def __init__(self, argv: Sequence[str] | None):
    super().__init__("config")
    self._argv = argv

  def parse(self, path: str) -> Any:
    """Reads the file."""
    config = super().parse(path)
    _set_switches(config, sys.argv if self._argv is None else self._argv)
    return config


def _set_switches(config: Any, argv: Sequence[str]) -> None:
  """Sets the settings that say which others their groups have."""
  for argument, following in itertools.zip_longest(argv, argv[1:]):
    match = re.match(r"--?config\.([\w.]+)(?:=(.*))?$", argument, re.DOTALL)
    if match is None or not overrides.is_switch(config, match[1]):
      continue
    where, _, last = match[1].rpartition(".")
    group = overrides.at(config, where)
    kind = group.get_type(last)
    with contextlib.suppress(TypeError, ValueError):  # The flag complains.
      text = following if match[2] is None else match[2]
      group[last] = (text,) if kind is tuple else kind(text)


def define_processes(
  values: flags.FlagValues, several_processes: bool = True
) -> None:
  """Defines --debug, and the flags by which several processes meet."""
  flags.DEFINE_bool(
    "debug", False, "Show the traceback of an error.", flag_values=values
  )
  if not several_processes:
    return
  flags.DEFINE_string(
    "coordinator",
    None,
    "host:port of process 0, where the processes of the run meet.",
    flag_values=values,
  )
  for name, text in (
    ("num_processes", "Processes of the run."),
    ("process_id", "Number of this one, from 0."),
  ):
    flags.DEFINE_integer(name, None, text, flag_values=values)


def file_to_write(
  name: str, value: str | None, is_ours: bool = True
) -> files.Path | None:
  """Returns the file of a flag, checked before any work; None without one.

  Args:
    is_ours: False in a process that does not write the file.

  Raises:
    FileNotFoundError: The file could not be written.
  """
  if not value:
    return None
  out = files.parse(value)
  if is_ours and not files.is_remote(out) and not out.parent.is_dir():
    raise FileNotFoundError(
      f"--{name}={out}: there is no folder {out.parent}; make it first."
    )
  return out


def run(
  main: Callable[[Sequence[str]], int],
  several_processes: bool = False,
  needs_config: bool = True,
  takes_arguments: bool = False,
) -> None:
  """Runs `main` with parsed flags; shows a user's error as one message.

  Exit status: that of `main`, or 2 after a bad command line, config, data
  set or checkpoint; 75 if another process of the run was lost; 130 after
  Ctrl-C; 141 if the reader of its output has gone.

  Args:
    several_processes: Whether several processes may work together, started with
      --coordinator, --num_processes and --process_id, or as JAX detects them.
    needs_config: Whether --config has to be given, if it is a flag.
    takes_arguments: Whether it takes arguments beside its flags.
  """

  def parser(argv: Sequence[str]) -> list[str]:
    try:
      return parse(
        argv, needs_config=needs_config, takes_arguments=takes_arguments
      )
    except ValueError as error:
      if "--debug" in argv:
        raise
      _leave(str(error))

  def guarded(argv: Sequence[str]) -> int:
    from grpo_jax.training.runtime import compilation, hosts

    logging.set_verbosity(logging.WARNING)  # Libraries chat at INFO.
    terminal.take_over_logging()
    compilation.use()
    values = flags.FLAGS
    try:
      if several_processes:
        hosts.start(values.coordinator, values.num_processes, values.process_id)
      return main(argv)
    except Exception as error:
      if isinstance(error, BrokenPipeError) and _nobody_reads():
        # Buffered output is dropped, so that it raises no error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        hosts.leave(_NO_READER)
      if (no_device := _device_problem(error)) and not values.debug:
        print(wrapped(f"error: {no_device}"), file=sys.stderr)
        # A label, and a regular exit, would ask for devices again.
        hosts.exit_now(2)
      user_error = isinstance(error, USER_ERRORS)
      if values.debug or not user_error:
        if not _is_one_of_several():
          raise
        # At a regular exit this process would wait for the others.
        print(f"{hosts.label()}error:", file=sys.stderr)
        traceback.print_exc()
        hosts.leave(2 if user_error else 1)
      _leave(f"{overrides.text_of(error)}\n(--debug shows the traceback.)")

  program = sys.modules[main.__module__]
  # absl's --help prints the text and the flags of the module that was started.
  sys.modules["__main__"].__doc__ = program.__doc__
  for flag in flags.FLAGS.get_key_flags_for_module(program.__name__):
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
  if os.getcwd() not in sys.path:  # A config may name a reward there.
    sys.path.append(os.getcwd())
  define_processes(flags.FLAGS, several_processes)
  try:
    app.run(guarded, flags_parser=parser)
  except KeyboardInterrupt:
    _leave("stopped by Ctrl-C.", status=_INTERRUPTED)


def _is_one_of_several() -> bool:
  """True for a process of a run of several; those have imported JAX."""
  jax = sys.modules.get("jax")
  return jax is not None and jax.distributed.is_initialized()


def _nobody_reads() -> bool:
  """True if the output is a pipe that its reader, such as `head`, has closed.

  Pipes to workers break too, and those are errors.
  """
  output = select.poll()
  output.register(sys.stdout.fileno(), 0)
  return any(event & select.POLLERR for _, event in output.poll(0))


def existing_folder(flag: flags.FlagHolder[str]) -> pathlib.Path:
  """Returns the folder that a flag names.

  Raises:
    FileNotFoundError: The folder does not exist.
  """
  folder = pathlib.Path(flag.value)
  if not folder.is_dir():
    raise FileNotFoundError(
      f"--{flag.name}={flag.value}: there is no such folder. Start from the"
      " root of the repository, or make the folder first."
    )
  return folder


def _device_problem(error: Exception) -> str | None:
  """Advice for an error about missing devices; None for any other error."""
  import jax

  names = jax.config.jax_platforms  # type: ignore[attr-defined]
  match = re.match(r"Unable to initialize backend '(\w+)': (.*)", str(error))
  if match:
    platform, reason = match[1], match[2].partition(" (set JAX")[0]
  elif (
    names and traceback.extract_tb(error.__traceback__)[-1].name == "backends"
  ):
    platform, reason = names, "JAX has found none"  # It says no more.
  else:
    return None
  package, extra = _PLUGINS.get(platform, ("", ""))
  advice = "Otherwise "
  if package and importlib.util.find_spec(package):
    advice = f"{package} is installed: start it on a machine that has one, or "
  elif package:
    advice = f"{package} is missing: pip install 'grpo_jax[{extra}]', or "
  return (
    f"JAX_PLATFORMS={names or ''}: there is no {platform} device here"
    f" ({reason.rstrip('.')}). {advice}set JAX_PLATFORMS=cpu to use the CPU."
  )


def parse(
  argv: Sequence[str],
  flag_values: flags.FlagValues = flags.FLAGS,
  needs_config: bool = True,
  takes_arguments: bool = False,
) -> list[str]:
  """Parses a command line; returns the name of the program, and its arguments.

  Args:
    argv: `sys.argv`, or the argument of `define_config`; ml_collections reads
      the overrides there.
    needs_config: Whether --config has to be given, if it is a flag.
    takes_arguments: Whether there may be others than flags.

  Raises:
    ValueError: The command line is wrong; the message has the value received,
      the known values and what to do.
  """
  mistake = None
  groups = _groups(argv)
  if isinstance(argv, list):  # ml_collections reads this very list.
    argv[:] = [x for x in _last_ones(argv) if x not in groups]
  try:
    arguments = flag_values(_with_files(argv))  # --help leaves here.
  except Exception as error:  # Of any kind: a config is the user's program.
    mistake = error
  has_config = "config" in flag_values and (needs_config or _configs(argv))
  if has_config and (problem := _config_problem(argv)):
    raise ValueError(problem) from mistake
  if mistake is not None:
    text = overrides.text_of(mistake)
    if missing := re.search(r"Flag --(\w+) must have a value", text):
      text = f"--{missing[1]} is missing: {flag_values[missing[1]].help}"
    raise ValueError(text) from mistake
  for argument, (name, value) in groups.items():
    _set_group(flag_values["config"].value, argument, name, value)
  if len(arguments) > 1 and not takes_arguments:
    raise ValueError(
      f"unexpected arguments {arguments[1:]}; settings are written"
      " --config.name=value."
    )
  return arguments


def _groups(argv: Sequence[str]) -> dict[str, tuple[str, str]]:
  """The overrides of whole groups: argument -> (name of the group, text)."""
  groups = {}
  for argument in argv:
    match = re.match(r"--?config\.([\w.]+)=(\{.*\})$", argument, re.DOTALL)
    if match and overrides.free_example(match[1]):
      groups[argument] = (match[1], match[2])
  return groups


def _last_ones(argv: Sequence[str]) -> list[str]:
  """The command line without overrides that a later one replaces.

  ml_collections would join the values of a tuple that is given twice.
  """
  by_name: dict[str, str] = {}
  for place, argument in enumerate(argv):
    match = re.match(r"--?(?:(config\.[\w.]+)=|no(config\.[\w.]+)$)", argument)
    name = match[1] or match[2] if match else f"argument {place}"
    by_name.pop(name, None)  # It stands where the last one stands.
    by_name[name] = argument
  return list(by_name.values())


def _set_group(
  config: config_dict.ConfigDict, argument: str, name: str, text: str
) -> None:
  """Sets a group whose keys are not known beforehand.

  Raises:
    ValueError: The text is not a dictionary with text for keys.
  """
  try:
    value = ast.literal_eval(text)
    group = config_dict.ConfigDict(value)
  except (ValueError, SyntaxError, TypeError) as error:
    raise ValueError(
      f"{argument}: needs a dictionary as Python writes it,"
      f" {overrides.whole(name, _spelled)} ({overrides.text_of(error)})."
    ) from error
  where, _, last = name.rpartition(".")
  if problem := overrides.complaint(config, name, _spelled):
    raise ValueError(f"{argument}: {problem}")
  parent = overrides.at(config, where)
  # A group of the file may be of another class of groups.
  with parent.unlocked(), parent.ignore_type():
    parent[last] = group


def _leave(message: str, status: int = 2) -> NoReturn:
  if _is_one_of_several():
    from grpo_jax.training.runtime import hosts

    print(wrapped(f"{hosts.label()}error: {message}"), file=sys.stderr)
    hosts.leave(status)
  print(wrapped(f"error: {message}"), file=sys.stderr)
  sys.exit(status)


def wrapped(text: str) -> str:
  """The text in lines that fit a terminal; words, as paths, stay whole."""
  return terminal.wrapped(text)


def _configs(argv: Sequence[str]) -> list[str]:
  """The values of --config."""
  return re.findall(r"(?m)^--?config(?:=|\n)(?!-)(.+)$", "\n".join(argv))


def _config_problem(argv: Sequence[str]) -> str | None:
  """Reason why --config and its overrides cannot be used, or None."""
  names = _configs(argv)
  if not names:
    return (
      "--config is missing; pass a config file, or the name of one that comes"
      " with the library, for example --config=quickstart. There are:"
      f" {', '.join(overrides.shipped())}."
    )
  path, _, algorithm = names[-1].partition(":")
  config = _load(path, algorithm)
  if isinstance(config, str):
    return config
  _set_switches(config, argv)
  for argument in argv:
    match = re.match(r"--?(?:no)?config\.([\w.]+)(?:=(.*))?$", argument)
    if match and (problem := _override_problem(config, path, *match.groups())):
      return problem
  return None


def _with_files(argv: Sequence[str]) -> list[str]:
  """The command line with the path of the file that each --config means.

  A value that does not name a file stays as it is.
  """
  arguments = list(argv)
  for place, argument in enumerate(arguments):
    is_value = place > 0 and arguments[place - 1] in ("-config", "--config")
    flag = re.match(r"--?config=", argument)
    if not is_value and flag is None:
      continue
    start = "" if is_value or flag is None else flag[0]
    name, colon, algorithm = argument.removeprefix(start).partition(":")
    with contextlib.suppress(FileNotFoundError):
      arguments[place] = f"{start}{overrides.find(name)}{colon}{algorithm}"
  return arguments


def _load(path: str, algorithm: str) -> config_dict.ConfigDict | str:
  """The config without overrides, or the reason why it cannot be made."""
  try:
    return overrides.load(
      str(overrides.find(path)), *([algorithm] if algorithm else [])
    )
  except (FileNotFoundError, ValueError) as error:
    return str(error)


def _spelled(name: str) -> str:
  """A setting as it is written on the command line."""
  return f"--config.{name}"


def _override_problem(
  config: config_dict.ConfigDict, path: str, name: str, value: str | None
) -> str | None:
  """Reason why `--config.name=value` does not fit, or None if it does."""
  flag = f"--config.{name}" + (f"={value}" if value is not None else "")
  if overrides.free_example(name):
    return (
      f"{flag}: the settings of config.{name} have names of your own; write it"
      f" whole: {overrides.whole(name, _spelled)}."
    )
  if name in ("algorithm", "algorithm.name"):
    # The fields of one algorithm must not stay with another.
    return (
      f"{flag}: the algorithm is chosen with the file, so that it comes with"
      f" its own defaults: --config={path}:{value or 'NAME'}. A file of"
      " configs/recipes has that of its paper."
    )
  if problem := overrides.complaint(config, name, _spelled):
    return f"{flag}: {problem}"
  *groups, last = name.split(".")
  parent = overrides.at(config, ".".join(groups))
  kind = parent.get_type(last)
  if kind is type(None):
    return (
      f"{flag}: it is None in {path}, where nothing says what it may be; set"
      " it in that file, or have the file copy the group with copy.deepcopy."
    )
  if kind in _PARSERS and value is not None:
    parser, form = _PARSERS[kind]
    try:
      parser.parse(value)
    except ValueError:
      return f"{flag}: received {value!r}; needs {form}."
  return None
