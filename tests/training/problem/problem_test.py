"""Problems: scores of tasks and of text, and rows that nobody could score."""

import contextlib
import json
import pathlib
import types

import grain
import jax
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.data import observations, pipeline, sources
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import executors, judging
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts
from tests.experiments import tiny_config
from tests.tasks import strings
from tests.training import tiny

SAMPLE = pathlib.Path(__file__).parents[2] / "data/gsm8k_sample"


def _task_problem(name, **changes):
  config = config_lib.default_config()
  config.data.name = name
  config.rewards.functions = ("accuracy",)
  for key, value in changes.items():
    config.rewards[key] = value
  return problem_lib.make_problem(config_lib.resolve(config))


SINGLE_TURN = [
  name for name in tasks.TASKS if tasks.make_task(name).environment is None
]


def _judged(made, task, number):
  """Verdicts on random strings, and the arguments of the twin for each."""
  tokens, mask, extras = strings.make_strings(task, num_rows=number, seed=1)
  # Row b answers prompt index[b]: extras are per prompt, scores per row.
  index = np.random.default_rng(0).permutation(number)
  prompts = Prompts(
    tokens=np.zeros((number, 1), np.int32),
    mask=np.ones((number, 1), bool),
    ids=np.arange(number, dtype=np.int32),
    extras=extras,
  )
  rollout = tiny.rollout_of(tokens[index], mask[index], index)
  scored = jax.device_get(jax.jit(made.reward.score)({}, prompts, rollout))
  return scored, [
    (tokens[i], mask[i], {key: value[i] for key, value in extras.items()})
    for i in index
  ]


# `tests/tasks/task_test.py` tests every task, without a problem.
@pytest.mark.parametrize("name", tiny.each(SINGLE_TURN, fast=("sort",)))
def test_task_scores_are_those_of_the_twin(name):
  made = _task_problem(name)
  task = tasks.make_task(name)
  scored, asked = _judged(made, task, 200)
  for row, arguments in enumerate(asked):
    wanted = task.verify_numpy(*arguments)
    assert scored.rewards[row] == wanted["accuracy"]
    assert scored.correct[row] == (wanted["accuracy"] == 1)
    for key, value in wanted.items():
      assert scored.components[key][row] == pytest.approx(value, abs=1e-6)
  assert scored.valid.all()
  assert 0 < scored.correct.mean() < 1


@pytest.mark.slow
def test_task_rewards_are_weighted_sums():
  made = _task_problem(
    "copy", functions=("position", "accuracy"), weights=(0.5, 2.0)
  )
  record = made.train[0]
  answer = record["completion"].copy()
  answer[0] = 3 if answer[0] != 3 else 4  # The first of three letters wrong.
  tokens = np.stack([record["completion"], answer]).astype(np.int32)
  prompts = Prompts(
    tokens=record["prompt"][None],
    mask=np.ones((1, len(record["prompt"])), bool),
    ids=np.zeros(1, np.int32),
    extras={key: value[None] for key, value in record["extras"].items()},
  )
  scored = made.reward.score(
    {},
    prompts,
    tiny.rollout_of(tokens, np.ones_like(tokens, bool), [0, 0]),
  )
  np.testing.assert_allclose(scored.rewards, [2.5, 0.5 * 2 / 3], rtol=1e-6)
  np.testing.assert_array_equal(scored.correct, [True, False])


def test_train_and_held_out_problems_of_a_task_differ():
  made = _task_problem("sort")
  assert made.reward.on_host is None
  seen = {tuple(made.train[i]["prompt"]) for i in range(300)}
  held_out = {tuple(made.held_out[i]["prompt"]) for i in range(300)}
  assert not seen & held_out
  assert made.prompt_texts([made.train[0]])[0] == made.tokenizer.decode(
    made.train[0]["prompt"].tolist()
  )


def _text_config(**changes):
  config = config_lib.default_config()
  config.data.source = "jsonl"
  config.data.train_path = str(SAMPLE / "train.jsonl")
  config.data.eval_path = str(SAMPLE / "test.jsonl")
  config.data.format = "gsm8k"
  config.data.tokenizer = "gsm8k"
  config.data.template = "Question: {prompt}\nAnswer: "
  config.data.max_prompt_len = 256
  config.sampling.max_new_tokens = 64
  config.rewards.functions = ("math_accuracy", "think_answer_format")
  config.rewards.weights = (1.0, 0.5)
  config.rewards.num_workers = 1
  return config_lib.resolve(tiny_config.change(config, changes))


@pytest.fixture(scope="module")
def text_problem():
  made = problem_lib.make_problem(_text_config())
  yield made
  made.close()


