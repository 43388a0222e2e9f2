"""Search in a file of passages by BM25, for tools of an episode.

A file `*.jsonl` has an object on each line, with the field `text` and, if there
are any, `id` and `title`. Of any other file each line is a passage.

    index = search.Index("passages.jsonl")
    index.find("capital of France", count=3)

The index is in memory, and is made once in each worker before sessions are
forked, which share it: of 100,000 passages of 100 words (61 MiB) it takes half
a minute and at most 740 MiB, and a search of six words 7 ms (2 shared cores).
Passages of equal scores come in the order of the file.

Source: Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse
scoring", arXiv:2407.03618, with its defaults: Lucene's variant with k1 = 1.5
and b = 0.75, and without the stop words of English.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Passage(NamedTuple):
  """A passage of the corpus.

  Attributes:
    id: As the file says, or the number of the line, from 1 on.
    title: May be empty.
    text: The passage.
  """

  id: str
  title: str
  text: str


class Index:
  """Passages of a file, and where words are in them."""

  def __init__(self, path: str):
    """Reads the file and indexes titles and texts.

    Raises:
      FileNotFoundError: There is no such file.
      ImportError: The package `bm25s` is missing.
      ValueError: It has no passage, or a line that is none.
    """
    self.passages = read(path)
    self._library = _import_bm25s()
    self._scores = self._library.BM25()
    texts = [f"{x.title} {x.text}" for x in self.passages]
    self._scores.index(self._words(texts), show_progress=False)

  def _words(self, texts: list[str]) -> list[list[str]]:
    return self._library.tokenize(
      texts, stopwords="en", return_ids=False, show_progress=False
    )

  def find(self, query: str, count: int) -> list[Passage]:
    """The passages that fit best, best first; those without any word do not.

    Args:
      query: Words.
      count: Most passages.
    """
    import numpy as np

    known = self._scores.vocab_dict
    words = [word for word in self._words([query])[0] if word in known]
    if not words:
      return []
    scores = self._scores.get_scores(words)  # [passages]
    count = min(count, int((scores > 0).sum()))
    if count <= 0:
      return []
    least = np.partition(scores, -count)[-count]
    best = np.flatnonzero(scores > least).tolist()
    best += np.flatnonzero(scores == least)[: count - len(best)].tolist()
    best.sort(key=lambda i: (-scores[i], i))
    return [self.passages[i] for i in best]


def read(path: str) -> list[Passage]:
  """The passages of a file; lines without any text are left out.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It has no passage, or a line that is none.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise FileNotFoundError(
      f"search: no file {path!r} of passages; name one in"
      " config.environment.options['corpus']: JSON lines with the field 'text',"
      " or a text with a passage on each line."
    )
  made = _of_json if file.suffix == ".jsonl" else _of_text
  with file.open(encoding="utf-8") as lines:
    found = [
      made(line, number, path)
      for number, line in enumerate(lines, start=1)
      if line.strip()
    ]
  if not found:
    raise ValueError(f"search: the file {path!r} has no passage.")
  return found


def _of_text(line: str, number: int, path: str) -> Passage:
  del path
  return Passage(str(number), "", line.strip())


def _of_json(line: str, number: int, path: str) -> Passage:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"search: {path}, line {number} is no JSON: {error}."
    ) from None
  if not isinstance(row, dict) or not isinstance(row.get("text"), str):
    raise ValueError(
      f"search: {path}, line {number} is {line.strip()!r:.60}; needed is an"
      " object with a field 'text', and maybe 'id' and 'title'."
    )
  id_, title = row.get("id", number), row.get("title", "")
  return Passage(str(id_), str(title), row["text"])


# Where bm25s finds JAX, it runs an operation of it while it is imported, which
# would take an accelerator from the process that trains; and tqdm starts a
# thread before sessions are forked. It works as well without both.
_HIDDEN = ("jax", "jax.lax", "tqdm.auto")


@contextlib.contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
  """Within, these modules cannot be imported."""
  found = {name: sys.modules[name] for name in names if name in sys.modules}
  sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in names:
      del sys.modules[name]
    sys.modules.update(found)


def _import_bm25s() -> Any:
  """The optional package, imported when it is needed."""
  try:
    with _without(_HIDDEN):
      import bm25s
  except ImportError as error:
    raise ImportError(
      "grpo_jax.rewards.agents.search: needs the package 'bm25s'; install"
      " grpo_jax[tools]."
    ) from error
  return bm25s
