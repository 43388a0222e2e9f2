"""Python objects that a config names: by their import path, or pickled.

    config.rewards.functions = (brevity,)        # of a notebook cell
    config.algorithm = algorithm_config(MY_ALGORITHM)

A config is text, and worker processes are sent text too. If a module that can
be imported has the object, the object's name is its path, such as
"my_pkg.rewards:brevity". Any other object, of a notebook or a script, is
pickled by value (cloudpickle). Its name, such as "object@1f0c…:brevity", has a
hash of what the object does. So an object that was changed is another setting,
and one that is only defined again, in a new kernel, is the same setting.

The hash is the same in every process. Pickles themselves are not: they have
file names, line numbers, random numbers of classes, and sets in an order that
differs between processes. So `Digest` walks the object instead. A function
counts with its code, its constants and defaults, and, by their values, the
globals and variables that it refers to. An object of a module that can be
imported counts with its path.

Pickles are files in a folder that this process and its workers read; a run
keeps those that it needs in `objects/` of its workdir. Like a module, a pickle
can run any code when it is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import pickle
import re
import sys
import tempfile
import traceback
import types
from collections.abc import (
  Collection,
  Iterable,
  Iterator,
  Mapping,
  MutableMapping,
)
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_MARK = "object@"
_NAME = re.compile(r"object@([0-9a-f]{16}):(\w+)")
_ENDING = ".pkl"
# Objects that were named, or loaded, in this process.
_alive: dict[str, Any] = {}
_opened: list[str] = []  # The folder of the pickles, once there is one.


class LazyTable(MutableMapping[str, _T], Generic[_T]):
  """Objects by name; each is imported when it is first asked for."""

  def __init__(self, package: str, paths: Mapping[str, str]):
    """Takes the place of each object in the package, "module:OBJECT"."""
    self._package = package
    self._paths = dict(paths)
    self._objects: dict[str, _T] = {}

  def __getitem__(self, name: str) -> _T:
    if name not in self._objects:
      place, _, attribute = self._paths[name].partition(":")
      module = importlib.import_module(f"{self._package}.{place}")
      self._objects[name] = getattr(module, attribute)
    return self._objects[name]

  def __setitem__(self, name: str, value: _T) -> None:
    self._paths.setdefault(name, "")
    self._objects[name] = value

  def __delitem__(self, name: str) -> None:
    del self._paths[name]
    self._objects.pop(name, None)

  def __contains__(self, name: object) -> bool:
    return name in self._paths

  def __iter__(self) -> Iterator[str]:
    return iter(self._paths)

  def __len__(self) -> int:
    return len(self._paths)


def folder() -> str:
  """Returns the folder of this process's pickles; it goes with the process."""
  if not _opened:
    directory = tempfile.TemporaryDirectory(prefix="grpo_jax_objects_")
    _opened.append(directory.name)
    _alive[""] = directory  # Removed with the process.
  return _opened[0]


def look_in(path: str) -> None:
  """Makes a worker read the pickles of the process that has started it."""
  _opened[:] = [path]


def is_object(name: str) -> bool:
  """Returns True if the name is that of a pickled object."""
  return name.startswith(_MARK)


def is_known(name: str) -> bool:
  """Returns True if the name's object has been imported or made here."""
  return name in _alive or name.partition(":")[0] in sys.modules


def named(value: Any) -> Any:
  """Returns a setting with names in the place of objects; text stays."""
  if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
    return type(value)(named(x) for x in value)
  is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
  return name_of(value) if callable(value) or is_instance else value


