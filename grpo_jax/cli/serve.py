r"""Serves a policy on a local port, in the manner of OpenAI's interface.

    grpo-serve --workdir=runs/mine --port=8000
    curl http://127.0.0.1:8000/v1/completions -d \
        '{"prompt": "27 + 58 =", "max_tokens": 8, "seed": 1, "logprobs": 1}'

The policy is that of a run, or a Hugging Face checkpoint with a config for its
data and lengths. The requests are GET /health, GET /v1/models, POST
/v1/chat/completions and POST /v1/completions; docs/serving.md has the fields.

The server listens on this machine alone. With another --host it needs a
--token_file, whose text each request has to bring: "Authorization: Bearer …".
Requests that come at the same time are drawn together, --rows at most, by one
program of fixed shape; the first one waits until it is compiled. Ctrl-C ends
the server. Exit status: 0, or 2 after a mistake in the command.
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
from grpo_jax.rewards.agents import call_formats
from grpo_jax.training.runtime import terminal

if TYPE_CHECKING:
  from grpo_jax.training.phases import checkpointed

_POLICY = policies.define()
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
_PORT = flags.DEFINE_integer("port", 8000, "Port; 0: a free one.", 0, 65535)
_TOKEN_FILE = flags.DEFINE_string(
  "token_file", None, "File with a token that requests have to bring."
)
_MODEL = flags.DEFINE_string("model", "policy", "Name of the model.")
_CALLS = flags.DEFINE_enum(
  "calls",
  None,
  sorted(call_formats.FORMATS),
  "How the policy writes calls of tools; by default they are text.",
)
_ROWS = flags.DEFINE_integer("rows", 8, "Completions drawn at a time.", 1)
_LENGTHS = policies.define_lengths()
_SEED = flags.DEFINE_integer(
  "seed", 0, "Requests without a seed have those from here on.", 0
)
_MAX_WAITING = flags.DEFINE_integer(
  "max_waiting", 256, "Completions that may wait; others are refused.", 1
)
_TIMEOUT_S = flags.DEFINE_float("timeout_s", 600.0, "For an answer.", 1e-3)


def main(argv: Sequence[str]) -> int:
  """Serves until it is stopped."""
  from grpo_jax.serving import http
  from grpo_jax.training.evaluation import data_sets

  del argv
  token = ""
  if _TOKEN_FILE.value:
    token = pathlib.Path(_TOKEN_FILE.value).read_text(encoding="utf-8").strip()
    if not token:
      raise ValueError(f"--token_file={_TOKEN_FILE.value} is empty.")
  http.check_address(_HOST.value, token)
  stop = threading.Event()
  signal.signal(signal.SIGTERM, lambda *_: stop.set())
  # Requests bring the prompts: a config of a checkpoint needs no file of them.
  with tempfile.NamedTemporaryFile("w+") as prompts:
    print('{"prompt": "1", "answer": "1"}', file=prompts, flush=True)
    with terminal.waiting("loading"):
      policy = _POLICY.opened(prompts.name)
    with policy as run:
      loaded = data_sets.with_lengths(run.loaded, *(x.value for x in _LENGTHS))
      _serve(loaded, token, stop)
  return 0


def _serve(
  loaded: checkpointed.Loaded, token: str, stop: threading.Event
) -> None:
  """Draws the requests of the server."""
  import jax

  from grpo_jax.rollout import sampling
  from grpo_jax.serving import endpoint as endpoint_lib
  from grpo_jax.serving import engine, http

  problem = loaded.problem
  sampler = engine.Drawer(
    loaded.policy,
    loaded.mesh,
    sampling.SamplerConfig(
      max_new_tokens=problem.max_new_tokens,
      end_ids=problem.tokenizer.end_ids,
      pad_id=problem.tokenizer.pad_id,
    ),
    _ROWS.value,
    problem.max_prompt_len,
    max_waiting=_MAX_WAITING.value,
  )
  speaker = endpoint_lib.Speaker(
    problem.encoder,
    problem.bytes_of,
    endpoint_lib.calls_named(_CALLS.value or ""),
  )
  endpoint = endpoint_lib.Completions(
    speaker, sampler, _MODEL.value, _SEED.value
  )
  server = http.Server(
    endpoint, _HOST.value, _PORT.value, token, timeout_s=_TIMEOUT_S.value
  )
  try:
    print(f"serving {_MODEL.value!r} at {server.url}/v1", flush=True)
    with jax.set_mesh(loaded.mesh):  # As in training.
      while not stop.is_set():
        sampler.work(loaded.params, timeout_s=0.5)
  except KeyboardInterrupt:
    pass
  finally:
    sampler.close("the server ends.")
    server.close()


run = functools.partial(flags_lib.run, main, needs_config=False)
