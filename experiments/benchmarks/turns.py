r"""Tokens per second of episodes whose tools are on the host.

    JAX_PLATFORMS=cpu python -m experiments.benchmarks.turns
    JAX_PLATFORMS=cpu python -m experiments.benchmarks.turns \
        --turns=8 --latency_ms=0,50,500 --observation_len=64 --repeats=3

Every row plays `--turns` turns of `--action_len` tokens. A session in a process
of its own answers each turn: it sleeps, and then writes `--observation_len`
tokens. A sleep takes 0.5 to 1.5 times the latency, by the row and the turn. The
model has random parameters, and the width, the layers and the MLP of preset S
of `step`. One run does the same work in three ways:

- kept: as in training. Keys and values stay on the device between turns, a row
  goes on as soon as its answer is there (`rollout/host_turns.py`).
- anew: as it was before. In each turn the whole context is read again, and all
  rows wait for the slowest tool.
- floor: the programs of "kept" alone, whose answers are there at once.

Tokens are those of the policy. Idle is the share of the time in which the
device has no work. Numbers are medians over rollouts, after one that compiles.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.models import architecture, transformer
from grpo_jax.rollout import drawing, host_state, host_turns, resumed, sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import host_sampler
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Policy, Prompts, PyTree

_TURNS = flags.DEFINE_list("turns", ["2", "4", "8"], "Of an episode.")
_LATENCY = flags.DEFINE_list("latency_ms", ["0", "50", "500"], "Of a tool.")
_ACTION = flags.DEFINE_integer("action_len", 16, "Tokens.", 1)
_OBSERVATION = flags.DEFINE_list("observation_len", ["32"], "Tokens.")
_PROMPT = flags.DEFINE_integer("prompt_len", 64, "Tokens.", 16)
_PROMPTS = flags.DEFINE_integer("prompts", 8, "Of a rollout.", 1)
_GROUP = flags.DEFINE_integer("group", 4, "Rows of each prompt.", 1)
_LANES = flags.DEFINE_integer("lanes", None, "Rows on the device; None: all.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Rollouts.", 1)
_WAYS = flags.DEFINE_list("ways", ["kept", "anew", "floor"], "To measure.")

_PATH = "experiments.benchmarks.slow_tool:make"
_VOCAB = 64


class Size(NamedTuple):
  """Amount of work in a benchmark of turns.

  Attributes:
    turns: Number of actions of an episode.
    action, observation: Tokens of an action, and of an answer to it.
    latency_s: Mean seconds that a tool sleeps.
  """

  turns: int
  action: int
  observation: int
  latency_s: float

  @property
  def slots(self) -> int:
    return self.turns * self.action + (self.turns - 1) * self.observation


class Bench:
  """A size of work, and the three ways to do it."""

  def __init__(self, size: Size):
    self.size = size
    self.mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
    self.problem = _problem(size)
    self.policy = _policy()
    self.params = self.policy.init(jax.random.key(0))
    self.batch = next(self.problem.prompt_stream(0, _PROMPTS.value, None))
    shape = _PROMPTS.value, _PROMPT.value
    self.prompts = dataclasses.replace(
      jax.tree.map(jnp.asarray, self.batch.prompts),
      tokens=jax.random.randint(jax.random.key(1), shape, 3, _VOCAB),
      mask=jnp.ones(shape, bool),
    )
    self.turns = host_sampler.make_turns(
      self.policy, self.problem, _sampler(size), _GROUP.value
    )
    self._player = host_sampler.HostSampler(self.problem, self.mesh, self.turns)
    self._anew = _Anew(self.policy, self.turns)

  @property
  def num_rows(self) -> int:
    return _PROMPTS.value * _GROUP.value

  @property
  def tokens(self) -> int:
    """Number of tokens that a rollout draws."""
    return self.num_rows * self.size.turns * self.size.action

  def kept(self) -> tuple[float, float]:
    """Seconds of a rollout, and those in which the device was idle."""
    start = time.perf_counter()
    with jax.set_mesh(self.mesh):
      played = self._player.sample(
        self.params, self.prompts, jax.random.key(0), self.batch
      )
    jax.block_until_ready(played.rollout)
    seconds = time.perf_counter() - start
    written = int(played.rollout.written.sum())
    assert written == self.tokens, (written, self.tokens)
    return seconds, played.seconds

  def anew(self) -> tuple[float, float]:
    """The same, with whole contexts and a barrier after each turn."""
    start = time.perf_counter()
    episodes = self._sessions()
    idle_s = 0.0
    key, size = jax.random.key(0), self.size
    tokens, written = self._anew.begin(self.prompts)
    for turn in range(size.turns):
      tokens, written = self._anew.act(
        self.params, self.prompts, key, tokens, written
      )
      jax.block_until_ready(tokens)
      waited = time.perf_counter()
      answers = episodes.step(
        dict.fromkeys(range(self.num_rows), "x"), turn == size.turns - 1
      )
      assert len(answers) == self.num_rows
      idle_s += time.perf_counter() - waited
      if turn < size.turns - 1:
        tokens, written = self._anew.read(tokens, written, size.observation)
    assert (np.asarray(written) == size.slots).all()
    return time.perf_counter() - start, idle_s

  def floor(self) -> tuple[float, float]:
    """Runs the programs alone; answers are there at once."""
    player, size = self._player, self.size
    inputs = self.params, self.prompts, jax.random.key(0)
    start = time.perf_counter()
    with jax.set_mesh(self.mesh):
      fixed, episodes, _ = player._begin(*inputs)
      shape = self.num_rows, size.observation
      nothing = np.zeros(self.num_rows, bool)
      came, turn = nothing, np.zeros(self.num_rows, int)
      while True:
        answers = host_state.HostAnswers(
          observation=np.full(shape, 38, np.int32),
          size=np.where(turn < size.turns, size.observation, 0).astype("int32"),
          reward=np.zeros(self.num_rows, np.float32),
          continues=turn < size.turns,
          came=came,
        )
        episodes, actions, left = player._advance(
          fixed, episodes, sharding.from_local(answers, player._judged)
        )
        if not jax.device_get(left.continues):
          return time.perf_counter() - start, 0.0
        came = np.asarray(actions.length) > 0
        turn = turn + came

  def _sessions(self) -> Any:
    index = np.repeat(np.arange(_PROMPTS.value), _GROUP.value)
    seeds = np.arange(self.num_rows, dtype=np.uint32)
    return self.problem.begin_sessions(self.batch, index, seeds)


class _Anew:
  """Sampler that reads the prompt and all turns anew in each turn."""

  def __init__(self, policy: Policy, turns: host_turns.HostTurns):
    self._policy, self._turns = policy, turns
    self.act = jax.jit(self._act, donate_argnums=3)
    self.read = jax.jit(_read, static_argnums=2, donate_argnums=0)

  def begin(self, prompts: Prompts) -> tuple[jax.Array, jax.Array]:
    num_rows = len(prompts.ids) * self._turns.group_size
    slots = self._turns.config.max_new_tokens
    return jnp.zeros((num_rows, slots), jnp.int32), jnp.zeros(num_rows, int)

  def _act(
    self,
    params: PyTree,
    prompts: Prompts,
    key: jax.Array,
    tokens: jax.Array,  # [B, T]
    written: jax.Array,  # [B]
  ) -> tuple[jax.Array, jax.Array]:
    config, most = self._turns.config, self._turns.environment.max_action_len
    context = resumed.joined(prompts, tokens, written, config.pad_id)
    first_h, prefix, routing = self._policy.prefill(params, *context)
    decoder = sampling.Decoder(
      self._policy,
      self._policy.weights(params),
      dataclasses.replace(config, max_new_tokens=most, end_ids=(), lanes=None),
      drawing.row_keys(key, prompts.ids, self._turns.group_size),
      first_h,
      prefix,
      jnp.full(len(tokens), most),
      offsets=written,
    )
    state = decoder.run_from_start(routing)
    exists = jnp.ones((len(tokens), most), bool)
    tokens = resumed.put(tokens, written, exists, state.buffers["tokens"])
    return tokens, written + most


def _read(
  tokens: jax.Array, written: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
  said = jnp.full((len(tokens), size), 38)
  exists = jnp.ones(said.shape, bool)
  return resumed.put(tokens, written, exists, said), written + size


def _policy() -> Policy:
  return transformer.transformer_policy(
    architecture.TransformerConfig(
      vocab_size=_VOCAB,
      width=256,
      num_layers=4,
      num_heads=8,
      num_kv_heads=2,
      mlp_width=1024,
      qkv_bias=True,
    )
  )


def _problem(size: Size) -> problem_lib.Problem:
  config = config_lib.default_config()
  config.data.name = "calc_tool"
  config.data.environment = _PATH
  config.data.max_prompt_len = _PROMPT.value
  config.environment.max_turns = size.turns
  config.environment.max_action_len = size.action
  config.environment.max_observation_len = size.observation
  config.environment.options = {
    "latency_s": size.latency_s,
    "size": size.observation,
  }
  config.sampling.max_new_tokens = size.slots
  problem = problem_lib.make_problem(config_lib.resolve(config))
  assert problem.host_environment is not None
  # Nothing but their length ends an action.
  environment = dataclasses.replace(problem.host_environment, action_ends=())
  return dataclasses.replace(problem, host_environment=environment)


def _sampler(size: Size) -> sampling.SamplerConfig:
  return sampling.SamplerConfig(
    max_new_tokens=size.slots, end_ids=(), pad_id=0, lanes=_LANES.value
  )


def _median(
  function: Callable[[], tuple[float, float]],
) -> tuple[float, float]:
  function()  # Compiles.
  found = [function() for _ in range(_REPEATS.value)]
  seconds = statistics.median(x for x, _ in found)
  return seconds, statistics.median(idle / x for x, idle in found)


def report(size: Size) -> str:
  """A row of the table."""
  bench = Bench(size)
  try:
    found = {way: _median(getattr(bench, way)) for way in _WAYS.value}
  finally:
    bench.problem.close()
  cells = [
    str(size.turns),
    str(_PROMPT.value + size.slots),
    str(size.observation),
    f"{1000 * size.latency_s:.0f}",
  ]
  for way in ("kept", "anew", "floor"):
    if way not in found:
      cells += ["–"] * (1 if way == "floor" else 2)
      continue
    seconds, idle = found[way]
    cells.append(f"{bench.tokens / seconds:.0f}")
    if way != "floor":
      cells.append(f"{idle:.0%}")
  for one, other in (("anew", "kept"), ("kept", "floor")):
    both = one in found and other in found
    ratio = found[one][0] / found[other][0] if both else 0.0
    cells.append(f"{ratio:.2f}" if both else "–")
  return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str]) -> int:
  """Prints the table."""
  del arguments
  print(
    f"{_PROMPTS.value} prompts × {_GROUP.value} rows, actions of"
    f" {_ACTION.value} tokens, {jax.devices()[0].device_kind}"
  )
  print(
    "| turns | context | read | tool, ms | kept, tok/s | idle | anew, tok/s |"
    " idle | floor, tok/s | kept : anew | floor : kept |"
  )
  print("|" + "---:|" * 11)
  sizes = [
    Size(int(turns), _ACTION.value, int(read), float(ms) / 1000)
    for read in _OBSERVATION.value
    for turns in _TURNS.value
    for ms in _LATENCY.value
  ]
  for size in sizes:
    print(report(size), flush=True)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
