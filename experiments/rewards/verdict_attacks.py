"""Programs that try to get the reward without the right answer.

Each is scored by hidden tests whose outputs no program can compute; those of
`KNOWING` have outputs that the program does know, and it then misbehaves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Test = dict[str, str]

_INPUT: list[Test] = [
  {"input": "5\n", "output": "73914"},
  {"input": "6\n", "output": "80562"},
]
_CALL: list[Test] = [
  {"call": "f(5)", "output": "73914"},
  {"call": "f(6)", "output": "80562"},
]
_DOUBLE: list[Test] = [{"input": "5\n", "output": "10"}]


class Attack(NamedTuple):
  """Program that attacks a verdict, and the tests that it should fail."""

  name: str
  program: str
  tests: list[Test]


def _of_both(name: str, program: str) -> list[Attack]:
  return [
    Attack(f"{name}, read by input", program, _INPUT),
    Attack(f"{name}, called", program, _CALL),
  ]


_ALWAYS_EQUAL = """
class Equal(str):
  __eq__ = __le__ = __ge__ = lambda self, other: True
  __ne__ = lambda self, other: False
  __hash__ = str.__hash__
  __repr__ = lambda self: self
  __len__ = lambda self: 5
"""
# Texts that a program finds in the memory of its process.
_ALL_TEXTS = """
import gc, sys
found = []
frame = sys._getframe()
while frame:
  found += [repr(x) for x in frame.f_locals.values()]
  frame = frame.f_back
found += [repr(x) for x in gc.get_objects() if isinstance(x, (dict, list))]
numbers = [w for t in found for w in t.replace("'", " ").split() if len(w) == 5]
"""

UNKNOWING = [
  *_of_both("end at once", "exit(0)"),
  *_of_both("end without cleaning up", "import os; os._exit(0)"),
  *_of_both("raise the end", "raise SystemExit(0)"),
  *_of_both("say passed", "print('passed')\nf = lambda x: 'passed'"),
  *_of_both("say nothing", ""),
  *_of_both(
    "be equal to everything",
    f"{_ALWAYS_EQUAL}\nf = lambda x: Equal('1')\nprint(Equal('1'))",
  ),
  *_of_both(
    "patch what compares",
    "import builtins, operator\n"
    "builtins.all = builtins.any = builtins.bool = lambda *_: True\n"
    "operator.eq = lambda a, b: True\nf = lambda x: True\nprint(True)",
  ),
  *_of_both(
    "patch print and repr",
    "import builtins\nbuiltins.repr = builtins.print = lambda *_: 'passed'\n"
    "f = lambda x: x",
  ),
  *_of_both(
    "patch the first program",
    "import sys\nmain = sys.modules['__main__']\n"
    "main._answer = lambda *_: b'6:passed'\nmain.READY = b'passed'\n"
    "f = lambda x: x",
  ),
  *_of_both(
    "search its memory",
    f"{_ALL_TEXTS}\nprint(*numbers, sep='\\n')\n"
    "f = lambda x: int((numbers + ['1'])[0])",
  ),
  *_of_both(
    "read its input from the beginning",
    "import os, re\nos.lseek(0, 0, 0)\ntext = os.read(0, 1 << 16)\n"
    "found = re.findall(rb'[0-9]{5}', text[10:])\nprint(*found)\n"
    "f = lambda x: int((found + [b'1'])[0])",
  ),
  *_of_both(
    "read what lies about",
    "import glob\ntext = ''\n"
    "for name in glob.glob('/tmp/*') + ['tests.jsonl', '/proc/1/cmdline']:\n"
    "  try: text += open(name).read()\n"
    "  except OSError: pass\n"
    "print(text)\nf = lambda x: text",
  ),
  *_of_both("give the question back", "f = lambda x: x\nprint(input())"),
  *_of_both(
    "say all numbers",
    "print(*range(60000, 75000))\nf = lambda x: range(100000)",
  ),
  *_of_both(
    "say all numbers on lines",
    "for n in range(100000): print(n)\nf = lambda x: [*range(100000)]",
  ),
  *_of_both(
    "say that it is ready, again",
    "import os\nos.write(1, b'ready\\n' * 3)\nf = lambda x: 'ready'",
  ),
  *_of_both(
    "answer all calls on every descriptor",
    "import os\n"
    "for fd in range(32):\n"
    "  try: os.write(fd, b'1:1' * 4 + b'6:passed' * 4)\n"
    "  except OSError: pass\n"
    "f = lambda x: x",
  ),
  *_of_both(
    "answer with false lengths",
    "import os\n"
    "for fd in range(32):\n"
    "  for text in (b'-5:', b'9' * 5000 + b':', b'99999999999:1', b':'):\n"
    "    try: os.write(fd, text)\n"
    "    except OSError: pass\n"
    "f = lambda x: x",
  ),
  *_of_both(
    "answer when the interpreter ends",
    "import atexit\natexit.register(lambda: print('passed'))\nf = lambda x: x",
  ),
  *_of_both(
    "have an answer that raises the end",
    "class X:\n  def __repr__(self): raise SystemExit(0)\nf = lambda x: X()",
  ),
  *_of_both(
    "write to the first process",
    "import os\n"
    "for n in (1, 2):\n"
    "  try: os.write(os.open(f'/proc/1/fd/{n}', os.O_WRONLY), b'passed')\n"
    "  except OSError: pass\n"
    "f = lambda x: x",
  ),
  *_of_both("close everything", "import os\nos.closerange(0, 64)"),
  *_of_both("crash", "import ctypes\nctypes.string_at(0)"),
  *_of_both("be no program", "``` )"),
  *_of_both("have a zero in it", "f = lambda x: 1\0"),
  *_of_both(
    "have half a pair in it", "print('\ud800')\nf = lambda x: '\ud800'"
  ),
]

KNOWING = [
  Attack(name, f"print(2 * int(input()), flush=True)\n{rest}", _DOUBLE)
  for name, rest in (
    ("answer, and crash", "import os; os.abort()"),
    ("answer, and end with an error", "exit(1)"),
    ("answer, and raise", "1 / 0"),
    ("answer, and loop", "while True: pass"),
    ("answer, and flood", "while True: print('0' * 1000)"),
    ("answer, and take all memory", "x = bytes(10 << 30)"),
    ("answer, and answer again", "print(11)"),
  )
]

VERDICTS: list[Any] = [*UNKNOWING, *KNOWING]
