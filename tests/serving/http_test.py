"""The server as its clients see it."""

import concurrent.futures
import gzip
import json
import socket
import threading
import types
import urllib.request

import numpy as np
import pytest

from grpo_jax.rewards.workers import judge_service
from grpo_jax.rollout import resumed
from grpo_jax.serving import endpoint as endpoint_lib
from grpo_jax.serving import engine, http, requests
from grpo_jax.training.evaluation import draws
from tests.training.phases import served

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "ab cd"}]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  path = tmp_path_factory.mktemp("served") / "prompts.jsonl"
  served.write_prompts(path, ["ab cd"])
  return served.loaded_of(served.config_of(path))


@pytest.fixture(scope="module")
def sampler(loaded):
  return served.sampler_of(loaded)


@pytest.fixture(scope="module")
def server(loaded, sampler):
  def calls(text):
    return text[1:], [("first", '{"x": 1}')]

  with served.server_of(loaded, sampler, calls) as server:
    yield server


def test_health_and_models(server):
  assert served.get(f"{server.url}/health") == (200, {"status": "ok"})
  status, body = served.get(f"{server.url}/v1/models")
  assert status == 200
  assert [one["id"] for one in body["data"]] == ["tiny"]
  assert served.get(f"{server.url}/v1/models/tiny") == (200, body["data"][0])
  assert served.get(f"{server.url}/v1/models/other")[0] == 404


