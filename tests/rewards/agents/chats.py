"""Conversations with tools as chat templates write them, by other means.

`conversation` writes messages with a loop over them, without Jinja and without
a line of `call_formats.py`. That it writes what the templates of models do is
shown by their renderings in `chats.json`, which `render_chats.py` makes.
"""

import json

# Templates whose renderings are there, and the format of each.
FORMATS = {
  "qwen2_5": "qwen",
  "qwen3": "qwen",
  "qwen3_instruct_2507": "qwen",
  "hermes3": "hermes",
  "llama3_1": "llama",
  "llama3_2": "llama",
}
ROLES = {"qwen": "user", "hermes": "tool"}


def of_json(value):
  return json.dumps(value, ensure_ascii=False)


def action_text(format, content, calls):
  """Text of an assistant: content, (name, arguments, …)s, an end token."""
  if format == "llama":
    ((name, arguments, *_),) = calls
    return f'{{"name": "{name}", "parameters": {of_json(arguments)}}}<|eot_id|>'
  between = "" if content.endswith("</think>\n\n") else "\n"
  text = content + between if content else ""
  text += "\n".join(
    "<tool_call>\n"
    f'{{"name": "{name}", "arguments": {of_json(arguments)}}}'
    "\n</tool_call>"
    for name, arguments, *_ in calls
  )
  return text + "<|im_end|>"


def conversation(format, rounds):
  """Text that a template writes behind the first generation prompt.

  Args:
    format: "qwen", "hermes" or "llama".
    rounds: Pairs (content, calls); each call is (name, arguments, result).
  """
  text = ""
  for number, (content, calls) in enumerate(rounds):
    text += action_text(format, content, calls)
    results = [result for _, _, result in calls]
    if format == "llama":
      text += "<|start_header_id|>ipython<|end_header_id|>\n\n"
      text += of_json(results[0]) + "<|eot_id|>"
      text += "<|start_header_id|>assistant<|end_header_id|>\n\n"
      continue
    text += f"\n<|im_start|>{ROLES[format]}"
    for result in results:
      text += f"\n<tool_response>\n{result}\n</tool_response>"
    if format == "hermes" and number < len(rounds) - 1:
      text += "\n"  # Only once it is not the end of the conversation.
    text += "<|im_end|>" if format == "hermes" else "<|im_end|>\n"
    text += "<|im_start|>assistant\n"
  return text


def template(format, opening="", call="{}", again="Q"):
  """Makes (messages) -> text, as `Tokenizer.chat_text`, for one round.

  Args:
    format: Format of calls and results.
    opening: Beginning of each turn of the assistant.
    call: Text around calls.
    again: Form of the question after its answer.
  """

  def chat_text(messages):
    functions = [
      (call["function"]["name"], call["function"]["arguments"])
      for message in messages
      for call in message.get("tool_calls", ())
    ]
    results = [x["content"] for x in messages if x["role"] == "tool"]
    if not functions:
      return "Q" + opening
    rounds = [("", [(*x, y) for x, y in zip(functions, results, strict=True)])]
    text = conversation(format, rounds)
    return again + call.format(text) + opening

  return chat_text
