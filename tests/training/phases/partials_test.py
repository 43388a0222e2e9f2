"""Runs whose rollouts are cut at the end of each step."""

import contextlib

import jax
import ml_collections
import pytest

from grpo_jax.training import loop
from grpo_jax.training.runtime import checkpoints, log
from tests.experiments import tiny_config
from tests.training import many_test, resume_test, stale_test, tiny

STEPS = 8  # After as many of imitation, so that completions come to an end.


def get_config(seed=0, **settings):
  """Eight steps on short completions, two tokens at a time."""
  config = stale_test.get_config(staleness=4)
  config.seed = seed
  config.phases = ("sft", "rl")
  config.sft.steps = config.rl.steps = STEPS
  config.data.task_options.min_len = 2
  config.data.task_options.max_len = 6
  config.rl.partial_len = 2
  config.sampling.max_new_tokens = 8
  config.checkpoint.every = 3
  if settings.get("data__name"):
    config.data.task_options = ml_collections.ConfigDict()
  return tiny_config.change(config, settings)


def rows(workdir):
  lines = log.read_lines(workdir / log.METRICS)
  return [line for line in lines if "partial/trained_groups" in line]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("unbroken")
  loop.train(get_config(), workdir)
  return workdir


@pytest.mark.slow
def test_groups_are_trained_as_they_end_and_no_prompt_is_lost(unbroken):
  said = rows(unbroken)
  assert len(said) == STEPS
  trained = [int(row["partial/trained_groups"]) for row in said]
  # Nothing can have ended before; and not all groups end together.
  assert trained[0] < 4
  assert len({*trained}) > 2
  assert any(row["partial/waiting_tokens"] > 0 for row in said)
  ages = [row["staleness/max"] for row in said if row["staleness/max"]]
  assert 1 <= max(ages) <= 4
  assert [row["completions/generated"] for row in said] == [
    4 * count for count in trained
  ]
  with checkpoints_of(unbroken) as store:
    assert store.extra()["stream"] == {}
  samples = log.read_lines(unbroken / log.SAMPLES)
  assert samples
  assert all(sample["completion"] for sample in samples)


def checkpoints_of(workdir):
  """The checkpoints of a run, closed at the end."""
  store = checkpoints.Checkpoints(workdir / "checkpoints", keep=2)
  return contextlib.closing(store)


EPISODES = {
  "data__name": "calc_tool",
  "rewards__functions": ("return", "malformed"),
  "rewards__weights": (1.0, 0.5),
  "rewards__correct": "return",
  "sampling__max_new_tokens": 76,
  "rl__partial_len": 12,
  "rl__staleness": 1,
  "rl__steps": 5,
  "sft__steps": 1,
  "checkpoint__every": 2,
  "log__traces_every": 0,
}


ON_HOST = {"data__environment": "tests.training.host_sessions:calculator"}


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
  """Workdirs of a run in the graph, and of one with the environment outside."""
  root = tmp_path_factory.mktemp("episodes")
  for name, more in (("graph", {}), ("host", ON_HOST)):
    with jax.transfer_guard("allow"):
      loop.train(get_config(**EPISODES, **more), root / name)
  return root


@pytest.mark.slow
def test_on_the_host_episodes_are_cut_as_in_the_graph(episodes):
  """But for observations, which are read whole there."""
  graph, host = (rows(episodes / name) for name in ("graph", "host"))
  for one, other in zip(graph, host, strict=True):
    assert other["unscored/raised"] == 0
    for name in one.keys() & other.keys():
      if one[name] is None:  # Nothing was trained.
        assert other[name] is None
      elif name.startswith(("reward", "length", "staleness", "loss")):
        assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    waiting = "partial/waiting_tokens"
    assert one[waiting] <= other[waiting] <= one[waiting] + 40
  trained = [row["partial/trained_groups"] for row in host]
  assert trained == [row["partial/trained_groups"] for row in graph]
  one, other = (
    [
      [sample["prompt"], sample["completion"], len(sample["turns"])]
      for sample in log.read_lines(episodes / name / log.SAMPLES)
    ]
    for name in ("graph", "host")
  )
  assert one == other


