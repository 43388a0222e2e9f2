"""Command lines: what is wrong with one, and that good ones pass."""

import os
import signal
import subprocess
import sys

import pytest
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import overrides
from tests.experiments import command

QUICKSTART = "--config=configs/quickstart.py"


@pytest.fixture
def parse(monkeypatch):
  """Parses arguments with flags of their own; returns the config."""
  monkeypatch.chdir(command.ROOT)

  def run(*arguments):
    values = flags.FlagValues()
    flags_lib.define_config(values)
    flags.DEFINE_string(
      "workdir", None, "Folder of the run.", required=True, flag_values=values
    )
    # ml_collections looks for the overrides there.
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    assert flags_lib.parse(sys.argv, values) == ["train"]
    return values.config

  return run


def test_groups_with_names_of_the_user_are_written_whole(parse):
  config = parse(
    QUICKSTART,
    "--workdir=x",
    "--config.rewards.options={'rank': {'source': 'f1'}}",
    "--config.rl.steps=5",
    "--config.rewards.schedules={'f1': ((0, 1.0), (9, 0.5))}",
    "--config.data.task_options={'max_len': 3}",
  )
  assert config.rewards.options.rank.source == "f1"
  assert config.rewards.schedules.f1 == ((0, 1.0), (9, 0.5))
  assert config.data.task_options.to_dict() == {"max_len": 3}
  assert config.rl.steps == 5


def test_groups_and_copies_that_a_file_has_made_can_be_set(parse):
  config = parse(
    "--config=configs/hybrid.py",
    "--workdir=x",
    "--config.judge.verdicts={'a': 1.0, 'b': 0.0}",
    "--config.rewards.domains={'judge': ('sort',)}",
  )
  assert config.judge.verdicts.to_dict() == {"a": 1.0, "b": 0.0}
  assert config.rewards.domains.to_dict() == {"judge": ("sort",)}
  for path in ("configs/r1.py", "configs/recipes/r1.py"):
    config = parse(
      f"--config={path}",
      "--workdir=x",
      "--config.sft2.num_records=10",
      "--config.rl2.max_prompt_len=7",
      "--config.rl2.temperature=0.5",
    )
    assert (config.sft2.num_records, config.sft.num_records) != (10, 10)
    assert config.rl2.max_prompt_len == 7
    assert config.rl.max_prompt_len is None


