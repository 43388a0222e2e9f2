"""One finished run that several tests look at, each in its own copy."""

import dataclasses
import pathlib
import shutil

import pytest

from tests.experiments import command


@dataclasses.dataclass(frozen=True)
class Finished:
  """Run that was trained by its command, in the folder `run` of `cwd`."""

  cwd: pathlib.Path
  status: int
  out: str
  err: str

  def copy(self, cwd: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(self.cwd / "run", cwd / "run")


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Finished:
  cwd = tmp_path_factory.mktemp("finished")
  flags = ("--workdir=run", "--config.log.curves=True")
  result = command.run("train", command.TINY, *flags, cwd=cwd)
  return Finished(cwd, *result)
