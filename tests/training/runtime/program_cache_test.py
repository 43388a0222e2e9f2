"""Compiled programs are kept, unless JAX was told where."""

import pathlib
import types

import jax
import pytest

from grpo_jax.training.runtime import compilation


def test_programs_are_kept_unless_jax_was_told_where(monkeypatch, tmp_path):
  name = "jax_compilation_cache_dir"
  before = getattr(jax.config, name)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  try:
    for told in ("/elsewhere", ""):
      jax.config.update(name, told)
      compilation.use()
      assert getattr(jax.config, name) == told
    jax.config.update(name, None)
    compilation.use()
    folder = pathlib.Path(getattr(jax.config, name))
    assert folder.relative_to(tmp_path).parts[:2] == ("grpo_jax", "programs")
  finally:
    jax.config.update(name, before)


@pytest.mark.parametrize(
  ("mode", "group", "warned"),
  [(0o700, "own", 0), (0o775, "own", 0), (0o777, "own", 1), (0o775, "all", 1)],
)
def test_programs_that_others_can_write_are_warned_of(
  tmp_path, monkeypatch, mode, group, warned
):
  tmp_path.chmod(mode)
  found = tmp_path.stat()
  gid = found.st_uid + (group == "all")
  owner = types.SimpleNamespace(
    st_mode=found.st_mode, st_uid=found.st_uid, st_gid=gid
  )
  monkeypatch.setattr(pathlib.Path, "stat", lambda *_, **__: owner)
  warnings = []
  monkeypatch.setattr(
    compilation.logging, "warning", lambda *a: warnings.append(a)
  )
  compilation._warn_of_strangers(str(tmp_path))
  assert len(warnings) == warned
  owner.st_uid += 1
  compilation._warn_of_strangers(str(tmp_path))
  assert len(warnings) == warned + 1
