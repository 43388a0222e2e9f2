"""A server of Tinker's API over a tiny policy of bytes, in threads."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import threading
import time

import jax
import numpy as np

from grpo_jax.serving.tinker import device as device_lib
from grpo_jax.serving.tinker import jobs, store
from grpo_jax.serving.tinker import server as server_lib
from grpo_jax.serving.tinker import service as service_lib
from tests.experiments import command
from tests.training.phases import served

MODEL, KEY = "tiny", "tml-of-tests"
MAX_LEN, ROWS = 40, 4


def loaded_in(folder):
  served.write_prompts(folder / "prompts.jsonl", ["ab"])
  return served.loaded_of(served.config_of(folder / "prompts.jsonl"))


def device_of(loaded) -> device_lib.Device:
  return device_lib.Device(
    loaded.policy,
    loaded.params,
    loaded.mesh,
    loaded.problem.tokenizer,
    num_rows=ROWS,
    max_len=MAX_LEN,
    max_new_tokens=served.MAX_NEW_TOKENS,
    max_rank=8,
    max_together=4,
  )


class Door:
  """A server, and what tests need to know of it."""

  def __init__(self, loaded, folder, **options):
    self.loaded = loaded
    self.tokenizer = loaded.problem.tokenizer
    self.service = service_lib.Service(
      device_of(loaded),
      served.speaker_of(loaded),
      store.Store(folder),
      MODEL,
      max_samples=8,
      **options,
    )
    self.server = server_lib.TinkerServer(self.service, token=KEY)
    self.url = self.server.url

  def client(self):
    """A client of the SDK, whose import takes two seconds."""
    import tinker

    os.environ["TINKER_TELEMETRY"] = "0"
    return tinker.ServiceClient(base_url=self.url, api_key=KEY)

  @contextlib.contextmanager
  def held(self):
    """Holds the device; yields a function that waits for so many requests."""
    free, queue = threading.Event(), self.service.queue
    wait = functools.partial(_waited, free)
    queue.submit(f"held:{id(free)}", jobs.alone("held", wait))
    try:
      while queue.waiting:
        time.sleep(0.01)
      yield functools.partial(_filled, queue)
    finally:
      free.set()

  def datum(self, text: str, **inputs):
    """A row that learns all its characters; `inputs` replace the weights."""
    from tinker import types

    ids = self.tokenizer.encode(text)
    targets = np.array(ids[1:])
    given = inputs or {"weights": np.ones(len(targets))}
    given = {k: np.asarray(x, np.float32) for k, x in given.items()}
    return types.Datum(
      types.ModelInput.from_ints(ids[:-1]), {"target_tokens": targets, **given}
    )


def _waited(event: threading.Event) -> jobs.Outcome:
  event.wait()
  return jobs.outcome()


def _filled(queue: jobs.JobQueue, count: int) -> None:
  end = time.monotonic() + 300
  while len(queue.waiting) < count:
    assert time.monotonic() < end, f"{len(queue.waiting)} of {count} have come"
    time.sleep(0.01)


@contextlib.contextmanager
def opened(folder, **options):
  """Starts the threads of a server and of its device."""
  door = Door(loaded_in(folder), folder / "saved", **options)
  over = threading.Event()

  def work():
    with jax.set_mesh(door.loaded.mesh):
      while not over.is_set():
        door.service.queue.work(0.05)

  thread = threading.Thread(target=work)
  thread.start()
  try:
    yield door
  finally:
    over.set()
    thread.join()
    door.service.queue.close()
    door.server.close()


@contextlib.contextmanager
def process(folder):
  """Starts a server in a process of its own, which `main` runs."""
  arguments = [sys.executable, "-m", "tests.serving.tinker.door", str(folder)]
  with subprocess.Popen(
    arguments, env=command.ENVIRONMENT, stdout=subprocess.PIPE, text=True
  ) as started:
    yield started, started.stdout.readline().strip()


def main() -> None:
  """Serves until it is killed."""
  with opened(pathlib.Path(sys.argv[1])) as door:
    print(door.url, flush=True)
    while True:
      time.sleep(60)


def message(data, loss, model_id, seq_id=1, config=None):
  """The SDK's message of a pass."""
  from tinker import types
  from tinker.proto import request_conv

  asked = types.ForwardBackwardInput(data, loss, config)
  return request_conv.forward_backward_request_to_proto(
    types.ForwardBackwardRequest(asked, model_id, seq_id)
  )


if __name__ == "__main__":
  main()
