"""Rewards of text: in the program and on the host, and how they add up."""

import dataclasses
import functools
import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.rewards import derived
from grpo_jax.rollout import compaction
from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.runtime import log, sharding
from grpo_jax.types import Prompts, Rollout, Traces
from tests.experiments import tiny_config
from tests.training.problem import problem_test

SAMPLE = pathlib.Path(__file__).parents[2] / "data/gsm8k_sample"
TEXT = ("math_accuracy", "think_answer_format", "tag_count")
HOST_TRAFFIC = re.compile(
  r"callback|infeed|outfeed|\bsend\b|\brecv\b|host_transfer", re.IGNORECASE
)


def _config(**changes):
  config = config_lib.default_config()
  config.phases = ("rl",)
  config.data.source = "jsonl"
  config.data.train_path = str(SAMPLE / "train.jsonl")
  config.data.eval_path = str(SAMPLE / "test.jsonl")
  config.data.format = "gsm8k"
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 256
  config.sampling.max_new_tokens = 48
  config.rewards.functions = (*TEXT, "language_consistency", "repetition")
  config.rewards.weights = (1.0, 0.5, 0.25, 0.25, 0.1)
  config.rewards.num_workers = 1
  return tiny_config.change(config, changes)


def _batch(problem, number):
  """Records, and a rollout with completions that are right, wrong and odd."""
  records = [problem.train[i] for i in range(number)]
  texts = []
  for record in records:
    gold = record["answer"]
    texts += [
      f"<think>So it is.</think>\n<answer>{gold}</answer>",
      f"<think>So it is {gold}.</think> <answer>{gold}1</answer>",
      f"\\boxed{{{gold}.0}}",
      f"<think>{gold}",
    ]
  index = np.arange(len(texts)) // 4
  rollout = problem_test.completions(problem, texts, index)
  names = [k for k, v in records[0]["extras"].items() if hasattr(v, "dtype")]
  prompts = Prompts(
    tokens=jnp.zeros((number, 1), jnp.int32),
    mask=jnp.ones((number, 1), bool),
    ids=jnp.arange(number, dtype=jnp.int32),
    extras={k: np.stack([r["extras"][k] for r in records]) for k in names},
  )
  return records, prompts, rollout


@pytest.mark.slow
def test_the_program_says_what_the_host_says():
  config = config_lib.resolve(_config(rewards__in_graph=True))
  problem = problem_lib.make_problem(config)
  assert problem.reward.on_host is None
  records, prompts, rollout = _batch(problem, 4)
  scored = jax.jit(lambda p, r: problem.reward.score({}, p, r))(
    prompts, rollout
  )

  host = problem_lib.make_problem(config_lib.resolve(_config()))
  try:
    batch = types.SimpleNamespace(records=records, prompts=prompts)
    said, failures, _ = host.host_scores(batch, jax.device_get(rollout))
    expected = host.reward.score({}, prompts, rollout, said)
  finally:
    host.close()
  assert not any(failures.values())
  assert scored.components.keys() == expected.components.keys()
  for name, values in expected.components.items():
    np.testing.assert_allclose(scored.components[name], values, rtol=1e-6)
  np.testing.assert_allclose(scored.rewards, expected.rewards, rtol=1e-6)
  assert scored.correct.tolist() == [True, False, True, False] * 4


@pytest.mark.parametrize(
  ("functions", "message"),
  [
    (("math_accuracy", "tests.rewards.reward_functions:shortest"), "shortest"),
    (("repetition",), "none of them reads what was written"),
    (("repetition", "math_accuracy"), "is not for 'repetition' to say"),
  ],
)
def test_what_has_no_form_for_arrays_is_refused(functions, message):
  config = _config(
    rewards__in_graph=True,
    rewards__functions=functions,
    rewards__weights=(1.0,) * len(functions),
  )
  with pytest.raises(ValueError, match=message):
    problem_lib.make_problem(config_lib.resolve(config))


def test_what_is_right_is_not_for_a_comparison_to_say():
  config = _config(
    rewards__functions=("tests.rewards.reward_functions:shortest",),
    rewards__weights=(1.0,),
  )
  with pytest.raises(ValueError, match="not for 'shortest' to say"):
    problem_lib.make_problem(config_lib.resolve(config))


