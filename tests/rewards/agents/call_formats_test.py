"""Calls are read, and results written, as chat templates of models do."""

import json
import pathlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards.agents import call_formats
from tests.rewards.agents import chats, render_chats

RENDERED = json.loads(
  pathlib.Path(__file__).with_name("chats.json").read_text(encoding="utf-8")
)

# Texts with all that stands around them, and with other odd signs.
pieces = st.sampled_from(
  [
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<|im_end|>", "<|eot_id|>", "<|python_tag|>", "</think>", "{", "}", '"'),
    *("\\", "\n", " ", "é", "中", "\U0001f600", "\u2028", "\x00", "a"),
  ]
)
texts = st.lists(pieces | st.text(max_size=4), max_size=8).map("".join)
values = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-(2**70), 2**70)
  | st.floats(allow_nan=False, allow_infinity=False)
  | texts,
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
  ),
  max_leaves=6,
)
calls = st.tuples(
  st.sampled_from(["find", "python", "a_b"]),
  st.dictionaries(texts, values, max_size=3),
  texts,
)
contents = st.sampled_from(["", "I look.", "é\n", "<think>\n2\n</think>\n\n"])


def rounds_of(format):
  if format == "llama":
    return st.lists(
      st.tuples(st.just(""), st.lists(calls, min_size=1, max_size=1)),
      min_size=1,
      max_size=3,
    )
  return st.lists(
    st.tuples(contents, st.lists(calls, min_size=1, max_size=4)),
    min_size=1,
    max_size=3,
  )


def context(format, rounds):
  """Context of a policy that wrote its calls like a template."""
  made = call_formats.named(format)
  text = ""
  for number, (content, calls_) in enumerate(rounds):
    action = chats.action_text(format, content, calls_)
    parsed = made.parse(action)
    assert parsed.calls == tuple(
      call_formats.ToolCall(name, arguments) for name, arguments, _ in calls_
    )
    assert parsed.ended
    assert not parsed.error
    assert parsed.text == content.strip()
    said = made.render([result for _, _, result in calls_])
    assert len(said) == 2 * len(calls_) + 1
    if format == "hermes" and number < len(rounds) - 1:
      # Its template writes this only once it is not the end.
      assert said[-1].startswith("\n</tool_response><|im_end|>")
      said = (*said[:-1], said[-1].replace("<|im_end|>", "\n<|im_end|>", 1))
    text += action + "".join(said)
  return text


@pytest.mark.parametrize("name", chats.FORMATS)
def test_a_conversation_is_what_templates_of_models_have_written(name):
  format = chats.FORMATS[name]
  conversations = render_chats.rounds_of(name)
  assert len(conversations) == len(RENDERED[name]) >= 2
  for rounds, text in zip(conversations, RENDERED[name], strict=True):
    assert chats.conversation(format, rounds) == text
    assert context(format, rounds) == text


@pytest.mark.slow
@pytest.mark.parametrize("format", call_formats.FORMATS)
@settings(max_examples=25, deadline=None)  # Templates are slow.
@given(data=st.data())
def test_a_conversation_is_what_the_template_writes(format, data):
  rounds = data.draw(rounds_of(format))
  assert context(format, rounds) == chats.conversation(format, rounds)


@pytest.mark.parametrize("format", call_formats.FORMATS)
@given(action=texts, opening=st.sampled_from(["", "<think>\n"]))
def test_every_action_can_be_read(format, action, opening):
  parsed = call_formats.named(format, opening).parse(action)
  assert all(bool(call.error) == call.malformed for call in parsed.calls)
  assert len(parsed.text) <= len(action)


