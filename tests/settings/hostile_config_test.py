"""Numbers and kinds that no field can use are refused by its name, at once.

Each numeric field of each config class gets each of a few bad values. Which
fields may have one of them is written down, so that a bound which is forgotten
or too narrow shows.
"""

import collections.abc
import copy
import dataclasses
import functools
import math
import time
import typing

import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import options
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib

HUGE, NAN, INF = 10**20, math.nan, math.inf
# Kinds of phases by name, and other groups with an optimizer. The last phase is
# one that a config adds.
_PHASES = {
  "sft": "supervised",
  "value": "value",
  "rl": "rl",
  "pairs": "preference",
}
_OPTIMIZERS = (*_PHASES, "critic", "reward_model")
# Fields, without the phase before them, in which 10²⁰ has a meaning: no bound,
# a step that diverges at once, a distribution that is flat.
MAY_BE_HUGE = {
  *("optimizer.learning_rate", "optimizer.eps", "optimizer.weight_decay"),
  *("optimizer.clip_norm", "sampling.temperature", "temperature"),
  *("eval.temperature", "rewards.weights", "rewards.worker_memory_gib"),
  *("reward_weights", "margin", "center_coef", "model.lora_alpha"),
  *("model.rope_theta", "model.local_rope_theta", "model.rope_factor"),
  *("model.rope_high_freq", "model.rope_amplitude", "model.query_scaling"),
  *("model.rope_short_factors", "model.rope_long_factors"),
  *("model.router_scale", "model.swiglu_slope", "model.swiglu_limit"),
  *("model.embedding_scale", "model.residual_scale", "model.logit_scale"),
  *("model.attention_scale", "model.attention_softcap", "model.final_softcap"),
  *("guards.canary_sigmas", "guards.canary_max_kl"),
}
MAY_BE_ZERO = {
  *("seed", "steps", "staleness", "ema_decay", "num_updates", "eval.every"),
  *("eval.temperature", "checkpoint.every", "environment.compaction.every"),
  *("interceptor.penalty", "rewards.worker_memory_gib", "log.samples_every"),
  *("log.num_samples", "log.traces_every", "log.trace_groups"),
  *("required_accuracy", "rewards.weights", "reward_weights"),
  *("rewards.max_unscored", "data.drop_tag_probability", "data.rejected_share"),
  *("history_share", "schedule.decay", "schedule.memory_low", "schedule.rate"),
  *("schedule.start_share", "schedule.tolerance", "schedule.uniform_share"),
  *("replay_size", "margin", "center_coef", "optimizer.warmup_steps"),
  *("optimizer.final_fraction", "optimizer.b1", "optimizer.b2"),
  *("optimizer.weight_decay", "model.lora_rank", "model.tower.window"),
  *("data.num_threads", "model.num_experts", "model.prefill_chunk"),
  *("model.num_dense_layers", "model.shared_width", "model.learned_positions"),
  *("model.query_scaling", "model.latent_width", "model.query_latent_width"),
  *("sampling.mix_rate", "correction.p_cue", "correction.p_answer"),
  *("correction.p_reference", "sampling.mix_min_entropy"),
  *("guards.min_distinct_prompts", "guards.influence_cap", "guards.repeat_cap"),
  *("guards.canary_every", "guards.canary_fall", "guards.canary_sigmas"),
  "guards.canary_max_kl",
}
MAY_BE_NEGATIVE = {"rewards.weights", "reward_weights"}


def number(hint):
  """int or float, if a field holds such numbers; else None."""
  kinds = typing.get_args(hint) or (hint,)
  if typing.get_origin(hint) is collections.abc.Mapping:
    return None  # Settings with names of one's own.
  return next((kind for kind in kinds if kind in (int, float)), None)


def numeric(cls, prefix=""):
  """Path -> int or float, of every field with numbers."""
  found = {}
  for name, hint in typing.get_type_hints(cls).items():
    if dataclasses.is_dataclass(hint):
      found |= numeric(hint, f"{prefix}{name}.")
    elif kind := number(hint):
      found[prefix + name] = kind
  return found


FIELDS = numeric(config_lib.RunConfig)
for _name, _kind in _PHASES.items():
  FIELDS |= numeric(phase_lib.CLASSES[_kind], f"{_name}.")


def short(path):
  for group in _OPTIMIZERS:
    path = path.removeprefix(f"{group}.")
  return path


@functools.cache
def default(algorithm):
  """A config as nested dicts, which keep whatever is put into them."""
  config = config_lib.default_config(algorithm)
  if algorithm == "ppo":
    config.pairs = config_lib.phase_config("preference")
    config.phases = ("sft", "pairs", "value", "rl")
  return config.to_dict()


