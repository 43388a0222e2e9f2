"""`experiments.tinker`, as a user starts it."""

import json
import urllib.request

import pytest

from tests.experiments import command


@pytest.mark.slow
def test_a_run_is_the_base_of_clients(finished, tmp_path):
  process = command.start(
    "tinker",
    *(f"--workdir={finished.cwd / 'run'}", "--model=run", "--port=0"),
    f"--saved={tmp_path}",
  )
  with process:
    line = process.stdout.readline()
    assert line.startswith("serving 'run' at http://127.0.0.1:"), line
    url = f"{line.split()[-1]}/api/v1/get_server_capabilities"
    with urllib.request.urlopen(url, timeout=60) as answer:
      (model,) = json.load(answer)["supported_models"]
    assert model["model_name"] == "run"
    assert model["max_context_length"] == 1024
    process.terminate()
    process.communicate()
  assert process.returncode == 0


@pytest.mark.slow
def test_mistakes_are_one_message(tmp_path):
  status, _, err = command.run("tinker", "--workdir=x", "--host=0.0.0.0")
  assert status == 2
  assert "set a token (--token_file)" in err
  key = tmp_path / "key"
  key.write_text("secret\n")
  status, _, err = command.run("tinker", "--workdir=x", f"--token_file={key}")
  assert status == 2
  assert "must begin with 'tml-'" in " ".join(err.split())
