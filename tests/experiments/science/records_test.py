"""Numbers that experiments keep of their runs, and scores made of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.science import (
  bias,
  curricula,
  entropy,
  experiments,
  experts,
  flips,
  judges,
  ladder,
  lengths,
  planted_errors,
  proxy,
  rounding,
  stages,
  staleness,
  vision,
)
from grpo_jax.training.evaluation import generation


def results(module, folder, **seeds):
  """The results of arms with these seeds; "_" stands for "-"."""
  for name, found in seeds.items():
    text = json.dumps({"seeds": found, "seconds": 60})
    (folder / f"{name.replace('_', '-')}.json").write_text(text)
  return module.Results(folder)


def test_a_halted_run_is_as_its_last_checkpoint_until_the_end(tmp_path):
  def seed(biased, kept, halted=""):
    found = {"steps": [5 * i for i in range(len(biased))], "biased": biased}
    found["unknown"] = [0.9 - x for x in biased]
    return {**found, "kept": kept, "halted": halted}

  free = [seed([0.0, 0.1, 0.2, 0.3], 15)] * 5
  halted = [seed([0.0, 0.3], 0, "fell")] * 4
  halted = [seed([0.0, 0.02, 0.4], 5, "fell"), *halted]
  arm = "mixed-p05-kl001-canaries"
  found = results(bias, tmp_path, **{"mixed-p05-kl001-none": free, arm: halted})
  steps, values = found.curve(arm)
  assert steps.tolist() == [0, 5, 10, 15]
  assert values.tolist() == [[0.0, 0.02, 0.02, 0.02]] + [[0.0] * 4] * 4
  assert found.scores(arm, "rise").tolist() == [0.02, 0, 0, 0, 0]
  text = experiments.markdown(bias, found)
  assert f"- `{arm}`: 5 of 5 runs; kept is 4 × step 0, 1 × step 5." in text
  assert "Every check that could be made holds." in text


def test_an_area_is_that_of_trapezoids(tmp_path):
  def measured(accuracy):
    names = [f"eval/domain/{x}/accuracy" for x in curricula.DOMAINS]
    return dict.fromkeys(names, accuracy / 2) | {"eval/accuracy": accuracy}

  def log(ends):
    lines = [measured(0.1)]
    for end in ends:
      lines += [{"dead_groups": 0.25}, {"dead_groups": 0.75} | measured(end)]
    return curricula.of_run(lines)

  found = results(
    curricula, tmp_path, uniform=[log((0.2, 0.5))] * 2, spo=[log((0.4, 0.7))]
  )
  assert found.completions("spo").tolist() == [0, 5120, 10240]
  np.testing.assert_allclose(found.scores("uniform", "area/all"), 0.25)
  np.testing.assert_allclose(found.scores("uniform", "end/digits_4"), 0.25)
  np.testing.assert_allclose(found.scores("uniform", "live"), 0.5)
  assert found.scores("spo", "live") is None
  assert curricula.embedding(curricula.SIZES["full"]) == [
    *("--num_prompts=1024", "--num_clusters=32", "--least=8")
  ]


def test_a_rebound_is_from_an_inner_minimum_to_the_end():
  curves = np.array(
    [
      [1.0, 0.5, 0.4, 0.6],  # Comes back.
      [1.0, 0.5, 0.45, 0.4],  # Is least at the end,
      [0.4, 0.5, 0.6, 0.7],  # or at the beginning.
      [1.0, 0.8, 0.9, 0.8],  # The first of two that are least.
    ]
  )
  np.testing.assert_allclose(entropy.rebound(curves), [1.5, 1, 1, 1])
  steps = np.arange(40.0)[None]
  np.testing.assert_allclose(entropy.windows(steps)[0], 1.5 + 4 * np.arange(10))


def test_numbers_before_corrections_count(tmp_path):
  lines = [{"phase": "sft", "loss": 1.0}, {"phase": "rl", "eval/accuracy": 0.1}]
  for step in range(20):
    line = {"phase": "rl", "entropy/mean": 1.0 - step / 50, "accuracy": 0.9}
    line["dead_groups"] = None if step == 3 else 0.5
    lines.append(line)
  drafts = {"draft_accuracy": 0.2, "draft_dead_groups": 0.8, "made_live": 0.6}
  corrected = [
    x | {f"correction/{k}": v for k, v in drafts.items()} for x in lines
  ]
  passes = {"passes": [[0.2, 0.6], [0.3, 0.7]]}
  found = results(
    entropy,
    tmp_path,
    base=[{"passes": [[0.1, 0.5]]}],
    grpo=[entropy.of_run(lines) | passes],
    edge_gec=[entropy.of_run(lines[:2] + corrected[2:]) | passes],
  )
  assert found.arms == ["grpo", "edge-gec"]
  np.testing.assert_allclose(found.passes("grpo", "pass@16"), [[0.5, 0.6, 0.7]])
  assert found.series("grpo", "accuracy")[0, 0] == 0.9
  assert found.series("edge-gec", "accuracy")[0, 0] == 0.2
  assert found.series("grpo", "made_live") is None
  assert found.series("grpo", "held_out").tolist() == [[0.1]]
  np.testing.assert_allclose(found.scores("edge-gec", "made_live"), 0.75)
  np.testing.assert_allclose(found.scores("grpo", "rebound"), 1)
  assert found.scores("gtpo", "rebound") is None


def test_experts_draw_for_the_arms_that_need_them(tmp_path):
  def seeds(*values, phases=None):
    return [
      {
        "steps": list(range(len(row))),
        "phases": phases or ["rl"] * len(row),
        "accuracy": dict.fromkeys(experts.DOMAINS, row),
        "tokens": {"rl": 100, "keep": 10},
      }
      for row in values
    ]

  phases = [f"on_{domain}" for domain in experts.DOMAINS]
  found = results(
    experts,
    tmp_path,
    mixed=seeds([0.1, 0.5], [0.1, 0.6]),
    opd_full=seeds([0.1, 0.7], [0.1, 0.8]),
    sequential=seeds([0.4, 0.3, 0.2, 0.1], phases=phases),
    **{name: seeds([0.1, 0.9]) for name in experts.EXPERTS},
  )
  np.testing.assert_allclose(found.scores("mixed", "macro"), [0.5, 0.6])
  # Of the first three domains, after their own phases 0.4, 0.3 and 0.2.
  np.testing.assert_allclose(found.scores("sequential", "forgotten"), -0.2)
  assert found.scores("mixed", "cosine") is None
  assert found.tokens("opd-full") == 110 + 4 * 100
  lines = [{"phase": "rl", "tokens/generated": 7.0}] * 2
  assert experts.of_run(lines)["tokens"] == {"rl": 14}


def test_all_ways_to_one_model_draw_as_many_completions():
  def drawn(name):
    config = experts.get_config(name)
    phases = [config[x] for x in config.phases]
    return sum(
      x.steps * x.num_prompts * x.group_size
      for x in phases
      if x.kind != "supervised"
    )

  budget, size = drawn("mixed"), experts.SIZES["full"]
  assert budget == drawn("sequential") == size.steps * 32 * 8
  trained = len(experts.EXPERTS) * budget * size.expert_steps // size.steps
  assert drawn("opd-full") == drawn("opd-token") == budget - trained
  assert drawn("sft-experts") == 0
  assert sum(map(drawn, experts.EXPERTS)) == budget


@pytest.mark.parametrize("module", [flips, planted_errors])
def test_the_policy_is_evaluated_after_its_critic(module, tmp_path):
  """The completions of the critic count where curves are drawn."""

  def log(values, critic=0):
    lines = [{"phase": "value", "eval/accuracy": 0.5}] * critic
    lines.append({"phase": "rl", "reward/mean": 1.0})
    lines += [{"phase": "rl", "eval/accuracy": x} for x in values]
    return flips.of_run(lines)

  arm, ppo = ("grpo-0", "ppo-0") if module is flips else ("grpo", "ppo")
  values = [0.25, 0.5, 0.75, 0.75, 0.75]
  seeds = {arm: [log(values)] * 2, ppo: [log(values[1:], critic=1)] * 2}
  found = results(module, tmp_path, **seeds)
  assert found.completions(arm).tolist() == [0, 2560, 5120, 7680, 10240]
  assert found.completions(ppo).tolist() == [2560, 5120, 7680, 10240]
  assert found.scores(ppo, "after").tolist() == [0.75] * 2
  if module is planted_errors:
    # Trapezoids over quarters; PPO stands at 0.5 for the first one.
    assert found.scores(arm, "area")[0] == pytest.approx(0.625)
    assert found.scores(ppo, "area")[0] == pytest.approx(0.65625)


def test_an_opinion_is_of_the_last_steps(tmp_path):
  lines = [{"phase": "sft", "loss": 1.0}, {"phase": "rl", "eval/accuracy": 0.5}]
  for step in range(2, 52):
    line = {"phase": "rl", "reward/accuracy": 0.25, "reward/judge": step / 100}
    if step in (26, 51):
      line |= {"eval/accuracy": 0.9, "eval/domain/sort/accuracy": step / 100}
    lines.append(line)
  found = results(judges, tmp_path, by_truth=[judges.of_run(lines)] * 2)
  assert found.series("by-truth", "accuracy")[0, 0] == 0.5
  known = {"early": 0.26, "accuracy": 0.51, "opinion": 0.465, "gap": 0.215}
  for what, value in known.items():
    np.testing.assert_allclose(found.scores("by-truth", what), value, atol=1e-6)


def test_numbers_are_at_equal_updates_and_at_equal_completions(tmp_path):
  def log(rise, per_step):
    lines = [
      dict.fromkeys((x[-1] for x in ladder.LOGGED.values()), 0.25)
      | {"completions/generated": per_step, "accuracy": rise * step}
      | ({"drawn/accuracy": rise * step / 2} if per_step > 128 else {})
      for step in range(1, 21)
    ]
    return ladder.of_run([{"eval/accuracy": 0.0}, *lines])

  arms = {"grpo": 128.0, "dapo": 256.0}
  seeds = {x: [log(0.01, n), log(0.02, n)] for x, n in arms.items()}
  found = results(ladder, tmp_path, **seeds)
  # Steps 11 to 20; and of DAPO, which draws twice as many, 1 to 10.
  for what, grpo, dapo in (
    ("accuracy", 0.155, 0.0775),
    ("equal/accuracy", 0.155, 0.0275),
    ("start/accuracy", 0.055, 0.0275),
    ("drawn", 2560, 5120),
    ("truncated", 0.25, 0.25),
  ):
    np.testing.assert_allclose(found.scores("grpo", what)[0], grpo)
    np.testing.assert_allclose(found.scores("dapo", what)[0], dapo)
  assert found.scores("mask", "accuracy") is None


def test_excess_length_reduction_by_hand():
  """0 as long as the baseline, 1 as short as the start; Section 4's 10.9k."""
  start, baseline = np.full(5, 10.9), np.full(5, 14.8)
  other = np.array([14.8, 10.9, 12.85, 7.0, 18.7])
  np.testing.assert_allclose(
    lengths.excess_length_reduction(start, baseline, other),
    [0, 1, 0.5, 2, -1],
    atol=1e-12,
  )
  assert np.isnan(lengths.excess_length_reduction(baseline, start, other)).all()
  kept = {x: lengths.get_config(x).algorithm for x in lengths.FILTERED}
  assert [(x.metric, x.num_kept) for x in kept.values()] == [
    *[("length", 8)] * 2,
    *(("length", 4), ("efficiency", 8), ("adaptive", 8)),
  ]


