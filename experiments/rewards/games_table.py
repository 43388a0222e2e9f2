"""Tries every game of textarena and writes docs/games_table.md.

    python -m experiments.rewards.games_table

A game may have several variants; the program takes the one with the shortest
name. It begins that variant with a few seeds, in two processes whose strings
hash differently. Players who draw one of the listed moves play it to its end.
The program takes a few minutes on one core, and downloads nothing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app

from experiments.rewards import two_processes
from grpo_jax.rewards.agents import games as games_lib

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/games_table.md"
_TIMEOUT_S = 30.0  # Of a game.
# Seeds of each game.
NUM_SEEDS = 5
_PLAYS = "plays"
_NO_MOVES = "lists no moves"
_ALONE = "plays, for one; lists no moves for a warm start"
_OWN = "lists no moves: needs an opponent of yours"
# Text in an error -> its meaning.
_REASONS = {
  "nltk": "needs words that nltk downloads",
  "NLTK": "needs words that nltk downloads",
  "OpenRouter": "needs a language model of OpenRouter (a key, and network)",
  "SyntaxError": "its code needs Python 3.12",
  "Could not import": "its code is not in the package",
  "FileNotFoundError": "its data are not in the package",
  "No such file": "its data are not in the package",
  "moved 1000 times": "goes on without the policy",
}

_INTRODUCTION = """\
# The games of textarena

`python -m experiments.rewards.games_table` has written this page with textarena
{version} on Python {python}, without network: {num} games, of each the variant
with the shortest name, {count} seeds. **{plays} can be played as they are,
alone or against "random". Another {own} need an opponent of yours**: a
function, or several moves, of which one is drawn each time. How to use them:
[docs/games.md](games.md).

- *Players*: with how many it begins if nobody says how many.
- *Characters*: the longest of the first observations, without a view.
- *Turns*: of the policy in a game, on average, if all draw one of the moves
  that the game lists.
- *Same*: whether two processes have made and played the same games. Otherwise
  the prompt is often another one than the session's, which then fails.

| game | players | characters | turns | same | verdict |
|------|--------:|-----------:|------:|------|---------|
"""


def names() -> list[str]:
  """The variant of each game that other variants are named after."""
  variants = games_lib.names()
  return [
    name
    for name in variants
    if not any(name.startswith(f"{other}-") for other in variants)
  ]


def attempt(name: str) -> dict[str, Any]:
  """Measures a game with its default settings.

  Returns:
    Numbers of the table, a digest of all texts that were shown, and the reason
    of an early end if there was one.
  """
  options = {"env": f"textarena:{name}"}
  shown: list[Any] = []
  found: dict[str, Any] = {"turns": None}
  try:
    found["players"] = games_lib.count_players(name, {})
    problems = [games_lib.problem(i, **options) for i in range(NUM_SEEDS)]
    begun = [x for x in problems if x is not None]
    shown += begun
    found["characters"] = max(len(prompt) for prompt, _ in begun)
    lessons = [games_lib.lesson(*one, **options) for one in begun]
    shown += lessons
    found["turns"] = statistics.fmean(map(len, lessons))
  except Exception as error:  # Of any kind: the table says which.
    found["error"] = two_processes.described(error)
  found["digest"] = hashlib.sha256(repr(shown).encode()).hexdigest()
  return found


def verdict(results: Sequence[Mapping[str, Any]]) -> str:
  """Reason why a game cannot be played as it is, or `_PLAYS`."""
  first, second = results
  for result in results:
    if error := result.get("error"):
      if _NO_MOVES in error:
        return _ALONE if result["players"] == 1 else _OWN
      for mark, reason in _REASONS.items():
        if mark in error:
          return reason
      return two_processes.in_a_cell(error, 120)
  if first["digest"] != second["digest"]:
    return "another game in every process"
  return _PLAYS


def row(name: str, results: Sequence[Mapping[str, Any]]) -> str:
  """A line of the table."""
  first, second = results
  turns = first.get("turns")
  same = "yes" if first.get("digest") == second.get("digest") else "no"
  cells = [
    name,
    str(first.get("players", "")),
    str(first.get("characters", "")),
    "" if turns is None else f"{turns:.1f}",
    same if "players" in first else "",
    verdict(results),
  ]
  return f"| {' | '.join(cells)} |"


def page(found: Mapping[str, Sequence[Mapping[str, Any]]], version: str) -> str:
  """The page for these results by name."""
  verdicts = [verdict(results) for results in found.values()]
  text = _INTRODUCTION.format(
    version=version,
    python=".".join(platform.python_version_tuple()[:2]),
    num=len(found),
    count=NUM_SEEDS,
    plays=sum(x in (_PLAYS, _ALONE) for x in verdicts),
    own=verdicts.count(_OWN),
  )
  return text + "\n".join(row(*item) for item in found.items()) + "\n"


def main(argv: Sequence[str]) -> None:
  del argv
  found = two_processes.tried(
    "experiments.rewards.games_table",
    _TIMEOUT_S,
    stderr=subprocess.DEVNULL,
  )
  version = importlib.metadata.version("textarena")
  _PAGE.write_text(page(found, version), encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
