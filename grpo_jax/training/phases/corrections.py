"""Corrections of wrong completions, from settings to token ids."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.rollout import hints as hints_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.phase import ANSWER
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.problem.solutions import Solutions

Record = Mapping[str, Any]


def make(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> hints_lib.Correction:
  """Makes the correction of the phase `name`, which corrects something.

  Raises:
    ValueError: The task knows no right answers, a text is not made of its
      tokens, or a completion with the sentence would not be right.
  """
  settings = config.section(name).correction
  where = f"config.{name}.correction"
  if settings.max_new_tokens >= problem.max_new_tokens and settings.p_cue:
    raise ValueError(
      f"{where}.max_new_tokens={settings.max_new_tokens}: a completion has"
      f" {problem.max_new_tokens} tokens (config.sampling.max_new_tokens), in"
      " which a draft and the cue have to fit as well; lower it, or raise that."
    )
  hints = make_hints(config, problem, name)
  record = problem.train[0]
  # If a reference does not fit, the row gets the sentence in its place.
  fits = (hints.arrays(record)[hints_lib.REFERENCE] >= 0).any()
  if settings.p_answer or (settings.p_reference and not fits):
    hints.check(record)
  return hints_lib.Correction(
    p_cue=settings.p_cue,
    p_answer=settings.p_answer,
    p_reference=settings.p_reference,
    cue=_ids(problem, f"{where}.cue", settings.cue),
    max_new_tokens=settings.max_new_tokens,
    max_prompt_len=settings.max_prompt_len,
    train_injected=settings.train_injected,
    limits=problem.limits,
  )


@dataclasses.dataclass(frozen=True)
class Hints:
  """Hints for completions of prompts whose answer is known.

  Attributes:
    where: Section of the settings.
    solutions: Right answers of the task.
    before, after: Token ids around an answer, the end token included.
    size: N, slots for each hint.
  """

  where: str
  solutions: Solutions
  before: tuple[int, ...]
  after: tuple[int, ...]
  size: int

  def arrays(self, record: Record) -> dict[str, np.ndarray]:
    """The two hints of a record, each [N] int32 with -1 after its end.

    A hint that is longer than N would not fit into a completion, and is all -1.
    """
    truth = self.solutions.find(record["extras"])
    answer = [*self.before, *truth.answer, *self.after]
    return {
      hints_lib.ANSWER: self._pad(answer),
      hints_lib.REFERENCE: self._pad(truth.completion),
    }

  def check(self, record: Record) -> None:
    """Tries the sentence on one record, after a draft that has an answer.

    Raises:
      ValueError: The verifier does not take the answer of the sentence.
    """
    truth = self.solutions.find(record["extras"])
    draft = truth.completion[:-1]
    ids = np.array([*draft, *self.before, *truth.answer, *self.after], np.int32)
    everything = np.ones(len(ids), bool)
    if not self.solutions.reward(ids, everything, record["extras"]):
      raise ValueError(
        f"{self.where}.sentence: behind a completion with an answer it gives"
        " one more, and the verifier does not take that one; set"
        " config.data.task_options.last_answer=True where the task has this"
        " option, as 'countdown' does; write the sentence so that its answer is"
        f" found; or set {self.where}.p_answer=0, and p_reference=0 as well"
        " if whole right completions do not fit."
      )

  def _pad(self, ids: Sequence[int]) -> np.ndarray:  # [N] int32
    row = np.full(self.size, -1, np.int32)
    if len(ids) <= self.size:
      row[: len(ids)] = ids
    return row


def make_hints(
  config: config_lib.RunConfig, problem: Problem, name: str
) -> Hints:
  """Makes the hints of the phase `name`.

  Raises:
    ValueError: The task knows no right answers, or a text is not made of its
      tokens.
  """
  settings = config.section(name).correction
  where = f"config.{name}.correction"
  if problem.solutions is None:
    raise ValueError(
      f"{where}: {config.data.shown_task} knows no right answers that could be"
      " put into a completion (Task.solution); choose a task that does, such as"
      " 'countdown', or set p_cue, p_answer and p_reference to 0."
    )
  ids = functools.partial(_ids, problem, f"{where}.sentence")
  before, _, after = settings.sentence.partition(ANSWER)
  return Hints(
    where=where,
    solutions=problem.solutions,
    before=ids(before, may_be_empty=True),
    after=(*ids(after, may_be_empty=True), problem.tokenizer.end_ids[0]),
    size=problem.max_new_tokens,
  )


def _ids(
  problem: Problem, setting: str, text: str, may_be_empty: bool = False
) -> tuple[int, ...]:
  """The token ids of a text.

  Raises:
    ValueError: It is empty, is not made of tokens of the run, or has a token
      that ends a completion.
  """
  try:
    ids = tuple(problem.tokenizer.markup_ids(text))
  except ValueError as error:
    raise ValueError(
      f"{setting}={text!r} is not made of tokens of this run: {error}"
    ) from error
  if {*ids}.intersection(problem.tokenizer.end_ids):
    raise ValueError(
      f"{setting}={text!r} has a token that ends a completion; leave it out:"
      " the policy goes on after a cue, and behind an answer one is put anyway."
    )
  if not ids and not may_be_empty:
    raise ValueError(
      f"{setting}={text!r} is no token; write at least one, after which the"
      " policy goes on."
    )
  return ids
