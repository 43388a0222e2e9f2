"""Checks of the data of a run, and of its verifier, before it trains.

Every run first calls `before_training`, which reads as many records as are
needed to see that there are enough different prompts. `records` and `verifier`
check more, for runs with guards and for `grpo-lint`. `disagreements`
asks a policy that exists already.
"""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import tasks
from grpo_jax.data import quality, sources
from grpo_jax.data.encoder import Unusable
from grpo_jax.data.quality import Finding
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import hosts

PER_PROMPT = 8  # Different prompts for each prompt of a step.
# Largest share of one prompt in the records of a data set.
_MAX_SHARE = 0.05
_MIN_RECORDS = 100
# Share of samples that agree on another answer than the label.
_AGREED = 0.75
_NUM_GOLDS = 16  # Reference answers on which a verifier is tried.
# Forms that make a completion of a reference answer.
_FORMS = "{}", "<answer>{}</answer>", r"\boxed{{{}}}", "#### {}"
_NUM_RECORDS = 2000  # Records that runs with guards check.
_MOST_COMPARED = 100_000  # Training records beside the held-out ones.
_NUM_SHOWN = 32  # Records whose images are in memory at once.
_MAX_TRIES = 256  # Records that are tried for completions of a task's teacher.


def before_training(config: config_lib.RunConfig, problem: Problem) -> None:
  """Warns of too few prompts, and of held-out ones that are trained on.

  Nothing is compiled yet. A run that refuses bad data checks everything that
  `grpo-lint` checks.

  Raises:
    ValueError: `config.guards` refuses such data.
  """
  mode = config.guards.lint
  target = num_needed(config)
  if mode == "off" or not target:
    return
  refuses = mode == "refuse" or config.guards.on
  if refuses:
    findings = records(config, problem, max(2 * target, _NUM_RECORDS))
    findings += verifier(config, problem)
  else:
    findings = of_number(problem, target, 2 * target)
    findings += of_held_out(config, problem, 2 * target)
  for finding in findings:
    if refuses and finding.is_error:
      raise ValueError(
        f"data lint: {finding.message} (config.guards.lint='off' does not"
        " look.)"
      )
    if hosts.is_main():
      logging.warning("data lint: %s", finding.message)


def num_needed(config: config_lib.RunConfig) -> int:
  """Different prompts that a run should have; 0 if it draws no completions."""
  sizes = [phase.num_prompts for phase in config.stages if phase.samples]
  return PER_PROMPT * max(sizes, default=0)


def of_number(problem: Problem, target: int, num_records: int) -> list[Finding]:
  """Errors of the first records: too few prompts, or a too frequent one."""
  number = min(num_records, len(problem.train))
  keys = [_identity(problem, i) for i in range(number)]
  findings = quality.of_count(
    len({*keys}), number, target, number == len(problem.train)
  )
  (_, size), *_ = collections.Counter(keys).most_common(1)
  if number >= _MIN_RECORDS and size > _MAX_SHARE * number:
    findings.append(
      Finding(
        "one prompt",
        True,
        f"one prompt is {size} of the first {number} records; the most that is"
        f" well is a share of {_MAX_SHARE:g}. Keep one copy of it.",
      )
    )
  return findings


def of_held_out(
  config: config_lib.RunConfig, problem: Problem, num_records: int
) -> list[Finding]:
  """A warning about held-out prompts that are training prompts too.

  Args:
    problem: Its problem. Held-out prompts of a task are others by themselves,
      and what an environment asks may depend on more than a prompt.
    num_records: Training records to compare, if these are read one at a time;
      of others 100,000 are.
  """
  is_made = sources.task_of(problem.train) is not None
  if is_made or problem.host_environment is not None:
    return []
  if sources.starts(problem.train) is None:
    num_records = _MOST_COMPARED
  number = min(config.eval.num_prompts, len(problem.held_out))
  held_out = {_prompt(problem.held_out[i]) for i in range(number)}
  both = {
    i: prompt
    for i in range(min(num_records, len(problem.train)))
    if (prompt := _prompt(problem.train[i])) in held_out
  }
  if not both:
    return []
  return [
    Finding(
      "held out",
      False,
      f"{len({*both.values()})} of {len(held_out)} held-out prompts are"
      f" training prompts too, such as record {min(both)}: evaluations say"
      " less about others than they seem to. Name others in"
      " config.data.eval_path or eval_split, or leave these out of training"
      " with --out and --config.data.quarantine.",
      tuple(both),
    )
  ]