@pytest.mark.parametrize(
  ("format", "action", "error"),
  [
    (
      "qwen",
      "<tool_call>{1}</tool_call>",
      "it is not JSON: Expecting property",
    ),
    ("qwen", "<tool_call>\n</tool_call>", "it is not JSON: Expecting value"),
    ("qwen", "<tool_call>[1]</tool_call>", 'needs a text "name" and an object'),
    ("qwen", '<tool_call>{"name": "f"}</tool_call>', '"arguments"'),
    (
      "hermes",
      '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
      'an object "arguments"',
    ),
    (
      "hermes",
      '<tool_call>{"name": "f", "arguments": {}} x</tool_call>',
      "</tool_call> has to follow the JSON",
    ),
    (
      "qwen",
      '<tool_call>{"name": "f", "arguments": {}}<|im_end|>',
      "</tool_call> is missing",
    ),
    (
      "qwen",
      '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
      "NaN is no number",
    ),
    (
      "hermes",
      '<tool_call>{"name": "f", "arguments": {"x": [-1e999]}}</tool_call>',
      "-1e999 is beyond the numbers",
    ),
    ("llama", '{"name": "f", "parameters": {"x": 1e999}}', "1e999 is beyond"),
    ("qwen", "<tool_call>" + "[" * 10**5 + "</tool_call>", "is not JSON"),
    ("qwen", "<tool_call>" + "1" * 10**4 + "</tool_call>", "is not JSON"),
    ("llama", '{"name": "f", "parameters": {}', "it is not JSON"),
    ("llama", '{"name": "f"}', '"parameters"'),
    (
      "llama",
      '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
      "nothing may follow the call",
    ),
  ],
)
def test_a_call_that_cannot_be_read_says_why(format, action, error):
  parsed = call_formats.named(format).parse(action)
  (call,) = parsed.calls
  assert call.malformed
  assert error in call.error == parsed.error
  assert len(call.error) < 400


def test_good_calls_stand_beside_bad_ones():
  good = '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>'
  action = f"One {good} two <tool_call>x</tool_call>{good}<tool_call>"
  parsed = call_formats.named("qwen").parse(action)
  assert [call.name for call in parsed.calls] == ["f", "", "f", ""]
  assert [call.malformed for call in parsed.calls] == [False, True] * 2
  assert parsed.text == "One  two"
  assert not parsed.ended
  assert parsed.error == parsed.calls[1].error


def test_a_check_has_a_word_about_calls_that_can_be_read():
  action = '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>'

  def check(name, arguments):
    assert (name, arguments) == ("f", {})
    return "no f"

  first, second = call_formats.named("qwen").parse(action, check).calls
  assert first.error == "no f"
  assert not first.malformed
  assert second.malformed


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
  ("action", "opening", "count"),
  [
    (f"<think>{CALL}</think>{CALL}", "", 1),
    (f"<think>{CALL}", "", 0),
    (f"{CALL}</think>{CALL}", "<think>\n", 1),
    (CALL, "<think>\n", 0),
    (f"{CALL}</think>{CALL}", "<think>\n\n</think>\n\n", 2),
    (CALL.replace("{}", '{"x": "</think>"}'), "", 1),
    (CALL.replace("{}", '{"x": "<think>"}'), "", 1),
    # Thoughts that are not the first.
    (f"<think>a</think>b<think>{CALL}</think>", "", 0),
    (f"<think>a</think>{CALL}<think>{CALL}</think>{CALL}", "", 2),
    (f"{CALL}<think>{CALL}", "", 1),
    (f"a</think>b<think>{CALL}</think>{CALL}", "<think>\n", 1),
    (f'Of {{"x": 1}}.<think>{CALL}</think>', "", 0),
  ],
)
def test_calls_in_a_thought_are_none(action, opening, count):
  parsed = call_formats.named("qwen", opening).parse(action)
  assert len(parsed.calls) == count
  assert not parsed.error


@pytest.mark.parametrize(
  ("action", "call"),
  [
    ('<|python_tag|>{"name": "f", "parameters": {"x": 1}}', ("f", {"x": 1})),
    ('{"name": "f", "arguments": {}}<|eom_id|>', ("f", {})),
    (
      '<|python_tag|>web.call(query="a (b)", n=2)<|eom_id|>',
      ("web", {"query": "a (b)", "n": 2}),
    ),
    ("<|python_tag|>print(1)", ("python", {"code": "print(1)"})),
    ("<|python_tag|>f.call(x)", ("python", {"code": "f.call(x)"})),
    ("<|python_tag|>f.call(x=y)", ("python", {"code": "f.call(x=y)"})),
    ("<|python_tag|>f.call(x=1e999)", ("python", {"code": "f.call(x=1e999)"})),
    ("<|python_tag|>f.call(x={1})", ("python", {"code": "f.call(x={1})"})),
    ("<|python_tag|>f.call(**x)", ("python", {"code": "f.call(**x)"})),
  ],
)
def test_llama_has_a_tag_for_calls_and_for_code(action, call):
  parsed = call_formats.named("llama").parse(action)
  assert parsed.calls == (call_formats.ToolCall(*call),)


