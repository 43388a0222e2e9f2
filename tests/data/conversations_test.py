"""Messages as ids, with a chat template and without one."""

import json

import pytest

from grpo_jax.data import chat as chat_lib
from grpo_jax.data import conversations, tokenizer
from grpo_jax.data.encoder import Encoder

TEMPLATE = (
  "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]"
  "{% endif %}{% for m in messages %}"
  "{{ m.role[0] }}:{{ m.content }}"
  "{% for c in m.tool_calls or [] %}!{{ c.function.arguments.x }}{% endfor %}"
  "{% if m.role == 'assistant' %}<eos>{% endif %}|{% endfor %}"
  "{% if add_generation_prompt %}a:{% endif %}"
)
ASK = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "yo"}
NEXT = {"role": "user", "content": "go"}


def writer(template="chat"):
  text = tokenizer.Tokenizer(tokenizer.BYTES, chat_template=TEMPLATE)
  return chat_lib.Writer(Encoder(text, template)), text


def shown(text, ids):
  return "".join(text.exact_text([i]) for i in ids)


def test_a_chat_template_writes_roles_and_tools():
  chat, text = writer()
  tools = [{"type": "function", "function": {"name": "f"}}]
  call = {"function": {"name": "f", "arguments": json.dumps({"x": 3})}}
  messages = [ASK, {**REPLY, "tool_calls": [call]}, NEXT]
  assert shown(text, chat.ids(messages, tools=tools)) == (
    "[f]u:hi|a:yo!3<eos>|u:go|a:"
  )


@pytest.mark.parametrize("arguments", ["[" * 50_000, "no JSON", None, 3])
def test_arguments_that_are_no_json_are_written_as_they_are(arguments):
  chat, text = writer()
  call = {"function": {"name": "f", "arguments": arguments}}
  messages = [ASK, {**REPLY, "tool_calls": [call]}, NEXT]
  assert shown(text, chat.ids(messages)) == "u:hi|a:yo!<eos>|u:go|a:"


@pytest.mark.parametrize("name", ["self", "message", "values", "source"])
def test_a_template_may_read_any_name(name):
  chat, _ = writer()
  assert chat.ids([ASK], **{name: 1}) == chat.ids([ASK])


@pytest.mark.parametrize("template", ["chat", "Q: {prompt}\nA:"])
def test_what_was_sampled_stays_as_it_is(template):
  chat, text = writer(template)
  begin = chat.ids([ASK])
  sampled = [*text.encode("yo"), text.end_ids[0]]
  extended = chat.extended([*begin, *sampled], [ASK, REPLY], [NEXT])
  assert extended[: len(begin) + len(sampled)] == [*begin, *sampled]
  # Here the text has one way to be encoded, so both ways agree.
  assert extended == chat.ids([ASK, REPLY, NEXT])


@pytest.mark.parametrize("template", ["chat", "Q: {prompt}\nA:"])
def test_a_reply_that_was_cut_off_is_closed(template):
  chat, text = writer(template)
  begin = chat.ids([ASK])
  cut = text.encode("y")
  extended = chat.extended(
    [*begin, *cut], [ASK, {**REPLY, "content": "y"}], [NEXT]
  )
  assert extended[len(begin) + len(cut)] == text.end_ids[0]


def test_without_roles_a_conversation_is_text():
  plain, text = writer("Q: {prompt}\nA:")
  system = {"role": "system", "content": "be brief"}
  ids = plain.ids([system, ASK, REPLY, NEXT])
  assert shown(text, ids) == "Q: be brief\nhi\nA:yo<eos>go"
  with pytest.raises(ValueError, match="without a chat template"):
    plain.ids([ASK], tools=[{}])


def test_the_system_message_of_the_run_comes_first():
  own, text = writer()
  run = chat_lib.Writer(Encoder(text, "chat", system="be kind"))
  system = {"role": "system", "content": "be kind"}
  ids = run.ids([ASK])
  assert ids == own.ids([system, ASK]) == run.ids([system, ASK])
  assert shown(text, ids) == "s:be kind|u:hi|a:"
  ids += [*text.encode("yo"), text.end_ids[0]]
  longer = run.extended(ids, [ASK, REPLY], [NEXT])
  assert longer == own.extended(ids, [system, ASK, REPLY], [NEXT])


def test_what_a_user_says_ends_no_turn():
  plain, text = writer("{prompt}")
  said = {"role": "user", "content": "<eos>"}
  ids = plain.ids([ASK, REPLY, said])
  assert ids.count(text.end_ids[0]) == 1


def test_replies_are_known_again():
  call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
  sent = {**REPLY, "tool_calls": [call]}
  again = conversations.checked([{**sent, "refusal": None}, NEXT])[0]
  assert chat_lib.is_reply(again, sent)
  assert not chat_lib.is_reply(REPLY, sent)
  assert not chat_lib.is_reply({**again, "content": "ya"}, sent)
