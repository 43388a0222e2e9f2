"""Folders of checkpoints, downloaded from the Hugging Face hub if needed.

A GGUF file becomes a folder too (`gguf.py`).
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re

# A list of files and their checksums, as `sha256sum` prints it.
_SUMS = "SHA256SUMS"
# Files that loading and exporting read. Other formats of the same weights are
# left out, as are weights in folders and Mistral's consolidated.safetensors.
_FILES = (
  *("*.json", "*.jinja", "tokenizer.model", _SUMS),
  *("README.md", "LICENSE*", "NOTICE*"),  # Exports copy or quote them.
)
_WEIGHTS = "*.safetensors"
# A file in a folder is not read, unless it is a chat template (*.jinja).
_OTHERS = ("*/*.json", "*/*.safetensors", "consolidated*")


def local_directory(
  name: str, revision: str = "", weights: bool = True
) -> pathlib.Path:
  """The folder of a checkpoint; downloads it if `name` is a hub name.

  Args:
    name: A folder with a config.json, a GGUF file, or "owner/name" on the hub.
      If a folder of that name exists, it is taken.
    revision: Commit, tag or branch on the hub; only a commit never changes.
      Empty: the newest commit of the main branch.
    weights: Whether the weights are downloaded too. Without them, a plan of a
      run takes seconds: it needs only the sizes and the tokenizer.

  Raises:
    FileNotFoundError: There is no such folder, or no network to look it up.
    ValueError: The folder has no config.json; the GGUF file is damaged, or not
      supported; or a folder or a file is given with a revision.
    ImportError: A hub name needs huggingface_hub, and a GGUF file the package
      gguf, which is not installed.
  """
  path = pathlib.Path(name).expanduser()
  if path.is_dir():
    if not (path / "config.json").exists():
      raise ValueError(
        f"model.checkpoint: {path} has no config.json; needs a folder as"
        " save_pretrained writes it."
      )
    if revision:
      raise ValueError(
        f"model.revision: {revision!r} is of a checkpoint on the hub, and"
        f" {path} is a folder, which comes first; leave the revision out, or"
        " start in another folder."
      )
    return path
  if path.suffix.lower() == ".gguf":
    return _of_gguf(path, revision)
  if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
    raise FileNotFoundError(
      f"model.checkpoint: there is no folder {name!r}; give the path of a"
      " checkpoint, or owner/name on the Hugging Face hub."
    )
  try:
    import huggingface_hub
  except ImportError as error:
    raise ImportError(
      f"model.checkpoint: {name!r} is not a folder here; to download it"
      " from the hub, install the extra: pip install -e '.[hf]'."
    ) from error
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        name,
        revision=revision or None,
        allow_patterns=[*_FILES, *([_WEIGHTS] if weights else [])],
        ignore_patterns=list(_OTHERS),
      )
    )
  except Exception as error:  # A wrong name, no network or no permission.
    at = f" at {revision!r}" if revision else ""
    raise FileNotFoundError(
      f"model.checkpoint: {name!r}{at} is not a folder in {pathlib.Path.cwd()},"
      f" and could not be downloaded from the hub ({type(error).__name__}:"
      f" {error}). Copy the checkpoint to a folder and give its path."
    ) from error


def _of_gguf(path: pathlib.Path, revision: str) -> pathlib.Path:
  """The folder of a GGUF file."""
  if not path.is_file():
    raise FileNotFoundError(
      f"model.checkpoint: there is no file {os.fspath(path)!r} in"
      f" {pathlib.Path.cwd()}; give the path of a GGUF file."
    )
  if revision:
    raise ValueError(
      f"model.revision: {revision!r} is of a checkpoint on the hub, and {path}"
      " is a file; leave the revision out."
    )
  from grpo_jax.models.hf import gguf  # It needs a further package.

  return gguf.folder(path)


def check_sums(directory: pathlib.Path) -> None:
  """Compares the files that SHA256SUMS lists, if the checkpoint has one.

  Raises:
    ValueError: A file is missing or has another content; or SHA256SUMS is not a
      list of checksums.
  """
  path = directory / _SUMS
  if not path.exists():
    return
  for line in path.read_text(encoding="utf-8").splitlines():
    match = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\]+)", line)
    if not match:
      raise ValueError(
        f"model.checkpoint: {path} has the line {line[:80]!r}; needs what"
        f" `sha256sum *.safetensors > {_SUMS}` writes in that folder."
      )
    expected, name = match.groups()
    digest = "missing"
    if (directory / name).is_file():
      with (directory / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
      raise ValueError(
        f"model.checkpoint: {directory / name} is not the file of {_SUMS}: its"
        f" sha256 is {digest}, needs {expected}. Copy it again from where"
        " the list comes from."
      )
