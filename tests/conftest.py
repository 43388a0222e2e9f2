"""Settings of every test process, made before jax is imported.

They are environment variables, so that programs started by a test inherit
them.
"""

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import itertools
import os
import pathlib
import sys
import types

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
  # Then every process would compile the source of all it imports: 6 of the 19
  # s that a small run takes. What is written stays out of the source's folders.
  os.environ.setdefault(
    "PYTHONPYCACHEPREFIX", str(_ROOT / ".cache" / "bytecode")
  )
  sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]
  sys.dont_write_bytecode = False

_FLAGS = [
  # Compiles in less than half the time; what is computed stays the same up to
  # round-off. The slow tests run the quickstart as users compile it.
  "--xla_backend_optimization_level=0",
  "--xla_llvm_disable_expensive_passes=true",
]
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # And in a third of the rest. A jaxlib that lacks a flag refuses to start.
  _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
  # Pieces of a program for many cores cost a fifth more on one.
  _FLAGS.append("--xla_cpu_parallel_codegen_split_count=1")

for _name, _value in {
  "JAX_PLATFORMS": "cpu",
  # Most of the time of small tests is compilation. The thresholds let every
  # program but the trivial ones into the cache.
  "JAX_COMPILATION_CACHE_DIR": str(_ROOT / ".cache" / "jax"),
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
  "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  "XLA_FLAGS": " ".join(_FLAGS),
}.items():
  os.environ.setdefault(_name, _value)

# These need eight devices, which a process must ask for before it starts:
# `multi_device_test.py` runs them all in one process of their own.
# And these need libtpu, which compiles for TPUs (0.7 GB): `make test-tpu-aot`.
collect_ignore = [
  folder
  for folder, name in (
    ("multi_device", "GRPO_JAX_MULTI_DEVICE"),
    ("aot", "GRPO_JAX_AOT"),
  )
  if os.environ.get(name) != "1"
]

# Directories with recorded outputs of other libraries: the shipped excerpt,
# and what is given.
_GOLDEN = pytest.StashKey[list[pathlib.Path]]()


def pytest_addoption(parser):
  parser.addoption(
    "--golden",
    action="append",
    default=[],
    metavar="DIR",
    help="check the recorded outputs in DIR instead of the shipped excerpt"
    " (tests/golden_test.py)",
  )
  parser.addoption(
    "--part",
    default="1/1",
    metavar="K/N",
    help="of the slow tests, run those of every N-th file from the K-th on;"
    " of those marked `long`, which are minutes each, every N-th test",
  )


def pytest_configure(config):
  shipped = _ROOT / "tests" / "data" / "golden"
  given = [pathlib.Path(path).resolve() for path in config.getoption("golden")]
  for directory in given:
    if not (directory / "MANIFEST.json").exists():
      raise pytest.UsageError(
        f"--golden={directory} has no MANIFEST.json; give a directory in the"
        f" format of {shipped}."
      )
  part = config.getoption("part")
  first, _, step = part.partition("/")
  if not (
    first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)
  ):
    raise pytest.UsageError(
      f"--part={part} is not K/N with 1 <= K <= N; give one, such as 1/3."
    )
  # What thousands of tests leave in memory is looked through at every full
  # collection: 13 of 252 s in two files and a folder, more with all of them.
  gc.set_threshold(50_000, 20, 50)
  config.golden_key = _GOLDEN
  config.stash[_GOLDEN] = given or [shipped]


# Files of minutes. Begun last, one of them would leave a worker idle.
_LONGEST = (
  "multi_device_test.py",
  "notebooks_test.py",
  "hosts_test.py",
  "quickstart_test.py",
  "code_task_test.py",
  "resume_test.py",
  "stale_test.py",
  "readme_test.py",
  "vision_learns_test.py",
)
# Of these, files whose tests share nothing.
_APART = _LONGEST[:2]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
  """Lets each worker begin to import the test modules at another place.

  To compile them takes three quarters of the time of a first collection, and
  workers that go through them in the same order compile each of them at the
  same time.
  """
  config = session.config
  worker = getattr(config, "workerinput", None)
  if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:
    return
  names = sorted(
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for path in (_ROOT / "tests").rglob("*_test.py")
    if path.relative_to(_ROOT / "tests").parts[0] not in collect_ignore
  )
  number = int(worker["workerid"].removeprefix("gw"))
  first = len(names) * number // worker["workercount"]
  for name in names[first:] + names[:first]:
    # An error is told when the module is collected.
    with contextlib.suppress(Exception, pytest.skip.Exception):
      importlib.import_module(name)


