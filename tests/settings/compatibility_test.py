"""The table of features that exclude each other: every row, and no others."""

import contextlib
import itertools
import types

import pytest

from grpo_jax.settings import compatibility
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import problem
from tests.training import tiny

TABLE, FEATURES = compatibility.TABLE, compatibility.FEATURES
SERVED = "verifiers:some_module"
ENVIRONMENT = "tests.training.host_sessions:calculator"

SEATS = types.SimpleNamespace(seat=len)

# What switches a feature on; nothing else of a setup is touched.
SWITCHES = {
  "lanes": {"config.sampling.lanes": 4},
  "environment": {"problem.environment": types.SimpleNamespace(seat=None)},
  "environment in the graph": {
    "problem.environment": types.SimpleNamespace(seat=None)
  },
  "environment on the host": {
    "problem.host_environment": object(),
    "config.data.environment": ENVIRONMENT,
  },
  "environment that asks over HTTP": {
    "problem.host_environment": object(),
    "config.data.environment": SERVED,
  },
  "compaction": {"problem.compaction": object()},
  "rounds": {"phase.max_rounds": 2},
  "recycled surplus": {"phase.recycle_surplus": True},
  "replay": {"phase.replay_size": 8},
  "staleness": {"phase.staleness": 1},
  "partial rollouts": {"phase.staleness": 1, "phase.partial_len": 8},
  "guards": {"config.guards.on": True},
  "empty rows count": {"objective.count_empty": True},
  "schedule": {
    "phase.schedule.chooses": True,
    "phase.schedule.name": "frontier",
  },
  "past completions": {
    "phase.schedule.chooses": True,
    "phase.schedule.name": "spo",
  },
  "kept completions": {"phase.kind": "rejection"},
  "images": {"problem.image_shapes": object()},
  "given pairs": {
    "phase.of_kind.num_given": 2,
    "phase.samples": False,
    "phase.kind": "pairs",
  },
  "prompts in chunks": {"config.model.prefill_chunk": 2},
  "single completions": {"phase.group_size": 1},
  "dynamic sampling": {"objective.dynamic_sampling": True},
  "no dynamic sampling": {"objective.dynamic_sampling": False},
  "scale of the group": {"objective.advantage_scale": "group"},
  "max_live_groups": {"objective.max_live_groups": 2},
  "overlong_cache": {"objective.overlong_cache": 0.2},
  "cut contexts that stand alone": {
    "required": {"final_value": True},
    "objective.boundary": "outcome",
  },
  "final values of a shared trunk": {
    "required": {"final_value": True},
    "config.critic.trunk": "shared",
  },
  "coupled groups": {"algorithm.couples_group": True},
  "whole completions": {"algorithm.whole_completions": True},
  "text in the graph": {"config.rewards.in_graph": True},
  "steps of a text": {"config.rewards.steps": "arithmetic_steps"},
  "weights that change": {
    "config.rewards.schedules": {"accuracy": ((0, 1.0), (9, 0.0))}
  },
  "options of whole completions": {"objective.opd_early": 0.5},
  "no correction": {"algorithm.needs": ()},
  "sampling mask": {"required": {"kept_ids": True}, "config.sampling.top_k": 5},
  "no top_k": {"config.sampling.top_k": None},
  "filters without a record": {
    "config.sampling.top_p": 0.9,
    "required": {"kept_ids": False},
  },
  "recorded log-probs": {
    "required": {"behavior_logp": True},
    "algorithm.needs": ("behavior_logp",),
  },
  "teachers of domains": {
    "phase.reference_workdirs": ("a", "b"),
    "phase.has_teachers_of_domains": True,
  },
  "limits by domain": {
    "problem.limits": (3, 8),
    "config.sampling.domain_limits": {"add": 3},
  },
  "prompts without domains": {"problem.provides": frozenset()},
  "forced answers": {"required": {"prefix_utility": True}},
  "opponents": {"phase.opponents": ("start",), "problem.environment": SEATS},
  "single player": {"problem.environment": None},
  "several players": {"problem.environment": SEATS},
  "rounded kernels": {"config.sampling.weights_dtype": "int8"},
  "rounding to be corrected": {"config.sampling.weights_dtype": "int8"},
  "quantized base": {"config.model.quantization": "nf4"},
  "mixed inputs": {"config.sampling.mix_rate": 0.1},
  "correction": {
    "phase.correction.corrects": True,
    "phase.correction.p_cue": 0.5,
  },
  "trained hints": {
    "phase.correction.corrects": True,
    "phase.correction.p_cue": 0.5,
    "phase.correction.train_injected": True,
  },
  "text": {"config.data.is_made_of_ids": False, "config.data.source": "jsonl"},
  "verifiers on the host": {"problem.reward.asks_host": True},
  "kept routing": {"required": {"routing": True}},
  "capped influence": {
    "config.guards.on": True,
    "config.guards.influence_cap": 0.05,
  },
  "current teacher": {"objective.opd_anchor": "current"},
  "canaries with a KL": {
    "config.guards.on": True,
    "config.guards.canary_max_kl": 0.5,
  },
  "pairs ranked by a model": {"config.reward_model.ranked_by": "some run"},
  "old completions": {"config.reward_model.history_share": 0.1},
  "reward model": {
    "problem.reward.by_models": (object(),),
    "config.rewards.functions": ("accuracy", "reward_model"),
  },
}

