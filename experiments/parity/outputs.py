"""Outputs of a checkpoint here, to compare with those of another program."""

from __future__ import annotations

import dataclasses
import functools
import operator
import pathlib
import zipfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models import architecture, transformer
from grpo_jax.rollout import sampling
from grpo_jax.types import Images, Prompts, PyTree

_ARRAYS = ("input_ids", "attention_mask", "logits")
_SHOWN = tuple(field.name for field in dataclasses.fields(Images))


class Reference(NamedTuple):
  """Outputs of another program; `images` are the images of the rows."""

  input_ids: np.ndarray  # [B, L] int64, 0 on padding
  attention_mask: np.ndarray  # [B, L] bool
  logits: np.ndarray  # [B, L, V] float
  images: Images | None = None  # each [B, ...]


class Comparison(NamedTuple):
  """Differences over the positions that exist.

  Attributes:
    largest: Largest absolute difference; inf if a logit is not finite.
    mean: Mean absolute difference.
    row, position, entry: Indices of the largest difference in the arrays.
    here, there: The two logits of the largest difference.
    num_positions: Number of positions compared.
    num_agreeing: Number of positions at which both prefer the same token.
  """

  largest: float
  mean: float
  row: int
  position: int
  entry: int
  here: float
  there: float
  num_positions: int
  num_agreeing: int


@functools.partial(jax.jit, static_argnums=0)
def logits(
  config: architecture.TransformerConfig,
  params: PyTree,
  input_ids: jax.Array,  # [B, L]
  attention_mask: jax.Array,  # [B, L] bool
) -> jax.Array:  # [B, L, V]
  """Logits after every slot; those of padding mean nothing."""
  policy = transformer.transformer_policy(config)
  # The first slot is the prompt. The state of slot i is asked for as what
  # predicts completion token i, and the last predicts one that is not there.
  ids = jnp.pad(input_ids, ((0, 0), (0, 1)))
  mask = jnp.pad(attention_mask, ((0, 0), (0, 1)))
  h, _ = policy.hidden(
    params,
    ids[:, :1],
    mask[:, :1],
    ids[:, 1:],
    mask[:, 1:],
    jnp.arange(len(ids)),
    None,
  )
  return policy.head(params, h)


def _cross_entropy(
  logits: jax.Array,  # [B, L, V]
  tokens: jax.Array,  # [B, L]
) -> jax.Array:  # [B, L]
  """Nats of each token."""
  logp = jax.nn.log_softmax(logits)
  return -jnp.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnums=0)
def gradient(
  config: architecture.TransformerConfig,
  params: PyTree,
  input_ids: jax.Array,  # [B, L], left-padded
  attention_mask: jax.Array,  # [B, L] bool
) -> PyTree:
  """Gradient of the cross-entropy with respect to what is trained.

  The cross-entropy, nats, is added up over all tokens but the first of a row.
  """

  def loss(trained: PyTree) -> jax.Array:
    both = {**params, "trained": trained}
    here = logits(config, both, input_ids, attention_mask)[:, :-1]
    nats = _cross_entropy(here, input_ids[:, 1:])
    return jnp.where(attention_mask[:, :-1], nats, 0.0).sum()

  return jax.grad(loss)(params["trained"])


@functools.partial(jax.jit, static_argnums=0)
def logits_of_completions(
  config: architecture.TransformerConfig,
  params: PyTree,
  prompt_tokens: jax.Array,  # [B, S], left-padded
  prompt_mask: jax.Array,  # [B, S] bool
  tokens: jax.Array,  # [B, T]
  images: Images,  # each [B, ...]
) -> jax.Array:  # [B, T, V]
  """Logits of completions of prompts with images, as an update has them."""
  policy = transformer.transformer_policy(config)
  extras = {"images": images}
  h, _ = policy.hidden(
    params,
    *(prompt_tokens, prompt_mask, tokens, jnp.ones(tokens.shape, bool)),
    jnp.arange(len(tokens)),
    extras,
    policy.prefix(params, prompt_tokens, prompt_mask, extras),
  )
  return policy.head(params, h)


@functools.partial(jax.jit, static_argnums=0)
def gradient_of_completions(
  config: architecture.TransformerConfig,
  params: PyTree,
  prompt_tokens: jax.Array,  # [B, S], left-padded
  prompt_mask: jax.Array,  # [B, S] bool
  tokens: jax.Array,  # [B, T]
  images: Images,  # each [B, ...]
) -> PyTree:
  """Gradient of the cross-entropy, nats, added up over all completions."""

  def loss(trained: PyTree) -> jax.Array:
    here = logits_of_completions(
      config,
      {**params, "trained": trained},
      *(prompt_tokens, prompt_mask, tokens, images),
    )
    return _cross_entropy(here, tokens).sum()

  return jax.grad(loss)(params["trained"])


