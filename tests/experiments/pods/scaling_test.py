"""Weak scaling: layouts, the formula and the page; nothing is compiled."""

import copy
import math
import types

import pytest

from experiments.pods import scaling

SMALL, LARGE = scaling.FAMILIES["0.5b-v5e"], scaling.FAMILIES["7b-v5p"]


def report(links: float = 7e9, slices: float = 0.0) -> dict:
  """Report of a step of two phases on eight chips."""

  def phase(flops, hbm, links_s, slices_s):
    seconds = {"flops": flops, "hbm": hbm, "links": links_s}
    return {
      "seconds": seconds | {"slices": slices_s},
      "sent_bytes": links / 2,
      "slices_bytes": slices / 2,
      "at_least_s": max(flops, hbm, links_s, slices_s),
    }

  return {
    "fits": True,
    "phases": {
      "decode": phase(0.1, 1.5, 0.0, 0.0),
      "update": phase(0.3, 0.2, 0.35, 0.0 if not slices else 0.5),
    },
    "in_token_loop": {"collectives": 1023, "sent_bytes": 0},
    "hbm": {
      "parameters": 160,
      "optimizer": 320,
      "reference": 160,
      "temporary": 1000,
      "total": 1640,
    },
  }


@pytest.mark.parametrize(
  ("family", "num_chips", "topology", "num_slices", "mesh"),
  [
    (SMALL, 8, "v5e:2x4", 1, (1, 8, 1)),
    (SMALL, 128, "v5e:8x16", 1, (1, 128, 1)),
    # No more than 128 devices divide the width.
    (SMALL, 256, "v5e:16x16", 1, (2, 128, 1)),
    # The largest slice: from here on data goes over the data centre's network.
    (SMALL, 512, "v5e:16x16", 2, (4, 128, 1)),
    (SMALL, 8192, "v5e:16x16", 32, (64, 128, 1)),
    (LARGE, 8, "v5p:2x2x2", 1, (1, 2, 4)),
    (LARGE, 4096, "v5p:16x16x16", 1, (16, 64, 4)),
    (LARGE, 8192, "v5p:16x16x16", 2, (32, 64, 4)),
  ],
)
def test_fsdp_is_within_a_slice_and_data_beyond(
  family, num_chips, topology, num_slices, mesh
):
  of = scaling.layout(family, num_chips)
  assert (of.topology, of.num_slices) == (topology, num_slices)
  assert tuple(of.mesh.values()) == mesh
  assert math.prod(mesh) == num_chips
  assert of.mesh["data"] % num_slices == 0


@pytest.mark.parametrize("family", [SMALL, LARGE])
def test_a_chip_has_the_same_work_at_every_size(family):
  for num_chips in scaling.SIZES:
    of = scaling.layout(family, num_chips)
    assert of.num_prompts == family.prompts * num_chips
    assert of.micro_batch_size == family.rows * num_chips
    # Micro-batches are whole rows of each device that rows are split over.
    assert of.micro_batch_size % (of.mesh["data"] * of.mesh["fsdp"]) == 0
    given = scaling.arguments(family, num_chips)
    assert f"--config.rl.num_prompts={of.num_prompts}" in given
    assert f"--slices={of.num_slices}" in given


def test_a_size_without_a_slice_is_refused():
  with pytest.raises(ValueError, match="24 chips of v5e are no whole number"):
    scaling.layout(SMALL, 24)


def test_the_formula_of_a_larger_slice_is_that_worked_out_by_hand():
  eight, many = (scaling.layout(SMALL, n) for n in (8, 64))
  found = scaling.estimate(report(), eight, many)
  # A ring of 64 in the place of one of 8: (63 / 64) / (7 / 8) = 9 / 8.
  update = found["phases"]["update"]
  assert update["sent_bytes"] == pytest.approx(3.5e9 * 9 / 8)
  assert update["at_least_s"] == pytest.approx(0.35 * 9 / 8)
  assert found["phases"]["decode"]["at_least_s"] == 1.5
  # 640 bytes of state among eight times as many.
  assert found["hbm"]["total"] == 1000 + 640 / 8
  assert report() == report()
  one = scaling.point(found, many, 64, False)
  assert one.seconds == pytest.approx(1.5 + 0.35 * 9 / 8)
  assert one.bounds["links"] == pytest.approx(0.35 * 9 / 8)
  assert one.state == 80
  assert one.network == ("decode", 0.0, 1.5)


