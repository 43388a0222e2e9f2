"""The program that prints settings."""

import pytest

from grpo_jax.cli import config as program
from tests.cli import programs_test
from tests.experiments import command

QUICKSTART = f"--config={command.ROOT}/configs/quickstart.py"


@pytest.mark.slow
def test_changed_settings_are_printed_with_what_they_mean():
  status, out, err = command.run(
    "config",
    f"{QUICKSTART}:gspo",
    "--changed",
    "--search=steps",
    "--config.rl.steps=77",
  )
  assert status == 0, err
  programs_test.assert_fits(out, err)
  lines = out.splitlines()
  assert lines[0].split() == ["setting", "value", "default"]
  row = lines.index(
    "* rl.steps                            77                  100"
  )
  assert lines[row + 1] == "      Number of batches."
  names = [line.split()[1] for line in lines if line.startswith("* ")]
  assert "sft.optimizer.warmup_steps" in names
  # Its description speaks of steps.
  assert "rl.optimizer.schedule" in names
  assert "rl.group_size" not in names
  assert lines[-1].endswith(" settings.")


@pytest.mark.slow
def test_nothing_found_is_status_1_and_a_wrong_name_2():
  status, out, _ = command.run("config", QUICKSTART, "--search=no such thing")
  assert (status, out.splitlines()[-1][:5]) == (1, "0 of ")
  refused = command.run("config", QUICKSTART, "--config.rl.stepz=1")
  programs_test.assert_refused(refused, "Did you mean --config.rl.steps?")


@pytest.mark.parametrize("size", [1, 30, 300])
def test_long_values_go_on_below(size):
  one = program.setting_docs.Setting("rl.name", "x " * size, "y", "What it is.")
  lines = "\n".join(program.table([one])).splitlines()
  assert all(len(line) <= 80 for line in lines)
  assert "".join(lines).count("x") == size


def test_long_names_do_not_touch_their_values():
  name = "reward_model.optimizer.stochastic_rounding"
  one = program.setting_docs.Setting(name, False, False, "What it is.")
  row = program.table([one])[2]
  assert row.splitlines() == [f"  {name}", " " * 38 + f"{False!s:<20}False"]