def test_golds_that_are_no_numbers_are_refused(tmp_path):
  path = tmp_path / "symbols.jsonl"
  golds = ["3", r"\frac{1}{2}", "x^2 + 1", r"\sqrt{2}"]
  path.write_text(
    "".join(json.dumps({"prompt": "?", "answer": g}) + "\n" for g in golds)
  )
  config = _config(rewards__in_graph=True, data__format="")
  config.data.train_path = config.data.eval_path = str(path)
  with pytest.raises(ValueError, match=r"2 of the first 4 golds .*x\^2 \+ 1"):
    problem_lib.make_problem(config_lib.resolve(config))


def _sum(**fields):
  rewards = rewards_lib.InGraph(
    lambda prompts, rollout: {
      "a": jnp.array([1.0, 0.0, 1.0, 0.0]),
      "b": jnp.array([2.0, 2.0, 4.0, 4.0]),
    }
  )
  return rewards_lib.RewardSum((rewards,), {"a": 1.0, "b": 1.0}, "a", **fields)


def _rows(domains=(0, 1)):
  prompts = types.SimpleNamespace(extras={"domain": jnp.array(domains)})
  return prompts, types.SimpleNamespace(prompt_index=jnp.array([0, 0, 1, 1]))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("step", "weight"), [(0, 1.0), (5, 0.75), (10, 0.5), (99, 0.5), (None, 1.0)]
)
def test_weights_follow_the_steps_of_a_phase(step, weight):
  judge = _sum(schedules={"b": ((0, 10), (1.0, 0.5))})
  at = None if step is None else jnp.int32(step)
  scored = judge.score({}, *_rows(), step=at)
  np.testing.assert_allclose(
    scored.rewards, np.array([1, 0, 1, 0]) + weight * np.array([2, 2, 4, 4])
  )
  assert scored.weights["b"] == np.float32(weight)


def test_a_reward_is_for_the_domains_that_it_names():
  """V3.2's hybrid: a rule for one kind of prompts, a rubric for another."""
  judge = _sum(domains={"a": (0,), "b": (1, 7)})
  scored = judge.score({}, *_rows())
  np.testing.assert_allclose(scored.rewards, [1, 0, 4, 4])
  assert np.isnan(scored.components["a"]).tolist() == [False] * 2 + [True] * 2
  assert scored.correct.tolist() == [True, False, False, False]


def test_a_reward_made_of_others_reads_none_beyond_their_domains():
  total = functools.partial(derived.total, parts={"a": 1.0, "b": 10.0})
  lengths = functools.partial(derived.cosine_length, max_len=2.0)
  judge = _sum(domains={"a": (0,), "b": (1,), "made": (1,)})
  judge = dataclasses.replace(
    judge,
    rewards=(
      *judge.rewards,
      rewards_lib.Derived("total", total, ("a", "b")),
      rewards_lib.Derived("cosine_length", lengths),
      rewards_lib.Derived("made", total, ("a", "b")),
    ),
    weights=dict.fromkeys(("a", "b", "made"), 0.0)
    | {"total": 1.0, "cosine_length": 1.0},
  )
  prompts, rows = _rows()
  rows.lengths, rows.traces = jnp.ones(4, int), None
  rows.terminated, rows.tokens = jnp.ones(4, bool), jnp.zeros((4, 1), int)
  scored = judge.score({}, prompts, rows)
  np.testing.assert_allclose(scored.components["total"], [1, 0, 40, 40])
  # Nobody knows if a completion of domain 1 is right.
  np.testing.assert_allclose(
    scored.components["cosine_length"], [0.75, -0.75, np.nan, np.nan]
  )
  np.testing.assert_allclose(
    scored.components["made"], [np.nan, np.nan, 40, 40]
  )
  np.testing.assert_allclose(scored.rewards, [1.75, -0.75, 40, 40])