def completions(made, texts, index):
  """A rollout in which the policy wrote these texts."""
  end = made.tokenizer.end_ids[0]
  ids = [[*made.tokenizer.encode(text), end] for text in texts]
  slots = max(map(len, ids))
  tokens = np.full((len(ids), slots), 77, np.int32)  # Garbage after the end.
  for row, values in zip(tokens, ids, strict=True):
    row[: len(values)] = values
  mask = np.arange(slots) < np.array([len(x) for x in ids])[:, None]
  return tiny.rollout_of(tokens, mask, index)


def test_text_is_scored_by_its_own_gold_answer(text_problem):
  batch = next(text_problem.prompt_stream(0, 2, None))
  first, second = (record["answer"] for record in batch.records)
  assert first != second
  texts = [
    f"<think>so</think>\n<answer>{first}</answer>",
    f"<think>so</think>\n<answer>{second}</answer>",  # For the other question.
    f"<think>so</think><answer>{second}</answer>",
    rf"It is \boxed{{{second}}}.",
    "<think>no idea</think><answer>none</answer>",
    "",
  ]
  rollout = completions(text_problem, texts, [0, 0, 1, 1, 1, 1])
  said, failures, errors = text_problem.host_scores(batch, rollout)
  scored = text_problem.reward.score_on_host(said)
  np.testing.assert_array_equal(scored.rewards, [1.5, 0.5, 1.5, 1.0, 0.5, 0.0])
  np.testing.assert_array_equal(
    scored.correct, [True, False, True, True, False, False]
  )
  np.testing.assert_array_equal(
    scored.components["think_answer_format"], [1, 1, 1, 0, 1, 0]
  )
  assert scored.valid.all()
  assert sum(failures.values()) == 0
  assert errors == {}


def test_text_problem_has_held_out_records_and_a_teacher(text_problem):
  assert len(text_problem.train) == len(text_problem.held_out) == 64
  assert text_problem.train[0]["prompt"] != text_problem.held_out[0]["prompt"]
  text = text_problem.supervised[0]["completion"]
  assert text.startswith("<think>")
  assert text.endswith(f"<answer>{text_problem.train[0]['answer']}</answer>")
  batch = next(text_problem.prompt_stream(0, 2, None))
  shown = text_problem.tokenizer.decode(
    batch.prompts.tokens[0][batch.prompts.mask[0]].tolist()
  )
  assert shown == f"Question: {batch.records[0]['prompt']}\nAnswer: "


@pytest.mark.slow
def test_rows_that_nobody_scored_are_out_and_counted(tmp_path):
  path = tmp_path / "data.jsonl"
  path.write_text(json.dumps({"prompt": "Say it.", "answer": "3"}) + "\n")
  run = _text_config(
    data__train_path=str(path),
    data__eval_path="",
    data__format="",
    rewards__functions=(
      "tests.rewards.workers.bad_verifiers:by_completion",
      "tests.rewards.workers.bad_verifiers:length",  # Of letters; never fails.
    ),
    rewards__weights=(2.0, 0.5),
    rewards__row_timeout_s=1.0,
  )
  made = problem_lib.make_problem(run)
  assert made.reward.correct == "by_completion"
  batch = next(made.prompt_stream(0, 1, None))
  texts = ["1.0", "raise", "nan", "0.25", "loop", "none"]
  rollout = completions(made, texts, [0] * 6)
  said, failures, errors = made.host_scores(batch, rollout)
  scored = made.reward.score_on_host(said)
  made.close()
  np.testing.assert_array_equal(
    scored.valid, [True, False, False, True, False, True]
  )
  # None is "does not apply": nothing failed, and the rest of the sum counts.
  np.testing.assert_array_equal(
    scored.rewards, [2 * 1 + 0.5 * 3, 0, 0, 2 * 0.25 + 0.5 * 4, 0, 0.5 * 4]
  )
  np.testing.assert_array_equal(
    scored.correct, [True, False, False, False, False, False]
  )
  assert {kind: n for kind, n in failures.items() if n} == {
    "raised": 1,
    "nan": 1,
    "timeout": 1,
  }
  assert "no such answer" in errors[1]
  assert sorted(errors) == [1, 2, 4]


@pytest.mark.slow
def test_steps_are_scored_where_the_task_judges_them():
  options = {"level": 1, "scratchpad": True}
  config = config_lib.default_config()
  config.data.task_options = options
  made = problem_lib.make_problem(config_lib.resolve(config))
  assert made.provides == {"step_rewards", "prefix_utility"}
  task = tasks.make_task("add", **options)
  scored, asked = _judged(made, task, 50)
  for row, arguments in enumerate(asked):
    steps, step_mask = task.step_scores_numpy(*arguments)
    np.testing.assert_array_equal(scored.step_rewards[row], steps)
    np.testing.assert_array_equal(scored.step_mask[row], step_mask)
  assert scored.step_rewards.any()
  assert _task_problem("copy").provides == frozenset()


