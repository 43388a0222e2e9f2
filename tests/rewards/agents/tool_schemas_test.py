"""Schemas of functions, and what they say of calls."""

import sys

import pytest

from grpo_jax.rewards.agents import tools
from tests.rewards.agents import tool_functions


def test_a_schema_is_made_of_hints_and_docstring():
  assert tools.of_function(tool_functions.add) == {
    "type": "function",
    "function": {
      "name": "add",
      "description": "Adds two numbers.\n\nThey may be\nof any size.",
      "parameters": {
        "type": "object",
        "properties": {
          "x": {"type": "number", "description": "The first number."},
          "y": {
            "type": "number",
            "description": "The second: 1 if it is missing.",
          },
          "note": {
            "type": "string",
            "nullable": True,
            "description": "Unused.",
          },
        },
        "required": ["x"],
      },
    },
  }


def test_hints_are_types_of_json():
  schema = tools.of_function(tool_functions.everything)
  properties = schema["function"]["parameters"]["properties"]
  for value in properties.values():
    del value["description"]
  assert properties == {
    "unit": {"type": "string", "enum": ["m", "km"]},
    "choice": {"type": ["integer", "string"], "enum": [1, "a"]},
    "items": {"type": "array", "items": {"type": "string"}},
    "pair": {
      "type": "array",
      "prefixItems": [{"type": "integer"}, {"type": "string"}],
    },
    "table": {"type": "object", "additionalProperties": {"type": "integer"}},
    "either": {"type": ["integer", "string"]},
    "nested": {
      "anyOf": [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "string"},
      ]
    },
    "anything": {},
    "plain": {"type": "array"},
    "flag": {"type": "boolean"},
  }


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("no_document", "'no_document' has no docstring"),
    ("no_hint", "'no_hint' has no type hint of the argument 'x'"),
    ("not_described", "has no description of the argument 'x' under 'Args:'"),
    ("many", "has the argument 'x', which has no name to give"),
    ("strange", "has the type hint <class 'set'>, which is none of JSON's"),
  ],
)
def test_what_a_model_could_not_call_is_refused(name, message):
  with pytest.raises(ValueError, match=message):
    tools.of_function(getattr(tool_functions, name))


@pytest.fixture(scope="module")
def check():
  functions = (tool_functions.add, tool_functions.everything)
  return tools.Checker([*map(tools.of_function, functions)])


@pytest.mark.parametrize(
  "arguments", [{"x": 1}, {"x": 1.5, "y": 2}, {"x": 0, "note": None}]
)
def test_good_arguments_pass(check, arguments):
  assert check("add", arguments) == ""


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("subtract", {}, "Error: there is no tool 'subtract'; there is 'add', 'ev"),
    ("add", {"y": 1}, "Error: add needs the argument 'x'."),
    ("add", {"x": 1, "z": 2}, "Error: add has no argument 'z', but 'x', 'y'"),
    (
      "add",
      {"x": "1"},
      "the argument 'x' of add: '1' is not of type 'number'.",
    ),
    ("add", {"x": True}, "the argument 'x' of add: True is not of type"),
    ("add", {"x": None}, "the argument 'x' of add: None is not of type"),
    ("add", {"x": 1, "note": 2}, "the argument 'note' of add: 2 is not valid"),
  ],
)
def test_wrong_calls_are_told_why(check, name, arguments, message):
  assert message in check(name, arguments)


def test_what_is_told_has_some_length(check):
  assert len(check("add", {"x": "1" * 10**5})) < 400
  assert len(check("x" * 10**5, {})) < 400
  assert len(check("add", {"x": 1, "y" * 10**5: 1})) < 400


def test_lists_in_lists_without_end_are_told_too(check):
  nested = 1
  for _ in range(sys.getrecursionlimit()):
    nested = [nested]
  assert check("add", {"x": nested}).endswith("add are nested too deeply.")


def test_places_within_arguments_are_named(check):
  good = {
    "unit": "m",
    "choice": 1,
    "items": ["a"],
    "pair": [1, "a"],
    "table": {"a": 1},
    "either": 1,
    "nested": "a",
    "anything": None,
    "plain": [],
    "flag": False,
  }
  assert check("everything", good) == ""
  for name, value, message in (
    ("items", ["a", 1], "'items.1' of everything: 1 is not of type 'string'"),
    ("table", {"a": "b"}, "'table.a' of everything: 'b' is not of type"),
    ("unit", "cm", "'unit' of everything: 'cm' is not one of ['m', 'km']"),
    ("pair", ["a", "a"], "'pair.0' of everything: 'a' is not of type"),
    ("table", {"a": 1.0}, "'table.a' of everything: 1.0 is not of type 'int"),
  ):
    assert message in check("everything", {**good, name: value})


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "jsonschema", None)
  with pytest.raises(ImportError, match=r"'jsonschema'; install grpo_jax\[too"):
    tools.Checker([])
