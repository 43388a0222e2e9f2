"""Tokenizers in GGUF files, as the files of an ordinary checkpoint.

A GGUF file has the pieces of a tokenizer with their kinds and scores, its
merges, and the name of the rule that cuts a text before merging. The library
`tokenizers` has no name for such rules, so `_CUTS` has their patterns.

Byte-level tokenizers (`gpt2`) have merges. SentencePiece tokenizers (`llama`)
have none: two neighbours are merged if their whole is a piece, the one with the
best score first; of Gemma, the one with the lowest id.

Sources: github.com/ggml-org/llama.cpp, `src/llama-vocab.cpp`, for the rules and
the ids that end a turn; the tokenizer.json of the models for their patterns;
github.com/huggingface/transformers, `generate_merges`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
# Kinds of pieces.
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_SPACE = "▁"

_ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _ENGLISH + _WORD + r"|\p{N}{1,3}" + _MARKS + _REST
_QWEN2 = _ENGLISH + _WORD + r"|\p{N}" + _MARKS + _REST
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
  rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+%s"
  rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*%s"
)
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST
_TEKKEN = _CASED % ("", "") + r"|\p{N}" + _PATHS
_GPT4O = _CASED % (f"{_ENGLISH}?", f"{_ENGLISH}?") + r"|\p{N}{1,3}" + _PATHS
# Rule -> its pattern; None: that of GPT-2, which `tokenizers` knows.
_CUTS: dict[str, str | None] = {
  **dict.fromkeys(("gpt-2", "olmo", "refact", "smollm"), None),
  **dict.fromkeys(("dbrx", "glm4", "smaug-bpe"), _LLAMA3),
  **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), _LLAMA3),
  **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
  "tekken": _TEKKEN,
  **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
# A word that is a piece is not cut, even if no merges make it. A begin token is
# written, unless the file says otherwise.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "tekken")

_SPECIAL = {
  "bos_token": "bos_token_id",
  "eos_token": "eos_token_id",
  "pad_token": "padding_token_id",
  "unk_token": "unknown_token_id",
}
# Control tokens that end a reply whatever a file names.
_ENDS = (
  *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"),
  *("<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>"),
)
# In its format a message ends with <|end|>, and a reply has several messages.
_MESSAGES = ("<|return|>", "<|call|>", "<|end|>")


def files(
  path: pathlib.Path, keys: Mapping[str, Any], vocab_size: int
) -> dict[str, dict[str, Any]]:
  """Contents of the files that describe a tokenizer, by their names.

  Raises:
    ValueError: The file has no tokenizer, one of another kind, or one that does
      not fit the model.
  """
  own = {
    key.removeprefix(_KEY): value
    for key, value in keys.items()
    if key.startswith(_KEY)
  }
  try:
    return _files(own, keys, vocab_size)
  except ValueError as error:
    raise ValueError(
      f"the tokenizer of {path}: {error}. Take another GGUF file, or the"
      " safetensors files of the model."
    ) from error


def _files(
  own: dict[str, Any], keys: Mapping[str, Any], vocab_size: int
) -> dict[str, dict[str, Any]]:
  pieces = own.get("tokens")
  if not isinstance(pieces, list) or not pieces:
    raise ValueError(f"it has no {_KEY}tokens, the pieces of a vocabulary")
  if len(pieces) != vocab_size:
    raise ValueError(
      f"it has {len(pieces)} pieces, and the model {vocab_size} rows"
    )
  kinds = np.ones(vocab_size, np.int32)
  if "token_type" in own:
    kinds = _vector(own, "token_type")
  special = {}
  for name, key in _SPECIAL.items():
    if (id_ := own.get(key)) is not None:
      if type(id_) is not int or not 0 <= id_ < vocab_size:
        raise ValueError(f"{_KEY}{key} is {id_!r:.80}, not one of its ids")
      special[name] = id_
  model = own.get("model")
  if model == "gpt2":
    tokenizer = _byte_level(own, pieces)
    adds_begin = own.get("pre") in _WHOLE_WORDS
  elif model == "llama":
    is_gemma = str(keys.get("general.architecture")).startswith("gemma")
    tokenizer = _sentencepiece(own, pieces, kinds, special, is_gemma)
    adds_begin = True
  else:
    raise ValueError(
      f"it is of the kind {model!r:.80}; supported are 'gpt2' (byte-level BPE)"
      " and 'llama' (SentencePiece)"
    )
  vocab = {piece: id_ for id_, piece in enumerate(tokenizer["pieces"])}
  if len(vocab) != vocab_size:
    raise ValueError(f"{vocab_size - len(vocab)} pieces are there twice")
  tokenizer.pop("pieces")
  for left, right in tokenizer["model"]["merges"]:
    if not (left in vocab and right in vocab and left + right in vocab):
      raise ValueError(f"it merges {left!r:.80} and {right!r:.80} to no piece")
  tokenizer["model"]["vocab"] = vocab
  tokenizer["added_tokens"] = [
    {
      "id": id_,
      "content": piece,
      "single_word": False,
      "lstrip": False,
      "rstrip": False,
      "normalized": False,
      "special": int(kinds[id_]) == _CONTROL,
    }
    for piece, id_ in vocab.items()
    # Runs of spaces are pieces like others: texts have another character there.
    if piece.strip(_SPACE)
    and piece
    and int(kinds[id_]) in (_CONTROL, _USER_DEFINED)
  ]
  begin, end = (
    [special[name]] if name in special and own.get(f"add_{name}", adds) else []
    for name, adds in (("bos_token", adds_begin), ("eos_token", False))
  )
  tokenizer["post_processor"] = _frame(begin, end, pieces)
  config: dict[str, Any] = {
    "clean_up_tokenization_spaces": False,
    "tokenizer_class": "PreTrainedTokenizerFast",
    **{name: pieces[id_] for name, id_ in special.items()},
  }
  templates = {
    key.removeprefix(_TEMPLATE).removeprefix("."): value
    for key, value in keys.items()
    if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")
  }
  if templates:
    config["chat_template"] = [
      {"name": name or "default", "template": template}
      for name, template in templates.items()
    ]
  if [*templates] == [""]:
    config["chat_template"] = templates[""]
  generation: dict[str, Any] = {
    f"{name}_id": id_ for name, id_ in special.items() if name != "unk_token"
  }
  if ends := _ends(own, pieces, kinds):
    generation["eos_token_id"] = ends
  return {
    "generation_config.json": generation,
    "tokenizer.json": tokenizer,
    "tokenizer_config.json": config,
  }


def _vector(own: dict[str, Any], key: str) -> np.ndarray:
  """A number of each piece."""
  value, count = own.get(key), len(own["tokens"])
  if not isinstance(value, np.ndarray) or len(value) != count:
    raise ValueError(f"{_KEY}{key} has no number for each of {count} pieces")
  return value


def _byte_level(own: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
  """A tokenizer.json of a byte-level tokenizer."""
  rule = own.get("pre")
  if rule not in _CUTS:
    raise ValueError(
      f"it cuts texts by the rule {rule!r:.80} ({_KEY}pre); supported are"
      f" {', '.join(_CUTS)}"
    )
  merges = own.get("merges")
  if not isinstance(merges, list):
    raise ValueError(f"it has no {_KEY}merges")
  pairs = [merge.split(" ") for merge in merges]
  if wrong := [pair for pair in pairs if len(pair) != 2]:
    raise ValueError(f"a merge has {len(wrong[0])} pieces: {wrong[0]!r:.80}")
  pattern = _CUTS[rule]
  steps: list[dict[str, Any]] = []
  if rule in ("refact", "smollm"):
    steps.append({"type": "Digits", "individual_digits": True})
  if pattern is not None:
    steps.append(
      {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
      }
    )
  level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
  steps.append({**level, "use_regex": pattern is None})
  return {
    **_json({"ignore_merges": rule in _WHOLE_WORDS}, pairs),
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
    "decoder": {**level, "use_regex": True},
    "pieces": pieces,
  }


def _sentencepiece(
  own: dict[str, Any],
  pieces: list[str],
  kinds: np.ndarray,
  special: Mapping[str, int],
  is_gemma: bool,
) -> dict[str, Any]:
  """A tokenizer.json of a SentencePiece tokenizer."""
  scores = _vector(own, "scores")
  if is_gemma:
    # Runs of spaces are stored as such, and texts have another character there.
    pieces = [_SPACE * len(x) if not x.strip(" ") else x for x in pieces]
    scores = -np.arange(len(pieces))
  ids = {piece: id_ for id_, piece in enumerate(pieces)}
  merges = []
  for id_, (piece, score) in enumerate(zip(pieces, scores, strict=True)):
    if kinds[id_] == _BYTE:
      continue
    halves = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
    pairs = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
    pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    merges += [(float(score), *pair) for pair in pairs]
  merges.sort(key=lambda x: (x[0], len(x[1]), len(x[2])), reverse=True)
  normalizers: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
  ]
  decoders: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    *({"type": "ByteFallback"}, {"type": "Fuse"}),
  ]
  if own.get("add_space_prefix", True):
    normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
    decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
  options = {
    "byte_fallback": True,
    "fuse_unk": True,
    "unk_token": pieces[special.get("unk_token", 0)],
  }
  return {
    **_json(options, [list(pair) for _, *pair in merges]),
    "normalizer": {"type": "Sequence", "normalizers": normalizers},
    "decoder": {"type": "Sequence", "decoders": decoders},
    "pieces": pieces,
  }


def _json(
  options: Mapping[str, Any], merges: list[list[str]]
) -> dict[str, Any]:
  return {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "model": {"type": "BPE", **options, "vocab": {}, "merges": merges},
  }


def _frame(
  begin: list[int], end: list[int], pieces: list[str]
) -> dict[str, Any] | None:
  """The step that writes ids before and after a text."""
  if not (begin or end):
    return None

  def around(number: str, type_id: int) -> list[dict[str, Any]]:
    text = {"Sequence": {"id": number, "type_id": type_id}}
    tokens = [
      [{"SpecialToken": {"id": pieces[id_], "type_id": type_id}} for id_ in ids]
      for ids in (begin, end)
    ]
    return [*tokens[0], text, *tokens[1]]

  return {
    "type": "TemplateProcessing",
    "single": around("A", 0),
    "pair": [*around("A", 0), *around("B", 1)],
    "special_tokens": {
      pieces[id_]: {"id": pieces[id_], "ids": [id_], "tokens": [pieces[id_]]}
      for id_ in (*begin, *end)
    },
  }


def _ends(
  own: Mapping[str, Any], pieces: list[str], kinds: np.ndarray
) -> list[int]:
  """Ids that end a reply."""
  named = [own.get(f"{name}_token_id") for name in ("eos", "eot", "eom")]
  ends = [id_ for id_ in named if type(id_) is int and 0 <= id_ < len(pieces)]
  control = {
    piece: id_ for id_, piece in enumerate(pieces) if kinds[id_] == _CONTROL
  }
  *several, of_message = _MESSAGES
  ends += [control[piece] for piece in _ENDS if piece in control]
  if all(piece in control for piece in several):
    ends = [id_ for id_ in ends if pieces[id_] != of_message]
  return [*dict.fromkeys(ends)]
