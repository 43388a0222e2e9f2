"""Writes a file of preferences: small sums, well-formed and not.

    python scripts/make_pairs.py --output=runs/pairs.jsonl

The same options give the same file.
"""

import json
import pathlib
import random

from absl import app, flags

_OUTPUT = flags.DEFINE_string("output", None, "File to write.", required=True)
_NUM = flags.DEFINE_integer("num", 2000, "Number of pairs.", 1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the numbers.", 0)

# A rejected completion lacks one of these.
TAGS = ("</think>", "<answer>", "</answer>")


def pair(rng: random.Random) -> dict[str, str]:
  """Makes a sum whose answer stands in tags, and one with a tag missing."""
  a, b = rng.randrange(10), rng.randrange(10)
  chosen = f"<think>{a} and {b} is {a + b}</think>\n<answer>{a + b}</answer>"
  rejected = chosen.replace(rng.choice(TAGS), "")
  return {"prompt": f"{a} + {b} =", "chosen": chosen, "rejected": rejected}


def main(argv):
  del argv
  rng = random.Random(_SEED.value)
  lines = [json.dumps(pair(rng)) + "\n" for _ in range(_NUM.value)]
  path = pathlib.Path(_OUTPUT.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