def test_a_group_that_has_lost_its_types_is_said(parse, tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(
    "from grpo_jax.configs import r1\n\n\ndef get_config():\n"
    "  config = r1.get_config()\n"
    "  config.rl2 = config.rl.copy_and_resolve_references()\n"
    "  return config\n"
  )
  with pytest.raises(ValueError, match=r"copy the group with copy\.deepcopy"):
    parse(f"--config={path}", "--workdir=x", "--config.rl2.temperature=0.5")


def test_a_program_may_do_without_a_config(monkeypatch):
  def parse(*arguments, needs_config):
    values = flags.FlagValues()
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    flags_lib.define_config(values)
    flags_lib.parse(sys.argv, values, needs_config=needs_config)
    return values.config

  monkeypatch.chdir(command.ROOT)
  assert parse(needs_config=False) is None
  assert parse(QUICKSTART, needs_config=False).seed == 0
  with pytest.raises(ValueError, match="no setting 'sed'"):
    parse(QUICKSTART, "--config.sed=1", needs_config=False)
  with pytest.raises(ValueError, match=r"'config\.seed'"):
    parse("--config.seed=1", needs_config=False)
  with pytest.raises(ValueError, match="--config is missing"):
    parse(needs_config=True)


@pytest.mark.parametrize(
  ("arguments", "where", "value"),
  [
    (["--config.rl.steps=5"], "rl.steps", 5),
    (["--config.rl.steps", "6"], "rl.steps", 6),
    (["--config.rl.optimizer.b1=0.5"], "rl.optimizer.b1", 0.5),
    (["--config.log.curves=false"], "log.curves", False),
    (["--noconfig.log.curves"], "log.curves", False),
    (["--config.mesh.data=1"], "mesh.data", 1),
    (["--config.phases=('rl',)"], "phases", ("rl",)),
    (
      ["--config.phases=('rl',)", "--config.phases=('sft', 'rl')"],
      "phases",
      ("sft", "rl"),
    ),
    (["--config.rl.steps=5", "--config.rl.steps=7"], "rl.steps", 7),
    (
      ["--config.log.curves=true", "--noconfig.log.curves"],
      "log.curves",
      False,
    ),
    (["--config.algorithm.clip_low=0.1"], "algorithm.clip_low", 0.1),
  ],
)
def test_settings_are_changed(parse, arguments, where, value):
  node = parse(QUICKSTART, "--workdir=x", *arguments)
  for part in where.split("."):
    node = node[part]
  assert node == value


@pytest.mark.parametrize("reverse", [False, True])
def test_a_switch_gives_settings_whatever_comes_first(parse, reverse):
  settings = [
    "--config.environment.compaction.context_len=64",
    "--config.environment.compaction.every=2",
    "--config.interceptor.rules=('shell',)",
    "--config.interceptor.penalty=0.5",
    "--config.judge.rubric={completion}=",
    "--config.judge.model=a",
    "--config.judge.service.url=http://localhost/v1",
    "--config.judge.verdicts={'a': 1.0}",
    "--config.model.tower.kind=siglip",
    "--config.model.tower.width=32",
    "--config.rl.schedule.name=ads",
    "--config.rl.schedule.window=4",
  ]
  if reverse:
    settings.reverse()
  config = parse(QUICKSTART, "--workdir=x", *settings)
  assert config.environment.compaction.every == 2
  assert config.interceptor.rules == ("shell",)
  assert config.interceptor.penalty == 0.5
  assert config.judge.rubric == "{completion}="
  assert config.judge.service.url == "http://localhost/v1"
  assert config.judge.verdicts.to_dict() == {"a": 1.0}
  assert config.model.tower.width == 32
  assert config.rl.schedule.window == 4
  given = {"rl.schedule.window": 4, "rl.schedule.name": "ads"}
  made = overrides.config("quickstart", **given)
  assert made.rl.schedule.window == 4
  spaced = ("--config.rl.schedule.window", "4", "--config.rl.schedule.name")
  assert parse(QUICKSTART, "--workdir=x", *spaced, "ads").rl.schedule == (
    made.rl.schedule
  )


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    (["judge.verdicts={'a': 1.0}"], "It has verdicts if rubric is set."),
    (["rl.schedule.name=spo", "rl.schedule.window=4"], "with name='ads', and"),
    (
      ["environment.compaction.context_len=x"],
      "received 'x'; needs a whole number",
    ),
  ],
)
def test_settings_that_a_switch_does_not_give_are_refused(
  parse, settings, message
):
  with pytest.raises(ValueError, match=message):
    parse(QUICKSTART, "--workdir=x", *(f"--config.{x}" for x in settings))


def test_the_algorithm_comes_with_its_own_defaults(parse):
  config = parse(f"{QUICKSTART}:gspo", "--workdir=x")
  assert config.algorithm.name == "gspo"
  assert config.algorithm.clip_high < 1e-3
  assert parse(QUICKSTART, "--workdir=x").algorithm.name == "grpo"


def test_a_recipe_takes_a_model_and_overrides(parse):
  config = parse(
    "--config=configs/recipes/r1_zero.py:qwen3-0.6b",
    "--workdir=x",
    "--config.algorithm.clip_high=0.2",
    "--config.allow_unpublished=True",
  )
  assert config.model.checkpoint == "Qwen/Qwen3-0.6B"
  assert config.algorithm.clip_high == 0.2
  assert config.allow_unpublished


