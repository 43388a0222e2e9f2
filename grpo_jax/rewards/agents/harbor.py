"""Episodes of Harbor's tasks, in the sandbox in the place of a container.

    config.data.template = "chat"
    config.data.environment = "grpo_jax.rewards.agents.harbor:make"
    config.environment.options = {"format": "qwen"}
    config.rewards.functions = ("grade",)

The extra "task" of a record is the folder of a task, and its prompt is the
task's instruction. `experiments.rewards.harbor_tasks` tries tasks, and makes
records of those that work. The package `harbor` is not needed.

The policy has one tool, `shell(command)` (`sandbox/shell.py`). An action
without a call hands in. Then `tests/test.sh` runs in a box of its own, with the
files that the commands have left, and writes the reward: the number of
/logs/verifier/reward.txt, or "reward" of reward.json.

**Not as in a container.** Programs are those of the host's /usr and Python, and
there is no network. A Dockerfile's WORKDIR, ENV, ARG, and COPY and ADD of files
are followed; `Image.left_out` has the other lines. Writable are /tmp, /root,
/logs/agent, /logs/artifacts, and the folders of the root that have the working
directory and the copied files. They stay from command to command; processes
do not.

**Access to the reward.** Tests and solution are not in the boxes of commands.
In the box of the tests no process of the policy is left, /tests and
/logs/verifier are as the task has them, and the reward is read when all
processes have ended. But a program of the policy that the tests start has the
rights of the tests, as in Harbor.

Source: github.com/laude-institute/harbor, 0.26: `harbor.models.task`,
`harbor.verifier`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import posixpath
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from grpo_jax import ranges, strict_json
from grpo_jax.rewards.agents import tools
from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.sandbox import shell as shell_lib

_OPTIONS = (
  *("format", "max_calls", "max_parallel", "max_bytes", "max_total_bytes"),
  *("call_s", "turn_s", "total_s", "memory", "opening", "markup"),
)
_MAX_BYTES, _MAX_FILES = 8 << 20, 2000  # Of an image, of tests, of a solution.
_TESTS_S = 600.0  # Harbor's default.
_LOGS, _ARTIFACTS = "/logs/verifier", "/logs/artifacts"
_REWARDS = (f"{_LOGS}/reward.json", f"{_LOGS}/reward.txt")
_KEPT = ("/tmp", "/root", "/logs/agent", _ARTIFACTS)
# Folders of the root that are not the task's.
_OF_BOX = {"", "bin", "sbin", "lib", "lib32", "lib64", "usr", "proc", "dev"}
_OF_BOX |= {"sys", "python", "logs"}
_HIDDEN = {"tests", "solution"}
_TEST, _SOLVE = "/tests/test.sh", "/solution/solve.sh"
_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst")
_CANARY = re.compile(r"(?i)(<!--.*canary.*-->|#.*canary.*)$")
_HERE = re.compile(r"<<-?([\"']?)(\w+)\1")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


class Image(NamedTuple):
  """The part of a Dockerfile that can be followed.

  Attributes:
    workdir: The working directory.
    variables: Of the environment.
    files: By their absolute paths.
    left_out: Lines that are not followed.
  """

  workdir: str
  variables: dict[str, str]
  files: dict[str, shell_lib.File]
  left_out: tuple[str, ...]

  @property
  def folders(self) -> set[str]:
    """Folders of the root that are writable, beside those of all tasks."""
    tops = {_top(path) for path in (self.workdir, *self.files)}
    return {f"/{top}" for top in tops} - {"/", *_KEPT}


class HarborTask(NamedTuple):
  """A task in the form of Harbor.

  Attributes:
    instruction: The text that asks the policy.
    image: Where commands run.
    verifier: Where tests run, with the files of /tests.
    solution: Where the solution runs, with the files of /solution, if any.
    artifacts: Paths of the only files of commands that the tests have; empty:
      they have all.
    agent_s: Most seconds of all commands; None: the task has no limit.
    verifier_s: Most seconds of the tests.
  """

  instruction: str
  image: Image
  verifier: Image
  solution: Image
  artifacts: tuple[str, ...]
  agent_s: float | None
  verifier_s: float


def read(folder: str) -> HarborTask:
  """Reads the folder of a task.

  Raises:
    FileNotFoundError: A file of the task is missing.
    ValueError: A file has another form, a link leads out of the folder, boxes
      can read the folder, or the task asks for what a box does not have.
  """
  root = pathlib.Path(folder).resolve()
  visible = pathlib.Path("/usr"), pathlib.Path(sys.base_prefix).resolve()
  if any(map(root.is_relative_to, visible)):
    names = " and ".join(map(str, visible))
    raise _error(root, f"commands can read the tests; move it out of {names}")
  try:
    toml = tomllib.loads(_text(root, root / "task.toml"))
  except tomllib.TOMLDecodeError as error:
    raise _error(root, f"task.toml is not TOML: {error}") from None
  get = functools.partial(_get, root, toml)
  at, tests_at = root / "environment", root / "tests"
  compose = [x for y in (at, tests_at) for x in y.glob("docker-compose.y*ml")]
  own = get("verifier.environment", dict, None)
  for is_so, what in (
    (get("steps", list, []), "several steps"),
    (get("environment.os", str, "").lower() == "windows", "Windows"),
    (get("verifier.collect", list, []), "commands before the tests (collect)"),
    (get("verifier.environment.docker_image", str, ""), "tests in an image"),
    (compose, "several containers"),
  ):
    if is_so:
      raise _error(root, f"the task has {what}; run it with harbor itself")
  default = "shared" if own is None else "separate"
  mode = get("verifier.environment_mode", str, default)
  if mode not in ("shared", "separate"):
    raise _error(
      root, f"environment_mode={mode!r:.40}; needs 'shared' or 'separate'"
    )
  image = _image(root, at, get, "environment", _HIDDEN)
  files = {f"/tests/{x}": y for x, y in _files(root, tests_at).items()}
  verifier = image
  if mode == "separate":
    section = "environment" if own is None else "verifier.environment"
    if (tests_at / "Dockerfile").exists():
      verifier = _image(root, tests_at, get, section, {"solution"})
      files = verifier.files
    else:
      verifier = _image(root, at, get, section, _HIDDEN)
      files = {**verifier.files, **files}
  variables = verifier.variables | _variables(root, get, "verifier.env")
  verifier = verifier._replace(files=files, variables=variables)
  if _TEST not in verifier.files:
    raise FileNotFoundError(
      f"harbor: {root} has no tests/test.sh, or tests/Dockerfile does not copy"
      " it to /tests; needs the script that writes the reward."
    )
  solution = _files(root, root / "solution")
  artifacts = (
    _artifact(root, entry, image) for entry in get("artifacts", list, [])
  )
  return HarborTask(
    instruction=_without_canary(_text(root, root / "instruction.md")),
    image=image,
    verifier=verifier,
    solution=image._replace(
      files={f"/solution/{x}": y for x, y in solution.items()},
      variables=image.variables | _variables(root, get, "solution.env"),
    ),
    artifacts=(_ARTIFACTS, *artifacts) if mode == "separate" else (),
    agent_s=get("agent.timeout_sec", float, None),
    verifier_s=get("verifier.timeout_sec", float, _TESTS_S),
  )


def _error(root: pathlib.Path, what: str) -> ValueError:
  return ValueError(f"harbor: {root}: {what}.")


def _top(path: str) -> str:
  return path.split("/")[1]


# (name of a setting, type, default) -> its value in task.toml.
_Get = Callable[[str, type, Any], Any]


def _get(
  root: pathlib.Path, toml: Any, name: str, kind: type, default: Any
) -> Any:
  """Returns a value of task.toml; a float is a number of seconds."""
  value = toml
  for part in name.split("."):
    if not isinstance(value, dict):
      break
    if part not in value:
      return default
    value = value[part]
  if kind is float and type(value) in (int, float) and 0 < value <= 1e6:
    return float(value)
  if kind is float or not isinstance(value, kind):
    names = {float: "number above 0", str: "text", dict: "table"}
    noun = names.get(kind, "list")
    raise _error(root, f"{name}={value!r:.60} in task.toml; needs a {noun}")
  return value


def _variables(root: pathlib.Path, get: _Get, name: str) -> dict[str, str]:
  table = get(name, dict, {})
  for variable, value in table.items():
    if not isinstance(value, str) or "${" in value or "\0" in variable + value:
      raise _error(
        root,
        f"{name} has {variable}={value!r:.40}; needs a text, and no"
        " variable of the host, which no box gets",
      )
  return table


def _artifact(root: pathlib.Path, entry: Any, image: Image) -> str:
  """Returns the absolute path of an artifact."""
  source = {"source": entry} if isinstance(entry, str) else entry
  match source:
    case {"source": str(path)} if source.get("service", "main") == "main":
      path = posixpath.normpath(posixpath.join(image.workdir, path))
      if path.startswith(_KEPT) or _top(path) not in _OF_BOX | _HIDDEN:
        return path
  raise _error(
    root,
    f"the artifact {entry!r:.60}; needs a file or folder of the main"
    " container that commands can write",
  )


def _text(root: pathlib.Path, path: pathlib.Path) -> str:
  files = {} if path.is_dir() else _files(root, path)
  if not files:
    raise FileNotFoundError(
      f"harbor: {path} is missing; a task has task.toml, instruction.md,"
      " environment/Dockerfile and tests/test.sh."
    )
  try:
    return files[""].data.decode("utf-8").replace("\r\n", "\n")
  except UnicodeDecodeError as error:
    raise _error(root, f"{path.name} is not text: {error}") from None


def _files(root: pathlib.Path, top: pathlib.Path) -> dict[str, shell_lib.File]:
  """Returns the files below a path, or the file "" itself; may be empty."""
  files: dict[str, shell_lib.File] = {}
  size = 0
  walk = os.walk(top) if top.is_dir() else [(os.fspath(top), [], [""])]
  for at, folders, names in walk:
    for name in (*folders, *names):
      path = pathlib.Path(at, name)
      if not path.resolve().is_relative_to(root):
        raise _error(root, f"{path} is a link that leads out of the task")
      is_link = path.is_symlink()
      if (name in folders and not is_link) or not (path.exists() or is_link):
        continue
      if not path.is_file():
        raise _error(root, f"{path} is not a file, nor a link to one")
      size += path.stat().st_size
      if size > _MAX_BYTES or len(files) >= _MAX_FILES:
        raise _error(
          root, f"{top} has more than {_MAX_FILES} files or {_MAX_BYTES} bytes"
        )
      place = path.relative_to(top).as_posix() if name else ""
      is_program = name.endswith(".sh") or os.access(path, os.X_OK)
      files[place] = shell_lib.File(path.read_bytes(), is_program)
  return files


def _without_canary(text: str) -> str:
  """Returns an instruction without the lines that mark a benchmark."""
  lines = text.split("\n")
  while lines and _CANARY.match(lines[0].strip()):
    del lines[0]
  while lines and not lines[0].strip():
    del lines[0]
  return "\n".join(lines)


def _image(
  root: pathlib.Path,
  context: pathlib.Path,
  get: _Get,
  section: str,
  hidden: set[str],
) -> Image:
  """Reads a Dockerfile, and the section of its image in task.toml."""
  path = context / "Dockerfile"
  text = ""
  if path.exists() or not get(f"{section}.docker_image", str, ""):
    text = _text(root, path)
  build = _Build(root, context, _OF_BOX | hidden)
  for name, rest in _instructions(text):
    try:
      build.follow(name, rest)
    except ValueError as error:
      raise _error(root, f"{path.name}: {name} {rest:.80}: {error}") from None
  workdir = build.absolute(get(f"{section}.workdir", str, "."))
  if workdir != "/" and _top(workdir) in _OF_BOX | hidden:
    raise _error(root, f"the working directory {workdir} cannot be writable")
  variables = build.variables | _variables(root, get, f"{section}.env")
  return Image(workdir, variables, build.files, tuple(build.left_out))


def _instructions(text: str) -> Iterator[tuple[str, str]]:
  """Yields the instructions of a Dockerfile: name and arguments."""
  lines = (x for x in text.split("\n") if not x.lstrip().startswith("#"))
  for line in lines:
    while line.rstrip().endswith("\\"):
      line = line.rstrip()[:-1] + " " + next(lines, "")
    for here in _HERE.finditer(line):
      while next(lines, here[2]).strip() != here[2]:
        pass
    name, _, rest = line.strip().replace("\t", " ").partition(" ")
    if name:
      yield name.upper(), rest.strip()


_FOLLOWED = ("WORKDIR", "ENV", "ARG", "COPY", "ADD")


class _Build:
  """The state of an image while the lines of its Dockerfile are followed."""

  def __init__(
    self, root: pathlib.Path, context: pathlib.Path, refused: set[str]
  ):
    self._root, self._context, self._refused = root, context, refused
    self.left_out: list[str] = []
    self._begin()

  def _begin(self) -> None:
    self.workdir = "/"
    self.variables: dict[str, str] = {}
    self.files: dict[str, shell_lib.File] = {}
    self._values = {"PATH": shell_lib.PATH, "HOME": "/root"}  # Also of ARG.
    self._folders = {"/", *_KEPT}

  def follow(self, name: str, rest: str) -> None:
    """Follows an instruction, or notes that it is left out.

    Raises:
      ValueError: The instruction cannot be read.
    """
    words = shlex.split(rest) if name in _FOLLOWED else []
    if name in _FOLLOWED and not words:
      raise ValueError("an argument is missing")
    if name == "FROM":
      self._begin()  # Only the last stage becomes the image.
    if name == "WORKDIR":
      self.workdir = self.absolute(words[0])
      self._folders.add(self.workdir)
    elif name in ("ENV", "ARG"):
      if name == "ENV" and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"]
      pairs = (x.split("=", 1) for x in words if "=" in x)
      values = {variable: self._filled(value) for variable, value in pairs}
      self._values |= values
      if name == "ENV":
        self.variables |= values
    elif name not in _FOLLOWED or not self._copies(words, rest):
      self.left_out.append(f"{name} {rest}"[:200])

  def _filled(self, text: str) -> str:
    return _VARIABLE.sub(
      lambda x: self._values.get(x[1] or x[2], x[3] or ""), text
    )

  def absolute(self, path: str) -> str:
    """Returns a path, from the working directory on, without variables."""
    joined = posixpath.join(self.workdir, self._filled(path))
    return "/" + posixpath.normpath(joined).lstrip("/")

  def _copies(self, words: list[str], rest: str) -> bool:
    """Copies files of the context; False if it cannot be done."""
    flags = [x for x in words if x.startswith("--")]
    *sources, to = [self._filled(x) for x in words if x not in flags]
    target = self.absolute(to)
    if (
      not sources
      or rest.startswith("[")
      or "<<" in rest
      or any(not x.startswith(("--chown", "--chmod", "--link")) for x in flags)
      or any("://" in x or "@" in x or x.endswith(_ARCHIVES) for x in sources)
      or _top(target) in self._refused
    ):
      return False
    into = to == "." or to.endswith("/") or len(sources) > 1
    for source in sources:
      place = posixpath.normpath(f"/{source}").lstrip("/")
      paths = sorted(self._context.glob(place)) if place else [self._context]
      if not paths:
        raise ValueError(f"the folder {self._context.name} has no {source!r}")
      for path in paths:
        name = path.name if into or target in self._folders else ""
        for below, file in _files(self._root, path).items():
          at = posixpath.normpath(posixpath.join(target, below or name))
          if at.count("/") < 2:
            return False  # A file of the root.
          self.files[at] = file
          self._folders.update(map(str, pathlib.PurePosixPath(at).parents))
    return True


class Trial:
  """The files of an episode, on which commands run, and then the tests."""

  def __init__(self, task: HarborTask, options: tools.Options):
    """Lays down the files of the image, and runs nothing."""
    self._task, self._options = task, options
    self._files = shell_lib.packed(task.image.files)

  def shell(self, command: str) -> tools.ToolResult:
    """Runs a command of bash in the working directory, and shows its output.

    Files stay for the next command. Variables and processes do not.

    Args:
      command: The command.
    """
    if "\0" in command:
      return tools.ToolResult("Error: a command has no null bytes.", True)
    result = self._run(command, self._task.image, self._options.call_s)
    end = {
      "lost": "the box has ended",
      "late": f"killed: no end in {self._options.call_s:g} s",
      "done": f"exit status {result.code}" if result.code else "",
    }[result.status]
    if result.files is None:
      much = f"files of more than {shell_lib.MAX_FILES} bytes"
      end = f"{end or much}; files are as before the command"
    output = result.output.decode("utf-8", "replace").removesuffix("\n")
    output = tools.cut(output, self._options.max_bytes)
    text = "\n".join(filter(None, (output, end and f"[{end}]")))
    is_bad = result.status != "done" or result.files is None
    return tools.ToolResult(text or "[nothing printed]", is_bad)

  def solve(self) -> str:
    """Runs the official solution, and returns what it wrote.

    Raises:
      FileNotFoundError: The task has none.
    """
    if _SOLVE not in self._task.solution.files:
      raise FileNotFoundError("harbor: the task has no solution/solve.sh.")
    seconds = self._task.agent_s or _TESTS_S
    ran = self._run(_SOLVE, self._task.solution, seconds)
    return ran.output.decode("utf-8", "replace")

  def _run(
    self, line: str, image: Image, seconds: float
  ) -> shell_lib.ShellResult:
    roots = {*self._task.image.folders, *_KEPT}
    steps = [("lay", self._files, None)]
    if image is self._task.solution:
      steps.append(("lay", shell_lib.packed(image.files), None))
    job = self._job(line, image, seconds, roots, steps, keeps=sorted(roots))
    result = shell_lib.run(_box(), job)
    self._files = result.files or self._files
    return result

  def _job(
    self,
    line: str,
    image: Image,
    seconds: float,
    folders: set[str],
    steps: Sequence[tuple[Any, ...]],
    **results: Sequence[str],
  ) -> shell_lib.Job:
    return shell_lib.Job(
      line=line,
      steps=steps,
      folder=image.workdir,
      folders=sorted({*folders, *image.folders} - {"/tmp"}),
      variables={"HOME": "/root", **image.variables},
      seconds=seconds,
      memory=self._options.memory,
      **results,
    )

  def reward(self) -> float:
    """Runs the tests, and returns the reward that they write.

    Raises:
      RuntimeError: The box cannot be made, or the tests write no reward.
      TimeoutError: The tests take longer than the task says.
    """
    task, image = self._task, self._task.verifier
    tests = {x: y for x, y in image.files.items() if _top(x) == "tests"}
    steps = (
      ("lay", shell_lib.packed(image.files), None),
      ("lay", self._files, list(task.artifacts) or None),
      # What a command has put there, or a tar that it has forged.
      *(("empty", "/tests"), ("empty", _LOGS)),
      ("lay", shell_lib.packed(tests), None),
    )
    folders = {*task.image.folders, *_KEPT, _LOGS}
    seconds = task.verifier_s
    job = self._job(_TEST, image, seconds, folders, steps, reads=_REWARDS)
    result = shell_lib.run(_box(), job)
    if result.status == "late":
      raise TimeoutError(f"harbor: no end of tests in {task.verifier_s:g} s")
    output = result.output[-300:].decode("utf-8", "replace")
    for path, data in zip(_REWARDS, result.reads, strict=False):
      if data is not None:
        return _reward(path, data, output)
    raise RuntimeError(
      f"harbor: the tests wrote no reward ({result.status}, exit status"
      f" {result.code}); they said {output!r}"
    )


def _box() -> box_lib.Box:
  return box_lib.require("bwrap")


def _reward(path: str, data: bytes, output: str) -> float:
  """Returns the reward in a file.

  Raises:
    RuntimeError: It has none.
  """
  try:
    value: Any = float(data) if path.endswith(".txt") else None
    if value is None:
      value = strict_json.loads(data)["reward"]
    if isinstance(value, int | float) and abs(value) <= ranges.MAX_REWARD:
      return float(value)
  except (ValueError, TypeError, KeyError, RecursionError):
    pass
  raise RuntimeError(
    f"harbor: {path} is {data[:60]!r}; needs a number, in JSON as"
    f' {{"reward": 1.0}}; the tests said {output!r}'
  )


@functools.cache
def _schemas() -> tuple[tools.Schema, ...]:
  return (tools.of_function(object.__new__(Trial).shell),)


@functools.cache
def _checker() -> tools.Checker:
  return tools.Checker(_schemas())


def make(
  prompt: str, extras: dict[str, Any], seed: int, **options: Any
) -> tools.ToolSession:
  """The factory of sessions; nothing in it is random.

  Scores: those of `tools.ToolSession`; "grade" is the reward of the tests, and
  "accuracy" is 1 if that is at least 1. Both are 0 before the policy hands in.

  Args:
    prompt: Ignored; the instruction of the task.
    extras: A record, with the folder of a task in "task".
    seed: Ignored.
    **options: Those of `tools.Options` that are named in the signature.

  Raises:
    FileNotFoundError, ValueError: The task or an option has another form.
  """
  del prompt, seed
  config = tools.Options(**options)
  folder = extras.get("task")
  if not isinstance(folder, str) or "\0" in folder:
    raise ValueError(
      f"harbor: task={folder!r:.60} in the extras; needs the folder of a"
      " task, as experiments.rewards.harbor_tasks writes it."
    )
  task = read(folder)
  if task.agent_s is not None:
    config = dataclasses.replace(
      config,
      total_s=min(config.total_s, task.agent_s),
      call_s=min(config.call_s, task.agent_s),
    )
  trial = Trial(task, config)
  return tools.ToolSession(
    *(config, _checker(), {"shell": lambda kwargs: trial.shell(**kwargs)}),
    lambda answer: trial.reward(),
  )


def warm_up(**options: Any) -> None:
  """Tests the sandbox, and that bash runs in it, before the first session.

  Raises:
    ImportError, RuntimeError, ValueError: A part cannot be prepared.
  """
  tools.Options(**options)
  _checker()
  shell_lib.check(_box())


def schemas(**options: Any) -> list[tools.Schema]:
  """Returns the schema of the tool, for the chat template."""
  del options
  return list(_schemas())


tools.complete(make, warm_up, schemas, names=_OPTIONS)
