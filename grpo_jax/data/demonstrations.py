"""Completions to imitate: the choice of them, and files of them.

A line of a file is a completion:

| field             | value                                                    |
|-------------------|----------------------------------------------------------|
| prompt            | text, or messages                                        |
| completion        | text, without the end token                              |
| answer, extras    | those of the record, as verifiers read them              |
| tools,            | those of the record, if its prompt has messages          |
| chat_options      |                                                          |
| completion_ids    | token ids of the completion, with the end token          |
| prompt_ids        | token ids of the prompt, if the problem is made of ids   |
| tokenizer         | name of the ids' meaning (`digest`)                      |
| observed          | True for ids of an environment; absent if it wrote none  |
| reward, correct … | scores, for people                                       |

A policy with the same tokens imitates the ids, and so exactly the sampled
completion; a policy with other tokens imitates the text, if the policy that was
sampled has written all of it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from grpo_jax.data import formats, sources
from grpo_jax.data.sources import Record, Source


class Candidate(NamedTuple):
  """A completion of a prompt that may be kept.

  Attributes:
    is_good: Whether the completion may be kept.
    text: Its text.
    answer: Its answer; None if no answer can be read.
    num_tokens: Number of its tokens.
  """

  is_good: bool
  text: str
  answer: str | None
  num_tokens: int


def selection(
  candidates: Sequence[Candidate],
  most: int,
  order: str,
  distinct: str,
  seed: Sequence[int],
) -> list[int]:
  """Chooses completions of a prompt; returns their indices, the best first.

  Args:
    candidates: All completions of the prompt.
    most: Most completions to keep.
    order: "shortest": fewest tokens first, and the first drawn among equals;
      or "random".
    distinct: "answer" or "text": one completion of each answer or text is kept;
      "none": duplicates stay. Completions without an answer are compared by
      text.
    seed: Seed of the random order: non-negative numbers.
  """
  good = [i for i, sample in enumerate(candidates) if sample.is_good]
  if order == "shortest":
    good.sort(key=lambda i: candidates[i].num_tokens)
  else:
    good = np.random.default_rng(list(seed)).permutation(good).tolist()
  by_key: dict[Any, int] = {}
  for i in good:
    sample = candidates[i]
    key: Any = i
    if distinct == "text" or (distinct == "answer" and sample.answer is None):
      key = ("text", sample.text)
    elif distinct == "answer":
      key = ("answer", sample.answer)
    by_key.setdefault(key, i)
  return list(by_key.values())[:most]


@functools.lru_cache(maxsize=8)
def digest(tokenizer: Any) -> str:
  """Hashes the meaning of a tokenizer's ids; equal for equal meanings."""
  pieces = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
  text = json.dumps([pieces, [int(i) for i in tokenizer.end_ids]])
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def line(
  tokenizer: Any,
  record: Record,
  completion_ids: Sequence[int],
  observed: Sequence[bool] = (),
  **more: Any,
) -> dict[str, Any]:
  """The line of a file for a completion.

  Args:
    observed: True for tokens that an environment wrote.
  """
  is_text = isinstance(record["prompt"], str)
  pictures = record.get("pictures")
  ids = [int(x) for x in completion_ids]
  fields = {
    "prompt": record["prompt"],
    "completion": tokenizer.decode(ids),
    "answer": record["answer"],
    "completion_ids": ids,
    "tokenizer": digest(tokenizer),
    **more,
  }
  if is_text:
    fields["extras"] = {
      name: value.tolist() if hasattr(value, "tolist") else value
      for name, value in record["extras"].items()
    }
  else:
    fields["prompt_ids"] = np.asarray(record["prompt"]).tolist()
    fields["prompt"] = tokenizer.decode(fields["prompt_ids"])
  if messages := getattr(record["prompt"], "messages", None):
    options = dict(record["prompt"].options)
    fields["prompt"] = messages
    fields |= {"tools": options.pop("tools", None), "chat_options": options}
  if pictures:
    fields["pictures"] = [list(picture) for picture in pictures]
  if any(observed):
    fields["observed"] = [int(x) for x in observed]
  return fields


