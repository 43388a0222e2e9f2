"""Comparing logits: what passes, what fails, and what cannot be compared."""

import pathlib

import numpy as np
import pytest

from experiments.parity import outputs
from grpo_jax.models.hf import weights
from tests.experiments import command

CHECKPOINT = command.ROOT / "tests" / "data" / "checkpoints" / "qwen2"


def recorded() -> dict[str, np.ndarray]:
  """The shipped reference: 3 rows of 24 slots with 24, 17 and 5 tokens."""
  with np.load(CHECKPOINT / "reference.npz") as archive:
    return {name: archive[name] for name in archive}


def saved(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> pathlib.Path:
  np.savez(path, **arrays)
  return path


def compared(path: pathlib.Path, **changes) -> outputs.Comparison:
  path = saved(path / "reference.npz", recorded() | changes)
  config, params = weights.load(CHECKPOINT)
  reference = outputs.read_reference(path)
  return outputs.compare(config, params, reference)


@pytest.mark.slow
def test_the_program_says_pass_or_fail(tmp_path):
  arrays = recorded()
  arrays["logits"][1, 20, 33] += 0.25
  other = saved(tmp_path / "other.npz", arrays)
  common = f"--checkpoint={CHECKPOINT}"
  shipped = f"--reference={CHECKPOINT / 'reference.npz'}"
  started = [
    command.start("parity.compare_logits", common, *arguments, cwd=tmp_path)
    for arguments in (
      [shipped, "--dtype=float64"],
      [f"--reference={other}"],
      [f"--reference={other}", "--dtype=bfloat16", "--tolerance=1"],
      ["--reference=missing.npz"],
    )
  ]
  results = []
  for process in started:
    with process:
      results.append((*process.communicate(), process.returncode))
  assert [status for _, _, status in results] == [0, 1, 0, 2]
  out = results[0][0]
  assert "; float64 on cpu\n" in out
  assert "46 of 46 positions (100.0%)\n" in out
  assert "\nPASS: " in out
  out = results[1][0]
  assert "largest difference   2.500e-01\n" in out
  assert "row 1, position 20, entry 33:" in out
  assert "\nFAIL: 2.500e-01 is above the tolerance 0.0002\n" in out
  assert "; bfloat16 on cpu\n" in results[2][0]
  out, err, _ = results[3]
  assert "--reference=missing.npz: there is no such file" in err
  assert "Traceback" not in out + err


@pytest.mark.slow
def test_the_largest_difference_is_found(tmp_path):
  logits = recorded()["logits"]
  logits[0, 3, 7] += 1.0
  logits[2, 23, 95] -= 2.0
  found = compared(tmp_path, logits=logits)
  assert (found.row, found.position, found.entry) == (2, 23, 95)
  assert found.largest == pytest.approx(2.0, abs=1e-4)
  assert found.here - found.there == pytest.approx(2.0, abs=1e-4)
  assert found.mean == pytest.approx(3.0 / (46 * 96), abs=1e-5)


def test_the_likeliest_tokens_are_counted(tmp_path):
  logits = recorded()["logits"]
  logits[0, 3:5] *= -1
  found = compared(tmp_path, logits=logits)
  assert (found.num_agreeing, found.num_positions) == (44, 46)


def test_padding_is_not_compared(tmp_path):
  arrays = recorded()
  padding = arrays["attention_mask"] == 0
  arrays["logits"][padding] = np.nan
  arrays["input_ids"][padding] = -100
  assert compared(tmp_path, **arrays).largest < 2e-4


def test_tokenizers_masks_and_empty_rows_are_read(tmp_path):
  arrays = {
    # A row without tokens, and int64, as of a tokenizer.
    "input_ids": np.pad(recorded()["input_ids"], ((1, 0), (0, 0))),
    "attention_mask": np.pad(recorded()["attention_mask"], ((1, 0), (0, 0))),
    "logits": np.pad(recorded()["logits"], ((1, 0), (0, 0), (0, 0))),
  }
  arrays["attention_mask"] = arrays["attention_mask"].astype(np.int64)
  found = compared(tmp_path, **arrays)
  assert found.largest < 2e-4
  assert found.num_positions == 46


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_fails(tmp_path, value):
  logits = recorded()["logits"]
  logits[2, 20, 5] = value
  found = compared(tmp_path, logits=logits)
  assert found.largest == np.inf
  assert (found.row, found.position, found.entry) == (2, 20, 5)


def _with_hole():
  mask = recorded()["attention_mask"]
  mask[1, 12] = False
  return mask


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"input_ids": np.zeros(24, int)}, r"input_ids are int64 \[24\]"),
    ({"input_ids": np.zeros((3, 24))}, "input_ids are float64"),
    ({"attention_mask": np.ones((3, 23))}, r"attention_mask is \[3, 23\]"),
    ({"attention_mask": np.zeros((3, 24))}, "nothing is left to compare"),
    ({"attention_mask": np.full((3, 24), 2)}, "must be 1 on tokens"),
    ({"attention_mask": _with_hole()}, "row 1 .* padding between tokens"),
    ({"logits": np.zeros((3, 23, 96))}, r"logits are \[3, 23, 96\]"),
    ({"logits": np.zeros((24, 96))}, r"logits are \[24, 96\]"),
    ({"logits": np.zeros((3, 24, 96), int)}, "logits are int64"),
    ({"logits": np.zeros((3, 24, 95))}, "logits of 95 .* has 96"),
    ({"input_ids": np.full((3, 24), 96)}, "reach from 0 to 96"),
    ({"input_ids": np.full((3, 24), -1)}, "reach from -1 to 0"),
  ],
)
def test_what_does_not_fit_raises(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    compared(tmp_path, **changes)


def test_files_that_are_no_reference_raise(tmp_path):
  path = tmp_path / "reference.npz"
  for content in (b"", b"text", b"PK\x03\x04 cut off"):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as"):
      outputs.read_reference(path)
  np.save(tmp_path / "array.npy", np.zeros(3))
  with pytest.raises(ValueError, match="cannot be read as"):
    outputs.read_reference(tmp_path / "array.npy")
  saved(path, {"input_ids": np.array([None])})
  with pytest.raises(ValueError, match="cannot be read as"):
    outputs.read_reference(path)
  saved(path, {"input_ids": np.zeros((1, 2), int), "labels": np.zeros(2)})
  with pytest.raises(
    ValueError,
    match="no attention_mask and no logits; it has input_ids, labels",
  ):
    outputs.read_reference(path)
