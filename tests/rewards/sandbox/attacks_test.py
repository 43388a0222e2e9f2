"""All attacks on the sandbox, and each defence without which some succeed."""

import pytest

from experiments.rewards import attempts, box_attacks, verdict_attacks
from grpo_jax.rewards.sandbox import box as box_lib

pytestmark = pytest.mark.slow  # Together about a minute.

_AIMED = [x for x in box_attacks.ATTACKS if x.held_by]


def _name(attack):
  return attack.name


@pytest.fixture(scope="module")
def box():
  return box_lib.require("bwrap")


@pytest.fixture(scope="module")
def host():
  with attempts.host() as of:
    yield of


@pytest.mark.parametrize("attack", box_attacks.ATTACKS, ids=_name)
def test_the_box_holds(attack, box, host):
  assert not attempts.has_won(box, attack, host)


@pytest.mark.parametrize("attack", box_attacks.ATTACKS, ids=_name)
def test_a_box_for_several_processes_holds_the_same_but_for_these(
  attack, box, host
):
  # More than 20 processes.
  starts = attack.held_by[-1:] == ("no forks",) and attack.name != "be many"
  assert attempts.has_won(box, attack, host, processes=20) == starts


@pytest.mark.parametrize("attack", _AIMED, ids=_name)
def test_it_succeeds_without_the_defences_that_hold_it(attack, host):
  assert attempts.has_won(box_lib.Box(without=attack.held_by), attack, host)


_LAYERED = [
  pytest.param(x, name, id=f"{x.name} without {name}")
  for x in _AIMED
  for name in x.held_by
  if len(x.held_by) > 1
]


@pytest.mark.parametrize(("attack", "left_out"), _LAYERED)
def test_each_of_several_layers_is_enough(attack, left_out, host):
  assert not attempts.has_won(box_lib.Box(without=(left_out,)), attack, host)


@pytest.mark.parametrize("attack", verdict_attacks.VERDICTS, ids=_name)
@pytest.mark.parametrize("kind", box_lib.KINDS)
def test_no_program_has_a_reward_for_nothing(kind, attack):
  assert not attempts.has_scored(box_lib.Box(kind), attack)


def test_there_are_enough_and_no_defence_without_an_attack():
  names = [x.name for x in (*box_attacks.ATTACKS, *verdict_attacks.VERDICTS)]
  assert len(names) == len(set(names)) >= 66
  aimed = {name for x in _AIMED for name in x.held_by}
  # Those two have tests of their own, in `sandbox_test.py`.
  assert {x.name for x in box_lib.DEFENCES} - aimed == {"session", "parent"}
