"""Held-out evaluation: greedy accuracy, pass@k and maj@k."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.rewards import answers
from grpo_jax.rollout import compaction, sampling
from grpo_jax.training import hosts, players, sharding
from grpo_jax.training import problem as problem_lib
from grpo_jax.training.problem import Problem
from grpo_jax.types import Policy, Prompts, PyTree, Rollout, Scored


@dataclasses.dataclass(frozen=True)
class Completion:
  """One judged completion."""

  prompt: str
  text: str
  answer: str | None  # what it votes for; None if it cannot be read
  reward: float
  correct: bool
  valid: bool
  num_tokens: int
  components: dict[str, float]

  @property
  def right(self) -> bool:
    """Scored, and found correct."""
    return self.valid and self.correct


class Evaluator:
  """Completes the same held-out prompts again and again.

  They are split over the mesh. Each process judges the completions that its
  devices hold, and gets those of the others.

  Attributes:
    num_prompts: How many there are (may be fewer than asked for).
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
  ):
    """Fixes the prompts and compiles nothing yet.

    Args:
      problem: Prompts and verifiers.
      policy: The model.
      mesh: Of the run.
      num_prompts: The first so many of the held-out prompts.
      batch_size: Prompts per batch.
      temperature: 0 for greedy completions.
      num_samples: Completions per prompt.
    """
    self._problem = problem
    self._mesh = mesh
    # Enough to fill the devices; what fills up the last batch is dropped.
    batch_size = min(batch_size, num_prompts)
    batch_size += -batch_size % mesh.size
    rows = sharding.by_rows(mesh)
    batches = pipeline.evaluation_batches(
      problem.held_out,
      problem.encoder,
      num_prompts,
      batch_size=batch_size,
      max_prompt_len=problem.max_prompt_len,
      pad_id=problem.tokenizer.pad_id,
      rows=sharding.local_rows(rows, batch_size).tolist(),
    )
    # On the device once: the loop runs under a transfer guard.
    self._batches = [
      (batch, sharding.from_local(batch.prompts, rows)) for batch, _ in batches
    ]
    self._batch_size = batch_size
    self.num_prompts = num_prompts
    self._num_samples = num_samples
    config = sampling.SamplingConfig(
      max_new_tokens=problem.max_new_tokens,
      end_ids=problem.tokenizer.end_ids,
      pad_id=problem.tokenizer.pad_id,
      temperature=temperature,
    )
    split = sharding.row_constraint(mesh)
    judge = self._judge_of_truth = problem.judge.without_members()
    if problem.host_environment is not None:
      self._complete = _with_host(problem, policy, mesh, config, num_samples)
      return
    sample = functools.partial(
      players.make_sample(policy, problem),
      config=config,
      group_size=num_samples,
    )

    @jax.jit
    def complete(
      params: PyTree, prompts: Prompts, key: jax.Array
    ) -> tuple[Rollout, Scored | None]:
      rollout = compaction.last_rows(sample(params, prompts, key))
      scored = None
      if judge.on_host is None:
        scored = judge.score({}, prompts, rollout)
      return split(rollout), split(scored)

    self._complete = lambda params, prompts, key, batch: complete(
      params, prompts, key
    )

  def completions(
    self, params: PyTree, key: jax.Array
  ) -> list[list[Completion]]:
    """For each held-out prompt its judged completions."""
    own: list[tuple[int, Completion]] = []
    for number, (batch, prompts) in enumerate(self._batches):
      rollout, scored = self._complete(params, prompts, key, batch)
      start = number * self._batch_size * self._num_samples
      own += [
        (start + index, row)
        for index, row in self._judge(batch, rollout, scored)
      ]
    told = [(number, dataclasses.asdict(row)) for number, row in own]
    everyone = [item for part in hosts.gather(told) for item in part]
    everyone.sort(key=lambda item: item[0])
    rows = [Completion(**row) for _, row in everyone]
    size = self._num_samples
    return [rows[i * size : (i + 1) * size] for i in range(self.num_prompts)]

  def _judge(
    self, batch: pipeline.PromptBatch, rollout: Rollout, scored: Scored | None
  ) -> list[tuple[int, Completion]]:
    """The completions that are this process's to judge, by their number."""
    problem = self._problem
    num_rows = len(rollout.prompt_index)
    numbers = problem_lib.judged_rows(self._mesh, num_rows)
    local = problem_lib.rollout_to_judge(self._mesh, rollout)
    if scored is None:
      answer, _, errors = problem.ask_host(batch, local, evaluates=True)
      problem.complaints.log("a verifier failed in an evaluation", errors)
      verdict = self._judge_of_truth.score_on_host(answer)
    else:
      said = dataclasses.replace(
        scored, weights={}, step_rewards=None, step_mask=None
      )
      verdict = problem_lib.to_judge(self._mesh, said, num_rows)
    rows = completions_of(
      problem.prompt_texts(batch.records),
      problem.texts(
        np.asarray(local.tokens), np.asarray(local.completion_mask)
      ),
      local,
      verdict,
    )
    return list(zip(numbers.tolist(), rows, strict=True))


def completions_of(
  prompts: Sequence[str],
  texts: Sequence[str],
  rollout: Rollout,
  verdict: Scored,
) -> list[Completion]:
  """The judged completions of a rollout, as NumPy arrays.

  One that was cut off has no vote: what it would have come to is not known.

  Args:
    prompts: By `rollout.prompt_index`.
    texts: One of each row.
    rollout: The rows.
    verdict: What was said of them.
  """
  return [
    Completion(
      prompt=prompts[int(rollout.prompt_index[b])],
      text=text,
      answer=answers.vote(text) if rollout.terminated[b] else None,
      reward=float(verdict.rewards[b]),
      correct=bool(verdict.correct[b]),
      valid=bool(verdict.valid[b]),
      num_tokens=int(rollout.written[b].sum()),
      components={k: float(v[b]) for k, v in verdict.components.items()},
    )
    for b, text in enumerate(texts)
  ]


