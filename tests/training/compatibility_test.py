"""The table of features that exclude each other: every row, and no others."""

import itertools
import types

import pytest

from grpo_jax import algorithms
from grpo_jax.training import compatibility, models, phases, problem, sharding
from grpo_jax.training import config as config_lib
from tests.training import tiny

TABLE, FEATURES = compatibility.TABLE, compatibility.FEATURES
ENVIRONMENT = "tests.training.host_sessions:calculator"

# What switches a feature on; nothing else of a setup is touched.
SWITCHES = {
  "lanes": {"config.sampling.lanes": 4},
  "environment": {"problem.environment": object()},
  "environment on the host": {
    "problem.host_environment": object(),
    "config.data.environment": ENVIRONMENT,
  },
  "compaction": {"problem.compaction": object()},
  "rounds": {"phase.max_rounds": 2},
  "staleness": {"phase.staleness": 1},
  "single completions": {"phase.group_size": 1},
  "dynamic sampling": {"objective.dynamic_sampling": True},
  "no dynamic sampling": {"objective.dynamic_sampling": False},
  "scale of the group": {"objective.advantage_scale": "group"},
  "max_live_groups": {"objective.max_live_groups": 2},
  "overlong_cache": {"objective.overlong_cache": 0.2},
  "coupled groups": {"algorithm.couples_group": True},
  "whole completions": {"algorithm.whole_completions": True},
  "verifiers in the graph only": {"problem.judge.on_host": None},
  "no correction": {"required": {"behavior_logp": False}},
  "sampling mask": {"required": {"kept_ids": True}},
  "no top_k": {"config.sampling.top_k": None},
  "filters without a record": {
    "config.sampling.top_p": 0.9,
    "required": {"kept_ids": False},
  },
  "recorded log-probs": {"required": {"behavior_logp": True}},
  "several teachers": {"phase.reference_workdirs": ("a", "b")},
  "prompts without domains": {"problem.provides": frozenset()},
  "distributions of the reference": {"required": {"ref_kl": True}},
  "reward model": {
    "problem.judge.by_members": (object(),),
    "config.rewards.functions": ("accuracy", "reward_model"),
  },
}

# What says of a setup that it has nothing of a feature, where it is not what
# says that it has the feature.
OPPOSITES = (
  {"dynamic sampling", "no dynamic sampling"},
  {"no correction", "recorded log-probs"},
  {"sampling mask", "filters without a record"},
)

# The setting, or the name, that a message has of a feature.
SHOWN = {
  "lanes": "config.sampling.lanes=4",
  "environment": "the environment of the task 'some task'",
  "environment on the host": f"config.data.environment='{ENVIRONMENT}'",
  "compaction": "the task 'some task', which compacts its contexts",
  "rounds": "config.again.max_rounds=2",
  "staleness": "config.again.staleness=1",
  "single completions": "config.again.group_size=1",
  "dynamic sampling": "config.algorithm.dynamic_sampling=True",
  "no dynamic sampling": "config.algorithm.dynamic_sampling=False",
  "scale of the group": "config.algorithm.advantage_scale='group'",
  "max_live_groups": "config.algorithm.max_live_groups=2",
  "overlong_cache": "config.algorithm.overlong_cache=0.2",
  "coupled groups": "algorithm 'some', which couples completions",
  "whole completions": "algorithm 'some', which reads whole completions",
  "verifiers in the graph only": "config.data.source='task'",
  "no correction": "algorithm 'some' without a correction",
  "sampling mask": "config.algorithm.keep_sampling_mask=True",
  "no top_k": "config.sampling.top_k=None",
  "filters without a record": "config.sampling, which filters tokens",
  "recorded log-probs": "algorithm 'some', which compares log-probs",
  "several teachers": "config.again.reference_workdirs=('a', 'b')",
  "prompts without domains": "config.data.source='task' without domains",
  "distributions of the reference": "which compares whole distributions",
  "reward model": "config.rewards.functions=('accuracy', 'reward_model')",
}


def _space(**fields):
  return types.SimpleNamespace(**fields)


def make_setup(*switched):
  """A setup with these features on, and the others off where they can be."""
  setup = _space(
    config=_space(
      sampling=_space(lanes=None, top_k=5, top_p=None, min_p=None),
      data=_space(name="some task", source="task", environment=""),
      rewards=_space(functions=("accuracy",)),
    ),
    name="again",
    phase=_space(
      max_rounds=1, staleness=0, group_size=4, reference_workdirs=()
    ),
    problem=_space(
      environment=None,
      host_environment=None,
      compaction=None,
      provides=frozenset({"domain"}),
      judge=_space(on_host=object(), by_members=()),
    ),
    algorithm=_space(
      name="some", couples_group=False, whole_completions=False
    ),
    objective=_space(
      dynamic_sampling="rounds" in switched,
      advantage_scale="none",
      max_live_groups=0,
      overlong_cache=0.0,
      keep_sampling_mask=True,
    ),
    required={"behavior_logp"} if "staleness" in switched else set(),
  )
  if "filters without a record" not in switched:
    setup.required.add("kept_ids")
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


def excluded(one, other):
  """The rows of the table about two features."""
  return [row for row in TABLE if {row.feature, row.excludes} == {one, other}]


def test_rows_are_about_features_and_every_feature_is_in_a_row():
  named = {name for row in TABLE for name in (row.feature, row.excludes)}
  assert named == FEATURES.keys() == SWITCHES.keys() == SHOWN.keys()
  pairs = [frozenset((row.feature, row.excludes)) for row in TABLE]
  assert len(set(pairs)) == len(pairs)
  assert all(len(pair) == 2 for pair in pairs)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_on_where_it_is_switched_on(name):
  assert FEATURES[name].is_on(make_setup(name))
  assert SHOWN[name] in FEATURES[name].shown(make_setup(name))
  if name not in ("no correction", "no dynamic sampling"):
    without = make_setup("rounds", "staleness")
    if name not in ("rounds", "staleness", "dynamic sampling"):
      assert not FEATURES[name].is_on(without) or name in (
        *("sampling mask", "recorded log-probs"),
      )


@pytest.mark.parametrize(
  "row", TABLE, ids=lambda row: f"{row.feature} and {row.excludes}"
)
def test_a_row_is_reached_and_says_what_to_do(row):
  with pytest.raises(ValueError, match="do not go together") as caught:
    compatibility.check(make_setup(row.feature, row.excludes))
  text = str(caught.value)
  named, _, told = text.partition(" do not go together: ")
  assert SHOWN[row.feature] in named
  assert SHOWN[row.excludes] in named
  remedy = row.remedy.format(name="again")
  assert told == f"{row.why}; {remedy}."
  assert any(word in remedy for word in ("set ", "choose ", "leave ", "give "))
  assert "{" not in text.replace("{name}", "{")


@pytest.mark.parametrize(
  ("one", "other"),
  [
    (one, other)
    for one, other in itertools.combinations(FEATURES, 2)
    if not excluded(one, other) and {one, other} not in OPPOSITES
  ],
)
def test_what_the_table_allows_passes(one, other):
  setup = make_setup(one, other)
  assert all(FEATURES[name].is_on(setup) for name in (one, other))
  compatibility.check(setup)
