"""Cells of a sweep: what they are made of, and what is refused."""

import json
import pathlib

import numpy as np
import pytest

from experiments.sweeps import cells as cells_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters
from grpo_jax.training.runtime import log as log_lib
from tests.experiments import command

LR_BY_CLIP = str(command.ROOT / "configs/sweeps/lr_by_clip.py")


@pytest.fixture
def source(tmp_path):
  """Writes a config file with this `sweep` on top of the tiny config."""

  def write(body: str, **common) -> cells_lib.Source:
    path = tmp_path / "config.py"
    path.write_text(
      "import numpy as np\n"
      "from tests.experiments import tiny_config\n"
      "get_config = tiny_config.get_config\n"
      f"{body}\n"
    )
    return cells_lib.Source(str(path), common)

  return write


def add(*calls: str) -> str:
  """A `sweep` that makes these calls."""
  lines = [f"  add(**{call})" for call in calls] or ["  pass"]
  return "\n".join(["def sweep(add):", *lines])


def test_the_config_of_a_cell_has_its_overrides(source, tmp_path):
  body = add(
    '{"rl.optimizer.learning_rate": 0.5, "seed": 3}',
    '{"rl.optimizer.learning_rate": np.float32(0.25), "phases": ("rl",)}',
    '{"log.trackers": (), "data.name": "copy"}',
    "{}",
  )
  first, second, third, base = source(body, **{"rl.steps": 7}).cells(tmp_path)
  assert first.config.rl.optimizer.learning_rate == 0.5
  assert first.config.seed == 3
  assert second.config.rl.optimizer.learning_rate == 0.25
  assert second.config.phases == ("rl",)
  assert third.config.log.trackers == ()
  assert third.config.data.name == "copy"
  assert base.overrides == {}
  for cell in (first, second, third, base):
    assert cell.config.rl.steps == 7
    assert "--config.rl.steps=7" in cell.arguments


def test_cells_may_have_algorithms_of_their_own(source, tmp_path):
  body = add('{"algorithm": "rloo", "seed": 1}', '{"algorithm": "grpo"}')
  made = source(body)
  rloo, grpo = made.cells(tmp_path)
  assert rloo.config.algorithm.name == "rloo"
  assert grpo.config.algorithm.name == "grpo"
  assert rloo.arguments == (f"--config={made.config}:rloo", "--config.seed=1")
  assert rloo.workdir.name == "algorithm=rloo,seed=1"
  two = cells_lib.Source(f"{made.config}:ppo", {})
  with pytest.raises(ValueError, match=r"algorithm='rloo'.*has one already"):
    two.cells(tmp_path)


def test_folders_are_named_by_the_overrides_in_any_order(source, tmp_path):
  body = add('{"seed": 3, "rl.optimizer.learning_rate": 1e-5}', "{}")
  again = add('{"rl.optimizer.learning_rate": 1e-5, "seed": 3}')
  first, base = source(body).cells(tmp_path)
  assert first.workdir == tmp_path / "rl.optimizer.learning_rate=1e-05,seed=3"
  assert base.workdir == tmp_path / "base"
  (other,) = source(again).cells(tmp_path)
  assert other.workdir == first.workdir
  assert cells_lib.folder_name({"b": 1, "a": 2}) == "a=2,b=1"


def test_folder_names_that_were_cut_or_cleaned_stay_apart():
  names = [
    cells_lib.folder_name({"data.train_path": value})
    for value in ("a/b", "a b", "a" * 300, "a" * 301)
  ]
  assert len({*names}) == 4
  for name in names:
    assert len(name) < 200
    assert set(name) <= {*"abcdefghijklmnopqrstuvwxyz0123456789._=-"}


@pytest.mark.parametrize(
  ("names", "short"),
  [
    (["rl.steps", "seed"], ["steps", "seed"]),
    (["rl.steps", "sft.steps"], ["rl.steps", "sft.steps"]),
    (["a.x.y", "b.x.y", "b.y"], ["a.x.y", "b.x.y", "b.y"]),
    (["steps", "rl.steps"], ["steps", "rl.steps"]),
  ],
)
def test_short_names_are_the_shortest_ends_that_differ(names, short):
  assert [*cells_lib.short_names(names).values()] == short


