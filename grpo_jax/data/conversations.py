"""Messages as token ids, in the form in which a policy was trained.

With `config.data.template="chat"` the tokenizer's chat template writes them.
Any other template is for one prompt and has no roles; a conversation is then
text: the messages before the first reply, one on each line, are the prompt of
the template; after each reply stands an end token; what follows is written as
it is.

Ids that were sampled stay as they are: `extended` writes only what comes after
them. To encode their text again may give other ids, to which no log-prob
belongs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax import strict_json
from grpo_jax.data.encoder import Encoder

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_TOKENS = 2**20  # Of a message; requests are smaller.


class Writer:
  """Writes conversations for a policy."""

  def __init__(self, encoder: Encoder):
    """Takes over an encoder, with its tokenizer and its template."""
    self._encoder = encoder
    self._text = encoder.tokenizer

  @property
  def has_roles(self) -> bool:
    """Whether a chat template writes conversations."""
    return self._encoder.template == "chat"

  def ids(self, messages: Sequence[Message], /, **options: Any) -> list[int]:
    """Ids of a conversation, after which the policy writes a reply.

    Args:
      messages: As `checked` returns them; the last is not the assistant's.
      **options: What the chat template reads besides, as `tools`.

    Raises:
      ValueError: The template or the tokenizer refuses them.
    """
    if self.has_roles:
      return self._text.chat_ids(
        [_for_template(message) for message in messages],
        **{**self._encoder.chat_options, **options},
      )
    if options.get("tools"):
      raise ValueError(
        "the policy was trained without a chat template"
        " (config.data.template), which would have to write the tools; ask"
        " without tools, and say in the prompt what there is."
      )
    before = list(
      itertools.takewhile(lambda m: m["role"] != "assistant", messages)
    )
    prompt = "\n".join(message["content"] for message in before)
    ids = self._encoder.prompt({"prompt": prompt}).tolist()
    return [*ids, *self._plain(messages[len(before) :])]

  def extended(
    self,
    ids: Sequence[int],
    messages: Sequence[Message],
    new: Sequence[Message],
    /,
    **options: Any,
  ) -> list[int]:
    """Ids of a conversation that goes on; it begins with those so far.

    Args:
      ids: All ids so far; those of the last reply are as they were sampled.
      messages: What they stand for; the last is a reply, with all of its text
        as content.
      new: What follows.
      **options: As in `ids`.

    Raises:
      ValueError: The template writes what was there differently now.
    """
    if self.has_roles:
      return self._text.extend(
        ids,
        [_for_template(message) for message in messages],
        [_for_template(message) for message in new],
        **{**self._encoder.chat_options, **options},
      )
    ends = self._text.end_ids
    closing = [] if ids[-1] in ends else [ends[0]]
    return [*ids, *closing, *self._plain(new)]

  def _plain(self, messages: Sequence[Message]) -> list[int]:
    """Ids of messages without roles."""
    ids: list[int] = []
    for message in messages:
      content = message["content"]
      if message["role"] == "assistant":
        ids += [*self._text.markup_ids(content), self._text.end_ids[0]]
      else:  # In which nothing is a special token.
        ids += self._text.observation_ids(content, _MOST_TOKENS)
    return ids


def _for_template(message: Message) -> Message:
  """Calls with their arguments as data, which is how templates read them."""
  if not message.get("tool_calls"):
    return message
  calls = []
  for call in message["tool_calls"]:
    function = dict(call["function"])
    # A call with other arguments is written as it is.
    with contextlib.suppress(KeyError, RecursionError, TypeError, ValueError):
      function["arguments"] = strict_json.loads(function["arguments"])
    calls.append({**call, "function": function})
  return {**message, "tool_calls": calls}


def checked(messages: Any) -> list[Message]:
  """The messages of a request, with text for content.

  Raises:
    ValueError: There are none, or one is malformed, or has something else than
      text, or the last one is a reply.
  """
  if not isinstance(messages, list) or not messages:
    raise ValueError(
      f"messages is {messages!r:.80}; needed is a list of at least one message."
    )
  found = [_checked(number, message) for number, message in enumerate(messages)]
  if found[-1]["role"] == "assistant":
    raise ValueError(
      "the last message is the assistant's; a reply that is begun is not gone"
      " on with. Let the last one be the user's or a tool's."
    )
  return found


def _checked(number: int, message: Any) -> Message:
  role = message.get("role") if isinstance(message, Mapping) else None
  if role not in ROLES:
    raise ValueError(
      f"messages[{number}] is {message!r:.80}; needed is an object with a role,"
      f" one of {', '.join(ROLES)}, and a content."
    )
  content = message.get("content")
  if content is None and role == "assistant":
    content = ""
  if isinstance(content, list):
    content = "".join(_part(number, part) for part in content)
  if not isinstance(content, str):
    raise ValueError(
      f"messages[{number}].content is {content!r:.80}; needed is text."
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
      f"messages[{number}].tool_calls is {calls!r:.80}; needed is a list of"
      " calls of functions."
    )
  kept = {name: x for name, x in message.items() if x is not None}
  return {**kept, "content": content}


def _part(number: int, part: Any) -> str:
  match part:
    case {"type": "text", "text": str(text)}:
      return text
  raise ValueError(
    f"messages[{number}].content has a part {part!r:.80}; needed are parts of"
    " the type 'text': the policy reads nothing else."
  )


def is_reply(message: Message, sent: Message) -> bool:
  """Whether a message of a request is a reply that was sent before."""

  def described(one: Message) -> tuple:
    calls = one.get("tool_calls") or []
    return (
      one["role"],
      one["content"],
      [
        (call["function"].get("name"), call["function"].get("arguments"))
        for call in calls
      ],
    )

  return described(message) == described(sent)
