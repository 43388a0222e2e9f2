"""Canaries: what falls is found, and what does not is left alone."""

from __future__ import annotations

import math
import types

import jax
import numpy as np
import pytest

from grpo_jax.configs import bias_mcq, calc_tool_grpo, jsonl
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import monitor
from grpo_jax.training import loop
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.monitor import guards
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints
from tests.experiments import tiny_config
from tests.training import stale_test, tiny


def first_alarm(rates, size, seed, fall=0.05, sigmas=3.0):
  """Index of the first look that does not pass, of shares of right answers."""
  rng = np.random.default_rng(seed)
  past = guards.Tally()
  for number, rate in enumerate(rates):
    scores = (rng.random(size) < rate).astype(float)
    if scores.mean() < guards.bound(past, scores, fall, sigmas):
      return number
    past = past.with_scores(scores)
  return None


@pytest.mark.slow
def test_the_kl_is_at_the_temperature_of_the_draws():
  phase = tiny.make_phase(fields={"kl_coef": 0.1}, temperature=0.6)
  params = tiny.make_state(phase).params
  moved = jax.tree.map(lambda x: 1.3 * x, params["policy"])
  params, prompts = params | {"policy": moved}, tiny.make_prompts()
  rollout = phase.sampler.sample(params, prompts, jax.random.key(0))
  found = guards._kl_of(
    params, prompts, rollout, policy=phase.policy, scale=0.6
  )

  def logp(member):
    h, _ = phase.policy.hidden(
      params[member],
      *(prompts.tokens, prompts.mask, rollout.tokens, rollout.completion_mask),
      rollout.prompt_index,
    )
    every = jax.nn.log_softmax(phase.policy.head(params[member], h) / 0.6)
    ids = np.asarray(rollout.tokens)[..., None]
    return np.take_along_axis(np.asarray(every), ids, axis=2)[..., 0]

  u = logp("policy") - logp("reference")
  k3 = np.where(rollout.written, np.exp(-u) - 1 + u, 0)
  assert found == pytest.approx(k3.sum() / len(k3), rel=1e-4)
  assert found > 1e-3


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("size", [32, 256])
def test_a_constant_rate_is_alarmed_about_in_less_than_1_of_100_looks(
  rate, size
):
  runs = [first_alarm([rate] * 8, size, seed) for seed in range(400)]
  num_looks = sum(8 if alarm is None else alarm + 1 for alarm in runs)
  num_alarms = sum(alarm is not None for alarm in runs)
  assert num_alarms / num_looks < 0.01


@pytest.mark.parametrize(("before", "after"), [(0.95, 0.8), (0.5, 0.25)])
def test_a_planted_drop_is_found_at_the_next_look(before, after):
  rates = [before] * 5 + [after] * 3
  alarms = [first_alarm(rates, 256, seed) for seed in range(50)]
  assert alarms == [5] * 50


def test_small_falls_pass_and_five_points_do_not():
  past = guards.Tally().with_scores([1.0] * 1000)
  assert guards.bound(past, [1.0] * 1000, 0.05, 3.0) == pytest.approx(0.95)
  # 12 of 64 wrong: s² = p q with p = 1052 / 1064.
  scores = [1.0] * 52 + [0.0] * 12
  p = 1052 / 1064
  sigma = math.sqrt(p * (1 - p) * (1 / 64 + 1 / 1000))
  assert guards.bound(past, scores, 0.0, 3.0) == pytest.approx(1 - 3 * sigma)
  assert guards.bound(past, scores, 0.05, 3.0) == pytest.approx(0.95)
  # Before the first look, and without any score, there is nothing to compare.
  assert guards.bound(guards.Tally(), scores, 0.05, 3.0) == -math.inf
  assert guards.bound(past, [], 0.05, 3.0) == -math.inf


def row(correct, valid=True, **components):
  return evaluation.Completion(
    *("prompt", "text", None, 0.0, correct, valid, 3, True, components)
  )


def test_a_canary_that_no_verifier_answers_any_more_falls(monkeypatch):
  rows = [[row(1.0, language=1.0)], [row(1.0, valid=False)]]

  class Sampler:
    def completions(self, params, key):
      return [rows.pop(0)]

  monkeypatch.setattr(
    guards.policy_lib, "evaluation_params", lambda policy: policy
  )
  canaries = object.__new__(guards.Canaries)
  canaries.guards = monitor.GuardsConfig(canary_max_kl=0.0)
  canaries._canaries = [guards.Canary.parse("language")]
  canaries._of, canaries.past = {"": Sampler()}, {}
  state = types.SimpleNamespace(models={"policy": None})
  assert not canaries.look(state)[1]
  _, (fallen,) = canaries.look(state)
  assert "'language' has no score" in fallen


