"""Text to token ids and back, behind one small interface.

`Tokenizer` wraps a `tokenizer.json` file or the tokenizer of a checkpoint, with
its chat template; `task_tokenizer.TaskTokenizer` speaks the alphabet of a
synthetic task. Both have `encode`, `decode`, `pad_id`, `end_ids` and
`vocab_size`, and for turns `exact_text`, `markup_ids`, `split_markup` and
`observation_ids`. `context_ids` are those of a text that nothing comes before:
the begin token of a tokenizer that has one is written there, and nowhere else.
What else surrounds a prompt is said by a template in the config.
`train` makes a small file for small models.

What the files of a checkpoint say about its tokenizer, as JSON.

What each token of a tokenizer writes, as bytes.

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

import contextlib
import dataclasses
import functools
import json
import random
import re
import reprlib
import string
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any

from etils import epath

from grpo_jax.data import chat, observations
from grpo_jax.data.observations import Observation
from grpo_jax.data.sources import Source

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
class TokenizerSteps:
  """The steps of a normalizer or a decoder that may make a text longer.

  Attributes:
    steps: Of each, how many characters it adds to a text, and to each character
      of a text.
  """

  steps: tuple[tuple[int, float], ...]

  @classmethod
  def of(cls, part: dict[str, Any]) -> TokenizerSteps:
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


# Trained by scripts/train_tokenizer.py on the GSM8K training split.
GSM8K_BPE = epath.resource_path("grpo_jax") / "data/assets/gsm8k_bpe_2048.json"
# The same without a merge: every byte is a token, for tasks about letters.
BYTES = epath.resource_path("grpo_jax") / "data/assets/bytes.json"

# What `train` gives the ids 0 to 5.
SPECIAL_TOKENS = (
  "<pad>",
  "<eos>",
  "<think>",
  "</think>",
  "<answer>",
  "</answer>",
)

# One turn of a chat: {"role": "user", "content": "..."}, and what else a
# template reads.
Message = Mapping[str, Any]


# Characters from which other threads do not wait for a text to be encoded.
_LONG_TEXT = 2**14
# A cut may change the tokens of the last word before it.
_TOKENS_BEFORE_CUT = 32
# A question that no template has in itself.
_PROBE = "Is this question the 7th one?"


class Tokenizer:
  """A tokenizer of the `tokenizers` library, and the chat template beside it.

  Attributes:
    pad_id: Fills unused slots. Often an end id too: which slots exist is said
      by masks, never by ids.
    end_ids: Any of these ends a completion; the first is the one that
      supervised targets end with.
    vocab_size: Ids are below it. A model's table may have more rows than the
      tokenizer has tokens; `decode` drops such ids.
    special_tokens: What templates call bos_token, eos_token, …, as text.
  """

  def __init__(
    self,
    path: epath.PathLike = GSM8K_BPE,
    *,
    pad_token: str | None = None,
    end_tokens: Sequence[str] | None = None,
    chat_template: str | None = None,
  ):
    """Reads `path`.

    Args:
      path: Local or `gs://` tokenizer.json; or a checkpoint's folder with one,
        of which tokenizer_config.json, generation_config.json, config.json and
        chat_template.jinja are read too.
      pad_token: Fills unused slots. None: "<pad>" for a file; for a folder the
        token that it names, or an end token.
      end_tokens: Any of these ends a completion. None: "<eos>" for a file; for
        a folder the eos_token_id of its generation_config.json, else the
        eos_token of its tokenizer_config.json, else the eos_token_id of its
        config.json. Of several the first is one that the chat template
        writes, or else the eos_token.
      chat_template: Jinja text, in the place of the folder's own.

    Raises:
      ImportError: The `tokenizers` package is missing.
      FileNotFoundError: There is no such file.
      ValueError: A file cannot be read, a named token is not in the
        vocabulary, or nothing names an end token.
    """
    tokenizers = _import_tokenizers()
    path = epath.Path(path)
    files = CheckpointFiles(path)
    if not files.tokenizer.exists():
      raise FileNotFoundError(
        f"Tokenizer: no file {files.tokenizer}; set config.data.tokenizer to"
        " the tokenizer.json of a model, to the folder of a checkpoint that"
        " has one, or to 'gsm8k'. transformers makes one of other formats:"
        " AutoTokenizer.from_pretrained(…).save_pretrained(…); and"
        " scripts/train_tokenizer.py a new one."
      )
    with _complaining(
      f"{files.tokenizer} is not a tokenizer.json",
      "Set config.data.tokenizer to one of the `tokenizers` library.",
    ):
      self._tokenizer = tokenizers.Tokenizer.from_str(
        files.tokenizer.read_text(encoding="utf-8")
      )
    # Files remember how long the texts of their training were.
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    self._normalizer = TokenizerSteps.of(_as_json(self._tokenizer.normalizer))
    self._decoder = TokenizerSteps.of(_as_json(self._tokenizer.decoder))
    self._probed: set[tuple[str, bool]] = set()
    self._path = path
    self.special_tokens: dict[str, str] = files.special_tokens()
    given = {"default": chat_template} if chat_template else None
    self._templates = given or files.chat_templates()
    known = max(self._tokenizer.get_vocab().values(), default=-1) + 1
    size = files.model.get("vocab_size")
    self.vocab_size: int = size if isinstance(size, int) else known
    if end_tokens is None and path.is_dir():
      self.end_ids: tuple[int, ...] = self._checkpoint_end_ids(files)
    else:
      self.end_ids = tuple(
        map(self._id, ("<eos>",) if end_tokens is None else end_tokens)
      )
    if not self.end_ids:
      raise ValueError("Tokenizer: end_tokens is empty; need at least one.")
    if pad_token is None and path.is_dir():
      pad_id = self._tokenizer.token_to_id(
        self.special_tokens.get("pad_token", "")
      )
      # Some files name one for which the model has no row.
      usable = pad_id is not None and pad_id < self.vocab_size
      self.pad_id: int = pad_id if usable else self.end_ids[0]
    else:
      self.pad_id = self._id("<pad>" if pad_token is None else pad_token)

  def _id(self, token: str) -> int:
    id_ = self._tokenizer.token_to_id(token)
    if id_ is None:
      raise ValueError(
        f"Tokenizer: {self._path} does not have the token {token!r}; set"
        " pad_token and end_tokens to tokens of its vocabulary."
      )
    return id_

  def _checkpoint_end_ids(self, files: CheckpointFiles) -> tuple[int, ...]:
    own = self._tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))
    for given in (
      files.generation.get("eos_token_id"),
      own,
      files.model.get("eos_token_id"),
    ):
      if given is not None:
        break
    else:
      raise ValueError(
        f"Tokenizer: {self._path} names no end token; write eos_token_id into"
        " its generation_config.json, or pass end_tokens."
      )
    # A base model's end of text often comes before the end of a turn.
    written = "".join(self._templates.values())

    def preference(id_: int) -> tuple[bool, bool]:
      text = self._tokenizer.id_to_token(id_)
      return text is not None and text in written, id_ == own

    ids = given if isinstance(given, list) else [given]
    for id_ in ids:
      if not isinstance(id_, int) or not 0 <= id_ < self.vocab_size:
        raise ValueError(
          f"Tokenizer: {self._path} names {id_!r} as an end token, which the"
          f" model can never sample; needed is an id below {self.vocab_size}."
          " Correct eos_token_id in its generation_config.json, or pass"
          " end_tokens."
        )
    return tuple(sorted(ids, key=preference, reverse=True))

  def pieces(self) -> dict[int, str]:
    """The piece of each id, by which two tokenizers are compared."""
    return {id_: x for x, id_ in self._tokenizer.get_vocab().items()}

  def control_ids(self) -> frozenset[int]:
    """Ids that are no text: special tokens, and those of padding and ends."""
    return frozenset(self._special)

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`; nothing is added before or after it.

    Raises:
      ValueError: The model has no row for one of the tokens; or the text has
        half a surrogate pair, or is too much for the tokenizer's patterns.
    """
    return self._of_model(self._encode(self._tokenizer, text).ids, text)

  def context_ids(self, text: str) -> list[int]:
    """Token ids of a text that begins a context.

    They are those of `encode` behind `begin_ids`, which are not written a
    second time if the text has them.

    Raises:
      ValueError: As `encode`.
    """
    ids = self.encode(text)
    begin = self.begin_ids
    return ids if ids[: len(begin)] == begin else [*begin, *ids]

  @functools.cached_property
  def begin_ids(self) -> list[int]:
    """What this tokenizer writes before a text, often nothing.

    The post-processor of the tokenizer.json says so, as in transformers, for
    which `add_bos_token` beside such a file means nothing either. What it
    writes behind a text is left out, because a policy goes on there.
    """
    found = self._encode(self._tokenizer, string.printable, True)
    if all(found.special_tokens_mask):  # It knows none of these characters.
      return []
    first = found.special_tokens_mask.index(0)
    return self._of_model(found.ids[:first], "")

  def _encode(
    self, encoder: Any, text: str, add_special_tokens: bool = False
  ) -> Any:
    """An encoding of `tokenizers`: ids, and where each stands in the text."""
    self._normalizer.check(len(text), f"{self._path} makes of {text[:80]!r}")
    with _complaining(
      f"{self._path} cannot encode the text {text[:80]!r}",
      "Take what it does not know out of the text.",
    ):
      if len(text) < _LONG_TEXT:
        return encoder.encode(text, add_special_tokens=add_special_tokens)
      # Other threads go on meanwhile, as they do not beside `encode`.
      (encoding,) = encoder.encode_batch(
        [text], add_special_tokens=add_special_tokens
      )
      return encoding

  def _of_model(self, ids: list[int], text: str) -> list[int]:
    if (largest := max(ids, default=0)) >= self.vocab_size:
      raise ValueError(
        f"Tokenizer: the text {text!r:.80} has the token"
        f" {self._tokenizer.id_to_token(largest)!r} with the id {largest}, and"
        f" the model of {self._path} has {self.vocab_size} ids; take it out of"
        " the text, or use the tokenizer of the model."
      )
    return ids

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad and end tokens vanish, tags like `<think>` stay."""
    dropped = {self.pad_id, *self.end_ids}
    kept = [int(i) for i in ids if int(i) not in dropped]
    return self._text(kept)

  def _text(self, ids: list[int]) -> str:
    if self._decoder.grows:
      pieces = (self._tokenizer.id_to_token(id_) or "" for id_ in ids)
      size = sum(map(len, pieces))
      self._decoder.check(size, f"{self._path} makes of {reprlib.repr(ids)}")
    with _complaining(
      f"{self._path} cannot decode {reprlib.repr(ids)}",
      "Use the tokenizer of the model.",
    ):
      return self._tokenizer.decode(ids, skip_special_tokens=False)

  @functools.cached_property
  def _bytes(self) -> tuple[list[bytes], int]:
    dropped = {self.pad_id, *self.end_ids}
    made = token_bytes(self._tokenizer, self.vocab_size, dropped)
    strips = stripped_spaces(self._tokenizer, made)
    check(self.decode, self.encode, made, strips, str(self._path))
    return made, strips

  def token_bytes(self) -> list[bytes]:
    """What each id writes in the middle of `decode`'s text; b"" for none.

    Joined, they are that text in UTF-8, but for `stripped_spaces` and for
    bytes that are no UTF-8: for these, and with SentencePiece for all byte
    tokens beside them, `decode` writes U+FFFD.

    Raises:
      ValueError: This tokenizer's texts are not made like that.
    """
    return self._bytes[0]

  def stripped_spaces(self) -> int:
    """How many spaces at the beginning of a text `decode` drops, 0 to 8.

    Raises:
      ValueError: As `token_bytes`.
    """
    return self._bytes[1]

  def exact_text(self, ids: Iterable[int]) -> str:
    """Text of an action: of just these ids, end and pad tokens too."""
    # Behind another token, so that no decoder takes away a leading space.
    end = self.end_ids[0]
    opening, text = self._text([end]), self._text([end, *map(int, ids)])
    return text.removeprefix(opening)

  def markup_ids(self, text: str) -> list[int]:
    """Token ids of text whose special tokens are meant, without a begin token.

    Raises:
      ValueError: The model has no row for one of the tokens.
    """
    return self.encode(text)

  def observation_ids(self, said: Observation, max_len: int) -> list[int]:
    """Token ids of what is read in the middle of a completion.

    Of the text, what looks like a special token is characters like any others:
    a page that a tool has fetched ends no turn and begins none. Tokens that the
    file does not call special, as `<tool_response>` often is, are tokens. Half
    a surrogate pair becomes U+FFFD.

    Args:
      said: Text, which is cut; or (before, text, after), of which only the text
        is, and whose first and last part may have special tokens. Of several
        texts, (before, text, between, text, after), the longest are cut.
      max_len: Tokens, at most. The time does not depend on what is cut away.

    Returns:
      Where nothing is cut, the ids are those of the whole as one text, but for
      special tokens in what is said.

    Raises:
      ValueError: The markup is longer than that, or there is not one part more
        of it than of texts; the model has no row for one of the tokens; or this
        tokenizer has no other way to write what looks like a special token.
    """
    return observations.ids_of(self, said, max_len)

  def split_markup(self, text: str) -> tuple[str, list[int], str]:
    """Markup as plain text, ids of special tokens, and plain text again.

    The ids are those from the first special token to the last. Without one, all
    of it is plain, and is the first part.
    """
    found = self._encode(self._tokenizer, text)
    spans = [
      span
      for id_, span in zip(found.ids, found.offsets, strict=True)
      if id_ in self._special
    ]
    if not spans:
      return text, [], ""
    start, end = spans[0][0], spans[-1][1]
    return text[:start], self.markup_ids(text[start:end]), text[end:]

  @functools.cached_property
  def _plain(self) -> Any:
    """The tokenizer, with special tokens as characters."""
    plain = _import_tokenizers().Tokenizer.from_str(self._tokenizer.to_str())
    plain.encode_special_tokens = True
    return plain

  @functools.cached_property
  def _special(self) -> dict[int, str]:
    added = self._tokenizer.get_added_tokens_decoder()
    special = {id_: x.content for id_, x in added.items() if x.special}
    for id_ in (self.pad_id, *self.end_ids):
      if (token := self._tokenizer.id_to_token(id_)) is not None:
        special[id_] = token
    return special

  def _plain_ids(self, text: str, max_len: int) -> list[int]:
    size = observations.CHARS_PER_TOKEN * max_len
    while True:
      code_units = text[:size].encode("utf-16", "surrogatepass")
      piece = code_units.decode("utf-16", "replace")
      ids = self._encode(self._plain, piece).ids
      enough = len(ids) >= max_len + _TOKENS_BEFORE_CUT
      if enough or size >= min(
        len(text), observations.MOST_CHARS_PER_TOKEN * max_len
      ):
        break
      size *= 4
    ids = self._of_model(ids[:max_len], piece)
    for id_ in ids:
      # A token for unknown characters is special too, and none of these.
      if id_ in self._special and self._special[id_] in piece:
        raise ValueError(observations.cannot_write(self._special[id_]))
    return ids

  def chat_text(
    self,
    messages: Sequence[Message],
    /,
    add_generation_prompt: bool = True,
    **options: Any,
  ) -> str:
    """A conversation as the chat template writes it.

    Args:
      messages: Turns, oldest first; keys whose value is None do not count.
      add_generation_prompt: Whether to open the assistant's next turn.
      **options: What else the template reads: tools (JSON schemas),
        enable_thinking, ….

    Returns:
      The text that `apply_chat_template` of transformers gives.

    Raises:
      ImportError: The `jinja2` package is missing.
      ValueError: There is no template, or it refuses the messages, or takes
        too long or too much (`chat.py`).
    """
    by_name = self._templates
    name = "tool_use" if options.get("tools") is not None else "default"
    source = by_name.get(name, by_name.get("default"))
    if source is None:
      raise ValueError(
        f"Tokenizer: {self._path} has no chat template; set"
        " config.data.template to a text that contains '{prompt}', or put a"
        " chat_template.jinja beside the tokenizer.json."
      )
    given = [
      {key: value for key, value in message.items() if value is not None}
      for message in messages
    ]
    values = {
      **self.special_tokens,
      "tools": None,
      "documents": None,
      **options,
      "messages": given,
      "add_generation_prompt": add_generation_prompt,
    }
    try:
      self._probe(source, values)
      return chat.render(source, values)
    except ValueError as error:
      raise ValueError(
        f"Tokenizer: the chat template of {self._path} cannot write the roles"
        f" {[message.get('role') for message in messages]}: {error}. Pass"
        " messages that it accepts, or another chat_template."
      ) from error

  def _probe(self, source: str, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a template writes nothing of a question.

    Each template is tried once with a text, and once with a list of parts.
    """
    messages = values["messages"]
    asked = [i for i, x in enumerate(messages) if x.get("role") == "user"]
    content = messages[asked[-1]].get("content") if asked else None
    is_text = isinstance(content, str)
    if not content or (source, is_text) in self._probed:
      return
    probe: Any = _PROBE
    if not is_text:
      probe = [{**x, "text": _PROBE} if "text" in x else x for x in content]
    message = {**messages[asked[-1]], "content": probe}
    changed = [*messages]
    changed[asked[-1]] = message
    written = chat.render(source, {**values, "messages": changed})
    if _PROBE.lower() not in written.lower():
      raise ValueError(
        "it writes nothing of the user's message, whose content is"
        f" {'a text' if is_text else 'a list of parts'}, so that all questions"
        " would be the same tokens; it may be made for"
        f" {'lists of parts' if is_text else 'texts'}. Set config.data.template"
        " to a text that contains '{prompt}'"
      )
    self._probed.add((source, is_text))

  def chat_ids(
    self,
    messages: Sequence[Message],
    /,
    add_generation_prompt: bool = True,
    **options: Any,
  ) -> list[int]:
    """Token ids of `chat_text`, of which special tokens are part.

    Text of a message that looks like a special token becomes one, as in
    transformers.
    """
    return self.encode(
      self.chat_text(messages, add_generation_prompt, **options)
    )

  def extend(
    self,
    ids: Sequence[int],
    messages: Sequence[Message],
    new_messages: Sequence[Message],
    /,
    **options: Any,
  ) -> list[int]:
    """Token ids of a conversation with further turns, after sampled ids.

    `ids` stay as they are: text that was sampled has many tokenizations, and
    log-probs belong to the sampled one. Only what the template writes after
    the reply is tokenized: the end of the turn, if the reply was cut off
    before it, the new messages, and the start of the next reply.

    Args:
      ids: All ids so far, the reply's end token included if it has one.
      messages: The conversation that they stand for; the last is the
        assistant's reply, with its text as content.
      new_messages: What follows it: a tool's or the user's.
      **options: Of `chat_text`; the same as for the turns before.

    Returns:
      `ids`, and the ids of what is new. What a template leaves out of replies
      (their reasoning) stays, for it is among `ids`.

    Raises:
      ValueError: `messages` do not end with a reply; or the template writes
        the turns so far differently once others follow.
    """
    last = messages[-1] if messages else {}
    if not ids or last.get("role") != "assistant":
      raise ValueError(
        f"Tokenizer.extend: received {len(ids)} ids and messages that end with"
        f" the role {last.get('role')!r}; needed are the ids so far and"
        " messages that end with the assistant's reply."
      )
    before = self.chat_text(messages, False, **options)
    after = self.chat_text([*messages, *new_messages], True, **options)
    marker = "reply"
    marked = [*messages[:-1], {"role": "assistant", "content": marker}]
    closing = self.chat_text(marked, False, **options).rpartition(marker)[2]
    if not (after.startswith(before) and before.endswith(closing)):
      same = next(
        (
          i
          for i, (x, y) in enumerate(zip(before, after, strict=False))
          if x != y
        ),
        min(len(before), len(after)),
      )
      raise ValueError(
        f"Tokenizer.extend: the chat template of {self._path} rewrites earlier"
        " turns when others follow, so that the ids so far would not be those"
        f" of the conversation. It wrote {before[same:]!r:.60} and then"
        f" {after[same:]!r:.60}. Pass a chat_template that keeps them (many"
        " drop the reasoning of earlier turns)."
      )
    new = self.encode(closing + after[len(before) :])
    ends = self.end_ids
    if new and new[0] in ends and ids[-1] in ends:
      new = new[1:]
    return [*ids, *new]


def _as_json(part: Any) -> dict[str, Any]:
  """What a tokenizer.json has of a part; {} for a part that is not there."""
  return {} if part is None else json.loads(part.__getstate__())


@contextlib.contextmanager
def _complaining(what: str, advice: str) -> Iterator[None]:
  """Makes a ValueError of what the `tokenizers` library raises.

  It has no class of its own for errors; and where a pattern of a file is too
  much for the library, it panics, which is not even an Exception.
  """
  try:
    yield
  except BaseException as error:
    is_panic = type(error).__name__ == "PanicException"
    if not (is_panic or isinstance(error, Exception)):
      raise
    raise ValueError(f"Tokenizer: {what}: {error}. {advice}") from error


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
