"""Right, nearly right and wrong completions for testing verifiers."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Task

_FRAME = (
  *("<eos>", "<answer>", "</answer>", "<think>", "</think>", "<pad>"),
  *";0123456789+-*=",
)
# Policies from checkpoints sample ids that are not of the vocabulary, too.
_FOREIGN_IDS = [vocab.VOCAB_SIZE, vocab.VOCAB_SIZE + 1, 151_935]
_FRAME_IDS = [vocab.TOKENS.index(text) for text in _FRAME] + _FOREIGN_IDS
_EVERY_ID = [*range(vocab.VOCAB_SIZE), *_FOREIGN_IDS]
# Room for completions that mutations make longer than the task's own.
EXTRA_SLOTS = 5


def row(text: str, num_slots: int) -> tuple[np.ndarray, np.ndarray]:
  """Encodes a text as (tokens, completion_mask) of `num_slots` slots."""
  ids = vocab.encode(text)
  return vocab.padded(ids, num_slots), np.arange(num_slots) < len(ids)


@functools.cache
def _jitted(task: Task):
  return jax.jit(task.verify)


def judge(task: Task, text: str, extras: dict) -> dict[str, float]:
  """Scores a text and checks that the twin gives the same scores."""
  tokens, mask = row(text, num_slots=48)
  scores = jax.device_get(_jitted(task)(tokens, mask, extras))
  assert scores == pytest.approx(task.verify_numpy(tokens, mask, extras))
  return scores


def stack_extras(extras: list[dict]) -> dict[str, np.ndarray]:
  return {name: np.stack([e[name] for e in extras]) for name in extras[0]}


def mutate(ids: list[int], rng: np.random.Generator) -> list[int]:
  """Makes one small accident: the kinds that samplers and policies have."""
  at = int(rng.integers(len(ids) + 1))
  token = int(rng.choice(_FRAME_IDS))
  if rng.random() < 0.5 and ids:
    token = ids[int(rng.integers(len(ids)))]
  end = at + int(rng.integers(1, 4))
  kind = rng.integers(8)
  if kind == 0:  # Inserted.
    return [*ids[:at], token, *ids[at:]]
  if kind == 1:  # Lost.
    return ids[:at] + ids[at + 1 :]
  if kind == 2:  # Replaced.
    return [*ids[:at], token, *ids[at + 1 :]]
  if kind == 3:  # Stuttered.
    return ids[:end] + ids[at:]
  if kind == 4:  # Cut off.
    return ids[:at]
  if kind == 5:  # Swapped.
    return ids[:at] + ids[at : at + 2][::-1] + ids[at + 2 :]
  if kind == 6:  # Ended again, with or without babble.
    return [*ids, token, vocab.EOS]
  return [*ids, *[token] * int(rng.integers(1, 3))]  # Babbled after the end.


def random_ids(rng: np.random.Generator, size: int) -> list[int]:
  """Draws any ids, those of larger policies among them."""
  return rng.choice(_EVERY_ID, size=size).tolist()


def make_strings(
  task: Task, num_rows: int, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """Completions with their problems.

  A quarter are the teacher's own, most of the others have one to three
  mutations, a sixth are random. Empty slots hold random tokens.

  Returns:
    tokens [num_rows, T + EXTRA_SLOTS], completion_mask, stacked extras.
  """
  rng = np.random.default_rng(seed)
  examples = [task.example(rng, "train") for _ in range(num_rows // 5)]
  num_slots = task.max_completion_len + EXTRA_SLOTS
  tokens = rng.integers(task.vocab_size, size=(num_rows, num_slots))
  mask = np.zeros((num_rows, num_slots), bool)
  extras = []
  for i in range(num_rows):
    example = examples[i % len(examples)]
    ids = example.completion.tolist()
    if i % 6 == 5:
      size = int(rng.integers(len(ids) + 1))
      alphabet = _FRAME_IDS if i % 4 else _EVERY_ID
      ids = [*rng.choice(alphabet, size=size), vocab.EOS]
      ids = ids if i % 8 else vocab.wrapped(ids[:-1], tags=True)
    elif i % 4:
      for _ in range(int(rng.integers(1, 4))):
        ids = mutate(ids, rng)
    ids = ids[:num_slots]
    tokens[i, : len(ids)] = ids
    mask[i, : len(ids)] = True
    extras.append(example.extras)
  return tokens.astype(np.int32), mask, stack_extras(extras)
