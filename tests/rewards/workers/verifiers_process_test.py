"""Environments of `verifiers` in their process; a model that always says a."""

import asyncio
import contextlib
import http.server
import importlib.util
import json
import math
import re
import subprocess
import sys
import threading
import time
import types

import pytest

from grpo_jax.rewards.workers import verifiers_process

MODULE = "tests.rewards.workers.verifiers_envs"
TOOLS = "tests.rewards.workers.verifiers_tools"


class Model(http.server.BaseHTTPRequestHandler):
  """Answers with the letter a, or with a call; a user comes to an end."""

  protocol_version = "HTTP/1.1"
  asked: list = []  # noqa: RUF012 (All of them share it.)

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    self.asked.append((self.path, self.headers["Authorization"], body))
    delta = {"role": "assistant", "content": "a"}
    if body.get("tools") and len(body["messages"]) == 1:
      function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
      call = {"index": 0, "id": "1", "type": "function", "function": function}
      delta["tool_calls"] = [call]
    if body["model"] == "user" and len(body["messages"]) > 2:
      delta["content"] = "###DONE###"
    first, last = (
      {
        **{"id": "1", "object": "chat.completion.chunk", "created": 0},
        "model": body["model"],
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
      }
      for delta, reason in ((delta, None), ({}, "stop"))
    )
    lines = (json.dumps(first), json.dumps(last), "[DONE]")
    data = "".join(f"data: {line}\n\n" for line in lines).encode()
    self.send_response(200)
    self.send_header("Content-Type", "text/event-stream")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_):
    pass


@contextlib.contextmanager
def model():
  """Gives the address of a model."""
  Model.asked.clear()
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield f"http://127.0.0.1:{server.server_port}/v1"
  server.shutdown()
  thread.join()
  server.server_close()


def client(url):
  """A client of another agent."""
  return {"type": "eval", "base_url": url, "api_key_var": "NO"}


@pytest.fixture
def url():
  with model() as address:
    yield address


def played(environment, url, tasks, number=1):
  rows = [
    {"row": row, "split": "train", "example": task, "model": f"m/{row}"}
    for row, task in enumerate(tasks)
  ]
  environment.play(number, rows, url, "secret")
  found = []
  end = time.monotonic() + 120
  while len(found) < len(rows) and time.monotonic() < end:
    found += environment.hear(number)
    time.sleep(0.01)
  return sorted(found)


def open_(path=MODULE, **options):
  return verifiers_process.VerifiersEnvironment(path, options)


@pytest.mark.slow
def test_a_single_turn_is_played_and_scored(url):
  environment = open_(
    taskset={"num_tasks": 5, "acts": ["", "", "zero"]},
    select={"limit": 4},
    held_out={"taskset": {"first": 5}, "skip": 3},
    names=["said"],
  )
  try:
    assert environment.names == ("length", "said", "vowels")
    assert [len(x) for x in environment.examples.values()] == [4, 2]
    answers = [x["answer"] for x in environment.examples["held_out"]]
    assert answers == ["a", "b"]  # The ninth letter and the tenth.
    assert environment.examples["train"][1] == {
      "prompt": [{"role": "user", "content": "say b"}],
      "is_open": False,
      "answer": "b",
      "tools": None,
    }
    assert environment.examples["train"][2]["answer"] == "0"
    found = played(environment, url, [0, 0, 3, 3])
    assert [one.row for one in found] == [0, 1, 2, 3]
    for one in found:
      assert (one.error, one.reward, one.done) == ("", 1.0, True)
      assert one.metrics == {"length": 1.0, "said": 1.0, "vowels": 1.0}
    assert {path for path, *_ in Model.asked} == {"/v1/chat/completions"}
    assert {token for _, token, _ in Model.asked} == {"Bearer secret"}
    models = sorted(body["model"] for *_, body in Model.asked)
    assert models == ["m/0", "m/1", "m/2", "m/3"]
    # A process that is killed loses what it plays; another one goes on.
    environment.kill()
    with pytest.raises(verifiers_process.Ended, match="has ended"):
      environment.hear(1)
    assert len(played(environment, url, [1, 1], number=2)) == 2
  finally:
    environment.close()


