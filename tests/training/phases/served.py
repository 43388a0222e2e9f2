"""A policy of bytes that nobody has trained, and a server of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import urllib.error
import urllib.request

import jax

from grpo_jax.data import tokenizer
from grpo_jax.rollout import sampling
from grpo_jax.serving import endpoint as endpoint_lib
from grpo_jax.serving import engine, http
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config

MAX_PROMPT_LEN, MAX_NEW_TOKENS = 24, 6
# Roles by a letter; of tools their names.
TEMPLATE = (
  "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
  "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
  "{% if m.role == 'assistant' %}<eos>{% endif %}|{% endfor %}"
  "{% if add_generation_prompt %}a:{% endif %}"
)


def write_tokenizer(folder) -> None:
  """The folder of a tokenizer of bytes with a chat template."""
  shutil.copy(tokenizer.BYTES, folder / "tokenizer.json")
  described = {"eos_token": "<eos>", "pad_token": "<pad>"}
  described["chat_template"] = TEMPLATE
  (folder / "tokenizer_config.json").write_text(json.dumps(described))


def write_prompts(path, prompts) -> None:
  """A file of records with these prompts."""
  lines = [json.dumps({"prompt": x, "answer": "1"}) for x in prompts]
  path.write_text("\n".join(lines))


def config_of(path, **changes):
  """A tiny policy of bytes, with prompts of a file."""
  config = config_lib.default_config()
  config.data.source = "jsonl"
  config.data.train_path = str(path)
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = MAX_PROMPT_LEN
  config.sampling.max_new_tokens = MAX_NEW_TOKENS
  for name in ("width", "mlp_width"):
    config.model[name] = 16
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.rewards.functions = ("math_accuracy",)
  config.rewards.in_graph = True  # No processes.
  return tiny_config.change(config, changes)


def loaded_of(config) -> checkpointed.Loaded:
  """Loads a run whose parameters are those of the first step."""
  resolved = config_lib.resolve(config)
  problem = problem_lib.make_problem(resolved)
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    policy = policy_lib.make_policy(resolved, problem, mesh)
    state = checkpointed.first_state(resolved, problem, policy, mesh)
  return checkpointed.Loaded(
    resolved, problem, policy, mesh, state.params["policy"], None
  )


def sampler_of(loaded: checkpointed.Loaded, num_rows: int = 4, **options):
  text = loaded.problem.tokenizer
  return engine.Drawer(
    loaded.policy,
    loaded.mesh,
    sampling.SamplerConfig(MAX_NEW_TOKENS, text.end_ids, text.pad_id),
    num_rows,
    MAX_PROMPT_LEN,
    **options,
  )


def speaker_of(loaded: checkpointed.Loaded, calls=None) -> endpoint_lib.Speaker:
  return endpoint_lib.Speaker(
    loaded.problem.encoder, loaded.problem.bytes_of, calls
  )


@contextlib.contextmanager
def working(loaded: checkpointed.Loaded, sampler: engine.Drawer):
  """Starts a thread that draws the requests."""
  over = threading.Event()

  def work():
    with jax.set_mesh(loaded.mesh):
      while not over.is_set():
        sampler.work(loaded.params, timeout_s=0.02)

  thread = threading.Thread(target=work)
  thread.start()
  try:
    yield
  finally:
    over.set()
    thread.join()


@contextlib.contextmanager
def server_of(loaded: checkpointed.Loaded, sampler, calls=None, **options):
  """Starts a server whose requests are answered."""
  endpoint = endpoint_lib.Completions(
    speaker_of(loaded, calls), sampler, "tiny", seed=100
  )
  server = http.Server(endpoint, **options)
  try:
    with working(loaded, sampler):
      yield server
  finally:
    server.close()


def post(url: str, body, token: str = "") -> tuple[int, dict]:
  """Posts a request; returns the status of the answer, and its body."""
  data = body if isinstance(body, bytes) else json.dumps(body).encode()
  headers = {"Content-Type": "application/json"}
  if token:
    headers["Authorization"] = f"Bearer {token}"
  return get(urllib.request.Request(url, data, headers))


def get(request) -> tuple[int, dict]:
  try:
    with urllib.request.urlopen(request, timeout=60) as answer:
      return answer.status, json.load(answer)
  except urllib.error.HTTPError as error:
    with error:
      return error.code, json.load(error)
