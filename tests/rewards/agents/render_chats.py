"""Writes `chats.json`: conversations with tools, by chat templates of models.

    python -m tests.rewards.agents.render_chats TEMPLATES

TEMPLATES is a folder with the `chat_template` of a tokenizer in each file:

    qwen2_5.jinja              Qwen/Qwen2.5-7B-Instruct
    qwen3.jinja                Qwen/Qwen3-8B
    qwen3_instruct_2507.jinja  Qwen/Qwen3-4B-Instruct-2507
    hermes3.jinja              NousResearch/Hermes-3-Llama-3.1-8B, "tool_use"
    llama3_1.jinja             meta-llama/Llama-3.1-8B-Instruct
    llama3_2.jinja             meta-llama/Llama-3.2-3B-Instruct

Of each conversation the file has what the template writes behind the first
generation prompt. The templates themselves are not here.
"""

import json
import pathlib
import sys

from grpo_jax.data import chat
from tests.rewards.agents import chats

QUESTION = {"role": "user", "content": "Which is longer?"}
TOOLS = [
  {
    "type": "function",
    "function": {
      "name": "find",
      "description": "Finds a passage.",
      "parameters": {
        "type": "object",
        "properties": {
          "query": {"type": "string", "description": "Words."},
          "count": {"type": "integer", "description": "Of passages."},
        },
        "required": ["query"],
      },
    },
  }
]
# Rounds of (content, calls), and each call a (name, arguments, result).
THOUGHTS = [
  (
    "<think>\nTwo rivers.\n</think>\n\nI look.",
    [("find", {"query": "Rhine"}, "1230")],
  ),
  (
    "<think>\nThe other.\n</think>\n\n",
    [("find", {"query": "Elbe"}, "1094"), ("find", {"query": "x"}, "")],
  ),
]
ROUNDS = [
  [("", [("find", {"query": "Rhine"}, "1230 km.")])],
  [
    ("", [("find", {"query": "Rhine", "count": 2}, "1230 km.\n")]),
    ("", [("find", {}, ' "a" \\ é 中 \U0001f600 </tool_response> <|im_end|>')]),
    ("", [("find", {"query": "", "x": [1, 2.5, None, {"y": False}]}, "")]),
  ],
  [
    (
      "",
      [
        ("find", {"query": "Rhine\n\"é\" '中' <tool_call>"}, '{"km": 1230}'),
        ("find", {"query": "Elbe"}, "1094 km"),
        ("find", {"query": "</tool_call>"}, "Error: nothing."),
      ],
    ),
    ("", [("find", {"query": "Elbe"}, "\n1094 km")]),
  ],
  [
    ("Both.", [("find", {"query": "Rhine"}, "1230 km")]),
    ("Once more:\n", [("find", {"query": "Elbe"}, "1094 km")]),
  ],
  THOUGHTS,
]


def messages_of(rounds):
  """Assistant's and tools' messages."""
  found = []
  for content, calls in rounds:
    found.append(
      {
        "role": "assistant",
        "content": content,
        "tool_calls": [
          {"type": "function", "function": {"name": x, "arguments": arguments}}
          for x, arguments, _ in calls
        ],
      }
    )
    found += [
      {"role": "tool", "name": name, "content": result}
      for name, _, result in calls
    ]
  return found


def rounds_of(name):
  """Conversations that a template writes as they are.

  Llama has one call and nothing beside it, Hermes leaves out text beside calls,
  and only Qwen3 has thoughts.
  """
  return [
    rounds
    for rounds in ROUNDS
    if (name == "qwen3" or rounds is not THOUGHTS)
    and (
      chats.FORMATS[name] == "qwen" or not any(content for content, _ in rounds)
    )
    and (
      chats.FORMATS[name] != "llama"
      or all(len(calls) == 1 for _, calls in rounds)
    )
  ]


def rendered(source, messages):
  """Text that a template writes behind the first generation prompt."""

  def text(more):
    return chat.render(
      source,
      {
        "messages": [QUESTION, *more],
        "tools": TOOLS,
        "bos_token": "<bos>",
        "date_string": "26 Jul 2024",
        "add_generation_prompt": True,
      },
    )

  opened, whole = text([]), text(messages)
  assert whole.startswith(opened), (opened, whole)
  return whole[len(opened) :]


def main(folder):
  found = {
    name: [
      rendered(
        pathlib.Path(folder, f"{name}.jinja").read_text(encoding="utf-8"),
        messages_of(rounds),
      )
      for rounds in rounds_of(name)
    ]
    for name in chats.FORMATS
  }
  out = pathlib.Path(__file__).with_name("chats.json")
  text = json.dumps(found, ensure_ascii=False, indent=1)
  out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1])
