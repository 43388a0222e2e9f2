"""A hash of what an object does, the same in every process.

Pickles are not: they have file names, line numbers, random numbers of classes,
and sets in an order that differs between processes. A function is its code,
its constants and defaults, and, by their values, the globals and variables that
it refers to; what belongs to a module that can be imported is its path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

# What `dataclasses` writes into a class.
_GENERATED = frozenset(
  (
    *("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__"),
    *("__gt__", "__ge__", "__setattr__", "__delattr__", "__replace__"),
    *("__match_args__", "__dataclass_params__"),
  )
)
# What says where a class was written, or is made by Python.
_PLACE = frozenset(
  (
    *("__module__", "__dict__", "__weakref__", "__firstlineno__"),
    *("__static_attributes__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__abstractmethods__"),
    *("_abc_impl", "__qualname__"),
  )
)


class Digest:
  """Takes values one after another."""

  def __init__(self) -> None:
    self._hash = hashlib.sha256()
    self._seen: dict[int, tuple[int, Any]] = {}

  def text(self) -> str:
    """16 hexadecimal digits."""
    return self._hash.hexdigest()[:16]

  def _say(self, *parts: object) -> None:
    for part in parts:
      content = part if isinstance(part, bytes) else str(part).encode()
      self._hash.update(b"%d:" % len(content) + content)

  def add(self, value: Any) -> Digest:
    """Goes on with a value, and with all that it refers to."""
    plain = (bool, int, float, complex, str, bytes, type(None), type(...))
    if type(value) in plain:
      self._say(type(value).__name__, repr(value))
    elif isinstance(value, (set, frozenset)):
      self._say("set", *sorted(Digest().add(one).text() for one in value))
    elif type(value) is tuple:
      self._all("tuple", value)
    elif isinstance(value, types.ModuleType):
      self._say("module", value.__name__)
    elif path := _global(value):
      self._say("global", path)
    elif id(value) in self._seen:
      self._say("again", self._seen[id(value)][0])
    else:
      self._seen[id(value)] = len(self._seen), value
      self._object(value)
    return self

  def _all(self, kind: str, values: Iterable[Any]) -> None:
    found = list(values)
    self._say(kind, len(found))
    for one in found:
      self.add(one)

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
      array = np.asarray(value)
      self._say("array", value.dtype, array.shape, array.tobytes())
    elif type(value) is list:
      self._all("list", value)
    else:
      reduced = value.__reduce_ex__(4)
      parts = (reduced,) if isinstance(reduced, str) else reduced
      self._all(
        "object",
        (list(x) if isinstance(x, Iterator) else x for x in parts),
      )


def _global(value: Any) -> str:
  """The path of a function or class of a module that is no notebook."""
  module = getattr(value, "__module__", None)
  name = getattr(value, "__qualname__", None)
  if not (isinstance(module, str) and isinstance(name, str)):
    return ""
  found: Any = sys.modules.get(module)
  if module == "__main__" or found is None:
    return ""
  for part in name.split("."):
    found = getattr(found, part, None)
  return f"{module}:{name}" if found is value else ""


def _of_code(code: types.CodeType) -> tuple[Any, ...]:
  """All of a code object but for where it was written."""
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
        made = field.default_factory
        factory = "MISSING" if made is dataclasses.MISSING else made
        yield field.name, str(field.type), default, factory, field.kw_only
      continue
    if not isinstance(
      value, types.GetSetDescriptorType | types.MemberDescriptorType
    ):
      yield name, value