@pytest.mark.parametrize(
  ("arguments", "messages"),
  [
    # Names: the nearest one, and all that there are.
    (
      ["--config.rl.grup_size=4"],
      ["no setting 'grup_size'", "mean --config.rl.group_size?", "num_prompts"],
    ),
    (["--config.r1.steps=4"], ["config has no setting 'r1'", "--config.rl?"]),
    (
      ["--config.sft.optimizer.lerning_rate=1"],
      ["'lerning_rate'", "mean --config.sft.optimizer.learning_rate?", "b1"],
    ),
    (["--config.data.task_options.min_ln=2"], ["task_options.min_len?"]),
    (["--config.rl.steps.more=4"], ["config.rl.steps is a value"]),
    (
      ["--config.rewards.options.rank.source=a"],
      ["names of your own", "write it whole: --config.rewards.options="],
    ),
    (
      ["--config.rewards.domains=3"],
      ["write it whole", "('algebra', 'geometry')"],
    ),
    (["--config.data.fields={x}"], ["needs a dictionary", "'question'"]),
    (["--wrkdir=y"], ["wrkdir", "workdir"]),
    (["more"], ["unexpected arguments ['more']", "--config.name=value"]),
    # Values.
    (["--config.rl.steps=many"], ["=many", "needs a whole number"]),
    (["--config.rl.steps=1.5"], ["'1.5'", "needs a whole number"]),
    (["--config.rl.optimizer.b1=x"], ["'x'", "needs a number"]),
    (["--config.required_accuracy=x"], ["'x'", "needs a number"]),
    (["--config.mesh.data=two"], ["'two'", "needs a whole number"]),
    (["--config.log.curves=7"], ["'7'", "needs true or false"]),
    (["--config.rl=3"], ["is a group", "--config.rl.group_size"]),
    (["--config.rl.steps"], ["Missing value", "config.rl.steps"]),
    # The fields of one algorithm must not stay with another.
    (["--config.algorithm=gspo"], ["--config=configs/quickstart.py:gspo"]),
    (["--config.algorithm.name=gspo"], ["--config=configs/quickstart.py:gspo"]),
  ],
)
def test_wrong_setting_is_explained(parse, arguments, messages):
  with pytest.raises(ValueError, match=r".") as caught:
    parse(QUICKSTART, "--workdir=x", *arguments)
  for message in messages:
    assert message in str(caught.value)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], r"--config is missing.*=quickstart\. There are: .*recipes/dapo"),
    (["--workdir=x"], r"--config is missing"),
    (["--confg=configs/quickstart.py", "--workdir=x"], "--config is missing"),
    (["--config=", "--workdir=x"], "--config is missing"),
    ([QUICKSTART], r"--workdir is missing: Folder of the run"),
    (
      ["--config=configs/quickstrt.py", "--workdir=x"],
      r"no config file configs/quickstrt\.py.*mean 'quickstart'\?",
    ),
    (["--config=quikstart", "--workdir=x"], r"mean 'quickstart'\?.*recipes/"),
    (["--config=quickstart.py", "--workdir=x"], r"mean 'quickstart'\?"),
    (["--config=../quickstart", "--workdir=x"], r"no config file \.\./quick"),
    (["--config=configs", "--workdir=x"], r"there is no config file configs"),
    (
      ["--config=configs/recipes/dappo.py", "--workdir=x"],
      r"mean 'recipes/dapo'\?",
    ),
    (
      ["--config=configs/recipes/dapo.py:qwen3-8", "--workdir=x"],
      r"'qwen3-8'.*mean 'qwen3-8b'\?.*toy",
    ),
    ([f"{QUICKSTART}:grop", "--workdir=x"], r"'grop'.*mean 'grpo'\?.*dapo"),
  ],
)
def test_wrong_file_is_explained(parse, arguments, message):
  with pytest.raises(ValueError, match=message):
    parse(*arguments)


