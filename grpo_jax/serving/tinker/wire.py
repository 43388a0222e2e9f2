"""The binary messages of Tinker's API: rows to train on, and results.

The SDK sends rows as protobuf, and reads results of passes and samples as
protobuf alone. The messages are those of `tinker_public.proto` (tinker 0.38.0),
without the fields that nothing here reads. A map is written as its entries, and
a message that is refused has no fields, which are the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from grpo_jax.serving.requests import BadRequest

CONTENT_TYPE = "application/x-protobuf"
# Message: field type number, …; a type with * is repeated.
_MESSAGES = """
Refused:
Text: tokens bytes 1
Chunk: encoded_text Text 1
Tensor: dense bytes 1, sparse_csr Refused 2, dtype int32 3, shape int64* 4
Input: key string 1, value Tensor 2
Datum: model_input Chunk* 1, loss_fn_inputs Input* 2
Value: number double 1, text string 2
Setting: key string 1, value Value 2
Pass: model_id string 1, seq_id int32 2, data Datum* 3, loss_fn string 4, \
forward_only bool 6, settings Setting* 7
Batched: data bytes 1, offsets bytes 2, dtype int32 3
Field: key string 1, value Batched 2
Record: fields Field* 2, num_datums int64 3
Metric: key string 1, value double 2
Passed: loss_fn_output_type string 1, loss_fn_outputs Record* 2, \
metrics Metric* 3
Sequence: stop_reason int32 1, tokens bytes 2, logprobs bytes 3
Sampled: sequences Sequence* 1, prompt_logprobs bytes 2
"""
_FLOAT32, _INT64 = 1, 2
_DTYPES = {_FLOAT32: np.dtype("<f4"), _INT64: np.dtype("<i8")}
_LENGTH = 1  # The reason of a completion that was cut off; 0: it has ended.


@functools.cache
def _classes() -> dict[str, Any]:
  """Makes the classes of the messages, in a pool of their own."""
  package = "grpo_jax_tinker"
  file = descriptor_pb2.FileDescriptorProto(
    name="tinker.proto", package=package, syntax="proto3"
  )
  kinds = descriptor_pb2.FieldDescriptorProto
  lines = [line.split(":") for line in _MESSAGES.strip().splitlines()]
  names = [name for name, _ in lines]
  for name, fields in lines:
    message = file.message_type.add(name=name)
    for field in fields.split(",") if fields else ():
      own, kind, number = field.split()
      scalar = kind.removesuffix("*")
      added = message.field.add(name=own, number=int(number))
      added.label = (
        kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
      )
      if scalar in names:
        added.type = kinds.TYPE_MESSAGE
        added.type_name = f".{package}.{scalar}"
      else:
        added.type = kinds.Type.Value(f"TYPE_{scalar.upper()}")
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return {
    name: message_factory.GetMessageClass(
      pool.FindMessageTypeByName(f"{package}.{name}")
    )
    for name in names
  }


class Row(NamedTuple):
  """A sequence to train on.

  Attributes:
    ids: Tokens that the model reads.
    inputs: Inputs of the loss by name, one number for each token.
  """

  ids: np.ndarray  # [N] int32
  inputs: Mapping[str, np.ndarray]  # each [N]


class Pass(NamedTuple):
  """A request for a forward pass, with or without gradients.

  Attributes:
    model_id, seq_id: The client's adapters, and the number of the request.
    rows: Rows.
    loss: Name of the loss.
    settings: Settings of the loss.
    is_forward: True without gradients.
  """

  model_id: str
  seq_id: int
  rows: Sequence[Row]
  loss: str
  settings: Mapping[str, float | str]
  is_forward: bool


def read_pass(body: bytes) -> tuple[Pass, BadRequest | None]:
  """Reads a request for a pass.

  Returns:
    The request. If its rows are at fault, it has none, and the error says why:
    its number is still that of a request.

  Raises:
    BadRequest: The body is no such message.
  """
  message = _classes()["Pass"]()
  try:
    message.ParseFromString(body)
  except (DecodeError, ValueError) as error:
    raise BadRequest(
      f"the body is no ForwardBackwardRequest of protobuf: {error}"
    ) from None
  pass_ = Pass(
    message.model_id,
    message.seq_id,
    (),
    message.loss_fn,
    {x.key: x.value.text or x.value.number for x in message.settings},
    message.forward_only,
  )
  try:
    rows = [_row(datum, f"data[{i}]") for i, datum in enumerate(message.data)]
  except BadRequest as error:
    return pass_, error
  if not rows:
    return pass_, BadRequest("data is empty; send at least one row.", "data")
  return pass_._replace(rows=rows), None


def _row(datum: Any, where: str) -> Row:
  parts = []
  for chunk in datum.model_input:
    if not chunk.HasField("encoded_text"):
      raise BadRequest(
        f"{where}.model_input has a chunk that is not text; images and sound"
        " are not read here.",
        "data",
      )
    parts.append(_array(chunk.encoded_text.tokens, "<i4", where))
  ids = np.concatenate(parts) if parts else np.zeros(0, np.int32)
  if not ids.size:
    raise BadRequest(f"{where}.model_input has no token.", "data")
  inputs = {}
  for entry in datum.loss_fn_inputs:
    name = f"{where}.loss_fn_inputs[{entry.key!r:.40}]"
    tensor = entry.value
    if tensor.dtype not in _DTYPES:
      raise BadRequest(f"{name} is neither float32 nor int64.", "data")
    if tensor.HasField("sparse_csr"):
      raise BadRequest(
        f"{name} is sparse; one target for each token is supported, as a dense"
        " tensor of shape [N].",
        "data",
      )
    x = _array(tensor.dense, _DTYPES[tensor.dtype], name)
    if x.shape != ids.shape or list(tensor.shape) not in ([], [len(ids)]):
      raise BadRequest(
        f"{name} has shape {list(tensor.shape) or [len(x)]}, with"
        f" {len(x)} numbers, and model_input has {len(ids)} tokens; send one"
        " number for each token.",
        "data",
      )
    if not np.isfinite(x).all():
      raise BadRequest(f"{name} has numbers that are not finite.", "data")
    inputs[entry.key] = x
  return Row(ids, inputs)


def _array(raw: bytes, dtype: Any, where: str) -> np.ndarray:
  size = np.dtype(dtype).itemsize
  if len(raw) % size:
    raise BadRequest(
      f"{where} has {len(raw)} bytes, which are no numbers of {size} bytes.",
      "data",
    )
  return np.frombuffer(raw, dtype)


def of_pass(logps: Sequence[np.ndarray], metrics: Mapping[str, float]) -> bytes:
  """Writes the result of a pass.

  Args:
    logps: Log-probs of the targets of each row, [N] float32, nats.
    metrics: Numbers by name and reduction, as "loss:sum".
  """
  of = _classes()
  sizes = [4 * len(x) for x in logps]
  data = b"".join(x.astype("<f4").tobytes() for x in logps)
  offsets = np.cumsum([0, *sizes]).astype("<i8").tobytes()
  batched = of["Batched"](data=data, offsets=offsets, dtype=_FLOAT32)
  field = of["Field"](key="logprobs", value=batched)
  record = of["Record"](fields=[field], num_datums=len(logps))
  return of["Passed"](
    loss_fn_output_type="ArrayRecord",
    loss_fn_outputs=[record],
    metrics=[of["Metric"](key=k, value=x) for k, x in metrics.items()],
  ).SerializeToString()


class SentTokens(NamedTuple):
  """A completion as it is sent.

  Attributes:
    ids: Tokens.
    logp: Log-probs of the tokens, nats.
    ended: False if the completion was cut off.
  """

  ids: Sequence[int]
  logp: np.ndarray  # [n] float32
  ended: bool


def of_samples(
  sequences: Sequence[SentTokens],
  prompt_logp: np.ndarray | None,  # [N] float32
) -> bytes:
  """Writes the result of a request for samples.

  Args:
    sequences: Completions.
    prompt_logp: Log-probs of the prompt's tokens, nats; NaN where there is
      none, as for the first token. None if nobody asked.
  """
  of = _classes()
  return of["Sampled"](
    sequences=[
      of["Sequence"](
        stop_reason=0 if x.ended else _LENGTH,
        tokens=np.asarray(x.ids, "<i4").tobytes(),
        logprobs=np.asarray(x.logp, "<f4").tobytes(),
      )
      for x in sequences
    ],
    prompt_logprobs=(
      b"" if prompt_logp is None else prompt_logp.astype("<f4").tobytes()
    ),
  ).SerializeToString()
