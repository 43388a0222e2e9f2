"""Completions of a policy, token by token: `traces.jsonl.gz` and its reader.

    groups = traces.read("/tmp/run")
    worst = [group for group in groups if "worst" in group.chosen]
    print(worst[-1].prompt, worst[-1].rows[0].text, worst[-1].rows[0].reward)

The file has one gzip member for each step that was traced and one line of JSON
for each group. Arrays are base64 of little-endian float32, int32 or packed
bits, so that they are read back bit for bit. A member holds no time, so equal
runs write equal bytes.
"""

from __future__ import annotations

import base64
import codecs
import dataclasses
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.training.runtime import files

FILE = "traces.jsonl.gz"
# Name of a kind in the file -> dtype of its bytes.
_KINDS = {"f": np.dtype("<f4"), "i": np.dtype("<i4"), "b": np.dtype(bool)}
_GZIP = 16 + zlib.MAX_WBITS
# Fields of a group that a prompt of tokens does not have.
_IF_SHOWN = ("images", "box")


@dataclasses.dataclass(frozen=True)
class TraceRow:
  """A completion, or one context of it if contexts are compacted.

  Attributes:
    row: Place in the batch of its step.
    sample: Place in its group.
    context: Number of the context, from 0.
    text: Text that verifiers read, without end and pad tokens.
    tokens: Text of each token, see `texts_of_tokens`; the name of an end token.
    ids: Token ids, [n] int32.
    reward: Weighted sum of the components; None if the row is unscored.
    correct: True if the verifier found it right; None if the row is unscored.
    terminated: True if it came to an end; False if it was cut off.
    components: Rewards by name, before weights; None if one does not apply.
    error: Error message of a verifier or a session; "" if there was none.
    calls: Calls of an environment, by turns: "turn", "in" and "out" (texts),
      "reward" of the action, and "blocked": True if an interceptor answered in
      place of the environment. That is None if it is not known, for example
      for tools on the host without `config.interceptor`.
    values: Numbers per token [n], by name. A name is absent if its numbers are
      not known; an evaluation has "observed" alone. Tokens that the policy
      wrote have "sampler_logp", "new_logp" and "entropy"; trained tokens have
      the other floats too. On all other tokens a float is NaN.
      "clipped", "trained" and "observed" are bool; "turn" and "version", the
      step of the parameters that drew the token, are int32; the others are
      float32:
      - "sampler_logp", "old_logp", "new_logp" (nats): log-probs by the sampler,
        before the update, and after it by a pass of the same shapes.
      - "ratio": exp(new_logp − old_logp). An update with one gradient step
        makes no pass before it; the sampler's log-prob then replaces old_logp,
        in "kl" too.
      - "kl": old_logp − log-prob of the reference (nats), whose mean over
        tokens is an estimate of the KL.
      - "entropy" (nats): entropy of the distribution of the token.
      - "advantage", "value": those of the update, and of the critic before it.
      - "clipped": the loss would push the token no further after the update.
    opening: Text that a later context begins with: head, summary and last
      turns. "" for the first context, which begins with the prompt.
    cut: Number of tokens at the end that `tokens`, `ids` and `values` leave
      out, because the size of the file is bounded.
  """

  row: int
  sample: int
  context: int
  text: str
  tokens: tuple[str, ...]
  ids: np.ndarray
  reward: float | None
  correct: bool | None
  terminated: bool
  components: dict[str, float | None]
  error: str = ""
  calls: tuple[dict[str, Any], ...] = ()
  values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  opening: str = ""
  cut: int = 0


@dataclasses.dataclass(frozen=True)
class Group:
  """A prompt of one step with all of its completions.

  Attributes:
    step: Step over all phases. The rows were drawn before its update.
    phase: Name of the phase.
    split: "train" or "eval".
    prompt_id: Occurrence in the stream (train), number of the held-out prompt
      (eval).
    record: Number of the record in the data, the same each time that the prompt
      comes; -1 if it is not known.
    prompt: Text of the prompt for a person.
    chosen: Rules that chose it: "largest spread", "best", "worst", "most
      clipped", "alarm", "random", "named", "regressed".
    rows: Its completions; several rows for each if contexts are compacted.
    images: Images of the prompt. For each: "size", (columns, rows) of pixels;
      "shape", the same in the file; and "pixels", its RGB bytes row by row in
      base64. Or "name" alone.
    box: The correct bounding box, (left, top, right, bottom) in pixels; empty
      if none is asked for.
  """

  step: int
  phase: str
  split: str
  prompt_id: int
  record: int
  prompt: str
  chosen: tuple[str, ...]
  rows: tuple[TraceRow, ...]
  images: tuple[dict[str, Any], ...] = ()
  box: tuple[int, ...] = ()


