"""Conversations in records: messages, checked, and the ids of replies.

    prompt([{"role": "user", "content": "Hi?"}])
    completion({"role": "assistant", "content": "Yes."}, "completion")

Each returns a `Conversation`, which is a text that has its messages. Whoever
reads text, such as a log, reads the text; the encoder of a chat template reads
the messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import strict_json

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")


class Conversation(str):
  """The text of messages, with the messages.

  The text of a single message is its content. In the text of several, a role
  stands before each content.

  Attributes:
    messages: Messages, as `checked` returns them.
    options: Inputs of the chat template for this conversation, such as `tools`.
  """

  messages: list[Message]
  options: dict[str, Any]

  def __new__(
    cls, messages: list[Message], options: Mapping[str, Any] | None = None
  ):
    """Makes the text of messages."""
    lines = [f"{turn['role']}: {_as_text(turn)}" for turn in messages]
    text = _as_text(messages[0]) if len(messages) == 1 else "\n".join(lines)
    conversation = super().__new__(cls, text)
    conversation.messages, conversation.options = messages, dict(options or {})
    return conversation

  def __getnewargs__(self):
    return self.messages, self.options

  @property
  def is_text(self) -> bool:
    """True if the text is all that the conversation has."""
    (first, *more), text = self.messages, {"role", "content"}
    return not (more or self.options or first.keys() - text)


def _as_text(message: Message) -> str:
  calls = [call["function"] for call in message.get("tool_calls", ())]
  texts = [f"{x.get('name')}({x.get('arguments')})" for x in calls]
  return "\n".join(filter(None, [message["content"], *texts]))


def prompt(value: Any, tools: Any = None, options: Any = None) -> str:
  """Checks the prompt of a record: a text, or messages without a last reply.

  Tools are JSON schemas, or the text of such a list; options are further inputs
  of the chat template. None: there are none.

  Raises:
    ValueError: One of them is malformed.
  """
  if isinstance(tools, str):
    with contextlib.suppress(ValueError, RecursionError):
      tools = strict_json.loads(tools)
  if tools is not None and not (
    isinstance(tools, list) and all(isinstance(x, Mapping) for x in tools)
  ):
    raise ValueError(
      f"found 'tools' = {tools!r:.60}; need a list of JSON schemas, each an"
      " object."
    )
  if options is not None and not isinstance(options, Mapping):
    raise ValueError(
      f"found 'chat_options' = {options!r:.60}; need an object with inputs of"
      " the chat template, as {'enable_thinking': false}."
    )
  more = {**(options or {}), **({"tools": tools} if tools else {})}
  if isinstance(value, str):
    return Conversation([user_message(value)], more) if more else value
  messages = _of_record(value, "prompt")
  if messages[-1]["role"] == "assistant":
    raise ValueError(
      "found 'prompt' whose last message is the assistant's; a reply that is"
      " begun is not gone on with. Put the reply into 'completion'."
    )
  return Conversation(messages, more)


def completion(value: Any, field: str) -> str:
  """Checks the completion of a record: replies, and messages between them.

  It is a text, a message of the assistant, or a list of messages that begins
  and ends with one. `field` is for messages of errors.

  Raises:
    ValueError: It is none of these.
  """
  if isinstance(value, str):
    return value
  messages = _of_record([value] if isinstance(value, Mapping) else value, field)
  for place, at in ("first", 0), ("last", -1):
    if messages[at]["role"] != "assistant":
      raise ValueError(
        f"found {field!r} whose {place} message is of"
        f" {messages[at]['role']!r}; need one of 'assistant', as the policy"
        " writes replies."
      )
  weights = [turn.get("weight", 1) for turn in messages]
  if bad := [x for x in weights if x not in (0, 1)]:
    raise ValueError(
      f"found {field!r} with a message of the weight {bad[0]!r:.20}; need 0"
      " for a reply that is read and not trained, or 1."
    )
  if not any(
    x for x, turn in zip(weights, messages, strict=True) if _is_reply(turn)
  ):
    raise ValueError(
      f"found {field!r} whose replies all have the weight 0; need one that is"
      " trained. Give it the weight 1, or take the row out."
    )
  return Conversation(messages)


def user_message(text: str) -> Message:
  """The message of a user."""
  return {"role": "user", "content": text}


def _is_reply(message: Message) -> bool:
  return message["role"] == "assistant"


def split(messages: Any) -> tuple[list[Any], list[Any] | None]:
  """Splits messages into a prompt and a completion, before the first reply.

  Messages after the last reply are left out. Without a reply, all are the
  prompt, and the completion is None.

  Raises:
    ValueError: A message is malformed, or the first is a reply.
  """
  chat = _of_record(messages, "messages")
  replies = [at for at, turn in enumerate(chat) if _is_reply(turn)]
  if not replies:
    return chat, None
  if not replies[0]:
    raise ValueError(
      "found 'messages' that begin with the assistant's; need a message of the"
      " user before it, to which it replies."
    )
  return chat[: replies[0]], chat[replies[0] : replies[-1] + 1]


def of_pair(chosen: Any, rejected: Any, question: Any) -> tuple[Any, Any, Any]:
  """Takes what a pair of chats begins with out of both.

  Args:
    chosen, rejected: Each a text or a chat.
    question: The prompt, a text or a chat; None: what both chats begin with.

  Returns:
    The two completions, and the prompt.

  Raises:
    ValueError: The prompt is missing, or a chat is malformed or begins with
      another prompt.
  """
  chats: list[Any] = [
    x if isinstance(x, str) else _of_record(x, field)
    for x, field in ((chosen, "chosen"), (rejected, "rejected"))
  ]
  if question is not None:
    before = _prompt_messages(chats, question)
    chosen, rejected = (_after(chat, before) for chat in chats)
    return chosen, rejected, before if len(before) > 1 else question
  if not any(isinstance(chat, str) for chat in chats):
    if chats[0] == chats[1]:
      return chats[0][-1], chats[1][-1], chats[0][:-1]
    starts = range(1, min(map(len, chats)))
    for at in reversed(starts):
      same = chats[0][:at] == chats[1][:at]
      if same and all(_is_reply(chat[at]) for chat in chats):
        return chats[0][at:], chats[1][at:], chats[0][:at]
  raise ValueError(
    "found no 'prompt'; need one, or 'chosen' and 'rejected' as chats that"
    " begin with the same message of the user."
  )


def _prompt_messages(chats: Sequence[Any], question: Any) -> list[Message]:
  """The messages of a prompt; of a text, those that a chat begins with."""
  if not isinstance(question, str):
    return _of_record(question, "prompt")
  starts = [x[: _first_reply(x)] for x in chats if not isinstance(x, str)]
  before: list[Message] = max(starts, key=len, default=[])
  if before and before[-1]["content"].strip() != question.strip():
    raise _another_prompt(before)
  return before


def _first_reply(chat: list[Message]) -> int:
  return next((at for at, turn in enumerate(chat) if _is_reply(turn)), 0)


def _after(chat: Any, before: list[Message]) -> Any:
  """A chat without the prompt that it may begin with."""
  if isinstance(chat, str):
    return chat
  if before and chat[: len(before)] == before:
    return chat[len(before) :] or chat
  if first := _first_reply(chat):
    raise _another_prompt(chat[:first])
  return chat


def _another_prompt(start: list[Message]) -> ValueError:
  return ValueError(
    f"found a chat that begins with {start!r:.80}, and another 'prompt'; need"
    " the same messages, or a chat that begins with the reply. Or take 'prompt'"
    " out: it is then what both chats begin with."
  )


def reply(
  tokenizer: Any,
  messages: Sequence[Message],
  options: Mapping[str, Any],
  replies: Sequence[Message],
) -> tuple[np.ndarray, np.ndarray]:  # [any] int32, [any] bool
  """Encodes a completion of messages as the chat template writes it.

  Returns:
    The ids after those of the prompt, up to the end token of the last reply;
    and a mask that is True on ids that the policy reads and does not imitate:
    messages of others, and replies of the weight 0.

  Raises:
    ValueError: The template writes a conversation differently if more follows.
  """
  ids: list[int] = []
  observed: list[bool] = []
  before, waiting = [*map(for_template, messages)], list[Message]()
  for message in map(for_template, replies):
    weight = message.pop("weight", 1)
    if not _is_reply(message):
      waiting.append(message)
      continue
    if ids:
      ids = tokenizer.extend(ids, before, waiting, **options)
      before, waiting = [*before, *waiting], []
      observed += [True] * (len(ids) - len(observed))
    opening = tokenizer.chat_text(before, True, **options)
    before = [*before, message]
    text = tokenizer.chat_text(before, False, **options)
    if not text.startswith(opening):
      raise ValueError(
        "config.data.template='chat': the template writes a reply otherwise"
        f" than it opens one: {text[: len(opening)][-60:]!r} instead of"
        f" {opening[-60:]!r}. Set an option of the template, as"
        " config.data.chat_options={'enable_thinking': False}; or give the"
        " completion as a text."
      )
    new = tokenizer.encode(text[len(opening) :])
    ends = [at for at, id_ in enumerate(new) if id_ in tokenizer.end_ids]
    new = new[: ends[-1] + 1] if ends else [*new, tokenizer.end_ids[0]]
    ids = [*ids, *new]
    observed += [not weight] * len(new)
  return np.asarray(ids, np.int32), np.asarray(observed, bool)


def for_template(message: Message) -> Message:
  """A message with the arguments of its calls as data, for templates."""
  if not message.get("tool_calls"):
    return {**message}
  calls = []
  for call in message["tool_calls"]:
    function = dict(call["function"])
    # A call whose arguments cannot be parsed is written as it is.
    with contextlib.suppress(KeyError, RecursionError, TypeError, ValueError):
      function["arguments"] = strict_json.loads(function["arguments"])
    calls.append({**call, "function": function})
  return {**message, "tool_calls": calls}


def _of_record(value: Any, field: str) -> list[Message]:
  """Checks the messages of a field of a record."""
  if not isinstance(value, list):
    raise ValueError(
      f"found {field!r} = {value!r:.60}; need a string, or a list of messages,"
      " each an object with a 'role' and a 'content'."
    )
  if not value:
    raise ValueError(
      f"found {field!r} = []; need at least one message. Take the row out."
    )
  try:
    return [_checked(number, message) for number, message in enumerate(value)]
  except ValueError as error:
    raise ValueError(f"found {field!r} in which {error}") from error


def checked(messages: Any) -> list[Message]:
  """Checks the messages of a request, and returns them with text as content.

  Raises:
    ValueError: There are none, one is malformed or has other content than text,
      or the last message is a reply.
  """
  if not isinstance(messages, list) or not messages:
    raise ValueError(
      f"messages is {messages!r:.80}; needs a list of at least one message."
    )
  chat = [_checked(number, message) for number, message in enumerate(messages)]
  if chat[-1]["role"] == "assistant":
    raise ValueError(
      "the last message is the assistant's; a reply that is begun is not gone"
      " on with. Let the last one be the user's or a tool's."
    )
  return chat


def _checked(number: int, message: Any) -> Message:
  role = message.get("role") if isinstance(message, Mapping) else None
  if role not in ROLES:
    raise ValueError(
      f"messages[{number}] is {message!r:.80}; needs an object with a role,"
      f" one of {', '.join(ROLES)}, and a content."
    )
  content = message.get("content")
  if content is None and role == "assistant":
    content = ""
  if isinstance(content, list):
    content = "".join(_part(number, part) for part in content)
  if not isinstance(content, str):
    raise ValueError(
      f"messages[{number}].content is {content!r:.80}; needs text."
    )
  calls = message.get("tool_calls")
  if calls is not None and not (
    isinstance(calls, list)
    and all(
      isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
      for call in calls
    )
  ):
    raise ValueError(
      f"messages[{number}].tool_calls is {calls!r:.80}; needs a list of"
      " calls of functions."
    )
  fields = {name: x for name, x in message.items() if x is not None}
  return {**fields, "content": content}


def _part(number: int, part: Any) -> str:
  match part:
    case {"type": "text", "text": str(text)}:
      return text
  raise ValueError(
    f"messages[{number}].content has a part {part!r:.80}; needs parts of"
    " the type 'text': the policy reads nothing else."
  )


def answer_text(value: Any) -> Any:
  """An answer as text if it is a number, else as it is.

  A column of whole numbers with a gap has fractions and a NaN: 3.0 is "3", and
  NaN is "".
  """
  if type(value) not in (int, float):
    return value
  if value != value:
    return ""
  is_whole = float(value).is_integer() and abs(value) < 2**53
  return str(int(value) if is_whole else value)
