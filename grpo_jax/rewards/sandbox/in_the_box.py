"""The first program in the sandbox; `box.py` hands this text to an interpreter.

It imports only modules of every interpreter, and nothing of this package: it
runs with `-I -S` in an empty root. From descriptor 0 it reads ten digits, so
many bytes of a header (`marshal`), and leaves the rest to the program as its
input. It then sets its limits, gives up its rights, writes that it is ready,
and only then touches the program.

The header has the program; the limits; the user to become; whether to close
other descriptors; the calls, or None; and whether the program is interactive.
Without calls, the answer is the program's standard output; an interactive
program has the error output as well. Calls are expressions; `repr` of each is
sent as its length, a colon and its bytes, or "-:" if it raises, in their order.

Expected outputs are never here.
"""

import builtins
import marshal
import os
import resource
import sys

READY = b"ready\n"


def _read(size: int) -> bytes:
  data = b""
  while len(data) < size:
    part = os.read(0, size - len(data))
    if not part:
      raise EOFError
    data += part
  return data


def _write(fd: int, data: bytes) -> None:
  while data:
    data = data[os.write(fd, data) :]


def _give_up_rights(user: int) -> None:
  os.setgroups([])
  os.setresgid(user, user, user)
  os.setresuid(user, user, user)


def _answer(call: str, names: dict) -> bytes:
  # In a function that is compiled here, so that only the names in the call are
  # looked up in the program.
  try:
    text = repr(eval(call, names)).encode("utf-8", "backslashreplace")
  except BaseException:
    return b"-:"
  return b"%d:%s" % (len(text), text)


def main() -> None:
  """Runs the program, and then the calls."""
  header = marshal.loads(_read(int(_read(10))))
  if header["closes"]:
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
  if header["user"] is not None:
    _give_up_rights(header["user"])
  for name, value in header["limits"]:
    resource.setrlimit(getattr(resource, name), (value, value))
  null = os.open(os.devnull, os.O_WRONLY)
  if not header["talks"]:
    os.dup2(null, 2)
  _write(1, READY)
  calls = header["calls"]
  # `site` would add these.
  builtins.exit = builtins.quit = sys.exit  # type: ignore
  names = {"__name__": "__main__", "__builtins__": builtins}
  code = compile(header["program"], "<program>", "exec")
  if calls is None:
    os.close(null)
    exec(code, names)
    return
  channel = os.dup(1)
  os.dup2(null, 1)
  os.close(null)
  exec(code, names)
  for call in calls:
    _write(channel, _answer(call, names))
  # Exit handlers of the program are not run.
  sys.stdout = None
  os._exit(0)


if __name__ == "__main__":
  main()
