"""What the files of a checkpoint say about its tokenizer, as JSON."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from typing import Any

from etils import epath

# The names under which chat templates find special tokens.
_NAMED_TOKENS = (
  "bos_token",
  "eos_token",
  "unk_token",
  "sep_token",
  "pad_token",
  "cls_token",
  "mask_token",
)

# Characters that a normalizer or a decoder may make of a text: 16 million take
# about 400 MB, and nothing can end the library once it has begun.
_MAX_SIZE = 2**24


@dataclasses.dataclass(frozen=True)
class Steps:
  """The steps of a normalizer or a decoder that may make a text longer.

  Attributes:
    steps: Of each, how many characters it adds to a text, and to each character
      of a text.
  """

  steps: tuple[tuple[int, float], ...]

  @classmethod
  def of(cls, part: dict[str, Any]) -> Steps:
    """Reads what a tokenizer.json has under "normalizer" or "decoder"."""
    if inner := part.get("normalizers") or part.get("decoders"):
      return cls(sum((cls.of(step).steps for step in inner), ()))
    if part.get("type") == "Prepend":
      return cls(((len(part["prepend"]), 0.0),))
    if part.get("type") != "Replace":
      return cls(())
    new, pattern = len(part["content"]), part["pattern"]
    if "String" in pattern:
      old = max(len(pattern["String"]), 1)
      return cls(((0, new / old - 1),) if new > old else ())
    # A pattern may match between all characters, and takes nothing away there.
    return cls(((new, float(new)),))

  @property
  def grows(self) -> bool:
    """Whether a text may become longer."""
    return any(more for _, more in self.steps)

  def check(self, size: int, what: str) -> None:
    """Raises ValueError if a text of this size may become too long.

    Args:
      size: Characters.
      what: Whose text it is, for the message.
    """
    largest = float(size)
    for added, more in self.steps:
      largest = largest * (1 + more) + added
    if largest > max(_MAX_SIZE, size):
      raise ValueError(
        f"Tokenizer: {what} a text of up to {largest:.3g} characters, because"
        f" its steps 'Replace' multiply the {size} that it has; at most"
        f" {_MAX_SIZE} are made. Use the tokenizer.json of a model, or shorten"
        " the text."
      )


class CheckpointFiles:
  """What the files of a checkpoint say; a lone tokenizer.json has nothing.

  Attributes:
    tokenizer: Path of the tokenizer.json.
    model, generation: Contents of config.json and generation_config.json.
  """

  def __init__(self, path: epath.Path):
    self._directory = path if path.is_dir() else None
    self.tokenizer = path / "tokenizer.json" if self._directory else path
    self.generation = self._json("generation_config.json")
    model = self._json("config.json")
    # The language model's part of a model that also sees.
    inner = model.get("text_config") or {}
    if not isinstance(inner, dict):
      raise self._wrong("config.json", "text_config", inner)
    self.model: dict[str, Any] = {**model, **inner}
    self._settings = {
      **self._json("special_tokens_map.json"),  # Of older checkpoints.
      **self._json("tokenizer_config.json"),
    }

  def _text(self, name: str) -> str | None:
    if self._directory is None or not (self._directory / name).exists():
      return None
    return (self._directory / name).read_text(encoding="utf-8")

  def _json(self, name: str) -> dict[str, Any]:
    try:
      found = json.loads(self._text(name) or "{}")
    except (ValueError, RecursionError) as error:
      raise ValueError(
        f"Tokenizer: {self._directory}/{name} is not JSON: {error}. Copy the"
        " checkpoint's file again."
      ) from error
    if not isinstance(found, dict):
      raise ValueError(
        f"Tokenizer: {self._directory}/{name} holds no object of keys. Copy the"
        " checkpoint's file again."
      )
    return found

  def _wrong(self, file: str, key: str, value: Any) -> ValueError:
    return ValueError(
      f"Tokenizer: {self._directory}/{file} has {key} = {reprlib.repr(value)},"
      " which is of another kind than a checkpoint's. Copy the file again."
    )

  def special_tokens(self) -> dict[str, str]:
    """Texts of special tokens by the names that templates know them by."""
    found = {}
    for name in _NAMED_TOKENS:
      token = self._settings.get(name)
      text = token.get("content") if isinstance(token, dict) else token
      if isinstance(text, str):
        found[name] = text
      elif token is not None:
        raise self._wrong("tokenizer_config.json", name, token)
    return found

  def chat_templates(self) -> dict[str, str]:
    """Templates by name; most checkpoints have one, called "default"."""
    given: Any = self._text("chat_template.jinja")
    if given is None:
      given = self._settings.get("chat_template") or {}
    found = given
    if isinstance(given, str):
      found = {"default": given}
    if isinstance(given, list) and all(isinstance(x, dict) for x in given):
      found = {str(x.get("name")): x.get("template") for x in given}
    if not isinstance(found, dict) or not all(
      isinstance(text, str) for text in found.values()
    ):
      raise self._wrong("tokenizer_config.json", "chat_template", given)
    return found