def name_of(value: Any) -> str:
  """Returns the name of an object in a config, and pickles it if need be.

  Args:
    value: A function, an algorithm, a task, or a factory of these; text is
      returned as it is.

  Raises:
    ValueError: The object cannot be pickled.
  """
  if isinstance(value, str):
    return value
  label = _label(value)
  if module := _home(value, label):
    return module
  try:
    import cloudpickle  # Workers start without it, and without NumPy.

    content = cloudpickle.dumps(value)
  except Exception as error:
    raise ValueError(
      f"{label!r} cannot be given to other processes: pickling it failed with"
      f" {type(error).__name__}: {error}. Write it in a module, and pass its"
      " import path 'package.module:name'; or let it open files, clients and"
      " models when it is first called."
    ) from error
  try:
    digest = Digest().add(value).text()
  except Exception:  # It can be pickled, and not walked.
    digest = hashlib.sha256(content).hexdigest()[:16]
  name = f"{_MARK}{digest}:{label}"
  _alive.setdefault(name, value)
  path = pathlib.Path(folder(), _file(name))
  if not path.exists():
    _write(path, content)
  return name


def load(
  path: str,
  what: str,
  kind: str = "object",
  where: str = "here",
  form: str = "",
) -> Any:
  """Returns the object of a name: imported, or read from its pickle.

  Args:
    path: "package.module:name", or a name from `name_of`.
    what: Purpose of the object, in messages.
    kind: The kind of object, in messages; a "function" must be callable.
    where: The place where the module must import, in messages.
    form: Arguments and result of a function, in messages.

  Raises:
    ValueError: The name is not a path, or its object cannot be loaded or has
      another kind.
  """
  module_name, colon, attribute = path.partition(":")
  if not (module_name and colon and attribute):
    raise ValueError(
      f"{what} '{path}': needs an import path 'package.module:name'."
    )
  result = (
    _unpickled(path, what)
    if is_object(path)
    else _imported(module_name, attribute, what, kind, where)
  )
  if kind == "function" and not callable(result):
    raise ValueError(
      f"{what} '{path}' is {result!r:.80} ({type(result).__name__}); needs"
      f" a function{form}."
    )
  return result


def _imported(
  module_name: str, attribute: str, what: str, kind: str, where: str
) -> Any:
  """Imports an object; the arguments are those of `load`."""
  path = f"{module_name}:{attribute}"
  try:
    module = importlib.import_module(module_name)
  except Exception as error:
    hint = ""
    if isinstance(error, ModuleNotFoundError) and module_name.startswith(
      error.name or "-"
    ):
      hint = (
        " Start from the folder that holds it, install its package, or add its"
        " folder to PYTHONPATH."
      )
    raise ValueError(
      f"{what} '{path}': importing '{module_name}' failed with"
      f" {type(error).__name__}: {error}{_line(error)}; needs a module that"
      f" imports {where}.{hint}"
    ) from error
  if not hasattr(module, attribute):
    raise ValueError(
      f"{what} '{path}': '{module_name}' has no {kind} '{attribute}'."
      + nearest(attribute, vars(module))
    )
  return getattr(module, attribute)


def _line(error: Exception) -> str:
  """Returns the line of a module at which its import has failed, or ""."""
  own = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if not frame.filename.startswith("<frozen")
    and frame.filename not in (__file__, importlib.__file__)
  ]
  return "".join(
    f" ({os.path.basename(frame.filename)}:{frame.lineno}: `{frame.line}`)"
    for frame in own[-1:]
  )


def nearest(name: str, names: Iterable[Any]) -> str:
  """Returns a hint for a message: the known name that is most similar."""
  close = difflib.get_close_matches(name, [str(n) for n in names], n=1)
  return f" Did you mean '{close[0]}'?" if close else ""


def keep(text: str, into: Any) -> None:
  """Copies the pickles that a text names into the folder of a run.

  Args:
    text: A config, as JSON.
    into: Folder of a run, a path of any type.

  Raises:
    FileNotFoundError: This process has neither made nor read a pickle.
  """
  for name in _names(text):
    target = into / "objects" / _file(name)
    if not target.exists():
      target.parent.mkdir(parents=True, exist_ok=True)
      _write(target, pathlib.Path(folder(), _file(name)).read_bytes())


def fetch(text: str, source: Any) -> None:
  """Copies the pickles that a text names into the folder of this process.

  Args:
    text: A config, as JSON.
    source: Folder of a run.

  Raises:
    FileNotFoundError: A pickle is missing.
  """
  for name in _names(text):
    target = pathlib.Path(folder(), _file(name))
    origin = source / "objects" / _file(name)
    if target.exists():
      continue
    if not origin.exists():
      raise FileNotFoundError(
        f"{origin} is missing, the object {name!r} of the run's config; copy"
        " the whole folder of a run."
      )
    _write(target, origin.read_bytes())


