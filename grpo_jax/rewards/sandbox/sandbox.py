"""The sandbox of programs that a policy has written.

`require` gives the box of a process, once it has shown that it holds: a program
in it tries to read a file of the host, to start a process, to reach the host's
loopback and to see its processes. If one of these works, or no box can be made,
there is an error and nothing in its place.

The verdict is none of the box's business. A program is given inputs; whoever
calls `Box.run` compares what came out, at most `Limits.output` bytes, with what
was expected, which never enters a box. So a program that ends itself, replaces
`==` or writes "passed" has just written something wrong.

docs/sandbox.md says against whom this holds, and against whom it does not.
"""

from __future__ import annotations

import functools
import os
import socket
import tempfile
import warnings

from grpo_jax.rewards.sandbox import boxes, defences

VISIBLE = "/var/tmp"  # A folder that all users have, and no box.

# What must not work in a box: prints what does. The input is the path of a file
# of the host, and a port on which the host listens.
_SELF_TEST = """
import os
path, port = input().rsplit(" ", 1)
try:
  print("it read a file of the host:", open(path).read())
except OSError:
  pass
try:
  child = os.fork()
  if not child:
    os._exit(0)
  print("it started a process")
except OSError:
  pass
try:
  import socket
  socket.create_connection(("127.0.0.1", int(port)), 1.0)
  print("it reached the host's loopback")
except OSError:
  pass
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 2:
  print("it saw processes of the host")
print("tested")
"""
_ADVICE = (
  " Containers often forbid namespaces, and some systems forbid them to"
  " ordinary users: start the container with `--security-opt seccomp=unconfined"
  " --security-opt apparmor=unconfined`, or see docs/sandbox.md. There is no"
  " other box in its place. config.rewards.sandbox='process' is none, and is"
  " for programs of a policy that you trust."
)
_WARNING = (
  "sandbox: 'process' is no sandbox. A program has limits of time and memory,"
  " an empty environment and a folder of its own. It can read and write this"
  " user's files, use the network, see and end this user's processes, and leave"
  " processes behind. Set config.rewards.sandbox='bwrap' for anything that a"
  " policy explores by itself."
)


def self_test(box: boxes.Box) -> None:
  """Tries in a box what must not work there.

  Raises:
    RuntimeError: Something does, or the box cannot be made.
  """
  with (
    tempfile.NamedTemporaryFile("w", dir=VISIBLE) as canary,
    socket.socket() as server,
  ):
    canary.write("canary")
    canary.flush()
    os.chmod(canary.name, 0o644)
    server.bind(("127.0.0.1", 0))
    server.listen()
    data = f"{canary.name} {server.getsockname()[1]}"
    # A machine that has just begun a run may be busy.
    outcome = box.run(
      _SELF_TEST, data.encode(), limits=defences.Limits(wall_s=60.0)
    )
  said = outcome.output.decode(errors="replace").split("\n")
  if outcome.status != "done" or said != ["tested", ""]:
    raise RuntimeError(
      f"sandbox: the self-test of the box has failed ({outcome.status}):"
      f" {'; '.join(said)[:300]}."
    )


@functools.cache
def require(kind: str) -> boxes.Box:
  """The box of this process; the first call tests it.

  Raises:
    ValueError: There is no such kind.
    RuntimeError: It cannot be made here, or does not hold.
  """
  if kind == "process":
    warnings.warn(_WARNING, RuntimeWarning, stacklevel=2)
  if kind != "bwrap" or not boxes.bwraps():
    return boxes.Box(kind)
  failures = []
  for path in boxes.bwraps():
    try:
      box = boxes.Box(kind, path)
      self_test(box)
      return box
    except (RuntimeError, TimeoutError) as error:
      failures.append(f"{path}: {error}")
  raise RuntimeError(
    "sandbox: programs cannot be run safely here. "
    + " ".join(failures)
    + _ADVICE
  )
