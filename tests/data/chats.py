"""A small tokenizer with a chat template, and conversations for tests."""

import json

from grpo_jax.data import tokenizer

# What it writes of `CHAT` was compared with transformers 5.24.0.
TEMPLATE = (
  "<pad>"
  "{%- if tools %}{% for t in tools %}[{{ t.function | tojson }}]{% endfor %}"
  "{% endif %}{% if thinks %}(think){% endif %}"
  "{% for m in messages %}"
  "{% if m.role == 'system' and refuses %}"
  "{{ raise_exception('no system message here') }}{% endif %}"
  "{{ m.role }}: {{ m.content }}"
  "{% for c in m.tool_calls or [] %}!{{ c.function.arguments | tojson }}"
  "{% endfor %}"
  "{% if m.role == 'assistant' %}<eos>{% endif %}{{ '\\n' }}{% endfor %}"
  "{% if add_generation_prompt %}assistant: {% endif %}"
)
TOOLS = [
  {
    "type": "function",
    "function": {
      "name": name,
      "parameters": {"type": "object", "properties": {of: {"type": "string"}}},
    },
  }
  for name, of in (("find", "query"), ("add", "sum"))
]
CALL = {"type": "function", "function": {"name": "find", "arguments": {"x": 3}}}
CHAT = [
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "How long is the Rhine?"},
  {"role": "assistant", "content": None, "tool_calls": [CALL]},
  {"role": "tool", "content": "1230 km"},
]
TEXT = (
  '<pad>[{"name": "find", "parameters": {"type": "object", "properties":'
  ' {"query": {"type": "string"}}}}][{"name": "add", "parameters": {"type":'
  ' "object", "properties": {"sum": {"type": "string"}}}}]system: Be brief.\n'
  'user: How long is the Rhine?\nassistant: !{"x": 3}<eos>\ntool: 1230 km\n'
  "assistant: "
)


def user(text):
  return {"role": "user", "content": text}


def said(text, **more):
  return {"role": "assistant", "content": text, **more}


def write_tokenizer(folder):
  """Writes the tokenizer as the folder of a checkpoint has it."""
  folder.mkdir(exist_ok=True)
  text = tokenizer.BYTES.read_text(encoding="utf-8")
  (folder / "tokenizer.json").write_text(text, encoding="utf-8")
  named = {"eos_token": "<eos>", "pad_token": "<pad>", "bos_token": "<pad>"}
  named["chat_template"] = TEMPLATE
  (folder / "tokenizer_config.json").write_text(json.dumps(named))
  return folder
