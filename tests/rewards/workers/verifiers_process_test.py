"""Environments of `verifiers` in their process; a model that always says a."""

import http.server
import importlib.util
import json
import threading
import time

import pytest

from grpo_jax.rewards.workers import verifiers_process

MODULE = "tests.rewards.workers.verifiers_envs"
# Processes of the tests import it. Here that would take seconds at each start.
pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("verifiers") is None, reason="needs verifiers"
)


class Model(http.server.BaseHTTPRequestHandler):
  """Answers each request with the letter a, or with a call."""

  protocol_version = "HTTP/1.1"
  asked: list = []  # noqa: RUF012 (All of them share it.)

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    self.asked.append((self.path, self.headers["Authorization"], body))
    message = {"role": "assistant", "content": "a"}
    if body.get("tools") and len(body["messages"]) == 1:
      function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
      message["tool_calls"] = [
        {"id": "call_1", "type": "function", "function": function}
      ]
    answer = {
      "id": "1",
      "object": "chat.completion",
      "created": 0,
      "model": "m",
      "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }
    data = json.dumps(answer).encode()
    self.send_response(200)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_):
    pass


@pytest.fixture
def url():
  Model.asked.clear()
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield f"http://127.0.0.1:{server.server_port}"
  server.shutdown()
  thread.join()
  server.server_close()


def played(environment, url, examples, number=1, group_size=2):
  rows = [
    {
      "row": row,
      "group": row // group_size,
      "split": "train",
      "example": examples[row // group_size],
      "url": f"{url}/rollouts/{row}/v1",
    }
    for row in range(group_size * len(examples))
  ]
  environment.play(number, rows, "secret", "m")
  found = []
  end = time.monotonic() + 60
  while len(found) < len(rows) and time.monotonic() < end:
    found += environment.hear(number)
    time.sleep(0.01)
  return sorted(found)


def open_(function="", **options):
  path = f"{MODULE}:{function}" if function else MODULE
  return verifiers_process.VerifiersEnvironment(path, options)


@pytest.mark.slow
def test_a_single_turn_is_played_and_scored(url):
  environment = open_(num_examples=5)
  try:
    assert {"vowels", "length", "spread"} <= {*environment.names}
    assert [len(x) for x in environment.examples.values()] == [5, 5]
    assert environment.examples["train"][1] == {
      "prompt": [{"role": "user", "content": "say b"}],
      "answer": "b",
      "tools": None,
    }
    found = played(environment, url, [0, 3])
    assert [one.row for one in found] == [0, 1, 2, 3]
    for one in found:
      assert (one.error, one.reward, one.done) == ("", 1.0, True)
      assert one.metrics["length"] == 1.0
    path, token, body = Model.asked[0]
    assert path.startswith("/rollouts/")
    assert path.endswith("/v1/chat/completions")
    assert token == "Bearer secret"
    assert body["model"] == "m"
    # A process that is killed loses what it plays; another one goes on.
    environment.kill()
    with pytest.raises(verifiers_process.Ended, match="has ended"):
      environment.hear(1)
    assert len(played(environment, url, [1], number=2)) == 2
  finally:
    environment.close()


@pytest.mark.slow  # A process for each.
def test_tools_are_called_and_described(url):
  environment = open_("load_tools")
  try:
    (tool,) = environment.examples["train"][0]["tools"]
    assert tool["function"]["name"] == "add"
    (one, _) = played(environment, url, [0])
    assert one.metrics["total_tool_calls"] == 1.0
    tools = [m for *_, body in Model.asked for m in body["messages"]]
    assert [m["content"] for m in tools if m["role"] == "tool"] == ["3", "3"]
    assert Model.asked[0][2]["tools"] == [tool]
  finally:
    environment.close()


@pytest.mark.slow  # A process for each.
def test_a_reward_function_that_raises_is_no_reward_of_zero(url):
  environment = open_("load_echo", act="rubric")
  try:
    for one in played(environment, url, [1]):
      assert "a reward without a reason" in one.error
  finally:
    environment.close()


@pytest.mark.slow  # A process for each.
def test_an_error_of_an_environment_is_told(url):
  environment = open_("load_echo", act="raise")
  try:
    found = played(environment, url, [0, 1])
    assert ["no tool today" in one.error for one in found] == [
      *(True, True),
      *(False, False),
    ]
  finally:
    environment.close()


@pytest.mark.slow  # A process for each.
@pytest.mark.parametrize(
  ("path", "options", "message"),
  [
    ("tests.rewards.nowhere", {}, "No module named"),
    (f"{MODULE}:load_nothing", {}, "needed is a verifiers.Environment"),
    (MODULE, {"wat": 1}, "unexpected keyword argument 'wat'"),
    (MODULE, {"num_examples": 0}, "load_environment|examples|column|Key"),
  ],
)
def test_what_cannot_be_opened_says_why(path, options, message):
  with pytest.raises(ValueError, match=message) as caught:
    verifiers_process.VerifiersEnvironment(path, options)
  assert "config.data.environment='verifiers:" in str(caught.value)


def test_another_interpreter_that_is_none():
  with pytest.raises(ValueError, match=r"config\.served\.python='/nowhere'"):
    verifiers_process.VerifiersEnvironment(MODULE, {}, python="/nowhere")