def test_a_growth_is_from_the_first_steps_to_the_last(tmp_path):
  line = np.linspace(5.0, 9.0, 39)
  names = ("accuracy", "length", "right")
  seed = dict.fromkeys(names, [10.0] * 10 + [20.0] * 30)
  seed["wrong"] = [None, *line]
  found = results(lengths, tmp_path, all=[seed], adaptive=[seed])
  assert found.scores("all", "growth/length").tolist() == [10]
  assert found.scores("adaptive", "elr").tolist() == [0]
  # Of 39 even steps from 5: the last 20 minus the 4 of the first 5.
  growth = found.scores("all", "growth/wrong")
  assert growth[0] == pytest.approx(line[-20:].mean() - line[:4].mean())


def test_a_reward_model_that_learns_again_counts_from_another_zero(tmp_path):
  lines = [{"phase": "sft", "loss": 1.0}]
  for iteration in range(proxy.ITERATIONS):
    held_out = {"eval/accuracy": 0.5 - 0.05 * iteration}
    held_out |= {"eval/reward/ascending": 0.75, "eval/reward/f1": 0.5}
    lines.append({"phase": "preference", "reward/mean": 9.0})
    # Each iteration begins with the evaluation that ended the one before.
    lines.append({"phase": "rl", **held_out})
    for step in range(25):
      number = 25 * iteration + step + 1
      drawn = {"reward/mean": 0.0, "reward/accuracy": number / 150}
      drawn |= {"reward/ascending": 0.5, "reward/f1": 0.5}
      drawn["reward/reward_model"] = 10.0 * iteration + step
      drawn["reward_model/accuracy"] = None if number < 100 else 0.25
      last = {"eval/accuracy": 0.45 - 0.05 * iteration}
      drawn |= held_out | last if step == 24 else {}
      lines.append({"phase": "rl", **drawn})
  kept = proxy.of_run(lines)
  assert kept["gains"] == [24.0] * proxy.ITERATIONS
  assert kept["steps"] == [1, *range(5, 151, 5)]
  assert kept["curves"]["agreement"][:2] == [None, None]
  found = results(proxy, tmp_path, kl0_r0=[kept] * 2, kl0_once=[kept] * 2)
  accuracy = found.held_out("kl0-r0", "accuracy")
  np.testing.assert_allclose(accuracy, [0.5 - 0.05 * np.arange(7)] * 2)
  text = " ".join(experiments.markdown(proxy, found).split())
  assert "| `kl0-r0` | 2 | 0.500 | 0.500 | 0.200 | 0.250 | 0.550 [" in text
  assert "| 24.00 | 0.25 | 1.0 |" in text
  assert "0.25, 0.20 if it learned once" in text