@functools.partial(jax.jit, static_argnums=0)
def logits_of_shown(
  config: architecture.TransformerConfig,
  params: PyTree,
  input_ids: jax.Array,  # [1, L]
  attention_mask: jax.Array,  # [1, L] bool
  images: Images,  # each [1, ...]
) -> jax.Array:  # [1, L, V]
  """Returns `logits` of a row with images, which only prompts have.

  Each slot is the end of a prompt, so L prompts are run.
  """
  policy = transformer.transformer_policy(config)
  length = input_ids.shape[1]
  # Slot i is moved to the end of row i.
  source = jnp.arange(length) - jnp.arange(length)[::-1, None]  # [L, L]
  prompts = jnp.where(source >= 0, input_ids[0][source], 0)
  mask = (source >= 0) & attention_mask[0][source]
  images = jax.tree.map(lambda x: jnp.repeat(x, length, axis=0), images)
  h, _, _ = policy.prefill(params, prompts, mask, images)
  return policy.head(params, h)[None]


@functools.partial(jax.jit, static_argnums=0)
def step_by_step(
  config: architecture.TransformerConfig,
  params: PyTree,
  prompt_tokens: jax.Array,  # [B, S], left-padded
  prompt_mask: jax.Array,  # [B, S] bool
  tokens: jax.Array,  # [B, T]
  images: Images | None = None,  # each [B, ...]
) -> jax.Array:  # [B, 1 + T, V]
  """Logits after the last prompt token and after each of the tokens given."""
  policy = transformer.transformer_policy(config)
  num_rows, num_slots = tokens.shape
  shown = () if images is None else (images,)
  h, prefix, _ = policy.prefill(params, prompt_tokens, prompt_mask, *shown)

  def step(cache, t):
    h, cache, _ = policy.decode(
      weights, tokens[:, t], jnp.full(num_rows, t), t, prefix, cache
    )
    return cache, h

  weights = policy.weights(params)
  cache = policy.allocate(num_rows, num_slots, prefix)

  _, later = jax.lax.scan(step, cache, jnp.arange(num_slots))  # [T, B, D]
  h = jnp.concatenate([h[:, None], jnp.moveaxis(later, 0, 1)], axis=1)
  return policy.head(params, h)


def greedy(
  config: architecture.TransformerConfig,
  params: PyTree,
  prompt_tokens: np.ndarray,  # [P, S], left-padded
  prompt_mask: np.ndarray,  # [P, S] bool
  num_tokens: int,
  images: Images | None = None,  # each [P, ...]
) -> np.ndarray:  # [P, num_tokens]
  """The continuation at temperature 0, which nothing ends early."""
  prompts = Prompts(
    tokens=np.asarray(prompt_tokens, np.int32),
    mask=np.asarray(prompt_mask, bool),
    ids=np.arange(len(prompt_tokens), dtype=np.int32),
    extras={},
    images=images,
  )
  return np.asarray(_greedy(config, num_tokens, params, prompts))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _greedy(config, num_tokens, params, prompts):
  rollout = sampling.sample(
    transformer.transformer_policy(config),
    params,
    prompts,
    jax.random.key(0),
    sampling.SamplerConfig(
      max_new_tokens=num_tokens, end_ids=(), pad_id=0, temperature=0.0
    ),
    1,
  )
  return rollout.tokens


def read_reference(path: pathlib.Path) -> Reference:
  """Reads and checks a reference.

  Args:
    path: File of `numpy.savez`; with the fields of `Images` if rows have
      images.

  Raises:
    FileNotFoundError: The file does not exist.
    ValueError: The file has another format, lacks an array, or has arrays that
      do not fit.
  """
  if not path.is_file():
    raise FileNotFoundError(
      f"--reference={path}: there is no such file; give an .npz file with"
      f" {', '.join(_ARRAYS)}."
    )
  try:
    with np.load(path) as archive:  # A context only if it is an archive.
      arrays = {name: archive[name] for name in _ARRAYS if name in archive}
      shown = {name: archive[name] for name in _SHOWN if name in archive}
      known = ", ".join(archive) or "nothing"
  except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"--reference={path} cannot be read as .npz ({error}); needs a file"
      " as numpy.savez writes it, with plain arrays."
    ) from error
  missing = [name for name in _ARRAYS if name not in arrays]
  if shown:
    missing += [name for name in _SHOWN if name not in shown]
  if missing:
    raise ValueError(
      f"--reference={path} has no {' and no '.join(missing)}; it has {known}."
      " Save input_ids [B, L], attention_mask [B, L] and logits [B, L, V]."
    )
  problem = _problem(**arrays)
  if problem:
    raise ValueError(f"--reference={path}: {problem}")
  mask = arrays["attention_mask"].astype(bool)
  ids = np.where(mask, arrays["input_ids"], 0).astype(np.int64)
  images = Images(**shown) if shown else None
  return Reference(ids, mask, arrays["logits"], images)


