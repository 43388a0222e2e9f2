"""`experiments.serve`, as a user starts it: one policy, asked by clients."""

import pytest

from tests.experiments import command
from tests.training.phases import served


def started(finished, *arguments):
  """The server of a finished run, and the address that it has printed."""
  process = command.start(
    "serve", f"--workdir={finished.cwd / 'run'}", "--port=0", *arguments
  )
  line = process.stdout.readline()
  assert line.startswith("serving 'policy' at http://127.0.0.1:"), line
  return process, line.split()[-1]


@pytest.mark.slow
def test_a_run_is_served_until_it_is_killed(finished):
  body = {"prompt": "ab=", "seed": 4, "n": 2, "return_token_ids": True}
  choices = []
  for end in ("kill", "terminate"):
    process, url = started(finished)
    with process:
      status, answer = served.post(f"{url}/completions", body)
      assert status == 200
      choices.append(answer["choices"])
      getattr(process, end)()
      process.communicate()
    assert (process.returncode == 0) == (end == "terminate")
    with pytest.raises(OSError, match="refused"):
      served.post(f"{url}/completions", body)
  # Nothing was in the server that is not in the run: seeds decide.
  assert choices[0] == choices[1]
  ids = {tuple(choice["token_ids"]) for choice in choices[0]}
  assert len(choices[0]) == 2
  assert all(ids)


@pytest.mark.slow
def test_mistakes_are_one_message(finished, tmp_path):
  workdir = f"--workdir={finished.cwd / 'run'}"
  status, _, err = command.run("serve", workdir, "--host=0.0.0.0")
  assert status == 2
  assert "set a token (--token_file)" in err
  empty = tmp_path / "token"
  empty.write_text("\n")
  status, _, err = command.run("serve", workdir, f"--token_file={empty}")
  assert status == 2
  assert "is empty" in err
