r"""Serves a policy to the SDK of Tinker, which trains adapters over it.

    grpo-tinker --checkpoint=Qwen/Qwen3-0.6B --port=8001
    export TINKER_BASE_URL=http://127.0.0.1:8001 TINKER_API_KEY=tml-local
    python loop.py

The loop is the client's: it sends rows with a loss, takes steps, samples and
saves, as with the service. The base is a Hugging Face checkpoint, a GGUF file,
or the policy of a run (--workdir); clients name it by --model. Saved weights
are files under --saved, and a server that starts again finds them there.
docs/guides/tinker.md has the requests that are answered.

The server listens on this machine alone. With another --host it needs a
--token_file, whose text clients have as their API key: it begins with "tml-".
Ctrl-C ends the server. Exit status: 0, or 2 after a mistake in the command.
"""

from __future__ import annotations

import functools
import pathlib
import signal
import tempfile
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.cli import policies
from grpo_jax.training.runtime import terminal

if TYPE_CHECKING:
  from grpo_jax.training.phases import checkpointed

_POLICY = policies.define()
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
_PORT = flags.DEFINE_integer("port", 8001, "Port; 0: a free one.", 0, 65535)
_TOKEN_FILE = flags.DEFINE_string(
  "token_file", None, "File with the API key that clients have to bring."
)
_MODEL = flags.DEFINE_string(
  "model", None, "Name of the base; by default as it was given."
)
_SAVED = flags.DEFINE_string("saved", "runs/tinker", "Folder of saved weights.")
_ROWS = flags.DEFINE_integer("rows", 8, "Rows that are run at a time.", 1)
_MAX_LEN = flags.DEFINE_integer(
  "max_len", 1024, "Tokens of a row or a prompt.", 2
)
_MAX_NEW_TOKENS = flags.DEFINE_integer(
  "max_new_tokens", 256, "Tokens of a completion.", 1
)
_MAX_RANK = flags.DEFINE_integer("max_rank", 128, "Rank of adapters.", 1)
_MAX_MODELS = flags.DEFINE_integer(
  "max_models", 16, "Clients that train at the same time.", 1
)
_MAX_TOGETHER = flags.DEFINE_integer(
  "max_together", 4, "Clients whose requests are run in one program.", 1
)


def main(argv: Sequence[str]) -> int:
  """Serves until it is stopped."""
  from grpo_jax.serving import http

  del argv
  token = ""
  if _TOKEN_FILE.value:
    token = pathlib.Path(_TOKEN_FILE.value).read_text(encoding="utf-8").strip()
    if not token.startswith("tml-"):
      raise ValueError(
        f"--token_file={_TOKEN_FILE.value}: the text must begin with 'tml-', or"
        " the SDK refuses to send it."
      )
  http.check_address(_HOST.value, token)
  stop = threading.Event()
  signal.signal(signal.SIGTERM, lambda *_: stop.set())
  # Requests bring the tokens: a config of a checkpoint needs no prompts.
  with tempfile.NamedTemporaryFile("w+") as prompts:
    print('{"prompt": "1", "answer": "1"}', file=prompts, flush=True)
    with terminal.waiting("loading"):
      policy = _POLICY.opened(prompts.name, default="checkpoint")
    with policy as run:
      _serve(run.loaded, token, stop)
  return 0


def _serve(
  loaded: checkpointed.Loaded, token: str, stop: threading.Event
) -> None:
  """Works on the requests of the server."""
  import jax

  from grpo_jax.serving import endpoint
  from grpo_jax.serving.tinker import device, server, service, store

  problem, name = loaded.problem, str(_POLICY.name)
  tinker = service.Service(
    device.Device(
      loaded.policy,
      loaded.params,
      loaded.mesh,
      problem.tokenizer,
      num_rows=_ROWS.value,
      max_len=_MAX_LEN.value,
      max_new_tokens=_MAX_NEW_TOKENS.value,
      max_rank=_MAX_RANK.value,
      max_together=_MAX_TOGETHER.value,
    ),
    endpoint.Speaker(problem.encoder, problem.bytes_of),
    store.Store(pathlib.Path(_SAVED.value)),
    _MODEL.value or name,
    tokenizer_id=None if name.endswith(".gguf") else name,
    max_models=_MAX_MODELS.value,
  )
  http = server.TinkerServer(tinker, _HOST.value, _PORT.value, token)
  try:
    print(f"serving {tinker.model!r} at {http.url}", flush=True)
    with jax.set_mesh(loaded.mesh):  # As in training.
      while not stop.is_set():
        tinker.queue.work(timeout_s=0.5)
  except KeyboardInterrupt:
    pass
  finally:
    tinker.queue.close()
    http.close()


run = functools.partial(flags_lib.run, main, needs_config=False)
