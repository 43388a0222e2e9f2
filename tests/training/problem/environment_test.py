"""Runs whose environment makes its own prompts: settings, sources, a run."""

import ml_collections
import pytest

from grpo_jax.configs import textarena
from grpo_jax.data import environments, tokenizer
from grpo_jax.rewards.agents import games
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import environment as environment_lib
from grpo_jax.training.runtime import log
from tests.experiments import command

_HERE = "tests.training.problem.environment_test"
BYTES = tokenizer.Tokenizer(tokenizer.BYTES)


def silent(prompt, extras, seed):
  """Sessions that nothing is known of."""


def prompts_only(prompt, extras, seed, *, size=1):
  """Sessions whose prompts are known."""


def problem(seed, size=1):
  return f"{seed % 10}" * size, {"seed": seed}


prompts_only.problem = problem


def get_config(**data):
  config = textarena.get_config()
  for name, value in data.items():
    config.data[name] = value
  return config


def opened(config):
  resolved = config_lib.resolve(config)
  environment = environment_lib.environment(resolved, BYTES, None)
  return environment_lib.open_sources(resolved, BYTES, environment)


def test_the_prompts_are_what_the_games_show_first():
  made = opened(get_config())
  assert made.train[0]["prompt"] in {
    "012345678",
    *("012345678".replace(str(i), "o") for i in range(9)),
  }
  assert made.held_out[1]["extras"]["seed"] == environments.FIRST_HELD_OUT + 1
  # Its seed says that the policy moves second.
  assert made.held_out[1]["prompt"].count("o") == 1
  assert made.domains == ()


def test_a_warm_start_imitates_a_player_of_legal_moves():
  for index in range(6):
    record = opened(get_config()).supervised[index]
    text = BYTES.decode(record["completion"].tolist())
    board, moves = record["prompt"], 0
    while text:
      action, text = text[:3], text[3:]
      assert action in games.legal_moves(
        "Valid moves: " + "".join(f"[{x}]" for x in board if x.isdigit())
      )
      board, text, moves = text[:9], text[9:], moves + 1
    observed = record["observed"]
    assert (~observed).sum() == 3 * moves
    assert observed.sum() == 9 * (moves - 1)


def test_the_runs_seed_chooses_games_to_learn_from():
  seeds = []
  for number in (0, 1):
    config = get_config()
    config.seed = number
    made = opened(config)
    seeds.append([s[3]["extras"]["seed"] for s in (made.train, made.held_out)])
  (first, held_out), (second, same) = seeds
  assert first != second
  assert held_out == same


def test_an_action_without_an_end_is_ended_by_an_end_token():
  config = get_config()
  config.environment.action_ends = ()
  ids = opened(config).supervised[0]["completion"].tolist()
  assert ids[:4] == [*BYTES.encode("["), ids[1], *BYTES.encode("]<eos>")]


def test_an_environment_may_have_no_lessons_and_must_have_prompts():
  config = get_config(environment=f"{_HERE}:prompts_only")
  config.environment.options = ml_collections.ConfigDict({"size": 3})
  made = opened(config)
  assert made.supervised is made.train
  assert len(made.train[0]["prompt"]) == 3
  config = get_config(environment=f"{_HERE}:silent")
  config.environment.options = ml_collections.ConfigDict()
  with pytest.raises(ValueError, match="silent' has no attribute `problem`"):
    opened(config)


@pytest.mark.parametrize(
  ("data", "message"),
  [
    ({"environment": ""}, r"'environment' needs config\.data\.environment"),
    ({"domains": ("a",)}, r"config\.data\.domains=\('a',\) is for"),
    (
      {"source": "mixture", "mixture": ({"source": "environment"},)},
      "has the prompts of an environment, which answers all",
    ),
  ],
)
def test_settings_that_do_not_fit_are_told(data, message):
  with pytest.raises(ValueError, match=message):
    config_lib.resolve(get_config(**data))


def test_what_nobody_reads_as_a_whole_is_not_joined_to_files():
  config = get_config()
  config.sft.demonstrations = ("own", "more.jsonl")
  with pytest.raises(ValueError, match="of which nobody reads all"):
    config_lib.resolve(config)


@pytest.mark.long
@pytest.mark.slow
def test_a_short_run_learns_to_move_and_is_scored(tmp_path):
  """Runs the config in small: after a warm start most games have no fault."""
  small = {
    "sft.steps": 120,
    "sft.num_prompts": 32,
    "sft.num_lengths": 1,  # Compiles faster.
    "rl.steps": 2,
    "rl.num_lengths": 1,
    "rl.num_prompts": 4,
    "rl.group_size": 4,
    "eval.num_prompts": 64,
    "eval.batch_size": 64,
    "rewards.num_workers": 1,
  }
  status, _, err = command.run(
    "train",
    "--config=configs/textarena.py",
    f"--workdir={tmp_path / 'run'}",
    *(f"--config.{name}={value}" for name, value in small.items()),
  )
  assert status == 0, err
  lines = log.read_lines(tmp_path / "run" / log.METRICS)
  last = [x for x in lines if "eval/accuracy" in x][-1]
  # Nobody who moves at random wins so few, or plays so briefly.
  assert last["eval/accuracy"] > 0.2
  assert last["eval/reward/turns"] > 2.5
  assert last["eval/reward/invalid_moves"] < 1.0
  assert last["eval/unscored"] == 0.0
