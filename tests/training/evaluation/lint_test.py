"""Data and verifiers are looked at before anything is trained."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import types

import pytest

from grpo_jax import tasks
from grpo_jax.configs import bias_mcq, language, quickstart, vision
from grpo_jax.data import quality, sources
from grpo_jax.settings import config as config_lib
from grpo_jax.training import many
from grpo_jax.training.evaluation import evaluation, lint
from grpo_jax.training.problem import problem as problem_lib


def opened(config):
  settings = config_lib.resolve(config)
  return settings, problem_lib.make_problem(settings)


def attack(share=1.0, **guards):
  config = bias_mcq.get_config()
  config.data.task_options.flipped_share = share
  for name, value in guards.items():
    config.guards[name] = value
  return config


@pytest.mark.slow
def test_a_data_set_of_one_prompt_is_refused(caplog):
  message = "1 different prompts among the first 2000; needs 128"
  for guards in ({"on": True}, {"lint": "refuse"}):
    with pytest.raises(ValueError, match=message):
      lint.before_training(*opened(attack(**guards)))
  assert not caplog.records


@pytest.mark.slow
def test_runs_that_are_one_program_are_looked_at_too(tmp_path):
  configs = [attack(lint="refuse"), attack(lint="refuse")]
  configs[1].seed = 1
  folders = [tmp_path / "0", tmp_path / "1"]
  with pytest.raises(ValueError, match="data lint: 1 different prompts"):
    many.train(configs, folders)


def test_without_guards_it_is_a_warning_that_can_be_switched_off(caplog):
  with caplog.at_level(logging.WARNING):
    lint.before_training(*opened(attack(lint="off")))
    lint.before_training(*opened(attack(lint="off", on=True)))
    lint.before_training(*opened(quickstart.get_config()))
    # Its prompts have few texts, and different images.
    lint.before_training(*opened(vision.get_config()))
    assert not caplog.records
    lint.before_training(*opened(attack()))
  few, one = (record.getMessage() for record in caplog.records)
  assert "data lint: 1 different prompts" in few
  assert "one prompt is 256 of the first 256 records" in one


@pytest.mark.slow
def test_a_prompt_that_is_a_quarter_of_the_data_is_refused():
  lint.before_training(*opened(attack(0.0, on=True)))
  with pytest.raises(ValueError, match=r"one prompt is \d+ of the first 2000"):
    lint.before_training(*opened(attack(0.25, on=True)))


def checks(config):
  return [
    (finding.check, finding.is_error)
    for finding in lint.verifier(*opened(config))
  ]


def test_right_verifiers_pass():
  for made in (quickstart, language, bias_mcq, vision):
    assert checks(made.get_config()) == []


def test_a_task_without_a_twin_on_the_host_is_not_tried():
  task = dataclasses.replace(tasks.make_task("sort"), verify_numpy=None)
  config = quickstart.get_config()
  config.data.name, config.data.task_options = task, {}
  (found,) = lint.verifier(*opened(config))
  assert not found.is_error
  assert "was not tried: the task has none on the host" in found.message


def test_a_verifier_that_accepts_an_empty_answer_is_an_error():
  config = language.get_config()
  config.rewards.functions = ("accuracy_buggy",)
  config.rewards.weights = (1.0,)
  config.rewards.correct = "accuracy_buggy"
  (found,) = lint.verifier(*opened(config))
  assert found.is_error
  assert "marks wrong answers as right: without an answer" in found.message


def test_a_verifier_that_no_gold_passes_is_an_error():
  config = bias_mcq.get_config()
  config.rewards.correct = "biased"
  config.data.task_options.teacher_bias = 0.0
  (found,) = lint.verifier(*opened(config))
  assert "'biased' marks none of 256 reference answers" in found.message


# The gold of another record is accepted; golds are refused.
_SWAPPED, _REFUSED = ("verifier", True), ("verifier", False)


def stand_in(judge):
  """A problem of text whose verifier is a function of the completion."""

  def score_texts(records, texts, ids):
    assert len(records) == len(texts) == len(ids)
    marks = [float(bool(judge(text))) for text in texts]
    return types.SimpleNamespace(components={"mine": marks})

  golds = [
    {"completion": f"It is {i}.", "answer": str(i), "prompt": "", "extras": {}}
    for i in range(40)
  ]
  return types.SimpleNamespace(
    sessions=None,
    environment=None,
    train=golds,
    supervised=golds,
    score_texts=score_texts,
    reward=types.SimpleNamespace(correct="mine", on_host=object()),
  )


@pytest.mark.parametrize(
  ("judge", "found"),
  [
    (lambda text: True, [("format only", True)]),
    (lambda text: False, [("verifier", True)]),
    (lambda text: text.startswith("It is") and text.endswith("."), [_SWAPPED]),
    (lambda text: re.fullmatch(r"It is [0-9]\.", text), [_REFUSED, _SWAPPED]),
  ],
)
def test_verifiers_on_the_host_are_tried_too(judge, found):
  problem = stand_in(judge)
  result = lint.verifier(None, problem)
  assert [(one.check, one.is_error) for one in result] == found


@pytest.mark.parametrize("form", ["{}", "<answer>{}</answer>", r"\boxed{{{}}}"])
def test_an_answer_is_put_into_the_form_that_is_right(form):
  def right(text):
    return re.fullmatch(form.format("[0-9]+").replace("\\", "\\\\"), text)

  problem = stand_in(right)
  problem.supervised = [{**gold, "completion": ""} for gold in problem.train]
  # Any answer is right, so that only a swapped one is marked as it should not.
  (found,) = lint.verifier(None, problem)
  assert found.is_error
  assert "marks wrong answers as right" in found.message
  problem.supervised = [{"completion": "", "answer": ""}] * 40
  (found,) = lint.verifier(None, problem)
  assert "no reference answers" in found.message


RECORDS = [
  {
    "prompt": f"How much is {a} and {b}, and why is that so?",
    "answer": str(a + b),
  }
  for a in range(12)
  for b in range(3)
]


def text_config(tmp_path, records):
  path = tmp_path / "train.jsonl"
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  config = quickstart.get_config()
  config.phases = ("rl",)
  config.data.source = "jsonl"
  config.data.task_options = {}
  config.data.train_path = str(path)
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 80
  config.sampling.max_new_tokens = 4
  # In the graph, so that no process of a verifier is started.
  config.rewards.functions = ("math_accuracy",)
  config.rewards.in_graph = True
  return config


@pytest.mark.slow
def test_golds_that_are_read_in_part_are_named(tmp_path):
  golds = (r"n \equiv 1 \pmod 3", "12", "12:00", r"\frac{1}{", "x^2", "Paris")
  config = text_config(
    tmp_path,
    [
      {**record, "answer": gold}
      for record, gold in zip(RECORDS, golds, strict=False)
    ],
  )
  config.rewards.in_graph = False
  settings, problem = opened(config)
  try:
    found = lint.records(settings, problem, 1000)
  finally:
    problem.close()
  in_part, unread = (one for one in found if one.check == "golds")
  assert (in_part.records, unread.records) == ((0, 2), (3,))
  assert "'12:00'" in in_part.message


def test_copies_and_contradictions_are_found_and_left_out(tmp_path):
  records = [
    *RECORDS,
    RECORDS[3],
    {**RECORDS[5], "answer": "77"},
    {**RECORDS[7], "prompt": RECORDS[7]["prompt"] + "!"},
  ]
  config = text_config(tmp_path, records)
  settings, problem = opened(config)
  try:
    found = lint.records(settings, problem, 1000)
    by_check = {finding.check: finding for finding in found}
    assert by_check["duplicates"].records == (36, 37)
    assert by_check["conflicts"].records == (37,)
    assert 38 in by_check["near-duplicates"].records
    assert by_check["few prompts"].is_error
    why = {37: ["conflicts"], 38: ["near-duplicates"]}
    entries = quality.described(problem.train, why)
  finally:
    problem.close()
  out = tmp_path / "quarantine.json"
  out.write_text(json.dumps(entries))
  assert entries[0]["why"] == ["conflicts"]
  config.data.quarantine = str(out)
  _, problem = opened(config)
  problem.close()
  left = [problem.train[i]["prompt"] for i in range(len(problem.train))]
  assert left == [record["prompt"] for record in records[:37]]
  assert len(problem.held_out) == 39


def test_held_out_prompts_that_are_trained_on_are_named(tmp_path, caplog):
  config = text_config(tmp_path, RECORDS)
  other = tmp_path / "other.jsonl"
  config.data.eval_path = str(other)
  shared = [{**RECORDS[4], "answer": "1"}, RECORDS[2], RECORDS[2]]
  new = {**RECORDS[0], "prompt": "Is it another one?"}
  other.write_text("".join(json.dumps(x) + "\n" for x in [*shared, new]))
  config.eval.num_prompts = 256
  settings, problem = opened(config)
  (found,) = lint.of_held_out(settings, problem, 1)
  assert found.records == (2, 4)
  assert found.message.startswith("2 of 3 held-out prompts are training")
  # Of lines that are read when it is their turn, few are compared.
  config.data.streaming = True
  settings, problem = opened(config)
  assert not lint.of_held_out(settings, problem, 2)
  (found,) = lint.of_held_out(settings, problem, 3)
  assert found.records == (2,)
  with caplog.at_level(logging.WARNING):
    lint.before_training(settings, problem)
  assert "data lint: 2 of 3 held-out prompts" in caplog.text
  other.write_text(json.dumps(new) + "\n")
  assert not lint.of_held_out(*opened(config), 256)


def test_files_that_are_no_quarantine_are_refused(tmp_path):
  source = sources.TextSource(_lines(tmp_path))
  out = tmp_path / "out.json"
  with pytest.raises(FileNotFoundError, match="there is no such file"):
    quality.Without(source, out)
  for content in ("{", "[1]", '[{"number": 1}]'):
    out.write_text(content)
    with pytest.raises(ValueError, match="needs a JSON list of objects"):
      quality.Without(source, out)
  out.write_text(json.dumps(quality.described(source, {0: [], 1: []})))
  with pytest.raises(ValueError, match="none is left to train on"):
    quality.Without(source, out)


def _lines(tmp_path):
  path = tmp_path / "prompts.txt"
  path.write_text("one\ntwo\n")
  return path


def row(answer, correct):
  return evaluation.Completion(
    *("prompt", "text", answer, 0.0, correct, True, 3, True, {})
  )


def test_labels_that_a_sure_policy_contradicts_are_doubted():
  sure = [row("4", False)] * 12 + [row("5", True)] * 4
  unsure = [row("4", False)] * 11 + [row("5", True)] * 5
  agreed = [row("5", True)] * 16
  silent = [row(None, False)] * 16
  (found,) = lint.disagreements([agreed, sure, unsure, silent])
  assert (found.records, found.is_error) == ((1,), False)
  assert "1 of 4 labels" in found.message
  assert lint.disagreements([agreed, unsure]) == []