def test_the_contexts_of_a_rollout_have_the_derived_reward_of_the_last():
  """Three rollouts of one prompt, of up to two contexts."""
  exists = jnp.arange(4) < jnp.array([4, 2, 1, 0, 3, 3])[:, None]
  rows, zeros = jnp.arange(6), jnp.zeros((6, 4))
  first, is_last = jnp.zeros(6, int), jnp.array([0, 1, 1, 0, 0, 1], bool)
  rollout = Rollout(
    *(exists + 0, exists, zeros, zeros, zeros, is_last, first, first, 1),
    scores={"a": jnp.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])},
    traces=Traces(zeros, zeros, rows // 2, rows % 2, is_last, 2),
  )
  functions = {
    "rank": functools.partial(derived.rank, source="a"),
    "soft_overlong": functools.partial(
      derived.soft_overlong, max_len=8, cache=4
    ),
    "repetition": functools.partial(derived.repetition, n=1),
  }
  judge = rewards_lib.RewardSum(
    (
      rewards_lib.InGraph(rewards_lib.of_episodes),
      *(rewards_lib.Derived(k, x) for k, x in functions.items()),
    ),
    {"a": 1.0},
    "a",
  )
  prompts, _ = _rows()
  expected = {
    "rank": [1, 0.25, 0.25],
    "soft_overlong": [-0.5, 0, -0.5],
    "repetition": [-1 / 2, 0, -2 / 3],
  }
  whole = judge.score({}, prompts, rollout).components
  last = judge.score({}, prompts, compaction.last_rows(rollout)).components
  for name, values in expected.items():
    np.testing.assert_allclose(last[name], values, 1e-6)
    np.testing.assert_allclose(whole[name], np.repeat(values, 2), 1e-6)


@pytest.mark.slow
def test_functions_of_text_are_not_asked_about_other_domains(tmp_path):
  """Each would fail on the row of the other's domain, and nobody would know."""
  rows = [
    {"prompt": "1 + 1?", "kind": "sums", "extras": {"broken": True}},
    {"prompt": "Hi?", "kind": "words"},
  ]
  path = tmp_path / "rows.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = _config(
    data__format="",
    data__domain_key="kind",
    data__train_path=str(path),
    data__eval_path=str(path),
    rewards__functions=(
      "tests.rewards.workers.bad_verifiers:by_completion",
      "tests.rewards.reward_functions:asked",
    ),
    rewards__weights=(1.0, 1.0),
  )
  config.rewards.domains = {"by_completion": ("sums",), "asked": ("words",)}
  made = problem_lib.make_problem(config_lib.resolve(config))
  records = [made.train[number] for number in range(2)]
  try:
    said = made.reward.host_scores(
      made.prompt_texts(records),
      ["0.5", "raise"],
      [0, 1],
      [rewards_lib.plain_extras(record) for record in records],
      [[], []],
    )
  finally:
    made.close()
  assert said.messages == {}
  np.testing.assert_array_equal(said.components["by_completion"], [0.5, np.nan])
  np.testing.assert_array_equal(said.components["asked"], [np.nan, 5.0])


def test_a_reward_of_a_component_that_is_gone_goes_too():
  member = rewards_lib.RewardModel("reward_model", "reward")
  ranks = rewards_lib.Derived("rank", derived.rank, ("reward_model",))
  judge = rewards_lib.RewardSum(
    (member, ranks), {"reward_model": 1.0, "rank": 1.0}, "a"
  )
  assert judge.without_models().rewards == ()
  assert judge.without_models().weights == {"a": 1.0}


def test_a_phase_that_leaves_out_the_only_reader_of_text_fails_no_row():
  known = rewards_lib.InGraph(lambda prompts, rollout: {"a": jnp.ones(2)})
  remote = rewards_lib.RemoteJudge("judge", None, 1.0)
  judge = rewards_lib.RewardSum(
    (known, remote), {"a": 1.0, "judge": 1.0}, "a"
  ).without_models()
  rows = ["?", "?"], ["x", "y"], [0, 0], [{}, {}], [[1], [2]]
  said = judge.host_scores(*rows)
  assert said.components == {}
  np.testing.assert_array_equal(said.failed, [False, False])


def test_steps_are_placed_at_the_tokens_that_end_them():
  text = tokenizer.Tokenizer(tokenizer.GSM8K_BPE)
  pieces = text.token_bytes()
  lines = ["1 + 1 = 2 €\n", "so\n", "2 + 2 = 5\n"]
  whole = "".join(lines)
  ids = text.encode(whole)
  tokens = np.zeros((2, len(ids) + 2), np.int32)
  mask = np.zeros(tokens.shape, bool)
  tokens[0, : len(ids)], mask[0, : len(ids)] = ids, True
  steps = [[(len(lines[0]), 1.0), (len(whole), 0.5), (len(whole), 0.0)], []]
  scores, ends = rewards_lib.token_scores(
    steps, [whole, ""], tokens, mask, pieces
  )
  found = np.flatnonzero(ends[0]).tolist()
  assert scores[0, found].tolist() == [1.0, 0.0]
  assert text.decode(ids[: found[0] + 1]) == lines[0]
  assert found[1] == len(ids) - 1
  assert not ends[1].any()


