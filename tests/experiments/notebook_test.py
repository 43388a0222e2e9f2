"""The Python API in the kernel of a notebook."""

import json
import pathlib
import time

import pytest
from jupyter_client import manager

from tests.experiments import command

CONFIG = command.ROOT / "tests/experiments/tiny_config.py"
BEGIN = f"""
import grpo_jax as g

config = g.config({str(CONFIG)!r})
"""
CELLS = (
  f"""{BEGIN}
config.phases = ("sft",)
config.sft.steps = 3
g.train(config)
""",
  "run = g.load({folder!r})",
  "run.plot()",
  "run.sample(run.prompts(2), n=2, temperature=1.0)",
  'run.history.to_pandas()[["step", "phase", "loss"]]',
  "config.rl.stepz = 3",
)
# A phase that lasts for hours.
LONG = f"""{BEGIN}
config.sft.steps = 1_000_000
run = g.train(config, "run")
"""
AFTER = """
import json, pathlib
last = int(run.history.steps[-1])
told = {"result": run.result, "step": run.step, "last": last}
pathlib.Path("told.json").write_text(json.dumps(told))
"""


@pytest.fixture(autouse=True)
def _kernels(monkeypatch, tmp_path):
  """Kernels see this tree, and nothing of a user's."""
  for name, value in command.ENVIRONMENT.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.mark.slow
def test_cells_train_plot_sample_and_tabulate(tmp_path, finished):
  import nbclient  # It reads grammars for three seconds.
  import nbformat

  notebook = nbformat.v4.new_notebook()
  folder = repr(str(finished.cwd / "run"))
  notebook.cells = [
    nbformat.v4.new_code_cell(source.replace("{folder!r}", folder))
    for source in CELLS
  ]
  client = nbclient.NotebookClient(
    notebook,
    timeout=300,
    allow_errors=True,
    resources={"metadata": {"path": str(tmp_path)}},
  )
  client.execute()
  trained, _, plotted, sampled, table, refused = (
    cell.outputs for cell in notebook.cells
  )
  kinds = [output.output_type for output in trained]
  assert kinds[-1] == "execute_result"
  assert ", 3 steps)" in trained[-1].data["text/plain"]
  # Progress is one output that is drawn again, and not a line for each step.
  assert kinds.count("display_data") == 1
  assert "error" not in kinds
  (picture,) = [output.data for output in plotted]
  assert picture["image/png"].startswith("iVBORw0KGgo")
  lines = sampled[-1].data["text/plain"].splitlines()
  assert len(lines) == 2 * (1 + 2)
  assert "text/html" in table[-1].data
  assert refused[0].ename == "AttributeError"
  assert "stepz" in refused[0].evalue


@pytest.mark.slow
def test_interrupting_a_cell_saves_and_returns_the_run(tmp_path):
  kernels = manager.KernelManager()
  kernels.start_kernel(cwd=str(tmp_path))
  client = kernels.client()
  client.start_channels()
  try:
    client.wait_for_ready(timeout=120)
    long = client.execute(LONG)
    log = tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (log.exists() and log.read_bytes().count(b"\n") > 2):
      assert time.monotonic() < deadline
      time.sleep(0.1)
    kernels.interrupt_kernel()
    client.execute(AFTER)
    reply = {"parent_header": {"msg_id": None}}
    while reply["parent_header"]["msg_id"] != long:
      reply = client.get_shell_msg(timeout=120)
    assert reply["content"]["status"] == "ok", reply
    told = pathlib.Path(tmp_path, "told.json")
    while not (told.exists() and told.read_text().endswith("}")):
      assert time.monotonic() < deadline
      time.sleep(0.1)
  finally:
    client.stop_channels()
    kernels.shutdown_kernel(now=True)
  said = json.loads(told.read_text())
  assert said["result"] is None
  assert said["step"] == said["last"] >= 3
