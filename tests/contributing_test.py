"""The example of CONTRIBUTING.md is typed in, as it stands, and works."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
from absl import flags

from experiments import check_algorithm
from experiments import flags as flags_lib
from grpo_jax import algorithms
from tests.experiments import command

PAGE = (command.ROOT / "CONTRIBUTING.md").read_text()
_, EXAMPLE = PAGE.split("## Add an algorithm in ten minutes\n")
FILE, REFERENCE = re.findall(r"```python\n(.*?)```", EXAMPLE, re.DOTALL)
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
  with pytest.raises(ValueError, match="needed is one algorithm"):
    check_algorithm.main(["check_algorithm"])


def test_the_command_of_training_is_understood(package, monkeypatch):
  values = flags.FlagValues()
  argv = ["train", *COMMANDS[2][3:]]
  flags_lib.define_config(values, argv)
  flags.DEFINE_string("workdir", None, "Folder.", flag_values=values)
  monkeypatch.chdir(command.ROOT)
  flags_lib.parse(argv, values)
  assert values.config.algorithm.name == "my_pkg.foo:FOO"
  assert values.config.algorithm.clip_low == 0.05
  assert algorithms.get_algorithm("my_pkg.foo:FOO").min_group_size == 2


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


@pytest.mark.slow  # The tests of an algorithm, in a process of their own.
def test_a_new_file_is_covered_by_the_tests(tmp_path):
  for name in ("grpo_jax", "tests"):
    shutil.copytree(
      command.ROOT / name,
      tmp_path / name,
      ignore=shutil.ignore_patterns("__pycache__", "checkpoints", "golden"),
    )
  for name in ("configs", "experiments", "pyproject.toml"):
    (tmp_path / name).symlink_to(command.ROOT / name)
  (tmp_path / "grpo_jax/algorithms/foo.py").write_text(FILE)
  (tmp_path / "tests/references/foo.py").write_text(REFERENCE)
  table = tmp_path / "grpo_jax/algorithms/__init__.py"
  text = table.read_text()
  text = text.replace(
    "from grpo_jax.algorithms.gfpo",
    "from grpo_jax.algorithms.foo import FOO\nfrom grpo_jax.algorithms.gfpo",
    1,
  ).replace("    GRPO,\n", "    FOO,\n    GRPO,\n", 1)
  table.write_text(text)
  files = ["contract_test.py", "reference_test.py"]
  said = subprocess.run(
    [
      *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", "foo"),
      *("-m", "slow or not slow", "-o", "addopts="),
      *(f"tests/algorithms/{name}" for name in files),
    ],
    cwd=tmp_path,
    env={**command.ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert said.returncode == 0, said.stdout[-2000:]
  assert int(re.search(r"(\d+) passed", said.stdout)[1]) > 15