def test_the_formula_of_more_slices_is_that_worked_out_by_hand():
  two, four = (scaling.layout(SMALL, n) for n in (512, 1024))
  found = scaling.estimate(report(slices=8e9), two, four)
  # A ring of 4 slices in the place of one of 2: (3 / 4) / (1 / 2) = 3 / 2.
  assert found["phases"]["update"]["slices_bytes"] == pytest.approx(6e9)
  assert found["phases"]["update"]["at_least_s"] == pytest.approx(0.75)
  assert found["hbm"] == report()["hbm"]
  one = scaling.point(found, four, 1024, False)
  assert one.network == ("update", pytest.approx(0.75), pytest.approx(0.35))
  with pytest.raises(ValueError, match="1 and 2 slices"):
    scaling.estimate(report(), scaling.layout(SMALL, 8), two)


def test_what_is_not_compiled_is_estimated_from_the_nearest_and_marked():
  reports = {8: report(), 256: report(links=9e9), 512: report(slices=8e9)}
  before = copy.deepcopy(reports)
  found = scaling.points(SMALL, reports)
  assert reports == before
  assert [one.num_chips for one in found] == list(scaling.SIZES)
  assert [n.num_chips for n in found if n.compiled] == [8, 256, 512]
  at = {one.num_chips: one for one in found}
  assert at[16].sent == pytest.approx(7e9 * (15 / 16) / (7 / 8))
  assert at[128].sent == pytest.approx(9e9)
  assert at[1024].away == pytest.approx(8e9 * 1.5)
  # Nothing is said of several slices where none was compiled.
  assert [one.num_chips for one in scaling.points(SMALL, {8: report()})] == [
    *(8, 16, 32, 64, 128, 256)
  ]
  text = scaling.table(found)
  assert text.count("compiler") == 3
  assert text.count("*formula*") == 8


def test_the_page_and_the_records_that_are_committed_agree():
  every = {
    name: scaling.read(name, scaling.FOLDER) for name in scaling.FAMILIES
  }
  for name, family in scaling.FAMILIES.items():
    assert scaling.points(family, every[name])[0].num_chips == 8
    assert sorted(every[name]) == sorted(family.compiled)
    for num_chips, results in every[name].items():
      of = scaling.layout(family, num_chips)
      assert results["topology"] == of.topology
      assert results["slices"] == of.num_slices
      assert results["num_prompts"] == of.num_prompts
      assert results["micro_batch_size"] == of.micro_batch_size
      assert results["mesh"] == {"expert": 1, **of.mesh}
  page = scaling.FOLDER.with_suffix(".md").read_text("utf-8")
  assert page == scaling.page(every)


def test_how_far_the_formula_is_off_is_said():
  eight, many = (scaling.layout(SMALL, n) for n in (8, 64))
  reports = {8: report(), 64: scaling.estimate(report(), eight, many)}
  assert scaling.errors(SMALL, {8: report()}) is None
  assert scaling.errors(SMALL, reports) == pytest.approx((0, 0, 0))
  reports[64]["hbm"]["total"] *= 2
  seconds, sent, memory = scaling.errors(SMALL, reports)
  assert (seconds, sent) == pytest.approx((0, 0))
  assert memory > 0.4
  page = scaling.page({"0.5b-v5e": reports})
  assert "is off by at most 0% in time" in page
  missing = "Not shown: 512, 1,024, 2,048, 4,096, 8,192 chips."
  assert missing in page
  reports[512] = report(slices=8e9)
  page = scaling.page({"0.5b-v5e": reports})
  assert "The second network begins between 256 and 512 chips: 8.00 GB" in page
  assert "so it bounds that phase" in page
  assert "bends" not in page.split("## What decides")[0]
  reports[512]["phases"]["decode"]["at_least_s"] = 9.0
  page = scaling.page({"0.5b-v5e": reports})
  assert "The line bends between 64 and 512 chips" in page
  assert "`decode` goes from 1.500 s to 9.000 s" in page


def test_the_command_refuses_a_size_that_is_not_there(monkeypatch):
  holder = types.SimpleNamespace(value=["0.5b-v5e-24"])
  monkeypatch.setattr(scaling, "_COMPILE", holder)
  with pytest.raises(ValueError, match=r"no size '0\.5b-v5e-24'; needs"):
    scaling.main([])


@pytest.mark.slow
def test_the_figure_has_a_panel_for_each_number(tmp_path):
  from matplotlib import image

  found = {"0.5b-v5e": scaling.points(SMALL, {8: report()})}
  scaling.plot(found, tmp_path / "x.png")
  assert image.imread(tmp_path / "x.png").std() > 0.05  # Not blank.
