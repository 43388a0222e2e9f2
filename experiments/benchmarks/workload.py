"""The work of `step.py`, and its least cost; NumPy only.

A product of matrices has two FLOPs per multiplication. With N weights in the
products of all layers (qkv, out, gate, up and down), a vocabulary V, width D, H
query heads of width K:

    forward = 2 · N · tokens + 4 · layers · H · K · pairs
              + 2 · D · V · predictions

where `tokens` are read, `pairs` are scores of a query and a key, and
`predictions` go through the head. Norms, rotations, softmaxes and the optimizer
are left out. A forward pass counts once in the rollout and in log-probs alone,
and three times in the update, whose backward pass has two products for each of
the forward's. P prompts of S tokens, B = P · G rows of T slots, in which n
tokens exist (n varies from row to row):

|                   | tokens        | pairs                  | predictions |
|-------------------|---------------|------------------------|-------------|
| prefill, full     | P S           | P S²                   | 0           |
| decode, full      | B (T−1)       | B (T−1) (S+T)          | B T         |
| log-probs, full   | B (S+T−1)     | B (S+T−1)²             | B T         |
| log-probs, shared | P S + B (T−1) | P S² + B (T−1) (S+T−1) | B T         |
| prefill, least    | P S           | P S (S+1) / 2          | 0           |
| decode, least     | Σ (n−1)       | Σ (n−1) (S + n/2)      | Σ n         |
| log-probs, least  | the two above | the two above          | Σ n         |

The other parts of "shared" are those of "full". The last token of a completion
is never read. "full" is every slot of every row, with the masked half of the
scores, as trainers usually compute it; "rows" is the same without padding, as
if each row had slots for its n tokens; "shared" runs the prompt once per group
in the update too; "least" is the tokens that exist and the pairs that are not
masked, without padding.

Bytes: prefill reads the weights and writes the keys and values of the prompt
(full: of every row). Every step of decoding reads the weights once, and the
keys and values of the slots filled so far (shared and least: a prompt's once
for its group; least: of rows that have not ended). Log-probs read the weights
once. The update reads them twice, and reads and writes float32 gradients,
parameters and two moments once. Activations are left out: they may stay in a
cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

DISTRIBUTIONS = ("fixed", "geometric", "lognormal")
KINDS = ("full", "rows", "shared", "least")
# "rollout" is the first two; "log-probs" are no part of the step.
PHASES = (
  "prefill",
  "decode",
  "rollout",
  "verifier",
  "log-probs",
  "update",
  "step",
)

PRESETS: dict[str, dict[str, Any]] = {
  "T": {
    "hidden": 128,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "mlp_width": 384,
    "prompt_len": 16,
    "completion_len": 64,
    "prompts": 8,
    "group": 8,
  },
  "S": {
    "hidden": 256,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "prompt_len": 64,
    "completion_len": 128,
    "prompts": 8,
    "group": 8,
  },
  "L": {
    "hidden": 512,
    "layers": 8,
    "heads": 8,
    "kv_heads": 4,
    "prompt_len": 64,
    "completion_len": 256,
    "prompts": 4,
    "group": 8,
  },
  "SmolLM2": {
    "hidden": 576,
    "layers": 30,
    "heads": 9,
    "kv_heads": 3,
    "mlp_width": 1536,
    "vocab": 49_152,
    "prompt_len": 64,
    "completion_len": 32,
    "prompts": 8,
    "group": 8,
  },
  # Width and depth are those of Qwen2.5.
  "0.5B": {
    "hidden": 896,
    "layers": 24,
    "heads": 14,
    "kv_heads": 2,
    "mlp_width": 4864,
    "vocab": 151_936,
    "prompt_len": 512,
    "completion_len": 1024,
    "prompts": 8,
    "group": 8,
  },
  "7B": {
    "hidden": 3584,
    "layers": 28,
    "heads": 28,
    "kv_heads": 4,
    "mlp_width": 18_944,
    "vocab": 152_064,
    "prompt_len": 512,
    "completion_len": 1024,
    "prompts": 8,
    "group": 8,
  },
}

_FLOAT32_BYTES = 4


class Cost(NamedTuple):
  """FLOPs of matrix products, and bytes to and from memory."""

  flops: float
  bytes: float

  def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
    """Seconds at full speed, with the smaller part hidden behind the larger."""
    return max(self.flops / flops_per_s, self.bytes / bytes_per_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
  """Sizes of one step, the same for any trainer.

  Attributes:
    hidden: Width D.
    layers: Number of layers of attention and SwiGLU, with biases on queries,
      keys and values.
    heads, kv_heads: Numbers of heads of queries, and of keys and values.
    mlp_width: Width inside the SwiGLU; None for 4 · hidden.
    vocab: Number of token ids; the head is the transposed embedding table.
    prompt_len: Tokens of every prompt; none is padded.
    completion_len: Slots T of every completion.
    prompts, group: P and G.
    dtype: Type of activations and products. Parameters are float32.
    length_distribution: Distribution of completion lengths; "fixed": all slots.
    length_mean: Mean of the other distributions, tokens, before lengths are cut
      to the slots.
  """

  hidden: int
  layers: int
  heads: int
  kv_heads: int
  prompt_len: int
  completion_len: int
  prompts: int
  group: int
  mlp_width: int | None = None
  vocab: int = 1024
  dtype: str = "float32"
  length_distribution: str = "fixed"
  length_mean: float = 36.0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not isinstance(value, (str, type(None))) and value < 1:
        raise ValueError(f"--{field.name}={value}: needs a number from 1 on.")
    if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
      raise ValueError(
        f"--hidden={self.hidden} --heads={self.heads}"
        f" --kv_heads={self.kv_heads} do not fit; needed: hidden = heads × (an"
        " even number), heads = kv_heads × (a whole number)."
      )
    if self.completion_len < 2:
      raise ValueError(
        f"--completion_len={self.completion_len}: needs at least 2 slots;"
        " the first token is not decoded but comes from the prompt."
      )
    if self.vocab < 2:
      raise ValueError(
        f"--vocab={self.vocab}: needs at least 2 ids, for padding and a token."
      )

  @property
  def model(self) -> dict[str, Any]:
    """Fields of a transformer's config."""
    return {
      "width": self.hidden,
      "num_layers": self.layers,
      "num_heads": self.heads,
      "num_kv_heads": self.kv_heads,
      "mlp_width": self.inner,
      "qkv_bias": True,
      "dtype": self.dtype,
    }

  @property
  def rows(self) -> int:
    """Number B of completions."""
    return self.prompts * self.group

  @property
  def inner(self) -> int:
    """Width of the SwiGLU."""
    return self.mlp_width or 4 * self.hidden

  @property
  def kv_width(self) -> int:
    """Channels of the keys of a token."""
    return self.hidden // self.heads * self.kv_heads

  @property
  def layer_weights(self) -> int:
    """Number N of weights in the layers."""
    attention = 2 * self.hidden * (self.hidden + self.kv_width)
    return self.layers * (attention + 3 * self.hidden * self.inner)

  @property
  def head_weights(self) -> int:
    """Number D · V of weights in the head."""
    return self.hidden * self.vocab

  @property
  def item_bytes(self) -> int:
    """Bytes of an activation."""
    return {"float32": 4, "bfloat16": 2}[self.dtype]

  @property
  def slot_bytes(self) -> int:
    """Keys and values of one token in all layers."""
    return 2 * self.layers * self.kv_width * self.item_bytes


