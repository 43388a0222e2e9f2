r"""Formats of calls of tools and of their results, in chats of three kinds.

    qwen     <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>, any
             number of them; results in one turn of the user, each as
             <tool_response>\n…\n</tool_response>    (Qwen2.5, Qwen3)
    hermes   the same calls; results in one turn of the role `tool`
             (Hermes 2 Pro, Hermes 3)
    llama    {"name": …, "parameters": {…}} is the whole message, one call; the
             result in a turn of the role `ipython`, as a JSON string
             (Llama 3.1, 3.2, 3.3)

`Format.parse` reads an action, and `Format.render` writes what the policy reads
next: markup and results by turns (`types.HostEnvironment`). So prompt, action
and rendered results, one after the other, are the text that the model's chat
template gives for the same messages with a generation prompt. `difference`
checks it with the template of a checkpoint.

An action stays as the policy wrote it. A template that writes a call again may
change its text, in these ways:

- JSON is written anew: with one space after `:` and `,`, keys in their order,
  `é` for `\u00e9`, and nothing around `name` and `arguments`.
- Text between calls and behind the last is left out, and Llama's templates
  strip the white space around a message.
- Qwen3 writes a thought as `<think>\n…\n</think>\n\n` whatever line breaks it
  had, drops thoughts before the last question of a user, and leaves out the
  empty thought of `enable_thinking=False` once the turn is over.
- Hermes writes a line break behind the last `</tool_response>` of a turn, once
  another turn follows. While the next action is written, and always here, the
  line break is missing.

Sources: the templates in the tokenizers of Qwen/Qwen2.5-7B-Instruct,
Qwen/Qwen3-8B, Qwen/Qwen3-4B-Instruct-2507, NousResearch/Hermes-3-Llama-3.1-8B
(`tool_use`) and meta-llama/Llama-3.1-8B-Instruct and -3.2-3B-Instruct.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax import strict_json

# (name, arguments) -> what is wrong with them, or "".
Check = Callable[[str, Mapping[str, Any]], str]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _END_THINK = "<think>", "</think>"
_PYTHON_TAG = "<|python_tag|>"
# The beginning of a thought, or of something like a call.
_FIRST = re.compile(r"<think>|<tool_call>|<\|python_tag\|>|\{\s*\"")
_OBJECT = re.compile(r"\{\s*\"")
_TAGGED = re.compile(r"<think>|<tool_call>")
# Keys of a call; an object without them is an answer.
_KEYS = re.compile(r'"(name|parameters|arguments)"\s*:')
_SPACE = re.compile(r"\s*")
_BUILTIN = re.compile(r"\w+\.call\(.*\)", re.DOTALL)
_MAX_SHOWN = 300  # Characters of a message about a call.


class ToolCall(NamedTuple):
  """A call that an action makes.

  Attributes:
    name: The tool's name; "" if it could not be read.
    arguments: Arguments by name.
    error: A message for the policy about a mistake; "" if the call can be made.
    malformed: True if the call could not be read at all.
  """

  name: str
  arguments: dict[str, Any]
  error: str = ""
  malformed: bool = False


class Parsed(NamedTuple):
  """The text and the calls of an action.

  Attributes:
    text: The text outside calls, with thoughts, without end tokens.
    calls: The calls in their order.
    ended: True if the action has the end token of a turn.
  """

  text: str
  calls: tuple[ToolCall, ...]
  ended: bool

  @property
  def error(self) -> str:
    """The first error of a call, or ""."""
    return next((call.error for call in self.calls if call.error), "")


def _no_error(name: str, arguments: Mapping[str, Any]) -> str:
  del name, arguments
  return ""


@dataclasses.dataclass(frozen=True)
class Format:
  r"""The format of calls and results in one kind of chat.

  Attributes:
    read: (text without end tokens) -> (text outside calls, calls).
    ends: Tokens that end a turn; the template writes the first.
    before, between, after: Markup around results, from the end of the policy's
      turn up to where it writes again.
    write: (result) -> the result in the markup.
    most_calls: Most calls of an action; None: any number.
    opening: The template's text at the beginning of each turn of the policy,
      behind its role: `<think>\n\n</think>\n\n` of Qwen3 without thinking,
      `<think>\n` of models that always think.
  """

  read: Callable[[str], tuple[str, list[ToolCall]]]
  ends: tuple[str, ...]
  before: str
  between: str
  after: str
  write: Callable[[str], str] = str
  most_calls: int | None = None
  opening: str = ""

  def parse(self, action: str, check: Check = _no_error) -> Parsed:
    """Reads an action; a wrong call gets an error, and nothing is raised.

    Calls in a thought do not count, and a thought without an end goes on to the
    end of the action. The first thought begins in `opening` or with a
    `<think>`, all others with a `<think>`. A `<think>` in the JSON of a call is
    text.

    Args:
      action: The policy's text, with its end token if it wrote one.
      check: Returns what is wrong with a call that can be read.
    """
    end = next((x for x in self.ends if action.endswith(x)), "")
    content = action.removesuffix(end)
    start = self._end_of_thoughts(content)
    text, raw_calls = self.read(content[start:])
    calls = [
      call if call.error else call._replace(error=check(*call[:2]))
      for call in raw_calls
    ]
    if self.most_calls is not None and len(calls) > self.most_calls:
      message = f"Error: a message has at most {self.most_calls} call."
      calls = [ToolCall(calls[0].name, {}, message, malformed=True)]
    return Parsed((content[:start] + text).strip(), tuple(calls), bool(end))

  def _end_of_thoughts(self, text: str) -> int:
    """Returns the place behind the thoughts; the end, if one stays open."""
    start = 0
    if self.opening.rfind(_THINK) > self.opening.rfind(_END_THINK):
      start = _end_of_thought(text, 0)
    while (first := _FIRST.search(text, start)) and first.group() == _THINK:
      start = _end_of_thought(text, first.start())
    return start

  def render(
    self, results: Sequence[str], ended: bool = True
  ) -> tuple[str, ...]:
    """Writes results behind an action: (markup, result, markup, …, markup).

    There is at least one result. `ended`: the action has its turn's end token.
    """
    parts = ["" if ended else self.ends[0]]
    for number, result in enumerate(results):
      parts[-1] += self.between if number else self.before
      parts += [self.write(result), ""]
    parts[-1] += self.after + self.opening
    return tuple(parts)


def named(
  name: str, opening: str = "", markup: Sequence[str] | None = None
) -> Format:
  """Returns a format of `FORMATS` by its name.

  A `markup` is (before, between, after), in the place of the format's own.

  Raises:
    ValueError: The format does not exist, or the markup is not three texts.
  """
  if name not in FORMATS:
    raise ValueError(
      f"call_formats: unknown format {name!r}; known are"
      f" {', '.join(map(repr, FORMATS))}."
    )
  form = dataclasses.replace(FORMATS[name], opening=opening)
  if markup is None:
    return form
  if (
    isinstance(markup, str)
    or len(markup) != 3
    or not all(isinstance(part, str) for part in markup)
  ):
    raise ValueError(
      f"call_formats: markup={markup!r:.80}; needs three texts: before the"
      " first result, between two, and after the last."
    )
  before, between, after = markup
  return dataclasses.replace(form, before=before, between=between, after=after)


# Messages for the test of a template.
_QUESTION = {"role": "user", "content": "One?"}
_PROBES = (("lookup", {"query": "one"}, "First."), ("add", {"x": 1}, "Second."))


def difference(format: Format, chat_text: Callable[..., str]) -> str:
  """Returns the difference of a chat template from a format; "" without one.

  Args:
    format: The expected format.
    chat_text: (messages) -> text with a generation prompt, such as
      `Tokenizer.chat_text` with the tools of the run; ValueError if the
      template refuses them.
  """
  probes = _PROBES[: format.most_calls]
  calls: list[dict[str, Any]] = [
    {
      "type": "function",
      "id": f"call{number:05}",
      "function": {"name": name, "arguments": arguments},
    }
    for number, (name, arguments, _) in enumerate(probes)
  ]
  results = [
    {
      "role": "tool",
      "name": name,
      "tool_call_id": f"call{number:05}",
      "content": result,
    }
    for number, (name, _, result) in enumerate(probes)
  ]
  reply = {"role": "assistant", "content": "", "tool_calls": calls}
  # Qwen3 leaves out the empty thought of turns that are over.
  start = chat_text([_QUESTION]).removesuffix(format.opening)
  try:
    text = chat_text([_QUESTION, reply, *results])
  except ValueError as error:  # Llama's template refuses two calls.
    return f"it refuses {len(probes)} calls: {error}"
  ending = "".join(format.render([result for _, _, result in probes]))
  if not text.endswith(ending):
    tail = text[-len(ending) - 20 :]
    return f"it writes calls and results as {tail!r}, and not as {ending!r}"
  if not text.startswith(start):
    return "it writes a question in another way once it is answered"
  action = text[len(start) : -len(ending)]
  parsed = format.parse(action)
  expected = tuple(ToolCall(name, arguments) for name, arguments, _ in probes)
  if parsed.calls != expected or not parsed.ended:
    return f"it writes calls as {action!r}"
  return ""


# Readers: (text without end tokens) -> (text outside calls, calls).


def _tagged(text: str) -> tuple[str, list[ToolCall]]:
  """Reads calls in tags; JSON may have the tags within its texts."""
  texts: list[str] = []
  calls: list[ToolCall] = []
  at = 0
  while mark := _TAGGED.search(text, at):
    begin = mark.end()
    if mark.group() == _THINK:
      end = _end_of_thought(text, begin)
      texts.append(text[at:end])
      at = end
      continue
    texts.append(text[at : mark.start()])
    value, at, fault = _json(text, begin)
    if not fault and not text.startswith(_CLOSE, at):
      fault = f"{_CLOSE} has to follow the JSON"
    if fault:
      end = text.find(_CLOSE, begin)
      if end < 0:
        fault, end = f"{_CLOSE} is missing", len(text)
      at = end
    calls.append(_malformed(fault) if fault else _call(value, ("arguments",)))
    at = min(at + len(_CLOSE), len(text))
  texts.append(text[at:])
  return "".join(texts), calls


def _single(content: str) -> tuple[str, list[ToolCall]]:
  """Reads a message that is one call, or code behind the tag of Python.

  An object without the keys of a call is an answer. An object with a "name"
  alone lacks its parameters; beside other keys a "name" is not that of a tool.
  """
  text = content.strip()
  code = text.removeprefix(_PYTHON_TAG).strip()
  if _OBJECT.match(code):
    value, at, fault = _json(code, 0)
    fields = {key[1] for key in _KEYS.finditer(code)} if fault else {*value}
    is_call = fields == {"name"} or fields & {"parameters", "arguments"}
    if not is_call and text == code:
      return content, []
    if not fault and at < len(code):
      fault = f"nothing may follow the call, and {code[at:]!r:.40} does"
    keys = ("parameters", "arguments")
    return "", [_malformed(fault) if fault else _call(value, keys)]
  if not text.startswith(_PYTHON_TAG):
    return content, []
  return "", [_builtin(code) or ToolCall("python", {"code": code})]


def _builtin(code: str) -> ToolCall | None:
  """Reads `tool.call(query="…")`, Llama's call of a tool from its training."""
  if not _BUILTIN.fullmatch(code):
    return None
  try:
    match ast.parse(code, mode="eval").body:
      case ast.Call(ast.Attribute(ast.Name(name), "call"), [], keywords):
        arguments = {
          str(x.arg): ast.literal_eval(x.value) for x in keywords if x.arg
        }
        json.dumps(arguments, allow_nan=False)  # Neither 1e999 nor a set.
        if len(arguments) == len(keywords):
          return ToolCall(name, arguments)
  except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
    pass
  return None


