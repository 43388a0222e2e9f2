r"""Writes word problems with numbers, and traces of a teacher with a tool.

    python -m experiments.rewards.word_problems --out=runs/python_agent
    python -m experiments.train --config=configs/python_agent.py \
        --workdir=runs/python_agent/run

A problem has three numbers, too large for a small model to calculate with:

    prompt   Ann has 274 pens and buys 455 more. She gives 88 away. How many
             are left?
    answer   641

The folder gets train.jsonl and test.jsonl; tokenizer.json, trained on them,
with a token for each tag; and traces.jsonl, the actions of a teacher with the
answers of the interpreter in the sandbox. The teacher is careless:

| of ten | it does                                                           |
|--------|-------------------------------------------------------------------|
| four   | says the answer, without the tool; it knows the answers by heart  |
| three  | calls the tool with a wrong sign, or forgets the third number     |
| three  | calls it rightly, at once or in two calls with a name in between  |

The bytes are the same each time. The two files of problems share no problem.
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import app, flags

from experiments.rewards import lines
from grpo_jax.data import demonstrations, environments, formats, tokenizer
from grpo_jax.rewards.sandbox import interpreter

NUM_TRAIN, NUM_TEST = 8192, 256
MAX_OBSERVATION_LEN = 16  # As in the config.
TAGS = ("<tool>", "</tool>", "<obs>", "</obs>")
# How often the teacher does without the tool, and how often it errs with it.
BY_HEART, WRONG = 0.4, 0.3
_VOCAB_SIZE = 400
_SEED = 0

_NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hugo")
_THINGS = ("pens", "cards", "shells", "coins", "nuts", "beads", "stamps")
# Text, the signs of its second and third number, and whether the first two are
# of two digits.
_STORIES = (
  (
    "{name} has {a} {things} and buys {b} more. {name} gives {c} away. How many"
    " are left?",
    "+-",
    False,
  ),
  (
    "{name} finds {a} {things}, loses {b} and finds {c} again. How many are"
    " there?",
    "-+",
    False,
  ),
  (
    "{name} buys {a} boxes of {b} {things} and gives {c} {things} away. How"
    " many are left?",
    "*-",
    True,
  ),
  (
    "{name} has {c} {things} and gets {a} bags of {b} more. How many are"
    " there?",
    "*+",
    True,
  ),
)


class Problem(NamedTuple):
  """A word problem.

  Attributes:
    prompt: Its text.
    numbers, signs: Numbers a, b, c and signs o, p of a o b p c, with the usual
      precedence.
  """

  prompt: str
  numbers: tuple[int, int, int]
  signs: str

  @property
  def expression(self) -> str:
    a, b, c = self.numbers
    return f"{a}{self.signs[0]}{b}{self.signs[1]}{c}"

  @property
  def answer(self) -> str:
    a, b, c = self.numbers
    first = {"+": a + b, "-": a - b, "*": a * b}[self.signs[0]]
    return str(first + c if self.signs[1] == "+" else first - c)


def problems() -> tuple[list[Problem], list[Problem]]:
  """Problems for training and for testing; all differ."""
  rng = random.Random(_SEED)
  found: dict[str, Problem] = {}
  while len(found) < NUM_TRAIN + NUM_TEST:
    made = _problem(rng)
    found[made.prompt] = made
  made_all = list(found.values())
  return made_all[:NUM_TRAIN], made_all[NUM_TRAIN:]


def _problem(rng: random.Random) -> Problem:
  text, signs, is_product = rng.choice(_STORIES)
  if is_product:
    a, b = rng.randint(12, 99), rng.randint(12, 99)
  else:
    a, b = rng.randint(400, 999), rng.randint(100, 399)
  c = rng.randint(11, 99)
  prompt = text.format(
    name=rng.choice(_NAMES), things=rng.choice(_THINGS), a=a, b=b, c=c
  )
  return Problem(prompt, (a, b, c), signs)


def actions(problem: Problem, rng: random.Random) -> list[str]:
  """Calls of the teacher before its answer; [] if it needs no tool."""
  chance = rng.random()
  if chance < BY_HEART:
    return []
  a, b, c = problem.numbers
  first, second = problem.signs
  if chance < BY_HEART + WRONG:
    if rng.random() < 0.5:
      return [f"print({a}{first}{b})"]
    second = "+" if second == "-" else "-"
  if rng.random() < 0.5:
    return [f"print({a}{first}{b}{second}{c})"]
  return [f"n={a}{first}{b}", f"n{second}{c}"]


def trace(
  text: tokenizer.Tokenizer,
  problem: Problem,
  rng: random.Random,
  python: interpreter.Interpreter,
) -> dict[str, Any]:
  """Draws a line of traces.jsonl.

  Args:
    text: The tokenizer.
    problem: The problem.
    rng: Generator for the choices of the teacher.
    python: Interpreter that answers its calls.
  """
  turns = []
  said = problem.answer
  for code in actions(problem, rng):
    said = python.call(code)
    turns.append((f"<tool>{code}</tool>", ("<obs>", said, "</obs>")))
  turns.append((f"<answer>{said}</answer>", ""))
  ids, observed = environments.played_ids(
    turns, text, text.encode("</tool></answer>"), MAX_OBSERVATION_LEN
  )
  record = formats.plain_record(_row(problem))
  return demonstrations.line(text, record, ids, observed)


def _row(problem: Problem) -> dict[str, str]:
  return {"prompt": problem.prompt, "answer": problem.answer}


def trained_tokenizer(train: list[Problem]) -> str:
  """The text of a tokenizer.json with a token for each tag."""
  import tokenizers

  rows = [
    {**_row(x), "completion": f"print({x.expression})"} for x in train[:1000]
  ]
  made = tokenizers.Tokenizer.from_str(tokenizer.train(rows, _VOCAB_SIZE))
  made.add_special_tokens(list(TAGS))
  return made.to_str() + "\n"


def traces(
  path: pathlib.Path, train: list[Problem], sandbox: str
) -> Iterator[dict[str, Any]]:
  """Lines of traces.jsonl, with the tokenizer of a file."""
  text = tokenizer.Tokenizer(path)
  rng = random.Random(_SEED)
  python = interpreter.Interpreter(
    sandbox, total_s=1e5, max_calls=2 * len(train), cpu_s=3600
  )
  try:
    for problem in train:
      yield trace(text, problem, rng, python)
  finally:
    python.close()


def write(folder: pathlib.Path, sandbox: str = "bwrap") -> None:
  """Writes the four files."""
  folder.mkdir(parents=True, exist_ok=True)
  train, test = problems()
  vocabulary = folder / "tokenizer.json"
  vocabulary.write_text(trained_tokenizer(train), encoding="utf-8")
  for name, rows in (
    ("train", map(_row, train)),
    ("test", map(_row, test)),
    ("traces", traces(vocabulary, train, sandbox)),
  ):
    lines.write(folder / f"{name}.jsonl", rows)


def main(argv: list[str]) -> None:
  """Writes the files to --out."""
  del argv
  write(pathlib.Path(flags.FLAGS.out), flags.FLAGS.sandbox)


if __name__ == "__main__":
  flags.DEFINE_string("out", None, "Folder to write.", required=True)
  flags.DEFINE_string(
    "sandbox", "bwrap", "Of the teacher's tool; 'process' holds nothing."
  )
  app.run(main)
