"""Secrets of a worker come from the Secret Manager, into one environment."""

import base64
import io
import json
import urllib.error

import pytest

from experiments.launch import with_secrets


@pytest.fixture
def google(monkeypatch):
  """Plays metadata server and Secret Manager; returns what was asked."""
  asked = []

  def urlopen(request, timeout):
    del timeout
    asked.append((request.full_url, dict(request.headers)))
    if "metadata" in request.full_url:
      return io.BytesIO(b'{"access_token": "t0ken"}')
    if "my-key" not in request.full_url:
      raise urllib.error.HTTPError(request.full_url, 403, "no", {}, None)
    data = base64.b64encode(b"s3cret\n").decode()
    return io.BytesIO(json.dumps({"payload": {"data": data}}).encode())

  monkeypatch.setattr(with_secrets.urllib.request, "urlopen", urlopen)
  return asked


def test_the_program_gets_the_value_in_its_environment(google, monkeypatch):
  started = []
  monkeypatch.setattr(
    with_secrets.os, "execvpe", lambda *given: started.append(given)
  )
  first = with_secrets.spelled("my-project", {"HF_TOKEN": "my-key"})
  assert first == "my-project,HF_TOKEN=my-key"
  with_secrets.main(["with_secrets", first, "python", "-m", "a", "--b"])
  ((program, command, environment),) = started
  assert (program, command) == ("python", ["python", "-m", "a", "--b"])
  assert environment["HF_TOKEN"] == "s3cret"
  metadata, secret = google
  assert metadata[1] == {"Metadata-flavor": "Google"}
  assert secret[0].endswith(
    "/v1/projects/my-project/secrets/my-key/versions/latest:access"
  )
  assert secret[1] == {"Authorization": "Bearer t0ken"}


@pytest.mark.usefixtures("google")
def test_a_secret_that_is_not_to_be_had_starts_nothing(capsys):
  with pytest.raises(SystemExit) as left:
    with_secrets.main(["", "my-project,HF_TOKEN=other", "true"])
  assert left.value.code == 69
  assert "roles/secretmanager.secretAccessor" in capsys.readouterr().err
  with pytest.raises(SystemExit) as left:
    with_secrets.main(["", "HF_TOKEN", "true"][:2])
  assert "needs" in left.value.code
