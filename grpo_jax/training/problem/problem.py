"""The problem of a run: its prompts, tokenizer, environment and rewards.

`make_problem` puts data, tasks and rewards together. A problem of ids
(`data.source="task"`) is verified inside the program; a problem of text is
verified on the host. Either may have an environment on the host
(`data.environment`), whose scores replace those of the verifier.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from grpo_jax.data import domains as domains_lib
from grpo_jax.data import observations, pipeline, sources
from grpo_jax.data.encoder import Encoder
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import environment as environment_lib
from grpo_jax.tasks import Task
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.problem import solutions as solutions_lib
from grpo_jax.training.problem import tasks, unscored
from grpo_jax.types import (
  Compaction,
  Environment,
  HostCompaction,
  HostEnvironment,
  Images,
  Prompts,
  Rollout,
)

if TYPE_CHECKING:
  from grpo_jax.rewards.workers import host
  from grpo_jax.rewards.workers import sessions as sessions_lib
  from grpo_jax.step import prefix_value
  from grpo_jax.training.problem import images, llm_judge

# (record) -> arrays for the program, by name.
Arrays = Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Problem:
  """Prompts, tokens and verifiers of a run.

  Attributes:
    tokenizer: Text of ids; `pad_id`, `end_ids`, `vocab_size`.
    train, held_out: Records to learn from, and to evaluate on.
    supervised: Records with the completions that the warm start imitates.
    encoder: Encoder of records as ids.
    max_prompt_len: S.
    max_new_tokens: T.
    reward: The reward of completions.
    environment: The environment that answers actions in graph; None if a
      completion is a single turn, or if `host_environment` answers.
    host_environment: The environment on the host, in `sessions`; or None.
    sessions: Worker processes of `host_environment`, a `sessions.Sessions` or a
      `served.Served`.
    score_names: Names of the scores of its sessions.
    components: Names of the rewards of a task's verifier, of functions of text,
      or of sessions; rewards by models and derived rewards are not among them.
    answer_after: Marker of an answer (`config.rewards.answer_after`).
    compaction: Rule for replacing the context of an episode by a summary, or
      None.
    truncate_completions: True if supervised completions are cut to the budget,
      False if longer ones are left out.
    complaints: Messages of verifiers that failed.
    domains: Names of the domains of prompts, by number; empty: prompts have
      none.
    limits: Most tokens of a completion of each domain; empty: all slots.
    answers: Right answers and verifier of the task, for forced answers; or
      None.
    solutions: Right answers and verifier of the task on the host, for
      corrections of wrong completions; or None.
    rubric: Rubric for a judge that is a model of the run; None without one.
    reader: Worker processes that read images; None: prompts are text alone.
    image_shapes: Shapes of the images of one prompt; None if prompts show no
      images.
    provides: Optional inputs of algorithms that come from the data or the
      verifier: "step_rewards", "turns", "state_id", "domain", "prefix_utility".
    num_threads: Threads that make batches of records ahead.
  """

  tokenizer: Any
  train: sources.Source
  held_out: sources.Source
  supervised: sources.Source
  encoder: Encoder
  max_prompt_len: int
  max_new_tokens: int
  reward: rewards_lib.RewardSum
  truncate_completions: bool
  environment: Environment | None = None
  host_environment: HostEnvironment | None = None
  sessions: Any = None
  score_names: frozenset[str] = frozenset()
  components: frozenset[str] = frozenset()
  answer_after: str = ""
  compaction: Compaction | HostCompaction | None = None
  domains: tuple[str, ...] = ()
  limits: tuple[int, ...] = ()
  answers: prefix_value.Answers | None = None
  solutions: solutions_lib.Solutions | None = None
  rubric: llm_judge.Rubric | None = None
  reader: images.Reader | None = None
  image_shapes: Images | None = None
  provides: frozenset[str] = frozenset()
  num_threads: int = 1
  complaints: unscored.Complaints = dataclasses.field(
    default_factory=unscored.Complaints
  )

  @property
  def is_served(self) -> bool:
    """True if the environment on the host calls the policy over HTTP."""
    environment = self.host_environment
    return environment is not None and environment_lib.is_served(
      environment.path
    )

  @property
  def prompt_slots(self) -> int:
    """Slots of a row's prompt: above S if later contexts begin with more."""
    if isinstance(self.compaction, HostCompaction):
      return self.compaction.prompt_len
    return self.max_prompt_len

  @functools.cached_property
  def pieces(self) -> list[bytes]:
    """The bytes of each token, for scores of steps."""
    return self.tokenizer.token_bytes()

  def bytes_of(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
    """Returns the bytes of each token; for end tokens, their names."""
    text = self.tokenizer
    try:
      pieces = self.pieces
    except (AttributeError, ValueError):
      # An alphabet, whose texts are concatenated from those of the ids; or a
      # tokenizer whose tokens have no known bytes.
      pieces = []
    special = {text.pad_id, *text.end_ids}
    # A checkpoint may have more ids than its tokenizer.
    special |= {int(id_) for id_ in ids if int(id_) >= len(pieces)}
    return [
      text.exact_text([int(id_)]).encode("utf-8", "replace")
      if int(id_) in special
      else pieces[int(id_)]
      for id_ in ids
    ]

  def close(self) -> None:
    """Ends the worker processes."""
    self.reward.close()
    if self.sessions is not None:
      self.sessions.close()
    if self.reader is not None:
      self.reader.close()

  def prompt_stream(
    self,
    seed: int,
    num_prompts: int,
    max_prompt_len: int | None,
    rows: Sequence[int] | None = None,
    names: Sequence[str] = (),
    hints: Arrays | None = None,
  ):
    """Iterates over shuffled `PromptBatch`es without an end.

    Args:
      max_prompt_len: Longer prompts are left out; None: those that do not fit.
      rows: Rows of each batch to make; None: all.
      names: Domains whose prompts are taken; empty: all.
      hints: (record) -> arrays for the corrections of its completions.

    Raises:
      ValueError: No prompt is of these domains, or they cannot be selected.
    """
    return iter(
      pipeline.prompt_stream(
        self.of_domains(self.train, names),
        self.encoder,
        batch_size=num_prompts,
        max_prompt_len=max_prompt_len or self.max_prompt_len,
        seed=seed,
        pad_id=self.tokenizer.pad_id,
        rows=rows,
        more=self.arrays(hints),
        num_threads=self.num_threads,
      )
    )

  def arrays(self, hints: Arrays | None = None) -> Arrays | None:
    """Returns (record) -> arrays beside its extras; None if there are none."""
    functions: list[Arrays] = [self.rubric.arrays] if self.rubric else []
    if hints is not None:
      functions.append(hints)
    if not functions:
      return None
    return lambda record: {
      name: x for of in functions for name, x in of(record).items()
    }

  def supervised_stream(
    self,
    seed: int,
    num_prompts: int,
    max_prompt_len: int | None,
    rows: Sequence[int] | None = None,
    names: Sequence[str] = (),
    source: sources.Source | None = None,
  ):
    """Iterates over `SupervisedBatch`es, of `source` if one is given."""
    if source is None:
      source = self.of_domains(self.supervised, names)
    return iter(
      pipeline.supervised_stream(
        source,
        self.encoder,
        batch_size=num_prompts,
        max_prompt_len=max_prompt_len or self.max_prompt_len,
        max_completion_len=self.max_new_tokens,
        seed=seed,
        pad_id=self.tokenizer.pad_id,
        end_id=self.tokenizer.end_ids[0],
        truncate_completions=self.truncate_completions,
        rows=rows,
        num_threads=self.num_threads,
      )
    )

  def pair_stream(
    self,
    seed: int,
    num_prompts: int,
    max_prompt_len: int | None,
    rows: Sequence[int] | None = None,
    names: Sequence[str] = (),
  ):
    """Iterates over pairs of completions; `rows` are rows of prompts."""
    return iter(
      pipeline.pair_stream(
        self.of_domains(self.train, names),
        self.encoder,
        batch_size=num_prompts,
        max_prompt_len=max_prompt_len or self.max_prompt_len,
        max_completion_len=self.max_new_tokens,
        seed=seed,
        pad_id=self.tokenizer.pad_id,
        end_id=self.tokenizer.end_ids[0],
        rows=rows,
        num_threads=self.num_threads,
      )
    )

  def of_domains(
    self, source: sources.Source, names: Sequence[str]
  ) -> sources.Source:
    """The records of some domains; all records if no domain is named."""
    if not names:
      return source
    return domains_lib.only(
      source, domains_lib.numbers(self.domains, names, "domains of a phase")
    )

  def texts(self, tokens: np.ndarray, mask: np.ndarray) -> list[str]:
    """Decodes each row's existing tokens."""
    return [
      self.tokenizer.decode(row[exists].tolist())
      for row, exists in zip(tokens, mask, strict=True)
    ]

  def prompt_texts(self, records: Sequence[dict]) -> list[str]:
    """The text of each prompt, as a person reads it."""
    return [
      record["prompt"]
      if isinstance(record["prompt"], str)
      else self.tokenizer.decode(record["prompt"].tolist())
      for record in records
    ]

  def begin_sessions(
    self, batch: pipeline.PromptBatch, index: np.ndarray, seeds: np.ndarray
  ) -> sessions_lib.Episodes:
    """Begins a session for each row.

    Args:
      index: [B] Prompt of each row.
      seeds: [B] uint32.
    """
    assert self.sessions is not None
    assert not self.is_served
    prompts = self.prompt_texts(batch.records)
    extras = [rewards_lib.plain_extras(record) for record in batch.records]
    return self.sessions.begin(
      [prompts[i] for i in index], [extras[i] for i in index], seeds.tolist()
    )

  def score_texts(
    self, records: Sequence[dict], texts: Sequence[str], ids: Sequence[int]
  ) -> host.WorkerScores:
    """Scores a text for each record with the functions of text."""
    assert self.reward.on_host is not None
    return self.reward.on_host.scorer.score(
      self.prompt_texts(records),
      texts,
      ids,
      [rewards_lib.plain_extras(record) for record in records],
      [self.encoder.completion({"completion": x}).tolist() for x in texts],
    )

  def host_scores(
    self,
    batch: pipeline.PromptBatch,
    rollout: Rollout,
    reward: rewards_lib.RewardSum | None = None,
    evaluates: bool = False,
  ) -> tuple[rewards_lib.HostScores, dict[str, int], dict[int, str]]:
    """Scores fetched completions with the verifiers on the host.

    Args:
      rollout: NumPy arrays; `prompt_index` counts the prompts of `batch`.
      reward: The reward to ask; None: that of the problem.
      evaluates: True if a row that times out twice is wrong
        (`rewards.workers.host.score`).

    Returns:
      Scores as NumPy arrays, failures by kind, and the messages of failed rows.
    """
    reward = reward or self.reward
    index = np.asarray(rollout.prompt_index)
    prompts = self.prompt_texts(batch.records)
    ids = np.asarray(batch.prompts.ids)
    extras = [rewards_lib.plain_extras(record) for record in batch.records]
    tokens = np.asarray(rollout.tokens)
    mask = np.asarray(rollout.completion_mask)
    texts = self.texts(tokens, mask)
    scores = reward.host_scores(
      [prompts[i] for i in index],
      texts,
      [int(ids[i]) for i in index],
      [extras[i] for i in index],
      [row[exists].tolist() for row, exists in zip(tokens, mask, strict=True)],
      again=reward.correct if evaluates else None,
    )
    steps: Any = None
    if scores.steps is not None:
      steps = rewards_lib.token_scores(
        scores.steps, texts, tokens, mask, self.pieces
      )
    components: dict[str, Any] = dict(scores.components)
    failed: Any = scores.failed
    return (
      rewards_lib.HostScores(components, failed, steps),
      scores.failures,
      scores.messages,
    )


def make_problem(config: config_lib.RunConfig, starts: bool = True) -> Problem:
  """Opens data, tokenizer and verifiers.

  Args:
    starts: True if sessions of an environment are started. A launcher needs
      none.

  Raises:
    KeyError, ValueError, FileNotFoundError: A setting is wrong, or a file is
      missing.
  """
  problem = _make_problem(config, starts)
  problem = dataclasses.replace(
    problem,
    num_threads=config.data.num_threads,
    limits=domains_lib.limits(
      problem.domains, config.sampling.domain_limits, problem.max_new_tokens
    ),
  )
  if not config.judge.rubric or config.judge.service.url:
    return problem
  try:
    return _with_reader(config, problem)
  except BaseException:
    problem.close()
    raise


def _with_reader(config: config_lib.RunConfig, problem: Problem) -> Problem:
  """Adds a judge that is a model of the run, and its rubric, to a problem."""
  from grpo_jax.training.problem import llm_judge  # Reads rows of bytes.

  rubric = llm_judge.rubric(
    config.judge, problem.tokenizer, problem.max_prompt_len, problem.train[0]
  )
  reader = llm_judge.by_reading(config.judge, problem.tokenizer)
  reward = dataclasses.replace(
    problem.reward, rewards=(*problem.reward.rewards, reader)
  )
  return dataclasses.replace(problem, reward=reward, rubric=rubric)


def _make_problem(config: config_lib.RunConfig, starts: bool) -> Problem:
  data = config.data
  if data.is_made_of_ids:
    problem = _task_problem(config)
  else:
    from grpo_jax.training.problem import texts  # Tokenizers, files, processes.

    problem = Problem(**texts.fields(config))
  if not data.environment or problem.is_served:
    return problem
  from grpo_jax.training.problem import sessions  # Processes of environments.

  return sessions.with_sessions(config, problem, starts)


def _answers(task: Task, correct: str) -> prefix_value.Answers | None:
  """Right answers and verifier of a task, if it has both."""
  if task.right_answer is None or task.verify is None:
    return None
  from grpo_jax.step import prefix_value

  return prefix_value.Answers(
    task.right_answer,
    functools.partial(solutions_lib.reward, task.verify, correct),
    task.pad_id,
  )


def _task_problem(config: config_lib.RunConfig) -> Problem:
  task_data = tasks.make(config.data, config.seed)
  task, train = task_data.task, task_data.train
  text = observations.TaskTokenizer(task)
  prompt_len = config.data.max_prompt_len or task.max_prompt_len
  components: set[str] = set()
  if not config.data.environment:
    # The first record tells at once which components the verifier has.
    components = solutions_lib.names(task, train[0]["extras"])
    rewards_lib.check_names(
      f"the verifier of task {task.name!r}", config, sorted(components)
    )

  def of_rows(function, prompts: Prompts, rollout: Rollout):
    extras = jax.tree.map(lambda x: x[rollout.prompt_index], prompts.extras)
    return jax.vmap(function)(rollout.tokens, rollout.completion_mask, extras)

  verifier = rewards_lib.InGraph(
    rewards_lib.of_episodes
    if task.verify is None
    else functools.partial(of_rows, task.verify),
    None
    if task.step_scores is None
    else functools.partial(of_rows, task.step_scores),
  )

  correct = config.rewards.correct or "accuracy"
  return Problem(
    tokenizer=text,
    train=train,
    held_out=task_data.held_out,
    supervised=task_data.supervised,
    encoder=Encoder(text),
    max_prompt_len=prompt_len,
    max_new_tokens=config.sampling.max_new_tokens or task.max_completion_len,
    reward=rewards_lib.make(config, verifier, correct, task_data.domains),
    truncate_completions=False,
    components=frozenset(components),
    environment=task.environment,
    compaction=task.compaction,
    answers=_answers(task, correct),
    solutions=solutions_lib.of_task(task, correct),
    domains=task_data.domains,
    # All prompts of a task have equal shapes of images; None is an empty tree.
    image_shapes=jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype),
      train[0].get("images"),
    ),
    provides=frozenset(
      name
      for name, is_provided in {
        "step_rewards": task.step_scores is not None,
        "turns": task.environment is not None,
        "state_id": task.environment is not None,
        "domain": bool(task_data.domains),
        "prefix_utility": task.right_answer is not None,
      }.items()
      if is_provided
    ),
  )