def _end_of_thought(text: str, at: int) -> int:
  """Returns the end of the thought that is open at a place."""
  end = text.find(_END_THINK, at)
  return len(text) if end < 0 else end + len(_END_THINK)


def _json(text: str, at: int) -> tuple[Any, int, str]:
  """Reads a JSON value: (value, its end behind white space, error or "")."""
  at = _end_of_space(text, at)
  try:
    value, end = strict_json.DECODER.raw_decode(text, at)
  except json.JSONDecodeError as error:
    return (
      None,
      at,
      f"it is not JSON: {error.msg} at character {error.pos - at}",
    )
  except (ValueError, RecursionError) as error:
    return None, at, f"it is not JSON: {error}"
  return value, _end_of_space(text, end), ""


def _end_of_space(text: str, at: int) -> int:
  space = _SPACE.match(text, at)
  assert space is not None  # The match may be empty.
  return space.end()


def _call(value: Any, keys: Sequence[str]) -> ToolCall:
  """Returns the call in a JSON value, with arguments under one of the keys."""
  if isinstance(value, dict):
    name = value.get("name")
    arguments = next((value[key] for key in keys if key in value), None)
    if isinstance(name, str) and isinstance(arguments, dict):
      return ToolCall(name, arguments)
  return _malformed(f'it needs a text "name" and an object "{keys[0]}"')


def _malformed(fault: str) -> ToolCall:
  message = f"Error: the call cannot be read: {fault[:_MAX_SHOWN]}."
  return ToolCall("", {}, message, malformed=True)


def _as_json(result: str) -> str:
  """Returns a text as it is in a JSON string, without the quotes."""
  return json.dumps(result, ensure_ascii=False)[1:-1]


FORMATS: dict[str, Format] = {
  "qwen": Format(
    _tagged,
    ends=("<|im_end|>", "<|endoftext|>"),
    before="\n<|im_start|>user\n<tool_response>\n",
    between="\n</tool_response>\n<tool_response>\n",
    after="\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
  ),
  "hermes": Format(
    _tagged,
    ends=("<|im_end|>", "<|end_of_text|>", "<|endoftext|>"),
    before="\n<|im_start|>tool\n<tool_response>\n",
    between="\n</tool_response>\n<tool_response>\n",
    after="\n</tool_response><|im_end|><|im_start|>assistant\n",
  ),
  "llama": Format(
    _single,
    ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    before='<|start_header_id|>ipython<|end_header_id|>\n\n"',
    between='"<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"',
    after='"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    write=_as_json,
    most_calls=1,
  ),
}
