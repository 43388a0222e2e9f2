"""What each token of a tokenizer writes, as bytes.

Two families of decoders join the bytes of tokens one after another:

| family        | a token          | its bytes                               |
|---------------|------------------|-----------------------------------------|
| byte-level    | `Ġthe`, `Ã©`     | each character stands for one byte      |
| SentencePiece | `▁the`, `<0x0A>` | ▁ is a space, and <0x0A> is one byte    |

Others are what they write behind another token. What a decoder drops is only
known from what it writes, so every table is tried on texts before it is used;
WordPiece, whose first token is written in its own way, is refused.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Tried on this many random texts of this many tokens.
_NUM_TEXTS, _NUM_TOKENS = 200, 40
_MAX_STRIPPED = 8
_SAMPLE = "  A 7%:\t<answer>\\frac{1}{2}</answer>\n\nπ ≈ 3,14 é 😀 数"


def _decoders(tokenizer: Any) -> Iterator[dict]:
  """The steps of its decoder, as its file has them."""
  found = json.loads(tokenizer.to_str()).get("decoder") or {}
  yield from found.get("decoders", [found])


def byte_alphabet() -> dict[str, int]:
  """The character that stands for each byte in byte-level tokens.

  Those that can be seen stand for themselves; the others for U+0100 onwards.

  Source: github.com/openai/gpt-2, `bytes_to_unicode`.
  """
  seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
  hidden = [byte for byte in range(256) if byte not in seen]
  characters = {chr(byte): byte for byte in seen}
  return characters | {chr(256 + k): byte for k, byte in enumerate(hidden)}


def token_bytes(
  tokenizer: Any, size: int, dropped: Collection[int]
) -> list[bytes]:
  """The bytes of each token in the middle of a text.

  Args:
    tokenizer: Of the `tokenizers` library.
    size: Number of ids; those that the tokenizer does not have write nothing.
    dropped: Ids that are left out of texts.
  """
  kinds = {step.get("type") for step in _decoders(tokenizer)}
  alphabet = byte_alphabet() if "ByteLevel" in kinds else {}
  probe = _probe(tokenizer, size, dropped)
  opening = _text(tokenizer, [probe])
  made = []
  for id_ in range(size):
    token = tokenizer.id_to_token(id_)
    if token is None or id_ in dropped:
      made.append(b"")
    elif alphabet and all(x in alphabet for x in token):
      made.append(bytes(alphabet[x] for x in token))
    elif alphabet:
      made.append(token.encode())
    elif "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
      made.append(bytes([int(byte[1], 16)]))
    else:
      # Behind another token, so that no decoder takes a leading space away.
      written = _text(tokenizer, [probe, id_])
      made.append(written.removeprefix(opening).encode())
  return made


def _text(tokenizer: Any, ids: list[int]) -> str:
  return tokenizer.decode(ids, skip_special_tokens=False)


def _probe(tokenizer: Any, size: int, dropped: Collection[int]) -> int:
  """A token that writes letters, so that nothing around it is dropped."""
  candidates = (
    id_
    for id_ in range(size)
    if id_ not in dropped
    and (token := tokenizer.id_to_token(id_)) is not None
    and token.isascii()
    and token.isalnum()
  )
  return next(candidates, 0)


def stripped_spaces(tokenizer: Any, tokens: Sequence[bytes]) -> int:
  """How many spaces at the beginning of a text are dropped, at most 8."""
  spaced = [id_ for id_, token in enumerate(tokens) if token.startswith(b" ")]
  if not spaced:
    return 0
  id_ = min(spaced, key=lambda x: (tokens[x].count(b" "), len(tokens[x]), x))
  ids = [id_] * (_MAX_STRIPPED + 1)
  whole = b"".join(tokens[x] for x in ids)
  return max(len(whole) - len(_text(tokenizer, ids).encode()), 0)


def check(
  decode: Callable[[list[int]], str],
  encoded: Callable[[str], list[int]],
  tokens: Sequence[bytes],
  strips: int,
  name: str,
) -> None:
  """Compares the texts of a sample and of random tokens with their bytes.

  Where spaces at the beginning are dropped, they are not compared: some
  decoders drop those of the first token, others one space.

  Args:
    decode: What the bytes are to be.
    encoded: Token ids of a text.
    tokens: The bytes of each token.
    strips: Spaces that are dropped at the beginning of a text, at most.
    name: What the tokenizer is called in messages.

  Raises:
    ValueError: A text is not the bytes of its tokens, one after another.
  """
  rng = random.Random(0)
  usable = [id_ for id_, token in enumerate(tokens) if _is_text(token)]
  texts = [rng.choices(usable, k=_NUM_TOKENS) for _ in range(_NUM_TEXTS)]
  for ids in [encoded(_SAMPLE), *(texts if usable else [])]:
    made = b"".join(tokens[id_] for id_ in ids).decode("utf-8", "replace")
    wanted = decode(ids)
    if strips:
      made, wanted = made.lstrip(" "), wanted.lstrip(" ")
    if made != wanted:
      raise ValueError(
        f"Tokenizer.token_bytes: {name} writes {wanted!r:.80} for tokens whose"
        f" bytes are {made!r:.80}; needed is a tokenizer whose texts are the"
        " bytes of its tokens one after another. Score on the host, by"
        " config.rewards.functions."
      )


def _is_text(token: bytes) -> bool:
  """Whether it is UTF-8: of other bytes, decoders write what they like."""
  try:
    return bool(token.decode())
  except UnicodeDecodeError:
    return False