@pytest.mark.slow  # A process, and one of each tool.
@pytest.mark.parametrize("has_tools", [False, True])
def test_tools_are_called_and_described(url, has_tools):
  environment = open_(TOOLS, taskset={"task": {"has_tools": has_tools}})
  try:
    (tool,) = environment.examples["train"][0]["tools"]
    assert tool["function"]["name"] == "add"
    assert {*tool["function"]["parameters"]["properties"]} == {"a", "b"}
    (one,) = played(environment, url, [0])
    assert (one.error, one.reward) == ("", 1.0)
    assert one.metrics["calls"] == 1.0
    *_, last = Model.asked[-1]
    assert [x["role"] for x in last["messages"]] == [
      "user",
      "assistant",
      "tool",
    ]
    assert last["messages"][-1]["content"] == "3"
    assert last["tools"] == [tool]
  finally:
    environment.close()


@pytest.mark.slow  # A process.
def test_a_user_of_the_package_has_a_model_of_its_own(url):
  user = {"model": "user", "client": client(url)}
  options = {"id": "user-sim", "user": user, "names": ["user_turns"]}
  environment = verifiers_process.VerifiersEnvironment(
    MODULE, options, python=sys.executable
  )
  try:
    first = environment.examples["train"][0]
    assert (first["prompt"], first["is_open"]) == ([], True)
    Model.asked.clear()
    (one,) = played(environment, url, [0])
    assert (one.error, one.reward, one.done) == ("", 1.0, True)
    assert one.metrics["user_turns"] == 2.0
    said = [
      [(x["role"], x["content"]) for x in body["messages"]]
      for *_, body in Model.asked
      if body["model"] == "m/0"
    ]
    assert said == [[("user", "a")]]
  finally:
    environment.close()


_CAPITALS = """
import socket, uvicorn
from grpo_jax.configs import openenv_grpo

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.run(openenv_grpo.capitals(), fd=listener.fileno())
"""


@pytest.mark.slow  # Two processes.
def test_a_taskset_of_the_package_plays_on_a_server(url):
  process = subprocess.Popen(
    [sys.executable, "-c", _CAPITALS], stdout=subprocess.PIPE, text=True
  )
  with process:
    try:
      address = f"http://127.0.0.1:{int(process.stdout.readline())}"
      environment = open_(
        "openenv",
        taskset={"base_url": address, "resets": [{"seed": 7}]},
        names=["openenv_reward"],
      )
      try:
        first = environment.examples["train"][0]
        assert (first["prompt"], first["is_open"]) == ([], True)
        Model.asked.clear()
        (one,) = played(environment, url, [0])
      finally:
        environment.close()
    finally:
      process.kill()
  # Two actions, each of one small letter.
  assert (one.error, one.reward, one.done) == ("", 0.0, True)
  assert one.metrics == {"openenv_reward": 0.0}
  *_, last = Model.asked[-1]
  assert [x["role"] for x in last["messages"]] == ["user", "assistant", "user"]
  assert "7 capitals: " in last["messages"][0]["content"]


# What the first tasks do, and the message about their rows.
BAD = {
  "setup": "TaskError.*no luck today",
  "exit": "SystemExit: I leave",
  "finalize": "TaskError.*no luck today",
  "stop": "no luck today",
  "unsure": "must return bool",
  "reward raise": "TaskError.*no luck today",
  "reward long": "TaskError.*xxx",
  "reward nan": "its reward is no number",
  "reward infinite": "its reward is no reward: inf",
  "reward large": "its reward is no reward: 1e",
  "reward nothing": "TypeError|TaskError",
  "reward text": "TaskError.*much",
  "reward complex": "TaskError.*complex",
  "reward list": "TaskError.*list",
  "reward mapping": "TaskError.*x",
  "slow": "vowels has no score .scoring_timeout",
  "metric": "TaskError.*no luck today",
  "image": "requires image 'debian'",
  "network": "requires a network policy",
  "dumb": "no prompt|bare turn|takes its next user message",
  "env": "EnvError.*no luck today",
  "idle": "ran no agent",
  "twice": "2 conversations; a row has room for one",
  "end": "EnvError.*no luck today",
  # These are odd and not wrong.
  "reward true": "",
  "reward print": "",
  "metric nan": "",
  "flood": "",
}


@pytest.mark.slow
def test_what_a_task_does_wrong_costs_its_row(url):
  acts = ["", *BAD]
  environment = open_(taskset={"num_tasks": len(acts) + 1, "acts": acts})
  try:
    found = played(environment, url, range(len(acts) + 1))
  finally:
    environment.close()
  assert len(found) == len(acts) + 1
  for one, (act, message) in zip(found[1:-1], BAD.items(), strict=True):
    if message:
      assert math.isnan(one.reward), act

      assert re.search(message, one.error), (act, one.error)
    else:
      assert (one.error, one.reward) == ("", 1.0), act
    assert len(one.error) <= 600
  for one in (found[0], found[-1]):  # Nobody else suffers.
    assert (one.error, one.reward) == ("", 1.0)
  assert math.isnan(found[acts.index("metric nan")].metrics["length"])
  assert {*found[acts.index("flood")].metrics} <= {"length", "vowels"}


