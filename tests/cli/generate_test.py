"""Completions of many prompts in a file, whatever happens on the way."""

import itertools
import json
import random
import shutil
import signal
import time

import pytest

from grpo_jax import api
from grpo_jax.configs import checkpoint
from grpo_jax.data import demonstrations
from grpo_jax.settings.phase import KeepConfig
from grpo_jax.training.evaluation import data_sets, generation
from tests.cli import programs_test
from tests.experiments import command

pytestmark = pytest.mark.slow

NUM_PROMPTS = 20


@pytest.fixture(scope="module")
def policy(finished):
  assert finished.status == 0, finished.err
  with api.load(finished.cwd / "run") as run:
    yield run


def wanted(batch_size=8, keep=None, **draws):
  settings = {"temperature": 1.0, "num_samples": 3, "seed": 5} | draws
  return generation.FileSettings(
    data_sets.Draws(**settings), keep, batch_size=batch_size
  )


def generate(policy, out, how=None, stop=None, **settings):
  """The last `Done`; after `stop` batches nobody goes on."""
  parts = generation.generate(
    policy.loaded,
    policy.loaded.problem.train,
    NUM_PROMPTS,
    out,
    how or wanted(),
    settings,
  )
  found = list(itertools.islice(parts, None if stop is None else stop + 1))
  return found[-1]


def lines(path):
  return [json.loads(x) for x in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(policy, tmp_path_factory):
  out = tmp_path_factory.mktemp("whole") / "out.jsonl"
  done = generate(policy, out)
  assert done.prompts == NUM_PROMPTS
  found = lines(out)
  assert done.lines == len(found) == 3 * NUM_PROMPTS
  assert done.tokens == sum(x["tokens"] for x in found)
  return out


def test_a_line_is_a_completion_with_its_verdict(policy, whole):
  found = lines(whole)
  places = [(x["prompt_id"], x["sample"]) for x in found]
  assert places == [(p, i) for p in range(NUM_PROMPTS) for i in range(3)]
  train = policy.loaded.problem.train
  for line in found:
    record = train[line["prompt_id"]]
    assert line["prompt_ids"] == record["prompt"].tolist()
    assert line["valid"]
    assert line["reward"] == line["components"]["f1"]
    assert len(line["completion_ids"]) == line["tokens"]
  assert len({x["completion"] for x in found}) > 5
  text = policy.loaded.problem.tokenizer
  source = demonstrations.DemonstrationSource(whole, text, is_text=False)
  assert len(source) == len(found)


def test_a_program_that_is_killed_goes_on_with_the_same_bytes(
  policy, whole, tmp_path
):
  """Between two batches, or while it writes; also with other batches."""
  out = tmp_path / "out.jsonl"
  assert generate(policy, out, stop=1).prompts == 8
  assert whole.read_bytes().startswith(out.read_bytes())
  with out.open("ab") as file:
    file.write(b'{"prompt": "half a li')
  assert generate(policy, out, wanted(batch_size=5), stop=0).prompts == 8
  assert generate(policy, out, wanted(batch_size=5)).prompts == NUM_PROMPTS
  assert out.read_bytes() == whole.read_bytes()


def test_a_file_that_is_complete_stays_as_it_is(policy, whole, monkeypatch):
  before = whole.read_bytes()
  monkeypatch.setattr(generation.evaluation, "Evaluator", None)
  assert generate(policy, whole).prompts == NUM_PROMPTS
  assert whole.read_bytes() == before


def test_of_right_completions_the_shortest_ones_are_kept(
  policy, whole, tmp_path
):
  keep = KeepConfig(1, "shortest", "text")
  out = tmp_path / "out.jsonl"
  generate(policy, out, wanted(keep=keep))
  everything, kept = lines(whole), lines(out)
  assert kept
  assert all(x in everything for x in kept)
  for prompt_id in range(NUM_PROMPTS):
    right = [
      x["tokens"]
      for x in everything
      if x["prompt_id"] == prompt_id and x["correct"] and x["terminated"]
    ]
    sizes = [x["tokens"] for x in kept if x["prompt_id"] == prompt_id]
    assert sizes == sorted(right)[:1]


def test_another_file_is_never_changed(policy, whole, tmp_path):
  out = tmp_path / "out.jsonl"
  out.write_text("mine\n")
  with pytest.raises(ValueError, match=r"position\.json is missing"):
    generate(policy, out)
  assert out.read_text() == "mine\n"
  for path in (whole, generation.position_of(whole)):
    shutil.copy(path, tmp_path)
  with pytest.raises(ValueError, match=r"draws\.seed was 5, and is 6"):
    generate(policy, out, wanted(seed=6))
  with pytest.raises(ValueError, match='prompts was absent, and is "other"'):
    generate(policy, out, prompts="other")
  out.write_bytes(whole.read_bytes()[:-1])
  with pytest.raises(ValueError, match="it was cut"):
    generate(policy, out)


def test_what_a_file_was_begun_with_is_compared_by_name(tmp_path):
  assert generation.settings_of(None) is None
  out = tmp_path / "out.jsonl"
  generation.position_of(out).write_text('{"bytes": 0}')
  with pytest.raises(ValueError, match="has no done, settings: it was not"):
    generation._read(out, {})

  def settings(template):
    config = checkpoint.get_config()
    config.data.template = template
    return {"config": generation.settings_of(config)}

  generation._save(out, generation.Counts(0, 0, 0), 0, settings("{prompt}"))
  assert generation._read(out, settings("{prompt}"))[0].prompts == 0
  with pytest.raises(ValueError, match=r'config\.data\.template was "{prompt}'):
    generation._read(out, settings("Q: {prompt}"))


def test_settings_that_do_not_go_together():
  with pytest.raises(ValueError, match="would be the same"):
    wanted(temperature=0.0).check()
  with pytest.raises(ValueError, match="nobody is to score"):
    generation.FileSettings(
      data_sets.Draws(), KeepConfig(), is_scored=False
    ).check()
  with pytest.raises(ValueError, match=r"keep\.most=0"):
    wanted(keep=KeepConfig(0)).check()


def num_prompts(out):
  position = generation.position_of(out)
  if not position.exists():
    return 0
  return json.loads(position.read_text())["done"]["prompts"]


def test_the_command_is_killed_and_goes_on(finished, tmp_path):
  arguments = (
    "generate",
    f"--workdir={finished.cwd / 'run'}",
    "--prompts=held_out",
    "--num_prompts=800",
    "--batch_size=8",
    "--keep=1",
    "--distinct=text",
  )
  whole, broken = "--out=a", "--out=b"
  status, out, err = command.run(*arguments, whole, cwd=tmp_path)
  assert status == 0, err
  programs_test.assert_fits(out, err)
  with command.start(*arguments, broken, cwd=tmp_path) as process:
    while num_prompts(tmp_path / "b") < 80:  # Nine tenths are to come.
      assert process.poll() is None
      time.sleep(0.001)
    time.sleep(random.Random(0).uniform(0, 0.05))
    process.kill()
  assert process.returncode == -signal.SIGKILL
  status, out, err = command.run(*arguments, broken, cwd=tmp_path)
  assert status == 0, err
  assert out.startswith("continuing after")
  assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
