"""Hints of a task, from a config to rows that its verifier takes."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from grpo_jax.configs import edge_countdown
from grpo_jax.rollout import hints as hints_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import kinds
from grpo_jax.tasks import countdown
from grpo_jax.training import run
from grpo_jax.training.phases import build, corrections
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config
from tests.training import tiny

T = 16


def make_config(**changes):
  """The config of the example, with a few of its settings changed."""
  config = tiny_config.change(edge_countdown.get_config("grpo"), changes)
  return config_lib.resolve(config)


@pytest.fixture(scope="module")
def made():
  config = make_config()
  return config, problem.make_problem(config)


def judge(made, rows, records):
  """Verdicts of the verifier in the graph for rows [N, T], -1 behind."""
  rows = jnp.asarray(rows)
  extras = jax.tree.map(
    lambda *x: jnp.stack(x), *[dict(record["extras"]) for record in records]
  )
  task = countdown.make(last_answer=True)
  said = jax.jit(jax.vmap(task.verify))(rows, rows >= 0, extras)["accuracy"]
  twin = [
    made.solutions.reward(row, row >= 0, record["extras"])
    for row, record in zip(np.asarray(rows), records, strict=True)
  ]
  np.testing.assert_array_equal(said, twin)
  return np.asarray(said)


@pytest.mark.slow
def test_rows_with_a_hint_that_has_the_answer_are_right(made):
  """Behind any draft; and the hint is one of the prompt, not of its teacher."""
  config, found = made
  hints = policy_lib.hints(config, found, "rl")
  rng = np.random.default_rng(0)
  records = [found.train[i] for i in range(64)]
  after_draft, references, teachers = [], [], []
  for record in records:
    said = hints(record)
    assert {*said} == {hints_lib.ANSWER, hints_lib.REFERENCE}
    assert all(x.shape == (T,) and x.dtype == np.int32 for x in said.values())
    answer = said[hints_lib.ANSWER]
    assert answer[answer >= 0][-1] == found.tokenizer.end_ids[0]
    text = found.tokenizer.decode(answer[answer >= 0].tolist())
    assert text.startswith("=<answer>")
    assert text.endswith("</answer>")
    draft = found.tokenizer.markup_ids("<answer>9-9-9</answer>")
    if rng.random() < 0.5:
      draft = rng.integers(3, 64, size=int(rng.integers(0, 8))).tolist()
    row = [*draft, *answer[answer >= 0].tolist()]
    after_draft.append([*row, *[-1] * (T + 8 - len(row))])
    references.append(said[hints_lib.REFERENCE])
    teacher = record["completion"]
    teachers.append([*teacher, *[-1] * (T - len(teacher))])
  assert judge(found, after_draft, records).all()
  assert judge(found, references, records).all()
  assert judge(found, teachers, records).mean() < 0.5


def test_a_hint_that_is_longer_than_a_completion_is_not_there(made):
  config, found = made
  short = dataclasses.replace(found, max_new_tokens=8)
  said = policy_lib.hints(config, short, "rl")(found.train[0])
  assert (said[hints_lib.ANSWER] == -1).all()  # Of nine tokens.
  assert (said[hints_lib.REFERENCE] >= 0).sum() == 8


def test_settings_become_ids(made):
  config, found = made
  settings = corrections.make(config, found, "rl")
  assert settings == hints_lib.Correction(
    p_cue=0.2,
    p_answer=0.05,
    p_reference=0.05,
    cue=tuple(found.tokenizer.markup_ids("=")),
    max_new_tokens=8,
    max_prompt_len=256,
  )
  off = make_config(
    rl__correction__p_cue=0.0,
    rl__correction__p_answer=0.0,
    rl__correction__p_reference=0.0,
  )
  assert policy_lib.hints(off, found, "rl") is None


@pytest.mark.parametrize("name", ["epochs", "frontier"])
def test_batches_have_hints_where_a_phase_corrects(name):
  fields = {"rl__schedule__name": name}
  if name != "epochs":
    fields["rl__schedule__pool"] = 20
  config = make_config(**fields)
  found = problem.make_problem(config)
  mesh = sharding.make_mesh(1)
  batch = next(run.make_stream(config, found, mesh, 1, is_example=True))
  hints = policy_lib.hints(config, found, "rl")
  for row, record in enumerate(batch.records[:3]):
    for key, value in hints(record).items():
      np.testing.assert_array_equal(batch.prompts.extras[key][row], value)
  stream = run.make_stream(config, found, mesh, 1)
  if name == "frontier":
    batch = stream.take(np.arange(config.section("rl").num_prompts))
    assert hints_lib.ANSWER in batch.prompts.extras


def test_a_phase_without_corrections_has_the_program_of_before(made):
  config, found = made
  policy = tiny.tiny_policy(found.tokenizer.vocab_size)
  mesh = sharding.make_mesh(1)
  assert build.make_phase(config, found, policy, "rl", mesh).sampler.correct
  off = make_config(
    rl__correction__p_cue=0.0,
    rl__correction__p_answer=0.0,
    rl__correction__p_reference=0.0,
  )
  phase = build.make_phase(off, found, policy, "rl", mesh)
  assert phase.sampler.correct is None


def test_the_display_has_what_the_policy_can_do_by_itself():
  said = {"reward/mean": 0.5, "accuracy": 0.6}
  assert kinds.RL.shows(said)["accuracy"] == 0.6
  said["correction/draft_accuracy"] = 0.1
  assert kinds.RL.shows(said)["accuracy"] == 0.1


# ---- What is refused.


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"rl__correction__p_cue": 0.95}, "probabilities of what happens to one"),
    ({"rl__correction__p_cue": 1.5}, "p_cue=1.5 must be"),
    ({"rl__correction__sentence": "="}, "0 times; write it once"),
    ({"rl__correction__cue": "Wait!"}, "cue='Wait!' is not made of tokens"),
    ({"rl__correction__cue": "=<eos>"}, "token that ends a completion"),
    ({"rl__correction__cue": ""}, "cue='' is no token; write at least one"),
    ({"rl__correction__sentence": "W{answer}"}, "sentence='W' is not made"),
    ({"rl__correction__max_new_tokens": 16}, "max_new_tokens=16: a completion"),
    (
      {"data__task_options__last_answer": False},
      "sentence: behind a completion with an answer it gives one more",
    ),
    (
      {"data__name": "sort", "data__task_options": {}},
      "the task 'sort' knows no right answers",
    ),
  ],
)
def test_what_cannot_be_corrected_is_refused(changes, message):
  if "data__task_options" in changes:
    changes["data__task_options"] = ml_collections.ConfigDict()

  def make():
    config = make_config(**changes)
    corrections.make(config, problem.make_problem(config), "rl")

  with pytest.raises(ValueError, match=message):
    make()


def test_the_sentence_is_tried_if_a_reference_does_not_fit():
  config = make_config(
    rl__correction__p_answer=0.0,
    rl__correction__max_new_tokens=4,
    data__task_options=ml_collections.ConfigDict(),
  )
  found = problem.make_problem(config)
  assert corrections.make(config, found, "rl").p_reference > 0
  short = dataclasses.replace(found, max_new_tokens=7)
  with pytest.raises(ValueError, match="verifier does not take that one"):
    corrections.make(config, short, "rl")
