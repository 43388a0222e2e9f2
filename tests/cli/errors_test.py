"""Mistakes of a user: found before any work, named, and nothing is touched."""

import json
import pathlib

import pytest

from grpo_jax import api
from grpo_jax.configs import jsonl
from grpo_jax.training import loop
from grpo_jax.training.runtime import checkpoints, log
from tests.experiments import tiny_config
from tests.training.runtime import checkpoints_test

SAMPLE = pathlib.Path(__file__).parent.parent / "data/gsm8k_sample/train.jsonl"


def tiny(**changes):
  """The small run with other settings; `__` stands for the dot."""
  config = tiny_config.get_config("grpo")
  return tiny_config.change(config, changes)


def text(**changes):
  """A run on a file of text, with other settings."""
  config = jsonl.get_config()
  config.data.train_path = str(SAMPLE)
  config.data.format = "gsm8k"
  return tiny_config.change(config, changes)


digest = checkpoints_test.digest


@pytest.mark.parametrize(
  ("config", "error", "message"),
  [
    # Names and types.
    (tiny(rl__grup_size=4), KeyError, r"rl\.grup_size .*mean 'group_size'\?"),
    (tiny(stepps=4), KeyError, r"config\.stepps is not a setting.*has: seed"),
    (tiny(rl__steps="many"), TypeError, r"rl\.steps got 'many' .*needs a int"),
    (tiny(log__curves=7), TypeError, r"curves got 7 .*needs a bool"),
    (tiny(phases=("sft", "rll")), ValueError, r"'rll'.*mean 'rl'.*value, rl"),
    (tiny(phases=()), ValueError, r"config\.phases is empty"),
    (tiny(algorithm__name="grop"), KeyError, r"'grop'\. Did you mean 'grpo'\?"),
    (tiny(algorithm__clip=0.2), KeyError, r"algorithm\.clip .*mean 'clip_low'"),
    (tiny(algorithm__kl_kind="k9"), ValueError, r"kl_kind='k9'.*k3"),
    (tiny(data__name="srot"), KeyError, r"task: 'srot'.*Did you mean 'sort'\?"),
    (tiny(data__source="tsk"), ValueError, r"data\.source .*mean 'task'\?"),
    (
      tiny(data__task_options__min_ln=3),
      KeyError,
      r"'min_ln'.*Did you mean 'min_len'\?",
    ),
    (
      tiny(rl__optimizer__schedule="cosin"),
      ValueError,
      r"schedule got 'cosin'.*mean 'cosine'\?.*constant",
    ),
    # Numbers out of range: `hostile_config_test.py` has the others.
    (
      tiny(algorithm__clip_low=-0.1),
      ValueError,
      r"clip_low=-0\.1 .*negative.*--config\.algorithm\.clip_low",
    ),
    (tiny(model__width=0), ValueError, r"width is 0, but must be at least 1"),
    (
      tiny(mesh__data=999),
      ValueError,
      r"config\.mesh: data 999 × .* = from 1 to",
    ),
    # Sizes that do not fit, in any phase, before the first has begun.
    (
      tiny(rl__group_size=3, rl__num_minibatches=5),
      ValueError,
      r"(?s)config\.rl: .*num_prompts × group_size = num_minibatches × .*"
      r"4 × 3 = 12 rows; num_minibatches 5.*Change config\.rl\.num_prompts",
    ),
    (tiny(model__num_heads=3), ValueError, r"16 does not split into 3 heads"),
    (
      tiny(rl__max_prompt_len=2),
      ValueError,
      r"the task needs max_prompt_len 5, and it is 2; raise it",
    ),
    (tiny(rl__set_reference=False), ValueError, r"'grpo' needs a reference"),
    (
      tiny(rl__reference_workdirs=("a",), algorithm__kl_coef=0.0),
      ValueError,
      r"reads no reference and no teacher; leave it",
    ),
    # Settings of another kind of phase.
    *(
      (
        tiny_config.change(tiny(), {f"sft__{name}": value}),
        KeyError,
        rf"config\.sft\.{name} is not a setting.*, and here kind='supervised'",
      )
      for name, value in (("group_size", 2), ("reference_workdirs", ("a",)))
    ),
    # Rewards.
    (
      tiny(rewards__functions=("acuracy",)),
      KeyError,
      r"'sort' has no component \['acuracy'\]; it has \['accuracy', 'asc",
    ),
    (
      tiny(rewards__functions=("f1", "accuracy")),
      ValueError,
      r"2 functions .* 1 weight .*one weight per function",
    ),
    (tiny(rewards__correct="f2"), ValueError, r"correct='f2' is not one of"),
    (
      text(rewards__functions=("no_such_module:reward",)),
      ValueError,
      r"'no_such_module:reward': importing 'no_such_module' failed",
    ),
    (
      text(rewards__functions=("math:nothing",)),
      ValueError,
      r"'math' has no function 'nothing'",
    ),
    (
      text(rewards__functions=("math_acuracy",)),
      ValueError,
      r"'package\.module:function' or one of .*mean 'math_accuracy'\?",
    ),
    # Data.
    (
      text(data__train_path="none.jsonl"),
      FileNotFoundError,
      r"config\.data\.train_path .*: no file none\.jsonl",
    ),
    (text(data__train_path=""), ValueError, r"needs config\.data\.train_path"),
    (text(data__format="gsm"), ValueError, r"unknown format 'gsm'; .*'gsm8k'"),
    (
      text(data__format=""),
      ValueError,
      r"train\.jsonl:1: found no field 'prompt'; the row has \['",
    ),
    (
      text(data__tokenizer="none.json"),
      FileNotFoundError,
      r"no file none\.json; set config\.data\.tokenizer",
    ),
    (
      text(data__tokenizer=str(SAMPLE)),
      ValueError,
      r"train\.jsonl is not a tokenizer\.json",
    ),
    (text(data__tokenizer=""), ValueError, r"needs config\.data\.tokenizer"),
    (text(data__max_prompt_len=None), ValueError, r"needs .*max_prompt_len"),
    (text(data__template="Q:"), ValueError, r'does not contain "{prompt}"'),
  ],
)
def test_mistake_is_named_and_nothing_is_written(
  tmp_path, config, error, message
):
  with pytest.raises(error, match=message):
    loop.train(config, tmp_path / "run")
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_damaged_checkpoint_is_refused(tmp_path, finished):
  workdir = finished.copy(tmp_path)
  path = max(
    (workdir / "checkpoints/20").glob("state/**/d/*"),
    key=lambda p: p.stat().st_size,
  )
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  before = digest(workdir)
  with pytest.raises(ValueError, match=r"cannot be read") as caught:
    loop.train(tiny_config.get_config(), workdir)
  message = f"Move {workdir / 'checkpoints/20'} away to continue from step 19"
  assert message in str(caught.value)
  assert digest(workdir) == before