def _names(text: str) -> Collection[str]:
  return {match[0] for match in _NAME.finditer(text)}


def _file(name: str) -> str:
  digest, _, label = name.removeprefix(_MARK).partition(":")
  return f"{label}@{digest}{_ENDING}"


def _write(path: Any, content: bytes) -> None:
  """Writes a whole file; another process may be doing the same."""
  aside = path.parent / f"{path.name}.{os.getpid()}"
  aside.write_bytes(content)
  aside.replace(path)


def _unpickled(name: str, what: str) -> Any:
  if name not in _alive:
    path = pathlib.Path(folder(), _file(name))
    if not path.exists():
      raise ValueError(
        f"{what} '{name}': this is an object that another process has pickled;"
        " open its run, whose folder has it, or define it again and pass it."
      )
    try:
      _alive[name] = pickle.loads(path.read_bytes())
    except Exception as error:
      raise ValueError(
        f"{what} '{name}': reading {path} failed with {type(error).__name__}:"
        f" {error}; needs the modules and versions that it was made with."
      ) from error
  return _alive[name]


def _label(value: Any) -> str:
  """Returns a short name, for people."""
  plain = value.func if isinstance(value, functools.partial) else value
  name = getattr(plain, "__name__", None) or getattr(plain, "name", None)
  text = name if isinstance(name, str) else type(value).__name__
  return re.sub(r"\W+", "_", text).strip("_") or "object"


def _home(value: Any, label: str) -> str:
  """Returns the import path of an object, or "" if no module has it."""
  modules = {getattr(value, "__module__", None): None}
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = [getattr(value, f.name) for f in dataclasses.fields(value)]
    modules = {getattr(x, "__module__", None): None for x in fields}
  for module_name in modules:
    if not isinstance(module_name, str) or not _imports(module_name):
      continue
    has = vars(sys.modules[module_name])
    for name in (label, *has):
      if has.get(name) is value:
        return f"{module_name}:{name}"
  return ""


@functools.cache
def _imports(module_name: str) -> bool:
  """Returns True if another process finds the module that is loaded here."""
  module = sys.modules.get(module_name)
  origin = getattr(module, "__file__", None)
  if module_name == "__main__" or not origin:
    return False
  with contextlib.suppress(ImportError, ValueError):
    spec = importlib.util.find_spec(module_name)
    return spec is not None and spec.origin == origin
  return False


# The attributes that `dataclasses` writes into a class.
_GENERATED = frozenset(
  (
    *("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__"),
    *("__gt__", "__ge__", "__setattr__", "__delattr__", "__replace__"),
    *("__match_args__", "__dataclass_params__"),
  )
)
# Attributes that say where a class was written, or that Python makes.
_PLACE = frozenset(
  (
    *("__module__", "__dict__", "__weakref__", "__firstlineno__"),
    *("__static_attributes__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__abstractmethods__"),
    *("_abc_impl", "__qualname__"),
  )
)