TASK = """
import verifiers.v1 as vf
class Tasks(vf.Taskset[vf.Task, vf.TasksetConfig]):
  def load(self):
    {load}
{more}
__all__ = ["Tasks", {names}]
"""
SEAT = "vf.AgentConfig = vf.AgentConfig()"
PAIR = f"""
class TwoConfig(vf.EnvConfig):
  one: {SEAT}
  other: {SEAT}
class Two(vf.Env[TwoConfig]):
  async def run(self, task, agents): ...
"""


def source(load="return []", more="", names=""):
  return TASK.format(load=load, more=more, names=names)


FINE = source("return [vf.Task(vf.TaskData(prompt='a'))]")


@pytest.mark.slow  # The package is imported.
@pytest.mark.parametrize(
  ("text", "options", "message"),
  [
    ("1 / 0", {}, "division by zero"),
    ("import sys; sys.exit(3)", {}, "3"),
    ("import no_such_module", {}, "not found .tried to import"),
    ("x = 1", {}, "no `__all__`"),
    ("__all__ = ['x']", {}, "exports no Taskset"),
    (
      source(more="class More(Tasks): ...", names="'More'"),
      {},
      "exports 2 Taskset",
    ),
    (source("raise OSError('no data')"), {}, "no data"),
    (source("return [1]"), {}, "with_data"),
    (source("return 1"), {}, "not iterable"),
    (source(more="Tasks.INFINITE = True"), {}, "set a limit"),
    (source(), {}, ""),
    (source(more=PAIR, names="'Two'"), {}, "one and other, and it is exactly"),
    (FINE, {"taskset": {"wat": 1}}, "wat"),
    (FINE, {"wat": 1}, "wat"),
    (FINE, {"agent": {"max_turns": "many"}}, "max_turns"),
    (FINE, {"agent": 3}, "valid dictionary"),
    (FINE, {"agent": {"harness": {"id": "no-such"}}}, "no-such.*not found"),
    (FINE, {"agent": {"runtime": {"type": "moon"}}}, "moon"),
    (FINE, {"id": "no-such-env"}, "no-such-env.*not found"),
    (FINE, {"select": {"limit": 0}}, "limit"),
    (FINE, {"select": {"first": 3}}, "first"),
    (FINE, {"held_out": {"first": 3}}, "first"),
    (FINE, {"agent": {"client": client("x")}}, "would be none"),
    (FINE, {"agent": {"harness": {"id": "codex"}}}, "needs a container"),
    (source("return [vf.Task(vf.TaskData())]"), {}, "no prompt"),
  ],
)
def test_what_cannot_be_opened_says_why(text, options, message, monkeypatch):
  from grpo_jax.rewards.workers import verifiers_episodes

  class Finder:
    """Finds the module with this text."""

    def find_spec(self, name, path=None, target=None):
      if name == "bad_taskset":
        return importlib.util.spec_from_loader(name, self)
      return None

    def create_module(self, spec):
      return types.ModuleType(spec.name)

    def exec_module(self, module):
      exec(text, module.__dict__)

  async def opened():
    environment = verifiers_episodes.LoadedEnvironment("bad_taskset", options)
    if not environment.tasks["train"]:
      return environment.names
    async with environment.serving():
      await environment.look()

  monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
  monkeypatch.delitem(sys.modules, "bad_taskset", raising=False)
  if not message:
    assert asyncio.run(opened()) == []
    return
  with pytest.raises((Exception, SystemExit), match=f"(?s){message}"):
    asyncio.run(opened())


@pytest.mark.slow  # A process for each.
@pytest.mark.parametrize(
  ("path", "options", "message"),
  [
    ("tests.rewards.nowhere", {}, "No module named"),
    (MODULE, {"taskset": {"num_tasks": 0}}, "no tasks .train."),
  ],
)
def test_what_cannot_be_opened_names_the_setting(path, options, message):
  with pytest.raises(ValueError, match=message) as caught:
    verifiers_process.VerifiersEnvironment(path, options)
  assert "config.data.environment='verifiers:" in str(caught.value)


def test_another_interpreter_that_is_none():
  with pytest.raises(ValueError, match=r"config\.served\.python='/nowhere'"):
    verifiers_process.VerifiersEnvironment(MODULE, {}, python="/nowhere")