def pytest_collection_modifyitems(config, items):
  """Deals the longest tests to the workers, as what each of them begins with.

  A worker gets an equal and contiguous part of all tests (`--dist worksteal`).
  Slow tests that are not of the chosen part are left out. Those of a file stay
  together, because they share programs.
  """
  first, step = map(int, config.getoption("part").split("/"))
  lots = {
    item: item.nodeid if item.get_closest_marker("long") else item.path
    for item in items
    if item.get_closest_marker("slow")
  }
  chosen = {*[*dict.fromkeys(lots.values())][first - 1 :: step]}
  gone = {item for item, lot in lots.items() if lot not in chosen}
  config.hook.pytest_deselected(items=[*gone])
  items[:] = [item for item in items if item not in gone]
  places = {name: place for place, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: places.get(item.path.name, len(places)))
  count = sum(item.path.name in places for item in items)
  longest, others = items[:count], items[count:]
  hands = [
    [*hand]
    for _, hand in itertools.groupby(
      longest,
      lambda x: x.nodeid if x.path.name in _APART else x.path.name,
    )
  ]
  workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
  dealt = []
  for number in range(workers):
    dealt += itertools.chain.from_iterable(hands[number::workers])
    end = max(len(items) * (number + 1) // workers - len(dealt), 0)
    dealt += others[:end]
    del others[:end]
  items[:] = dealt


def pytest_collection_finish():
  # Modules and tests stay to the end: no garbage collection looks for them.
  gc.freeze()


def pytest_terminal_summary(terminalreporter):
  """Prints the number of checked cases of each function."""
  counts: dict[str, int] = {}
  for report in terminalreporter.getreports("passed"):
    for name, value in report.user_properties:
      if name == "golden" and report.when == "call":
        counts[value[0]] = counts.get(value[0], 0) + value[1]
  if counts and terminalreporter.config.getoption("golden"):
    terminalreporter.section("golden cases per function")
    for function, count in sorted(counts.items()):
      terminalreporter.line(f"{count:6d}  {function}")
    terminalreporter.line(f"{sum(counts.values()):6d}  in all")


def pytest_runtest_setup():
  """Checks the names that runs log, and shares programs between equal runs."""
  run = sys.modules.get("grpo_jax.training.run")
  if run is not None and not hasattr(run.record, "__wrapped__"):
    run.record = _described(run.record)
    run.open_run = _with_programs_of_before(run.open_run)


# (Config, devices) of a run of this module of tests -> its evaluator and its
# programs.
_PROGRAMS: dict = {}


def pytest_runtest_teardown(item, nextitem):
  if nextitem is None or nextitem.path != item.path:
    _PROGRAMS.clear()


def _with_programs_of_before(open_run):
  """Lets a run take the programs of an equal run of the same module of tests.

  Most of the time of a tiny run is tracing. Programs that ask the host hold
  its workers, and are not shared.
  """

  @functools.wraps(open_run)
  def opened(stack, settings, config_json, workdir, **named):
    problem = named["problem"]
    on_host = problem.reward.asks_host or problem.host_environment is not None
    if on_host or _patched():
      return open_run(stack, settings, config_json, workdir, **named)
    key = config_json, named["mesh"]
    evaluator, programs = _PROGRAMS.get(key, (None, None))
    if evaluator is not None:
      named.setdefault("evaluator", evaluator)
    run = open_run(stack, settings, config_json, workdir, **named)
    if programs is None:
      _PROGRAMS[key] = run.evaluator, run.programs
    else:
      run.programs = programs
    return run

  return opened


def _patched() -> bool:
  """True while a test has put a function of its own into the library."""
  return any(
    isinstance(value, types.FunctionType)
    and value.__module__.startswith("tests.")
    for name, module in [*sys.modules.items()]
    if name.startswith("grpo_jax.")
    for value in [*vars(module).values()]
  )


def _described(record):
  from grpo_jax.training.monitor import metrics as metrics_lib

  @functools.wraps(record)
  def checked(*arguments, **named):
    metrics = record(*arguments, **named)
    unknown = metrics_lib.unknown(metrics)
    assert not unknown, f"add to training/monitor/metrics.toml: {unknown}"
    return metrics

  return checked


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
  """A `command.Finished` run that several tests look at.

  Of several workers one trains it, and each has a copy of its own.
  """
  from tests.experiments import command

  own = tmp_path_factory.mktemp("finished")
  if "PYTEST_XDIST_WORKER" not in os.environ:
    return command.finished(own)
  return command.finished_once(tmp_path_factory.getbasetemp().parent, own)


@pytest.fixture
def cache_of_datasets(tmp_path, monkeypatch):
  """A cache of the package `datasets` in the folder of a test; no network."""
  import datasets

  cache = str(tmp_path / "cache")
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
  monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
  return datasets


_MAPS = pathlib.Path("/proc/self/maps")
_num_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _forget_a_users_module():
  """Forgets the module of rewards of a test; the next one has its own."""
  yield
  sys.modules.pop("my_rewards", None)


@pytest.fixture(autouse=True)
def _free_programs():
  """Forgets compiled programs before there are too many of them.

  Each program keeps several memory maps. A process may have 65 530 on Linux,
  and XLA dies of the next one: thousands of tests come near. Ten thousand maps
  are 2.6 GB.
  """
  yield
  if next(_num_tests) % 50 or not _MAPS.exists():
    return
  jax = sys.modules.get("jax")
  if jax is not None and _MAPS.read_bytes().count(b"\n") > 15_000:
    jax.clear_caches()
    gc.collect()