@pytest.mark.parametrize(
  ("body", "message"),
  [
    (add(), r"sweep\(\) of .*config\.py added no cell"),
    ("", r"config\.py defines no sweep\(\)"),
    (
      add("{}", '{"rl.grup_size": 4}'),
      r"cell grup_size=4: .*no setting 'grup_size'\. Did you mean"
      r" --config\.rl\.group_size\?",
    ),
    (add('{"rl.steps": 0.5}'), r"cell steps=0\.5: .*'0\.5'; needs a whole"),
    (add('{"rl.steps": -1}'), r"cell steps=-1: config\.rl\.steps=-1 must be"),
    (add('{"rl.num_minibatches": 3}'), r"cell num_minib(?s:.*)16 rows"),
    (add('{"seed": None}'), r"cell seed=None: seed got None; needs a numb"),
    (add('{"algorithm.name": "gspo"}'), r"the algorithm is chosen with"),
    (
      add('{"seed": 1}', '{"seed": 0}', '{"rl.steps": 10}'),
      r"cell 3, steps=10, has the config of cell 2, seed=0",
    ),
  ],
)
def test_a_bad_sweep_is_refused(source, tmp_path, body, message):
  with pytest.raises(ValueError, match=message):
    source(body).cells(tmp_path)
  written = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
  assert written == {"config.py"}


def test_a_setting_of_all_cells_may_not_be_one_of_a_cell(source, tmp_path):
  with pytest.raises(ValueError, match=r"leave --config\.seed out of it"):
    source(add('{"seed": 1}'), seed=2).cells(tmp_path)


def test_cells_are_a_group_of_a_tracker_with_the_name_of_the_sweep(
  source, tmp_path
):
  text, root = add('{"seed": 1}'), tmp_path / "by_rate"
  (cell,) = source(text).cells(root)
  assert cell.config.log.group == ""
  (cell,) = source(text, **{"log.trackers": ("trackio",)}).cells(root)
  assert cell.config.log.group == "by_rate"
  assert cell.arguments[-1] == "--config.log.group=by_rate"
  assert cell.workdir == root / "seed=1"
  own = {"log.trackers": ("wandb",), "log.group": "mine"}
  (cell,) = source(text, **own).cells(root)
  assert cell.config.log.group == "mine"


def test_the_shipped_sweep_has_three_seeds_of_six_groups(tmp_path):
  cells = cells_lib.Source(LR_BY_CLIP, {}).cells(tmp_path)
  groups = {
    json.dumps({k: v for k, v in cell.overrides.items() if k != "seed"})
    for cell in cells
  }
  assert (len(cells), len(groups)) == (18, 6)


@pytest.mark.slow
def test_the_argument_of_the_file_reaches_the_sweep(tmp_path):
  cells = cells_lib.Source(f"{LR_BY_CLIP}:with_failure", {}).cells(tmp_path)
  assert len(cells) == 19
  assert cells[-1].config.rl.optimizer.learning_rate == 1e30
  assert cells[-1].arguments[0].endswith(".py:with_failure")


def finish(cell: cells_lib.Cell) -> None:
  log_lib.save_run_info(cell.workdir, cell.config.to_json())
  with log_lib.MetricsLog(cell.workdir) as log:
    log.write(1, "rl", {"loss": 1.0, "reward/mean": 0.25})
    log.write(2, "rl", {"loss": float("nan")})
    log.write_result(2, None, {"eval/accuracy": 0.5}, 8)


def test_a_sweep_may_grow(source, tmp_path):
  root = tmp_path / "root"
  (cell,) = source(add('{"seed": 1}')).cells(root)
  finish(cell)
  cells = source(add('{"seed": 1}', '{"seed": 2}')).cells(root)
  cells_lib.check_root(root, cells)
  # What is only logged may change, as in a run of its own.
  cells = source(add('{"seed": 1}'), **{"log.num_samples": 2}).cells(root)
  cells_lib.check_root(root, cells)


