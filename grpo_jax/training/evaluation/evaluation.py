"""Completions of held-out prompts, with their scores by verifiers.

Figures of several completions a prompt, such as pass@k, are in `scores.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline, sources
from grpo_jax.rewards import answers
from grpo_jax.rollout import compaction, sampling
from grpo_jax.training.phases import judging, sampler
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import hosts, jit, sharding
from grpo_jax.types import Policy, Prompts, PyTree, Rollout, Scored


@dataclasses.dataclass(frozen=True)
class Completion:
  """One completion with its scores.

  Attributes:
    prompt, text: Texts for a person.
    answer: Answer that it votes for; None if it cannot be read.
    reward: Weighted sum of the components.
    correct: True if the verifier found it right.
    valid: True if it could be scored.
    num_tokens: Number of tokens that the policy wrote, with the end token; if
      contexts are compacted, in all of them.
    terminated: True if it came to an end; False if it was cut off.
    components: Rewards by name; NaN: does not apply.
    ids: Token ids of the text, with the end token; empty if they are not kept.
    observed: For each id, True if an environment wrote it; empty without an
      environment.
    error: The reason why it could not be scored; empty if it could, or if the
      reason is not known.
  """

  prompt: str
  text: str
  answer: str | None
  reward: float
  correct: bool
  valid: bool
  num_tokens: int
  terminated: bool
  components: dict[str, float]
  ids: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
  observed: tuple[bool, ...] = dataclasses.field(default=(), kw_only=True)
  error: str = dataclasses.field(default="", kw_only=True)

  @property
  def right(self) -> bool:
    """True if the completion was scored and is right."""
    return self.valid and self.correct


class Completed(NamedTuple):
  """A batch of prompts with their completions.

  Attributes:
    prompts: Prompts on the devices; the last ones may only fill the batch.
    rollout: Completions, on the devices; if contexts are compacted, the last
      contexts.
    completions: Completions that this process has judged, by their number among
      the completions of all batches.
  """

  prompts: Prompts
  rollout: Rollout
  completions: list[tuple[int, Completion]]


class Evaluator:
  """Completes the same held-out prompts again and again.

  Prompts are split over the mesh. Each process judges the completions that its
  devices hold, and gets those of the others.

  Attributes:
    num_prompts: Number of prompts (may be fewer than asked for).
    domains: Names of their domains, in their order; empty if they have none.
  """

  def __init__(
    self,
    problem: Problem,
    policy: Policy,
    mesh: Mesh,
    num_prompts: int,
    batch_size: int,
    temperature: float = 0.0,
    num_samples: int = 1,
    top_p: float | None = None,
    keeps_ids: bool = False,
  ):
    """Fixes the prompts and compiles nothing yet.

    Args:
      num_prompts: Number of held-out prompts, the first ones.
      temperature: 0 for greedy completions.
      top_p: Tokens are drawn from the most likely ones that have this share of
        the probability; None: from all.
      keeps_ids: True if completions keep their token ids.
    """
    self._problem = problem
    self._mesh = mesh
    self._num_samples = num_samples
    self._keeps_ids = keeps_ids
    self._take(problem.held_out, num_prompts, batch_size)
    config = sampling.SamplerConfig(
      max_new_tokens=problem.max_new_tokens,
      end_ids=problem.tokenizer.end_ids,
      pad_id=problem.tokenizer.pad_id,
      temperature=jit.number("eval.temperature", temperature),
      top_p=jit.number("eval.top_p", top_p),
    )
    split = sharding.row_constraint(mesh)
    reward = self._true_reward = problem.reward.without_models()
    self._score = judging.scoring_program(reward, mesh)
    if problem.host_environment is not None:
      self._complete = _with_host(problem, policy, mesh, config, num_samples)
      return
    sample = functools.partial(
      sampler.make_sample(policy, problem),
      config=config,
      group_size=num_samples,
    )

    def complete(
      params: PyTree, prompts: Prompts, key: jax.Array
    ) -> tuple[Rollout, Scored | None]:
      rollout = compaction.last_rows(sample(params, prompts, key))
      scored = None
      if reward.on_host is None:
        scored = reward.score({}, prompts, rollout)
      return split(rollout), split(scored)

    program = jit.Program(complete, sharding.replicated(mesh))
    self._complete = lambda params, prompts, key, batch: (
      *program(params, prompts, key),
      {},
    )

  def _take(
    self,
    held_out: sources.Source,
    num_prompts: int,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
  ) -> None:
    """Makes the batches of prompts, or those of prompts from `start` on."""
    problem, mesh = self._problem, self._mesh
    stop = num_prompts if stop is None else stop
    # Enough to fill the devices; rows that fill up the last batch are dropped.
    batch_size = min(batch_size, num_prompts)
    batch_size += -batch_size % mesh.size
    rows = sharding.by_rows(mesh)
    batches = pipeline.evaluation_batches(
      held_out,
      problem.encoder,
      num_prompts,
      batch_size=batch_size,
      max_prompt_len=problem.max_prompt_len,
      pad_id=problem.tokenizer.pad_id,
      rows=sharding.local_rows(rows, batch_size).tolist(),
      start=start,
      stop=stop,
    )
    # Copied to the devices once: the loop runs under a transfer guard.
    self._batches = [
      (batch, sharding.from_local(batch.prompts, rows)) for batch, _ in batches
    ]
    self._batch_size = batch_size
    last = min(start + len(batches) * batch_size, num_prompts)
    self.num_prompts = last - start
    has_domains = problem.domains and "domain" in held_out[0]["extras"]
    self.domains = [
      problem.domains[int(held_out[i]["extras"]["domain"])]
      for i in range(start, last if has_domains else start)
    ]

  def on(
    self,
    held_out: sources.Source,
    num_prompts: int,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
  ) -> Evaluator:
    """Evaluates other prompts; batches of equal shapes share a program.

    Args:
      num_prompts: Number of prompts, the first ones.
      start, stop: Only the batches that begin at `start` or later, and before
        `stop`. The draws for a prompt do not depend on them.
    """
    evaluator = copy.copy(self)
    evaluator._take(held_out, num_prompts, batch_size, start, stop)
    return evaluator

  def completions(
    self, params: PyTree, key: jax.Array
  ) -> list[list[Completion]]:
    """The scored completions of each held-out prompt."""
    own = [row for part in self.parts(params, key) for row in part.completions]
    numbered = [(number, dataclasses.asdict(row)) for number, row in own]
    everyone = [item for part in hosts.gather(numbered) for item in part]
    everyone.sort(key=lambda item: item[0])
    rows = [Completion(**row) for _, row in everyone]
    size = self._num_samples
    return [rows[i * size : (i + 1) * size] for i in range(self.num_prompts)]

  def parts(self, params: PyTree, key: jax.Array) -> Iterator[Completed]:
    """Yields the scored completions of each batch, with its arrays."""
    for number, (batch, prompts) in enumerate(self._batches):
      rollout, scored, errors = self._complete(params, prompts, key, batch)
      start = number * self._batch_size * self._num_samples
      pairs = self._judge(batch, prompts, rollout, scored, errors)
      completions = [(start + index, row) for index, row in pairs]
      yield Completed(prompts, rollout, completions)

  def rollouts(
    self, params: PyTree, key: jax.Array
  ) -> list[tuple[Prompts, Rollout]]:
    """The rollouts that `completions` judges, filled up to whole batches."""
    return [
      (prompts, self._complete(params, prompts, key, batch)[0])
      for batch, prompts in self._batches
    ]

  def _judge(
    self,
    batch: pipeline.PromptBatch,
    prompts: Prompts,
    rollout: Rollout,
    scored: Scored | None,
    errors: judging.Errors,
  ) -> list[tuple[int, Completion]]:
    """The completions that this process judges, by their number."""
    problem = self._problem
    num_rows = len(rollout.prompt_index)
    numbers = judging.judged_rows(self._mesh, num_rows)
    local = judging.rollout_to_judge(self._mesh, rollout)
    if scored is None:
      scores, _, messages = problem.host_scores(
        batch, local, self._true_reward, evaluates=True
      )
      errors = judging.errors_of(self._mesh, batch, num_rows, messages)
      problem.complaints.log("a verifier failed in an evaluation", messages)
      scores = scores._replace(steps=None)
      if not self._true_reward.is_host_alone:
        scores = sharding.from_local(scores, sharding.by_rows_once(self._mesh))
        scored = self._score(prompts, rollout, scores)
    if scored is None:
      local_scores = self._true_reward.score_on_host(scores)
    else:
      arrays = dataclasses.replace(
        scored, weights={}, step_rewards=None, step_mask=None
      )
      local_scores = judging.to_judge(self._mesh, arrays, num_rows)
    rows = completions_of(
      problem.prompt_texts(batch.records),
      problem.texts(
        np.asarray(local.tokens), np.asarray(local.completion_mask)
      ),
      local,
      local_scores,
      problem.answer_after,
      _by_row(batch, local, numbers % self._num_samples, errors),
    )
    if not self._keeps_ids:
      rows = [dataclasses.replace(x, ids=(), observed=()) for x in rows]
    return list(zip(numbers.tolist(), rows, strict=True))


def _by_row(
  batch: pipeline.PromptBatch,
  rollout: Rollout,
  places: np.ndarray,  # [B], in the group of each row.
  errors: judging.Errors,
) -> list[str]:
  """The error message of each row that this process judges, or ""."""
  ids = np.asarray(batch.prompts.ids)[np.asarray(rollout.prompt_index)]
  return [
    errors.get((int(id_), int(place)), "")
    for id_, place in zip(ids, places, strict=True)
  ]


def completions_of(
  prompts: Sequence[str],
  texts: Sequence[str],
  rollout: Rollout,
  scored: Scored,
  answer_after: str = "",
  errors: Sequence[str] | None = None,
) -> list[Completion]:
  """The scored completions of a rollout of NumPy arrays.

  A completion that was cut off has no vote, since its answer is not known.

  Args:
    prompts: Texts by `rollout.prompt_index`.
    answer_after: Marker of an answer; see `answers.vote`.
    errors: The reason why each row could not be scored; None: not known.
  """
  exists = np.asarray(rollout.completion_mask)
  observed, lengths = rollout.observed, rollout.lengths
  return [
    Completion(
      prompt=prompts[int(rollout.prompt_index[b])],
      text=text,
      answer=answers.vote(text, answer_after)
      if rollout.terminated[b]
      else None,
      reward=float(scored.rewards[b]),
      correct=bool(scored.correct[b]),
      valid=bool(scored.valid[b]),
      num_tokens=int(lengths[b]),
      terminated=bool(rollout.terminated[b]),
      components={k: float(v[b]) for k, v in scored.components.items()},
      ids=tuple(rollout.tokens[b][exists[b]].tolist()),
      observed=()
      if observed is None
      else tuple(observed[b][exists[b]].tolist()),
      error=errors[b] if errors else "",
    )
    for b, text in enumerate(texts)
  ]


def _with_host(
  problem: Problem,
  policy: Policy,
  mesh: Mesh,
  config: sampling.SamplerConfig,
  num_samples: int,
) -> Callable[..., tuple[Rollout, Scored | None, judging.Errors]]:
  """Makes (params, prompts, key, batch) -> episodes, scores and error messages.

  The environment is on the host.
  """
  from grpo_jax.training.phases import host_sampler  # Starts processes.

  turns = host_sampler.make_turns(policy, problem, config, num_samples)
  sampler = host_sampler.host_episodes(
    problem, mesh, turns, keeps_contexts=False
  )

  def complete(params, prompts, key, batch):
    samples = sampler.sample(params, prompts, key, batch)
    return samples.rollout, samples.scored, samples.errors

  return complete


def summarize(
  results: Sequence[Sequence[Completion]],
  domains: Sequence[str] = (),
  consistent: str = "",
) -> dict[str, float]:
  """The accuracy and mean rewards of a policy, over all its completions.

  Args:
    domains: Name of the domain of each prompt; empty: there are none.
    consistent: The component that tells if answers follow from the reasoning;
      empty, or absent from these completions: not known.

  Returns:
    `eval/accuracy`, the share of right answers among all completions; one that
    could not be scored is not right. `eval/accuracy_scored`, `eval/reward` and
    `eval/reward/<component>` are means over those that were scored. All of
    these are NaN if none was. `eval/length` is in tokens; `eval/unscored` is a
    count. For each domain the same under `eval/domain/NAME/`, without
    components; and `eval/macro_accuracy`, the mean of their accuracies.
    `eval/quadrants/…` as in training (`step/metrics.py`), if `consistent` is
    known.
  """
  rows = [row for group in results for row in group]
  scored = [row for row in rows if row.valid]
  summary = {
    "eval/accuracy": _mean([row.right for row in rows if scored]),
    "eval/accuracy_scored": _mean([row.correct for row in scored]),
    "eval/reward": _mean([row.reward for row in scored]),
    "eval/length": _mean([row.num_tokens for row in rows]),
    "eval/unscored": float(len(rows) - len(scored)),
  }
  for name in rows[0].components:
    values = [row.components[name] for row in scored]
    summary[f"eval/reward/{name}"] = _mean(
      [value for value in values if not math.isnan(value)]
    )
  if consistent in rows[0].components:
    summary |= _quadrants(scored, consistent)
  for domain in dict.fromkeys(sorted(domains)):
    part = [x for x, y in zip(results, domains, strict=True) if y == domain]
    for key, value in summarize(part).items():
      if not key.startswith("eval/reward/"):
        name = key.removeprefix("eval/")
        summary[f"eval/domain/{domain}/{name}"] = value
  if domains:
    summary["eval/macro_accuracy"] = _mean(
      [summary[f"eval/domain/{name}/accuracy"] for name in {*domains}]
    )
  return summary


def _quadrants(
  scored: Sequence[Completion], consistent: str
) -> dict[str, float]:
  """Shares of answers that follow from the reasoning, and that are right."""
  rows = [x for x in scored if not math.isnan(x.components[consistent])]
  pairs = [(x.components[consistent] >= 0.5, x.correct) for x in rows]
  shares = {
    f"{sign}consistent_{kind}": _mean([x == (follows, right) for x in pairs])
    for sign, follows in (("", True), ("in", False))
    for kind, right in (("right", True), ("wrong", False))
  }
  shares["inconsistent"] = _mean([not follows for follows, _ in pairs])
  return {f"eval/quadrants/{name}": x for name, x in shares.items()}


def _mean(values: Sequence[float]) -> float:
  """The mean; NaN if there is nothing to average."""
  return float(np.mean(values)) if len(values) else math.nan
