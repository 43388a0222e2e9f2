"""A model of the run as a judge: its prompts and its verdicts.

The rubric of each prompt is made into token ids on the host, where records are
text (`Rubric`). Inside the program the completion is put into its place, and
the judge writes its verdict (`LlmJudge`).

A completion reaches the judge as words only: control tokens in it, which begin
or end a turn, are left out, and text in a prompt that looks like a control
token is encoded as characters. The effect that words can have is described in
docs/judge.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rewards import rubrics
from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.rewards.in_graph import verdicts
from grpo_jax.rollout import sampling
from grpo_jax.settings.rewards import JUDGE, JudgeConfig
from grpo_jax.step import models
from grpo_jax.training.problem.rewards import Components, ModelReward
from grpo_jax.types import Prompts, Rollout

# Bytes of a verdict that are read, for each token.
_BYTES_PER_TOKEN = 8
_PREFIX = f"{JUDGE}/"
_RUBRIC = "\0"  # Place of the rubric in a chat template.


@dataclasses.dataclass(frozen=True)
class Rubric:
  """A rubric as token ids.

  Attributes:
    text: Text of the rubric.
    tokenizer: Tokenizer of the run.
    opening, closing: Ids around the rubric.
    num_slots: N, slots for all but the completion.
  """

  text: str
  tokenizer: Any
  opening: tuple[int, ...]
  closing: tuple[int, ...]
  num_slots: int

  def arrays(self, record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a record for the judge's prompts, as `extras`.

    Returns:
      "judge/tokens" [N], the ids around the completion; "judge/head" [], the
      number of ids before the completion; and "judge/size" [], the number of
      all. The numbers are 0 if the ids do not fit, or if the tokenizer cannot
      write them.
    """
    tokens = np.full(self.num_slots, self.tokenizer.pad_id, np.int32)
    try:
      head, tail = self.ids(record)
    except ValueError:
      head, tail = [], []
    size = len(head) + len(tail)
    if size > self.num_slots:
      head, size = [], 0
    tokens[:size] = [*head, *tail][:size]
    return {
      f"{_PREFIX}tokens": tokens,
      f"{_PREFIX}head": np.array(len(head), np.int32),
      f"{_PREFIX}size": np.array(size, np.int32),
    }

  def ids(self, record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The ids before the completion, and those after it.

    Raises:
      ValueError: A value is missing, or cannot be written.
    """
    parts: list[list[int]] = [[*self.opening], []]
    side = 0
    fields = {**record["extras"], "answer": record["answer"]}
    for is_name, piece in rubrics.parts(self.text):
      if is_name and piece == rubrics.COMPLETION:
        side = 1
      elif is_name:
        parts[side] += self._value(piece, record["prompt"], fields)
      else:
        parts[side] += self.tokenizer.markup_ids(piece)
    parts[1] += self.closing
    return parts[0], parts[1]

  def _value(
    self, name: str, prompt: Any, fields: Mapping[str, Any]
  ) -> list[int]:
    """The ids of a value, without control tokens."""
    if name == rubrics.PROMPT and not isinstance(prompt, str):
      control = self.tokenizer.control_ids()
      return [int(i) for i in prompt if int(i) not in control]
    value = rubrics.value(name, prompt, fields)
    return self.tokenizer.observation_ids(value, self.num_slots + 1)


def rubric(
  judge: JudgeConfig,
  tokenizer: Any,
  max_prompt_len: int,
  record: Mapping[str, Any],
) -> Rubric:
  """Makes the rubric of a config.

  Raises:
    ValueError: The tokenizer cannot write the rubric, a value is missing, the
      first record does not fit, or the lengths of others are not known.
  """
  if judge.template == "chat":
    if not hasattr(tokenizer, "chat_text"):
      raise ValueError(
        "config.judge.template='chat': the tokens of a task have no chat"
        " template; set it to '{rubric}', or take data of text."
      )
    message = {"role": "user", "content": _RUBRIC}
    opening, _, closing = tokenizer.chat_text([message]).partition(_RUBRIC)
    around = tokenizer.markup_ids(opening), tokenizer.markup_ids(closing)
  else:
    opening, _, closing = judge.template.partition("{rubric}")
    around = tokenizer.context_ids(opening), tokenizer.markup_ids(closing)
  names = set(rubrics.places(judge.rubric))
  num_slots = judge.max_prompt_len
  if num_slots is None:
    if fields := sorted(names - {rubrics.PROMPT, rubrics.COMPLETION}):
      raise ValueError(
        f"config.judge.max_prompt_len is not set, and the rubric has {fields}"
        " of each record, whose lengths nobody knows; set it to the slots for"
        " all that the judge reads but the completion, tokens."
      )
    words = [
      piece for is_name, piece in rubrics.parts(judge.rubric) if not is_name
    ]
    fixed = sum(len(tokenizer.markup_ids(piece)) for piece in words)
    num_slots = max_prompt_len + fixed + sum(map(len, around))
  result = Rubric(
    judge.rubric, tokenizer, tuple(around[0]), tuple(around[1]), num_slots
  )
  size = sum(map(len, result.ids(record)))
  if size > num_slots:
    raise ValueError(
      f"config.judge.max_prompt_len={num_slots}: the rubric of the first record"
      f" has {size} tokens; raise it, or shorten the rubric."
    )
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlmJudge(ModelReward):
  """A reward by a model of the run that reads a rubric and writes a verdict.

  Attributes:
    sampler: Settings of its draws: the most likely tokens.
    table: The bytes of each token.
    room: Bytes of a verdict that are read.
    words, marker: See `rewards.in_graph.verdicts.read`.
    control: Ids that are left out of completions.
    batch_size: Rows that it reads at once; None: as many as there are prompts.
  """

  may_fail: ClassVar[bool] = True
  sampler: sampling.SamplerConfig
  table: text_lib.ByteTable
  room: int
  words: Mapping[str, float]
  marker: str
  control: tuple[int, ...]
  batch_size: int | None = None

  def score(
    self, params: models.Params, prompts: Prompts, rollout: Rollout
  ) -> tuple[Components, None]:
    """See `ModelReward.score`; NaN if there is no verdict."""
    assert self.view is not None
    assert self.plan is not None
    trunk = self.view(params).trunk
    tokens, mask = inputs(prompts, rollout, self.control, self.sampler.pad_id)
    count = len(tokens)
    size = _chunk(
      count, self.batch_size or len(prompts.ids), self.plan.num_shards
    )

    def write(rows):
      tokens, mask = rows
      ids = jnp.zeros(len(tokens), jnp.int32)  # For draws, and none is made.
      answer = sampling.sample(
        trunk.policy,
        trunk.params,
        Prompts(tokens, mask, ids, {}),
        jax.random.key(0),
        self.sampler,
        1,
      )
      return answer.tokens, answer.completion_mask

    def chunks(
      x,
    ):  # [B, N] -> [B / size, size, N]; each has rows of all shards.
      return jnp.moveaxis(x.reshape(size, -1, *x.shape[1:]), 1, 0)

    with jax.named_scope("judge"):
      if size == count:
        reply = write((tokens, mask))
      else:
        reply = jax.lax.map(write, (chunks(tokens), chunks(mask)))
        reply = jax.tree.map(
          lambda x: jnp.moveaxis(x, 0, 1).reshape(count, -1), reply
        )
      text = text_lib.written(self.table, reply[0], reply[1], self.room)
      reward = verdicts.read(text, self.words, self.marker)
    is_asked = prompts.extras[f"{_PREFIX}size"] > 0  # [P]
    reward = jnp.where(is_asked[rollout.prompt_index], reward, jnp.nan)
    return {self.name: reward}, None


def by_reading(judge: JudgeConfig, tokenizer: Any) -> LlmJudge:
  """Makes the judge of a config, before a phase sets its view."""
  pieces = tokenizer.token_bytes()
  return LlmJudge(
    name=JUDGE,
    model=JUDGE if judge.model else "policy",
    sampler=sampling.SamplerConfig(
      max_new_tokens=judge.max_new_tokens,
      end_ids=tokenizer.end_ids,
      pad_id=tokenizer.pad_id,
      temperature=0.0,
    ),
    table=text_lib.table(pieces),
    room=judge.max_new_tokens * min(max(map(len, pieces)), _BYTES_PER_TOKEN),
    words={word: float(reward) for word, reward in judge.verdicts.items()},
    marker=judge.marker,
    control=tuple(sorted(tokenizer.control_ids())),
    batch_size=judge.batch_size,
  )


def inputs(
  prompts: Prompts, rollout: Rollout, control: tuple[int, ...], pad_id: int
) -> tuple[jax.Array, jax.Array]:  # [B, N + T] int32, [B, N + T] bool
  """Prompts for the judge: rubrics with their completions, left-padded.

  Args:
    prompts: Prompts with `Rubric.arrays` in their extras.
    control: Ids that are left out of the completions.
    pad_id: Fills the unused slots.
  """
  tokens, head, size = (
    prompts.extras[f"{_PREFIX}{name}"][rollout.prompt_index]
    for name in ("tokens", "head", "size")
  )  # [B, N], [B], [B]
  content = rollout.completion_mask & ~jnp.isin(
    rollout.tokens, jnp.array(control, jnp.int32)
  )
  order = jnp.argsort(~content, axis=1, stable=True)
  completion = jnp.take_along_axis(rollout.tokens, order, axis=1)  # [B, T]
  # Without a rubric nothing is asked, but a row needs at least one slot.
  length = jnp.where(size > 0, content.sum(axis=1), 0)  # [B]
  count = jnp.maximum(size + length, 1)
  num_slots = tokens.shape[1] + completion.shape[1]
  place = jnp.arange(num_slots) - (num_slots - count)[:, None]  # [B, N + T]
  head, end = head[:, None], (head + length)[:, None]

  def of(x, index):
    clipped = jnp.clip(index, 0, x.shape[1] - 1)
    return jnp.take_along_axis(x, clipped, axis=1)

  around = of(tokens, jnp.where(place < head, place, place - length[:, None]))
  is_completion = (place >= head) & (place < end)
  rows = jnp.where(is_completion, of(completion, place - head), around)
  mask = place >= 0
  return jnp.where(mask, rows, pad_id), mask


@functools.cache
def _chunk(count: int, limit: int, num_shards: int) -> int:
  """The number of rows at once: a divisor of all that splits over the devices.

  It is at least one row of each device, also if fewer are asked for.
  """
  limit = min(max(limit, num_shards), count)
  sizes = [
    size
    for size in range(num_shards, limit + 1, num_shards)
    if count % size == 0
  ]
  return max(sizes, default=count)
