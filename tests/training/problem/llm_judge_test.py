"""Tests of a judge that is a model of the run: its prompts and verdicts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.data import observations, tokenizer
from grpo_jax.models.policies import from_logits
from grpo_jax.settings import rewards
from grpo_jax.step import models, passes
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.problem import llm_judge
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.types import Prompts
from tests.training import tiny

TASK = observations.TaskTokenizer(tasks.make_task("add", level=1))
BYTES = tokenizer.Tokenizer(tokenizer.BYTES)
WORDS = {"y": 1.0, "n": 0.0}


def config(**fields):
  return rewards.JudgeConfig(
    **{"rubric": "{prompt}{completion}?", "verdicts": WORDS, **fields}
  )


def made(service=None, **fields):
  return config(service=rewards.ServiceConfig(**(service or {})), **fields)


def record(prompt, answer="", **extras):
  if not isinstance(prompt, str):
    prompt = np.array(prompt, np.int32)
  return {"prompt": prompt, "answer": answer, "extras": extras}


def rollout(rows, index, num_slots=6):
  """Completions of prompts, as ids."""
  tokens = np.full((len(rows), num_slots), vocab.PAD, np.int32)
  mask = np.zeros((len(rows), num_slots), bool)
  for i, ids in enumerate(rows):
    tokens[i, : len(ids)], mask[i, : len(ids)] = ids, True
  return tiny.rollout_of(tokens, mask, index, terminated=mask.any(axis=1))


def prompts(rubric, records, **extras):
  arrays = [rubric.arrays(one) for one in records]
  made = {name: np.stack([x[name] for x in arrays]) for name in arrays[0]}
  size = len(records)
  return Prompts(
    np.ones((size, 2), np.int32),
    np.ones((size, 2), bool),
    np.arange(size, dtype=np.int32),
    made | extras,
  )


_asked = jax.jit(llm_judge.inputs, static_argnums=(2, 3))


def read_rows(text, rubric, records, completions, index, num_slots=6):
  """Prompts of a judge for each row, as lists of ids."""
  control = tuple(sorted(text.control_ids()))
  asked = _asked(
    prompts(rubric, records),
    rollout(completions, index, num_slots),
    control,
    text.pad_id,
  )
  tokens, mask = jax.device_get(asked)
  assert (np.diff(mask.astype(int), axis=1) >= 0).all()  # Left.
  return [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)]


def test_a_completion_is_put_into_its_place():
  made = llm_judge.rubric(config(), TASK, 6, record(vocab.encode("<bos>3+4=")))
  records = [record(vocab.encode(f"<bos>{x}+4=")) for x in (3, 15)]
  rows = [vocab.encode(x) for x in ("7<eos>", "19", "", "1<pad>2<bos>3<eos>")]
  found = read_rows(TASK, made, records, rows, [0, 1, 1, 0])
  wanted = ["3+4=7?", "15+4=19?", "15+4=?", "3+4=123?"]
  assert found == [[vocab.BOS, *vocab.encode(text)] for text in wanted]


def test_texts_are_ids_and_nothing_in_them_is_a_control_token():
  rubric = "<eos>Q: {prompt} ({answer}, {why}) A: {completion} <pad>\nWell?"
  made = llm_judge.rubric(
    config(rubric=rubric, max_prompt_len=80, template="> {rubric} <"),
    BYTES,
    20,
    record("2+2", "4", why="so"),
  )
  records = [record("<eos>2+2{completion}", "4", why="<pad>")]
  said = BYTES.encode("no<eos>5<think>")
  (row,) = read_rows(BYTES, made, records, [said], [0])
  eos, pad = BYTES.encode("<eos>")[0], BYTES.encode("<pad>")[0]
  assert row.count(eos) == 1
  assert row.count(pad) == 1
  think = said[-1]
  shown = [i for i in row if i not in (eos, pad)]
  after = shown.index(think) if think in shown else None
  text = BYTES.decode(shown)
  assert text.startswith("> Q: <eos>2+2{completion} (4, <pad>) A: no5")
  assert text.endswith(" \nWell? <")
  assert after is None or "<think>" in text


def test_a_record_that_does_not_fit_is_not_judged():
  made = llm_judge.rubric(
    config(max_prompt_len=8), TASK, 6, record(vocab.encode("<bos>3+4="))
  )
  long = made.arrays(record(vocab.encode("<bos>12345+4=")))
  assert long["judge/size"] == long["judge/head"] == 0
  missing = dataclasses.replace(made, text="{why}{completion}")
  assert missing.arrays(record(vocab.encode("1")))["judge/size"] == 0


@functools.cache
def scripted():
  """A policy that reads the last token before "?": even, odd, or nothing."""

  def logits(params, tokens, mask):
    del params, mask
    before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    digit = before - vocab.DIGIT_0
    is_digit = (digit >= 0) & (digit < 10)
    letter = {x: vocab.encode(x)[0] for x in "ynx"}
    said = jnp.where(digit % 2 == 0, letter["y"], letter["n"])
    said = jnp.where(is_digit, said, letter["x"])
    said = jnp.where(tokens == vocab.QUESTION, said, vocab.EOS)
    return jax.nn.one_hot(said, vocab.VOCAB_SIZE)

  return from_logits.policy_from_logits(logits, lambda key: {})


def reader(batch_size=None):
  made = llm_judge.by_reading(config(batch_size=batch_size), TASK)
  policy = scripted()
  return dataclasses.replace(
    made,
    view=lambda params: models.ModelView(
      passes.Trunk(policy, params), functools.partial(policy.head, params)
    ),
    plan=UpdatePlan(micro_batch_size=4, group_size=4),
  )


COMPLETIONS = [vocab.encode(x) for x in ("4", "15", "a", "", "16<eos>", "3y")]
WORTH = [1.0, 0.0, np.nan, np.nan, 1.0, np.nan]


def test_rows_that_are_read_at_once_split_over_the_devices():
  assert llm_judge._chunk(48, 24, 1) == 24
  assert llm_judge._chunk(48, 20, 8) == 16
  assert llm_judge._chunk(48, 4, 8) == 8  # And not all of them.


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", tiny.each([None, 1, 3, 64], [None, 3]))
def test_verdicts_do_not_depend_on_how_many_rows_are_read_at_once(batch_size):
  made = llm_judge.rubric(config(), TASK, 6, record(vocab.encode("<bos>3+4=")))
  given = prompts(made, [record(vocab.encode("<bos>3+4="))] * 3)
  rows = rollout(COMPLETIONS, [0, 0, 1, 1, 2, 2])
  got = jax.jit(
    lambda *x: reader(batch_size).score({"trained": {}}, *x)[0]["judge"]
  )(given, rows)
  np.testing.assert_array_equal(got, WORTH)


@pytest.mark.slow
def test_without_a_verdict_a_row_is_unscored_where_it_is_judged():
  made = llm_judge.rubric(config(), TASK, 6, record(vocab.encode("<bos>3+4=")))
  one = record(vocab.encode("<bos>3+4="))
  given = prompts(made, [one] * 3, domain=np.array([0, 1, 0], np.int32))
  rows = rollout(COMPLETIONS, [0, 0, 1, 1, 2, 2])
  right = rewards_lib.InGraph(lambda prompts, rollout: {"right": jnp.ones(6)})
  judge = rewards_lib.RewardSum(
    (right, reader()),
    {"right": 0.5, "judge": 1.0},
    "right",
    {},
    {"judge": (0,)},
  )
  scored = jax.jit(lambda *x: judge.score({"trained": {}}, *x))(given, rows)
  np.testing.assert_array_equal(scored.valid, [1, 1, 1, 1, 1, 0])
  np.testing.assert_allclose(scored.rewards, [1.5, 0.5, 0.5, 0.5, 1.5, 0])
  alone = judge.without_models()
  assert [type(x) for x in alone.rewards] == [rewards_lib.InGraph]
  assert dict(alone.weights) == {"right": 0.5}


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"rubric": "{prompt}?"}, "0 places '{completion}'"),
    ({"rubric": "{completion}{completion}"}, "2 places"),
    ({"rubric": "{fence}{completion}"}, "for a service"),
    ({"template": "hm"}, "does not contain"),
    ({"verdicts": {}}, "needs words"),
    ({"service": {"url": "https://host/v1"}}, "model is not"),
    ({"service": {"url": "http://host/v1"}, "model": "m"}, "not encrypted"),
    ({"service": {"key_variable": "sk-hush"}}, "no name of an environment"),
    ({"service": {"max_tries": 0}}, "max_tries=0"),
  ],
)
def test_what_no_judge_can_be_is_refused(fields, message):
  with pytest.raises(ValueError, match=message) as caught:
    made(**fields)
  assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"rubric": "{why}{completion}"}, "max_prompt_len is not set"),
    ({"rubric": "{why}{completion}", "max_prompt_len": 9}, "{why} is None"),
    ({"max_prompt_len": 5}, "first record has 6 tokens"),
    ({"rubric": "{completion} Yes?"}, "are not tokens"),
    ({"template": "chat"}, "tokens of a task have no chat template"),
  ],
)
def test_a_rubric_that_the_data_do_not_fit_is_refused(fields, message):
  first = record(vocab.encode("<bos>3+4="))
  with pytest.raises(ValueError, match=message):
    llm_judge.rubric(config(**fields), TASK, 6, first)
