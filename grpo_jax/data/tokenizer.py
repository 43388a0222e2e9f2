"""Tokenizers: text to token ids and back, behind one small interface.

`Tokenizer` wraps a `tokenizer.json` file or the tokenizer of a checkpoint, with
its chat template; `observations.TaskTokenizer` has the alphabet of a synthetic
task. Both have `encode`, `decode`, `pad_id`, `end_ids` and `vocab_size`, and
for turns `exact_text`, `markup_ids`, `split_markup` and `observation_ids`.
`context_ids` encodes a text at the beginning of a context: the begin token, if
the tokenizer has one, is written there and nowhere else. All other text around
a prompt comes from a template in the config. `train` makes a small file for
small models.

`token_bytes` lists the bytes that each token writes. Two families of decoders
concatenate the bytes of tokens:

| family        | a token          | its bytes                               |
|---------------|------------------|-----------------------------------------|
| byte-level    | `Ġthe`, `Ã©`     | each character stands for one byte      |
| SentencePiece | `▁the`, `<0x0A>` | ▁ is a space, and <0x0A> is one byte    |

The bytes of any other token are its text behind another token. Only the text of
a decoder shows what it drops, so every table is tested on texts before it is
used. WordPiece writes the first token differently, and so is not supported.
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

from grpo_jax import optional
from grpo_jax.data import chat, observations
from grpo_jax.data.observations import Observation
from grpo_jax.data.sources import Source

_tokenizers = functools.partial(optional.package, "tokenizers", "hf", __name__)
# Names of special tokens that every tokenizer may have; others are its own.
_NAMED_TOKENS = (
  *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token"),
  *("cls_token", "mask_token"),
)

# Folder of a checkpoint with its further templates, if it has several.
_TEMPLATES = "additional_chat_templates"

# Most characters that a normalizer or a decoder may make of a text: 16 million
# take about 400 MB, and a call of the library cannot be stopped.
_MAX_SIZE = 2**24


@dataclasses.dataclass(frozen=True)
class TokenizerSteps:
  """The steps of a normalizer or a decoder that may make a text longer.

  Attributes:
    steps: For each step, the numbers of characters that it adds to a text, and
      to each character of a text.
  """

  steps: tuple[tuple[int, float], ...]

  @classmethod
  def of(cls, part: dict[str, Any]) -> TokenizerSteps:
    """Reads the entry "normalizer" or "decoder" of a tokenizer.json."""
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
    # A pattern may match between any two characters, and removes none there.
    return cls(((new, float(new)),))

  @property
  def grows(self) -> bool:
    """True if a text may become longer."""
    return any(more for _, more in self.steps)

  def check(self, size: int, what: str) -> None:
    """Raises ValueError if a text of this size may become too long.

    Args:
      what: Origin of the text, for the message.
    """
    largest = float(size)
    for added, more in self.steps:
      largest = largest * (1 + more) + added
    if largest > max(_MAX_SIZE, size):
      raise ValueError(
        f"{what} a text of up to {largest:.3g} characters, because its steps"
        f" 'Replace' multiply the {size} that it has; at most {_MAX_SIZE} are"
        " made. Use the tokenizer.json of a model, or shorten the text."
      )


class CheckpointFiles:
  """Settings of a tokenizer in the files of a checkpoint.

  If the path is a lone tokenizer.json, there are no such files.

  Attributes:
    tokenizer: Path of the tokenizer.json.
    model, generation: Contents of config.json and generation_config.json.
  """

  def __init__(self, path: epath.Path):
    self._directory = path if path.is_dir() else None
    self.tokenizer = path / "tokenizer.json" if self._directory else path
    self.generation = self._json("generation_config.json")
    model = self._json("config.json")
    # The language model's part, in a model with images.
    inner = model.get("text_config") or {}
    if not isinstance(inner, dict):
      raise self._malformed("config.json", "text_config", inner)
    self.model: dict[str, Any] = {**model, **inner}
    self._settings = {
      **self._json("special_tokens_map.json"),  # In older checkpoints.
      **self._json("tokenizer_config.json"),
    }

  def _text(self, name: str) -> str | None:
    if self._directory is None or not (self._directory / name).exists():
      return None
    return (self._directory / name).read_text(encoding="utf-8")

  def _json(self, name: str) -> dict[str, Any]:
    try:
      content = json.loads(self._text(name) or "{}")
    except (ValueError, RecursionError) as error:
      raise ValueError(
        f"{self._directory}/{name} is not JSON: {error}. Copy the checkpoint's"
        " file again."
      ) from error
    if not isinstance(content, dict):
      raise ValueError(
        f"{self._directory}/{name} holds no object of keys. Copy the"
        " checkpoint's file again."
      )
    return content

  def _malformed(self, file: str, key: str, value: Any) -> ValueError:
    return ValueError(
      f"{self._directory}/{file} has {key} = {reprlib.repr(value)}, which is of"
      " another kind than a checkpoint's. Copy the file again."
    )

  def special_tokens(self) -> dict[str, str]:
    """Texts of special tokens by their names in templates."""
    texts = {}
    tokens = {k: x for k, x in self._settings.items() if k.endswith("_token")}
    further = self._settings.get("extra_special_tokens")
    if isinstance(further, dict):  # In a list they have no names.
      tokens |= further
    for name, token in tokens.items():
      text = token.get("content") if isinstance(token, dict) else token
      if isinstance(text, str):
        texts[name] = text
      elif token is not None and name in _NAMED_TOKENS:
        raise self._malformed("tokenizer_config.json", name, token)
    return texts

  def chat_templates(self) -> dict[str, str]:
    """Templates by name; most checkpoints have one, called "default"."""
    files = {}
    if (text := self._text("chat_template.jinja")) is not None:
      files["default"] = text
    if self._directory is not None:
      for path in (self._directory / _TEMPLATES).glob("*.jinja"):
        files[path.stem] = path.read_text(encoding="utf-8")
    value: Any = files or self._settings.get("chat_template") or {}
    templates = value
    if isinstance(value, str):
      templates = {"default": value}
    if isinstance(value, list) and all(isinstance(x, dict) for x in value):
      templates = {str(x.get("name")): x.get("template") for x in value}
    if not isinstance(templates, dict) or not all(
      isinstance(text, str) for text in templates.values()
    ):
      raise self._malformed("tokenizer_config.json", "chat_template", value)
    return templates


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Numbers of random texts, and of tokens of each, on which a table is tested.
_NUM_TEXTS, _NUM_TOKENS = 200, 40
_MAX_STRIPPED = 8
_SAMPLE = "  A 7%:\t<answer>\\frac{1}{2}</answer>\n\nπ ≈ 3,14 é 😀 数"


def byte_alphabet() -> dict[str, int]:
  """Maps characters of byte-level tokens to the bytes that they stand for.

  Bytes of visible characters are those characters; the others are U+0100
  onwards.

  Source: github.com/openai/gpt-2, `bytes_to_unicode`.
  """
  visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
  hidden = [byte for byte in range(256) if byte not in visible]
  characters = {chr(byte): byte for byte in visible}
  return characters | {chr(256 + k): byte for k, byte in enumerate(hidden)}


def token_bytes(
  tokenizer: Any, size: int, dropped: Collection[int]
) -> list[bytes]:
  """The bytes of each token in the middle of a text.

  Args:
    tokenizer: A tokenizer of the `tokenizers` library.
    size: Number of ids; ids that the tokenizer does not have write nothing.
    dropped: Ids that are left out of texts.
  """
  decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
  kinds = {step.get("type") for step in decoder.get("decoders", [decoder])}
  alphabet = byte_alphabet() if "ByteLevel" in kinds else {}
  probe = _probe(tokenizer, size, dropped)
  opening = _text(tokenizer, [probe])
  result = []
  for id_ in range(size):
    token = tokenizer.id_to_token(id_)
    if token is None or id_ in dropped:
      result.append(b"")
    elif alphabet and all(x in alphabet for x in token):
      result.append(bytes(alphabet[x] for x in token))
    elif alphabet:
      result.append(token.encode())
    elif "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
      result.append(bytes([int(byte[1], 16)]))
    else:
      # Behind another token, so that no decoder removes a leading space.
      text = _text(tokenizer, [probe, id_])
      result.append(text.removeprefix(opening).encode())
  return result


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
  """Number of spaces at the beginning of a text that are dropped, up to 8."""
  spaced = [id_ for id_, token in enumerate(tokens) if token.startswith(b" ")]
  if not spaced:
    return 0
  id_ = min(spaced, key=lambda x: (tokens[x].count(b" "), len(tokens[x]), x))
  ids = [id_] * (_MAX_STRIPPED + 1)
  content = b"".join(tokens[x] for x in ids)
  return max(len(content) - len(_text(tokenizer, ids).encode()), 0)


def check(
  decode: Callable[[list[int]], str],
  encoded: Callable[[str], list[int]],
  tokens: Sequence[bytes],
  strips: int,
  name: str,
) -> None:
  """Compares the texts of a sample and of random tokens with their bytes.

  Spaces at the beginning are not compared if they may be dropped: some decoders
  drop those of the first token, others one space.

  Args:
    decode: Function from ids to text, with which the bytes must agree.
    encoded: Function from a text to its ids.
    tokens: The bytes of each token.
    strips: Most spaces that are dropped at the beginning of a text.
    name: Name of the tokenizer in messages.

  Raises:
    ValueError: The bytes of tokens, concatenated, are not their text.
  """
  rng = random.Random(0)
  usable = [id_ for id_, token in enumerate(tokens) if _is_text(token)]
  texts = [rng.choices(usable, k=_NUM_TOKENS) for _ in range(_NUM_TEXTS)]
  for ids in [encoded(_SAMPLE), *(texts if usable else [])]:
    joined = b"".join(tokens[id_] for id_ in ids).decode("utf-8", "replace")
    text = decode(ids)
    if strips:
      joined, text = joined.lstrip(" "), text.lstrip(" ")
    if joined != text:
      raise ValueError(
        f"Tokenizer.token_bytes: {name} writes {text!r:.80} for tokens whose"
        f" bytes are {joined!r:.80}; needs a tokenizer whose texts are the"
        " bytes of its tokens one after another. Score on the host, by"
        " config.rewards.functions."
      )


def _is_text(token: bytes) -> bool:
  """Returns True for UTF-8 text; decoders differ in how they write others."""
  try:
    return bool(token.decode())
  except UnicodeDecodeError:
    return False


# Trained by scripts/train_tokenizer.py on the GSM8K training split.
GSM8K_BPE = epath.resource_path("grpo_jax") / "data/assets/gsm8k_bpe_2048.json"
# A tokenizer without merges: every byte is a token, for tasks about letters.
BYTES = epath.resource_path("grpo_jax") / "data/assets/bytes.json"

# Tokens to which `train` gives the ids 0 to 5.
SPECIAL_TOKENS = (
  *("<pad>", "<eos>", "<think>", "</think>", "<answer>", "</answer>"),
)

# One turn of a chat: {"role": "user", "content": "..."}, and further fields
# that a template reads.
Message = Mapping[str, Any]


# Names of a reply's reasoning in data; templates read one of the first two.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Characters of a text from which other threads run while it is encoded.
_LONG_TEXT = 2**14
# A cut may change the tokens of the last word before it.
_TOKENS_BEFORE_CUT = 32
# A question that no template contains.
_PROBE = "Is this question the 7th one?"


class Tokenizer:
  """A tokenizer of the `tokenizers` library, and the chat template beside it.

  Attributes:
    pad_id: Id that fills unused slots. It is often an end id too: masks, and
      never ids, tell which slots hold a token.
    end_ids: Ids that end a completion; supervised targets end with the first.
    vocab_size: Upper bound of the ids. A model's table may have more rows than
      the tokenizer has tokens; `decode` drops such ids.
    special_tokens: Texts of bos_token, eos_token, … for templates.
  """

  def __init__(
    self,
    path: epath.PathLike = GSM8K_BPE,
    *,
    pad_token: str | None = None,
    end_tokens: Sequence[str] | None = None,
    chat_template: str | None = None,
  ):
    """Reads the tokenizer at a path.

    Args:
      path: Local or `gs://` tokenizer.json; or a checkpoint's folder with one,
        whose tokenizer_config.json, generation_config.json, config.json,
        chat_template.jinja and additional_chat_templates are read too.
      pad_token: Token that fills unused slots. None: "<pad>" for a file; for a
        folder the token that it names, or an end token.
      end_tokens: Tokens that end a completion. None: "<eos>" for a file; for a
        folder the eos_token_id of its generation_config.json, else the
        eos_token of its tokenizer_config.json, else the eos_token_id of its
        config.json. If there are several, the first is one that the chat
        template writes, or else the eos_token.
      chat_template: Jinja text that replaces the folder's own template.

    Raises:
      ImportError: The `tokenizers` package is missing.
      FileNotFoundError: There is no such file.
      ValueError: A file cannot be read, a named token is not in the
        vocabulary, or nothing names an end token.
    """
    tokenizers = _tokenizers()
    path = epath.Path(path)
    files = CheckpointFiles(path)
    if not files.tokenizer.exists():
      raise FileNotFoundError(
        f"no file {files.tokenizer}; set config.data.tokenizer to the"
        " tokenizer.json of a model, to the folder of a checkpoint that has"
        " one, or to 'gsm8k'. transformers makes one of other formats:"
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
    # Files may have a truncation to the length of training texts.
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    self._normalizer = TokenizerSteps.of(_as_json(self._tokenizer.normalizer))
    self._decoder = TokenizerSteps.of(_as_json(self._tokenizer.decoder))
    self._probed: set[tuple[str, bool]] = set()
    self._path = path
    self.special_tokens: dict[str, str] = files.special_tokens()
    templates = {"default": chat_template} if chat_template else None
    self._templates = templates or files.chat_templates()
    num_tokens = max(self._tokenizer.get_vocab().values(), default=-1) + 1
    size = files.model.get("vocab_size")
    self.vocab_size: int = size if isinstance(size, int) else num_tokens
    if end_tokens is None and path.is_dir():
      self.end_ids: tuple[int, ...] = self._checkpoint_end_ids(files)
    else:
      self.end_ids = tuple(
        map(self._id, ("<eos>",) if end_tokens is None else end_tokens)
      )
    if not self.end_ids:
      raise ValueError("end_tokens is empty; need at least one.")
    if pad_token is None and path.is_dir():
      pad_id = self._tokenizer.token_to_id(
        self.special_tokens.get("pad_token", "")
      )
      # Some files name a pad token for which the model has no row.
      usable = pad_id is not None and pad_id < self.vocab_size
      self.pad_id: int = pad_id if usable else self.end_ids[0]
    else:
      self.pad_id = self._id("<pad>" if pad_token is None else pad_token)

  def _id(self, token: str) -> int:
    id_ = self._tokenizer.token_to_id(token)
    if id_ is None:
      raise ValueError(
        f"{self._path} does not have the token {token!r}; set pad_token and"
        " end_tokens to tokens of its vocabulary."
      )
    return id_

  def _checkpoint_end_ids(self, files: CheckpointFiles) -> tuple[int, ...]:
    own = self._tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))
    for value in (
      files.generation.get("eos_token_id"),
      own,
      files.model.get("eos_token_id"),
    ):
      if value is not None:
        break
    else:
      raise ValueError(
        f"{self._path} names no end token; write eos_token_id into its"
        " generation_config.json, or pass end_tokens."
      )
    # A base model's end of text is often listed before the end of a turn.
    templates = "".join(self._templates.values())

    def preference(id_: int) -> tuple[bool, bool]:
      text = self._tokenizer.id_to_token(id_)
      return text is not None and text in templates, id_ == own

    ids = value if isinstance(value, list) else [value]
    for id_ in ids:
      if not isinstance(id_, int) or not 0 <= id_ < self.vocab_size:
        raise ValueError(
          f"{self._path} names {id_!r} as an end token, which the model can"
          f" never sample; needs an id below {self.vocab_size}. Correct"
          " eos_token_id in its generation_config.json, or pass end_tokens."
        )
    return tuple(sorted(ids, key=preference, reverse=True))

  def pieces(self) -> dict[int, str]:
    """The piece of each id, by which two tokenizers are compared."""
    return {id_: x for x, id_ in self._tokenizer.get_vocab().items()}

  def control_ids(self) -> frozenset[int]:
    """Ids that are not text: special tokens, padding and end tokens."""
    return frozenset(self._special)

  def encode(self, text: str) -> list[int]:
    """Token ids of `text`; nothing is added before or after it.

    Raises:
      ValueError: The model has no row for one of the tokens; or the text has
        half a surrogate pair, or is too long for the tokenizer's patterns.
    """
    return self._of_model(self._encode(self._tokenizer, text).ids, text)

  def context_ids(self, text: str) -> list[int]:
    """Token ids of a text that begins a context.

    They are the ids of `encode` after `begin_ids`, which are not written twice
    if the text begins with them.

    Raises:
      ValueError: As in `encode`.
    """
    ids = self.encode(text)
    begin = self.begin_ids
    return ids if ids[: len(begin)] == begin else [*begin, *ids]

  @functools.cached_property
  def begin_ids(self) -> list[int]:
    """Ids that this tokenizer writes before a text, often none.

    As in transformers, the post-processor of the tokenizer.json decides, and
    `add_bos_token` beside such a file has no effect. Ids that it writes after a
    text are left out, because a policy continues there.
    """
    probe = self._encode(self._tokenizer, string.printable, True)
    if all(probe.special_tokens_mask):  # Its vocabulary has no such character.
      return []
    first = probe.special_tokens_mask.index(0)
    return self._of_model(probe.ids[:first], "")

  def _encode(
    self, encoder: Any, text: str, add_special_tokens: bool = False
  ) -> Any:
    """An encoding of `tokenizers`: ids, and their places in the text."""
    self._normalizer.check(len(text), f"{self._path} makes of {text[:80]!r}")
    with _complaining(
      f"{self._path} cannot encode the text {text[:80]!r}",
      "Take what it does not know out of the text.",
    ):
      if len(text) < _LONG_TEXT:
        return encoder.encode(text, add_special_tokens=add_special_tokens)
      # Other threads run during `encode_batch`, but not during `encode`.
      (encoding,) = encoder.encode_batch(
        [text], add_special_tokens=add_special_tokens
      )
      return encoding

  def _of_model(self, ids: list[int], text: str) -> list[int]:
    if (largest := max(ids, default=0)) >= self.vocab_size:
      raise ValueError(
        f"the text {text!r:.80} has the token"
        f" {self._tokenizer.id_to_token(largest)!r} with the id {largest}, and"
        f" the model of {self._path} has {self.vocab_size} ids; take it out of"
        " the text, or use the tokenizer of the model."
      )
    return ids

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids` without pad and end tokens; tags like `<think>` stay."""
    dropped = {self.pad_id, *self.end_ids}
    text_ids = [int(i) for i in ids if int(i) not in dropped]
    return self._text(text_ids)

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
    tokens = token_bytes(self._tokenizer, self.vocab_size, dropped)
    strips = stripped_spaces(self._tokenizer, tokens)
    check(self.decode, self.encode, tokens, strips, str(self._path))
    return tokens, strips

  def token_bytes(self) -> list[bytes]:
    """Bytes that each id writes in the middle of `decode`'s text.

    Concatenated, they are that text in UTF-8, with two exceptions:
    `stripped_spaces`, and bytes that are not UTF-8. `decode` writes U+FFFD for
    these, and with SentencePiece for all byte tokens next to them.

    Raises:
      ValueError: The texts of this tokenizer are not concatenated bytes.
    """
    return self._bytes[0]

  def stripped_spaces(self) -> int:
    """Number of spaces at the beginning of a text that `decode` drops, 0 to 8.

    Raises:
      ValueError: As in `token_bytes`.
    """
    return self._bytes[1]

  def exact_text(self, ids: Iterable[int]) -> str:
    """Text of an action: of exactly these ids, with end and pad tokens."""
    # Behind another token, so that no decoder removes a leading space.
    end = self.end_ids[0]
    opening, text = self._text([end]), self._text([end, *map(int, ids)])
    return text.removeprefix(opening)

  def markup_ids(self, text: str) -> list[int]:
    """Token ids of a text whose special tokens count as such; no begin token.

    Raises:
      ValueError: The model has no row for one of the tokens.
    """
    return self.encode(text)

  def observation_ids(self, content: Observation, max_len: int) -> list[int]:
    """Token ids of an observation, which is read inside a completion.

    A special token in the text is encoded as plain characters: a page that a
    tool has fetched neither ends nor begins a turn. Tokens that the file does
    not mark as special, often `<tool_response>`, stay tokens. Half a surrogate
    pair becomes U+FFFD.

    Args:
      content: A text, which may be cut; or (before, text, after), where only
        the text may be cut, and the markup before and after it may have special
        tokens. In (before, text, between, text, after) the longest texts are
        cut.
      max_len: Most tokens. The time does not depend on the text that is cut
        away.

    Returns:
      The ids. If nothing is cut, they are the ids of the whole as one text,
      except for special tokens in the texts.

    Raises:
      ValueError: The markup is longer than `max_len`, or the number of parts is
        even; the model has no row for one of the tokens; or this tokenizer
        cannot write the text of a special token as plain characters.
    """
    return observations.ids_of(self, content, max_len)

  def split_markup(self, text: str) -> tuple[str, list[int], str]:
    """Splits markup into plain text, ids, and plain text again.

    The ids are those from the first special token to the last. Without a
    special token, all of the markup is the first part.
    """
    encoding = self._encode(self._tokenizer, text)
    spans = [
      span
      for id_, span in zip(encoding.ids, encoding.offsets, strict=True)
      if id_ in self._special
    ]
    if not spans:
      return text, [], ""
    start, end = spans[0][0], spans[-1][1]
    return text[:start], self.markup_ids(text[start:end]), text[end:]

  @functools.cached_property
  def _plain(self) -> Any:
    """The tokenizer that encodes special tokens as plain characters."""
    plain = _tokenizers().Tokenizer.from_str(self._tokenizer.to_str())
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
      # The token for unknown characters is special too, but is not meant here.
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
    """Renders a conversation with the chat template.

    Args:
      messages: Turns, oldest first; keys whose value is None are ignored.
        Reasoning has any of the names reasoning_content, thinking, reasoning.
      add_generation_prompt: Whether to open the assistant's next turn.
      **options: Further inputs of the template: tools (JSON schemas),
        enable_thinking, ….

    Returns:
      The text that `apply_chat_template` of transformers returns.

    Raises:
      ImportError: The `jinja2` package is missing.
      ValueError: There is no template; or it rejects the messages, or exceeds
        the limits of `chat.py`.
    """
    by_name = self._templates
    name = "tool_use" if options.get("tools") is not None else "default"
    source = by_name.get(name, by_name.get("default"))
    if source is None:
      raise ValueError(
        f"{self._path} has no chat template; set config.data.template to a text"
        " that contains '{prompt}', or put a chat_template.jinja beside the"
        " tokenizer.json."
      )
    turns = [_turn(message) for message in messages]
    values = {
      **self.special_tokens,
      "tools": None,
      "documents": None,
      **options,
      "messages": turns,
      "add_generation_prompt": add_generation_prompt,
    }
    try:
      self._probe(source, values)
      return chat.render(source, values)
    except ValueError as error:
      raise ValueError(
        f"the chat template of {self._path} cannot write the roles"
        f" {[message.get('role') for message in messages]}: {error}. Pass"
        " messages that it accepts, or another chat_template."
      ) from error

  def _probe(self, source: str, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a template leaves out the text of a question.

    Each template is tried once with a text, and once with a list of parts.
    """
    messages = values["messages"]
    questions = [i for i, x in enumerate(messages) if x.get("role") == "user"]
    content = messages[questions[-1]].get("content") if questions else None
    is_text = isinstance(content, str)
    if not content or (source, is_text) in self._probed:
      return
    probe: Any = _PROBE
    if not is_text:
      probe = [{**x, "text": _PROBE} if "text" in x else x for x in content]
    message = {**messages[questions[-1]], "content": probe}
    changed = [*messages]
    changed[questions[-1]] = message
    text = chat.render(source, {**values, "messages": changed})
    if _PROBE.lower() not in text.lower():
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
    """Token ids of `chat_text`, with its special tokens.

    The text of a special token inside a message becomes that token, as in
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

    `ids` stay as they are: a sampled text has many tokenizations, and log-probs
    belong to the sampled one. Only text that the template writes after the
    reply is tokenized: the end of the turn, if the reply was cut off before it,
    the new messages, and the start of the next reply.

    Args:
      ids: All ids so far, the reply's end token included if it has one.
      messages: The conversation of these ids; the last message is the
        assistant's reply, with its text as content.
      new_messages: The messages that follow: a tool's or the user's.
      **options: Options of `chat_text`, the same as for the turns before.

    Returns:
      `ids`, and the new ids. Parts of replies that a template leaves out (their
      reasoning) stay, because they are among `ids`.

    Raises:
      ValueError: `messages` do not end with a reply; or the template writes
        the turns so far differently if others follow.
    """
    last = messages[-1] if messages else {}
    if not ids or last.get("role") != "assistant":
      raise ValueError(
        f"Tokenizer.extend: received {len(ids)} ids and messages that end with"
        f" the role {last.get('role')!r}; needs the ids so far and"
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


def _turn(message: Message) -> dict[str, Any]:
  """A message as a template reads it, as in transformers."""
  turn = {key: value for key, value in message.items() if value is not None}
  reasoning = [turn[name] for name in _REASONING if name in turn]
  if reasoning:
    turn.setdefault("thinking", reasoning[0])
    turn["reasoning_content"] = reasoning[0]
  return turn


def _as_json(part: Any) -> dict[str, Any]:
  """A part of a tokenizer in the format of tokenizer.json; {} for None."""
  return {} if part is None else json.loads(part.__getstate__())


@contextlib.contextmanager
def _complaining(what: str, advice: str) -> Iterator[None]:
  """Turns errors of the `tokenizers` library into ValueError.

  The library has no class for its errors. If a pattern of a file is too complex
  for the library, it panics, and a panic is not even an Exception.
  """
  try:
    yield
  except BaseException as error:
    is_panic = type(error).__name__ == "PanicException"
    if not (is_panic or isinstance(error, Exception)):
      raise
    raise ValueError(f"{what}: {error}. {advice}") from error


def train(source: Source, vocab_size: int) -> str:
  """Trains a byte-level BPE tokenizer on the texts of a source.

  Any text can be encoded, and is decoded unchanged. Digits are split one by
  one, so that numbers of any length consist of the same ten tokens.

  Args:
    vocab_size: Most tokens; at least 262, for the special tokens and the 256
      bytes.

  Returns:
    The contents of a file for `Tokenizer`; the same for the same arguments.
  """
  tokenizers = _tokenizers()
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
