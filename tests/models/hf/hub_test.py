"""Folders and names of checkpoints."""

import hashlib

import huggingface_hub
import pytest
from huggingface_hub import constants, utils

from grpo_jax.models.hf import hub
from grpo_jax.settings import config as config_lib


def test_a_folder_comes_first(tmp_path, monkeypatch):
  folder = tmp_path / "owner/name"
  folder.mkdir(parents=True)
  with pytest.raises(ValueError, match=r"owner/name has no config\.json"):
    hub.local_directory(str(folder))
  (folder / "config.json").write_text("{}")
  assert hub.local_directory(str(folder)) == folder
  monkeypatch.setenv("HOME", str(tmp_path))
  assert hub.local_directory("~/owner/name") == folder
  monkeypatch.chdir(tmp_path)
  assert hub.local_directory("owner/name").samefile(folder)


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "name", "a/b/c"])
def test_what_is_neither_a_folder_nor_a_name_is_refused(tmp_path, name):
  with pytest.raises(
    (FileNotFoundError, ValueError), match=r"model\.checkpoint: "
  ):
    hub.local_directory(name)
  file = tmp_path / "config.json"
  file.write_text("{}")
  with pytest.raises(FileNotFoundError, match="there is no folder"):
    hub.local_directory(str(file))


@pytest.mark.slow
def test_a_name_without_network(tmp_path, monkeypatch):
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
  monkeypatch.chdir(tmp_path)
  with pytest.raises(
    FileNotFoundError,
    match=rf"'nobody/nothing' is not a folder in {tmp_path}, and could not be"
    r" downloaded from the hub \(\w+: (.|\n)*Copy the checkpoint to a folder",
  ):
    hub.local_directory("nobody/nothing")


@pytest.mark.parametrize("revision", ["", "v1.0", 40 * "a"])
def test_a_revision_is_the_one_that_is_downloaded(
  tmp_path, monkeypatch, revision
):
  asked = []

  def download(name, revision, **patterns):
    asked.append((name, revision))
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  monkeypatch.chdir(tmp_path)
  assert hub.local_directory("owner/name", revision) == tmp_path
  assert asked == [("owner/name", revision or None)]
  model = config_lib.ModelConfig(checkpoint="owner/name", revision=revision)
  assert model.directory() == tmp_path
  assert asked[1:] == asked[:1]


def test_a_folder_has_no_revision(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(ValueError, match=r"model\.revision: 'v1' .*comes first"):
    hub.local_directory(str(tmp_path), "v1")
  with pytest.raises(ValueError, match=r"set config\.model\.checkpoint"):
    config_lib.ModelConfig(revision="v1")


@pytest.mark.parametrize("weights", [False, True])
def test_weights_are_downloaded_once_and_where_they_are_read(
  tmp_path, monkeypatch, weights
):
  names = [
    *("README.md", "additional_chat_templates/tool_use.jinja"),
    *("chat_template.jinja", "config.json"),
    *("consolidated.safetensors", "model-00001-of-00002.safetensors"),
    *("model.safetensors.index.json", "onnx/config.json"),
    *("original/model.safetensors", "pytorch_model.bin", "tokenizer.json"),
  ]
  found = []

  def download(name, revision, **patterns):
    found.append(list(utils.filter_repo_objects(names, **patterns)))
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  monkeypatch.chdir(tmp_path)
  config_lib.ModelConfig(checkpoint="owner/name").directory(weights)
  assert found == [
    [
      "README.md",
      "additional_chat_templates/tool_use.jinja",
      "chat_template.jinja",
      "config.json",
      *(["model-00001-of-00002.safetensors"] if weights else []),
      "model.safetensors.index.json",
      "tokenizer.json",
    ]
  ]


def test_listed_files_are_compared(tmp_path):
  hub.check_sums(tmp_path)  # No list, no comparison.
  files = {"a.safetensors": b"a" * 100, "config.json": b"{}"}
  lines = []
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)
    lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
  (tmp_path / "SHA256SUMS").write_text("".join(lines))
  hub.check_sums(tmp_path)
  (tmp_path / "a.safetensors").write_bytes(b"a" * 99 + b"q")
  with pytest.raises(
    ValueError, match=r"a\.safetensors is not the file of SHA"
  ):
    hub.check_sums(tmp_path)
  (tmp_path / "a.safetensors").unlink()
  with pytest.raises(ValueError, match="its sha256 is missing, needs"):
    hub.check_sums(tmp_path)


@pytest.mark.parametrize("line", ["a b", f"{'0' * 64}  ../a", f"{'0' * 63}  a"])
def test_a_list_of_something_else_is_refused(tmp_path, line):
  (tmp_path / "SHA256SUMS").write_text(line)
  with pytest.raises(ValueError, match="SHA256SUMS has the line '"):
    hub.check_sums(tmp_path)
