"""Contract of every task, over the table of all of them."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest

from grpo_jax import imports
from grpo_jax.tasks import TASKS, make_task, task, vocabulary
from tests.tasks import strings
from tests.training import tiny

VARIANTS = {
  "add-bare": ("add", {"level": 2, "tags": False}),
  "add-any-digits": ("add", {"level": 4, "fixed_digits": False}),
  "add-scratchpad": (
    "add",
    {"level": 3, "scratchpad": True, "fixed_digits": False},
  ),
  "add-one-digit-scratchpad": ("add", {"level": 1, "scratchpad": True}),
  "add-eight-digits": ("add", {"level": 8}),
  "add-filler": ("add", {"level": 2, "max_filler": 9, "teacher_error": 0.3}),
  "bias_mcq": ("bias_mcq", {"teacher_bias": 0.3, "flipped_share": 0.3}),
  "bracket": ("bracket", {"teacher_error": 0.2}),
  "bracket-bare": ("bracket", {"max_len": 5, "max_depth": 9, "tags": False}),
  "copy": ("copy", {}),
  "countdown": ("countdown", {"teacher_error": 0.2}),
  "countdown-4": ("countdown", {"num_numbers": 4}),
  "ir_tree": ("ir_tree", {"teacher_error": 0.2}),
  "language": ("language", {"teacher_error": 0.2, "teacher_empty": 0.1}),
  "multi": ("multi", {"teacher_error": 0.2}),
  "sort": ("sort", {"teacher_error": 0.2}),
  "sort-bare": ("sort", {"min_len": 2, "max_len": 5, "tags": False}),
  "verdict": ("verdict", {"min_len": 6, "marks": 0.5}),
  "vision": ("vision", {"teacher_error": 0.2}),
  "vision-count": ("vision", {"questions": "count", "codes": True}),
  "vision-shifted": ("vision", {"shifted": True, "merge": 2}),
}
# Those with an environment; their episodes are in `environment_test.py`.
MULTI_TURN = {
  "calc_tool": ("calc_tool", {}),
  "grid": ("grid", {}),
  "grid-table": ("grid", {"tabular": True}),
  "nim": ("nim", {"num_heaps": 3, "max_stones": 5}),
  "memchain": ("memchain", {"num_facts": 2}),
  "memchain-smallest": (
    "memchain",
    {"num_steps": 8, "every": 2, "keep_turns": 0, "num_digits": 2},
  ),
}
# What a teacher has to be told besides, so that all shares are 1.
RIGHT = {
  "bias_mcq": {"teacher_bias": 0.0, "flipped_share": 0.0},
  "copy": {},
  "verdict": {"belief": "reverse"},
  "language": {"teacher_error": 0.0, "mixing": 0.0, "teacher_empty": 0.0},
}
# Scores that are no shares in [0, 1]; right answers have none of a kind.
OBJECTIVES = {
  "bias_mcq": ("biased",),
  "multi": ("brevity", "politeness", "first_half"),
}
# Strings of a task. The twins take them one by one, most of the time of a test.
NUM_ROWS = 2_500
over_variants = pytest.mark.parametrize(
  "variant", tiny.each(VARIANTS, ("add-bare", "copy", "sort", "sort-bare"))
)


def make(variant: str, **more) -> task.Task:
  name, options = {**VARIANTS, **MULTI_TURN}[variant]
  return make_task(name, **{**options, **more})


def test_every_task_has_a_variant():
  single, multi = (
    {name for name, _ in variants.values()}
    for variants in (VARIANTS, MULTI_TURN)
  )
  assert single | multi == set(TASKS)
  for name in TASKS:
    made = make_task(name)
    given = (made.verify, made.verify_numpy)
    assert [x is None for x in given] == [name in multi] * 2
    assert (made.environment is None) == (name in single)
    assert (made.replay_numpy is None) == (name in single)
  for name in TASKS:
    assert make_task(name).name == name


@over_variants
def test_verifiers_agree_with_their_twins_and_ignore_empty_slots(variant):
  made = make(variant)
  tokens, mask, extras = strings.make_strings(made, num_rows=NUM_ROWS, seed=0)
  verify = jax.jit(jax.vmap(made.verify))
  got = jax.device_get(verify(tokens, mask, extras))
  rows = [{k: v[i] for k, v in extras.items()} for i in range(len(tokens))]
  wanted = strings.stack_extras(
    [made.verify_numpy(*row) for row in zip(tokens, mask, rows, strict=True)]
  )
  assert got.keys() == wanted.keys()
  for name, scores in got.items():
    assert scores.dtype == np.float32, name
    assert scores.shape == (NUM_ROWS,), name
    if name not in OBJECTIVES.get(made.name, ()):
      assert ((scores >= 0) & (scores <= 1)).all(), name
    np.testing.assert_allclose(scores, wanted[name], atol=1e-6, err_msg=name)
  # The comparison means something: many strings are right, many are wrong.
  assert 0.15 < got["accuracy"].mean() < 0.8
  assert set(np.unique(got["accuracy"])) == {0.0, 1.0}

  others = np.where(mask, tokens, np.roll(tokens, 1, axis=0))
  assert (others != tokens).any(axis=1).mean() > 0.5
  jax.tree.map(np.testing.assert_array_equal, verify(others, mask, extras), got)
  if made.step_scores is None:
    return

  scores, steps = jax.device_get(
    jax.jit(jax.vmap(made.step_scores))(tokens, mask, extras)
  )
  twins = [
    made.step_scores_numpy(*row) for row in zip(tokens, mask, rows, strict=True)
  ]
  np.testing.assert_array_equal(scores, np.stack([twin[0] for twin in twins]))
  np.testing.assert_array_equal(steps, np.stack([twin[1] for twin in twins]))
  assert 0.2 < scores[steps].mean() < 0.95


@over_variants
def test_examples_fit_and_right_teachers_score_one(variant):
  made = make(variant, **RIGHT.get(variant, {"teacher_error": 0.0}))
  rng = np.random.default_rng(2)
  longest = [0, 0]
  for i in range(300):
    example = made.example(rng, "train" if i % 2 else "test")
    lengths = (len(example.prompt), len(example.completion))
    longest = np.maximum(longest, lengths)
    assert example.prompt.dtype == example.completion.dtype == np.int32
    assert example.prompt[0] == made.bos_id
    assert example.completion[-1] in made.end_ids
    assert all(value.dtype == np.int32 for value in example.extras.values())
    size = made.max_completion_len
    tokens = vocabulary.padded(example.completion.tolist(), size)
    mask = np.arange(size) < lengths[1]
    scores = made.verify_numpy(tokens, mask, example.extras)
    shares = scores.keys() - OBJECTIVES.get(made.name, ())
    if made.right_answer is not None:
      answer = np.asarray(made.right_answer(example.extras))
      alone = [
        *(vocabulary.ANSWER, *answer[answer != vocabulary.PAD]),
        *(vocabulary.ANSWER_END, vocabulary.EOS),
      ]
      assert example.completion.tolist()[-len(alone) :] == alone
    assert all(scores[name] == 1.0 for name in shares), (
      made.decode(example.prompt),
      made.decode(example.completion),
      scores,
    )
  # The budgets are as small as they can be.
  assert tuple(longest) == (made.max_prompt_len, made.max_completion_len)


@pytest.mark.parametrize("variant", [*VARIANTS, *MULTI_TURN])
def test_splits_are_disjoint_and_examples_repeat_with_the_seed(variant):
  made = make(variant)

  def prompts(split: str, seed: int) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(seed)
    examples = [made.example(rng, split) for _ in range(80)]
    return [
      (made.decode(x.prompt), x.images.patches.tobytes() if x.images else b"")
      for x in examples
    ]

  train, test = prompts("train", 3), prompts("test", 4)
  assert set(train).isdisjoint(test)
  assert prompts("test", 4) == test
  assert prompts("test", 5) != test


def test_about_a_tenth_of_the_problems_is_for_testing():
  splits = [task.split_of((a, b)) for a in range(100) for b in range(100)]
  assert splits.count("test") / len(splits) == pytest.approx(13 / 128, abs=0.01)


def test_commuted_problems_share_a_split():
  for name in ("add", "countdown"):
    made = make_task(name)
    rng = np.random.default_rng(0)
    for _ in range(50):
      extras = made.example(rng, "test").extras
      target = [int(extras["target"])] if name == "countdown" else []
      numbers = extras["numbers" if name == "countdown" else "operands"]
      assert task.split_of([*sorted(numbers.tolist()), *target]) == "test"


def test_unknown_or_empty_splits_are_refused():
  rng = np.random.default_rng(0)
  with pytest.raises(ValueError, match=r"unknown split 'valid'.*'train'"):
    make_task("copy").example(rng, "valid")
  with pytest.raises(ValueError, match="too few problems"):
    task.draw(rng, "test", lambda rng: 0, lambda x: _a_training_problem())


def _a_training_problem() -> list[int]:
  return next([i] for i in range(100) if task.split_of([i]) == "train")


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("ad", {}, r"unknown task: 'ad'; known are add, bias.*mean 'add'"),
    ("xyz", {}, r"unknown task: 'xyz'; known are add, bias"),
    ("sort", {"maxlen": 3}, r"option of task 'sort': 'maxlen'.*'max_len'"),
  ],
)
def test_unknown_names_are_refused_with_the_known_ones(name, options, message):
  with pytest.raises(KeyError, match=message):
    make_task(name, **options)


def test_options_of_a_task_that_is_an_object():
  made = make_task("copy", length=3)
  with pytest.raises(KeyError, match=r"no options; set config.data.task_opt"):
    make_task(imports.name_of(made), max_len=5)
  given = {}

  def any_options(**options):
    given.update(options)
    return made

  name = imports.name_of(any_options)
  assert make_task(name, max_len=5) is made
  assert given == {"max_len": 5}


@pytest.mark.parametrize("name", TASKS)
def test_options_of_another_kind_are_refused(name):
  for option, parameter in inspect.signature(TASKS[name]).parameters.items():
    for value in ("x", 0.5, 1, None, [1], True):
      kinds = type(value), type(parameter.default)
      if kinds[0] is kinds[1] or kinds == (int, float):
        continue
      message = rf"option '{option}' of task '{name}' is .* it needs a"
      with pytest.raises(TypeError, match=message):
        make_task(name, **{option: value})


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("add", {"level": 0}, r"add.make: level is 0; .* \[1, 8\]"),
    ("add", {"level": 9}, "level is 9"),
    ("add", {"teacher_error": 1.5}, "teacher_error is 1.5"),
    ("add", {"scratchpad": True, "tags": False}, "scratchpad .*need tags"),
    ("add", {"max_filler": 1, "tags": False}, "max_filler=1, tags=False"),
    ("add", {"max_filler": 65}, "max_filler is 65"),
    ("add", {"mean_filler": -1.0}, "mean_filler is -1.0"),
    (
      "calc_tool",
      {"interceptor": "all"},
      r"interceptor 'all'; use one of \('n",
    ),
    ("bias_mcq", {"teacher_bias": 2}, "teacher_bias is 2"),
    ("bias_mcq", {"flipped_share": -1}, r"flipped_share is -1.*\[0.0, 1.0\]"),
    ("calc_tool", {"penalty": -1.0}, "penalty is -1.0"),
    ("calc_tool", {"teacher_error": 2}, "teacher_error is 2"),
    ("calc_tool", {"teacher_leak": 2}, "teacher_leak is 2"),
    (
      "calc_tool",
      {"teacher_leak": 0.5, "teacher_comment": 0.6},
      r"teacher_comment is 0.6; .* \[0.0, 0.5\]",
    ),
    ("copy", {"length": 0}, "length is 0"),
    ("countdown", {"num_numbers": 5}, "num_numbers is 5"),
    ("countdown", {"teacher_error": -1}, "teacher_error is -1"),
    ("grid", {"teacher_error": 2}, "teacher_error is 2"),
    ("language", {"min_len": 6}, r"min_len is 6.*\[2, 5\]"),
    ("language", {"max_len": 65}, "max_len is 65"),
    ("language", {"mixing": 2}, "mixing is 2"),
    ("language", {"teacher_error": 2}, "teacher_error is 2"),
    ("language", {"teacher_empty": -1}, "teacher_empty is -1"),
    ("memchain", {"num_steps": 7}, "num_steps is 7"),
    ("memchain", {"num_digits": 1}, "num_digits is 1"),
    ("memchain", {"num_facts": 9}, "num_facts is 9"),
    ("memchain", {"num_facts": 3}, r"max_summary_len is 8; .* \[12, 64\]"),
    ("memchain", {"num_steps": 20}, r"every is 24; .* \[2, 19\]"),
    ("memchain", {"keep_turns": 24}, r"keep_turns is 24; .* \[0, 23\]"),
    ("memchain", {"teacher_error": 2}, "teacher_error is 2"),
    ("multi", {"min_len": 6}, r"min_len is 6.*\[2, 5\]"),
    ("multi", {"teacher_error": 2}, "teacher_error is 2"),
    ("multi", {"teacher_polite": 2}, "teacher_polite is 2"),
    ("multi", {"max_thought": 65}, "max_thought is 65"),
    ("multi", {"min_thought": 9}, r"min_thought is 9; .* \[0, 8\]"),
    ("sort", {"min_len": 1}, "min_len is 1"),
    ("sort", {"min_len": 5, "max_len": 4}, r"min_len is 5.*\[2, 4\]"),
    ("sort", {"teacher_error": 2}, "teacher_error is 2"),
    ("vision", {"questions": "where"}, r"questions is 'where'; use one of"),
    ("vision", {"merge": 3}, "merge is 3; use 1, 2 or 4"),
    ("vision", {"teacher_error": 2}, "teacher_error is 2"),
  ],
)
def test_options_out_of_range_are_refused(name, options, message):
  with pytest.raises(ValueError, match=message):
    make_task(name, **options)