def of_preset(preset: str, **sizes: Any) -> Work:
  """The sizes of a preset, some of them replaced."""
  return Work(**PRESETS[preset] | sizes)


def lengths(work: Work) -> np.ndarray:  # [B]
  """Tokens of each row, b = p · G + g, from 1 to T.

  "lognormal" has σ = 1. The seed is 0: the same rows in any trainer.
  """
  rng = np.random.default_rng(0)
  if work.length_distribution == "fixed":
    drawn = np.full(work.rows, work.completion_len)
  elif work.length_distribution == "geometric":
    drawn = rng.geometric(1 / work.length_mean, work.rows)
  else:
    drawn = rng.lognormal(np.log(work.length_mean) - 0.5, 1.0, work.rows)
  return np.clip(np.rint(drawn), 1, work.completion_len).astype(int)


def forward_flops(
  work: Work, tokens: float, pairs: float, predictions: float
) -> float:
  """Floating-point operations of one pass, by the formula above."""
  return (
    2 * work.layer_weights * tokens
    + 4 * work.layers * work.hidden * pairs
    + 2 * work.head_weights * predictions
  )


def costs(work: Work, kind: str) -> dict[str, Cost]:
  """Cost of each of `PHASES`, counted as one of `KINDS`."""
  num_prompts, group, rows = work.prompts, work.group, work.rows
  prompt, slots = work.prompt_len, work.completion_len
  weights = work.layer_weights + work.head_weights
  weight_bytes, slot_bytes = weights * work.item_bytes, work.slot_bytes

  padded = kind in ("full", "shared")
  n = np.full(rows, slots) if padded else lengths(work)  # [B]
  steps, read, predictions = n.max() - 1, (n - 1).sum(), n.sum()
  prompt_tokens = num_prompts * prompt
  own_pairs = (n * (n - 1) / 2).sum()
  if kind == "least":
    prompt_pairs = num_prompts * prompt * (prompt + 1) / 2
    read_pairs = pairs = read * prompt + own_pairs
  else:
    prompt_pairs = num_prompts * prompt**2
    read_pairs = ((n - 1) * (prompt + n)).sum()
    pairs = ((n - 1) * (prompt + n - 1)).sum()

  # In the update, and while decoding: each row has its prompt, or a group.
  each_row = kind in ("full", "rows")
  if each_row:
    all_tokens = (prompt + n - 1).sum()
    all_pairs = ((prompt + n - 1) ** 2).sum()
    prompt_reads = read * prompt
  else:
    longest = n.reshape(num_prompts, group).max(axis=1)  # [P]
    all_tokens, all_pairs = prompt_tokens + read, prompt_pairs + pairs
    prompt_reads = (longest - 1).sum() * prompt
  forward = forward_flops(work, all_tokens, all_pairs, predictions)
  kept_prompts = rows if each_row else num_prompts
  parts = {
    "prefill": Cost(
      forward_flops(work, prompt_tokens, prompt_pairs, 0),
      work.layer_weights * work.item_bytes + kept_prompts * prompt * slot_bytes,
    ),
    "decode": Cost(
      forward_flops(work, read, read_pairs, predictions),
      steps * weight_bytes + (prompt_reads + own_pairs) * slot_bytes,
    ),
    # An int32 and a bool of each token.
    "verifier": Cost(0, 5 * predictions),
    "log-probs": Cost(forward, weight_bytes),
    "update": Cost(
      3 * forward, 2 * weight_bytes + 8 * weights * _FLOAT32_BYTES
    ),
  }

  def together(*names: str) -> Cost:
    return Cost(*map(sum, zip(*(parts[name] for name in names), strict=True)))

  return {
    **parts,
    "rollout": together("prefill", "decode"),
    "step": together("prefill", "decode", "verifier", "update"),
  }