@pytest.mark.slow
def test_a_chat_has_the_tokens_of_run_sample(loaded, server):
  record = {"prompt": "ab cd", "answer": "", "extras": {}}
  sampler = draws.TextSampler(loaded, [record], False, 2, 1.0)
  ((*rows,),) = sampler.draw([record], seed=3)
  body = {
    **ASK,
    **{"seed": 3, "n": 2, "logprobs": True, "return_token_ids": True},
  }
  status, answer = served.post(server.url + CHAT, body)
  assert status == 200
  assert answer["object"] == "chat.completion"
  text = loaded.problem.tokenizer
  assert answer["prompt_token_ids"] == text.encode("ab cd")
  for row, choice in zip(rows, answer["choices"], strict=True):
    assert choice["message"] == {"role": "assistant", "content": row.text}
    assert choice["finish_reason"] == ("stop" if row.terminated else "length")
    assert len(choice["token_ids"]) == row.num_tokens
    assert text.decode(choice["token_ids"]) == row.text
    found = choice["logprobs"]["content"]
    np.testing.assert_allclose(
      [x["logprob"] for x in found], row.logprobs, atol=2e-6
    )
    pieces = b"".join(bytes(x["bytes"]) for x in found)
    assert pieces.decode("utf-8", "replace").startswith(row.text[:1])
  usage = answer["usage"]
  assert usage["prompt_tokens"] == 5
  assert usage["completion_tokens"] == sum(row.num_tokens for row in rows)
  # The same again.
  again = served.post(server.url + CHAT, body)[1]
  assert again["choices"] == answer["choices"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_stream_says_the_same_in_events(server, path):
  body = {**ASK, "seed": 3} if path == CHAT else {"prompt": "ab", "seed": 3}
  (whole,) = served.post(server.url + path, body)[1]["choices"]
  asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
  with urllib.request.urlopen(
    urllib.request.Request(server.url + path, json.dumps(asked).encode()),
    timeout=60,
  ) as answer:
    assert answer.headers["Content-Type"] == "text/event-stream"
    lines = answer.read().decode().split("\n\n")
  assert lines[-2:] == ["data: [DONE]", ""]
  said, end, usage = (json.loads(x.removeprefix("data: ")) for x in lines[:-2])
  if path == CHAT:
    assert said["object"] == "chat.completion.chunk"
    assert said["choices"][0]["delta"] == whole["message"]
  else:
    assert said["choices"][0]["text"] == whole["text"]
  assert said["choices"][0]["finish_reason"] is None
  assert end["choices"][0]["finish_reason"] == whole["finish_reason"]
  assert usage["choices"] == []
  assert usage["usage"]["completion_tokens"] > 0


def test_calls_of_a_stream_are_numbered():
  call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
  message = {"role": "assistant", "content": "", "tool_calls": [call]}
  choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
  answer = {"object": "chat.completion", "id": "x", "choices": [choice]}
  said, _ = requests.events(answer, usage=False)
  (found,) = said["choices"][0]["delta"]["tool_calls"]
  assert found == {"index": 0, **call}


def test_completions_of_several_prompts(loaded, server):
  ids = loaded.problem.tokenizer.encode("ab")
  status, answer = served.post(
    f"{server.url}/v1/completions",
    {"prompt": ["ab", ids], "temperature": 0, "max_tokens": 3, "logprobs": 0}
    | {"return_token_ids": True},
  )
  assert status == 200
  first, second = answer["choices"]
  assert first["text"] == second["text"]
  assert first["token_ids"] == second["token_ids"]
  assert first["prompt_token_ids"] == ids
  assert first["finish_reason"] == "length"
  assert len(first["logprobs"]["token_logprobs"]) == 3
  # Those of a greedy completion are at temperature 1, and not 0.
  assert max(first["logprobs"]["token_logprobs"]) < -0.1


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_a_prompt_sent_back_has_the_log_probs_of_its_draw(server, temperature):
  """The multiple choice of lm-eval sends what it has chosen as a prompt."""
  url = f"{server.url}/v1/completions"
  ask = {"seed": 3, "return_token_ids": True, "temperature": temperature}
  body = {**ask, "prompt": "ab cd", "logprobs": 3}
  (drawn,) = served.post(url, body)[1]["choices"]
  size = len(drawn["token_ids"])
  found = drawn["logprobs"]
  assert found["text_offset"][0] == 0
  assert len(found["top_logprobs"]) == size
  ids = [*drawn["prompt_token_ids"], *drawn["token_ids"]]
  body = {"prompt": ids, "echo": True, "logprobs": 3, "max_tokens": 0}
  (echoed,) = served.post(url, {**ask, **body})[1]["choices"]
  assert echoed["token_ids"] == []
  assert echoed["text"].startswith("ab cd" + drawn["text"])
  logps = echoed["logprobs"]["token_logprobs"]
  likeliest = echoed["logprobs"]["top_logprobs"]
  assert (logps[0], likeliest[0]) == (None, None)
  assert len(logps) == len(likeliest) == len(ids)
  if temperature != 0.7:  # A prompt has the distribution at 1.
    np.testing.assert_allclose(
      logps[-size:], found["token_logprobs"], atol=2e-6
    )
  for own, likely in zip(logps[1:], likeliest[1:], strict=True):
    assert len(likely) >= 3
    assert own <= max(likely.values())
  for own, likely in zip(
    found["token_logprobs"], found["top_logprobs"], strict=True
  ):
    assert sum(np.exp(list(likely.values()))) < 1 + 1e-5
    assert temperature or own == max(likely.values())
  # One token is drawn after a prompt that is sent back, as lm-eval asks.
  body = {**ask, "prompt": "ab cd", "echo": True, "logprobs": 1}
  (one,) = served.post(url, {**body, "max_tokens": 1})[1]["choices"]
  assert one["token_ids"] == drawn["token_ids"][:1]
  assert one["text"] == "ab cd" + drawn["text"][:1]
  np.testing.assert_allclose(
    one["logprobs"]["token_logprobs"][1:],
    [*logps[1:5], found["token_logprobs"][0]],
    atol=2e-6,
  )


def test_a_token_without_a_chance_has_a_number(loaded):
  """JSON has no infinity, and a prompt may have ids that nobody draws."""
  request = requests.parse(
    {"prompt": [5, 7], "echo": True, "logprobs": 1}, False
  )
  alternatives = resumed.Alternatives(
    ids=np.array([[8], [9]]),
    top_logp=np.array([[-0.1], [-0.2]], np.float32),
    logp=np.array([-np.inf, -0.2], np.float32),
  )
  one = np.array([-0.2], np.float32)
  drawn = engine.Generated([9], one, one, one, False, alternatives)
  reply = served.speaker_of(loaded).reply(request, [5, 7], drawn, "n", False)
  answer = requests.answer(request, "n", "m", [[5, 7]], [[reply]])
  found = answer["choices"][0]["logprobs"]
  json.dumps(found, allow_nan=False)
  assert found["token_logprobs"][:2] == [None, -9999.0]
  assert -9999.0 in found["top_logprobs"][1].values()


@pytest.mark.slow
def test_likely_tokens_of_a_chat(server):
  body = {**ASK, "seed": 3, "logprobs": True, "top_logprobs": 20}
  (choice,) = served.post(server.url + CHAT, body)[1]["choices"]
  for token in choice["logprobs"]["content"]:
    likely = {tuple(x["bytes"]): x["logprob"] for x in token["top_logprobs"]}
    assert len(token["top_logprobs"]) == 20
    own = likely.get(tuple(token["bytes"]), token["logprob"])
    assert own == token["logprob"]
  # Of a token that top_p leaves nothing beside it, there is one.
  body |= {"top_p": 1e-6}
  (choice,) = served.post(server.url + CHAT, body)[1]["choices"]
  for token in choice["logprobs"]["content"]:
    assert [x["logprob"] for x in token["top_logprobs"]] == [0.0]


def test_requests_without_a_seed_differ_and_say_theirs(server):
  answers = [served.post(server.url + CHAT, ASK)[1] for _ in range(2)]
  seeds = [answer["seed"] for answer in answers]
  assert seeds[0] != seeds[1]
  again = served.post(server.url + CHAT, {**ASK, "seed": seeds[0]})[1]
  assert again["choices"] == answers[0]["choices"]


def test_seeds_have_no_end(loaded, sampler):
  speaker = endpoint_lib.Speaker(loaded.problem.encoder, lambda ids: [])
  most = requests.MAX_SEED
  made = endpoint_lib.Completions(speaker, sampler, "policy", seed=most)
  assert [next(made._seeds) for _ in range(3)] == [most, 0, 1]
  engine.key_of(most)  # A larger one would be an error.


def test_a_stop_text_ends_a_completion(server):
  body = {**ASK, "seed": 3, "return_token_ids": True}
  (whole,) = served.post(server.url + CHAT, body)[1]["choices"]
  text = whole["message"]["content"]
  (cut,) = served.post(server.url + CHAT, {**body, "stop": [text[1]]})[1][
    "choices"
  ]
  assert cut["message"]["content"] == text[: text.index(text[1])]
  assert cut["finish_reason"] == "stop"
  size = len(cut["token_ids"])
  assert 0 < size < len(whole["token_ids"])
  assert cut["token_ids"] == whole["token_ids"][:size]


def test_the_end_of_a_stop_text_is_found_in_few_tries():
  sizes = []

  class Characters:
    def decode(self, ids):
      sizes.append(len(ids))
      return "".join(map(chr, ids))

  encoder = types.SimpleNamespace(tokenizer=Characters())
  speaker = endpoint_lib.Speaker(encoder, lambda ids: [])
  text = "a" * 4000 + "<b>" + "c" * 1000 + "<b>"
  records = np.zeros((3, len(text)))
  drawn = engine.Generated([*map(ord, text)], *records, ended=True)
  cut, said, is_stopped = speaker.stopped(drawn, ("none", "<b>"))
  assert (len(cut.ids), said, is_stopped) == (4003, "a" * 4000, True)
  assert not cut.ended
  assert len(sizes) < 20


def test_calls_are_found_where_there_are_tools(loaded, server):
  tools = [{"type": "function", "function": {"name": "first"}}]
  body = {**ASK, "seed": 3}
  assert (
    "tool_calls"
    not in (served.post(server.url + CHAT, body)[1]["choices"][0]["message"])
  )
  status, answer = served.post(server.url + CHAT, {**body, "tools": tools})
  assert status == 400  # This policy has no template that would write them.
  assert "without a chat template" in answer["error"]["message"]


def test_a_reply_with_calls_says_so(loaded):
  class Parsed:
    text = "thought"

    class Call:
      name, arguments, malformed = "add", {"x": 1}, False

    calls = (Call,)

  speaker = served.speaker_of(
    loaded, endpoint_lib.calls_of(lambda text: Parsed)
  )
  request = endpoint_lib.requests.parse(
    {**ASK, "tools": [{"function": {}}]}, True
  )
  ids = loaded.problem.tokenizer.encode("abc")
  numbers = np.zeros(3, np.float32)
  drawn = endpoint_lib.engine.Generated(ids, numbers, numbers, numbers, True)
  reply = speaker.reply(request, ids, drawn, "n", False)
  assert reply.finish_reason == "tool_calls"
  assert reply.full_text == "abc"
  assert reply.message == {
    "role": "assistant",
    "content": "thought",
    "tool_calls": [
      {
        "id": "call_n_0",
        "type": "function",
        "function": {"name": "add", "arguments": '{"x": 1}'},
      }
    ],
  }
  Parsed.Call.malformed = True
  assert speaker.reply(request, ids, drawn, "n", False).message == {
    "role": "assistant",
    "content": "abc",
  }


@pytest.mark.parametrize(
  ("path", "body", "status", "message"),
  [
    (CHAT, b"{", 400, "not JSON"),
    (CHAT, b'{"temperature": 1e999}', 400, "not JSON: 1e999 is beyond"),
    (CHAT, [], 400, "not a JSON object"),
    (CHAT, {"messages": []}, 400, "at least one message"),
    (CHAT, {**ASK, "top_k": 5}, 400, "top_k=5 is not supported"),
    (CHAT, {**ASK, "model": "other"}, 404, "no model 'other'"),
    (
      CHAT,
      {"messages": [{"role": "user", "content": "x" * 25}]},
      400,
      "This model's maximum context length is 24 tokens",
    ),
    ("/v1/completions", {"prompt": [10**6]}, 400, "the id 1000000"),
    (
      "/v1/completions",
      {"prompt": ["ab"] * 20, "n": 128},
      400,
      "makes 2560, and the server takes 1024 at most",
    ),
    ("/v1/completions", {"prompt": "x" * 2**17}, 400, "of 131072 characters"),
    (
      CHAT,
      {"messages": [{"role": "user", "content": "x" * 2**17}]},
      400,
      "of 131072 characters",
    ),
    (CHAT, {**ASK, "chat_template_kwargs": {"tools": []}}, 400, "beside"),
    (CHAT, {**ASK, "response_format": {"type": "json_object"}}, 400, "grammar"),
    (CHAT, {**ASK, "top_logprobs": 3}, 400, "needs logprobs=true"),
    (CHAT, b"[" * 10**5, 400, "not JSON"),
    ("/v1/embeddings", {}, 404, "there is no POST /v1/embeddings"),
    (CHAT, b" " * (http.MAX_BYTES + 1), 413, "more than"),
  ],
)
def test_bad_requests_get_an_error_object(server, path, body, status, message):
  code, answer = served.post(server.url + path, body)
  assert code == status
  assert message in answer["error"]["message"]
  assert answer["error"]["type"] == "invalid_request_error"


def test_a_slow_tokenizer_holds_nobody_else(loaded, sampler, monkeypatch):
  entered, left = threading.Event(), threading.Event()

  def prompts(speaker, request):
    entered.set()
    assert left.wait(30)
    return [[1]]

  monkeypatch.setattr(endpoint_lib.Speaker, "prompts", prompts)
  with (
    served.server_of(loaded, sampler) as server,
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    answer = pool.submit(served.post, server.url + CHAT, ASK)
    try:
      assert entered.wait(30)
      assert served.get(f"{server.url}/health")[0] == 200
      assert not answer.done()
    finally:
      left.set()
    assert answer.result()[0] == 200


def test_a_body_that_never_ends_is_refused(server, monkeypatch):
  monkeypatch.setattr(http, "_BODY_S", 0.1)
  with socket.create_connection((server.host, server.port), 10) as connection:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    connection.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
    said = b""
    while piece := connection.recv(4096):  # Until the server ends it.
      said += piece
  assert said.startswith(b"HTTP/1.1 408 ")
  assert b"has not come in 0.1 s" in said


def test_compressed_bodies_are_refused(server):
  headers = {"Content-Encoding": "gzip"}
  for body in gzip.compress(json.dumps(ASK).encode()), b"neither":
    request = urllib.request.Request(server.url + CHAT, body, headers)
    status, answer = served.get(request)
    assert status == 415
    assert "Content-Encoding is 'gzip'" in answer["error"]["message"]


@pytest.mark.parametrize(
  ("header", "status"),
  [
    (("Host", "evil.example"), 403),
    (("Host", "localhost:1234"), 200),
    (("Host", "[::1]"), 200),
    (("Origin", "https://evil.example"), 403),
    (("Origin", "null"), 403),
    (("Origin", "http://127.0.0.1:3000"), 200),
  ],
)
def test_pages_of_other_sites_are_refused(server, header, status):
  request = urllib.request.Request(
    f"{server.url}/v1/models", headers=dict([header])
  )
  assert served.get(request)[0] == status


def test_many_requests_at_once_are_all_answered(server):
  bodies = [{**ASK, "seed": seed} for seed in range(12)]
  with concurrent.futures.ThreadPoolExecutor(12) as pool:
    answers = list(
      pool.map(lambda x: served.post(server.url + CHAT, x), bodies)
    )
  assert {status for status, _ in answers} == {200}
  alone = served.post(server.url + CHAT, bodies[5])[1]
  assert alone["choices"] == answers[5][1]["choices"]


def test_what_has_no_room_is_told_to_come_again(loaded):
  sampler = served.sampler_of(loaded, max_waiting=2)
  endpoint = endpoint_lib.Completions(
    served.speaker_of(loaded), sampler, "tiny"
  )
  server = http.Server(endpoint, timeout_s=0.2, max_requests=1)
  try:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      found = pool.map(
        lambda x: served.post(server.url + CHAT, x)[0], [ASK, ASK]
      )
      assert sorted(found) == [429, 504]  # Nobody draws.
    waiting = sampler.submit([engine.Ask([1], engine.key_of(0), 1)])
    status, answer = served.post(server.url + CHAT, {**ASK, "n": 2})
    assert status == 429
    assert answer["error"]["type"] == "rate_limit_error"
    # Another time would not help.
    assert served.post(server.url + CHAT, {**ASK, "n": 3})[0] == 400
    waiting.cancel()
    sampler.close("the server ends.")
    status, answer = served.post(server.url + CHAT, ASK)
    assert status == 503
    assert "the server ends" in answer["error"]["message"]
  finally:
    server.close()
  with pytest.raises(OSError, match="refused"):
    urllib.request.urlopen(f"{server.url}/health", timeout=5)


def test_a_token_is_asked_for(loaded, sampler):
  with served.server_of(loaded, sampler, token="secret") as server:
    assert served.get(f"{server.url}/health")[0] == 200
    for token in ("", "other", "\xfc\u20ac".encode().decode("latin1")):
      status, answer = served.post(server.url + CHAT, ASK, token)
      assert status == 401
      assert answer["error"]["type"] == "authentication_error"
      assert "secret" not in str(answer)
    assert served.post(server.url + CHAT, ASK, "secret")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "a.example"])
def test_other_machines_reach_it_with_a_token_only(host):
  with pytest.raises(ValueError, match=r"--token_file"):
    http.Server(None, host)
  http.check_address(host, "secret")
  http.check_address("localhost", "")
  http.check_address("::1", "")


def test_a_taken_port_is_an_error(server):
  with pytest.raises(OSError, match="in use"):
    http.Server(None, port=server.port)
  with socket.create_connection((server.host, server.port)):
    pass  # The first one is there all the same.


def test_the_judge_of_another_run_can_be_this_server(server):
  asks = judge_service.JudgeService(
    f"{server.url}/v1",
    "tiny",
    "{prompt}{completion}",
    {"yes": 1.0, "no": 0.0},
    max_tokens=4,
  )
  scores = asks.score("judge", ["a"], ["b"], [{}], step_timeout_s=30)
  # It writes no verdict, having learnt nothing, but it was read.
  assert scores.failures["judge_unread"] + (~scores.failed).sum() == 1
  asks.close()