def read(workdir: str | os.PathLike) -> list[Group]:
  """Reads the groups that a run has traced, by steps; empty if there are none.

  A half-written end, which a killed process leaves, is ignored.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    FileNotFoundError: There is no such folder.
    ValueError: The file is damaged.
  """
  folder = files.parse(workdir)
  path = folder / FILE
  if not path.exists():
    if not folder.exists():
      raise FileNotFoundError(
        f"{folder} is missing; pass the --workdir of a run."
      )
    return []
  groups = []
  for content in members(path.read_bytes(), path):
    for line in content.splitlines():
      try:
        groups.append(decode(json.loads(line)))
      except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
          f"{path} is damaged: {error!r} in {line[:60]!r}. Put a copy of it"
          " back, or move it away."
        ) from error
  return groups


def members(content: bytes, path: Any) -> Iterator[bytes]:
  """Yields the content of each whole gzip member of a file.

  Raises:
    ValueError: One of them is damaged.
  """
  while content:
    reader = zlib.decompressobj(_GZIP)
    try:
      block = reader.decompress(content)
    except zlib.error as error:
      raise ValueError(
        f"{path} is damaged: {error}. Put a copy of it back, or move it away."
      ) from error
    if not reader.eof:
      return
    yield block
    content = reader.unused_data


def member(lines: Sequence[bytes]) -> bytes:
  """Compresses the lines of a step as one gzip member."""
  content = b"".join(line + b"\n" for line in lines)
  return gzip.compress(content, compresslevel=6, mtime=0)


def encode(group: Group) -> dict[str, Any]:
  """A group in a form for JSON; `decode` restores it bit for bit."""
  fields = {**vars(group), "rows": [_encode_row(row) for row in group.rows]}
  return {k: x for k, x in fields.items() if x or k not in _IF_SHOWN}


def line(group: Group) -> bytes:
  """A group as one line of JSON, without the newline."""
  return json.dumps(encode(group), sort_keys=True, allow_nan=False).encode()


def decode(value: Mapping[str, Any]) -> Group:
  """The group from a value of `encode`."""
  fields = dict(value)
  fields["chosen"] = tuple(fields["chosen"])
  fields["rows"] = tuple(_decode_row(row) for row in fields["rows"])
  for name in _IF_SHOWN:
    fields[name] = tuple(fields.get(name, ()))
  return Group(**fields)


def _encode_row(row: TraceRow) -> dict[str, Any]:
  return {
    **vars(row),
    "ids": _packed(row.ids),
    "values": {name: _packed(x) for name, x in row.values.items()},
  }


def _decode_row(value: Mapping[str, Any]) -> TraceRow:
  fields = dict(value)
  fields["tokens"] = tuple(fields["tokens"])
  size = len(fields["tokens"])
  fields["ids"] = _unpack(fields["ids"], size)
  fields["values"] = {
    name: _unpack(x, size) for name, x in fields["values"].items()
  }
  fields["calls"] = tuple(fields["calls"])
  return TraceRow(**fields)


def _packed(x: np.ndarray) -> str:
  """Kind of an array [n], and its bytes as base64."""
  (kind,) = (k for k, dtype in _KINDS.items() if dtype.kind == x.dtype.kind)
  if kind == "b":
    data = np.packbits(x, bitorder="little").tobytes()
  else:
    assert x.dtype.itemsize == _KINDS[kind].itemsize, x.dtype
    data = x.astype(_KINDS[kind]).tobytes()
  return kind + base64.b64encode(data).decode()


def _unpack(text: str, size: int) -> np.ndarray:
  data = base64.b64decode(text[1:], validate=True)
  dtype = _KINDS[text[0]]
  if dtype.kind == "b":
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(bits) != size + -size % 8:
      raise ValueError(f"{len(bits)} bits for {size} tokens")
    return bits[:size].astype(bool)
  numbers = np.frombuffer(data, dtype)
  if len(numbers) != size:
    raise ValueError(f"{len(numbers)} numbers for {size} tokens")
  return numbers.astype(dtype.newbyteorder("="))


def number(value: Any) -> float | None:
  """A number for JSON; None if it is not finite."""
  value = float(value)
  return value if math.isfinite(value) else None


def texts_of_tokens(pieces: Sequence[bytes]) -> tuple[str, ...]:
  """The text of each token, from the bytes of each.

  A character may consist of the bytes of several tokens. It is the text of the
  token that completes it, and the tokens before have the empty text. Bytes that
  form no character are U+FFFD at the token that reveals this, and at the end of
  the row at its last token. Concatenated, the texts are all bytes decoded at
  once.
  """
  decoder = codecs.getincrementaldecoder("utf-8")("replace")
  last = len(pieces) - 1
  return tuple(
    decoder.decode(piece, final=at == last) for at, piece in enumerate(pieces)
  )
