"""Meshes and what fits: spelling, candidates, ranking, and what to change."""

import dataclasses

import pytest

from experiments.pods import advice, chips, meshes, ranking, steps
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.model import MeshConfig
from tests.experiments import tiny_config


@pytest.fixture(scope="module")
def config() -> config_lib.RunConfig:
  made = tiny_config.get_config("grpo")
  made.phases = ("rl",)
  made.model.num_kv_heads = made.model.num_heads = 2
  return config_lib.resolve(made)


def test_a_mesh_has_one_spelling():
  assert meshes.parse("fsdp:16,tensor:4") == {"fsdp": 16, "tensor": 4}
  assert meshes.parse("") == {}
  assert meshes.spelled({"tensor": 4, "fsdp": 16, "data": 1}) == (
    "fsdp:16,tensor:4"
  )
  assert meshes.spelled({}) == "data:1"
  assert meshes.arguments("fsdp:2") == ["--config.mesh.fsdp=2"]
  with pytest.raises(ValueError, match=r"--mesh=auto: experiments.pods.report"):
    meshes.parse("auto")
  for wrong in ("fsdp=16", "fsdp:0", "fsdp:x", "model:2"):
    with pytest.raises(ValueError, match="is no axis; needs NAME:SIZE"):
      meshes.parse(wrong)


def test_a_mesh_is_compared_with_the_chips():
  mesh = MeshConfig(fsdp=4, tensor=2)
  assert meshes.whole(mesh, 16)["data"] == 2
  assert meshes.whole(mesh, 16, 2)["data"] == 2
  with pytest.raises(ValueError, match=r"is not 12 .*=fsdp:6,tensor:2"):
    meshes.whole(mesh, 12)
  with pytest.raises(ValueError, match="does not split over 4 slices"):
    meshes.whole(mesh, 16, 4)


def test_candidates_split_rows_and_heads():
  found = [meshes.spelled(x) for x in meshes.candidates(16, 1, 2)]
  assert found == ["fsdp:16", "data:16", "fsdp:8,tensor:2", "data:8,tensor:2"]
  found = [meshes.spelled(x) for x in meshes.candidates(16, 2, 1, 4)]
  assert found == ["data:2,fsdp:8", "data:2,fsdp:2,expert:4", "data:16"]
  for sizes in meshes.candidates(64, 2, 8, 128):
    whole = meshes.whole(MeshConfig(**sizes), 64, 2)
    assert whole == sizes


def made_report(name, config, target):
  """Figures that depend on the mesh alone."""
  del name, target
  mesh = config.mesh
  if mesh.data == 4:
    return {"fits": False, "compiler": "Used 17.00G of 16.00G hbm."}
  seconds = {"flops": 1.0 / mesh.tensor, "hbm": 0.1}
  at_least = max(seconds.values())
  return {
    "fits": True,
    "at_least_s": at_least,
    "chips": 4,
    "update": "update of rl: in words.",
    "hbm": {"total": 2**30 * mesh.fsdp},
    "phases": {"decode": {"seconds": seconds, "at_least_s": at_least}},
  }


def test_meshes_are_ranked_and_the_command_is_printed(
  config, capsys, monkeypatch
):
  monkeypatch.setattr(advice, "needed", lambda config, mesh: 2**30)
  of = steps.Target(chips.parse("v5e-4"), 1, [None] * 4)
  rows = ranking.rank(made_report, config, of)
  given = ["--config=pods", "--config.rl.steps=5"]
  verdict, _, *table = ranking.lines(rows, config, of, given, price=3.6)
  assert verdict.startswith("verdict: take --mesh=data:2,tensor:2 on v5e-4: a ")
  assert "at least 0.5 s, with 1.00 of 16.00 GiB" in verdict
  assert table[0].split()[:3] == ["data:2,tensor:2", "0.5", "1.00"]
  assert table[0].endswith("decode (flops)")
  assert table[-1] == (
    "  python -m experiments.launch.skypilot run --name=NAME --topology=v5e-4"
    " --mesh=data:2,tensor:2"
    " --workdir=gs://BUCKET/NAME --config=pods -- --config.rl.steps=5"
  )
  assert "Used 17.00G of 16.00G hbm." in "\n".join(table)
  assert (
    "a step costs at least 0.002, 1,000 steps 2 (4 chips, 3.6 an hour each)"
    in table
  )
  assert "update of rl: in words." in table
  assert "data:4: Used 17.00G" in capsys.readouterr().err


def test_where_no_mesh_fits_the_first_line_says_so(config, monkeypatch):
  monkeypatch.setattr(advice, "changes", lambda *_: [])
  of = steps.Target(chips.parse("v5e-4"), 1, [None] * 4)
  rows = [ranking.Row({"data": 1, "fsdp": 4, "tensor": 1}, None, 2**40, "no")]
  verdict, *_, last = ranking.lines(rows, config, of, [])
  assert verdict.startswith("verdict: none of 1 meshes of v5e-4 fits; the near")
  assert last == advice.lines([])[0]


def test_what_to_change_is_tried_alone_and_then_together(config, monkeypatch):
  def needed(config, mesh) -> int:
    del mesh
    lanes = config.sampling.lanes or config.section("rl").num_rows
    return config.section("rl").num_prompts * 100 + lanes

  monkeypatch.setattr(advice, "needed", needed)
  assert needed(config, None) == 416
  (change,) = advice.changes(config, 1, 1, 208)
  assert change.flags == "--config.rl.num_prompts=2"
  assert (change.needed, change.fits) == (208, True)
  (change,) = advice.changes(config, 1, 1, 204)
  both = "--config.sampling.lanes=4 --config.rl.num_prompts=2"
  assert (change.flags, change.needed) == (both, 204)
  hopeless = advice.changes(config, 1, 1, 1)
  assert {change.needed for change in hopeless} == {404, 208}
  assert "take more chips" in advice.lines(hopeless)[-1]


def test_a_run_with_room_is_told_what_makes_it_faster(config, monkeypatch):
  """The largest micro-batch that fits, and what is computed or drawn once."""

  def needed(config, mesh) -> int:
    del mesh
    return config.section("rl").micro_batch_size

  monkeypatch.setattr(advice, "needed", needed)
  config = config.with_section(
    "rl",
    num_prompts=24,
    group_size=4,
    num_minibatches=1,
    micro_batch_size=1,
  )
  config = dataclasses.replace(
    config,
    mesh=type(config.mesh)(fsdp=4),
    model=dataclasses.replace(config.model, remat="full"),
    sampling=dataclasses.replace(config.sampling, lanes=4),
  )
  found = advice.faster(config, 4, 1, 40)
  assert [change.flags for change in found] == [
    "--config.rl.micro_batch_size=32",
    "--config.model.remat=none",
    "--config.sampling.lanes=96",
  ]
  assert "of a gradient step: 3, not 24;" in found[0].why
  # Already as large as it may be.
  config = config.with_section("rl", micro_batch_size=96)
  found = advice.faster(config, 4, 1, 95)
  assert advice.faster_lines(found) == []


@pytest.mark.parametrize("tensor", [1, 2])
def test_positions_are_split_where_devices_share_heads(
  config, monkeypatch, tensor
):
  monkeypatch.setattr(
    advice, "needed", lambda config, mesh: 9 - config.model.split_positions
  )
  mesh = type(config.mesh)(tensor=tensor)
  found = advice.changes(dataclasses.replace(config, mesh=mesh), tensor, 1, 8)
  flags = [change.flags for change in found]
  assert flags == ["--config.model.split_positions=True"][: tensor - 1]