class DemonstrationSource(sources.InMemory):
  """The completions of a file, held in memory."""

  def __init__(self, path: epath.PathLike, tokenizer: Any, is_text: bool):
    """Reads and checks the whole file.

    Args:
      path: Local or `gs://` file.
      tokenizer: Tokenizer of the policy that imitates the completions.
      is_text: Whether the policy's prompts are texts; otherwise ids.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file has no completion, a line is malformed, or the ids
        are those of another tokenizer, and the policy reads no text or an
        environment has written some.
    """
    self._path = path = epath.Path(path)
    if not path.exists() or path.is_dir():
      raise FileNotFoundError(
        f"demonstrations={path}: there is no such file; name one that a phase"
        " of the kind 'rejection' or grpo-generate has written."
      )
    lines = [x for x in path.read_bytes().split(b"\n") if x.strip()]
    if not lines:
      raise ValueError(
        f"demonstrations={path}: it has no completion to imitate."
        " Draw more for each prompt, or keep those of an easier task."
      )
    rows = [self._parsed(number, x) for number, x in enumerate(lines, start=1)]
    own_digest = digest(tokenizer)
    same = all(row.get("tokenizer") == own_digest for row in rows)
    if not same and not is_text:
      raise ValueError(
        f"demonstrations={path}: its ids are those of other tokens than this"
        " policy has, whose prompts are ids; name the completions of a"
        " run with the same tokens."
      )
    for number, row in enumerate(rows, start=1):
      if same:
        self._check_ids(number, row, is_text, tokenizer.vocab_size)
      elif row.get("observed"):
        raise ValueError(
          f"{path}:{number}: an environment has written a part of the"
          " completion, and its ids, which say what part, are those of other"
          " tokens than this policy has; name completions of one turn, or of a"
          " policy with the same tokens."
        )
    self._records = [
      self._record(row, is_text, None if same else tokenizer) for row in rows
    ]

  def _parsed(self, number: int, text: bytes) -> dict[str, Any]:
    where = f"{self._path}:{number}"
    try:
      row = json.loads(text)
    except ValueError as error:
      raise ValueError(f"{where}: {error}; need a JSON object.") from error
    if not isinstance(row, dict) or not (
      isinstance(row.get("prompt"), str | list)
      and isinstance(row.get("completion"), str)
    ):
      raise ValueError(
        f"{where}: found {text.decode(errors='replace')!r:.60}; need an object"
        " with the texts 'prompt' and 'completion', as a phase of the kind"
        " 'rejection' and grpo-generate write it."
      )
    for name in ("prompt_ids", "completion_ids", "observed"):
      ids = row.get(name, [])
      if not isinstance(ids, list) or any(type(x) is not int for x in ids):
        raise ValueError(
          f"{where}: found {name!r} = {ids!r:.60}; need a list of whole"
          " numbers."
        )
    return row

  def _check_ids(
    self, number: int, row: dict[str, Any], is_text: bool, vocab_size: int
  ) -> None:
    """Raises ValueError unless a row has ids, and all are tokens."""
    where = f"{self._path}:{number}"
    for name in ("completion_ids", *(() if is_text else ("prompt_ids",))):
      ids = row.get(name)
      if not ids or not all(0 <= x < vocab_size for x in ids):
        raise ValueError(
          f"{where}: found {name!r} = {ids!r:.60}; need one or more ids from 0"
          f" to {vocab_size - 1}."
        )
    size = len(row["completion_ids"])
    if len(row.get("observed", ())) not in (0, size):
      raise ValueError(
        f"{where}: found {len(row['observed'])} numbers in 'observed'; need"
        f" {size}, one for each of 'completion_ids'."
      )

  def _record(self, row: dict[str, Any], is_text: bool, other: Any) -> Record:
    """The record of a row; `other` is the tokenizer if it did not draw it."""
    record = formats.plain_record(
      {
        name: row[name]
        for name in (
          *("prompt", "completion", "answer", "extras"),
          *("tools", "chat_options"),
        )
        if name in row
      }
    )
    if not is_text:
      record["prompt"] = np.array(row["prompt_ids"], np.int32)
    if "pictures" in row:
      record["pictures"] = tuple(row["pictures"])
    was_cut = row.get("terminated") is False
    if other is None:
      record["completion"] = np.array(row["completion_ids"], np.int32)
    elif was_cut:
      record["completion"] = np.array(other.encode(row["completion"]), np.int32)
    if row.get("observed"):
      record["observed"] = np.array(row["observed"], bool)
    elif was_cut:  # It gets no end token.
      record["observed"] = np.zeros(record["completion"].size, bool)
    return record


class Joined:
  """Concatenates several sources."""

  def __init__(self, parts: Sequence[Source]):
    self._parts = parts
    self._starts = np.cumsum([0, *(len(part) for part in parts)])

  def __len__(self) -> int:
    return int(self._starts[-1])

  def __getitem__(self, index: int) -> Record:
    part = int(np.searchsorted(self._starts, index, side="right")) - 1
    return self._parts[part][index - int(self._starts[part])]


class First(sources.Chosen):
  """The first records of a source."""

  def __init__(self, source: Source, count: int, setting: str = "num_records"):
    if count > len(source):
      raise ValueError(
        f"{setting}={count}, and there are {len(source)} records; set it to"
        " that or less, or to None for all."
      )
    super().__init__(source, range(count))
