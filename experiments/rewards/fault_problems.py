"""Problems of the small task for a coding agent; see `coding_task.py`.

A repository has one file, in which an operator is wrong:

    prompt          f(6, 3) is wrong. f.py: return a + b
    visible test    f(6, 3) is 18
    hidden tests    three others

The tests of the repository tell which operator is right. The folder gets
train.jsonl and test.jsonl, with other problems; demonstrations.jsonl for the
warm start; and the folder tokenizer, as `search_task.py` has it. The bytes are
the same each time.

The teacher of the warm start is sloppy: of three episodes it writes an operator
without a test in one; in another it writes an unreadable call and then hands in
what it has; only in the third it runs the tests and repairs the fault. The
reward decides which habit pays.
"""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any

from experiments.rewards import lines, search_task
from grpo_jax.data import tokenizer
from grpo_jax.rewards.agents import coding

OPTIONS = {"format": "qwen", "max_calls": 3, "max_parallel": 1}
NUM_TEST = 64
_NUM_TAUGHT = 4  # Episodes of the teacher for each problem.
_NUM_HIDDEN = 3
_SIGNS = "+-*"
_DONE = "Done." + search_task.END
# Without schemas: the model knows its tools from the warm start.
_TEMPLATE = search_task.TEMPLATE.partition("{% endif %}")[2]


def _test(sign: str, a: int, b: int) -> dict[str, str]:
  value = {"+": a + b, "-": a - b, "*": a * b}[sign]
  return {"call": f"f({a}, {b})", "output": str(value)}


def problems() -> list[dict[str, Any]]:
  """All problems, in a random order that is always the same."""
  draw = random.Random(0)
  pairs = list(itertools.product(range(3, 10), repeat=2))
  records = [
    {
      "prompt": f"f({a}, {b}) is wrong. f.py: return a {wrong} b",
      "answer": right,
      "extras": {
        "files": {"f.py": f"def f(a, b):\n  return a {wrong} b\n"},
        "module": "f",
        "visible": [_test(right, a, b)],
        "hidden": [_test(right, *x) for x in draw.sample(pairs, _NUM_HIDDEN)],
      },
    }
    for wrong, right in itertools.permutations(_SIGNS, 2)
    for a, b in pairs
  ]
  draw.shuffle(records)
  return records


def _repair(wrong: str, right: str) -> str:
  return search_task.call(
    "replace", path="f.py", old=f"a {wrong} b", new=f"a {right} b"
  )


def _episodes(
  draw: random.Random, record: dict[str, Any]
) -> Iterator[tuple[str, ...]]:
  """Yields the episodes of the teacher, each as its actions in order."""
  wrong, right = record["prompt"].split()[-2], record["answer"]
  tests = search_task.call("run_tests")
  for _ in range(_NUM_TAUGHT):
    guess = draw.choice([x for x in _SIGNS if x != wrong])
    yield draw.choice(
      [
        (_repair(wrong, guess), _DONE),
        (tests.replace("}}", "}"), _DONE),
        (tests, _repair(wrong, right), _DONE),
      ]
    )


def _demonstration(
  text: tokenizer.Tokenizer, record: dict[str, Any], actions: tuple[str, ...]
) -> dict[str, Any]:
  session = coding.make(record["prompt"], record["extras"], 0, **OPTIONS)
  return search_task.demonstration(text, record, actions, session)


def write(folder: pathlib.Path) -> None:
  """Writes the task; the module lists the files."""
  folder.mkdir(parents=True, exist_ok=True)
  records = problems()
  train, test = records[:-NUM_TEST], records[-NUM_TEST:]
  lines.write(folder / "train.jsonl", train)
  lines.write(folder / "test.jsonl", test)
  texts = [
    *(record["prompt"] for record in records),
    *(_repair(x, y) for x, y in itertools.permutations(_SIGNS, 2)),
    *[
      search_task.call("run_tests") + "system user assistant",
      "FAILED f(3, 3)\n  is       9\n  expected 6\n0 of 1 tests pass.",
      "f.py has 2 lines now." + _DONE + search_task.ERROR,
    ]
    * 40,
  ]
  text = search_task.train_tokenizer(folder / "tokenizer", texts, _TEMPLATE)
  draw = random.Random(1)
  lines.write(
    folder / "demonstrations.jsonl",
    (
      _demonstration(text, record, actions)
      for record in train
      for actions in _episodes(draw, record)
    ),
  )
