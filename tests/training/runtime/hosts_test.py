"""Tests of several hosts in one process; others are in tests/experiments."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import hosts, sharding


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("localhost:1",), "--num_processes, --process_id is missing"),
    ((None, 2, 0), "--coordinator is missing"),
    (("localhost:1", 2, 2), "needs host:port and 0 ≤ process_id"),
    (("localhost", 2, 0), "needs host:port"),
  ],
)
def test_what_does_not_belong_together_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    hosts.start(*arguments)


@pytest.mark.slow
def test_a_process_that_the_others_leave_alone_may_be_started_again():
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  program = (
    "from grpo_jax.training.runtime import hosts; hosts._CONNECT_S = 1;"
    f" hosts.start('localhost:{port}', 2, 1)"
  )
  alone = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    timeout=120,  # seconds
    check=False,
  )
  assert alone.returncode == hosts.EXIT_LOST, alone.stderr
  assert "did not all come together in 1 s: " in alone.stderr
  assert "Traceback" not in alone.stderr


def test_processes_meet_before_anything_else():
  jax.devices()
  with pytest.raises(ValueError, match="JAX was asked for devices before"):
    hosts.start("localhost:1", 2, 1)


def test_one_process_has_nobody_to_wait_for():
  hosts.start()
  hosts.check_same(config=1)
  assert hosts.is_main()
  assert hosts.gather({"a": 1}) == [{"a": 1}]
  assert hosts.label() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_heard_while_a_run_lasts(number, capfd):
  before = signal.getsignal(number)
  with hosts.Stop(sharding.make_mesh(1)) as stop:
    assert not stop.look()
    signal.raise_signal(number)
    assert stop.look()
    assert stop.agreed()
    assert stop.by == number.name
    signal.raise_signal(signal.SIGTERM)  # It is asked already.
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert signal.getsignal(number) == before
  said = capfd.readouterr().err
  assert ("Ctrl-C again: now" in said) == (number == signal.SIGINT)


def test_a_timeout_that_jax_would_not_wait_for_is_refused():
  with pytest.raises(ValueError, match=r"timeout_s=1000.* at most 200"):
    config_lib.HostsConfig(timeout_s=1000.0)


@pytest.mark.parametrize(
  ("case", "verdict"),
  [
    ({}, None),
    ({"silent": 2}, "process 2 of 3 (host c) has not been heard of for 70 s"),
    ({"error": 1}, "process 1 of 3 (host b) has ended with an error: E: text"),
    ({"done": 2, "silent": 2}, None),
    ({"behind": 1}, "process 1 of 3 (host b) has not done a step for 700 s"),
    ({"still": True}, "no process has done a step for 700 s"),
  ],
)
def test_who_is_lost(monkeypatch, case, verdict):
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  watch = hosts.Watch(60, 600, describe=str, wait_for_save=lambda: None)
  now = time.monotonic()
  for process, host in enumerate("abc"):
    watch._notes[process] = {"host": host, "beat": 9, "steps": 4}
    watch._beat_at[process] = watch._step_at[process] = now
  if "silent" in case:
    watch._beat_at[case["silent"]] -= 70
  if "error" in case:
    watch._notes[case["error"]]["error"] = "E: text"
  if "done" in case:
    watch._notes[case["done"]]["done"] = True
  if "behind" in case:
    watch._notes[case["behind"]]["steps"] = 3
    watch._step_at[case["behind"]] -= 700
  if "still" in case:
    watch._step_at = dict.fromkeys(range(3), now - 700)
  assert watch._verdict() == verdict


@pytest.mark.parametrize("by_abort", [True, False])
def test_a_store_that_never_answers_does_not_keep_a_lost_process(
  monkeypatch, capsys, by_abort
):
  asked, never = threading.Event(), threading.Event()

  class Store:
    def key_value_set(self, *_, **__):
      asked.set()
      never.wait()
      raise jax.errors.JaxRuntimeError("gone")

  def leave(status):
    raise SystemExit(status)

  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(hosts, "_store", Store)
  monkeypatch.setattr(hosts, "exit_now", leave)
  monkeypatch.setattr(hosts, "_TELL_S", 0.2)
  monkeypatch.setattr(hosts, "_SAVE_S", 0.2)
  # Neither the checkpoints nor the folder answer.
  watch = hosts.Watch(0.1, 600, describe=never.wait, wait_for_save=never.wait)
  ended = []

  def end():
    with pytest.raises(SystemExit) as caught:
      watch._end_by_abort() if by_abort else watch.end("a verdict")
    ended.append(caught.value.code)

  ending = threading.Thread(target=end, daemon=True)
  ending.start()
  ending.join(5)
  never.set()
  assert ended == [hosts.EXIT_LOST]
  # The thread of an abort is the one that would bring the answer.
  assert asked.is_set() == (not by_abort)
  assert "What is saved is unknown." in capsys.readouterr().err


def test_what_processes_say_is_data_and_no_program(monkeypatch):
  said = [{"text": "é\ud800", "n": 0.1}, {"text": "b", "n": float("inf")}]
  lines = [json.dumps(value).encode() for value in said]

  def allgather(x):
    if x.ndim == 0:
      return np.array([len(line) for line in lines], np.int32)
    assert x.tobytes().rstrip(b"\0") == lines[0]
    rows = np.zeros((2, x.size), np.uint8)
    for row, line in zip(rows, lines, strict=True):
      row[: len(line)] = np.frombuffer(line, np.uint8)
    return rows

  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(multihost_utils, "process_allgather", allgather)
  assert hosts.gather(said[0]) == said
  lines[1] = pickle.dumps({"text": "b"})
  with pytest.raises(ValueError, match=r"decode|Expecting"):
    hosts.gather(said[0])


@pytest.mark.parametrize(
  ("coordinator", "own"),
  [
    ("localhost:1234", "localhost:1234"),
    ("127.0.0.1:1234", "127.0.0.1:1234"),
    ("192.0.2.1:1234", None),  # Of nobody: TEST-NET-1 of RFC 5737.
    (f"{socket.gethostname()}:1234", None),
  ],
)
def test_the_coordinator_listens_where_it_is_told(
  monkeypatch, coordinator, own
):
  asked = {}
  monkeypatch.setattr(
    jax.distributed, "initialize", lambda *_, **given: asked.update(given)
  )
  monkeypatch.setenv("XLA_FLAGS", "--some=1")
  before = signal.getsignal(signal.SIGTERM)
  hosts.start(coordinator, 2, 0)
  signal.signal(signal.SIGTERM, before)
  assert asked["coordinator_bind_address"] == own
  # Before any device, or XLA does not read it; and once.
  order = "--xla_cpu_enable_concurrency_optimized_scheduler"
  assert os.environ["XLA_FLAGS"] == f"--some=1 {order}=false"


def test_who_says_how_programs_are_ordered_is_heard(monkeypatch):
  flags = "--xla_cpu_enable_concurrency_optimized_scheduler=true"
  monkeypatch.setenv("XLA_FLAGS", flags)
  hosts._keep_order_of_collectives()
  assert os.environ["XLA_FLAGS"] == flags
