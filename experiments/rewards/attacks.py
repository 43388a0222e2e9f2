"""Runs programs that attack the sandbox, and writes their results.

    python -m experiments.rewards.attacks --out=docs/sandbox_attacks.md

Each attack is run in the box and as a plain process. Attacks of `box_attacks`
try to get out, or to take too much; those of `verdict_attacks` try to get the
reward. In a plain process they run on this machine, with this user's rights.
They are harmless, but run the command where harm would matter little.
"""

from __future__ import annotations

import pathlib
import time

from absl import app, flags

from experiments.rewards import attempts, box_attacks, verdict_attacks
from grpo_jax.rewards.sandbox import box as box_lib

_OUT = flags.DEFINE_string("out", "", "File to write; empty: none.")

_NUM_TIMED = 100


def milliseconds(box: box_lib.Box) -> float:
  """Milliseconds of a small program, with its box."""
  start = time.monotonic()
  for _ in range(_NUM_TIMED):
    box.run("f = lambda x: 2 * x", calls=["f(1)"])
  return 1000 * (time.monotonic() - start) / _NUM_TIMED


def table() -> str:
  """Markdown table of all attacks in both kinds of box."""
  both = [box_lib.Box(kind) for kind in box_lib.KINDS]
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

  with attempts.host() as of:
    for attack in box_attacks.ATTACKS:
      results = [attempts.has_won(box, attack, of) for box in both]
      add(attack.name, ", ".join(attack.held_by) or "several", results)
  for verdict in verdict_attacks.VERDICTS:
    scored = [attempts.has_scored(box, verdict) for box in both]
    add(verdict.name, "the verdict is outside", scored)
  total = len(box_attacks.ATTACKS) + len(verdict_attacks.VERDICTS)
  lines.append("")
  for kind, count, box in zip(box_lib.KINDS, won, both, strict=True):
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
