"""Bodies of requests: what is read, and what is refused."""

import contextlib

import hypothesis
import hypothesis.strategies as st
import pytest

from grpo_jax.serving import requests
from grpo_jax.serving.requests import BadRequest

ASK = {"role": "user", "content": "hi"}
_JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
  lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
  max_leaves=6,
)
_NAMES = st.sampled_from(
  [
    *("messages", "prompt", "n", "seed", "stop", "logprobs", "tools"),
    *("temperature", "top_p", "max_tokens", "model", "stream", "role"),
    *("chat_template_kwargs", "return_token_ids", "logit_bias"),
  ]
)


def test_a_chat_is_read():
  request = requests.parse(
    {
      "model": "m",
      "messages": [
        {"role": "system", "content": "be brief", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
      ],
      "max_tokens": 9,
      "max_completion_tokens": 7,
      "temperature": 0,
      "n": 2,
      "stop": "x",
      "logprobs": True,
      "return_token_ids": True,
      "tools": [{"type": "function", "function": {"name": "f"}}],
      "user": "somebody",
      "stream": False,
      "top_logprobs": None,
    },
    is_chat=True,
  )
  assert request.messages == [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
  ]
  assert request.limit == 7
  assert (request.temperature, request.top_p) == (0.0, None)
  assert (request.num_samples, request.stop) == (2, ("x",))
  assert request.logprobs
  assert request.token_ids
  assert request.tools[0]["function"]["name"] == "f"


def test_a_policy_that_is_to_call_nothing_sees_no_tools():
  body = {"messages": [ASK], "tools": [{"type": "function"}]}
  for choice, wanted in (("none", None), ("auto", body["tools"])):
    request = requests.parse({**body, "tool_choice": choice}, is_chat=True)
    assert request.tools == wanted


@pytest.mark.parametrize(
  ("prompt", "expected"),
  [
    ("ab", ["ab"]),
    ([1, 2], [[1, 2]]),
    (["ab", [3]], ["ab", [3]]),
  ],
)
def test_prompts_are_text_or_ids(prompt, expected):
  request = requests.parse({"prompt": prompt, "logprobs": 0}, False)
  assert request.prompts == expected
  assert request.logprobs
  assert request.messages is None


@pytest.mark.parametrize(
  ("changed", "param"),
  [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "nobody", "content": ""}]}, "messages"),
    ({"messages": [ASK, {"role": "assistant", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages"),
    (
      {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
      "messages",
    ),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 1e-40}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"seed": 2**31}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"x": 1}}, "stream_options"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"echo": True}, "echo"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": {}}, "tools"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ({"logprobs": 1}, "logprobs"),
    ({"wat": 1}, "wat"),
  ],
)
def test_what_there_is_not_is_refused(changed, param):
  with pytest.raises(BadRequest) as caught:
    requests.parse({"messages": [ASK], **changed}, is_chat=True)
  assert caught.value.param == param
  assert caught.value.status == 400
  assert requests.error(caught.value)["error"]["param"] == param


@pytest.mark.slow
@hypothesis.given(
  body=st.dictionaries(_NAMES | st.text(), _JSON) | _JSON, is_chat=st.booleans()
)
def test_any_body_is_read_or_refused(body, is_chat):
  # Nothing else is raised.
  with contextlib.suppress(BadRequest):
    request = requests.parse(body, is_chat)
    assert (request.messages is None) != is_chat