# Features that no setup has both of.
OPPOSITES = {
  frozenset(("dynamic sampling", "no dynamic sampling")),
  frozenset(("given pairs", "kept completions")),
  frozenset(("no correction", "recorded log-probs")),
  frozenset(("sampling mask", "filters without a record")),
  frozenset(("single player", "several players")),
  frozenset(("single player", "environment")),  # Here it switches it off.
}

# Features that come with others, or are refused without them.
IMPLIED = {
  "past completions": ("schedule",),
  "environment": ("environment in the graph",),
  "environment in the graph": ("environment",),
  "environment on the host": ("environment",),
  "environment that asks over HTTP": ("environment", "environment on the host"),
  "rounds": ("dynamic sampling",),
  "recycled surplus": ("recorded log-probs",),
  "replay": ("recorded log-probs",),
  "staleness": ("recorded log-probs",),
  "partial rollouts": ("staleness", "recorded log-probs"),
  "rounded kernels": ("rounding to be corrected", "recorded log-probs"),
  "rounding to be corrected": ("rounded kernels", "recorded log-probs"),
  "capped influence": ("guards",),
  "canaries with a KL": ("guards",),
  "trained hints": ("correction",),
  "opponents": ("several players", "environment", "environment in the graph"),
  "several players": ("environment", "environment in the graph"),
}

# Where the setup without any feature has one: what it is switched off by.
SWITCHED_OFF = {
  "no dynamic sampling": "dynamic sampling",
  "no correction": "recorded log-probs",
  "no top_k": "sampling mask",
  "single player": "several players",
}

