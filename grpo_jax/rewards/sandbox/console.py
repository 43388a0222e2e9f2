"""The program of an interpreter in a box: it runs blocks of Python in turn.

`interpreter.py` hands this text to `Box.start`. Like `in_the_box.py`, which
runs it, it imports nothing of this package, and little else: a module takes
milliseconds, and each session pays for them.

Descriptor 0 brings a call: 16 bytes that nobody can guess, the length of the
block in ten digits, and the block. The block's standard outputs go to
descriptor 1, with the `repr` of an expression at its end, or a few lines about
the error that it raised. When all is written, the 16 bytes of the call go to
descriptor 2, and "." or, if it raised, "!".

A block can reach all of this, and answer later calls in our place. Then it
deceives the policy that wrote it, and nobody else: see `interpreter.py`.
"""

import _ast
import builtins
import os
import sys

NONCE = 16  # Bytes that begin a call.
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
_FRAMES = 3  # Lines of the program that a message about an error shows.
_LINE = 120  # Characters of each.


def _read(fd: int, size: int) -> bytes:
  data = b""
  while len(data) < size:
    part = os.read(fd, size - len(data))
    if not part:
      os._exit(0)  # The host has closed the descriptor.
    data += part
  return data


def _run(code: str, name: str, names: dict) -> None:
  """Runs a block; shows an expression at its end, like a notebook."""
  if "\0" in code:  # Before Python 3.11.4 this was a ValueError.
    raise SyntaxError("source code string cannot contain null bytes")
  tree = compile(code, name, "exec", _ONLY_AST, dont_inherit=True)
  last = []
  if tree.body and isinstance(tree.body[-1], _ast.Expr):
    last = [tree.body.pop()]
  exec(compile(tree, name, "exec", dont_inherit=True), names)
  if last:
    ending = _ast.Interactive(last)
    exec(compile(ending, name, "single", dont_inherit=True), names)


def _line(source: dict, name: str, number: object, function: str) -> str:
  """Returns a place in the program: "line 2, in f: return 1 / x"."""
  lines = source[name]
  text = ""
  if isinstance(number, int) and 0 < number <= len(lines):
    text = lines[number - 1].strip()[:_LINE]
  where = f"line {number}"
  if name != next(reversed(source)):
    where = f"{name[1:-1]}, {where}"
  if function != "<module>":
    where += f", in {function}"
  return f"{where}: {text}"


def _failure(error: BaseException, source: dict) -> str:
  """Returns the error, its lines in the program, and nothing of the library."""
  lines = []
  trace = error.__traceback__
  while trace is not None:
    code = trace.tb_frame.f_code
    if code.co_filename in source:
      name, number = code.co_filename, trace.tb_lineno
      lines.append(_line(source, name, number, code.co_name))
    trace = trace.tb_next
  text = ""
  try:
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename in source:
      text = str(error.msg)
      where = error.filename or ""
      lines.append(_line(source, where, error.lineno, "<module>"))
  except BaseException as other:  # A class of the program can raise here.
    text = type(other).__name__
  kind = type(error).__name__
  return "\n".join([*lines[-_FRAMES:], f"{kind}: {text}" if text else kind])


def _answer(code: str, name: str, names: dict, source: dict) -> bytes:
  """Runs a block and writes its result; returns "." or, if it raised, "!"."""
  # New streams for each block: an earlier one may have closed or replaced them.
  output = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
  for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
    setattr(sys, stream, output)
  source[name] = code.split("\n")
  how, report = b".", ""
  try:
    _run(code, name, names)
    sys.stdout.flush()
  except BaseException as error:  # Also SystemExit: the names stay.
    how, report = b"!", _failure(error, source)
  try:
    output.write(report)
    output.flush()
  except BaseException:
    return b"!"
  return how


def main() -> None:
  """Answers calls until the last."""
  asks, output, channel = os.dup(0), os.dup(1), os.dup(2)
  null = os.open(os.devnull, os.O_RDONLY)
  # A module of its own, as classes of the program expect to have.
  module = type(sys)("__main__")
  module.__dict__["__builtins__"] = builtins
  sys.modules["__main__"] = module
  source: dict = {}
  count = 0
  while True:
    # A block cannot read the next call by `input`. Whatever it has done to its
    # descriptors, the next block has new ones.
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    nonce = _read(asks, NONCE)
    code = _read(asks, int(_read(asks, 10))).decode()
    count += 1
    how = _answer(code, f"<call {count}>", module.__dict__, source)
    os.write(channel, nonce + how)


if __name__ == "__main__":
  main()
