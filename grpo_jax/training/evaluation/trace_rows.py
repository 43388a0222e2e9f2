"""Rows of traces, from arrays: texts, numbers of tokens, calls, and images."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.step.rows import StepRows
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import traces
from grpo_jax.types import Images

MAX_SIDE = 64  # Pixels of a picture in the file; larger ones are thinned out.
MAX_PICTURES = 8  # Pictures of a prompt.


def of_record(record: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a `traces.Group` about the images of its prompt.

  Args:
    record: Record of a source (`data/sources.py`).

  Returns:
    "images" and "box"; empty for a prompt of tokens only.
  """
  images: list[dict[str, Any]] = []
  if record.get("images") is not None:
    images = of_patches(record["images"])
  for kind, value, *_ in record.get("pictures") or ():
    images.append({"name": str(value) if kind == "path" else str(kind)})
  if not images:
    return {}
  box = np.asarray(record["extras"].get("box", ())).reshape(-1)
  is_one = box.size == 4 and box[2] > box[0] and box[3] > box[1]
  return {
    "images": tuple(images[:MAX_PICTURES]),
    "box": tuple(box.tolist()) if is_one else (),
  }


def of_patches(images: Images) -> list[dict[str, Any]]:
  """Makes pictures of patches of rows, columns and three colours in [0, 1].

  Patches of other kinds, such as those that a processor has normalized, are not
  pictures, and are left out.

  Args:
    images: Images of one prompt, NumPy arrays without the axis of prompts.
  """
  side = math.isqrt(images.patches.shape[-1] // 3)
  if 3 * side**2 != images.patches.shape[-1]:
    return []
  pictures = []
  for number, (rows, columns) in enumerate(np.asarray(images.grid).tolist()):
    is_own = np.asarray(images.image) == number
    patches = np.asarray(images.patches)[is_own]
    if not is_own.any() or patches.min() < 0 or patches.max() > 1:
      continue
    grid = np.zeros((rows, columns, side, side, 3), np.float32)
    place = np.asarray(images.place)[is_own]
    grid[place[:, 0], place[:, 1]] = patches.reshape(-1, side, side, 3)
    image = grid.swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    pictures.append(_picture(np.round(255 * image).astype(np.uint8)))
  return pictures


def _picture(pixels: np.ndarray) -> dict[str, Any]:  # [rows, columns, 3] uint8
  """A picture for JSON, of at most 64 pixels a side."""
  rows, columns = pixels.shape[:2]
  step = max(1, math.ceil(max(rows, columns) / MAX_SIDE))
  thin = pixels[::step, ::step]
  return {
    "size": [columns, rows],
    "shape": [thin.shape[1], thin.shape[0]],
    "pixels": base64.b64encode(thin.tobytes()).decode(),
  }


def read_arrays(rows: StepRows, logp: Any, clipped: Any) -> dict[str, Any]:
  """The arrays to fetch for rows that are traced, by name; None if not known.

  Args:
    logp, clipped: See `after.After`; None if not known.
  """
  batch = rows.batch
  arrays: dict[str, Any] = {
    "tokens": batch.tokens,
    "exists": batch.completion_mask,
    "trained": batch.mask,
    "reward": rows.rewards,
    "valid": batch.valid,
    "correct": batch.correct,
    "terminated": batch.terminated,
    "components": rows.components,
    "advantage": batch.advantages,
    "old_logp": batch.old_logp,
    "ref_logp": batch.reference.logp,
    "value": batch.critic.values,
    "order": batch.traces.order,
    "logp": logp,
    "clipped": clipped,
  }
  for name in (
    *("sampler_logp", "entropy", "version", "observed", "turn"),
    "turn_rewards",
  ):
    arrays[name] = getattr(rows, name)
  if batch.traces.order is not None:  # The opening of each context.
    arrays["prompt_tokens"] = batch.prompts.tokens
    arrays["prompt_mask"] = batch.prompts.mask
  return arrays


def make_rows(
  problem: problem_lib.Problem,
  arrays: dict[str, Any],
  first: int,
  errors: dict[int, str],
) -> tuple[traces.TraceRow, ...]:
  """Makes the rows of a group; contexts that do not exist are left out.

  Args:
    arrays: The arrays of `read_arrays`, fetched, of the group alone.
    first: Place of the group's first row in the batch.
    errors: The reason why a row could not be scored, by its place in the group.
  """
  size = len(arrays["tokens"])
  order = arrays["order"]
  num_contexts = 1 if order is None else int(order.max()) + 1
  return tuple(
    _row(
      problem,
      {k: _of_row(x, place) for k, x in arrays.items()},
      first + place,
      (place // num_contexts, 0 if order is None else int(order[place])),
      errors.get(place, ""),
    )
    for place in range(size)
    if order is None or arrays["exists"][place].any()
  )


def _of_row(x: Any, place: int) -> Any:
  if x is None:
    return None
  if isinstance(x, dict):
    return {name: values[place] for name, values in x.items()}
  return x[place]


def _row(
  problem: problem_lib.Problem,
  arrays: dict[str, Any],
  row: int,
  place: tuple[int, int],
  error: str,
) -> traces.TraceRow:
  """Makes one row, from arrays of this row."""
  exists = arrays["exists"]
  ids = arrays["tokens"][exists].astype(np.int32)
  is_scored = bool(arrays["valid"])
  opening = ""
  if place[1]:
    begins = arrays["prompt_tokens"][arrays["prompt_mask"]]
    opening = problem.tokenizer.exact_text(begins.tolist())
  return traces.TraceRow(
    row=row,
    sample=place[0],
    context=place[1],
    text=problem.texts(ids[None], np.ones((1, len(ids)), bool))[0],
    tokens=texts_of(problem, ids),
    ids=ids,
    reward=traces.number(arrays["reward"]) if is_scored else None,
    correct=bool(arrays["correct"]) if is_scored else None,
    terminated=bool(arrays["terminated"]),
    components={
      name: traces.number(x) for name, x in arrays["components"].items()
    },
    error=error,
    calls=calls(problem, arrays, ids),
    values=_values(arrays),
    opening=opening,
  )


def _values(arrays: dict[str, Any]) -> dict[str, np.ndarray]:  # each [n]
  """The numbers of each token; NaN if one is not known."""
  exists = arrays["exists"]

  def of_tokens(x: Any) -> Any:
    return None if x is None else np.broadcast_to(x, exists.shape)[exists]

  table = {name: of_tokens(arrays[name]) for name in _OF_TOKENS}
  is_written = np.ones(exists.sum(), bool)
  if table["observed"] is not None:
    is_written = ~table["observed"]
  trained = table["trained"]
  anchor = table["old_logp"]
  if anchor is None:
    anchor = table["sampler_logp"]

  def select(x: Any, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, np.asarray(x, np.float32), np.float32(np.nan))

  values: dict[str, np.ndarray] = {"trained": trained}
  for name in ("observed", "turn", "version", "clipped"):
    if table[name] is not None:
      values[name] = table[name]
  for name, mask in (
    *(("sampler_logp", is_written), ("entropy", is_written)),
    *(("old_logp", trained), ("value", trained), ("advantage", trained)),
  ):
    if table[name] is not None:
      values[name] = select(table[name], mask)
  if table["ref_logp"] is not None:
    values["kl"] = select(anchor - table["ref_logp"], trained)
  if table["logp"] is not None:
    values["new_logp"] = select(table["logp"], is_written)
    with np.errstate(over="ignore"):
      values["ratio"] = select(np.exp(table["logp"] - anchor), trained)
  return values


_OF_TOKENS = (
  *("sampler_logp", "entropy", "old_logp", "ref_logp", "value", "advantage"),
  *("trained", "observed", "turn", "version", "logp", "clipped"),
)


def texts_of(
  problem: problem_lib.Problem, ids: Sequence[int] | np.ndarray
) -> tuple[str, ...]:
  """The text of each token; of tokens that end a row, their names."""
  return traces.texts_of_tokens(problem.bytes_of(ids))


def calls(
  problem: problem_lib.Problem, arrays: dict[str, Any], ids: np.ndarray
) -> tuple[dict[str, Any], ...]:
  """The action in each turn of an episode, and the answer of the environment.

  Args:
    arrays: Arrays of one row: "exists", "turn", "observed" and "turn_rewards"
      [T], None without an environment.
  """
  if arrays["turn"] is None:
    return ()
  exists = arrays["exists"]
  turn, observed = arrays["turn"][exists], arrays["observed"][exists]
  rewards = arrays["turn_rewards"]
  say = problem.tokenizer.exact_text
  dummy = None
  if problem.environment is not None:
    dummy = list(problem.environment.dummy)
  elif problem.host_environment is not None and problem.host_environment.dummy:
    dummy = list(problem.host_environment.dummy)
  records = []
  for number in np.unique(turn).tolist():
    question, answer = (
      ids[(turn == number) & mask].tolist() for mask in (~observed, observed)
    )
    if not question and not answer:
      continue
    call = {
      "turn": int(number),
      "in": say(question),
      "out": say(answer),
      "blocked": None
      if dummy is None
      else bool(dummy) and answer[: len(dummy)] == dummy,
    }
    if rewards is not None:
      call["reward"] = traces.number(rewards[exists][turn == number].sum())
    records.append(call)
  return tuple(records)


def of_evaluation(
  problem: problem_lib.Problem,
  step: int,
  phase: str,
  number: int,
  completion: evaluation.Completion,
  chosen: tuple[str, ...],
) -> traces.Group:
  """The group of a held-out prompt and its completion."""
  ids = np.array(completion.ids, np.int32)
  values = {}
  if completion.observed:
    values["observed"] = np.array(completion.observed, bool)
  is_scored = completion.valid
  row = traces.TraceRow(
    row=number,
    sample=0,
    context=0,
    text=completion.text,
    tokens=texts_of(problem, ids),
    ids=ids,
    reward=traces.number(completion.reward) if is_scored else None,
    correct=completion.correct if is_scored else None,
    terminated=completion.terminated,
    components={k: traces.number(v) for k, v in completion.components.items()},
    error=completion.error,
    values=values,
  )
  return traces.Group(
    *(step, phase, "eval", number, number, completion.prompt, chosen),
    (row,),
    **of_record(problem.held_out[number]),
  )


def cut(group: traces.Group, limit: int) -> traces.Group:
  """Cuts the rows of a group to a number of tokens, and its texts to match.

  A row that loses tokens has their number, and its text is that of the others.
  """
  size = _CHARACTERS * limit

  def short(text: str) -> str:
    return text if len(text) <= size else text[:size] + "…"

  def of_row(row: traces.TraceRow) -> traces.TraceRow:
    missing = max(len(row.ids) - limit, 0)
    tokens = tuple(map(short, row.tokens[:limit]))
    return dataclasses.replace(
      row,
      text=short("".join(tokens) if missing else row.text),
      tokens=tokens,
      ids=row.ids[:limit],
      error=short(row.error),
      opening=short(row.opening),
      calls=tuple(
        {k: short(v) if isinstance(v, str) else v for k, v in call.items()}
        for call in row.calls[:limit]
      ),
      values={name: x[:limit] for name, x in row.values.items()},
      cut=row.cut + missing,
    )

  rows = tuple(of_row(row) for row in group.rows)
  return dataclasses.replace(group, prompt=short(group.prompt), rows=rows)


_CHARACTERS = 8  # Characters of a text for each token that is kept.


def bounded(groups: Sequence[traces.Group], size: int) -> bytes:
  """Writes groups as one member of the file, of at most `size` bytes.

  Groups that do not fit are left out, the last ones first. If the first group
  does not fit alone, its rows are cut, to half the tokens again and again. If
  nothing fits, the result is empty.
  """
  prefix = list(groups)
  if not prefix:
    return b""
  longest = max((len(row.ids) for row in prefix[0].rows), default=0)
  limit = max(longest, len(prefix[0].prompt) // _CHARACTERS, 1)
  while True:
    content = traces.member([traces.line(group) for group in prefix])
    if len(content) <= size:
      return content
    if len(prefix) > 1:
      prefix.pop()
    elif limit:
      limit //= 2
      prefix[0] = cut(prefix[0], limit)
    else:
      return b""
