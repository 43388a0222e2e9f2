"""What single tokens write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo_jax.training.problem import problem as problem_lib


def bytes_of(
  problem: problem_lib.Problem, ids: Sequence[int] | np.ndarray
) -> list[bytes]:
  """The bytes of each token; of those that end a row, their names."""
  text = problem.tokenizer
  try:
    pieces = problem.pieces
  except (AttributeError, ValueError):
    # An alphabet, whose texts are joined from those of the ids; or a tokenizer
    # of which nobody can say which bytes a token writes.
    pieces = []
  named = {text.pad_id, *text.end_ids}
  # A checkpoint may have more ids than its tokenizer.
  named |= {int(id_) for id_ in ids if int(id_) >= len(pieces)}
  return [
    text.exact_text([int(id_)]).encode("utf-8", "replace")
    if int(id_) in named
    else pieces[int(id_)]
    for id_ in ids
  ]
