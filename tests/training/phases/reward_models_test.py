"""Reward models as configs have them: steps, labels, held-out pairs."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from grpo_jax.algorithms.process_reward import PROCESS_REWARD
from grpo_jax.data import tokenizer
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop
from grpo_jax.training.phases import build, checkpointed, models
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem, rewards
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config
from tests.models.hf import classifiers_test
from tests.training import tiny


def made(name, changes=()):
  """The phases of a small run, and its problem; nothing is compiled."""
  config = tiny_config.get_config(name)
  config.update_from_flattened_dict(dict(changes))
  run = tiny.assembled(config)
  start = checkpointed.abstract_start(run.policy, run.config.seed)
  state = checkpointed.abstract_state(run.phases, start)
  parts = (phase.phase for phase in run.phases)
  return run.problem, dict(zip(run.config.phases, parts, strict=True)), state


# --- steps -------------------------------------------------------------------


def test_a_step_ends_with_the_tokens_that_end_so():
  settings = config_lib.RewardModelConfig(step_ends=("\n", "."))
  text = tokenizer.Tokenizer(tokenizer.GSM8K_BPE)
  found = models.steps(settings, text)
  pieces = text.token_bytes()
  (dot,), (one,) = text.encode("."), text.encode("1")
  assert found.ends[dot]
  assert not found.ends[one]
  assert found.ends.sum() == sum(x[-1:] in (b"\n", b".") for x in pieces) > 2
  assert models.steps(config_lib.RewardModelConfig(), text) is None
  with pytest.raises(ValueError, match="no token of the tokenizer ends so"):
    models.steps(config_lib.RewardModelConfig(step_ends=("§",)), text)


@pytest.mark.slow
def test_a_process_reward_model_gives_scores_of_steps():
  """Also where the task itself has none, to an algorithm that needs them."""
  found, phases, state = made("process")
  assert phases["rm"].algorithm.name == "process_reward"
  (member,) = phases["rl"].reward.by_models
  assert member.steps.of_steps == "product"
  (semicolon,) = found.tokenizer.markup_ids(";")
  assert np.flatnonzero(member.steps.ends) == [semicolon]
  assert phases["rl"].proxy == ("reward_model", "accuracy", False)
  # One step of the phase says so, and what it says of the truth.
  run, prompts = phases["rl"], next(found.prompt_stream(0, 4, None)).prompts
  _, logged, _ = jax.eval_shape(
    functools.partial(step_lib.fused_step, phase=run), state, prompts
  )
  assert {"reasoning_steps/score", "reward_model/correlation"} <= logged.keys()
  assert "reward_model/calibration_error" not in logged  # It has no logits.
  with pytest.raises(ValueError, match="needs 'step_rewards'"):
    made(
      "judged",
      {"algorithm": config_lib.algorithm_config("grpo_ps"), "phases": ("rl",)},
    )


# --- labels ------------------------------------------------------------------


def test_without_the_model_what_is_right_is_the_reward():
  """Without it, no row would have a score if the verifiers only watched."""
  member = rewards.RewardModel("reward_model", "reward")
  alone = {"a": 0.0, "reward_model": 1.0}
  assert rewards.RewardSum((member,), alone, "a").without_models().weights == {
    "a": 1.0
  }
  beside = {"a": 0.0, "b": 2.0, "reward_model": 1.0}
  judge = rewards.RewardSum((member,), beside, "a").without_models()
  assert judge.weights == {"a": 0.0, "b": 2.0}
  watched = rewards.RewardSum((), {"a": 0.0}, "a")
  assert watched.without_models().weights == {"a": 0.0}


def test_each_phase_has_its_weights():
  changes = {"rewards.weights": (0.0, 1.0), "rm.reward_weights": (2.0, 0.0)}
  _, phases, _ = made("judged", changes)
  weights = {k: float(x) for k, x in phases["rm"].reward.weights.items()}
  assert weights == {"f1": 2.0}
  weights = {k: float(x) for k, x in phases["rl"].reward.weights.items()}
  assert weights == {"f1": 0.0, "reward_model": 1.0}


@pytest.mark.parametrize("bound", ["f1", "reward_model", "rank"])
def test_a_bound_on_what_is_made_of_a_model_asks_the_model(bound):
  config = tiny_config.get_config("judged")
  config.phases = ("rm", "rejection")
  config.rejection = config_lib.phase_config("rejection", steps=1)
  config.rejection.keep.least = (f"{bound}=0.5",)
  config.rewards.functions = ("f1", "reward_model", "rank")
  config.rewards.weights = (1.0, 0.0, 0.0)
  with config.unlocked():
    config.rewards.options = {"rank": {"source": "reward_model"}}
  run = config_lib.resolve(config)
  asked = build._models(run, run.section("rejection"))
  assert asked == ({"reward_model"} if bound != "f1" else set())


def test_options_of_the_loss_of_pairs_reach_it():
  """Also in a run whose algorithm is another one."""
  options = {"reward_model.margin": 0.5, "reward_model.center_coef": 0.01}
  _, phases, _ = made("judged", options)
  loss = phases["rm"].config
  assert (loss.margin, loss.center_coef) == (0.5, 0.01)
  assert phases["rl"].algorithm.name == "grpo"


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"reward_model.center_coef": 0.1, "phases": ("sft", "rl")},
      "no phase .* trains a reward model on them",
    ),
    (
      {
        "reward_model.margin": 0.5,
        "phases": ("rm",),
        "algorithm": config_lib.algorithm_config("bradley_terry"),
      },
      "that loss itself; set config.algorithm.margin",
    ),
    (
      {
        **{"reward_model.source": "a/b", "phases": ("sft", "rl")},
        **{"rewards.functions": ("f1",), "rewards.weights": (1.0,)},
      },
      r"source='a/b' would not be read: .* lack 'reward_model'",
    ),
    (
      {"reward_model.ranked_by": "a/b", "phases": ("sft", "rl")},
      r"ranked_by='a/b' would not be read: .* of the kind 'preference'",
    ),
    ({"reward_model.of_steps": "mean"}, "choose one of min, product, sum"),
    ({"reward_model.step_ends": ("",)}, "every token ends with an empty text"),
    ({"reward_model.step_ends": (";",)}, "choose the kind 'process'"),
    ({"rm.kind": "process"}, "name the texts that end a step there"),
    ({"rm.reward_weights": (0.0, 0.0)}, "equally good, and there would be no"),
    ({"rm.reward_weights": (1.0, 0.5)}, "asks 'reward_model', and what a"),
  ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
  config = tiny_config.get_config("judged")
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=message):
    config_lib.resolve(config)


# --- from outside ------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Pairs, and a checkpoint that scores texts of their tokenizer."""
  root = tmp_path_factory.mktemp("outside")
  rows = [
    {"prompt": f"{n} =", "chosen": f"yes {n % 7}", "rejected": f"no {n % 7}"}
    for n in range(40)
  ]
  for name, some in (("train", rows[:32]), ("held_out", rows[32:])):
    text = "\n".join(map(json.dumps, some))
    (root / f"{name}.jsonl").write_text(text)
  bytes_ = json.loads(tokenizer.BYTES.read_text())
  size = 1 + max(
    *(x["id"] for x in bytes_["added_tokens"]),
    *bytes_["model"]["vocab"].values(),
  )
  model = root / "model"
  table = np.random.default_rng(0).normal(size=(size, 32)).astype(np.float32)
  weights = {"model.embed_tokens.weight": table}
  weights["score.weight"] = table[:1]
  classifiers_test.make(model, "qwen2", head=weights, vocab_size=size)
  shutil.copy(tokenizer.BYTES, model / "tokenizer.json")
  return root