@pytest.mark.parametrize(
  ("body", "common", "message"),
  [
    (add('{"seed": 2}'), {}, r"(?s)another --root.*Of no cell: seed=1"),
    (
      add('{"seed": 1}'),
      {"rl.steps": 7},
      r"(?s)another --root.*rl\.steps: 10 stored, 7 given",
    ),
  ],
)
def test_another_sweep_in_the_root_is_refused(
  source, tmp_path, body, common, message
):
  root = tmp_path / "root"
  (cell,) = source(add('{"seed": 1}')).cells(root)
  finish(cell)
  cells = source(body, **common).cells(root)
  with pytest.raises(ValueError, match=message):
    cells_lib.check_root(root, cells)


@pytest.mark.parametrize(
  ("override", "same"),
  [
    ('"seed": 5', True),
    ('"algorithm.kl_coef": 0.4', True),
    ('"algorithm.kl_coef": 0.0', False),
    ('"algorithm.jsd_beta": 0.25', False),
    ('"rl.optimizer.learning_rate": 0.5', True),
    ('"rl.steps": 5', False),
    ('"eval.temperature": 0.5', False),
    ('"rl.max_prompt_len": 40', False),
  ],
)
def test_seeds_and_floats_share_a_program(source, tmp_path, override, same):
  cells = source(add("{}", f"{{{override}}}")).cells(tmp_path)
  first, second = (
    cells_lib.program(
      c.config, many.may_differ(c.config), hyperparameters.CONSTANT
    )
    for c in cells
  )
  assert (first == second) is same


def test_a_tuple_has_the_same_folder_after_a_round_through_json(
  source, tmp_path
):
  cells = source(add("{}"))
  first = cells.cell(tmp_path, {"rewards.weights": (np.float64(0.5),)})
  stored = json.loads(json.dumps(first.overrides))
  assert cells.cell(tmp_path, stored).workdir == first.workdir
  assert first.config.rewards.weights == (0.5,)


def test_a_root_in_a_bucket_is_refused():
  with pytest.raises(ValueError, match=r"--root=gs://bucket/a: needs a lo"):
    cells_lib.parse_root("gs://bucket/a")


def test_the_manifest_keeps_the_order_of_the_cells(source, tmp_path):
  cells = source(add('{"seed": 10}', '{"seed": 9}')).cells(tmp_path)
  cells_lib.write_manifest(tmp_path, cells)
  assert [*cells_lib.read_manifest(tmp_path).items()] == [
    ("seed=10", {"seed": 10}),
    ("seed=9", {"seed": 9}),
  ]


def test_a_metric_is_the_last_one_of_a_run_that_has_ended(source, tmp_path):
  (cell,) = source(add("{}")).cells(tmp_path)
  assert cells_lib.read_metric(cell.workdir, "eval/accuracy") is None
  finish(cell)
  assert cells_lib.read_metric(cell.workdir, "eval/accuracy") == 0.5
  assert cells_lib.read_metric(cell.workdir, "reward/mean") == 0.25
  assert cells_lib.read_metric(cell.workdir, "loss") is None
  with pytest.raises(KeyError, match=r"no such metric.*eval/accuracy, loss"):
    cells_lib.read_metric(cell.workdir, "eval/acuracy")


_DEBUG = "(--debug shows the traceback.)"


@pytest.mark.parametrize(
  ("log", "error"),
  [
    (f"x\nerror: loss is\nnan.\n{_DEBUG}\n", "loss is\nnan."),
    (f"error: first.\n{_DEBUG}\nx\nerror: second.\n{_DEBUG}\n", "second."),
    ("error: a bad command line\n", "a bad command line"),
    # A later attempt is under way, or was stopped.
    (f"error: loss is nan.\n{_DEBUG}\nsft 1/10\n", ""),
    (
      'x\nTraceback (most):\n  File "a"\n    b\nIndexError: c\n',
      "IndexError: c",
    ),
    ('Traceback (most):\n  File "a"\nEOFError: c\nsft 1/10\n', ""),
    ("sft 1/10\n", ""),
  ],
)
def test_the_error_is_the_end_of_the_log(tmp_path, log, error):
  (tmp_path / cells_lib.LOG).write_text(log)
  assert cells_lib.last_error(tmp_path) == error


def test_a_run_without_a_log_has_no_error(tmp_path: pathlib.Path):
  assert cells_lib.last_error(tmp_path) == ""
