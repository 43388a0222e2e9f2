"""Files of adapters, with the moments of their optimizer or without.

A file is an archive of NumPy arrays, named by their places in the tree, and of
a JSON text that says rank, projections and base. A kill leaves the old file or
the new. Paths of the API, as tinker://MODEL/weights/NAME, are files of one
folder.
"""

from __future__ import annotations

import io
import json
import pathlib
import re
from typing import Any

import jax
import numpy as np

from grpo_jax.serving.requests import BadRequest
from grpo_jax.training.runtime import files
from grpo_jax.types import PyTree

_ABOUT = "about"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(
  r"tinker://([A-Za-z0-9:_-]{1,128})/(weights|sampler_weights)/(.+)"
)


class Store:
  """A folder of saved adapters."""

  def __init__(self, folder: pathlib.Path):
    """Makes the folder, if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    self._folder = folder

  def path(self, model_id: str, kind: str, name: str) -> str:
    """The path of a name in the API.

    Args:
      model_id: The client's adapters.
      kind: "weights", with moments, or "sampler_weights".
      name: The name that the client gave.

    Raises:
      BadRequest: The name could not be one of a file.
    """
    if not _NAME.fullmatch(name):
      raise BadRequest(
        f"path={name!r:.80} must be a name of letters, digits, '.', '_' and"
        " '-'.",
        "path",
      )
    return f"tinker://{model_id}/{kind}/{name}"

  def file(self, path: str) -> pathlib.Path:
    """The file of a path of the API, which may not exist.

    Raises:
      BadRequest: It is no such path.
    """
    match = _PATH.fullmatch(path)
    if match is None or not _NAME.fullmatch(match[3]):
      raise BadRequest(
        f"{path!r:.80} is no path of saved weights, such as"
        " tinker://MODEL/weights/NAME.",
        "path",
      )
    model_id, kind, name = match.groups()
    return self._folder / model_id.replace(":", "_") / kind / f"{name}.npz"

  def write(self, path: str, about: dict[str, Any], tree: PyTree) -> None:
    """Writes a tree of arrays of the host, with the data about it."""
    arrays: dict[str, Any] = {
      jax.tree_util.keystr(place): x
      for place, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    arrays[_ABOUT] = np.array(json.dumps(about))
    content = io.BytesIO()
    np.savez(content, **arrays)
    file = self.file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, content.getvalue())

  def about(self, path: str) -> dict[str, Any]:
    """Returns the data about a saved tree.

    Raises:
      BadRequest: There is no file, or it is damaged.
    """
    return self._read(path)[0]

  def read(self, path: str, like: PyTree) -> PyTree:
    """Reads a tree of arrays.

    Args:
      path: Path of the API.
      like: The tree, or its shapes.

    Raises:
      BadRequest: There is no file, it is damaged, or its arrays are others.
    """
    _, arrays = self._read(path, with_arrays=True)

    def array_of(place, x):
      name = jax.tree_util.keystr(place)
      array = arrays.get(name)
      if array is None or (array.shape, array.dtype) != (x.shape, x.dtype):
        has = "absent" if array is None else f"{array.dtype}{array.shape}"
        raise BadRequest(
          f"{path!r:.200}: the array {name} is {has}, and needs"
          f" {x.dtype}{tuple(x.shape)}.",
          "path",
        )
      return array

    return jax.tree_util.tree_map_with_path(array_of, like)

  def _read(
    self, path: str, with_arrays: bool = False
  ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    file = self.file(path)
    if not file.is_file():
      raise BadRequest(
        f"there is nothing at {path!r:.200}.", "path", status=404
      )
    try:
      with np.load(file, allow_pickle=False) as archive:
        about = json.loads(str(archive[_ABOUT]))
        names = [x for x in archive.files if x != _ABOUT] if with_arrays else []
        return about, {name: archive[name] for name in names}
    except Exception as error:  # Of archives, arrays and JSON: many kinds.
      raise BadRequest(
        f"{path!r:.200}: the file is damaged: {error}", "path"
      ) from error
