r"""Starts a program with secrets in its environment.

    python -m experiments.launch.with_secrets PROJECT,HF_TOKEN=my-token \
        python -m experiments.train --config=...

Each NAME=SECRET becomes the variable NAME with the newest version of SECRET in
the Secret Manager of the project. The request is made as the service account of
this machine, which needs roles/secretmanager.secretAccessor on the secret. The
values are only in the memory of the program: command lines, files and metadata
do not have them. Python without packages is enough.

Sources: cloud.google.com/compute/docs/metadata and the REST reference of the
Secret Manager, projects.secrets.versions.access.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
_SECRETS = "https://secretmanager.googleapis.com/v1"
_TIMEOUT_S = 30
_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h.


def spelled(project: str, secrets: Mapping[str, str]) -> str:
  """Text of the first argument: project and variable -> secret."""
  return ",".join([project, *(f"{k}={v}" for k, v in secrets.items())])


def parse(text: str) -> tuple[str, dict[str, str]]:
  """Parses the first argument: project, and variable -> secret.

  Raises:
    ValueError: The argument is not PROJECT,NAME=SECRET,…
  """
  project, *pairs = text.split(",")
  if not project or not all(re.fullmatch(r"\w+=[\w-]+", x) for x in pairs):
    raise ValueError(
      f"with_secrets: received {text!r}; needs PROJECT,NAME=SECRET."
    )
  return project, dict(pair.split("=") for pair in pairs)


def _json(url: str, headers: Mapping[str, str]) -> dict:
  request = urllib.request.Request(url, headers=dict(headers))
  with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
    return json.load(answer)


def values(project: str, secrets: Mapping[str, str]) -> dict[str, str]:
  """Reads the secrets: variable -> value.

  Args:
    project: Project of Google Cloud.
    secrets: Variable -> name of the secret.

  Raises:
    OSError: The machine or the secret does not exist, or permission is missing.
  """
  # The variable that Google's libraries read too.
  host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
  token = _json(f"http://{host}{_TOKEN}", {"Metadata-Flavor": "Google"})
  headers = {"Authorization": f"Bearer {token['access_token']}"}
  found = {}
  for name, secret in secrets.items():
    url = f"{_SECRETS}/projects/{project}/secrets/{secret}/versions/latest"
    try:
      answer = _json(f"{url}:access", headers)
    except urllib.error.HTTPError as error:
      raise OSError(
        f"with_secrets: the secret {secret} of {project} is not to be had"
        f" ({error}); the service account of this machine needs"
        " roles/secretmanager.secretAccessor on it."
      ) from error
    found[name] = base64.b64decode(answer["payload"]["data"]).decode().strip()
  return found


def main(argv: Sequence[str]) -> None:
  """Becomes the program; exits with 69 if a secret is not available."""
  if len(argv) < 3:
    sys.exit("with_secrets: needs PROJECT,NAME=SECRET and a command.")
  try:
    project, secrets = parse(argv[1])
    environment = os.environ | values(project, secrets)
  except (OSError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(_UNAVAILABLE)
  os.execvpe(argv[2], list(argv[2:]), environment)


if __name__ == "__main__":
  main(sys.argv)
