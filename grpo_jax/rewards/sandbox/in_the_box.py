"""What runs first in the sandbox; `box.py` hands this text to an
interpreter.

It imports nothing but what every interpreter has, and nothing of this package:
`-I -S` in an empty root. It reads from descriptor 0 ten digits, so many bytes
of a header (`marshal`), and leaves the rest to the program as its input. It
then limits itself, gives up its rights, says that it is ready, and only then
touches the program.

The header has the program; the limits; the user to become; whether to close
other descriptors; the calls, or None; and whether the program is talked to.
Without calls, what the program writes to its standard output is the answer, and
one that is talked to has the error output as well. Calls are expressions;
`repr` of each is sent as its length, a colon and its bytes, or "-:" where it
raises, in their order.

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
  # In functions that are compiled here, so that no name of the program is
  # looked up but those that the call has.
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
  # What `site` would add.
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
  # Whatever the program has left for the end of the interpreter stays undone.
  sys.stdout = None
  os._exit(0)


if __name__ == "__main__":
  main()
