"""The two commands of an experiment whose arms are sweeps.

`python -m experiments.NAME.run` trains the missing arms, and `python -m
experiments.NAME.report` writes a page about the arms that have ended. A module
that defines one of the two classes below has its flags.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from absl import flags

from experiments.sweeps import arms as arms_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib

# --help shows the flags of the module that is started: those of the caller.
flags.disclaim_key_flags()

Results = TypeVar("Results")  # Of a class that has `arms`.


class Training:
  """Command that trains the missing arms, with its flags.

  Args:
    name: Name of the experiment, and of its folders.
    sizes: Sizes of each arm; without any, --size does not exist.
    flag_values: Flags to which these are added.
  """

  def __init__(
    self,
    name: str,
    sizes: Iterable[str] = (),
    flag_values: flags.FlagValues = flags.FLAGS,
  ):
    self._config = f"experiments/{name}/config.py"
    define = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    self._root = define("root", f"runs/{name}", "Folder of all runs.")
    self._results = define(
      "results", f"benchmarks/{name}", "Folder of the files ARM.json."
    )
    self._arms = define("arms", "", "Arms whose name has a match of it.")
    self._size = None
    if known := list(sizes):
      self._size = flags.DEFINE_enum(
        *("size", "full", known, "How much is computed."),
        flag_values=flag_values,
      )

  @property
  def size(self) -> str:
    """Name of the size; empty if there is only one."""
    return "" if self._size is None else self._size.value

  def config(self, arm: str) -> str:
    """FILE:ARGUMENT of the config of an arm."""
    return f"{self._config}:{arm}" + (f"@{self.size}" if self.size else "")

  def go_through(
    self,
    names: Iterable[str],
    run: Callable[[pathlib.Path, pathlib.Path, str], int],
  ) -> int:
    """Runs the arms of --arms, one after another; returns the exit status.

    Args:
      names: The names of all arms.
      run: (folder of all runs, folder of the files ARM.json, name) -> exit
        status of the arm.
    """
    root = cells_lib.parse_root(self._root.value)
    out = pathlib.Path(self._results.value)
    chosen = arms_lib.chosen(names, self._arms.value)
    out.mkdir(parents=True, exist_ok=True)
    return arms_lib.go_through(chosen, functools.partial(run, root, out))

  def follow_on(
    self,
    names: Iterable[str],
    base: str,
    follows_on: Callable[[str, pathlib.Path], list[str]],
    collected: Callable[[pathlib.Path], dict[str, Any] | None],
  ) -> int:
    """Runs the arms of --arms, some after others; returns the exit status.

    Args:
      names: The names of all arms.
      base: Arm that others follow on; it does not write ARM.json.
      follows_on: (name, folder of all runs) -> overrides of the arm that name
        the run it follows on.
      collected: Function as in `arms.record`.
    """

    def run(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
      folder, config = root / name, self.config(name)
      if name == base:
        return arms_lib.sweep(folder, config)
      overrides = follows_on(name, root)
      return arms_lib.record(out, folder, config, overrides, collected)

    return self.go_through(names, run)


class Report:
  """Command that writes a page, with its flags.

  Args:
    name: Name of the experiment, and of its files.
    parts: Description of the output, in words.
    page: Name of these files, if it is another one.
    flag_values: Flags to which these are added.
  """

  def __init__(
    self,
    name: str,
    parts: str = "page and figure",
    page: str = "",
    flag_values: flags.FlagValues = flags.FLAGS,
  ):
    self._name, self._page = name, page or name
    define = functools.partial(flags.DEFINE_string, flag_values=flag_values)
    self._results = define("results", f"benchmarks/{name}", "Of ARM.json.")
    self._out = define("out", "docs", f"Folder of {parts}.")

  def write(
    self,
    read: Callable[[pathlib.Path], Results],
    markdown: Callable[[Results], str],
    plot: Callable[[pathlib.Path, Results], None] | None = None,
  ) -> int:
    """Writes the page and prints its path; returns the exit status.

    Args:
      read: (folder of the files ARM.json) -> results of the arms that have
        ended, whose `arms` are the names.
      markdown: Function that makes the text of the page.
      plot: Function that draws the figure into a file; None without a figure.

    Raises:
      FileNotFoundError: No arm has ended, or the folder to write to does not
        exist.
    """
    out = flags_lib.existing_folder(self._out)
    results = read(pathlib.Path(self._results.value))
    if not results.arms:
      raise FileNotFoundError(
        f"--results={self._results.value}: nothing has ended there; run"
        f" `python -m experiments.{self._name}.run` first."
      )
    written = [out / f"{self._page}.md"]
    if plot is not None:
      written.append(out / f"{self._page}.png")
      plot(written[1], results)
    written[0].write_text(markdown(results), encoding="utf-8")
    print(", ".join(map(str, written)))
    return 0