# The setting, or the name, that a message has of a feature.
SHOWN = {
  "lanes": "config.sampling.lanes=4",
  "environment": "the environment of the task 'some task'",
  "environment in the graph": "the environment of the task 'some task'",
  "environment on the host": f"config.data.environment='{ENVIRONMENT}'",
  "environment that asks over HTTP": f"config.data.environment='{SERVED}'",
  "compaction": "the task 'some task', which compacts its contexts",
  "rounds": "config.again.max_rounds=2",
  "recycled surplus": "config.again.recycle_surplus=True",
  "replay": "config.again.replay_size=8",
  "staleness": "config.again.staleness=1",
  "partial rollouts": "config.again.partial_len=8",
  "guards": "config.guards",
  "empty rows count": "config.algorithm.count_empty=True",
  "text in the graph": "config.rewards.in_graph=True",
  "steps of a text": "config.rewards.steps='arithmetic_steps'",
  "weights that change": "config.rewards.schedules={'accuracy'",
  "schedule": "config.again.schedule.name='frontier'",
  "past completions": "config.again.schedule.name='spo'",
  "kept completions": "config.again.kind='rejection'",
  "images": "config.data.name='some task', whose prompts show images,",
  "given pairs": "config.again.kind='pairs'",
  "prompts in chunks": "config.model.prefill_chunk=2",
  "single completions": "config.again.group_size=1",
  "dynamic sampling": "config.algorithm.dynamic_sampling=True",
  "no dynamic sampling": "config.algorithm.dynamic_sampling=False",
  "scale of the group": "config.algorithm.advantage_scale='group'",
  "max_live_groups": "config.algorithm.max_live_groups=2",
  "overlong_cache": "config.algorithm.overlong_cache=0.2",
  "cut contexts that stand alone": (
    "config.algorithm.bootstrap_cut=True with boundary='outcome'"
  ),
  "final values of a shared trunk": (
    "config.algorithm.bootstrap_cut=True with config.critic.trunk='shared'"
  ),
  "coupled groups": "algorithm 'some', which couples completions",
  "whole completions": "algorithm 'some', which reads whole completions",
  "no correction": "algorithm 'some' without a correction",
  "options of whole completions": "config.algorithm.opd_early=0.5",
  "sampling mask": "config.algorithm.keep_sampling_mask=True",
  "no top_k": "config.sampling.top_k=None",
  "filters without a record": "config.sampling, which filters tokens",
  "recorded log-probs": "algorithm 'some', which compares log-probs",
  "teachers of domains": "config.again.reference_workdirs=('a', 'b')",
  "limits by domain": "config.sampling.domain_limits={'add': 3}",
  "prompts without domains": "config.data.source='task' without domains",
  "forced answers": "algorithm 'some', which forces answers",
  "opponents": "config.again.opponents=('start',)",
  "single player": "config.data.name='some task', for one player,",
  "several players": "the task 'some task', which has several players",
  "rounded kernels": "config.sampling.weights_dtype='int8'",
  "rounding to be corrected": "config.sampling.weights_dtype='int8'",
  "quantized base": "config.model.quantization='nf4'",
  "mixed inputs": "config.sampling.mix_rate=0.1",
  "correction": "config.again.correction with p_cue=0.5, p_answer=0.0 and",
  "trained hints": "config.again.correction.train_injected=True",
  "text": "config.data.source='jsonl', which is text,",
  "verifiers on the host": "config.rewards.functions=('accuracy',)",
  "kept routing": "config.algorithm.keep_routing=False",
  "capped influence": "config.guards.influence_cap=0.05",
  "current teacher": "config.algorithm.opd_anchor='current'",
  "canaries with a KL": "config.guards.canary_max_kl=0.5",
  "pairs ranked by a model": "config.reward_model.ranked_by='some run'",
  "old completions": "config.reward_model.history_share=0.1",
  "reward model": "config.rewards.functions=('accuracy', 'reward_model')",
}


def _space(**fields):
  return types.SimpleNamespace(**fields)


def _reward_model(**fields):
  made = _space(**fields)
  made.ranks = lambda phase: bool(made.ranked_by)
  return made


