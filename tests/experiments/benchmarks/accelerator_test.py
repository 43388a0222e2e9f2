"""The command for a quarter of an hour on an accelerator."""

import os
import time

import pytest

from experiments.benchmarks import accelerator, accelerator_items
from experiments.benchmarks.accelerator_items import Item
from tests.experiments import command

_MACHINE = {
  "tiny": False,
  "date": "2026-11-28",
  "commit": "0123",
  "card": "a card, 580.1, 141 GB",
  "cores": 16,
  "versions": {"Python": "3.12"},
}
# A library that is there, as items name it.
_NEEDS = ("json",)


def measured(end: str) -> dict[str, float]:
  """A row that ends in some way; called in the process of an item."""
  if end == "raises":
    raise ValueError("no kernel\nof this size")
  if end == "dies":
    os.write(2, b"the driver has reset the device")
    os.kill(os.getpid(), 9)
  if end == "hangs":
    time.sleep(600)
  return {"tokens/s": 2.0}


def _item(name, ends, limit_s=60.0, needs=_NEEDS):
  rows = {f"it {end}": {"end": end} for end in ends}
  return Item(name, "", f"{__name__}:measured", needs, limit_s, rows)


def _measured(tmp_path, items, lacking, budget_s=120.0):
  lines = tmp_path / "accelerator.jsonl"
  lines.write_text("{}\n")
  accelerator.measure(items, lacking, budget_s, lines)
  return accelerator.read(lines)[1:]


@pytest.mark.slow
def test_no_row_stops_those_after_it(tmp_path, monkeypatch):
  monkeypatch.setattr(accelerator, "_LEAST_S", 0.1)
  items = [
    _item("first", ["hangs", "waits"], limit_s=1.0),
    _item("second", ["raises", "dies", "ends"]),
    _item("third", ["ends"], needs=("json", "torch")),
  ]
  start = time.monotonic()
  lines = _measured(tmp_path, items, {"json": "", "torch": "not installed"})
  assert time.monotonic() - start < 60
  # In the order of items and rows.
  assert [(line["item"], line["row"]) for line in lines] == [
    (item.name, row) for item in items for row in item.rows
  ]
  hung, waited, raised, died, ended, left_out = lines
  assert hung["error"].startswith("timed out")
  assert waited["error"] == accelerator.NO_TIME
  assert raised["error"] == "ValueError: no kernel\nof this size"
  assert "status -9\nthe driver has reset the device" in died["error"]
  assert ended["result"] == {"tokens/s": 2.0}
  assert left_out["error"] == "left out: not installed"


def test_items_end_with_the_budget(tmp_path):
  items = [_item("first", ["ends"]), _item("second", ["ends"])]
  lines = _measured(tmp_path, items, {"json": ""}, budget_s=1.0)
  assert [line["error"] for line in lines] == [accelerator.NO_TIME] * 2


def test_the_page_has_ratios_failures_and_what_is_open():
  items = {item.name: item for item in accelerator_items.ITEMS}
  ceilings, decoding, torchs = (
    items[name] for name in ("Ceilings", "Decoding", "Decoding by transformers")
  )
  floors = {"seconds": 3e-3, "flops": 1e9, "bytes": 4e9}
  shown = {"tokens/s": 50.0, "floors": {"a token": floors}}
  rows = [
    (ceilings, "product in bfloat16", {"result": {"TFLOP/s": 100.0}}),
    (ceilings, "copy", {"result": {"GB/s": 2000.0}}),
    (decoding, "7B, 64 rows", {"result": shown}),
    (decoding, "7B, 256 rows", {"error": "RuntimeError: out of memory"}),
    (decoding, "0.5B, 64 rows", {"error": accelerator.NO_TIME}),
    (torchs, "7B, 64 rows", {"result": {"tokens/s": 20.0}}),
  ]
  text = accelerator.page(
    [_MACHINE, *({"item": i.name, "row": r, **said} for i, r, said in rows)],
    [ceilings, decoding, torchs],
  )
  # 4 GB take 2 ms at 2 TB/s, and 1 GFLOP less; 50 tokens are 2.5 times 20.
  assert "| 7B, 64 rows | 50 | 3 | 1.5 | 2.5 |" in text
  failed, left = text.split("## What failed")[1].split("## What stays open")
  assert "**Decoding: 7B, 256 rows**" in failed
  assert "RuntimeError: out of memory" in failed
  assert left.strip() == "- Decoding: 0.5B, 64 rows: no time left"
  assert "a card, 580.1, 141 GB" in text
  assert "rehearsal" not in text


@pytest.mark.slow
def test_a_rehearsal_measures_every_item(tmp_path):
  program, folder = "benchmarks.accelerator", f"--folder={tmp_path}"
  status, out, err = command.run(program, folder, "--items=^Ceil")
  assert status == 1, out
  assert "jax sees no accelerator" in out
  assert "nothing can be measured here" in err
  assert not [*tmp_path.iterdir()]
  status, out, err = command.run(program, "--tiny", folder, "--budget_s=3000")
  assert status == 0, err
  _, *lines = accelerator.read(tmp_path / "accelerator.jsonl")
  names = dict.fromkeys(line["item"] for line in lines)
  assert [*names] == [item.name for item in accelerator_items.ITEMS]
  for line in lines:
    assert "result" in line or line["error"].startswith("left out"), line
  text = (tmp_path / "accelerator.md").read_text()
  assert "A rehearsal with tiny sizes" in text
  assert "× floor" in text
  (tmp_path / "accelerator.md").unlink()
  status, _, err = command.run(program, "--render", folder)
  assert status == 0, err
  assert (tmp_path / "accelerator.md").read_text() == text
