"""The workdir of a run: its settings, and the models of its checkpoints.

Only the models that are asked for are read of a checkpoint, without moments and
the state of phases. So a run can be opened whose own teachers are gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from jax.sharding import Mesh

from grpo_jax import imports
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import policy
from grpo_jax.training.runtime import checkpoints, files, log, sharding
from grpo_jax.types import ModelState, PyTree

# (Config, import path) pairs for which a warning has been given.
_warned: set[tuple[str, str]] = set()


def settings(workdir: files.Path) -> config_lib.RunConfig:
  """Reads the settings of a run, and imports or fetches all that they name.

  A warning names the objects that this process has not imported yet.

  Args:
    workdir: Folder of the run, local or gs://.

  Raises:
    FileNotFoundError: There is no run, or an object that it names is missing.
    ValueError: Its config is damaged, or an object that it names cannot be
      imported.
  """
  path = workdir / log.CONFIG
  if not path.exists():
    raise FileNotFoundError(
      f"{workdir} holds no run: {path} is missing. Pass the --workdir of"
      " grpo-train."
    )
  values = log.read_json(path, dict)
  if "model_type" in values:
    raise ValueError(
      f"{workdir} is a Hugging Face checkpoint, and not a run; needs the"
      " --workdir of grpo-train."
    )
  names = [x for x in _foreign(values) if not imports.is_known(x)]
  if new := {(str(path), name) for name in names} - _warned:
    _warned.update(new)
    logging.warning(
      "%s names %s, which will be imported and run: use workdirs of people"
      " whom you trust.",
      path,
      ", ".join(names),
    )
  imports.fetch(json.dumps(values), workdir)
  return config_lib.resolve(ml_collections.ConfigDict(values))


# Settings that may hold import paths, in any group.
_NAMING = frozenset(
  (
    *("name", "functions", "steps", "correct", "consistent", "environment"),
    *("rules", "judge", "tools"),
  )
)


def _foreign(values: Mapping[str, Any]) -> list[str]:
  """The import paths in a config, without those of grpo_jax itself."""
  return [
    text
    for text in dict.fromkeys(_import_paths(values, ""))
    if ":" in text and not text.startswith("grpo_jax.")
  ]


def _import_paths(value: Any, setting: str) -> Iterator[str]:
  """Yields texts of the settings in `_NAMING`, also inside groups and lists."""
  if isinstance(value, Mapping):
    for name, inner in value.items():
      yield from _import_paths(inner, name)
  elif isinstance(value, str):
    if setting in _NAMING:
      yield value
  elif isinstance(value, Sequence):
    for inner in value:
      yield from _import_paths(inner, setting)


def last_step(workdir: files.Path, config: config_lib.RunConfig) -> int:
  """The step of the last checkpoint.

  Raises:
    FileNotFoundError: There is no checkpoint.
  """
  with _open(workdir, config) as store:
    step = store.latest_step()
  if step is None:
    raise FileNotFoundError(
      f"{workdir} has no checkpoint yet; wait for the first one"
      " (config.checkpoint.every)."
    )
  return step


def shapes(
  workdir: files.Path, config: config_lib.RunConfig, step: int
) -> dict[str, ModelState]:
  """The models of a checkpoint by name, as shapes; moments are left out.

  Raises:
    FileNotFoundError, ValueError: There is no such step, or it is damaged.
  """
  with _open(workdir, config) as store:
    models = store.shapes(step)["models"]
  return {
    name: ModelState(
      params=_groups(model.get("params") or {}), average=model.get("average")
    )
    for name, model in models.items()
  }


def read(
  workdir: files.Path,
  config: config_lib.RunConfig,
  step: int,
  models: Mapping[str, ModelState],
  mesh: Mesh,
) -> dict[str, PyTree]:
  """Reads the parameters of some models; if a model has an average, that.

  Args:
    workdir: Folder of the run, local or gs://.
    models: Shapes of the models by name, taken from `shapes`.
    mesh: Mesh on which they are placed (`sharding.of_params`).

  Raises:
    FileNotFoundError, ValueError: There is no such step, or it is damaged.
  """

  def place(tree):
    return sharding.abstract(tree, sharding.of_params(mesh, tree))

  abstract = {
    name: {
      "params": {key: place(x) for key, x in model.params.items() if x},
      **({} if model.average is None else {"average": place(model.average)}),
    }
    for name, model in models.items()
  }
  with _open(workdir, config) as store:
    values = store.restore({"models": abstract}, step, in_part=True)[0]
  return {
    name: policy.evaluation_params(
      ModelState(params=_groups(state["params"]), average=state.get("average"))
    )
    for name, state in values["models"].items()
  }


def _groups(params: PyTree) -> PyTree:
  """The parameters with both groups; a checkpoint leaves out an empty one."""
  return {"trained": {}, "frozen": {}} | params


@contextlib.contextmanager
def _open(
  workdir: files.Path, config: config_lib.RunConfig
) -> Iterator[checkpoints.Checkpoints]:
  store = checkpoints.Checkpoints(
    workdir / "checkpoints", keep=config.checkpoint.keep
  )
  try:
    yield store
  finally:
    store.close()
