"""What a policy wrote, token by token: `traces.jsonl.gz`, and how it is read.

    groups = traces.read("/tmp/run")
    worst = [group for group in groups if "worst" in group.chosen]
    print(worst[-1].prompt, worst[-1].rows[0].text, worst[-1].rows[0].reward)

The file has one gzip member for each step that was traced and one line of JSON
for each group. Arrays are base64 of little-endian float32, int32 or packed
bits, so that what is read is bit for bit what was written. A member has no
time in it: equal runs write equal bytes.
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
  """A completion, or one context of it.

  Attributes:
    row: Place in the batch of its step.
    sample: Place in its group.
    context: 0, or which context of a rollout whose contexts are compacted.
    text: As verifiers read it; end and pad tokens are not in it.
    tokens: Text of each token, see `texts_of_tokens`; of a token that ends a
      row, its name.
    ids: Token ids, [n] int32.
    reward: Weighted sum of the components; None if the row is unscored.
    correct: Found right by the verifier; None if the row is unscored.
    terminated: It came to an end; False if it was cut off.
    components: Rewards by name, before weights; None: does not apply.
    error: Of a verifier or a session; "" if there was none.
    calls: What was said to an environment, by turns: "turn", "in" and "out"
      (texts), "reward" of the action, and "blocked": whether an interceptor
      has answered in the place of the environment; None where it is not known,
      as of tools on the host without `config.interceptor`.
    values: Per token [n], by name, each where it is known; an evaluation has
      "observed" alone. NaN where a number is of other tokens: what the policy
      writes has "sampler_logp", "new_logp" and "entropy", what is trained has
      the others. Bool are "clipped", "trained" and "observed"; int32 "turn"
      and "version", the step of the parameters that drew it; float32:
      - "sampler_logp", "old_logp", "new_logp" (nats): by the sampler, before
        the update, and after it, by a pass of the same shapes.
      - "ratio": exp(new_logp − old_logp). Where an update has one gradient
        step it makes no pass before; the sampler's is then in the place of
        old_logp, in "kl" too.
      - "kl": old_logp − log-prob of the reference (nats), whose mean over
        tokens is an estimate of the KL.
      - "entropy" (nats): of the distribution that the token was drawn from.
      - "advantage", "value": of the update, and of the critic before it.
      "clipped": the loss would push the token no further after the update.
    opening: What a context after the first begins with: head, summary and last
      turns; "" of the first, which begins with the prompt.
    cut: Tokens that were left out at the end, because the file is bounded.
      `tokens`, `ids` and `values` are of the others.
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
    step: Over all phases. A row was drawn before the update of this step.
    phase: Name of the phase.
    split: "train" or "eval".
    prompt_id: Occurrence in the stream (train), number of the held-out prompt
      (eval).
    record: Which record of the data it is: the same number each time that the
      prompt comes; -1 where it is not known.
    prompt: As a person reads it.
    chosen: Rules that chose it: "largest spread", "best", "worst", "most
      clipped", "alarm", "random", "named", "regressed".
    rows: Its completions; with contexts that are compacted, several each.
    images: What the prompt shows: of a picture "size", columns and rows of
      pixels; "shape", those in the file; and "pixels", base64 of the bytes of
      red, green and blue, row by row. Or its "name" alone.
    box: Left, top, right and bottom of the right box, in pixels; empty where
      none is asked for.
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
  """The groups that a run has traced, in the order of its steps.

  What a killed process has left half-written at the end is not read.

  Args:
    workdir: Folder of the run, local or gs://.

  Returns:
    Empty if the run has written none.

  Raises:
    FileNotFoundError: There is no such folder.
    ValueError: The file is damaged.
  """
  folder = files.parse(workdir)
  path = folder / FILE
  if not path.exists():
    if not folder.exists():
      raise FileNotFoundError(
        f"traces: {folder} is missing; pass the --workdir of a run."
      )
    return []
  groups = []
  for content in members(path.read_bytes(), path):
    for line in content.splitlines():
      try:
        groups.append(decode(json.loads(line)))
      except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
          f"traces: {path} is damaged: {error!r} in {line[:60]!r}. Put a copy"
          " of it back, or move it away."
        ) from error
  return groups


def members(content: bytes, path: Any) -> Iterator[bytes]:
  """What each whole gzip member of a file holds.

  Raises:
    ValueError: One of them is damaged.
  """
  while content:
    reader = zlib.decompressobj(_GZIP)
    try:
      found = reader.decompress(content)
    except zlib.error as error:
      raise ValueError(
        f"traces: {path} is damaged: {error}. Put a copy of it back, or move it"
        " away."
      ) from error
    if not reader.eof:
      return
    yield found
    content = reader.unused_data


def member(lines: Sequence[bytes]) -> bytes:
  """Lines of a step as one gzip member."""
  content = b"".join(line + b"\n" for line in lines)
  return gzip.compress(content, compresslevel=6, mtime=0)


def encode(group: Group) -> dict[str, Any]:
  """A group as JSON has it; `decode` gives it back bit for bit."""
  fields = {**vars(group), "rows": [_encode_row(row) for row in group.rows]}
  return {k: x for k, x in fields.items() if x or k not in _IF_SHOWN}


def line(group: Group) -> bytes:
  """A group as one line of JSON, without its end."""
  return json.dumps(encode(group), sort_keys=True, allow_nan=False).encode()


def decode(value: Mapping[str, Any]) -> Group:
  """The group that `encode` has written."""
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
  fields["ids"] = _unpacked(fields["ids"], size)
  fields["values"] = {
    name: _unpacked(x, size) for name, x in fields["values"].items()
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


def _unpacked(text: str, size: int) -> np.ndarray:
  data = base64.b64decode(text[1:], validate=True)
  dtype = _KINDS[text[0]]
  if dtype.kind == "b":
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(bits) != size + -size % 8:
      raise ValueError(f"{len(bits)} bits for {size} tokens")
    return bits[:size].astype(bool)
  found = np.frombuffer(data, dtype)
  if len(found) != size:
    raise ValueError(f"{len(found)} numbers for {size} tokens")
  return found.astype(dtype.newbyteorder("="))


def number(value: Any) -> float | None:
  """A number as JSON has it; None where it is not finite."""
  value = float(value)
  return value if math.isfinite(value) else None


def texts_of_tokens(pieces: Sequence[bytes]) -> tuple[str, ...]:
  """The text of each token, from the bytes that each one writes.

  A character may be made of the bytes of several tokens. It is the text of the
  token that completes it, and the ones before have the empty text. Bytes that
  come to no character are U+FFFD at the token that shows it, and at the end of
  the row at its last token. Joined, the texts are all bytes decoded at once.
  """
  decoder = codecs.getincrementaldecoder("utf-8")("replace")
  last = len(pieces) - 1
  return tuple(
    decoder.decode(piece, final=at == last) for at, piece in enumerate(pieces)
  )
