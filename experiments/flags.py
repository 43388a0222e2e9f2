"""Command lines of the experiments: flags in, clear errors out."""

from __future__ import annotations

import difflib
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

from absl import app, flags
from ml_collections import config_dict, config_flags

# What a bad command line, config, data set or checkpoint raises; anything
# else is a defect of ours and keeps its traceback.
_USER_ERRORS = (
  KeyError,
  TypeError,
  ValueError,
  FileNotFoundError,
  FloatingPointError,
  ImportError,
)


def define_config() -> flags.FlagHolder:
  """Defines --config=FILE[:ALGORITHM] and its --config.key=value overrides."""
  return config_flags.DEFINE_config_file(
    "config",
    None,
    "Config file with get_config(), optionally with an argument:"
    " configs/quickstart.py:gspo.",
  )


def run(main: Callable[[Sequence[str]], int]) -> None:
  """Runs `main` with parsed flags; errors of the user's are one message.

  Exit status: what `main` returns, or 2 after a bad command line, config,
  data set or checkpoint.
  """

  def parse(argv: Sequence[str]) -> list[str]:
    try:
      rest = flags.FLAGS(list(argv))
    except (*_USER_ERRORS, AttributeError, flags.Error) as error:
      _leave(_explain_flags(argv, error))
    if len(rest) > 1:
      _leave(
        f"unexpected arguments {rest[1:]}; settings are written"
        " --config.name=value."
      )
    return rest

  def guarded(argv: Sequence[str]) -> int:
    try:
      return main(argv)
    except _USER_ERRORS as error:
      if "--debug" in sys.argv:
        raise
      _leave(_text(error))

  flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
  app.run(guarded, flags_parser=parse)


def _leave(message: str) -> None:
  print(f"\nerror: {message}", file=sys.stderr)
  sys.exit(2)


def _text(error: BaseException) -> str:
  # str(KeyError("x")) is "'x'": take the argument itself.
  if isinstance(error, KeyError) and error.args:
    return str(error.args[0])
  return str(error)


def _explain_flags(argv: Sequence[str], error: BaseException) -> str:
  """What was received, what is known, what to do."""
  text = _text(error)
  files = [a.split("=", 1)[1] for a in argv if a.startswith("--config=")]
  if not files:
    unknown = f" ({text})" if text else ""
    return (
      "pass --config=FILE, for example --config=configs/quickstart.py"
      f"{unknown}."
    )
  path, _, algorithm = files[-1].partition(":")
  if not pathlib.Path(path).exists():
    known = sorted(str(p) for p in pathlib.Path("configs").glob("*.py"))
    near = difflib.get_close_matches(path, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"there is no config file {path}.{hint} Here: {', '.join(known)}."
  config = _load(path, algorithm)
  if isinstance(config, str):
    return config
  for argument in argv:
    match = re.match(r"--config\.([\w.]+)(?:=(.*))?$", argument)
    if match and (problem := _explain_override(config, *match.groups())):
      return problem
  return text


def _load(path: str, algorithm: str) -> config_dict.ConfigDict | str:
  """The config without overrides, or why it cannot be made."""
  namespace = {"__name__": "config", "__file__": path}
  try:
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), namespace)
    get_config = namespace["get_config"]
    return get_config(algorithm) if algorithm else get_config()
  except _USER_ERRORS as error:
    return f"{path}: {_text(error)}"


def _explain_override(
  config: config_dict.ConfigDict, name: str, value: str | None
) -> str | None:
  """Why `--config.name=value` does not fit, or None if it does."""
  where, node = "config", config
  *parents, leaf = name.split(".")
  for part in (*parents, leaf):
    if not isinstance(node, config_dict.ConfigDict) or part not in node:
      known = list(node) if isinstance(node, config_dict.ConfigDict) else []
      near = difflib.get_close_matches(part, known, n=1, cutoff=0.5)
      hint = f" Did you mean --{where}.{near[0]}?" if near else ""
      return (
        f"--config.{name}: {where} has no setting {part!r}.{hint} It has:"
        f" {', '.join(known)}."
      )
    parent, node, where = node, node[part], f"{where}.{part}"
  kind = parent.get_type(leaf)
  if kind in (int, float) and value is not None:
    try:
      kind(value)
    except ValueError:
      return (
        f"--config.{name}={value}: received {value!r}; needed is a number"
        f" ({kind.__name__})."
      )
  if kind is bool and value not in (None, "true", "false", "True", "False"):
    return f"--config.{name}={value}: needed is true or false."
  return None