def _prompt(record: Mapping[str, Any]) -> tuple[str, ...]:
  """A prompt of text with its tools and images, for comparison."""
  options = getattr(record["prompt"], "options", None)
  return str(record["prompt"]), repr(options), repr(record.get("pictures"))


def _identity(problem: Problem, number: int) -> tuple[Any, ...]:
  """The identity of a record: its prompt, and the verifier's arrays.

  A task's images are part of the prompt.
  """
  record = problem.train[number]
  pictures = record.get("images")
  images = [] if pictures is None else [np.asarray(pictures.patches).tobytes()]
  arrays = [
    (name, np.asarray(value).tobytes())
    for name, value in sorted(record["extras"].items())
    if isinstance(value, np.ndarray | np.generic)
  ]
  return (*problem.encoder.content(record), *images, *arrays)


def records(
  config: config_lib.RunConfig, problem: Problem, num_records: int
) -> list[Finding]:
  """Checks of the first records that need no policy.

  Prompts that a task makes are drawn with repetition, so copies among them are
  not a mistake.
  """
  number = min(num_records, len(problem.train))
  findings = of_number(problem, num_needed(config), number)
  sample = [problem.train[i] for i in range(number)]
  labels = [_label(record) for record in sample]
  if sources.task_of(problem.train) is None:
    prompts = [problem.encoder.content(record) for record in sample]
    findings += quality.of_duplicates(prompts)
    findings += of_held_out(config, problem, number)
    findings += _of_images(problem, sample)
    if any(labels):
      findings += quality.of_conflicts(prompts, labels)
  if any(labels):
    attributes = [_attributes(record) for record in sample]
    findings += quality.of_skew(attributes, labels)
  if "math_accuracy" in config.rewards.functions:
    findings += _of_golds([str(record["answer"]) for record in sample])
  return findings


def _of_golds(golds: Sequence[str]) -> list[Finding]:
  """Warnings about gold answers that `math_accuracy` does not read wholly."""
  from grpo_jax.rewards import math_accuracy

  kinds = {gold: math_accuracy.reads(gold) for gold in {*golds}}
  findings = []
  for kind, verdict in (
    (
      "text",
      "are compared as text, since math-verify does not read them as a whole:"
      " only the same text is right",
    ),
    ("", "cannot be compared, and their completions are unscored"),
  ):
    bad = [i for i, gold in enumerate(golds) if kinds[gold] == kind]
    if bad:
      cases = ", ".join(f"{golds[i]!r:.60}" for i in bad[:5])
      findings.append(
        Finding(
          "golds",
          False,
          f"{len(bad)} of {len(golds)} gold answers of math_accuracy {verdict}."
          f" Such are {cases}. Write them otherwise, or leave them out with"
          " --out and --config.data.quarantine.",
          tuple(bad),
        )
      )
  return findings


def _of_images(
  problem: Problem, rows: Sequence[dict[str, Any]]
) -> list[Finding]:
  """A warning about records whose images cannot be shown."""
  if problem.encoder.image_encoder is None:
    return []
  bad = {
    number + i: prompt
    for number in range(0, len(rows), _NUM_SHOWN)
    for i, prompt in enumerate(
      problem.encoder.prompts(rows[number : number + _NUM_SHOWN])
    )
    if isinstance(prompt, Unusable)
  }
  if not bad:
    return []
  number, reason = next(iter(bad.items()))
  return [
    Finding(
      "images",
      False,
      f"{len(bad)} of {len(rows)} records have images that cannot be shown, as"
      f" record {number}: {reason}. Training leaves them out.",
      tuple(bad),
    )
  ]