@pytest.mark.parametrize(
  "given",
  [
    ["--config=configs/quickstart.py:gspo"],
    ["--config=quickstart:gspo"],
    ["--config", "quickstart:gspo"],
    ["--config=configs/quickstart:gspo"],
  ],
)
def test_configs_of_the_library_are_found_from_any_folder(
  parse, monkeypatch, tmp_path, given
):
  monkeypatch.chdir(tmp_path)
  config = parse(*given, "--workdir=x", "--config.rl.steps=7")
  assert (config.algorithm.name, config.rl.steps) == ("gspo", 7)
  recipe = parse("--config=recipes/dapo:toy", "--workdir=x")
  assert recipe.algorithm.name == "dapo"


def test_a_file_of_the_users_own_comes_first(parse, monkeypatch, tmp_path):
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs/quickstart.py").write_text(
    "from grpo_jax.configs import checkpoint\n\n\ndef get_config():\n"
    "  config = checkpoint.get_config()\n"
    "  config.seed = 5\n"
    "  return config\n"
  )
  monkeypatch.chdir(tmp_path)
  assert parse("--config=configs/quickstart.py", "--workdir=x").seed == 5
  assert parse("--config=quickstart", "--workdir=x").seed == 0


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("def get_config(:\n", r"invalid syntax.*SyntaxError"),
    ("x = 1\n", r"defines no get_config\(\)"),
    ("def get_config():\n  return [][1]\n", r"out of range \(IndexError\)"),
    ("def get_config():\n  pass\n", r"returned None; needs a ConfigDict"),
  ],
)
def test_broken_config_file_is_explained(parse, tmp_path, text, message):
  path = tmp_path / "mine.py"
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as caught:
    parse(f"--config={path}", "--workdir=x")
  assert str(path) in str(caught.value)


@pytest.mark.parametrize(
  ("installed", "advice"),
  [
    (True, "libtpu is installed: start it on a machine that has one, or set"),
    (False, "libtpu is missing: pip install 'grpo_jax[tpu]', or set JAX_PL"),
  ],
)
def test_what_a_device_needs_is_said(monkeypatch, installed, advice):
  error = RuntimeError(
    "Unable to initialize backend 'tpu': No device found. (set JAX_PLATFORMS…"
  )
  monkeypatch.setattr(
    flags_lib.importlib.util, "find_spec", lambda name: installed or None
  )
  message = flags_lib._device_problem(error)
  assert "there is no tpu device here (No device found)" in message
  assert advice in message


@pytest.mark.slow
def test_a_missing_device_is_a_message():
  program = (
    "import jax; from grpo_jax.cli import flags;"
    "flags.run(lambda argv: len(jax.devices()))"
  )
  found = subprocess.run(
    [sys.executable, "-c", program],
    cwd=command.ROOT,
    env=command.ENVIRONMENT | {"JAX_PLATFORMS": "nonsense"},
    capture_output=True,
    text=True,
    check=False,
  )
  message = " ".join(found.stderr.split())
  assert found.returncode == 2, message
  assert "error: JAX_PLATFORMS=nonsense: there is no nonsense dev" in message
  assert "not in the list of known backends" in message
  assert "set JAX_PLATFORMS=cpu" in message
  assert "Traceback" not in message


@pytest.mark.slow
def test_whoever_reads_the_output_may_stop():
  """`head` closes the pipe after some lines, and the program says nothing."""
  with command.start("config", QUICKSTART) as process:
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
  ("program", "status"), [("train", 130), ("compare", -signal.SIGINT)]
)
def test_ctrl_c_while_importing_has_no_traceback(tmp_path, program, status):
  (tmp_path / "jax.py").write_text("raise KeyboardInterrupt\n")
  ended = subprocess.run(
    [sys.executable, "-m", f"experiments.{program}", "--config=quickstart"],
    env={**os.environ, "PYTHONPATH": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.stderr == "error: stopped by Ctrl-C.\n"
  assert ended.returncode == status
