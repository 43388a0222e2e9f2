"""Text to token ids and back, behind one small interface.

`Tokenizer` wraps a `tokenizer.json` file; `TaskTokenizer` speaks the alphabet
of a synthetic task. Both have `encode`, `decode`, `pad_id`, `end_ids` and
`vocab_size`. Neither adds special tokens by itself: a template in the config
says what surrounds a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

# Trained by scripts/train_tokenizer.py on the GSM8K training split.
GSM8K_BPE = epath.resource_path("grpo_jax") / "data/assets/gsm8k_bpe_2048.json"


class Tokenizer:
  """A tokenizer file of the `tokenizers` library."""

  def __init__(
      self,
      path: epath.PathLike = GSM8K_BPE,
      *,
      pad_token: str = "<pad>",
      end_tokens: Sequence[str] = ("<eos>",),
  ):
    """Reads `path`.

    Args:
      path: Local or `gs://` tokenizer.json.
      pad_token: Fills unused slots; must be in the vocabulary.
      end_tokens: Any of these ends a completion; the first is the one that
        supervised targets end with.

    Raises:
      ImportError: The `tokenizers` package is missing.
      FileNotFoundError: There is no such file.
      ValueError: A named token is not in the vocabulary.
    """
    try:
      import tokenizers
    except ImportError as error:
      raise ImportError(
          "Tokenizer: needs the package 'tokenizers'; install"
          " grpo_jax[math] or grpo_jax[hf]."
      ) from error
    path = epath.Path(path)
    if not path.exists():
      raise FileNotFoundError(
          f"Tokenizer: no file {path}; pass the tokenizer.json of a model, or"
          " train one with scripts/train_tokenizer.py."
      )
    self._tokenizer = tokenizers.Tokenizer.from_str(path.read_text())
    ids = {t: self._tokenizer.token_to_id(t) for t in (pad_token, *end_tokens)}
    if missing := [token for token, id_ in ids.items() if id_ is None]:
      raise ValueError(
          f"Tokenizer: {path} does not have the tokens {missing}; set"
          " pad_token and end_tokens to tokens of its vocabulary."
      )
    if not end_tokens:
      raise ValueError("Tokenizer: end_tokens is empty; need at least one.")
    self.pad_id: int = ids[pad_token]
    self.end_ids: tuple[int, ...] = tuple(ids[t] for t in end_tokens)
    self.vocab_size: int = self._tokenizer.get_vocab_size()

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`; nothing is added before or after it."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad and end tokens vanish, tags like `<think>` stay."""
    dropped = {self.pad_id, *self.end_ids}
    kept = [int(i) for i in ids if int(i) not in dropped]
    return self._tokenizer.decode(kept, skip_special_tokens=False)


class TaskTokenizer:
  """The interface of `Tokenizer` over the alphabet of a synthetic task."""

  def __init__(self, task: Any):
    """Wraps a `tasks.task.Task`, whose records hold token ids already."""
    self._task = task
    self.pad_id: int = task.pad_id
    self.end_ids: tuple[int, ...] = tuple(task.end_ids)
    self.vocab_size: int = task.vocab_size

  def encode(self, text: str) -> list[int]:
    """Refuses: a task's records hold ids, and text comes from elsewhere."""
    raise ValueError(
        f"TaskTokenizer: task {self._task.name!r} has ids instead of text;"
        f" received {text!r:.60}. Use a Tokenizer for sources of text."
    )

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad and end tokens vanish."""
    dropped = {self.pad_id, *self.end_ids}
    return self._task.decode([int(i) for i in ids if int(i) not in dropped])