def refusal(path, value, algorithm="ppo"):
  """The error that names the field, or None if the value is accepted.

  Any other error, and none within a second, fails the test.
  """
  config = copy.deepcopy(default(algorithm))
  *groups, leaf = path.split(".")
  node = config
  for group in groups:
    node = node.setdefault(group, {})
  if groups[1:] == ["schedule"]:
    reads = phase_lib.ScheduleConfig.read_with
    node["name"] = next(x for x in phase_lib.NAMES if leaf in reads(x))
    if node["name"] == phase_lib.ADS:
      node |= {"clusters": "x", "window": 8}
  is_one = isinstance(node.get(leaf), tuple) and not isinstance(value, tuple)
  node[leaf] = (value,) if is_one else value
  refused = None
  start = time.process_time()
  try:
    config_lib.resolve(config)
  except (ValueError, TypeError, KeyError) as error:
    refused = error
  assert time.process_time() - start < 5
  assert refused is None or leaf in str(refused)
  return refused


def accepted(value):
  return {path for path in FIELDS if refusal(path, value) is None}


def test_every_class_with_numbers_is_looked_at():
  assert {path.split(".")[0] for path in FIELDS} >= {
    "seed", *_PHASES, "critic", "reward_model", "data", "environment", "model",
    "sampling", "rewards", "eval", "checkpoint", "log", "hosts", "mesh",
    "profile_steps", "required_accuracy",
  }  # fmt: skip
  assert len(FIELDS) > 120


@pytest.mark.parametrize("value", [NAN, INF, -INF, "7", [1, 2], {}, True])
def test_nothing_is_what_no_number_is(value):
  assert accepted(value) == set()


@pytest.mark.slow
def test_what_is_huge():
  assert {short(path) for path in accepted(HUGE)} == MAY_BE_HUGE


@pytest.mark.slow
def test_what_is_negative():
  assert {short(path) for path in accepted(-1)} == MAY_BE_NEGATIVE


@pytest.mark.slow
def test_what_is_zero():
  assert {short(path) for path in accepted(0)} == MAY_BE_ZERO


@pytest.mark.slow
def test_whole_numbers_are_not_broken():
  whole = {path for path, kind in FIELDS.items() if kind is int}
  assert whole & accepted(0.5) == set()


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_settings_of_an_algorithm(name):
  fields = numeric(algorithms.get_algorithm(name).config_class, "algorithm.")
  if name not in ("grpo", "ppo"):  # Which have all the common ones.
    common = numeric(options.ClipConfig, "algorithm.")
    fields = {path: kind for path, kind in fields.items() if path not in common}
  for path, kind in fields.items():
    for value in (NAN, INF, -INF, -1, "7", *([HUGE] if kind is int else [])):
      assert refusal(path, value, name) is not None, (path, value)


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("algorithm", None, "config.algorithm got None"),
    ("algorithm.name", 7, "config.algorithm.name got 7"),
    ("rl", 3, "config.rl got 3"),
    ("rl.kind", 7, "config.rl.kind got 7"),
    ("rl.kind", "of", "config: rl.kind got 'of'"),
    ("pairs", None, "config.pairs"),
    ("rl.reference_workdirs", 7, "config.rl.reference_workdirs got 7"),
    ("rl.reference_workdirs", {}, "config.rl.reference_workdirs got {}"),
    ("reward_model", 3, "config.reward_model got 3"),
    ("reward_model.source", 3, "config.reward_model.source got 3"),
    ("reward_model.freeze", (3,), "config.reward_model.freeze got 3"),
    ("reward_model.optimizer", 3, "config.reward_model.optimizer got 3"),
    ("rl.optimizer", (1,), "config.rl.optimizer got"),
    ("data.task_options", 5, "config.data.task_options got 5"),
    ("data.chat_options", "x", "config.data.chat_options got 'x'"),
    ("sampling.domain_limits", 3, "config.sampling.domain_limits got 3"),
    (
      "sampling.domain_limits",
      {"add": NAN},
      "config.sampling.domain_limits.add=nan must be",
    ),
    ("phases", 7, "config.phases got 7"),
    ("data.name", None, "config.data.name got None"),
    ("unpublished", ("a.b",), "config.unpublished: 'a.b'"),
    ("unpublished", ("rl.steps.more",), "'rl.steps.more'"),
    ("profile_steps", (5, 1), "profile_steps=(5, 1) must be"),
    ("profile_steps", (0, 1), "profile_steps=(0, 1) must be"),
    ("profile_steps", (1, 2**20), "so this trace would not end"),
    ("rewards.weights", (1e400,), "config.rewards.weights=inf"),
  ],
)
def test_groups_and_names(path, value, message):
  assert message in str(refusal(path, value))


def test_sizes_are_bounded_together():
  phase = phase_lib.RlConfig(num_prompts=2**15, group_size=2**10)
  with pytest.raises(ValueError, match=r"num_prompts 32768 × group_size 1024"):
    phase.check("rl")
  config = config_lib.default_config()
  config.rl.num_prompts = 2**12
  config.sampling.max_new_tokens = 2**20
  with pytest.raises(ValueError, match=r"config\.rl: 32768 rows of .* 1048576"):
    config_lib.resolve(config)


def test_sections_are_given_by_their_names():
  config = copy.deepcopy(default("grpo"))
  del config["rl"]["kind"]
  with pytest.raises(KeyError, match=r"config\.rl is not a setting"):
    config_lib.resolve(config)
  config = copy.deepcopy(default("grpo")) | {"sections": {}}
  with pytest.raises(KeyError, match=r"config\.sections is not a setting"):
    config_lib.resolve(config)