@pytest.mark.parametrize("module", [rounding, staleness])
def test_means_are_over_parts_of_the_steps(module, tmp_path):
  plain, weighed = (
    ("exact-none", "int8-tis") if module is rounding else ("none-s0", "tis-s16")
  )

  def log(end, is_weighed):
    lines = [{"phase": "rl", "eval/accuracy": 0.5}]
    for step in range(24):
      line = {"phase": "rl", "tokens/generated": 100, "tokens/trained": 80}
      line |= {"sampler_gap/mean": 0.1 * (step // 12), "entropy/mean": 0.3}
      line |= {"policy_weight/mean": 0.9} if is_weighed else {}
      if step % 4 == 3:
        line["eval/accuracy"] = end if step > 7 else 0.4
      lines.append(line)
    return module.of_run(lines)

  seeds = {plain: [log(0.7, False)] * 2, weighed: [log(0.6, True)] * 2}
  seeds["base"] = [module.of_run([{"phase": "sft"}])] * 2
  found = results(module, tmp_path, **seeds)
  assert found.arms == [plain, weighed]
  for what, value in {
    "start": 0.5,
    "least": 0.4,
    "end": 0.6,
    "gap": 0.05,
  }.items():
    np.testing.assert_allclose(found.scores(weighed, what), value)
  assert found.series(plain, "weight") is None
  assert found.series(weighed, "weight").shape == (2, staleness.PARTS)
  assert found.mean(plain, "weight") == "–"
  if module is staleness:
    assert found.trained(weighed) == pytest.approx(0.8)


def test_stages_count_the_tokens_that_were_drawn(tmp_path):
  lines = [{"eval/accuracy": 0.2}, {"tokens/generated": 1e5}]
  lines.append({"tokens/generated": 1e5, "eval/accuracy": 0.5})
  kept = stages.of_run(lines)
  assert kept == [[0.0, 0.2], [2e5, 0.5]]
  position = generation.position_of(stages.kept(tmp_path))
  position.parent.mkdir()
  assert stages.num_drawn(tmp_path) is None
  for prompts, expected in ((7, None), (stages.NUM_DRAWN, 123)):
    done = {"prompts": prompts, "tokens": 123}
    position.write_text(json.dumps({"done": done}))
    assert stages.num_drawn(tmp_path) == expected
  seeds = {"rl-0": [kept] * 2, "sft-512": [[[0, 0.45], [1e5, 0.8]]] * 2}
  found = results(stages, tmp_path, **seeds)
  assert (found.arms, found.all_minutes) == (["rl-0", "sft-512"], 2)
  text = experiments.markdown(stages, found)
  assert "| 512: 0.450 | 0.20 million tokens |" in text


def test_an_overlap_is_the_other_half_of_the_reward(tmp_path):
  def log(*accuracies):
    lines = [{"phase": "rl", "loss": 1.0}]
    for x in accuracies:
      line = {}
      for place, domain in enumerate(vision.DOMAINS):
        line[f"eval/domain/{domain}/accuracy"] = x + place / 100
        line[f"eval/domain/{domain}/reward"] = x + place / 100 + 0.05
      lines.append(line)
    return vision.of_run(lines)

  found = results(vision, tmp_path, grpo=[log(0.4, 0.5)] * 2)
  one = found.scores("grpo", ("count_colours",), "overlap")
  np.testing.assert_allclose(one, 0.62, atol=1e-4)
  warm = found.scores("base", vision.IN_DOMAIN)
  np.testing.assert_allclose(warm, 0.405, atol=1e-4)
  assert found.scores("sft-examples", vision.IN_DOMAIN) is None