def _problem(input_ids, attention_mask, logits) -> str | None:
  """Reason why the arrays are not a reference, or None if they are."""
  if input_ids.ndim != 2 or input_ids.dtype.kind not in "iu":
    return (
      f"input_ids are {input_ids.dtype} {list(input_ids.shape)}; needs"
      " whole numbers [B, L]."
    )
  if attention_mask.shape != input_ids.shape:
    return (
      f"attention_mask is {list(attention_mask.shape)} and input_ids"
      f" {list(input_ids.shape)}; both must be [B, L]."
    )
  if logits.ndim != 3 or logits.shape[:2] != input_ids.shape:
    return (
      f"logits are {list(logits.shape)}, but must be [B, L, V] with [B, L] ="
      f" {list(input_ids.shape)} as of input_ids."
    )
  if logits.dtype.kind != "f":
    return f"logits are {logits.dtype}; save them as float32."
  if not np.isin(attention_mask, (0, 1)).all():
    return "attention_mask must be 1 on tokens and 0 on padding."
  mask = attention_mask.astype(np.int8)
  if not mask.any():
    return "attention_mask is 0 everywhere; nothing is left to compare."
  starts = (np.diff(mask, axis=1, prepend=0) == 1).sum(axis=1)
  if (starts > 1).any():
    return (
      f"row {starts.argmax()} of attention_mask has padding between tokens; pad"
      " rows on the left or on the right."
    )
  return None


def compare(
  config: architecture.TransformerConfig, params: PyTree, reference: Reference
) -> Comparison:
  """Compares row by row, so that the logits of one row are held at a time.

  Args:
    config: Config of the transformer.
    params: Its parameters.
    reference: Reference to compare with.

  Raises:
    ValueError: The reference is of another vocabulary.
  """
  vocab_size = reference.logits.shape[-1]
  if vocab_size != config.vocab_size:
    raise ValueError(
      f"compare: the reference has logits of {vocab_size} tokens, but"
      f" the checkpoint's vocabulary has {config.vocab_size}; make the"
      " reference with this checkpoint, from all of its logits."
    )
  ids = reference.input_ids
  if ids.min() < 0 or ids.max() >= vocab_size:
    raise ValueError(
      f"compare: input_ids reach from {ids.min()} to {ids.max()}, but"
      f" the checkpoint's vocabulary ends at {vocab_size - 1}; make the"
      " reference with the tokenizer of this checkpoint."
    )
  worst: tuple[float, ...] = (-1.0,)
  total, num_positions, num_agreeing = 0.0, 0, 0
  for row, mask in enumerate(reference.attention_mask):
    if not mask.any():
      continue
    one = config, params, ids[row : row + 1], mask[None]
    shown = reference.images
    if shown is None:
      here = logits(*one)[0]
    else:
      of_row = jax.tree.map(operator.itemgetter(slice(row, row + 1)), shown)
      here = logits_of_shown(*one, of_row)[0]
    here = np.asarray(here, np.float64)[mask]  # [N, V]
    there = reference.logits[row, mask].astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf
      difference = abs(here - there)
    difference = np.where(np.isfinite(difference), difference, np.inf)
    n, v = np.unravel_index(difference.argmax(), difference.shape)
    if difference[n, v] > worst[0]:
      position = int(np.flatnonzero(mask)[n])
      worst = difference[n, v], row, position, int(v), here[n, v], there[n, v]
    total += difference.sum()
    num_positions += len(here)
    num_agreeing += int((here.argmax(-1) == there.argmax(-1)).sum())
  largest, row, position, entry, here_value, there_value = worst
  return Comparison(
    largest=float(largest),
    mean=float(total / (num_positions * vocab_size)),
    row=int(row),
    position=int(position),
    entry=int(entry),
    here=float(here_value),
    there=float(there_value),
    num_positions=num_positions,
    num_agreeing=num_agreeing,
  )