@pytest.mark.slow
def test_a_session_that_answers_otherwise_when_it_is_made_again_fails(
  tmp_path, caplog
):
  path = "tests.training.host_sessions:moody"
  config = get_config(
    **EPISODES
    | {"data__environment": path, "rl__staleness": 3, "log__num_samples": 16}
  )
  config.log.samples_every = 1
  loop.train(config, tmp_path)
  said = rows(tmp_path)
  assert sum(row["unscored/raised"] for row in said) > 0
  samples = log.read_lines(tmp_path / log.SAMPLES)
  unscored = [row["unscored"] for row in said if row["unscored"]]
  # Those that have failed while their groups waited too.
  assert [sum(not x["valid"] for x in samples)] == unscored
  # A session of one turn has nothing to answer again.
  assert 0 < unscored[0] < len(samples)
  assert "and actions, has answered otherwise" in caplog.text
  with checkpoints_of(tmp_path) as store:
    assert store.extra()["told"]


@pytest.mark.slow
def test_episodes_on_the_host_that_are_cut_and_stopped_end_with_the_same_bytes(
  tmp_path, episodes
):
  config = get_config(**EPISODES, **ON_HOST)
  unbroken = episodes / "host"
  said = rows(unbroken)
  trained = [row["partial/trained_groups"] for row in said]
  assert trained[0] < 4
  assert sum(trained) > 4  # Those of a place that was free are there too.
  assert any(row["partial/waiting_tokens"] > 0 for row in said)
  assert max(row["staleness/max"] or 0 for row in said) >= 1
  samples = log.read_lines(unbroken / log.SAMPLES)
  # Some observation was read.
  assert any(len(sample["turns"]) > 1 for sample in samples)

  with pytest.MonkeyPatch.context() as patch:
    stale_test.stopped_after(3, patch)
    with jax.transfer_guard("allow"):
      assert loop.train(config, tmp_path / "stopped").preempted
  with checkpoints_of(tmp_path / "stopped") as store:
    assert 1 < store.latest_step() < 6
  loop.train(config, tmp_path / "stopped")
  resume_test.assert_same(
    *map(resume_test.everything, (tmp_path / "stopped", unbroken))
  )


@pytest.mark.slow
def test_runs_as_one_program_end_as_runs_of_their_own(tmp_path):
  configs = [
    get_config(seed=seed, phases=("rl",), rl__steps=4) for seed in range(2)
  ]
  together, alone, *_ = many_test.train_both(configs, tmp_path)
  many_test.assert_close_run(together[1], alone)


# --- what makes no sense is said before anything is compiled -----------------


@pytest.mark.parametrize(
  ("settings", "most"),
  [
    ({}, 2),  # 2 × 5 tokens are enough for 8.
    ({"rl__staleness": 3}, 2),
    ({"rl__staleness": 2}, 8),  # The last step may need up to 8 − 2 × 2.
    ({"rl__partial_len": 100}, 8),
  ],
)
def test_a_row_has_room_for_what_it_may_get_in_a_step(settings, most):
  phase = tiny.phase_of(get_config(**settings))
  assert phase.partial.go_on.keywords["most"] == most
  assert phase.num_ahead == 0
  assert phase.is_told_prompts


def test_whole_rollouts_are_drawn_ahead():
  phase = tiny.phase_of(get_config(rl__partial_len=None))
  assert phase.partial is None
  assert phase.num_ahead == 4
  assert not phase.is_told_prompts


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"rl__staleness": 0}, r"staleness=0 allows no update in between; set"),
    (
      {"data__name": "nim", "rewards__functions": ("return",)},
      r"partial_len=2 and the task 'nim', which has several players do not go",
    ),
    ({"sampling__lanes": 2}, r"partial_len=2 and config\.sampling\.lanes=2"),
  ],
)
def test_what_does_not_go_together_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    tiny.phase_of(get_config(**settings))


@pytest.mark.slow
def test_tokens_are_those_of_whole_rollouts_where_nothing_is_learnt(tmp_path):
  """Compares the first groups, at a learning rate that moves no parameter."""
  found = {}
  for length in (None, 2):
    config = get_config(
      rl__optimizer__learning_rate=1e-30,
      rl__steps=4,
      rl__partial_len=length,
      rl__staleness=3,
      log__samples_every=1,
      log__num_samples=16,
    )
    workdir = tmp_path / str(length)
    loop.train(config, workdir)
    lines = log.read_lines(workdir / log.SAMPLES)
    found[length] = [
      (line["step"], line["prompt"], line["completion"]) for line in lines
    ]
  whole = {said[1:] for said in found[None] if said[0] == STEPS + 1}
  cut = {said[1:] for said in found[2]}
  assert len(whole & cut) == len(whole)