def on_pairs(folder, **settings):
  """A policy of another size, and a reward model that learns from pairs."""
  config = tiny_config.get_config("judged")
  config.data.source = "jsonl"
  config.data.format = "pairs"
  config.data.train_path = str(folder / "train.jsonl")
  config.data.eval_path = str(folder / "held_out.jsonl")
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 8
  config.sampling.max_new_tokens = 8
  config.phases = ("rm",)
  config.rm = config_lib.phase_config("comparison", steps=8, num_prompts=8)
  config.rewards.functions = ("tag_count", "reward_model")
  config.reward_model.optimizer.learning_rate = 3e-2
  config.reward_model.source = str(folder / "model")
  config.update_from_flattened_dict(settings)
  return config


def phases_of(config):
  run = config_lib.resolve(config)
  found = problem.make_problem(run)
  mesh = sharding.make_mesh(1)
  policy = policy_lib.make_policy(run, found, mesh)
  try:
    made = checkpointed.make_phases(run, found, policy, mesh)
    return dict(zip(run.phases, made, strict=True)), policy
  finally:
    found.close()


@pytest.mark.slow
def test_a_checkpoint_scores_as_it_did(folder):
  """With its own size, in the tree of members of a run that is smaller."""
  phases, policy = phases_of(on_pairs(folder, phases=("rl",)))
  phase = phases["rl"].phase
  state = checkpointed.with_outside(policy_lib.initial_state(policy, 0), phase)
  start = jax.eval_shape(phase.models["reward"].start, {})
  described = [
    jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    for tree in (state.params["reward"], start)
  ]
  assert described[0] == described[1]
  (judge,) = phase.reward.by_models
  ids = np.arange(3, 43).reshape(2, 20)
  h, _ = jax.jit(judge.view(state.params).trunk.hidden)(
    tiny.given_rows(ids[:, :12], ids[:, 12:]), None
  )
  found = judge.view(state.params).head(h)
  expected = classifiers_test.values(folder / "model", ids, ids > 0)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_a_phase_goes_on_from_what_is_there(folder):
  phases, policy = phases_of(on_pairs(folder, phases=("rm", "rl")))
  first, then = phases["rm"].phase, phases["rl"].phase
  state = policy_lib.initial_state(policy, 0)
  state = checkpointed.with_outside(state, first)
  before = state.params["reward"]
  moved = jax.tree.map(lambda x: x + 1, before)
  state = phases["rm"].enter(state).with_params(reward=moved)
  assert state.models["reward"].opt_state is not None
  again = checkpointed.with_outside(state, then)
  jax.tree.map(np.testing.assert_array_equal, again.params["reward"], moved)


