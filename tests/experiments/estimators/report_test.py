"""The page of estimators: complete, reproduced, and refused politely."""

import jax
import pytest

from experiments.estimators import figure, measurements, page
from grpo_jax import algorithms
from tests.experiments import command

DOCS = command.ROOT / "docs"
CHECKED = ("reinforce", "dr_grpo", "grpo")


def rows_of(text: str) -> dict[str, list[str]]:
  """The cells of each row of the first table, by the name in backquotes."""
  lines = text.partition("## Which part")[0].splitlines()
  found = {}
  for line in lines:
    if line.startswith("| `"):
      cells = line.strip("| ").split(" | ")
      found[cells[0].split("`")[1]] = cells
  return found


@pytest.fixture(scope="module")
def measured() -> list[measurements.Row]:
  with jax.enable_x64(True):
    return [
      measurements.measure(name, (measurements.MAIN_SIZE,)) for name in CHECKED
    ]


def test_every_policy_gradient_is_on_the_page():
  assert set(measurements.WITHOUT) < set(algorithms.ALGORITHMS)
  rows = rows_of((DOCS / "estimators.md").read_text(encoding="utf-8"))
  assert set(rows) == {
    *(x for x in algorithms.ALGORITHMS if x not in measurements.WITHOUT),
    measurements.BASELINE,
  }
  assert (DOCS / "estimators.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_page_is_reproduced(measured):
  rows = rows_of((DOCS / "estimators.md").read_text(encoding="utf-8"))
  reference = measured[0].variance
  for row in measured:
    cells = page.markdown_row(row, reference)
    for here, there in zip(cells, rows[row.name], strict=True):
      assert here in (there, "–")  # Other group sizes are not measured here.


@pytest.mark.slow
def test_advantages_and_aggregations_are_reproduced():
  text = (DOCS / "estimators.md").read_text(encoding="utf-8")
  with jax.enable_x64(True):
    rows = measurements.combinations()
  for label, cells in rows:
    shown = " | ".join(f"{x.cosine:.4f}" for x in cells)
    assert f"| {label} | {shown} |" in text


@pytest.mark.slow
def test_a_page_about_some(measured, tmp_path):
  assert [row.verdict for row in measured] == ["yes", "× c", "no"]
  text = page.markdown(measured, (), measured[0].variance)
  assert list(rows_of(text)) == list(CHECKED)
  assert "## What stands out" not in text  # It is about all of them.
  assert "nan" not in text
  figure.plot(measured, measured[0].variance, tmp_path / "x.png")
  assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_mistakes_are_refused(tmp_path):
  cases = {
    "--algorithms=sft": "'sft' has no policy gradient",
    "--algorithms=grpo": "pass --out=FOLDER",
    "--out=missing": "--out=missing: there is no such folder",
  }
  started = [
    command.start("estimators.report", argument, cwd=tmp_path)
    for argument in cases
  ]
  for process, message in zip(started, cases.values(), strict=True):
    with process:
      _, err = process.communicate()
    words = " ".join(err.split())
    assert process.returncode == 2
    assert words.startswith("error: ")
    assert message in words
    assert "Traceback" not in err
  assert not list(tmp_path.iterdir())
