"""The notebooks run, and print and draw what is saved in them."""

import contextlib
import io
import json
import pathlib
import re

import pytest

from grpo_jax.algorithms import ALGORITHMS
from tests import published_test
from tests.experiments import command

_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "notebooks"
_NAMES = sorted(path.name for path in _FOLDER.glob("*.ipynb"))
# Those that train need a kernel: of the rest, cells are run in this process.
_TRAINS = (
  "00_train_sample_plot.ipynb",
  "03_find_a_reward_hack.ipynb",
  "04_compare_with_intervals.ipynb",
  "05_an_algorithm_in_one_cell.ipynb",
  "07_from_a_checkpoint.ipynb",
  "08_an_agent_with_a_tool.ipynb",
  "09_a_published_model.ipynb",
)
_KINDS = ("display_data", "execute_result")


def _code_cells(name):
  notebook = json.loads((_FOLDER / name).read_text(encoding="utf-8"))
  return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _printed(cell) -> str:
  """Output that the cell printed when it was saved, without times."""
  printed = "".join(
    "".join(output["text"])
    for output in cell["outputs"]
    if output["output_type"] == "stream" and output["name"] == "stdout"
  )
  lines = printed.splitlines(keepends=True)
  return "".join(x for x in lines if "traced and compiled in" not in x)


def _kinds(cell) -> list[str]:
  """Kinds of the outputs that stay, in their order."""
  kinds = (output["output_type"] for output in cell["outputs"])
  return [kind for kind in kinds if kind in _KINDS]


def _num_images(cell) -> int:
  return sum(
    "image/png" in output.get("data", {}) for output in cell["outputs"]
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*_NAMES} - {*_TRAINS}))
def test_running_gives_the_saved_outputs(name, tmp_path, monkeypatch):
  import matplotlib  # It takes a second of each worker of the tests.
  from matplotlib import pyplot

  matplotlib.use("Agg")
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("PYTHONPATH", raising=False)
  namespace = {"__name__": "__main__"}
  with matplotlib.rc_context():
    for cell in _code_cells(name):
      source = "".join(cell["source"])
      printed = io.StringIO()
      with contextlib.redirect_stdout(printed):
        exec(compile(source, f"{name}:{cell['id']}", "exec"), namespace)
      assert printed.getvalue() == _printed(cell), cell["id"]
      numbers = pyplot.get_fignums()
      assert len(numbers) == _num_images(cell), cell["id"]
      for number in numbers:  # Some mistakes show only when it is drawn.
        pyplot.figure(number).canvas.draw()
      pyplot.close("all")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", _TRAINS)
def test_training_in_a_kernel_gives_outputs_like_the_saved_ones(
  name, tmp_path, monkeypatch
):
  import nbclient  # It reads grammars for three seconds.
  import nbformat

  for variable, value in command.ENVIRONMENT.items():
    monkeypatch.setenv(variable, value)
  # Jupyter starts a kernel in a folder that has no `experiments`.
  monkeypatch.delenv("PYTHONPATH")
  if name == "08_an_agent_with_a_tool.ipynb":
    # The notebook has many steps. They would lose more time in a program of
    # the flags of tests than the faster compilation saves.
    monkeypatch.delenv("XLA_FLAGS")
  if name == "09_a_published_model.ipynb":
    published_test.tiny(tmp_path)  # In the place of a download.
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
  saved = _code_cells(name)
  notebook = nbformat.read(_FOLDER / name, as_version=4)
  for cell in notebook.cells:
    if cell.cell_type == "code":
      cell.outputs = []
  # Its assertions hold: an error of a cell is one of this test.
  nbclient.NotebookClient(
    notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}
  ).execute()
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  for cell, before in zip(cells, saved, strict=True):
    assert _printed(cell) == _printed(before), before["id"]
    assert _kinds(cell) == _kinds(before), before["id"]
    assert _num_images(cell) == _num_images(before), before["id"]


@pytest.mark.parametrize("name", _NAMES)
def test_saved_by_one_clean_run(name):
  cells = _code_cells(name)
  counts = [cell["execution_count"] for cell in cells]
  assert counts == list(range(1, len(cells) + 1))
  for cell in cells:  # Nothing but prints and figures: no warnings, no reprs,
    for output in cell["outputs"]:
      kind = output.get("name", output["output_type"])
      # but for a notebook whose subject is what is shown.
      shown = ("stdout", *(_KINDS if name in _TRAINS else _KINDS[:1]))
      assert kind in shown, cell["id"]


def test_every_algorithm_with_a_ratio_is_compared():
  """All that there were when the notebook was saved."""
  names = {name for name, a in ALGORITHMS.items() if "old_logp" in a.needs}
  cells = _code_cells("02_compare_surrogates.ipynb")
  words = "".join(map(_printed, cells)).replace(",", " ").split()
  ((drawn, there),) = re.findall(
    r"drawn: (\d+) of (\d+)", "".join(map(_printed, cells))
  )
  assert drawn == there
  assert len(names & set(words)) == int(there) <= len(names)


def test_the_wheel_of_the_notebook_is_that_of_make():
  saved = (_FOLDER / "09_a_published_model.ipynb").read_text(encoding="utf-8")
  makefile = (command.ROOT / "Makefile").read_text(encoding="utf-8")
  (digest,) = re.findall(r"\b[0-9a-f]{64}\b", makefile)
  assert digest in saved