def _with_host(
  problem: Problem,
  policy: Policy,
  mesh: Mesh,
  config: sampling.SamplingConfig,
  num_samples: int,
) -> Callable[..., tuple[Rollout, Scored | None]]:
  """(params, prompts, key, batch) -> judged episodes of a host environment."""
  turns = players.make_turns(policy, problem, config, num_samples)
  player = players.HostEpisodes(problem, mesh, turns)

  def complete(params, prompts, key, batch):
    played = player.play(params, prompts, key, batch)
    return played.rollout, played.scored

  return complete


def summarize(results: list[list[Completion]]) -> dict[str, float]:
  """What a policy is worth, over all its completions.

  Returns:
    `eval/accuracy`, the share of right answers among all completions: one that
    could not be scored is not right. `eval/accuracy_scored`, `eval/reward` and
    `eval/reward/<component>` are means over those that were, and NaN if there
    are none; `eval/length` is in tokens; `eval/unscored` counts.
  """
  rows = [row for group in results for row in group]
  scored = [row for row in rows if row.valid]
  summary = {
    "eval/accuracy": _mean([row.right for row in rows]),
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
  return summary


def table(
  greedy: list[list[Completion]], sampled: list[list[Completion]]
) -> dict[str, dict[str, float | None]]:
  """Accuracy of greedy completions, and pass@k and maj@k of sampled ones.

  Args:
    greedy: One completion of each prompt.
    sampled: Several, as many of each.

  Returns:
    Name -> "value" and its 95 % interval, "low" and "high". "greedy" is over
    all prompts and "greedy_scored" over those whose completion was scored, None
    if there are none; the others, for k = 1, 2, 4, …, are means over all
    prompts. A completion that could not be scored is not right.
  """
  firsts = [group[0] for group in greedy]
  num_right = sum(row.right for row in firsts)
  num_scored = sum(row.valid for row in firsts)
  rows = {
    "greedy": _row(
      num_right / len(firsts), wilson_interval(num_right, len(firsts))
    ),
    "greedy_scored": _row(
      num_right / num_scored if num_scored else None,
      wilson_interval(num_right, num_scored),
    ),
  }
  k = 1
  while k <= len(sampled[0]):
    passes = [
      pass_at_k(len(group), sum(row.right for row in group), k)
      for group in sampled
    ]
    votes = [
      majority_at_k(
        [row.answer for row in group], [row.right for row in group], k
      )
      for group in sampled
    ]
    for name, values in ((f"pass@{k}", passes), (f"maj@{k}", votes)):
      rows[name] = _row(sum(values) / len(values), bootstrap_interval(values))
    k *= 2
  return rows


def _row(
  value: float | None, interval: tuple[float, float]
) -> dict[str, float | None]:
  return {"value": value, "low": interval[0], "high": interval[1]}


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
  """Chance that k of the samples, drawn without replacement, hold a right one.

      1 − C(n − c, k) / C(n, k), as a product that cannot overflow.

  Source: Chen et al., "Evaluating Large Language Models Trained on Code",
  arXiv:2107.03374, Section 2.1.
  """
  if num_samples - num_correct < k:
    return 1.0
  miss = 1.0
  for i in range(num_samples - num_correct + 1, num_samples + 1):
    miss *= 1.0 - k / i
  return 1.0 - miss


def majority_at_k(
  answers: Sequence[str | None],
  correct: Sequence[bool],
  k: int,
  num_subsets: int = 256,
  seed: int = 0,
) -> float:
  """Chance that the most frequent of k answers is right.

  Ties are broken at random (their average counts); an answer that could not
  be read never votes. With k below the number of samples, the mean over
  `num_subsets` random subsets.
  """
  rng = np.random.default_rng(seed)
  everything = np.arange(len(answers))
  subsets = (
    [everything]
    if k >= len(answers)
    else [rng.choice(everything, k, replace=False) for _ in range(num_subsets)]
  )
  right = {a for a, c in zip(answers, correct, strict=True) if c}
  scores = []
  for subset in subsets:
    votes = collections.Counter(
      answers[int(i)] for i in subset if answers[int(i)] is not None
    )
    most = max(votes.values(), default=0)
    winners = [answer for answer, n in votes.items() if n == most]
    # If nobody votes, there is no right answer.
    scores.append(_mean([answer in right for answer in winners] or [False]))
  return _mean(scores)


def wilson_interval(num_correct: float, count: int) -> tuple[float, float]:
  """95 % interval of a share.

  Source: Wilson, "Probable inference, the law of succession, and statistical
  inference", JASA 22, 1927.
  """
  if count == 0:
    return 0.0, 1.0
  z = 1.959964
  share = num_correct / count
  scale = 1 + z * z / count
  center = (share + z * z / (2 * count)) / scale
  half = (
    z
    * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    / scale
  )
  return max(0.0, center - half), min(1.0, center + half)


def bootstrap_interval(
  values: Sequence[float], num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
  """95 % percentile interval of the mean over prompts."""
  rng = np.random.default_rng(seed)
  array = np.asarray(values, float)
  index = rng.integers(len(array), size=(num_resamples, len(array)))
  low, high = np.percentile(array[index].mean(axis=1), [2.5, 97.5])
  return float(low), float(high)


def _mean(values: Sequence[float]) -> float:
  """NaN if there is nothing to average."""
  return float(np.mean(values)) if len(values) else math.nan