@pytest.mark.parametrize(
  "action",
  [
    *("It is {2}.", "{1, 2}", 'Here: {"name": "f"}', "", "[1]"),
    *('{"answer": 42}', '{"answer": 42', '{"name": "Ada", "age": 36}'),
    '{"a": {"name": "f"}} and more',
    '<think>a</think><think>{"name": "f", "parameters": {}}</think>x',
  ],
)
def test_what_is_no_call_of_llama_is_an_answer(action):
  parsed = call_formats.named("llama").parse(action + "<|eot_id|>")
  assert parsed == (action, (), True)
  assert parsed.error == ""


def test_a_turn_that_has_not_ended_is_ended():
  for name, format in call_formats.FORMATS.items():
    ended, cut = format.render(["x"]), format.render(["x"], ended=False)
    assert cut == (format.ends[0] + ended[0], *ended[1:]), name
  for end in call_formats.FORMATS["llama"].ends:
    assert call_formats.FORMATS["llama"].parse("x" + end).ended


def test_each_turn_of_the_policy_opens_as_the_template_opens_it():
  made = call_formats.named("qwen", "<think>\n")
  assert made.render(["x"])[-1].endswith("<|im_start|>assistant\n<think>\n")
  markup = ("<a>", "<b>", "<c>")
  made = call_formats.named("qwen", markup=markup)
  assert made.render(["1", "2"]) == ("<a>", "1", "<b>", "2", "<c>")


@pytest.mark.parametrize("markup", ["abc", ["a", "b"], [1, 2, 3]])
def test_markup_is_three_texts(markup):
  with pytest.raises(ValueError, match="needs three texts"):
    call_formats.named("qwen", markup=markup)


def test_an_unknown_format_is_refused():
  with pytest.raises(
    ValueError, match="unknown format 'xml'; known are 'qwen'"
  ):
    call_formats.named("xml")


# --- The template of a checkpoint --------------------------------------------


@pytest.mark.parametrize("format", call_formats.FORMATS)
@pytest.mark.parametrize("opening", ["", "<think>\n\n</think>\n\n"])
def test_a_template_of_the_format_is_known(format, opening):
  made = call_formats.named(format, opening)
  assert call_formats.difference(made, chats.template(format, opening)) == ""


@pytest.mark.parametrize(
  ("format", "written", "message"),
  [
    (
      "qwen",
      chats.template("hermes"),
      "writes calls and results as '.*<.im_start.>t",
    ),
    (
      "hermes",
      chats.template("qwen"),
      "writes calls and results as '.*<.im_start.>u",
    ),
    ("llama", chats.template("qwen"), "and not as '<.start_header_id.>ipython"),
    (
      "qwen",
      chats.template("qwen", "<think>"),
      "writes calls and results as .*think",
    ),
    (
      "qwen",
      chats.template("qwen", again="q"),
      "writes a question in another way",
    ),
    (
      "qwen",
      chats.template("qwen", call="<tool_call>{}"),
      "writes calls as '<tool_c",
    ),
  ],
)
def test_a_template_of_another_format_is_found_out(format, written, message):
  said = call_formats.difference(call_formats.named(format), written)
  assert re.search(message, said)


def test_a_template_may_refuse_what_it_is_tried_with():
  def chat_text(messages):
    if len(messages) > 3:
      raise ValueError("one call only")
    return chats.template("llama")(messages)

  said = call_formats.difference(call_formats.named("qwen"), chat_text)
  assert said == "it refuses 2 calls: one call only"
  assert not call_formats.difference(call_formats.named("llama"), chat_text)