def _label(record: Mapping[str, Any]) -> str:
  """The right answer as a text; "" if there is none."""
  extras = record["extras"]
  return record["answer"] or str(extras.get("label", extras.get("gold", "")))


def _attributes(record: Mapping[str, Any]) -> dict[str, Any]:
  """Single values of a record beside its prompt and its answer."""
  return {
    name: value.item() if isinstance(value, np.ndarray | np.generic) else value
    for name, value in record["extras"].items()
    if name not in ("label", "gold") and np.ndim(value) == 0
  }


def verifier(config: config_lib.RunConfig, problem: Problem) -> list[Finding]:
  """Errors of a verifier that accepts wrong answers, or refuses right ones.

  Golds are teachers' completions that are right, or reference answers. Each is
  changed in six ways: left empty, with nothing between the tags of its answer
  or in its box, cut in half, reversed, with one token replaced, and replaced by
  the gold of another record that differs. Most of each kind should be wrong.
  """
  if problem.sessions is not None or problem.environment is not None:
    return [_not_tried("sessions judge what an environment has seen")]
  empty: list[_Completed]
  task = sources.task_of(problem.train)
  if task is not None:
    if task.verify_numpy is None:
      return [_not_tried("the task has none on the host")]
    judge, golds = _of_task(task, problem)
    empty = [(i, task.encode(_empty_answer(task.decode(x)))) for i, x in golds]
  elif problem.reward.on_host is not None:
    judge, golds = _on_host(problem)
    empty = [(i, _empty_answer(x)) for i, x in golds]
  else:
    return [_not_tried("it is in the graph of the step")]
  if problem.reward.on_host is not None and not golds:
    return [_not_tried("the data have no reference answers")]
  marks = judge(golds)
  if not golds or not any(marks):
    return [
      Finding(
        "verifier",
        True,
        f"{problem.reward.correct!r} marks none of"
        f" {len(golds) or _MAX_TRIES} reference answers as right; look at what"
        " it compares.",
      )
    ]
  findings = []
  if (share := 1 - np.mean(marks)) > 0.1:
    findings.append(
      Finding(
        "verifier",
        False,
        f"{problem.reward.correct!r} marks {share:.0%} of {len(golds)}"
        " reference answers as wrong.",
        tuple(
          number for (number, _), x in zip(golds, marks, strict=True) if not x
        ),
      )
    )
  rates = {
    name: float(np.mean(judge(texts)))
    for name, texts in _mutations(golds, empty).items()
    if texts
  }
  bad = {name: share for name, share in rates.items() if share > 0.5}
  if bad:
    text = ", ".join(f"{name} ({share:.0%})" for name, share in bad.items())
    is_all = len(bad) == len(rates)
    findings.append(
      Finding(
        "format only" if is_all else "verifier",
        True,
        f"{problem.reward.correct!r} marks wrong answers as right: {text}."
        + (
          " It does not look at the answer, or at its form alone."
          if is_all
          else " Correct it, or config.rewards.correct."
        ),
      )
    )
  return findings


def _not_tried(reason: str) -> Finding:
  return Finding("verifier", False, f"the verifier was not tried: {reason}.")


# Number of a record, and the tokens or the text of a completion of it.
_Completed = tuple[int, Any]