@pytest.mark.slow
def test_domains_of_records_reach_the_program(tmp_path):
  path = tmp_path / "data.jsonl"
  path.write_text(
    "".join(
      json.dumps({"prompt": "x" * n, "answer": "3", "extras": {"domain": n}})
      + "\n"
      for n in (1, 2)
    )
  )
  made = problem_lib.make_problem(
    _text_config(
      data__train_path=str(path), data__eval_path="", data__format=""
    )
  )
  batch = next(made.prompt_stream(0, 2, None))
  made.close()
  assert made.provides == {"domain"}
  domains = batch.prompts.extras["domain"]
  assert domains.dtype == np.int32
  assert [len(record["prompt"]) for record in batch.records] == [*domains]


def test_supervised_rows_are_batches_like_any_other():
  made = _task_problem("copy")
  rows = next(made.supervised_stream(0, 4, None))
  batch = executors.train_batch(rows, np.arange(4), 4)
  np.testing.assert_array_equal(batch.prompt_index, np.arange(4))
  np.testing.assert_array_equal(batch.mask, rows.completion_mask)
  assert batch.valid.all()
  observed = np.zeros_like(rows.observed)
  observed[:, 1] = True
  read = executors.train_batch(
    rows._replace(observed=observed), np.arange(4), 4
  )
  np.testing.assert_array_equal(read.mask, [[1, 0, 1, 1]] * 4)
  np.testing.assert_array_equal(read.completion_mask, rows.completion_mask)
  # The end token is a target too.
  ends = batch.tokens[np.arange(4), batch.mask.sum(1) - 1]
  np.testing.assert_array_equal(ends, made.tokenizer.end_ids[0])
  assert isinstance(made.tokenizer, observations.TaskTokenizer)
  assert isinstance(made.supervised, sources.TaskSource)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "num_threads"), [("task", 0), ("jsonl", 3)])
def test_the_config_says_how_many_threads_read_ahead(
  source, num_threads, monkeypatch
):
  """The prompts are those of one thread."""
  asked = []
  options = grain.ReadOptions

  def noted(**settings):
    asked.append(settings["num_threads"])
    return options(**settings)

  monkeypatch.setattr(pipeline.grain, "ReadOptions", noted)
  found = []
  for threads in (num_threads, 1):
    if source == "jsonl":
      config = _text_config(data__num_threads=threads)
    else:
      config = config_lib.default_config()
      config.data.num_threads = threads
      config = config_lib.resolve(config)
    with contextlib.closing(problem_lib.make_problem(config)) as made:
      prompts = made.prompt_stream(0, 2, None)
      lessons = made.supervised_stream(0, 2, None)
      found.append(
        [(next(prompts).prompts.tokens, next(lessons).tokens) for _ in range(3)]
      )
  assert asked == [num_threads] * 2 + [1] * 2
  for one, other in zip(*found, strict=True):
    for x, y in zip(one, other, strict=True):
      np.testing.assert_array_equal(x, y)


def test_wrong_components_and_names_are_refused():
  with pytest.raises(
    KeyError, match=r"no component \['speed'\]; it has \['acc.*'return'"
  ):
    _task_problem("calc_tool", functions=("speed",))
  with pytest.raises(
    KeyError, match=r"no component \['speed'\]; it has \['acc"
  ):
    _task_problem("copy", functions=("speed",))
  with pytest.raises(ValueError, match="have the same name after the colon"):
    problem_lib.make_problem(
      _text_config(
        rewards__functions=("math:floor", "numpy:floor"),
        rewards__weights=(1.0, 1.0),
      )
    )
  with pytest.raises(
    ValueError, match="reward/mean is the metric of the whole"
  ):
    _text_config(
      rewards__functions=("statistics:mean",), rewards__weights=(1.0,)
    )
  with pytest.raises(ValueError, match=r"needs config\.data\.max_prompt_len"):
    problem_lib.make_problem(_text_config(data__max_prompt_len=None))


def test_messages_of_rows_are_kept_by_prompt_and_place():
  ids = types.SimpleNamespace(ids=np.array([7, 9, 30], np.int32))
  batch = types.SimpleNamespace(prompts=ids)
  found = judging.errors_of(
    sharding.make_mesh(1), batch, 12, {0: "a", 6: "b", 11: "c"}
  )
  assert found == {(7, 0): "a", (9, 2): "b", (30, 3): "c"}
