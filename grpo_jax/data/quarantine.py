"""Records that are left out of training, by what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from grpo_jax import ranges
from grpo_jax.data.sources import Record, Source


def key(record: Record) -> str:
  """Tells records apart: a hash of prompt, answer and images."""
  prompt = record["prompt"]
  text = prompt if isinstance(prompt, str) else np.asarray(prompt).tolist()
  content = json.dumps([text, record["answer"], *record.get("pictures", ())])
  return hashlib.sha256(content.encode()).hexdigest()[:16]


def described(
  source: Source, why: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
  """What a file says of records: key, number, reasons, and for people the rest.

  Args:
    source: Records.
    why: Number of a record -> reasons.
  """
  return [
    {
      "key": key(source[number]),
      "number": number,
      "why": list(reasons),
      "prompt": str(source[number]["prompt"])[:200],
      "answer": str(source[number]["answer"])[:200],
    }
    for number, reasons in sorted(why.items())
  ]


class Without:
  """A source without the records that a file names."""

  def __init__(self, source: Source, path: epath.PathLike):
    """Reads the file, and looks at every record once.

    Args:
      source: Held in memory, or cheap to read.
      path: JSON: a list of objects with a `key`.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: It is no such list, or all records are in it.
    """
    path = epath.Path(path)
    if not path.exists():
      raise FileNotFoundError(
        f"config.data.quarantine={path}: there is no such file; `python -m"
        " experiments.lint --out=FILE` writes one."
      )
    try:
      names = {entry["key"] for entry in json.loads(path.read_text("utf-8"))}
    except (ValueError, TypeError, KeyError) as error:
      raise ValueError(
        f"config.data.quarantine={path}: needed is a JSON list of objects with"
        " a 'key', as `experiments.lint` writes it."
      ) from error
    self._source = source
    self._kept = [i for i in range(len(source)) if key(source[i]) not in names]
    if not self._kept:
      raise ValueError(
        f"config.data.quarantine={path}: of"
        f" {ranges.counted(len(source), 'record')} none is left to train on."
      )

  def __len__(self) -> int:
    return len(self._kept)

  def __getitem__(self, index: int) -> Record:
    return self._source[self._kept[index]]