def _small(config, algorithm="grpo"):
  config.algorithm = config_lib.algorithm_config(algorithm, kl_coef=0.0)
  tiny_config.shrink(config.model)
  config.sampling.max_new_tokens = 8
  config.rl.steps = 3
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.optimizer.learning_rate = 1e-2
  config.eval.num_prompts = config.eval.batch_size = 4
  config.log.samples_every = 1
  config.log.num_samples = 16
  config.log.trackers = ()
  return config


@pytest.mark.slow
def test_one_program_and_two_halves_learn_the_same(tmp_path):
  lines = {}
  for in_graph in (True, False):
    workdir = tmp_path / str(in_graph)
    config = _small(_config(rewards__in_graph=in_graph))
    config.phases = ("sft", "rl")  # Some tags are written then.
    config.sft.steps = 12
    config.sft.num_prompts = 8
    config.sft.optimizer.learning_rate = 5e-2
    loop.train(config, workdir)
    lines[in_graph] = [
      log.read_lines(workdir / name) for name in (log.SAMPLES, log.METRICS)
    ]
  (samples, metrics), (samples_too, metrics_too) = lines[True], lines[False]
  assert samples == samples_too
  assert len(samples) == 3 * 16
  assert len({row["reward"] for row in samples}) > 1
  for one, other in zip(metrics, metrics_too, strict=True):
    for name in one.keys() & other.keys() - {"tokens_per_second"}:
      if isinstance(one[name], float):
        np.testing.assert_allclose(
          one[name], other[name], rtol=1e-5, atol=1e-7, err_msg=name
        )


@pytest.mark.slow
def test_process_supervision_learns_from_steps_of_a_text(tmp_path):
  rewards = {"steps": "tests.rewards.reward_functions:halves"}
  config = _small(_config(), "grpo_ps")
  config.rewards.update(rewards, functions=("tag_count",), weights=(1.0,))
  loop.train(config, tmp_path)
  lines = log.read_lines(tmp_path / log.METRICS)
  # Each first half is worth less than each second one, whatever is written.
  trained = [row for row in lines if "loss" in row]
  assert all(row["gradient_norm"] > 1e-3 for row in trained)
  assert {row["reasoning_steps/per_completion"] for row in trained} <= {1, 2}
  assert all(0 <= row["reasoning_steps/score"] <= 1 for row in trained)


@pytest.mark.slow
def test_nothing_is_sent_to_the_host_inside_the_step():
  config = config_lib.resolve(_small(_config(rewards__in_graph=True)))
  problem = problem_lib.make_problem(config)
  mesh = sharding.make_mesh(1)
  with jax.set_mesh(mesh):
    policy = policy_lib.make_policy(config, problem, mesh)
    (phase,) = checkpointed.make_phases(config, problem, policy, mesh)
    state = checkpointed.abstract_state(
      (phase,), checkpointed.abstract_start(policy, 0)
    )
    step = executors.jit_step(mesh, executors.step.fused_step, phase.phase)
    lines = problem.prompt_stream(0, 4, None)
    prompts = next(lines).prompts
    text = step.lower(state, prompts).compile().as_text()
  assert not HOST_TRAFFIC.search(text)
  assert "verifier" in text  # Its operations have names.


def test_a_function_of_text_is_no_reward_of_a_task():
  config = config_lib.default_config("grpo")
  config.rewards.functions = ("accuracy", lambda prompts, completions: [0.0])
  config.rewards.weights = (1.0, 1.0)
  settings = config_lib.resolve(config)
  with pytest.raises(KeyError, match=r"lambda.*own verifier"):
    rewards_lib.check_names("task 'sort'", settings, ["accuracy"])
  settings = config_lib.resolve(config_lib.default_config("grpo"))
  with pytest.raises(KeyError) as error:
    rewards_lib.check_names("task 'sort'", settings, ["speed"])
  assert "own verifier" not in str(error.value)
  for field, value in ("options", {"accuracy": {"n": 1}}), ("steps", "a:b"):
    config = config_lib.default_config("grpo")
    config.rewards[field] = value
    settings = config_lib.resolve(config)
    with pytest.raises(ValueError, match=rf"rewards\.{field}=.* task 'sort'"):
      rewards_lib.check_names("task 'sort'", settings, ["accuracy"])