def make_setup(*switched):
  """A setup with these features, and with as few others as there can be."""
  read = tuple(
    "behavior_logp"
    for name in switched
    if "recorded log-probs" in IMPLIED.get(name, ())
  )
  setup = _space(
    config=_space(
      sampling=_space(
        lanes=None,
        top_k=None,
        top_p=None,
        min_p=None,
        domain_limits={},
        mix_rate=0.0,
        weights_dtype="model",
        uncorrected=False,
      ),
      model=_space(quantization="none", prefill_chunk=0),
      data=_space(
        name="some task",
        source="task",
        environment="",
        is_made_of_ids=True,
        images=(),
      ),
      rewards=_space(
        functions=("accuracy",), in_graph=False, steps="", schedules={}
      ),
      critic=_space(trunk="own"),
      reward_model=_reward_model(history_share=0.0, ranked_by=""),
      guards=_space(
        on=False, influence_cap=0.0, canary_every=20, canary_max_kl=0.0
      ),
      environment=_space(compaction=_space(context_len=None)),
    ),
    name="again",
    phase=_space(
      max_rounds=1,
      recycle_surplus=False,
      replay_size=0,
      staleness=0,
      partial_len=None,
      group_size=4,
      reference_workdirs=(),
      has_teachers_of_domains=False,
      opponents=(),
      trains=("policy", "critic"),
      kind="rl",
      samples=True,
      of_kind=_space(num_given=0),
      schedule=_space(chooses=False, name="epochs"),
      correction=_space(
        corrects=False,
        train_injected=False,
        p_cue=0.0,
        p_answer=0.0,
        p_reference=0.0,
      ),
    ),
    problem=_space(
      environment=None,
      host_environment=None,
      compaction=None,
      provides=frozenset({"domain"}),
      limits=(),
      image_shapes=None,
      reward=_space(asks_host=False, by_models=()),
    ),
    algorithm=_space(
      name="some", couples_group=False, whole_completions=False, needs=read
    ),
    objective=_space(
      dynamic_sampling="rounds" in switched,
      advantage_scale="none",
      max_live_groups=0,
      overlong_cache=0.0,
      boundary="chain",
      keep_sampling_mask=True,
      keep_routing=False,
      count_empty=False,
      off_policy_threshold=0.0,
      importance_mode="none",
      importance_level="token",
      rejection="none",
      opd_coef=0.5,
      opd_early=0.0,
      opd_anchor="start",
    ),
    required={*read},
  )
  for name in switched:
    for path, value in SWITCHES[name].items():
      if path == "required":
        for need, is_on in value.items():
          (setup.required.add if is_on else setup.required.discard)(need)
        continue
      *owners, field = path.split(".")
      owner = setup
      for part in owners:
        owner = getattr(owner, part)
      assert hasattr(owner, field)
      setattr(owner, field, value)
  return setup


def is_allowed(*names):
  """True if no two of the features, with those implied, exclude each other."""
  every = {*names, *(x for name in names for x in IMPLIED.get(name, ()))}
  rows = {frozenset((row.feature, row.excludes)) for row in TABLE}
  pairs = map(frozenset, itertools.combinations(every, 2))
  return not any(pair in rows | OPPOSITES for pair in pairs)


def test_rows_are_about_features_and_every_feature_is_in_a_row():
  named = {name for row in TABLE for name in (row.feature, row.excludes)}
  assert named == FEATURES.keys() == SWITCHES.keys() == SHOWN.keys()
  pairs = [frozenset((row.feature, row.excludes)) for row in TABLE]
  assert len(set(pairs)) == len(pairs)
  assert all(len(pair) == 2 for pair in pairs)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_on_where_it_is_switched_on_and_nowhere_else(name):
  feature, setup = FEATURES[name], make_setup(name)
  assert feature.is_on(setup)
  assert SHOWN[name] in feature.shown(setup)
  off = [SWITCHED_OFF[name]] if name in SWITCHED_OFF else []
  assert not feature.is_on(make_setup(*off))
  compatibility.check(make_setup(*off))


@pytest.mark.parametrize(
  "row", TABLE, ids=lambda row: f"{row.feature} and {row.excludes}"
)
def test_a_row_is_reached_and_says_what_to_do(row):
  with pytest.raises(ValueError, match="do not go together") as caught:
    compatibility.check(make_setup(row.feature, row.excludes))
  remedy = row.remedy.format(name="again")
  told = f" do not go together: {row.why}; {remedy}."
  (named,) = [
    line.removesuffix(told)
    for line in str(caught.value).splitlines()
    if line.endswith(told)
  ]
  assert SHOWN[row.feature] in named
  assert SHOWN[row.excludes] in named
  assert any(word in remedy for word in ("set ", "choose ", "leave ", "give "))


