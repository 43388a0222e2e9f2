"""Runs in the hands of a script or a notebook."""

import json
import pathlib
import signal

import jax
import numpy as np
import pytest

import grpo_jax as g
from grpo_jax.training import run as run_lib
from grpo_jax.training.runtime import traces
from tests.experiments import command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(finished):
  """The finished run, whose policy was imitated and reinforced."""
  with g.load(finished.cwd / "run") as found:
    yield found


def tiny(**settings):
  """Three steps of imitation, with a checkpoint at the end."""
  config = g.config(
    command.ROOT / "tests/experiments/tiny_config.py",
    **{
      "phases": ("sft",),
      "sft.steps": 3,
      "log.trackers": (),
      **settings,
    },
  )
  return config


# --- what is on the disk -----------------------------------------------------


def test_a_run_shows_what_it_has_logged(run, finished):
  rows = (finished.cwd / "run/metrics.jsonl").read_text().splitlines()
  rows = [json.loads(row) for row in rows]
  assert run.history.steps.tolist() == [row["step"] for row in rows]
  assert run.history.phases.tolist() == [row["phase"] for row in rows]
  expected = [row.get("reward/mean", np.nan) for row in rows]
  np.testing.assert_array_equal(run.history["reward/mean"], expected)
  assert run.result["step"] == run.step == 20
  after = run.result["after"]["eval/accuracy"]
  assert repr(run) == (
    f"Run({str(finished.cwd / 'run')!r}, 20 steps, eval/accuracy {after:.3f})"
  )
  assert {sample["step"] for sample in run.samples} == set(range(11, 21))
  lines, expected = (
    [traces.line(group) for group in groups]
    for groups in (run.traces(), traces.read(finished.cwd / "run"))
  )
  assert lines == expected


def test_a_plot_is_a_picture_for_a_notebook_and_a_file_for_a_script(
  run, capsys
):
  figure = run.plot()
  path = run.workdir / "curves.png"
  assert f"curves: {path}\n" in capsys.readouterr().out
  assert path.read_bytes().startswith(b"\x89PNG")
  assert figure.axes[0].get_title(loc="left") == "Reward"
  assert figure._repr_png_().startswith(b"\x89PNG")


def test_what_a_run_has_not_yet_is_empty(tmp_path):
  (tmp_path / "config.json").write_text(tiny().to_json())
  run = g.load(tmp_path)
  assert (run.result, run.samples, len(run.history)) == (None, [], 0)
  assert repr(run) == f"Run({str(tmp_path)!r})"
  with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
    run.sample("ab=")
  with pytest.raises(FileNotFoundError, match="holds no run"):
    g.load(tmp_path / "other")


# --- samples -----------------------------------------------------------------


def reference(run, sample, temperature):
  """Log-probs and entropies of the tokens of a sample, by NumPy."""
  problem, policy = run.loaded.problem, run.loaded.policy
  prompt = np.asarray(problem.encoder.prompt({"prompt": sample.prompt}))[None]
  written = problem.tokenizer.markup_ids("".join(sample.tokens))
  assert len(written) == len(sample.tokens)
  tokens = np.array(written)[None]
  h, _ = policy.hidden(
    run.params,
    prompt,
    np.ones_like(prompt, bool),
    tokens,
    np.ones_like(tokens, bool),
    np.zeros(1, int),
  )
  logits = np.asarray(policy.head(run.params, h), np.float64)[0] / temperature
  logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))  # [n, V]
  entropy = -(np.exp(logp) * logp).sum(-1)
  return logp[np.arange(tokens.size), tokens[0]], entropy


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_samples_have_the_numbers_of_the_policy(run, temperature):
  n = 3 if temperature else 1
  drawn = run.sample(["ab=", "cb="], n=n, temperature=temperature)
  assert [len(group) for group in drawn] == [n, n]
  assert drawn.texts == [[row.text for row in group] for group in drawn]
  for row in (row for group in drawn for row in group):
    logprobs, entropies = reference(run, row, temperature or 1.0)
    np.testing.assert_allclose(row.logprobs, logprobs, atol=1e-4)
    np.testing.assert_allclose(row.entropies, entropies, atol=1e-4)
    assert len(row.tokens) == row.num_tokens


