"""What the files of a checkpoint say about its tokenizer, as JSON."""

from __future__ import annotations

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
