"""The example of CONTRIBUTING.md is typed in, as it stands, and works."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from grpo_jax.cli import check_algorithm
from tests.experiments import command

PAGE = (command.ROOT / "CONTRIBUTING.md").read_text()
_, EXAMPLE = PAGE.split("## Add an algorithm in ten minutes\n")
FILE, REFERENCE = re.findall(r"```python\n(.*?)```", EXAMPLE, re.DOTALL)
(ROW,) = re.findall(r'^  "foo": Known.*\n', EXAMPLE, re.MULTILINE)
COMMANDS = [
  shlex.split(line)
  for line in re.findall(r"^python -m .*$", EXAMPLE, re.MULTILINE)
]


@pytest.fixture
def package(tmp_path, monkeypatch):
  """The scratch package of the page, which Python finds."""
  folder = tmp_path / "my_pkg"
  folder.mkdir()
  (folder / "foo.py").write_text(FILE)
  (folder / "foo_reference.py").write_text(REFERENCE)
  monkeypatch.syspath_prepend(tmp_path)
  for name in ("my_pkg.foo", "my_pkg.foo_reference", "my_pkg"):
    monkeypatch.delitem(sys.modules, name, raising=False)
  return folder


def check(path, reference=None):
  return check_algorithm.report(
    path, reference and reference.removeprefix("--reference=")
  )


def test_the_page_has_what_is_run_here():
  modules = [line[2] for line in COMMANDS]
  assert modules == [
    "experiments.check_algorithm",
    "experiments.check_algorithm",
    "experiments.train",
  ]
  assert COMMANDS[1][3:] == [
    "my_pkg.foo:FOO",
    "--reference=my_pkg.foo_reference:loss",
  ]


@pytest.mark.slow
def test_a_package_of_ones_own_holds_the_contract(package, capsys):
  assert check(*COMMANDS[1][3:])
  said = capsys.readouterr().out
  assert "FAILS" not in said
  assert said.count("  holds  ") == 15
  assert "gradient and advantages equal the reference (batch 1)" in said


@pytest.mark.slow
def test_mistakes_are_told(package, capsys):
  wrong = FILE.replace("batch.old_logp, batch.mask", "batch.old_logp, whole")
  wrong = wrong.replace(
    "  ratio =", "  whole = batch.mask | True\n  ratio ="
  ).replace('name="foo"', 'name="wrong"')
  (package / "wrong.py").write_text(wrong)
  assert not check("my_pkg.wrong:FOO", *COMMANDS[1][4:])
  said = capsys.readouterr().out
  assert "FAILS  padding columns change nothing" in said
  assert "FAILS  loss, gradient and advantages equal the reference" in said
  assert "3 of 15 checks fail" in said
  with pytest.raises(ValueError, match="no algorithm 'FO'"):
    check("my_pkg.foo:FO")
  with pytest.raises(ValueError, match="needs one algorithm"):
    check_algorithm.main(["check_algorithm"])


@pytest.mark.slow  # Other processes, and a run.
def test_the_commands_run_outside_of_the_repository(package):
  more = [
    *("--config.sft.steps=1", "--config.rl.steps=1", "--config.model.width=16"),
    *("--config.model.mlp_width=32", "--config.eval.num_prompts=8"),
    "--config.required_accuracy=0.0",
  ]
  path = str(command.ROOT / "configs")
  arguments = [x.replace("configs", path) for x in COMMANDS[2][3:]]
  subprocess.run(
    [sys.executable, "-m", COMMANDS[2][2], *arguments, *more],
    cwd=package.parent,
    env=command.ENVIRONMENT,
    check=True,
  )
  assert (package.parent / "runs/foo/result.json").exists()


def _with_foo(tmp_path, *copied):
  """A repository in which the algorithm is a file, a row and a reference."""
  for name in copied:
    ignored = shutil.ignore_patterns("__pycache__", "checkpoints", "golden")
    path = command.ROOT / name
    if path.is_dir():
      shutil.copytree(path, tmp_path / name, ignore=ignored)
    else:
      shutil.copy(path, tmp_path / name)
  for path in command.ROOT.iterdir():
    if not path.name.startswith(".") and not (tmp_path / path.name).exists():
      (tmp_path / path.name).symlink_to(path)
  (tmp_path / "grpo_jax/algorithms/foo.py").write_text(FILE)
  (tmp_path / "tests/references/foo.py").write_text(REFERENCE)
  for name, first, row in (
    ("grpo_jax/algorithms/__init__", '    "grpo": "grpo', '"foo": "foo:FOO",'),
    ("tests/references/known", '  "grpo": Known', ROW),
  ):
    table = tmp_path / f"{name}.py"
    text = table.read_text()
    assert text.count(first) == 1
    table.write_text(text.replace(first, f"{row}\n{first}"))


def _pytest(folder, *arguments):
  """Number of tests that pass in a folder; all have to."""
  said = subprocess.run(
    [
      *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"),
      *("-m", "slow or not slow", "-o", "addopts=", *arguments),
    ],
    cwd=folder,
    env={**command.ENVIRONMENT, "PYTHONPATH": str(folder)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert said.returncode == 0, said.stdout[-2000:]
  return int(re.search(r"(\d+) passed", said.stdout)[1])


@pytest.mark.slow  # The tests of an algorithm, in a process of their own.
def test_a_new_file_is_covered_by_the_tests(tmp_path):
  _with_foo(tmp_path, "grpo_jax", "tests")
  files = [
    f"tests/{name}_test.py"
    for name in ("algorithms/contract", "algorithms/reference", "references")
  ]
  assert _pytest(tmp_path, *files, "-k", "foo") > 20


@pytest.mark.slow  # Tests in a process of their own.
def test_no_list_is_left_out_by_the_steps(tmp_path):
  """With the steps up to the fourth, what lists algorithms has the new one."""
  _with_foo(tmp_path, "grpo_jax", "tests", "docs")
  row = (
    "| `foo` | Foo | [foo.py](../../grpo_jax/algorithms/foo.py) |"
    " `configs/quickstart.py:foo` | [r](../../tests/references/foo.py) |\n"
  )
  page = tmp_path / "docs/algorithms/index.md"
  text, changes = re.subn(r"\| `gspo` \|", f"{row}| `gspo` |", page.read_text())
  assert changes
  page.write_text(text)
  _pytest(tmp_path, "tests/readme_test.py", "-k", "promises_no or table_has")
  _pytest(
    tmp_path,
    "tests/experiments/science/league_test.py::"
    "test_every_algorithm_is_in_the_league_or_left_out_for_a_reason",
    "tests/notebooks_test.py::test_every_algorithm_with_a_ratio_is_compared",
  )
