"""Runs programs that attack the sandbox, and writes what they achieved.

    python -m experiments.rewards.attacks --out=docs/sandbox_attacks.md

Each attack is run in the box and as a plain process. Those of `box_attacks`
want to get out, or too much; those of `verdict_attacks` want the reward. In a
plain process they run on this machine, with this user's rights. They are
harmless, but run the command where that would matter little.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import platform
import socket
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from absl import app, flags

from experiments.rewards import box_attacks, verdict_attacks
from grpo_jax.rewards import boxes, code, defences, sandbox

_OUT = flags.DEFINE_string("out", "", "File to write; empty: none.")

_NUM_TIMED = 100
_SHORT = defences.Limits(cpu_s=1)


class Host(NamedTuple):
  """What attacks look for.

  Attributes:
    data: What they are told of it; see `box_attacks.Attack`.
  """

  data: bytes


@contextlib.contextmanager
def host() -> Iterator[Host]:
  """A file, an open port, a variable, a descriptor and a segment to find."""
  libc = ctypes.CDLL(None)
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(
      tempfile.NamedTemporaryFile("w", dir=sandbox.VISIBLE)
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
    told = (file.name, port, os.getpid(), key, platform.node() or "-")
    yield Host(" ".join(map(str, told)).encode() + b"\n")


def has_won(box: boxes.Box, attack: box_attacks.Attack, of: Host) -> bool:
  """Whether an attack on the box succeeds."""
  program = f"{box_attacks.prelude()}\n{attack.program}"
  wall_s = 2.0 if "wall time" in attack.held_by else 20.0
  outcome = box.run(
    program, of.data, limits=defences.Limits(cpu_s=1, wall_s=wall_s)
  )
  if attack.name == "say much":  # It is told nothing of how much is read.
    return len(outcome.output) >= 1 << 20
  return b"WON" in outcome.output


def has_scored(box: boxes.Box, attack: verdict_attacks.Attack) -> bool:
  """Whether an attack on the verdict has a reward."""
  return bool(
    code.num_passed(box, attack.program, attack.tests, _SHORT, row_s=30.0)
  )


def milliseconds(box: boxes.Box) -> float:
  """Of a small program with its box."""
  start = time.monotonic()
  for _ in range(_NUM_TIMED):
    box.run("f = lambda x: 2 * x", calls=["f(1)"])
  return 1000 * (time.monotonic() - start) / _NUM_TIMED


def table() -> str:
  """All attacks in both kinds of box, as Markdown."""
  both = [boxes.Box(kind) for kind in boxes.KINDS]
  lines = [
    "| attack | one of these is enough to hold it | bwrap | process |",
    "|---|---|---|---|",
  ]
  won = [0, 0]

  def add(name: str, layers: str, results: list[bool]) -> None:
    for k, result in enumerate(results):
      won[k] += result
    said = ["**succeeds**" if result else "held" for result in results]
    lines.append(f"| {name} | {layers} | {' | '.join(said)} |")

  with host() as of:
    for attack in box_attacks.ATTACKS:
      results = [has_won(box, attack, of) for box in both]
      add(attack.name, ", ".join(attack.held_by) or "several", results)
  for verdict in verdict_attacks.VERDICTS:
    scored = [has_scored(box, verdict) for box in both]
    add(verdict.name, "the verdict is outside", scored)
  total = len(box_attacks.ATTACKS) + len(verdict_attacks.VERDICTS)
  lines.append("")
  for kind, count, box in zip(boxes.KINDS, won, both, strict=True):
    lines.append(
      f"- `{kind}`: {total - count} of {total} held, {count} succeed; a small"
      f" program takes {milliseconds(box):.0f} ms."
    )
  return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
  """Prints the table, and writes it to --out."""
  del argv
  found = table()
  print(found, end="")
  if _OUT.value:
    text = (
      "# Attacks on the sandbox\n\nWritten by `python -m"
      " experiments.rewards.attacks`; see [sandbox.md](sandbox.md).\n\n"
    )
    pathlib.Path(_OUT.value).write_text(text + found, encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
