"""Text to token ids and back, behind one small interface.

`Tokenizer` wraps a `tokenizer.json` file; `TaskTokenizer` speaks the alphabet
of a synthetic task. Both have `encode`, `decode`, `pad_id`, `end_ids` and
`vocab_size`. Neither adds special tokens by itself: a template in the config
says what surrounds a prompt. `train` makes a small file for small models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from etils import epath

from grpo_jax.data.sources import Source

# Trained by scripts/train_tokenizer.py on the GSM8K training split.
GSM8K_BPE = epath.resource_path("grpo_jax") / "data/assets/gsm8k_bpe_2048.json"

# What `train` gives the ids 0 to 5.
SPECIAL_TOKENS = (
  "<pad>",
  "<eos>",
  "<think>",
  "</think>",
  "<answer>",
  "</answer>",
)


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
    tokenizers = _import_tokenizers()
    path = epath.Path(path)
    if not path.exists():
      raise FileNotFoundError(
        f"Tokenizer: no file {path}; set config.data.tokenizer to the"
        " tokenizer.json of a model or to 'gsm8k', or train one with"
        " scripts/train_tokenizer.py."
      )
    try:
      self._tokenizer = tokenizers.Tokenizer.from_str(
        path.read_text(encoding="utf-8")
      )
    except Exception as error:  # The library has no class of its own.
      raise ValueError(
        f"Tokenizer: {path} is not a tokenizer.json: {error}. Set"
        " config.data.tokenizer to one of the `tokenizers` library."
      ) from error
    if not end_tokens:
      raise ValueError("Tokenizer: end_tokens is empty; need at least one.")
    self._path = path
    self.pad_id: int = self._id(pad_token)
    self.end_ids: tuple[int, ...] = tuple(map(self._id, end_tokens))
    self.vocab_size: int = self._tokenizer.get_vocab_size()

  def _id(self, token: str) -> int:
    id_ = self._tokenizer.token_to_id(token)
    if id_ is None:
      raise ValueError(
        f"Tokenizer: {self._path} does not have the token {token!r}; set"
        " pad_token and end_tokens to tokens of its vocabulary."
      )
    return id_

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`; nothing is added before or after it."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad and end tokens vanish, tags like `<think>` stay."""
    dropped = {self.pad_id, *self.end_ids}
    kept = [int(i) for i in ids if int(i) not in dropped]
    return self._tokenizer.decode(kept, skip_special_tokens=False)


def train(source: Source, vocab_size: int) -> str:
  """Trains a byte-level BPE tokenizer on the texts of a source.

  Any text can be encoded and comes back unchanged. Digits are split one by
  one, so that numbers of any length are made of the same ten tokens.

  Args:
    source: Records whose prompts, completions and answers are text.
    vocab_size: Number of tokens, at most; at least 262, for the special
      tokens and the 256 bytes.

  Returns:
    The contents of a file for `Tokenizer`; the same for the same arguments.
  """
  tokenizers = _import_tokenizers()
  pre_tokenizers = tokenizers.pre_tokenizers
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=list(SPECIAL_TOKENS),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  records = (source[i] for i in range(len(source)))
  texts = (
    record[field]
    for record in records
    for field in ("prompt", "completion", "answer")
    if record[field]
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer.to_str() + "\n"


def _import_tokenizers() -> Any:
  """The optional package, imported when it is needed."""
  try:
    import tokenizers
  except ImportError as error:
    raise ImportError(
      "grpo_jax.data.tokenizer: needs the package 'tokenizers'; install"
      " grpo_jax[math] or grpo_jax[hf]."
    ) from error
  return tokenizers


class TaskTokenizer:
  """The interface of `Tokenizer` over the alphabet of a synthetic task."""

  def __init__(self, task: Any):
    """Wraps a `tasks.task.Task`, whose records hold token ids already."""
    self._task = task
    self.pad_id: int = task.pad_id
    self.end_ids: tuple[int, ...] = tuple(task.end_ids)
    self.vocab_size: int = task.vocab_size

  def encode(self, text: str) -> list[int]:
    """Token ids of a prompt that a person typed, begin token first."""
    return [self._task.bos_id, *self._task.encode(text)]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad, begin and end tokens vanish."""
    dropped = {self.pad_id, self._task.bos_id, *self.end_ids}
    return self._task.decode([int(i) for i in ids if int(i) not in dropped])