def critic_flops(work: Work, is_shared: bool, num_updates: int) -> float:
  """Operations of a critic in one step, prompts once per group.

  Args:
    work: Sizes.
    is_shared: Whether its trunk is the policy's, and has no backward pass.
    num_updates: K, gradient steps for the one of the policy.
  """
  read = work.rows * (work.completion_len - 1)
  pairs = read * (work.prompt_len + work.completion_len - 1)
  forward = forward_flops(
    work,
    work.prompts * work.prompt_len + read,
    work.prompts * work.prompt_len**2 + pairs,
    0,
  )
  return forward * (1 + (1 if is_shared else 3) * num_updates)


def decode_step(work: Work, filled: float) -> Cost:
  """Cost of a decode step of all rows, each with `filled` completion slots."""
  slots = work.rows * (work.prompt_len + filled)
  weights = work.layer_weights + work.head_weights
  return Cost(
    forward_flops(work, work.rows, slots, work.rows),
    weights * work.item_bytes + slots * work.slot_bytes,
  )


def even_share(
  prompts: Sequence[str],
  completions: Sequence[str],
  ids: Sequence[int],
  extras: Sequence[dict],
) -> list[float]:
  """Verifier on the host: the share of even ids among the written ones."""
  del prompts, ids, extras
  rows = [np.array(text.split(), int) for text in completions]
  return [float((row % 2 == 0).mean()) if row.size else 0.0 for row in rows]
