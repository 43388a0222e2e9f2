"""The benchmark of the whole step: what it counts, prescribes and prints."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.benchmarks import workload
from tests.experiments import command

# One layer of 4 · (4 + 2 · 2) + 16 + 3 · 4 · 8 = 144 weights, a head of 12; a
# prompt of 2 tokens and two rows of 3.
HAND = workload.Work(
  hidden=4,
  layers=1,
  heads=2,
  kv_heads=1,
  mlp_width=8,
  vocab=3,
  prompt_len=2,
  completion_len=3,
  prompts=1,
  group=2,
)
TINY = (
  "--hidden=16",
  "--layers=1",
  "--heads=2",
  "--kv_heads=1",
  "--vocab=32",
  "--prompt_len=4",
  "--completion_len=12",
  "--prompts=2",
  "--group=4",
  "--repeats=2",
)


def preset(name, **fields):
  return workload.Work(**workload.PRESETS[name] | fields)


@pytest.mark.parametrize(
  ("kind", "prefill", "decode", "forward"),
  [
    # 2 · 144 · tokens + 4 · 4 · pairs + 2 · 12 · predictions, for (tokens,
    # pairs, predictions) of (2, 4, 0), (4, 20, 6) and (8, 32, 6);
    ("full", 640, 1616, 2960),
    ("rows", 640, 1616, 2960),
    # the same, and (6, 20, 6);
    ("shared", 640, 1616, 2192),
    # (2, 3, 0), (4, 14, 6) and (6, 17, 6).
    ("least", 624, 1520, 2144),
  ],
)
def test_flops_are_those_counted_by_hand(kind, prefill, decode, forward):
  costs = workload.costs(HAND, kind)
  assert costs["prefill"].flops == prefill
  assert costs["decode"].flops == decode
  assert costs["log-probs"].flops == forward
  assert costs["update"].flops == 3 * forward
  assert costs["step"].flops == prefill + decode + 3 * forward


@pytest.mark.parametrize(
  ("is_shared", "num_updates", "passes"),
  [(False, 1, 4), (False, 2, 7), (True, 1, 2)],
)
def test_passes_of_a_critic_are_those_counted_by_hand(
  is_shared, num_updates, passes
):
  # 2 · 144 · 6 tokens + 4 · 4 · (4 + 16) pairs, and no head.
  found = workload.critic_flops(HAND, is_shared, num_updates)
  assert found == 2048 * passes


@pytest.mark.slow
def test_a_critic_is_measured_beside_grpo(tmp_path):
  status, out, err = command.run(
    "benchmarks.critic", *TINY, f"--json={tmp_path / 'critic.json'}"
  )
  assert status == 0, err
  rows = json.loads((tmp_path / "critic.json").read_text())["cases"]
  assert rows["GRPO"]["of_grpo"] == 1
  assert rows["GRPO"]["critic_floor_s"] == 0 < rows["PPO"]["critic_floor_s"]
  assert rows["PPO"]["parameters"] > rows["PPO, shared trunk"]["parameters"]
  assert all(f"| {name} |" in out for name in rows)


def test_bytes_are_those_counted_by_hand():
  # A slot has 2 channels of keys and of values: 16 bytes. The two steps read
  # 156 weights each; each row 1 and 2 of its slots and the prompt's 2 twice,
  # or the group those once.
  full, shared = (workload.costs(HAND, kind) for kind in ("full", "shared"))
  assert full["decode"].bytes == 2 * 156 * 4 + 16 * (2 * 3 + 2 * 4)
  assert shared["decode"].bytes == 2 * 156 * 4 + 16 * (2 * 3 + 4)
  assert full["prefill"].bytes == 144 * 4 + 16 * 4
  assert shared["prefill"].bytes == 144 * 4 + 16 * 2
  assert full["update"].bytes == (2 + 8) * 156 * 4
  assert workload.decode_step(HAND, 1).bytes == 156 * 4 + 16 * 2 * 3
  half = dataclasses.replace(HAND, dtype="bfloat16")
  assert (
    2 * workload.costs(half, "full")["decode"].bytes == full["decode"].bytes
  )


def test_the_least_counts_only_tokens_that_exist(monkeypatch):
  monkeypatch.setattr(workload, "lengths", lambda work: np.array([1, 3]))
  costs = workload.costs(HAND, "least")
  # The first row reads nothing; the second attends to 2 + 1 and 2 + 2 slots.
  assert costs["decode"].flops == 2 * 144 * 2 + 16 * 7 + 24 * 4
  assert costs["log-probs"].flops == 2 * 144 * 4 + 16 * (3 + 7) + 24 * 4
  assert costs["verifier"].bytes == 5 * 4
  # In full, but without padding: 2 + 4 tokens, and 2 · 2 + 4 · 4 pairs.
  costs = workload.costs(HAND, "rows")
  assert costs["decode"].flops == 2 * 144 * 2 + 16 * 2 * (2 + 3) + 24 * 4
  assert costs["log-probs"].flops == 2 * 144 * 6 + 16 * (4 + 16) + 24 * 4


@pytest.mark.parametrize(
  ("name", "rollout", "update", "million"),
  [("S", 79, 332, 4.2), ("L", 583, 2120, 32)],
)
def test_presets_cost_what_their_floors_say(name, rollout, update, million):
  """Compares with independent counts, in GFLOP, made for other trainers."""
  work = preset(name)
  costs = workload.costs(work, "full")
  assert costs["rollout"].flops / 1e9 == pytest.approx(rollout, rel=0.01)
  assert costs["update"].flops / 1e9 == pytest.approx(update, rel=0.01)
  weights = work.layer_weights + work.head_weights
  assert weights / 1e6 == pytest.approx(million, rel=0.01)


def test_a_shared_prompt_saves_what_was_expected():
  full, shared = (
    workload.costs(preset("S"), kind)["update"].flops
    for kind in ("full", "shared")
  )
  assert 1 - shared / full == pytest.approx(0.29, abs=0.01)


def test_a_floor_is_the_slower_of_arithmetic_and_memory():
  cost = workload.Cost(flops=60.0, bytes=8.0)
  assert cost.seconds(30.0, 8.0) == 2.0
  assert cost.seconds(30.0, 2.0) == 4.0


@pytest.mark.parametrize("distribution", ["geometric", "lognormal"])
def test_lengths_have_the_mean_and_stay_within_the_slots(distribution):
  work = preset(
    "S",
    prompts=512,
    completion_len=4096,
    length_distribution=distribution,
    length_mean=36.0,
  )
  drawn = workload.lengths(work)
  assert drawn.mean() == pytest.approx(36, rel=0.1)
  assert drawn.min() >= 1
  assert drawn.std() > 25
  np.testing.assert_array_equal(drawn, workload.lengths(work))
  cut = workload.lengths(dataclasses.replace(work, completion_len=40))
  np.testing.assert_array_equal(cut, np.minimum(drawn, 40))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"heads": 3}, "hidden = heads × (an even number)"),
    ({"completion_len": 1}, "needs at least 2 slots"),
    ({"vocab": 1}, "needs at least 2 ids"),
    ({"prompts": 0}, "--prompts=0"),
  ],
)
def test_sizes_that_do_not_fit_raise(arguments, message):
  with pytest.raises(ValueError, match="--") as error:
    preset("T", **arguments)
  assert message in str(error.value)


def test_the_hosts_verifier_says_what_the_program_says():
  texts = ["2 3 4 7", "", "1"]
  shares = workload.even_share(texts, texts, [0, 0, 1], [{}, {}, {}])
  assert shares == [0.5, 0.0, 0.0]


def _run(tmp_path, *arguments):
  status, out, err = command.run(
    "benchmarks.step", *TINY, *arguments, f"--json={tmp_path / 'x.json'}"
  )
  assert status == 0, err
  assert max(map(len, out.splitlines())) <= 100
  return out, json.loads((tmp_path / "x.json").read_text())


@pytest.mark.slow
def test_the_benchmark_measures_every_part(tmp_path):
  out, results = _run(
    tmp_path,
    "--length_distribution=lognormal",
    "--length_mean=4",
    "--lanes=4",
  )
  assert set(results["phases"]) == set(workload.PHASES)
  for name, phase in results["phases"].items():
    assert f"\n{name} " in out
    assert phase["min_s"] <= phase["median_s"] <= phase["max_s"]
    assert set(phase["floors"]) == set(workload.KINDS)
    for floor in phase["floors"].values():
      assert floor["seconds"] > 0
      ratio = phase["median_s"] / floor["seconds"]
      assert floor["ratio"] == pytest.approx(ratio)
    if name != "decode":  # A difference.
      assert phase["median_s"] > 0
      assert phase["compile_s"] > 0
      assert phase["program_bytes"] > 0
  assert all(
    rate > 0 for of in results["ceilings"].values() for rate in of.values()
  )
  low, high = results["decode_step"].values()
  assert low["filled"] < high["filled"] < 12
  assert low["floors"]["full"]["flops"] < high["floors"]["full"]["flops"]
  # The step learnt from the rows that were prescribed.
  metrics, lengths = results["metrics"], results["lengths"]
  assert metrics["length/mean"] == pytest.approx(lengths["mean"])
  assert metrics["tokens/trained"] == metrics["tokens/generated"]
  assert 0 < lengths["padding"] == 1 - lengths["mean"] / 12
  assert metrics["reward/std"] > 0
  assert metrics["dead_groups"] == 0
  assert metrics["gradient_norm"] > 0
  assert list(results["rollouts"]) == ["all at once", "4 at a time", "4 lanes"]
  for name, way in results["rollouts"].items():
    assert f"rollout, {name}" in out
    tokens = way["tokens_per_s"] * way["median_s"]
    assert tokens == pytest.approx(metrics["tokens/generated"])
  step_s = results["phases"]["step"]["median_s"]
  tokens = metrics["tokens/generated"]
  assert results["tokens_per_s"] == pytest.approx(tokens / step_s)


@pytest.mark.slow
def test_the_split_step_is_measured_with_verifiers_on_the_host(tmp_path):
  out, results = _run(
    tmp_path, "--mode=split", "--staleness=1", "--verifier_s=0.01"
  )
  assert "split step (staleness 1, verifier + 0.01 s)" in out
  assert results["metrics"]["staleness/max"] == 1
  assert results["phases"]["verifier"]["min_s"] >= 0.01
  assert "time/verifier_s" in results["metrics"]
  assert results["metrics"]["unscored"] == 0
  assert results["metrics"]["gradient_norm"] > 0
  assert set(results["phases"]) == set(workload.PHASES)
  assert "compile_s" not in results["phases"]["verifier"]
