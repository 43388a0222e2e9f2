"""The page of estimators: complete, reproduced, and refused politely."""

import jax
import pytest

from experiments import estimator_figure, estimator_page, estimators
from grpo_jax import algorithms
from tests.experiments import command

DOCS = command.ROOT / "docs"
CHECKED = ("reinforce", "dr_grpo", "grpo")


def rows_of(page: str) -> dict[str, list[str]]:
  """The cells of each row of the first table, by the name in backquotes."""
  lines = page.partition("## Which part")[0].splitlines()
  found = {}
  for line in lines:
    if line.startswith("| `"):
      cells = line.strip("| ").split(" | ")
      found[cells[0].split("`")[1]] = cells
  return found


@pytest.fixture(scope="module")
def measured() -> list[estimators.Row]:
  with jax.enable_x64(True):
    return [
      estimators.measure(name, (estimators.MAIN_SIZE,)) for name in CHECKED
    ]


def test_every_policy_gradient_is_on_the_page():
  assert set(estimators.WITHOUT) < set(algorithms.ALGORITHMS)
  page = rows_of((DOCS / "estimators.md").read_text(encoding="utf-8"))
  assert set(page) == {
    *(x for x in algorithms.ALGORITHMS if x not in estimators.WITHOUT),
    estimators.BASELINE,
  }
  assert (DOCS / "estimators.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_page_is_reproduced(measured):
  page = rows_of((DOCS / "estimators.md").read_text(encoding="utf-8"))
  reference = measured[0].variance
  for row in measured:
    cells = estimator_page.markdown_row(row, reference)
    for here, there in zip(cells, page[row.name], strict=True):
      assert here in (there, "–")  # Other group sizes are not measured here.


@pytest.mark.slow
def test_a_page_about_some(measured, tmp_path):
  assert [row.verdict for row in measured] == ["yes", "× c", "no"]
  page = estimator_page.markdown(measured, (), measured[0].variance)
  assert list(rows_of(page)) == list(CHECKED)
  assert "## What stands out" not in page  # It is about all of them.
  assert "nan" not in page
  estimator_figure.plot(measured, measured[0].variance, tmp_path / "x.png")
  assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_mistakes_are_refused(tmp_path):
  cases = {
    "--algorithms=sft": "'sft' has no policy gradient",
    "--algorithms=grpo": "pass --out=FOLDER",
    "--out=missing": "--out=missing: there is no such folder",
  }
  started = [
    command.start("estimator_table", argument, cwd=tmp_path)
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
