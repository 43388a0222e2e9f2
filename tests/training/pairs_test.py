"""Completions that come in pairs: batches, what they train, what is refused."""

import json

import jax
import numpy as np
import pytest

from grpo_jax.configs import pairs
from grpo_jax.data import pipeline, sources, teacher
from grpo_jax.data.encoder import Encoder
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import executors
from tests.training import sources_config, tiny
from tests.training.problem import records_test

ROWS = [
  {"prompt": f"{a} + {b} =", "chosen": f"{a + b}", "rejected": f"it is {a}"}
  for a in range(4)
  for b in range(1, 4)
]


def stream(tmp_path, records=ROWS, **changes):
  path = tmp_path / "pairs.jsonl"
  path.write_text("\n".join(map(json.dumps, records)))
  options = {
    "batch_size": 4,
    "max_prompt_len": 8,
    "max_completion_len": 8,
    "seed": 0,
    "pad_id": 0,
    "end_id": 1,
  }
  return pipeline.pair_stream(
    sources.JsonlSource(path, "pairs"),
    Encoder(records_test.Letters()),
    **{**options, **changes},
  )


def text(ids, mask):
  return "".join(map(chr, ids[mask]))


def test_the_row_of_a_prompt_that_is_preferred_comes_first(tmp_path):
  batch = next(stream(tmp_path))
  assert batch.prompt_tokens.shape == (4, 8)
  assert batch.tokens.shape == (8, 8)
  given = {row["prompt"]: row for row in ROWS}
  for i in range(4):
    row = given[text(batch.prompt_tokens[i], batch.prompt_mask[i])]
    first, second = (
      text(batch.tokens[j], batch.completion_mask[j])
      for j in (2 * i, 2 * i + 1)
    )
    assert (first, second) == (row["chosen"] + "\1", row["rejected"] + "\1")
  assert not batch.observed.any()


def test_pairs_that_do_not_fit_are_left_out(tmp_path, caplog):
  long = {"prompt": "1 =", "chosen": "1", "rejected": "much too long"}
  with caplog.at_level("INFO", logger="absl"):
    found = stream(tmp_path, [ROWS[0], long])
  assert "config.data: left out 1 of 2 records" in caplog.text
  rows = next(found).prompt_tokens
  np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
  with pytest.raises(ValueError, match="all 1 records are too long"):
    stream(tmp_path, [long])


def test_records_without_a_pair_are_refused(tmp_path):
  path = tmp_path / "data.jsonl"
  path.write_text('{"prompt": "a", "completion": "b"}')
  with pytest.raises(ValueError, match=r"needs config.data.format='pairs'"):
    Encoder(records_test.Letters()).pair(sources.JsonlSource(path)[0])


def test_processes_together_make_the_batch_of_one(tmp_path):
  whole, half = stream(tmp_path), stream(tmp_path, rows=[2, 3])
  for _ in range(3):
    both, own = next(whole), next(half)
    np.testing.assert_array_equal(own.prompt_tokens, both.prompt_tokens[2:])
    np.testing.assert_array_equal(own.tokens, both.tokens[4:])
  rows = np.arange(4, 8)
  batch = executors.train_batch(own, rows, 8)
  np.testing.assert_array_equal(batch.group_id, [2, 2, 3, 3])
  np.testing.assert_array_equal(batch.prompt_index, [2, 2, 3, 3])
  np.testing.assert_array_equal(batch.rewards, [1, 0, 1, 0])
  np.testing.assert_array_equal(batch.correct, [True, False] * 2)
  assert batch.num_groups == 4


def test_a_warm_start_imitates_so_many_rejected_texts(tmp_path):
  path = tmp_path / "pairs.jsonl"
  path.write_text("\n".join(map(json.dumps, ROWS * 50)))
  plain = sources.JsonlSource(path, "pairs")
  source = teacher.RejectedSource(plain, seed=1, share=0.25)
  texts = [(source[i]["completion"], plain[i]) for i in range(len(source))]
  is_rejected = [text == record["rejected"] for text, record in texts]
  assert np.mean(is_rejected) == pytest.approx(0.25, abs=0.05)
  others = [pair for pair, no in zip(texts, is_rejected, strict=True) if not no]
  assert all(text == record["completion"] for text, record in others)
  assert source[3] == teacher.RejectedSource(plain, 1, 0.25)[3]