def test_all_that_does_not_go_together_is_told_at_once():
  with pytest.raises(ValueError, match="staleness") as caught:
    compatibility.check(make_setup("staleness", "no correction", "replay"))
  assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("one", FEATURES)
def test_what_the_table_allows_passes(one):
  for other in [*FEATURES][: [*FEATURES].index(one)]:
    if is_allowed(one, other):
      setup = make_setup(other, one)
      assert FEATURES[one].is_on(setup), other
      assert FEATURES[other].is_on(setup), other
      compatibility.check(setup)


# --- the same of configs -----------------------------------------------------


def _make_phase(changes, name="rl", algorithm="grpo"):
  config = config_lib.default_config(algorithm)
  config.phases = ("rl",)
  config.rl.num_prompts = config.rl.group_size = 4
  config.update_from_flattened_dict(changes)
  made = problem.make_problem(config_lib.resolve(config))
  with contextlib.closing(made):
    return tiny.phase_of(config, made, name)


LIVE = {"algorithm.dynamic_sampling": True}
ROUNDED = {"sampling.weights_dtype": "int8"}
CONFIGS = [
  ("grpo", {"data.name": "calc_tool", "sampling.lanes": 4}, "lanes=4 and the"),
  (
    "grpo",
    {"data.name": "memchain", "rl.max_rounds": 2, **LIVE},
    "max_rounds=2 and the task 'memchain'",
  ),
  (
    "grpo",
    {"data.name": "grid", "rl.opponents": ("start",)},
    "opponents=('start',) and config.data.name='grid', for one player,",
  ),
  ("dpo", {"data.name": "memchain"}, "'dpo', which couples completions and"),
  ("gtpo", {"data.name": "memchain"}, "'gtpo', which reads whole completions"),
  ("tic_grpo", {"data.name": "memchain"}, "'tic_grpo', which reads whole"),
  ("vespo", {"data.name": "memchain"}, "'vespo', which reads whole"),
  ("rloo", {"data.name": "memchain"}, "'rloo', which reads whole"),
  ("gspo", {"data.name": "memchain"}, "'gspo', which reads whole"),
  (
    "deepseek_v32",
    {"data.name": "memchain"},
    "off_policy_threshold=0.5 and the task 'memchain'",
  ),
  (
    "grpo",
    {"data.name": "memchain", "algorithm.rejection": "seq_max_k1"},
    "rejection='seq_max_k1' and the task 'memchain'",
  ),
  (
    "grpo",
    {"data.name": "memchain", "algorithm.count_empty": True},
    "count_empty=True and the task 'memchain'",
  ),
  (
    "grpo",
    {"data.name": "memchain", "algorithm.overlong_cache": 0.2},
    "overlong_cache=0.2 and the task 'memchain'",
  ),
  (
    "grpo",
    {
      "data.name": "memchain",
      "rewards.functions": ("accuracy", "reward_model"),
      "rewards.weights": (1.0, 1.0),
      "reward_model.source": "some run",
    },
    "'reward_model') and the task 'memchain'",
  ),
  (
    "grpo",
    {"rl.max_rounds": 2, "algorithm.dynamic_sampling": False},
    "max_rounds=2 and config.algorithm.dynamic_sampling=False",
  ),
  (
    "grpo",
    {"rl.max_rounds": 2, "algorithm.max_live_groups": 2, **LIVE},
    "max_rounds=2 and config.algorithm.max_live_groups=2",
  ),
  (
    "reinforce",
    {"rl.group_size": 1, **LIVE},
    "dynamic_sampling=True and config.rl.group_size=1",
  ),
  (
    "reinforce",
    {"rl.group_size": 1, "algorithm.advantage_scale": "group"},
    "advantage_scale='group' and config.rl.group_size=1",
  ),
  (
    "grpo",
    {"rl.staleness": 1},
    "staleness=1 and algorithm 'grpo' without a correction",
  ),
  (
    "grpo",
    {"rl.max_rounds": 2, "rl.recycle_surplus": True, **LIVE},
    "recycle_surplus=True and algorithm 'grpo' without a correction",
  ),
  (
    "grpo",
    ROUNDED,
    "weights_dtype='int8' and algorithm 'grpo' without a correction",
  ),
  (
    "grpo",
    {**ROUNDED, "algorithm.off_policy_threshold": 0.5},
    "weights_dtype='int8' and config.algorithm.off_policy_threshold=0.5 alone",
  ),
  (
    "deepseek_v32",
    {"rl.staleness": 1},
    "staleness=1 and config.algorithm.off_policy_threshold=0.5 alone",
  ),
  (
    "deepseek_v32",
    {"rl.replay_size": 8},
    "replay_size=8 and config.algorithm.off_policy_threshold=0.5 alone",
  ),
  (
    "deepseek_v32",
    {"rl.max_rounds": 2, "rl.recycle_surplus": True, **LIVE},
    "recycle_surplus=True and config.algorithm.off_policy_threshold=0.5 alone",
  ),
  (
    "grpo",
    {
      **ROUNDED,
      "sampling.uncorrected": True,
      "model.lora_rank": 2,
      "model.quantization": "nf4",
    },
    "weights_dtype='int8' and config.model.quantization='nf4'",
  ),
  (
    "grpo",
    {"rl.replay_size": 8},
    "replay_size=8 and algorithm 'grpo' without a correction",
  ),
  (
    "grpo",
    {"algorithm.keep_sampling_mask": True},
    "keep_sampling_mask=True and config.sampling.top_k=None",
  ),
  (
    "grpo",
    {"algorithm.importance_mode": "truncate", "sampling.min_p": 0.1},
    "'grpo', which compares log-probs and config.sampling",
  ),
  (
    "opd_token",
    {"rl.reference_workdirs": ("a", "b")},
    "reference_workdirs=('a', 'b') and config.data.source='task' without",
  ),
]


