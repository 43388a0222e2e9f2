'''What tools look like to a model: JSON schemas, and the check of arguments.

A schema is made of a function's type hints and docstring, as `get_json_schema`
of transformers makes it, but for what the function returns:

    def convert(amount: float, unit: Literal["m", "km"] = "m") -> str:
      """Converts a length to feet.

      Args:
        amount: The length.
        unit: Of the length.
      """

Hints may be str, int, float, bool, None, list, dict, tuple, Any, Literal, and
unions of these. A function has a description, and each argument a hint and a
description.
'''

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

_NAMES: dict[Any, Schema] = {
  str: {"type": "string"},
  int: {"type": "integer"},
  float: {"type": "number"},
  bool: {"type": "boolean"},
  type(None): {"type": "null"},
  list: {"type": "array"},
  tuple: {"type": "array"},
  dict: {"type": "object"},
  Any: {},
}
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Source|Sources):", re.M)
_ARGUMENT = re.compile(r"(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*)", re.DOTALL)
_MAX_SHOWN = 300  # Characters of what is wrong with an argument.


def of_function(function: Callable[..., Any]) -> Schema:
  """The schema of a tool, {"type": "function", "function": {…}}.

  Raises:
    ValueError: The function has no description, an argument has no hint, a hint
      of another kind or no description, or cannot be given by name.
  """
  name = getattr(function, "__name__", "tool")
  document = inspect.getdoc(function)
  if not document:
    raise _bad(name, "no docstring; its first paragraph tells a model what for")
  described = _SECTION.split(document)
  about = dict(_arguments(described))
  hints = typing.get_type_hints(function)
  properties: dict[str, Schema] = {}
  required = []
  for argument, parameter in inspect.signature(function).parameters.items():
    if parameter.kind not in (
      parameter.POSITIONAL_OR_KEYWORD,
      parameter.KEYWORD_ONLY,
    ):
      raise _bad(name, f"the argument {argument!r}, which has no name to give")
    if argument not in hints:
      raise _bad(name, f"no type hint of the argument {argument!r}")
    if argument not in about:
      raise _bad(
        name, f"no description of the argument {argument!r} under 'Args:'"
      )
    properties[argument] = {
      **_of_hint(name, hints[argument]),
      "description": about[argument],
    }
    if parameter.default is parameter.empty:
      required.append(argument)
  parameters: Schema = {"type": "object", "properties": properties}
  if required:
    parameters["required"] = required
  return of_parts(name, described[0].strip(), parameters)


def of_parts(name: str, description: str, parameters: Schema) -> Schema:
  """A schema as chat templates read it."""
  return {
    "type": "function",
    "function": {
      "name": name,
      "description": description,
      "parameters": parameters,
    },
  }


def _bad(name: str, what: str) -> ValueError:
  return ValueError(
    f"tool_schemas: the function {name!r} has {what}; see"
    " grpo_jax/rewards/agents/tool_schemas.py for what a tool needs."
  )


def _arguments(sections: Sequence[str]) -> list[tuple[str, str]]:
  """Names and descriptions of a docstring's `Args:`, split into sections."""
  if "Args" not in sections:
    return []
  text = sections[sections.index("Args") + 1]
  lines = [line for line in text.splitlines() if line.strip()]
  if not lines:
    return []
  indent = min(len(line) - len(line.lstrip()) for line in lines)
  entries: list[str] = []
  for line in lines:
    if not line[indent].isspace() or not entries:
      entries.append(line.strip())
    else:
      entries[-1] += " " + line.strip()
  found = [_ARGUMENT.fullmatch(entry) for entry in entries]
  return [(match[1], match[2].strip()) for match in found if match]


def _of_hint(name: str, hint: Any) -> Schema:
  """The schema of a type."""
  if hint in _NAMES:
    return dict(_NAMES[hint])
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  of_hint = functools.partial(_of_hint, name)
  if origin in (typing.Union, types.UnionType):
    kinds = [of_hint(x) for x in inner if x is not type(None)]
    return _of_union(kinds, type(None) in inner)
  if origin is typing.Literal:
    kinds = [_NAMES.get(type(value), {}) for value in inner]
    if all(kinds):
      found = list(dict.fromkeys(kind["type"] for kind in kinds))
      return {
        "type": found[0] if len(found) == 1 else found,
        "enum": list(inner),
      }
  if origin is list:
    return {"type": "array", "items": of_hint(inner[0])}
  if origin is tuple and ... not in inner:
    return {"type": "array", "prefixItems": [of_hint(x) for x in inner]}
  if origin is dict:
    return {"type": "object", "additionalProperties": of_hint(inner[1])}
  raise _bad(name, f"the type hint {hint!r}, which is none of JSON's")


def _of_union(kinds: Sequence[Schema], nullable: bool) -> Schema:
  if len(kinds) == 1:
    found = dict(kinds[0])
  elif all(kind.keys() == {"type"} for kind in kinds):
    names = sorted({kind["type"] for kind in kinds})
    found = {"type": names[0] if len(names) == 1 else names}
  else:
    found = {"anyOf": list(kinds)}
  return {**found, "nullable": True} if nullable else found


class Checker:
  """Says what is wrong with a call, in words for the policy that made it."""

  def __init__(self, schemas: Sequence[Schema]):
    """Reads the schemas of all tools.

    Raises:
      ImportError: The package `jsonschema` is missing.
    """
    jsonschema = _import_jsonschema()
    self._validators: dict[str, Any] = {}
    for schema in schemas:
      function = schema["function"]
      self._validators[function["name"]] = jsonschema.Draft202012Validator(
        _strict(function["parameters"])
      )

  def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
    """What is wrong, or ""; see `call_formats.Check`."""
    if name not in self._validators:
      known = ", ".join(map(repr, self._validators))
      return f"Error: there is no tool {name!r:.60}; there is {known}."
    validator = self._validators[name]
    takes = validator.schema.get("properties", {})
    for argument in validator.schema.get("required", ()):
      if argument not in arguments:
        return f"Error: {name} needs the argument {argument!r}."
    for argument in arguments:
      if argument not in takes:
        own = ", ".join(map(repr, takes)) or "none"
        return f"Error: {name} has no argument {argument!r:.60}, but {own}."
    for wrong in validator.iter_errors(dict(arguments)):
      where = ".".join(map(str, wrong.absolute_path))
      message = wrong.message[:_MAX_SHOWN]
      return f"Error: the argument {where!r} of {name}: {message}."
    return ""


def _strict(schema: Any) -> Any:
  """A schema in which None is allowed where it says "nullable"."""
  if isinstance(schema, list):
    return [_strict(part) for part in schema]
  if not isinstance(schema, dict):
    return schema
  found = {key: _strict(part) for key, part in schema.items()}
  if found.pop("nullable", None) is True:
    return {"anyOf": [found, {"type": "null"}]}
  return found


def _import_jsonschema() -> Any:
  """The optional package, imported when it is needed."""
  try:
    import jsonschema
  except ImportError as error:
    raise ImportError(
      "grpo_jax.rewards.agents.tool_schemas: calls are checked with the package"
      " 'jsonschema'; install grpo_jax[tools]."
    ) from error
  return jsonschema