class Digest:
  """A hash of what Python objects do; values are added one after another."""

  def __init__(self) -> None:
    self._hash = hashlib.sha256()
    self._numbers: dict[int, tuple[int, Any]] = {}

  def text(self) -> str:
    """Returns the digest as 16 hexadecimal digits."""
    return self._hash.hexdigest()[:16]

  def _say(self, *parts: object) -> None:
    for part in parts:
      content = part if isinstance(part, bytes) else str(part).encode()
      self._hash.update(b"%d:" % len(content) + content)

  def add(self, value: Any) -> Digest:
    """Adds a value and everything that the value refers to."""
    plain = (bool, int, float, complex, str, bytes, type(None), type(...))
    if type(value) in plain:
      self._say(type(value).__name__, repr(value))
    elif isinstance(value, (set, frozenset)):
      self._say("set", *sorted(Digest().add(x).text() for x in value))
    elif type(value) is tuple:
      self._all("tuple", value)
    elif isinstance(value, types.ModuleType):
      self._say("module", value.__name__)
    elif path := _global(value):
      self._say("global", path)
    elif id(value) in self._numbers:
      self._say("again", self._numbers[id(value)][0])
    else:
      self._numbers[id(value)] = len(self._numbers), value
      self._object(value)
    return self

  def _all(self, kind: str, values: Iterable[Any]) -> None:
    items = list(values)
    self._say(kind, len(items))
    for item in items:
      self.add(item)

  def _object(self, value: Any) -> None:
    if isinstance(value, (dict, types.MappingProxyType)):
      self._all("dict", value.items())
    elif isinstance(value, types.CodeType):
      self._all("code", _of_code(value))
    elif isinstance(value, types.FunctionType):
      self._all("function", _of_function(value))
    elif isinstance(value, type):
      self._all("class", (value.__name__, *value.__bases__, *_of_class(value)))
    elif isinstance(value, (staticmethod, classmethod)):
      self._all(type(value).__name__, [value.__func__])
    elif isinstance(value, property):
      self._all("property", (value.fget, value.fset, value.fdel))
    elif hasattr(value, "__array__") and hasattr(value, "dtype"):
      import numpy as np  # Workers start without it.

      array = np.asarray(value)
      self._say("array", value.dtype, array.shape, array.tobytes())
    elif type(value) is list:
      self._all("list", value)
    else:
      reduced = value.__reduce_ex__(4)
      parts = (reduced,) if isinstance(reduced, str) else reduced
      self._all(
        "object", (list(x) if isinstance(x, Iterator) else x for x in parts)
      )


def _global(value: Any) -> str:
  """Returns the path of a function or class outside `__main__`, or ""."""
  module = getattr(value, "__module__", None)
  name = getattr(value, "__qualname__", None)
  if not (isinstance(module, str) and isinstance(name, str)):
    return ""
  node: Any = sys.modules.get(module)
  if module == "__main__" or node is None:
    return ""
  for part in name.split("."):
    node = getattr(node, part, None)
  return f"{module}:{name}" if node is value else ""


def _of_code(code: types.CodeType) -> tuple[Any, ...]:
  """Returns all of a code object but the place where it was written."""
  return (
    (code.co_name, code.co_code, code.co_consts, code.co_names),
    (code.co_varnames, code.co_freevars, code.co_cellvars),
    (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
    (code.co_flags, code.co_exceptiontable),
  )


def _of_function(function: types.FunctionType) -> tuple[Any, ...]:
  closure = []
  for cell in function.__closure__ or ():
    with contextlib.suppress(ValueError):  # Not filled yet.
      closure.append(cell.cell_contents)
  has = function.__globals__
  used = sorted(set(_global_names(function.__code__)) & has.keys())
  return (
    (function.__name__, function.__code__, function.__defaults__),
    (function.__kwdefaults__, closure, function.__dict__),
    tuple((name, has[name]) for name in used),
  )


def _global_names(code: types.CodeType) -> Iterator[str]:
  for step in dis.get_instructions(code):
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):  # And not attributes.
      yield step.argval
  for constant in code.co_consts:
    if isinstance(constant, types.CodeType):
      yield from _global_names(constant)


def _of_class(cls: type) -> Iterator[Any]:
  has: Mapping[str, Any] = vars(cls)
  is_dataclass = "__dataclass_fields__" in has
  for name, value in has.items():
    if name in _PLACE or (is_dataclass and name in _GENERATED):
      continue
    if name == "__dataclass_fields__":
      for field in value.values():
        default = None if inspect.isclass(field.default) else field.default
        if field.default is dataclasses.MISSING:
          default = "MISSING"
        make = field.default_factory
        factory = "MISSING" if make is dataclasses.MISSING else make
        yield field.name, str(field.type), default, factory, field.kw_only
      continue
    if not isinstance(
      value, types.GetSetDescriptorType | types.MemberDescriptorType
    ):
      yield name, value