@pytest.mark.parametrize(
  ("algorithm", "changes", "message"),
  CONFIGS,
  ids=[message for *_, message in CONFIGS],
)
def test_configs_meet_the_table(algorithm, changes, message):
  with pytest.raises(ValueError, match="do not go together") as caught:
    _make_phase(changes, algorithm=algorithm)
  assert message in str(caught.value)


def test_phases_on_pairs_read_no_images():
  settings = {"kind": "pairs", "num_prompts": 4, "steps": 1}
  changes = {
    "data.name": "vision",
    "phases": ("pairs",),
    "pairs": config_lib.phase_config(**settings),
  }
  shown = r"'vision', whose .* config\.pairs\.kind='pairs' do not go together"
  with pytest.raises(ValueError, match=shown):
    _make_phase(changes, name="pairs", algorithm="dpo")
  changes["data.name"] = "add"
  assert _make_phase(changes, name="pairs", algorithm="dpo").sampler is None


def test_a_phase_that_plays_nothing_is_not_asked():
  changes = {"sampling.lanes": 4, "data.name": "calc_tool"}
  changes["phases"] = ("sft", "rl")
  assert _make_phase(changes, name="sft").sampler is None


@pytest.mark.parametrize(
  "change",
  [
    {"sampling.uncorrected": True},
    {"sampling.uncorrected": True, "algorithm.off_policy_threshold": 0.5},
    {"algorithm.importance_mode": "truncate"},
    {"algorithm.rejection": "seq_mean_k1"},
    {
      "algorithm.importance_mode": "mask",
      "algorithm.off_policy_threshold": 0.5,
    },
  ],
)
def test_rounded_kernels_are_corrected_for_or_said_not_to_be(change):
  assert _make_phase({**ROUNDED, **change}).sampler is not None