def test_a_canary_is_a_component_and_a_direction():
  rows = [
    row(True, biased=0.0, format=1.0),
    row(False, biased=1.0, format=math.nan),
    row(True, valid=False, biased=1.0, format=1.0),
  ]
  parse = guards.Canary.parse
  # What nobody could score is not right, and has no other score.
  assert parse("correct").scores(rows) == [1.0, 0.0, 0.0]
  assert parse("-biased").scores(rows) == [0.0, -1.0]
  assert parse("format@probes.jsonl").scores(rows) == [1.0]
  assert parse("format@probes.jsonl").path == "probes.jsonl"


def guarded(**guards):
  config = tiny_config.get_config("grpo")
  config.guards.update(on=True, lint="off", min_distinct_prompts=1, **guards)
  return config


def test_an_unknown_canary_is_refused_before_anything_is_compiled(
  tmp_path, monkeypatch
):
  config = guarded(canaries=("correct", "-fluency"))
  monkeypatch.setattr(checkpointed, "first_state", None)  # It is not called.
  with pytest.raises(ValueError, match=r"'-fluency' is no.*they are accuracy,"):
    loop.train(config, tmp_path)
  config.guards.canary_every = 0  # Nobody looks at them.
  with pytest.raises(TypeError, match="NoneType"):
    loop.train(config, tmp_path)


@pytest.mark.parametrize(
  ("get_config", "known", "unknown"),
  [
    (bias_mcq.get_config, ("correct", "-biased", "format"), "return"),
    (calc_tool_grpo.get_config, ("return", "-malformed"), "biased"),
    (jsonl.get_config, ("math_accuracy", "-repetition"), "accuracy"),
  ],
)
def test_what_verifiers_say_is_known_before_they_are_asked(
  get_config, known, unknown, tmp_path
):
  config = get_config("grpo")
  config.guards.on = True
  if get_config is jsonl.get_config:
    records = tmp_path / "train.jsonl"
    records.write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 9)
    config.data.train_path = str(records)
    config.rewards.functions += ("repetition",)
    config.rewards.weights = (1.0, 0.0)
    config.rewards.in_graph = True  # Without processes of the host.
  config.guards.canaries = known
  settings = config_lib.resolve(config)
  made = problem.make_problem(settings)
  guards.check(settings, made)
  config.guards.canaries = (*known, unknown)
  with pytest.raises(ValueError, match=f"'{unknown}' is no component"):
    guards.check(config_lib.resolve(config), made)
  made.close()


def test_prompts_of_a_canary_are_verified_as_those_of_the_run(tmp_path):
  for name, number in (("train", 9), ("few", 2), ("many", 6)):
    line = '{"prompt": "1 + 1?", "answer": "2", "kind": "sums"}\n'
    (tmp_path / f"{name}.jsonl").write_text(line * number)
  few, many = (str(tmp_path / f"{name}.jsonl") for name in ("few", "many"))
  config = jsonl.get_config("grpo")
  config.data.train_path = str(tmp_path / "train.jsonl")
  config.data.domain_key = "kind"
  config.rewards.in_graph = True
  with config.unlocked():
    config.rewards.domains = {"math_accuracy": ("sums",)}
  config.eval.temperature = config.sampling.temperature
  config.guards.canary_prompts = 4
  config.guards.canaries = (f"correct@{few}", f"correct@{many}")
  settings = config_lib.resolve(config)
  made = problem.make_problem(settings)

  class Sampler:
    def __init__(self, records=(), *sizes):
      self.records, self.sizes = records, sizes
      self.on = Sampler

  canaries = guards.Canaries(settings, made, None, None, Sampler())
  sizes = {path: sampler.sizes for path, sampler in canaries._of.items()}
  assert sizes == {"": (4, 4), few: (2, 2), many: (4, 4)}
  for sampler in canaries._of.values():
    extras = sampler.records[0]["extras"]
    assert extras.keys() == made.train[0]["extras"].keys()
  made.close()


@pytest.mark.slow
def test_what_canaries_have_not_looked_at_is_not_saved(tmp_path):
  config = guarded(repeat_cap=0, influence_cap=0.0, canary_prompts=8)
  with pytest.MonkeyPatch.context() as patch:
    stale_test.stopped_after(4, patch)  # A checkpoint is due after three.
    result = loop.train(config, tmp_path)
  said = "after step 14, and the last checkpoint is of step 13"
  assert result.preempted
  assert result.stopped == said
  store = checkpoints.Checkpoints(tmp_path / "checkpoints", keep=2)
  assert store.latest_step() == 13
  store.close()
  assert loop.train(config, tmp_path).step == 20
