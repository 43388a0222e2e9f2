"""Servers that the package `openenv` runs: sessions, and whole runs."""

import contextlib
import json
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from websockets.sync import server

from grpo_jax.rewards.agents import openenv
from grpo_jax.training.runtime import log
from tests.experiments import command
from tests.rewards.agents import openenv_peers
from tests.training import openenv_config, served_run_test

pytestmark = pytest.mark.slow

# Both environments of the config, and the package's own template, an echo.
_SERVE = """
import pathlib, socket, sys, threading
import openenv.cli.templates, uvicorn
from grpo_jax.configs import openenv_grpo

root = pathlib.Path(openenv.cli.templates.__file__).parent / "openenv_env"
for file in root.rglob("*.py"):
  text = file.read_text()
  for old, new in (("ENV_NAME", "echo"), ("ENV_CLASS_NAME", "Echo")):
    text = text.replace(f"__{old}__", new)
  name = str(file.relative_to(root)).replace("__ENV_NAME__", "echo")
  path = pathlib.Path(sys.argv[1], "echo", name)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
sys.path.insert(0, sys.argv[1])
from echo.server.app import app as echo

for app in (openenv_grpo.capitals(), openenv_grpo.letters(), echo):
  listener = socket.create_server(("127.0.0.1", 0))
  running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
  threading.Thread(target=running.run, args=([listener],)).start()
  print(listener.getsockname()[1], flush=True)
threading.Event().wait()  # While the main thread lives, others have executors.
"""


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
  """Ports of the servers: capitals, letters, echo."""
  process = subprocess.Popen(
    [sys.executable, "-c", _SERVE, tmp_path_factory.mktemp("template")],
    cwd=command.ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    yield [int(process.stdout.readline()) for _ in range(3)]
    process.kill()


def test_the_echo_of_the_package(ports):
  servers = {
    "echo": {
      "url": f"http://127.0.0.1:{ports[2]}",
      "action": "message",
      "view": "echoed_message",
      "scores": {"steps": "step_count"},
    }
  }
  made = {"servers": servers, "timeout_s": 20.0}
  prompt, extras = openenv.problem(7, **made)
  assert prompt.endswith("environment ready!"), extras
  with contextlib.closing(openenv.make("", extras, 0, **made)) as session:
    assert session.step("hello<eos>") == ("hello", 0.5, False)
    assert session.scores()["steps"] == 1.0
  # Its only place is free again at once.
  with contextlib.closing(openenv.make("", extras, 0, **made)) as session:
    assert session.step("") == ("", 0.0, False)
  servers["echo"]["action"] = "no_such_field"
  with (
    contextlib.closing(openenv.make("", extras, 0, **made)) as session,
    pytest.raises(openenv.ServerError, match="with an error: 'Invalid mess"),
  ):
    session.step("hello")


def test_what_is_said_is_what_the_client_of_the_package_says():
  from openenv.core import generic_client

  said = []

  def listen(ws):
    said.append([])
    for text in ws:
      message = json.loads(text)
      said[-1].append(message)
      kind = "state" if message["type"] == "state" else "observation"
      ws.send(openenv_peers.observation().replace("observation", kind, 1))

  running = server.serve(listen, "127.0.0.1", 0)
  threading.Thread(target=running.serve_forever, daemon=True).start()
  url = f"http://127.0.0.1:{running.socket.getsockname()[1]}"
  with generic_client.GenericEnvClient(url).sync() as client:
    client.reset(seed=7, level=2)
    client.step({"text": "a"})
    client.state()
  ours = openenv.Connection(url, 20.0)
  ours.ask("reset", {"seed": 7, "level": 2})
  ours.ask("step", {"text": "a"})
  ours.ask("state")
  ours.close()
  served_run_test.wait_for(lambda: len(said[1]) == len(said[0]) == 4)
  running.shutdown()
  assert said[0] == said[1]


def train(config, workdir, *arguments):
  path = command.ROOT / "tests/training/openenv_config.py"
  return command.start(
    *("train", f"--config={path}:{config}", f"--workdir={workdir}"), *arguments
  )


def lines(workdir):
  return [
    line
    for line in log.read_lines(pathlib.Path(workdir) / log.METRICS)
    if "reward/return" in line and line["phase"] == "rl"
  ]


@pytest.mark.long
def test_both_are_learnt_beside_a_broken_server_and_after_a_kill(
  ports, tmp_path
):
  """In partial rollouts, whose sessions are played again from their actions."""
  settings = (
    *("rl.partial_len=10", "rl.staleness=1", "rl.num_minibatches=1"),
    "algorithm.importance_mode=truncate",
  )
  with openenv_peers.serve("flood") as broken:
    config = f"{ports[0]},{ports[1]},{broken.rpartition(':')[2]}"
    arguments = config, tmp_path, *(f"--config.{x}" for x in settings)
    process = train(*arguments)
    served_run_test.wait_for(
      lambda: (
        process.poll() is not None
        or ((tmp_path / log.METRICS).exists() and len(lines(tmp_path)) >= 8)
      ),
      seconds=1200,
    )
    process.kill()
    process.communicate()
    assert 8 <= len(lines(tmp_path)) < openenv_config.STEPS
    ((status, _, said),) = command.finish_all([train(*arguments)], 1500)
  assert status == 0, said
  rows = lines(tmp_path)
  assert [row["step"] for row in rows] == [*range(1, openenv_config.STEPS + 1)]
  # In every other step no episode ends. By chance a byte is a capital in 0.10
  # of draws, and a letter in 0.20.
  means = [row["reward/return"] for row in rows if row["reward/return"]]
  assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.05
  # About a third of the prompts are those of the broken server.
  assert 0 < np.mean([row["unscored"] for row in rows]) < 96
