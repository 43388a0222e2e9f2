"""The processes of one run: how they join, stop together, and notice a loss.

A run on several hosts is one process on each of them, all with the same
command. They compute the same steps together, so they also start, stop and fail
together: a process that is gone leaves the others in a collective that never
ends. `Watch` ends them instead, with a message, and `EXIT_LOST` as the status;
the same command continues from the last checkpoint.

With one process nothing here does anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn, Self

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.training.runtime import sharding

EXIT_LOST = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed.

_ORDER = "xla_cpu_enable_concurrency_optimized_scheduler"
_CONNECT_S = 300  # Seconds within which all processes must join.
# JAX aborts a process without a heartbeat for so long; `Watch` is sooner.
_JAX_HEARTBEAT_S = 300
_SAVE_S = 20  # Seconds to finish a checkpoint when the run ends.
_TELL_S = 5  # Seconds for process 0 to tell the others why.
# Seconds that process 0 waits for the others, which die without it: they read
# its error within 1.5 intervals of `Watch`.
_LINGER_S = 10


def start(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the other processes of the run, before any device is used.

  Without arguments, JAX finds them on Cloud TPU, under SLURM and through
  JAX_COORDINATOR_ADDRESS; without any of these, nothing happens.

  Everyone who can reach that port can take part, so the network must be
  trusted.

  Args:
    coordinator: host:port where process 0 waits for the others; if the host is
      an address of this machine, or localhost, it listens there alone.
    process_id: Number of this process, from 0 on.

  Raises:
    ValueError: Only some of the arguments are given, or they do not fit.

  Ends the process with `EXIT_LOST` if the others do not come.
  """
  flags = {
    "--coordinator": coordinator,
    "--num_processes": num_processes,
    "--process_id": process_id,
  }
  missing = [name for name, value in flags.items() if value is None]
  if 0 < len(missing) < len(flags):
    raise ValueError(
      f"{', '.join(missing)} is missing: {', '.join(flags)} belong together,"
      " and none of them is needed on Cloud TPU."
    )
  if not missing:
    assert coordinator is not None
    assert num_processes is not None
    assert process_id is not None
    if not 0 <= process_id < num_processes or ":" not in coordinator:
      raise ValueError(
        f"--coordinator={coordinator} --num_processes={num_processes}"
        f" --process_id={process_id}: needs host:port and 0 ≤ process_id"
        " < num_processes."
      )
  elif not _may_have_cluster():
    return
  _keep_order_of_collectives()
  _on_abort(lambda: _alone("JAX has aborted this process, as said above"))
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      initialization_timeout=_CONNECT_S,
      coordinator_bind_address=None if missing else _bind_address(coordinator),
      heartbeat_timeout_seconds=_JAX_HEARTBEAT_S,
    )
  except ValueError as error:
    if missing and "coordinator_address" in str(error):
      return  # JAX has found no cluster.
    raise
  except RuntimeError as error:  # Also if process 0 has no address yet.
    if "before any JAX calls" in str(error):
      raise ValueError(
        "JAX was asked for devices before the processes of the run met, perhaps"
        " by the config file; leave that to what runs later."
      ) from error
    _alone(str(error).splitlines()[0])
  finally:
    _on_abort(None)
  # JAX listens to SIGTERM from here on, for a protocol that is not used.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _keep_order_of_collectives() -> None:
  """Makes programs for the CPU run their operations one after another.

  Of eleven runs with two processes, `ppo`, four prompts and an environment on
  the host, ten were aborted by gloo ("op.preamble.length <= op.nbytes"); with
  this flag both of two runs ended. Other runs of that kind have not failed.

  The cause that XLA's source suggests is not proved. Gloo tells messages of two
  collectives apart by their order alone. XLA starts collectives in the order of
  the program, but a loop with collectives counts as started as soon as it waits
  for a thread (`ThunkExecutor::ProcessScheduledOutEdges`), so that the next
  collective may overtake the later rounds of that loop in one process and not
  in another. By default XLA orders a program breadth first, to have many such
  loops at once; with the flag the order is depth first.

  Accelerators have their collectives in one queue, and read no such flag.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  if _ORDER not in flags and jax.__version__.startswith("0.10."):
    # Another jaxlib may not know it, and would refuse to start.
    os.environ["XLA_FLAGS"] = f"{flags} --{_ORDER}=false".strip()


def _bind_address(coordinator: str | None) -> str | None:
  """The address where process 0 listens; None: on all networks of the machine.

  It is the coordinator's if that is an address of this machine. A name may
  stand for another address on this machine than elsewhere, such as 127.0.1.1
  for its own name in /etc/hosts, so `localhost` is the only name that counts.
  """
  assert coordinator is not None
  host, _, port = coordinator.rpartition(":")
  if host == "localhost":
    return coordinator
  try:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.inet_pton(family, host.strip("[]"))
    with socket.socket(family) as probe:
      probe.bind((host.strip("[]"), 0))
  except OSError:
    return None  # A name, or the address of a proxy for this machine.
  return f"{host}:{port}"


def _alone(reason: str) -> NoReturn:
  """Ends a process that the others have not joined."""
  # Without the number of the process: asking for it would start a backend that
  # is connected to nothing.
  print(
    f"error: the processes of the run did not all come together in {_CONNECT_S}"
    f" s: {reason}. Start all of them, with the same command.",
    file=sys.stderr,
  )
  exit_now(EXIT_LOST)


def _may_have_cluster() -> bool:
  """False for a run on the CPU of a machine that may belong to a cluster."""
  return jax.config.values["jax_platforms"] != "cpu" or any(
    name in os.environ for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID")
  )


def is_main() -> bool:
  """Says if this process, process 0, prints and writes for all."""
  return jax.process_index() == 0


def say(text: str) -> None:
  """Prints, in process 0."""
  if is_main():
    print(text, flush=True)


def label() -> str:
  """The name of this process, to begin a line; empty if it is the only one."""
  if jax.process_count() == 1:
    return ""
  return f"{_name(jax.process_index(), platform.node())}: "


def _name(process: int, host: str | None) -> str:
  where = f" (host {host})" if host else ""
  return f"process {process} of {jax.process_count()}{where}"


def leave(status: int) -> NoReturn:
  """Ends a process that failed, without waiting for the others."""
  if jax.process_count() == 1:
    sys.exit(status)
  if is_main():
    time.sleep(_LINGER_S)
  exit_now(status)


def end_at_once(reason: str) -> NoReturn:
  """Ends this process from any of its threads, with `EXIT_LOST`."""
  print(f"{label()}{reason}", file=sys.stderr, flush=True)
  exit_now(EXIT_LOST)


def exit_now(status: int) -> NoReturn:
  """Ends this process without anything that waits or asks for devices."""
  sys.stdout.flush()
  sys.stderr.flush()
  # At a regular exit JAX would wait for the other processes.
  os._exit(status)


def gather(value: Any) -> list[Any]:
  """Returns the values of all processes, in each process, by way of JSON.

  Tuples come back as lists. JSON is safe: values of others are data only.
  """
  if jax.process_count() == 1:
    return [value]
  data = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(data.size))
  padded = np.zeros(sizes.max(), np.uint8)
  padded[: data.size] = data
  rows = multihost_utils.process_allgather(padded)
  return [
    json.loads(row[:size].tobytes())
    for row, size in zip(rows, sizes, strict=True)
  ]


def check_same(**values: Any) -> None:
  """Raises ValueError unless all processes have the same values."""
  everyone = gather(values)
  for name in values:
    if any(other[name] != everyone[0][name] for other in everyone):
      raise ValueError(
        f"the processes of the run differ in {name}:"
        f" {[other[name] for other in everyone]}. Start all with the same"
        " command, and a --workdir that they share."
      )


class Seconds(float):
  """A duration in one process; the longest one of all processes counts.

  All processes wait for the slowest, so durations are not added up.
  """

  def __add__(self, other: float) -> Seconds:
    return Seconds(float(self) + other)

  __radd__ = __add__


class Exchange:
  """Sends numbers of each process to all, without waiting for them."""

  def __init__(self, mesh: Mesh):
    self._sharding = NamedSharding(mesh, P(mesh.axis_names))
    self._gathered = jax.jit(
      lambda x: x, out_shardings=NamedSharding(mesh, P())
    )

  def post(self, *values: float) -> jax.Array:  # [devices, values] float32
    """Gathers the numbers of all processes, without waiting for the result.

    All processes call it equally often.

    Returns:
      A row for each device: the values of its process at its first device, and
        zeros at the others, so that a sum over rows counts each once.
    """
    devices = self._sharding.addressable_devices
    rows = np.zeros((len(devices), len(values)), np.float32)
    rows[0] = values
    return self._gathered(sharding.from_local(rows, self._sharding))


class Stop:
  """SIGTERM or Ctrl-C in any process: all finish the same step, and save.

  A second Ctrl-C is a KeyboardInterrupt, at once.

  Attributes:
    request: Set in the process that has received the signal.
    by: Name of the first signal here; "SIGTERM" if another process received it.
  """

  by = "SIGTERM"

  def __init__(self, mesh: Mesh):
    self.request = threading.Event()
    self._exchange = Exchange(mesh) if jax.process_count() > 1 else None
    self._posted: jax.Array | None = None
    self._agreed = False

  def agreed(self) -> bool:
    """Says if the run has to stop, as of the last `look`."""
    return self.request.is_set() if self._exchange is None else self._agreed

  def look(self) -> bool:
    """Says if the run stops after this step; every process calls it each step.

    With several processes, each posts its own signal, and reads those that all
    posted one step ago: waiting for this step's would hold up the device.
    """
    if self._exchange is not None and not self._agreed:
      if self._posted is not None:
        self._agreed = bool(jax.device_get(self._posted).any())
      self._posted = self._exchange.post(self.request.is_set())
    return self.agreed()

  def __enter__(self) -> Self:
    # Only the main thread may handle signals.
    self._handles = threading.current_thread() is threading.main_thread()
    if self._handles:
      self._previous = {
        number: signal.signal(number, self._hear)
        for number in (signal.SIGTERM, signal.SIGINT)
      }
    return self

  def _hear(self, number: int, frame: types.FrameType | None) -> None:
    """Handles either signal."""
    del frame
    if self.request.is_set():
      if number == signal.SIGINT:
        raise KeyboardInterrupt
      return
    self.by = signal.Signals(number).name
    self.request.set()
    if number == signal.SIGINT:
      # No `print`: the signal may come while one is writing.
      os.write(2, b"\nstopping after this step, to save; Ctrl-C again: now\n")

  def __exit__(self, *_: object) -> None:
    if self._handles:
      for number, previous in self._previous.items():
        signal.signal(number, previous)


class Watch:
  """Ends the process when another one of the run is gone, stopped or stuck.

  Each process writes its number of steps and a heartbeat into the store of
  JAX's coordination service, which lives in process 0. Process 0 reads the
  entries of all, and judges; the others read its entry. A process is lost if it
  has written nothing for `timeout_s`, if it ended with an error, or if it has
  been behind the others for `stall_s`: then it is stuck, though its heartbeat
  goes on.

  A context manager; with one process it does nothing.

  Args:
    timeout_s: Seconds of silence.
    stall_s: Seconds without a step, compilation and evaluation included.
    describe: () -> a sentence about the checkpoint to continue from.
    wait_for_save: Waits for a checkpoint that is being written.
  """

  def __init__(
    self,
    timeout_s: float,
    stall_s: float,
    describe: Callable[[], str],
    wait_for_save: Callable[[], None],
  ):
    self._timeout_s = timeout_s
    self._stall_s = stall_s
    self._describe = describe
    self._wait_for_save = wait_for_save
    self._interval = min(timeout_s / 6, 5.0)
    self._note: dict[str, Any] = {
      "host": platform.node(),
      "beat": 0,
      "steps": 0,
    }
    # By process: its last entry, and when its heartbeat and its steps changed.
    self._notes: dict[int, dict[str, Any]] = {}
    self._beat_at: dict[int, float] = {}
    self._step_at: dict[int, float] = {}
    self._over = threading.Event()
    self._ending = threading.Lock()

  def step(self) -> None:
    """Counts one more step of this process."""
    self._note["steps"] += 1

  def __enter__(self) -> Self:
    if jax.process_count() == 1:
      return self
    now = time.monotonic()
    self._beat_at = dict.fromkeys(range(jax.process_count()), now)
    self._step_at = dict(self._beat_at)
    for work in (self._talk, self._judge):
      threading.Thread(target=work, daemon=True).start()
    _on_abort(self._end_by_abort)
    return self

  def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
    if jax.process_count() == 1:
      return
    self.failing(kind, error, _)
    if error is None:
      self._note["done"] = True
      self._exchange_words()
      _on_abort(None)
    self._over.set()

  def failing(self, kind: Any, error: BaseException | None, _: Any) -> None:
    """Tells the other processes of an error, before an exit waits for them.

    An error of a collective follows from the loss of another process. So this
    process first waits, and is ended as soon as that loss is known.
    """
    if error is None or jax.process_count() == 1 or "error" in self._note:
      return
    text = f"{kind.__name__}: {' '.join(str(error).split())[:200]}"
    if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in text:
      print(f"{label()}{text}", file=sys.stderr, flush=True)
      time.sleep(self._timeout_s + 4 * self._interval + _SAVE_S)
    self._note["error"] = text
    self._exchange_words()

  def _talk(self) -> None:
    while not self._over.wait(self._interval):
      self._exchange_words()

  def _exchange_words(self) -> None:
    """Writes the entry of this process, and reads those that concern it."""
    client = _store()
    self._note["beat"] += 1
    try:
      client.key_value_set(
        f"{_KEY}/{jax.process_index()}",
        json.dumps(self._note),
        allow_overwrite=True,
      )
      if is_main():
        entries = dict(client.key_value_dir_get(f"{_KEY}/"))
      else:
        entries = {f"{_KEY}/0": client.key_value_try_get(f"{_KEY}/0")}
    except jax.errors.JaxRuntimeError:
      return  # Process 0 has not started, or is gone; `_judge` decides.
    now = time.monotonic()
    for key, text in entries.items():
      process, entry = int(key.rpartition("/")[2]), json.loads(text)
      before = self._notes.get(process, {})
      if entry["beat"] != before.get("beat"):
        self._beat_at[process] = now
      if entry["steps"] != before.get("steps"):
        self._step_at[process] = now
      self._notes[process] = entry

  def _judge(self) -> None:
    while not self._over.wait(self._interval / 2):
      verdict = self._notes.get(0, {}).get("verdict") or self._verdict()
      if verdict and not self._over.is_set():
        self.end(verdict)

  def _verdict(self) -> str | None:
    """The lost process and the reason, as far as this process can know."""
    now = time.monotonic()
    processes = range(1, jax.process_count()) if is_main() else (0,)
    for process in processes:
      entry = self._notes.get(process, {})
      name = _name(process, entry.get("host"))
      if entry.get("done"):
        continue
      if "error" in entry:
        return f"{name} has ended with an error: {entry['error']}"
      silence = now - self._beat_at[process]
      if silence > self._timeout_s:
        return f"{name} has not been heard of for {silence:.0f} s"
    if not is_main() or not self._notes:
      return None
    steps = {
      process: entry["steps"]
      for process, entry in self._notes.items()
      if not entry.get("done")
    }
    if not steps:
      return None
    last = min(steps, key=lambda process: steps[process])
    pause = now - self._step_at[last]
    if pause < self._stall_s:
      return None
    behind = [process for process in steps if steps[process] == steps[last]]
    subject = "no process has"
    if len(behind) == 1:
      subject = f"{_name(last, self._notes[last]['host'])} has not"
    return f"{subject} done a step for {pause:.0f} s"

  def end(self, verdict: str, tell: bool = True) -> NoReturn:
    """Prints why the run ends, and ends this process.

    Nothing here waits without a limit, because it may wait for the very thing
    that is lost.

    Args:
      tell: True if the other processes can be told.
    """
    with self._ending:  # Never released: one message is enough.
      tell = tell and is_main()
      if tell:
        self._note["verdict"] = verdict
        _within(_TELL_S, self._exchange_words)
      # A save can be finished only if every process has done its part. An
      # unfinished one keeps its temporary name, and is not a checkpoint.
      _within(_SAVE_S, self._wait_for_save)
      state = _within(_SAVE_S, self._described) or "What is saved is unknown."
      print(
        f"{label()}{verdict}; this run ends. {state} Start all processes again"
        " with the same command to continue.",
        file=sys.stderr,
        flush=True,
      )
      if tell:
        time.sleep(2 * self._interval)
      exit_now(EXIT_LOST)

  def _described(self) -> str:
    try:
      return self._describe()
    except Exception as error:  # The network may be lost.
      return f"What is saved cannot be read: {error}."

  def _end_by_abort(self) -> NoReturn:
    # It runs on the thread on which the client of the store gets its answers,
    # so that a question to the store would never be answered. The others hear
    # of the end of process 0 from JAX.
    self.end(
      "JAX has aborted this process, as the lines above say; most often because"
      f" {_name(0, self._notes.get(0, {}).get('host'))}, which the others need,"
      " is gone, or because a process was started twice",
      tell=False,
    )


def _within(seconds: float, work: Callable[[], Any]) -> Any:
  """Returns the result of `work`; None if it takes longer.

  In that case the thread of `work` is left alone.
  """
  results: list[Any] = []
  thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
  thread.start()
  thread.join(seconds)
  return results[0] if results else None


_KEY = "grpo_jax/processes"


def _store() -> Any:
  """The store of keys and values that all processes share."""
  # JAX has no public name for it; Orbax reads the private one as well.
  from jax._src import distributed

  return distributed.global_state.client


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handlers: list[Any] = []  # Kept alive: C holds the addresses.


def _on_abort(end: Callable[[], NoReturn] | None) -> None:
  """Sets the function that ends the process when JAX aborts it.

  A process whose coordination service is gone, or cannot be reached, is aborted
  at once by C++, which no Python handler can see. JAX has no callback for it
  that works (jax 0.10.2 takes one from Python only to fail with
  `std::bad_cast`), so the signal itself is caught, in C.

  Args:
    end: Prints the reason and ends the process; None: the process dies of an
      abort as usual.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
  if end is None:
    libc.signal(signal.SIGABRT, int(signal.SIG_DFL))
    return
  handler = _Handler(lambda _: end())
  _handlers.append(handler)
  libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
