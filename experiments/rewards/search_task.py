"""Writes a small task for an agent that searches, with the files of a run.

    python -m experiments.rewards.search_task --out=runs/search_task

A question asks for the code of a name, which only a passage has:

    prompt    Code of "BFK"?
    answer    47
    passage   BFK: the code is 47.

The folder gets passages.jsonl; train.jsonl and test.jsonl, with different
names; demonstrations.jsonl for the warm start; and the folder tokenizer, with a
small tokenizer and a chat template in the format of Qwen. The bytes are the
same each time.

The teacher of the warm start is sloppy: of three episodes it guesses in one; in
another it writes an unreadable call and then guesses; only in the third it
searches and reads the answer. So the warm start learns to write calls and to
copy names and codes. The reward decides which habit pays.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from absl import app, flags

from experiments.rewards import lines
from grpo_jax.data import demonstrations, environments, tokenizer
from grpo_jax.rewards.agents import tools

NUM_TRAIN, NUM_TEST = 448, 64  # Names.
NUM_TAUGHT = 6  # Episodes of the teacher for each name.
OPTIONS = {
  "format": "qwen",
  "tools": ("search",),
  "grade": "exact",
  "top_k": 1,
  "max_calls": 2,
  "max_parallel": 1,
}
MAX_OBSERVATION = 48
# Each is always a token of its own: no other text has capitals side by side.
_LETTERS = "BCDFGHKL"
_VOCAB_SIZE = 480
_SPECIAL = ("<|im_start|>", "<|im_end|>")
# As in Qwen's tokenizers, these are tokens and not special.
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END = "<|im_end|>"
ERROR = (
  "Error: the call cannot be read: it is no JSON: Expecting ',' delimiter at"
  " character"
)

TEMPLATE = (
  "{% if tools %}<|im_start|>system{% for tool in tools %}"
  "{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
  "{% for message in messages %}{% if message.role == 'tool' %}"
  "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
  "{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
  "{% if loop.last or loop.nextitem.role != 'tool' %}"
  "{{ '<|im_end|>\\n' }}{% endif %}"
  "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
  "{% for call in message.tool_calls or [] %}"
  "{{ '\\n' if message.content or not loop.first else '' }}"
  '{{ \'<tool_call>\\n{"name": "\' + call.function.name }}'
  '{{ \'", "arguments": \' + (call.function.arguments | tojson) }}'
  "{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
  "{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def problems() -> list[tuple[str, str]]:
  """Names and codes, in a random order that is always the same."""
  draw = random.Random(0)
  names = ["".join(x) for x in itertools.product(_LETTERS, repeat=3)]
  return [
    (name, f"{draw.randrange(100):02}")
    for name in draw.sample(names, NUM_TRAIN + NUM_TEST)
  ]


def call(name: str, **arguments: str) -> str:
  """A turn that calls a tool."""
  return (
    f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}'
    f"\n</tool_call>{END}"
  )


def _search(name: str) -> str:
  return call("search", query=name)


def train_tokenizer(
  folder: pathlib.Path, texts: Sequence[str], template: str = TEMPLATE
) -> tokenizer.Tokenizer:
  """Writes a tokenizer for these texts, with a chat template."""
  trained = tokenizers.Tokenizer.from_str(
    tokenizer.train(
      [{"prompt": x, "completion": "", "answer": ""} for x in texts],
      _VOCAB_SIZE,
    )
  )
  trained.add_special_tokens(list(_SPECIAL))
  trained.add_tokens(list(_TAGS))
  folder.mkdir(exist_ok=True)
  trained.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(
    json.dumps(
      {"eos_token": END, "pad_token": "<pad>", "chat_template": template}
    )
  )
  return tokenizer.Tokenizer(folder)


def _episodes(
  draw: random.Random, name: str, code: str
) -> Iterator[tuple[str, ...]]:
  """Yields the episodes of the teacher, each as its actions in order."""
  for _ in range(NUM_TAUGHT):
    guess = f"{draw.randrange(100):02}{END}"
    searches = _search(name)
    yield draw.choice(
      [(guess,), (searches.replace("}}", "}"), guess), (searches, code + END)]
    )


def demonstration(
  text: tokenizer.Tokenizer,
  record: dict[str, Any],
  actions: Iterable[str],
  session: tools.ToolSession,
) -> dict[str, Any]:
  """Episode of a teacher, with the answers of the tools."""
  turns = [(action, session.step(action)[0]) for action in actions]
  ids, observed = environments.played_ids(
    turns, text, text.end_ids, MAX_OBSERVATION
  )
  return demonstrations.line(text, record, ids, observed)


def write(folder: pathlib.Path) -> None:
  """Writes the task; the module lists the files."""
  folder.mkdir(parents=True, exist_ok=True)
  found = problems()
  corpus = folder / "passages.jsonl"
  lines.write(
    corpus,
    (
      {"id": name, "text": f"{name}: the code is {code}."}
      for name, code in found
    ),
  )
  records = [
    {"prompt": f'Code of "{name}"?', "answer": code, "extras": {}}
    for name, code in found
  ]
  lines.write(folder / "train.jsonl", records[:NUM_TRAIN])
  lines.write(folder / "test.jsonl", records[NUM_TRAIN:])
  options = {**OPTIONS, "corpus": str(corpus)}
  texts = [
    *[f'Code of "{one}"? {_search(one)} [1] {one}' for one in _LETTERS],
    "the code is 47. system user assistant",
    json.dumps(tools.schemas(**options)),
    ERROR,
  ]
  # The last three are in each conversation.
  text = train_tokenizer(folder / "tokenizer", texts + texts[-3:] * 39)
  draw = random.Random(1)
  lines.write(
    folder / "demonstrations.jsonl",
    (
      demonstration(
        text,
        record,
        actions,
        tools.make(record["prompt"], record, 0, **options),
      )
      for record, problem in zip(
        records[:NUM_TRAIN], found[:NUM_TRAIN], strict=True
      )
      for actions in _episodes(draw, *problem)
    ),
  )


def main(argv: list[str]) -> None:
  """Writes the files to --out."""
  del argv
  write(pathlib.Path(flags.FLAGS.out))


if __name__ == "__main__":
  flags.DEFINE_string("out", None, "Folder to write.", required=True)
  app.run(main)
