"""A reward model and a policy that learn by turns."""

import types

import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.step import features
from grpo_jax.training import loop, run
from grpo_jax.training.phases import checkpointed, reservoirs
from tests.experiments import tiny_config
from tests.training import tiny


@pytest.fixture(scope="module")
def iterations():
  """Config, problem, policy, mesh and phases of the tiny run."""
  return tiny.assembled(tiny_config.get_config("iterative"))


def test_a_phase_that_comes_again_is_the_program_that_it_was(iterations):
  """The same driver, given states of the same shapes."""
  its = iterations
  # The attributes that `OneRun` reads of a run.
  one = types.SimpleNamespace(
    config=its.config,
    problem=its.problem,
    mesh=its.mesh,
    phases=its.phases,
    programs={},
    host_reports=(),
  )
  one.program = types.MethodType(run.OpenRun.program, one)
  _, rm, rl, rm_again, rl_again = (
    loop.OneRun(one, index)._driver for index in range(5)
  )
  assert rm is rm_again
  assert rl is rl_again
  assert rm is not rl
  start = checkpointed.abstract_start(its.policy, its.config.seed)
  at = [
    checkpointed.abstract_state(its.phases[: n + 1], start) for n in range(5)
  ]
  assert at[1:3] == at[3:5]


def test_the_reference_of_an_iteration_is_the_policy_at_its_start(iterations):
  _, _, rl, _, again = iterations.phases
  for phase in (rl, again):
    assert not phase.phase.models["reference"].continues
    assert phase.phase.models["reward"].optimizer is None
  # The reward model goes on with what it was.
  assert all(phase.phase.models["reward"].continues for phase in (rl, again))


def test_old_completions_are_part_of_the_state_from_the_first_ones_on(
  iterations,
):
  its = iterations
  start = checkpointed.abstract_start(its.policy, its.config.seed)
  assert checkpointed.abstract_state(its.phases[:1], start).reservoir is None
  kept = checkpointed.abstract_state(its.phases, start).reservoir["groups"]
  size, rm = 16, its.config.section("rm")
  assert kept["tokens"].shape == (
    *(size, rm.group_size),
    its.problem.max_new_tokens,
  )
  assert kept["prompts.tokens"].shape == (size, its.problem.max_prompt_len)
  history = its.phases[1].phase.old_groups
  assert history.num_old == round(0.25 * rm.num_prompts) == 2
  assert type(its.phases[2].phase.old_groups) is features.OldGroups


@pytest.mark.parametrize(
  ("num_prompts", "num_old"), [(8, 1), (10, 1), (24, 2), (128, 13)]
)
def test_a_tenth_of_the_prompts_is_rounded(num_prompts, num_old):
  config = tiny_config.get_config("iterative")
  config.reward_model.history_share = 0.1
  config.rm.num_prompts = num_prompts
  settings = config_lib.resolve(config)
  assert reservoirs.make(settings, "rm", 4, 4, 1).num_old == num_old
  off = reservoirs.make(settings, "rl", 4, 4, 1)
  assert type(off) is features.OldGroups


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"phases": ("sft", "rm", "rl")}, "'rl'.* has 1 of them; set it to 0, or"),
    (
      {"reward_model.history_share": 0.05},
      "history_share=0.05 of config.rm.num_prompts=8 are 0 old prompts; needs",
    ),
    (
      {"reward_model.history_size": 1},
      "are 2 old prompts; needs 1 to config.reward_model.history_size=1",
    ),
    (
      {"phases": ("rm", "rl", "other", "rl"), "rm.group_size": 2},
      "this phase draws .* the same group_size",
    ),
  ],
)
def test_sizes_that_do_not_fit_are_refused(iterations, changes, message):
  config = tiny_config.get_config("iterative")
  config.other = config_lib.phase_config(
    "preference", num_prompts=8, group_size=4
  )
  config.update_from_flattened_dict(changes)
  its = iterations

  def opened():
    settings = config_lib.resolve(config)
    found = checkpointed.make_phases(
      settings, its.problem, its.policy, its.mesh
    )
    checkpointed.abstract_state(
      found, checkpointed.abstract_start(its.policy, 0)
    )

  with pytest.raises(ValueError, match=message):
    opened()