def _of_task(task: tasks.Task, problem: Problem):
  """(judge of completions, right ones) of a task, by its host verifier."""
  assert task.verify_numpy is not None
  verify = task.verify_numpy

  def judge(completed: Sequence[_Completed]) -> list[bool]:
    marks = []
    for number, ids in completed:
      size = max(len(ids), task.max_completion_len)
      tokens = np.full(size, task.pad_id, np.int32)
      tokens[: len(ids)] = ids
      scores = verify(
        tokens, np.arange(size) < len(ids), problem.train[number]["extras"]
      )
      marks.append(scores[problem.reward.correct] >= 1)
    return marks

  golds: list[_Completed] = []
  for number in range(min(_MAX_TRIES, len(problem.train))):
    solution = problem.train[number]["completion"]
    if solution is not None and judge([(number, solution)])[0]:
      golds.append((number, list(solution)))
    if len(golds) == _NUM_GOLDS:
      break
  return judge, golds


def _on_host(problem: Problem):
  """(judge of completions, reference ones) of text, by the run's verifier.

  An answer alone is put into the form in which most answers are right.
  """

  def judge(completed: Sequence[_Completed]) -> list[bool]:
    numbers = [number for number, _ in completed]
    sample = [problem.train[number] for number in numbers]
    scores = problem.score_texts(sample, [x for _, x in completed], numbers)
    values = scores.components[problem.reward.correct]
    return [bool(x >= 1) for x in values]

  numbers = range(min(_NUM_GOLDS, len(problem.train)))
  lessons = [problem.supervised[number] for number in numbers]
  tries = [
    [(i, x["completion"]) for i, x in enumerate(lessons) if x["completion"]],
    *(
      [
        (i, form.format(x["answer"]))
        for i, x in enumerate(lessons)
        if x["answer"]
      ]
      for form in _FORMS
    ),
  ]
  return judge, max(tries, key=lambda golds: sum(judge(golds)) if golds else -1)


def _empty_answer(text: str) -> str:
  """The completion with an answer that is there, but empty."""
  text = re.sub(r"<answer>.*</answer>", "<answer></answer>", text, flags=re.S)
  return re.sub(r"\\boxed\{.*\}", r"\\boxed{}", text, flags=re.S)


def _mutations(
  golds: Sequence[_Completed], emptied: Sequence[_Completed]
) -> dict[str, list[_Completed]]:
  """Wrong answers made of right ones, by the kind of change."""
  names = "empty", "cut in half", "turned round", "replaced", "swapped"
  changed: dict[str, list[_Completed]] = {name: [] for name in names}
  changed["without an answer"] = [
    x for x, gold in zip(emptied, golds, strict=True) if x != gold
  ]
  for i, (number, gold) in enumerate(golds):
    empty = gold[:0]
    other = next(
      (x for _, x in [*golds[i + 1 :], *golds[:i]] if x != gold), empty
    )
    middle = len(gold) // 2
    strange = "§" if isinstance(gold, str) else [gold[0]]
    variants = {
      "empty": empty,
      "cut in half": gold[:middle],
      "turned round": gold[::-1],
      "replaced": gold[: middle - 1] + strange + gold[middle + 1 :],
      "swapped": other,
    }
    for name, text in variants.items():
      if text != gold:
        changed[name].append((number, text))
  return changed


def disagreements(
  completions: Sequence[Sequence[evaluation.Completion]],
) -> list[Finding]:
  """A warning about records whose label a policy confidently contradicts.

  Args:
    completions: For each record, some samples of a policy that is trusted.
  """
  doubtful = []
  for number, group in enumerate(completions):
    votes = collections.Counter(row.answer for row in group if row.answer)
    if not votes:
      continue
    answer, count = votes.most_common(1)[0]
    rows = [row for row in group if row.answer == answer]
    if count >= _AGREED * len(group) and not any(row.right for row in rows):
      doubtful.append(number)
  if not doubtful:
    return []
  cases = ", ".join(map(str, doubtful[:5]))
  return [
    Finding(
      "labels",
      False,
      f"{len(doubtful)} of {len(completions)} labels differ from an answer that"
      f" {_AGREED:.0%} of the policy's samples give, such as that of {cases}:"
      " either the policy is wrong, or the label. Look at them, and leave out"
      " wrong ones with --out and --config.data.quarantine.",
      tuple(doubtful),
    )
  ]
