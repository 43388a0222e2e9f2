"""Runs an attack on the sandbox and reports whether it has succeeded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import tempfile
from collections.abc import Iterator

from experiments.rewards import box_attacks, verdict_attacks
from grpo_jax.rewards import code
from grpo_jax.rewards.sandbox import box as box_lib

_SHORT = box_lib.BoxLimits(cpu_s=1)


@contextlib.contextmanager
def host() -> Iterator[bytes]:
  """A file, an open port, a variable, a descriptor and a segment to find.

  Yields:
    What attacks get as input; see `box_attacks.Attack`.
  """
  libc = ctypes.CDLL(None)
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(
      tempfile.NamedTemporaryFile("w", dir=box_lib.VISIBLE)
    )
    file.write("secret")
    file.flush()
    os.chmod(file.name, 0o644)
    server = stack.enter_context(socket.socket())
    server.bind(("127.0.0.1", 0))
    server.listen()
    fd = os.open(file.name, os.O_RDONLY)
    stack.callback(os.close, fd)
    os.set_inheritable(fd, True)
    os.environ["SECRET"] = "secret"
    stack.callback(os.environ.pop, "SECRET")
    key = int.from_bytes(os.urandom(3)) + 1
    segment = libc.shmget(key, 4096, 0o1600)
    stack.callback(libc.shmctl, segment, 0, None)
    port = server.getsockname()[1]
    facts = (file.name, port, os.getpid(), key, platform.node() or "-")
    yield " ".join(map(str, facts)).encode() + b"\n"


def has_won(
  box: box_lib.Box, attack: box_attacks.Attack, of: bytes, processes: int = 1
) -> bool:
  """True if an attack on a box for so many processes succeeds."""
  program = f"{box_attacks.prelude()}\n{attack.program}"
  wall_s = 2.0 if "wall time" in attack.held_by else 20.0
  # An attack on something else is not to be stopped by a slow machine.
  cpu_s = 1 if "CPU time" in attack.held_by else 10
  limits = box_lib.BoxLimits(cpu_s=cpu_s, wall_s=wall_s, processes=processes)
  outcome = box.run(program, of, limits=limits)
  if attack.name == "say much":  # It does not know how much is read.
    return len(outcome.output) >= 1 << 20
  return b"WON" in outcome.output


def has_scored(box: box_lib.Box, attack: verdict_attacks.Attack) -> bool:
  """True if an attack on the verdict has a reward."""
  return bool(
    code.num_passed(
      box,
      attack.program,
      code.read(attack.tests),
      _SHORT,
      row_s=30.0,
    )
  )