@pytest.mark.slow
def test_changed_config_is_refused_on_resume(tmp_path, finished):
  workdir = finished.copy(tmp_path)
  before = digest(workdir)
  config = tiny_config.get_config()
  config.seed = 7
  config.rl.optimizer.learning_rate = 0.125
  config.log.num_samples = 2  # This may change.
  with pytest.raises(ValueError, match="another config") as caught:
    loop.train(config, workdir)
  assert "seed: 0 stored, 7 given" in str(caught.value)
  assert "learning_rate: 0.002 stored, 0.125 given" in str(caught.value)
  assert "another --workdir" in str(caught.value)
  assert "num_samples" not in str(caught.value)
  assert digest(workdir) == before


@pytest.mark.slow
def test_a_lost_log_is_refused_on_resume(tmp_path, finished):
  workdir = finished.copy(tmp_path)
  path = workdir / log.METRICS
  path.write_bytes(path.read_bytes()[:200])
  before = digest(workdir)
  with pytest.raises(
    ValueError, match=r"metrics\.jsonl has 200 bytes, and had"
  ):
    loop.train(tiny_config.get_config(), workdir)
  assert digest(workdir) == before


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"\0" * 20])
def test_another_config_is_refused_without_the_stored_one(
  tmp_path, finished, content
):
  workdir = finished.copy(tmp_path)
  path = workdir / log.CONFIG
  path.unlink()
  if content is not None:
    path.write_bytes(content)
  before = digest(workdir)
  config = tiny_config.get_config()
  config.rl.optimizer.learning_rate = 0.125
  message = "json is missing" if content is None else "json is damaged"
  with pytest.raises(ValueError, match=message):
    loop.train(config, workdir)
  assert digest(workdir) == before
  if content is not None:
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
      api.load(workdir)


def test_checkpoints_of_someone_else_are_refused(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  (tmp_path / "checkpoints/notes.txt").write_text("mine")
  before = digest(tmp_path)
  with pytest.raises(ValueError, match=r"notes\.txt .*not written by grpo_jax"):
    loop.train(tiny(), tmp_path)
  assert digest(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 7])
def test_load_says_what_is_missing(tmp_path, finished, step):
  if step is None:
    message = r"holds no run: .*config\.json is missing.*--workdir"
    workdir = tmp_path
  else:
    message = r"holds no step 7; it holds steps \[19, 20\]"
    workdir = finished.cwd / "run"
  with pytest.raises(FileNotFoundError, match=message):
    _ = api.load(workdir, step).params


def test_load_before_the_first_checkpoint(tmp_path):
  log.save_run_info(tmp_path, tiny().to_json())
  with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
    _ = api.load(tmp_path).params


def test_load_warns_of_what_a_workdir_has_it_import(tmp_path, caplog):
  config = text(rewards__functions=("no_such_module:f", "grpo_jax.no:g"))
  config.rewards.weights = (1.0, 1.0)
  log.save_run_info(tmp_path, config.to_json())
  with pytest.raises(ValueError, match="no_such_module"):
    _ = api.load(tmp_path).params
  (warning,) = [r.getMessage() for r in caplog.records]
  assert f"{tmp_path / 'config.json'} names no_such_module:f, which" in warning


@pytest.mark.slow
def test_loss_that_is_not_finite_stops_the_run(tmp_path):
  config = tiny(sft__optimizer__learning_rate=1e30, checkpoint__every=1)
  with pytest.raises(FloatingPointError) as caught:
    loop.train(config, tmp_path)
  message = str(caught.value)
  assert "phase sft, step 2: " in message
  assert "is nan" in message
  assert f"{tmp_path / 'checkpoints'} is step 1." in message
  assert "config.sft.optimizer.learning_rate" in message
  # What was finite is kept.
  assert [
    json.loads(line)["step"]
    for line in (tmp_path / log.METRICS).read_text().splitlines()
  ] == [1]
  store = checkpoints.Checkpoints(tmp_path / "checkpoints", keep=2)
  assert store.steps() == [1]
  store.close()


@pytest.mark.slow
def test_config_may_change_before_the_first_checkpoint(tmp_path):
  config = tiny(sft__optimizer__learning_rate=1e30, checkpoint__every=0)
  with pytest.raises(FloatingPointError, match="checkpoints is missing"):
    loop.train(config, tmp_path)
  config = tiny(phases=("sft",), sft__steps=1)
  assert loop.train(config, tmp_path).step == 1