def test_a_text_is_not_scored_and_a_record_is(run):
  text = run.sample("ab=")
  assert np.isnan(text.rewards).all()
  assert not text[0][0].valid
  assert text[0][0].components == {}
  assert repr(text).splitlines()[0] == "ab="
  assert repr(text).splitlines()[1].strip().startswith("–")

  records = run.prompts(8)
  drawn = run.sample(records)
  assert drawn.rewards.shape == (8, 1)
  shares = np.mean([row.right for (row,) in drawn])
  assert shares == run.result["after"]["eval/accuracy"]
  assert np.mean(drawn.rewards) == pytest.approx(
    run.result["after"]["eval/reward"]
  )
  assert set(drawn[0][0].components) >= {"f1", "accuracy"}


def test_samples_are_the_same_for_a_seed_and_others_for_another(run):
  def texts(seed):
    return run.sample(run.prompts(8), n=3, temperature=2.0, seed=seed).texts

  assert texts(1) == texts(1) != texts(2)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"prompts": "ab=", "n": 2}, "n=2 and temperature=0: .*set a temperature"),
    ({"prompts": "ab=", "n": 0}, "n=0 completions .*at least 1"),
    ({"prompts": []}, "0 prompts; needs at least one"),
    ({"prompts": ["ab=", {"prompt": "ab="}]}, "either texts or records"),
    ({"prompts": {"answer": "ab"}}, "has no prompt"),
    ({"prompts": "abcabcabcabc="}, "14 tokens; .* at most 5"),
  ],
)
def test_prompts_that_cannot_be_continued_are_refused(run, arguments, message):
  with pytest.raises(ValueError, match=message):
    run.sample(**arguments)


def test_there_are_only_so_many_prompts(run):
  with pytest.raises(ValueError, match=r"num_prompts=0; the run has \d+ held"):
    run.prompts(0)


def test_evaluation_finds_what_training_found(run):
  found = run.evaluate()
  assert {name: found[name] for name in run.result["after"]} == run.result[
    "after"
  ]
  assert "eval/maj@2" in run.evaluate(4, temperature=1.0, num_samples=2)


def test_a_closed_run_opens_again(finished):
  with g.load(finished.cwd / "run") as run:
    before = run.params
  assert "loaded" not in vars(run)
  jax.tree.map(np.testing.assert_array_equal, before, run.params)
  run.close()
  with pytest.raises(FileNotFoundError, match="holds no step 7"):
    g.load(finished.cwd / "run", step=7).step  # noqa: B018


# --- training ----------------------------------------------------------------


def test_a_run_without_a_folder_has_one_until_the_process_ends(capsys):
  run = g.train(tiny())
  assert f"workdir: {run.workdir}, until this process ends" in (
    capsys.readouterr().out
  )
  assert pathlib.Path(run.workdir).is_dir()
  assert run.result["step"] == run.step == 3
  assert run.history["loss"].shape == (3,)


def test_an_interrupted_run_saves_and_the_same_call_continues(
  tmp_path, monkeypatch, capsys
):
  whole = g.train(tiny(), tmp_path / "whole")
  record = run_lib.record

  def interrupted(run, name, offset, done, *rest):
    if done == 1:
      signal.raise_signal(signal.SIGINT)
    return record(run, name, offset, done, *rest)

  with monkeypatch.context() as patch:
    patch.setattr(run_lib, "record", interrupted)
    stopped = g.train(tiny(), tmp_path / "run")
  folder = str(tmp_path / "run")
  assert f"train(config, {folder!r}) continues" in capsys.readouterr().out
  assert stopped.result is None
  assert 1 <= stopped.step < 3
  again = g.train(tiny(), stopped.workdir)
  assert again.result["step"] == 3
  for name in ("metrics.jsonl", "samples.jsonl", "traces.jsonl.gz"):
    whole_bytes = (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "run" / name).read_bytes() == whole_bytes
  jax.tree.map(np.testing.assert_array_equal, whole.params, again.params)