@pytest.mark.slow
def test_pairs_are_ranked_by_another_model(folder):
  config = on_pairs(folder)
  config.reward_model.ranked_by = config.reward_model.source
  config.reward_model.source = ""
  config.rm = config_lib.phase_config("preference", num_prompts=4)
  phases, policy = phases_of(config)
  phase = phases["rm"].phase
  (judge,) = phase.reward.by_models
  assert (judge.name, judge.model) == ("ranked_by", "ranker")
  assert phase.reward.weights == {"ranked_by": 1.0}
  assert phase.reward.correct == "tag_count"
  assert phase.models["ranker"].optimizer is None
  assert phase.losses[0].trains == ("reward",)
  found = checkpointed.with_outside(policy_lib.initial_state(policy, 0), phase)
  # The model that learns is a copy of the policy, of another size.
  entered = jax.eval_shape(phases["rm"].enter, found).params
  sizes = {
    name: entered[name]["trained"]["value_head"]["kernel"].shape
    for name in ("reward", "ranker")
  }
  assert sizes == {"reward": (16,), "ranker": (32,)}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"reward_model.step_ends": (";",), "phases": ("rl",)},
      r"reward_model\.source='.*model': it was trained to score whole compl",
    ),
    (
      {"data.tokenizer": "gsm8k"},
      r"reward_model\.source='.*model': its tokenizer is another one",
    ),
    (
      {"reward_model.freeze": ("attentions",)},
      "freeze has attentions, and no parameter",
    ),
    (
      {"reward_model.source": "nowhere/at/all"},
      r"reward_model\.source='nowhere/at/all'",
    ),
    (
      {
        "rm": config_lib.phase_config(
          "preference", num_prompts=8, reward_weights=(1.0, 0.0)
        ),
        "reward_model.ranked_by": "other",
      },
      "both say which completion is better",
    ),
  ],
)
def test_models_that_do_not_fit_are_refused(folder, changes, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    phases_of(on_pairs(folder, **changes))


# --- runs --------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_learns_pairs_and_ranks_those_that_were_held_out(
  folder, tmp_path
):
  loop.train(on_pairs(folder), tmp_path / "run")
  lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
  first, last = json.loads(lines[0]), json.loads(lines[-1])
  assert last["reward_model/loss"] < first["reward_model/loss"]
  assert last["eval/reward_model/count"] == 8
  assert last["eval/reward_model/accuracy"] == 1.0
  assert last["eval/reward_model/margin"] > 0
  # What came of it is a reward model from outside, too, of its own size.
  config = on_pairs(folder, phases=("rl",))
  config.reward_model.source = str(tmp_path / "run")
  phases, policy = phases_of(config)
  state = checkpointed.with_outside(
    policy_lib.initial_state(policy, 0), phases["rl"].phase
  )
  kernel = state.params["reward"]["trained"]["value_head"]["kernel"]
  table = classifiers_test.tensors_of(folder / "model")["score.weight"]
  assert kernel.shape == (32,)
  assert 0.1 < np.abs(kernel - table[0]).max() < 1.0


@pytest.mark.slow
def test_a_process_reward_model_learns_which_steps_are_right():
  """Labels of the verifier, at the tokens with which steps end."""
  phase = tiny.make_phase(
    PROCESS_REWARD, learning_rate=5e-2, phase={"kind": "process"}
  )
  state = tiny.make_state(phase)
  advance = jax.jit(
    lambda s, p: step_lib.fused_step(s, p, phase=phase)[:2], donate_argnums=0
  )
  history = []
  for step in range(20):
    state, metrics = advance(state, tiny.make_prompts(first=4 * step))
    history.append(metrics)
  # A token is right if it is 2, which the model has read.
  assert history[0]["reward_model/loss"] == pytest.approx(np.log(2), abs=1e-5)
  assert history[-1]["reward_model/loss"] < 0.3
  assert history[-1]["reward_model/accuracy"] > 0.95
