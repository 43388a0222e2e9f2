"""Phases that keep completions, and phases that imitate them."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import pipeline
from grpo_jax.settings import config as config_lib
from grpo_jax.training import rejection
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import executors
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.types import ModelState
from tests.experiments import tiny_config
from tests.training import tiny


def make_config(**settings):
  return tiny_config.change(tiny_config.get_config("r1"), settings)


@pytest.fixture(scope="module")
def made():
  return tiny.assembled(make_config())


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"rejection__keep__order": "longest"}, "rejection.keep.order got"),
    ({"rejection__keep__most": 0}, "config.rejection.keep.most=0"),
    ({"sft2__reset_optimizer": False}, "moments would be those of another"),
    (
      {"sft2__demonstrations": ("rl", "own")},
      "names the phase 'rl', of the kind",
    ),
    ({"sft__demonstrations": ("rejection", "own")}, "that comes before it"),
    ({"sft2__demonstrations": ("rejection",)}, "which are not among"),
    ({"sft2__num_records": None}, "of which nobody reads all"),
    (
      {"sft2__domains": ("sums",)},
      r"domains=\('sums',\) chooses .*demonstrations has 'rejection'",
    ),
    ({"rl2__reward_weights": (1.0,)}, "are 1 numbers for the 2 rewards"),
    ({"rejection__keep__least": ("speed=1",)}, "keep.least got 'speed'"),
    (
      {"rejection__keep__least": ("f1",)},
      r"config\.rejection\.keep\.least='f1': needs NAME=NUMBER",
    ),
    ({"rejection__steps": 0}, r"rejection\.steps=0: that phase keeps nothing"),
  ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    config_lib.resolve(make_config(**settings))


def _outcome(made, tokens, good):
  """Two prompts with three rows each."""
  batch = next(made.problem.prompt_stream(0, 2, None))
  ids = np.repeat(np.asarray(batch.prompts.ids), 3)
  tokens = np.array(tokens)
  rows = types.SimpleNamespace(
    batch=types.SimpleNamespace(
      tokens=jnp.asarray(tokens),
      completion_mask=jnp.asarray(tokens != 0),
      valid=jnp.ones(6, bool),
      correct=jnp.asarray(good),
      terminated=jnp.arange(6) < 5,  # The last one was cut off.
    ),
    observed=None,
    prompt_id=jnp.asarray(ids),
    rewards=jnp.arange(6.0),
    components={"f1": jnp.arange(6.0) / 6},
  )
  return executors.StepResult(dict, lambda: rows, batch)


def _keep(made, outcome, **settings):
  section = made.config.section("rejection")
  keep = dataclasses.replace(section.keep, **settings)
  config = made.config.with_section("rejection", keep=keep)
  return rejection.keep(config, made.problem, made.mesh, 2, 7, outcome)


def test_right_and_whole_completions_of_each_prompt_are_kept(made):
  a, b, end = 38, 39, 2
  tokens = [
    *([a, b, end], [a, end, 0], [a, b, end]),
    *([b, end, 0], [b, b, end], [a, a, a]),
  ]
  good = [True, True, True, False, False, True]
  outcome = _outcome(made, tokens, good)
  lines, metrics = _keep(made, outcome)
  assert [line["completion"] for line in lines] == ["a", "ab"]
  assert [line["sample"] for line in lines] == [1, 0]
  prompt = made.problem.prompt_texts(outcome.batch.records)[0]
  assert {line["prompt"] for line in lines} == {prompt}
  assert {line["step"] for line in lines} == {7}
  assert metrics == {
    "kept/completions": 2.0,
    "kept/prompts": 0.5,
    "kept/tokens": 2.5,
  }
  lines, _ = _keep(made, outcome, least=("f1=0.3",))
  assert [line["sample"] for line in lines] == [2]
  lines, metrics = _keep(made, outcome, least=("f1=2",))
  assert lines == []
  assert np.isnan(metrics["kept/tokens"])
  json.dumps(_keep(made, outcome)[0], allow_nan=False)


def test_a_phase_that_keeps_has_no_loss_and_says_so(made):
  _, _, keeping, *_ = made.phases
  assert keeping.phase.losses == ()
  assert {x.optimizer for x in keeping.phase.models.values()} == {None}
  assert made.config.kept_files == {2: "data-3-rejection.jsonl"}


def test_completions_of_images_that_no_file_has_are_not_imitated(made):
  seeing = dataclasses.replace(made.problem, image_shapes={"patches": None})
  with pytest.raises(ValueError, match="would imitate without seeing them"):
    rejection.Stream(made.config, seeing, "", 3)


def test_phases_draw_and_reward_by_settings_of_their_own(made):
  _, first, _, _, last = (phase.phase for phase in made.phases)
  assert first.plan.temperature == 1.0
  assert float(last.plan.temperature) == pytest.approx(0.7)
  weights = {k: float(x) for k, x in last.reward.weights.items()}
  assert weights == {"f1": 0.5, "accuracy": 1.0}
  assert float(first.reward.weights["accuracy"]) == 0.0


def _run(made, params):
  state = policy_lib.initial_state(made.policy, made.config.seed)
  state = state.with_models(policy=ModelState(params))
  return types.SimpleNamespace(
    **vars(made), state=state, position=None, first=0, index=0, measured={}
  )


@pytest.mark.slow
def test_a_warm_start_from_the_base_forgets_what_was_learnt(made):
  first = policy_lib.initial_state(made.policy, made.config.seed)
  base = first.params["policy"]
  learnt = jax.tree.map(lambda x: x + 1, base)

  def entered(index):
    run = _run(made, learnt)
    run_lib.enter(run, index)
    assert run.index == index
    return jax.device_get(run.state.params["policy"])

  jax.tree.map(np.testing.assert_array_equal, entered(3), base)


def test_a_phase_reads_what_the_last_one_of_that_name_has_kept(made, tmp_path):
  repeated = dataclasses.replace(
    made.config, phases=(*made.config.phases[:4], "rejection", "sft2")
  )
  outcome = _outcome(made, [[38, 2]] * 6, [True] * 6)
  lines, _ = _keep(made, outcome, most=1)
  for index, name in repeated.kept_files.items():
    chosen = lines if index == 2 else lines[:1]
    text = "".join(json.dumps(line) + "\n" for line in chosen)
    (tmp_path / name).write_text(text)
  where = made.problem, tmp_path
  sizes = [
    len(rejection.open_source(repeated, *where, index)) for index in (3, 5)
  ]
  assert sizes == [2 + 8, 1 + 8]  # And eight of the run's own.
  stream = rejection.Stream(repeated, *where, 5, 0, 4, None)
  batches = [next(stream) for _ in range(3)]
  state = stream.get_state()
  expected = next(stream)
  again = rejection.Stream(repeated, *where, 5, 0, 4, None)
  again.set_state(state)
  found = next(again)
  assert isinstance(found, pipeline.SupervisedBatch)
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  assert not np.array_equal(batches[0].tokens, expected.tokens)
  example = next(
    run_lib.make_stream(
      made.config, made.problem, made.mesh, 3, is_example=True
    )
  )
  assert example.tokens.shape == found.tokens.shape


def test_a_file_that_is_missing_is_found_before_anything_runs(made, tmp_path):
  for names in (("none.jsonl", "own"), ("rejection", "none.jsonl", "own")):
    missing = made.config.with_section("sft2", demonstrations=names)
    message = (
      r"config\.sft2\.demonstrations: 'none\.jsonl': .*none\.jsonl: there is no"
    )
    with pytest.raises(FileNotFoundError, match=message):
      rejection.Stream(missing, made.problem, tmp_path, 3, 0, 4, None)