def _batch(first: int):
  """Pairs of one token: even prompts prefer 2, odd ones 3."""
  prompts = np.arange(first, first + 8) % 5 + 2
  better = 2 + prompts % 2
  pairs = np.stack([better, 5 - better], axis=1).reshape(-1)
  tokens = np.stack([pairs, np.full(16, tiny.END)], axis=1).astype(np.int32)
  made = pipeline.SupervisedBatch(
    prompts[:, None].astype(np.int32),
    np.ones((8, 1), bool),
    tokens,
    np.ones((16, 2), bool),
    np.zeros((16, 2), bool),
  )
  return executors.train_batch(made, np.arange(16), 16)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "kind"), [("dpo", "pairs"), ("bradley_terry", "comparison")]
)
def test_what_is_preferred_is_learnt(name, kind):
  phase = tiny.make_phase(
    name,
    group_size=2,
    max_new_tokens=2,
    micro_batch_size=16,
    learning_rate=5e-2,
    phase={"kind": kind, "num_prompts": 8},
  )
  state = tiny.make_state(phase)
  advance = jax.jit(lambda s, b: step_lib.supervised_step(s, b, phase=phase))
  loss = "loss" if name == "dpo" else "reward_model/loss"
  history = []
  for step in range(40):
    state, metrics = advance(state, _batch(8 * step))
    history.append(float(metrics[loss]))
  # Before the first step nothing is preferred: −log σ(0).
  assert history[0] == pytest.approx(np.log(2), abs=0.1)
  assert history[-1] < 0.3 * history[0], history


@pytest.mark.slow
def test_the_weight_of_a_kl_adapts_on_pairs():
  phase = tiny.make_phase(
    "dpo",
    fields={"kl_coef": 0.1, "kl_target": 1.0, "kl_horizon": 16.0},
    group_size=2,
    max_new_tokens=2,
    phase={"kind": "pairs", "num_prompts": 8},
  )
  advance = jax.jit(lambda s, b: step_lib.supervised_step(s, b, phase=phase))
  state = tiny.make_state(phase)
  for step in range(2):  # 16 rows a step, and a KL far below the target.
    before = float(state.algorithm_state["coefficients"]["kl"])
    assert before == pytest.approx(0.1 * 0.8**step)
    state, metrics = advance(state, _batch(8 * step))
    assert metrics["loss/kl"] == pytest.approx(before * metrics["kl/reference"])


def config_of(algorithm="dpo", kind="pairs", **fields):
  config = config_lib.default_config(algorithm)
  config.phases = ("first",)
  config.first = config_lib.phase_config(kind, **fields)
  return config_lib.resolve(config)


def test_a_phase_on_pairs_has_two_rows_of_each_prompt():
  phase = config_of().section("first")
  assert (phase.group_size, phase.samples) == (2, False)
  assert config_of(kind="comparison").section("first").trains == ("reward",)


def test_pairs_train_a_policy_or_a_reward_model_that_it_follows():
  run = config_lib.resolve(pairs.get_config())
  assert run.phases == ("sft", "pairs")
  run = config_lib.resolve(pairs.get_config("grpo"))
  assert run.phases == ("sft", "comparison", "rl")
  assert run.objective("comparison")[0].name == "bradley_terry"
  weights = dict(zip(run.rewards.functions, run.rewards.weights, strict=True))
  assert weights == {"think_answer_format": 0.0, "reward_model": 1.0}


def test_minibatches_that_part_pairs_are_refused():
  with pytest.raises(ValueError, match="would part the pairs"):
    config_of(num_prompts=4, num_minibatches=8)


@pytest.mark.parametrize(
  ("fields", "absent"),
  [
    ({"importance_mode": "mask"}, "behavior_logp"),
    ({"entropy_target": 0.5}, "behavior_entropy"),
    ({"kl_coef": 0.1, "kl_domain_weights": (1.0, 2.0)}, "domain"),
  ],
)
def test_options_that_read_what_is_drawn_are_refused_on_pairs(
  tmp_path, fields, absent
):
  config = sources_config.get_config("pairs")
  path = tmp_path / "pairs.jsonl"
  path.write_text("\n".join(map(json.dumps, ROWS)))
  config.data.train_path = str(path)
  config.algorithm.update(fields)
  name = [*fields][-1]
  with pytest.raises(ValueError, match=f"{name}=.* reads {absent}, which"):
    tiny.phase_of(config, name="pairs")


def test_an_algorithm_that_draws_is_refused_on_pairs():
  for name in ("grpo", "lambda_grpo", "bradley_terry"):
    run = config_of(name)
    with pytest.raises(ValueError, match="choose 'dpo'"):
      run.objective("first")
  run = config_of("grpo", "comparison")
  algorithm, _ = run.objective("first")
  assert algorithm.name == "bradley_terry"
