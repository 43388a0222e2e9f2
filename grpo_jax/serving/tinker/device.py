"""Adapters of clients over one base, and the programs that run them.

A row is padded to the next of a few lengths, and a few rows are run at a time.
So there is one program for each length and each kind of adapters (rank
and projections), and it serves all losses of the API. The first token of a row
is its prompt. The other tokens and the last target are its completion, whose
states predict the targets.

Clients whose adapters are of one kind are run together, in one program over the
base (`together.py`): 2, 4, … of them, each with the batches and the lengths
that it would have alone.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from grpo_jax.algorithms import options
from grpo_jax.models.policies import lora
from grpo_jax.ops import logprobs
from grpo_jax.rollout import sampling, together
from grpo_jax.serving import engine
from grpo_jax.serving.requests import BadRequest
from grpo_jax.serving.tinker import losses, store
from grpo_jax.serving.tinker.wire import Row
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Policy, PolicyOutputs, PyTree

_SHORTEST = 64  # The least length of a program, tokens.
_MAX_PROGRAMS = 32  # Programs of passes that are kept, and of samples.
# Stacks of projections that belong to attention; the others are of MLPs.
_ATTENTION = ("attention", "delta")


@dataclasses.dataclass
class Adapters:
  """The weights that a client trains.

  Attributes:
    config: Rank and projections.
    trained: The adapters.
    moments: State of the optimizer.
    gradient: Sum of gradients since the last step; None if there are none.
  """

  config: lora.LoRAConfig
  trained: PyTree
  moments: PyTree
  gradient: PyTree | None = None

  def without_moments(self) -> Adapters:
    """The adapters as they are now, to sample from; later steps make others."""
    return Adapters(self.config, self.trained, None)


class ClientRows(NamedTuple):
  """Rows of a client to run.

  Attributes:
    adapters: Its adapters.
    rows: The rows.
    loss: Their loss.
    is_forward: True without gradients.
  """

  adapters: Adapters
  rows: Sequence[Row]
  loss: losses.NamedLoss
  is_forward: bool


def _value(policy, algorithm, trained, shared, settings, rows):
  """The loss of rows, and the log-probs of their targets."""
  frozen, number = shared
  params = {"trained": trained, "frozen": frozen}
  num_rows = len(rows.ids)
  # A token behind the last one stands for its target, and is not read.
  tokens = jnp.pad(rows.ids, ((0, 0), (0, 1)))[:, 1:]
  h, aux = policy.hidden(
    params,
    rows.ids[:, :1],
    jnp.ones((num_rows, 1), bool),
    tokens,
    rows.exists,
    jnp.arange(num_rows),
  )
  scores = logprobs.token_outputs(
    functools.partial(policy.head, params),
    h,
    rows.targets,
    temperature=1.0,
    with_entropy=bool(algorithm) and "entropy" in options.needs(*algorithm),
  )
  entropy = {} if scores.entropy is None else {"entropy": scores.entropy}
  outputs = PolicyOutputs(logp=scores.logp, aux=aux, trainable={}, **entropy)
  total = losses.value(algorithm, number, settings, outputs, rows)
  return total, scores.logp


def _forward(policy, algorithm, shared, own):
  trained, gradient, *more = own
  return gradient, *_value(policy, algorithm, trained, shared, *more)


def _backward(policy, algorithm, shared, own):
  trained, gradient, *more = own
  (total, logp), new = jax.value_and_grad(
    functools.partial(_value, policy, algorithm), has_aux=True
  )(trained, shared, *more)
  return jax.tree.map(jnp.add, gradient, new), total, logp


@jax.jit
def _step(trained, moments, gradient, numbers):
  """A step of AdamW; without effect if the gradient is not finite."""
  norm = optax.global_norm(gradient)
  limit = numbers["grad_clip_norm"]
  is_long = (limit > 0) & (norm > limit)
  factor = jnp.where(is_long, limit / jnp.where(is_long, norm, 1.0), 1.0)
  gradient = jax.tree.map(lambda x: x * factor, gradient)
  adam = optax.adamw(
    numbers["learning_rate"],
    numbers["beta1"],
    numbers["beta2"],
    numbers["eps"],
    weight_decay=numbers["weight_decay"],
  )
  change, new_moments = adam.update(gradient, moments, trained)
  new = optax.apply_updates(trained, change)
  is_finite = jnp.isfinite(norm)
  state = jax.tree.map(
    lambda x, y: jnp.where(is_finite, x, y),
    (new, new_moments),
    (trained, moments),
  )
  return *state, norm


class Device:
  """The base on its devices, and the programs that run adapters over it.

  It holds the parameters of the base, which nothing changes, and the programs
  that were compiled. Adapters are held by the caller: methods get them, and put
  new arrays in the place of old ones. Arrays themselves are never changed, so
  whoever keeps the old ones, as a sampler does, has the old weights.

    run     adds up the gradients of passes, in float32 and in their order
    step    takes a step with that sum, and drops it
    draw    draws completions, and changes nothing

  If a method raises, the passes that it has yielded are done, and nothing else
  has changed; a gradient that is not finite is dropped. All methods are called
  by one thread, under `jax.set_mesh`.

  Attributes:
    vocab_size: V.
    max_len: Most tokens of a row, and of a prompt.
    max_new_tokens: Most tokens of a completion.
  """

  def __init__(
    self,
    policy: Policy,
    params: PyTree,
    mesh: Mesh,
    tokenizer: Any,
    *,
    num_rows: int,
    max_len: int,
    max_new_tokens: int,
    max_rank: int,
    max_together: int,
  ):
    """Compiles nothing yet.

    Args:
      policy: The base, of `transformer.py`, without adapters.
      params: Its parameters, on the mesh.
      mesh: The mesh; all its devices belong to this process.
      tokenizer: Its `vocab_size`, `pad_id` and `end_ids` are read.
      num_rows: Rows of a program.
      max_len: Most tokens of a row, and of a prompt.
      max_new_tokens: Most tokens of a completion.
      max_rank: Largest rank of adapters.
      max_together: Most clients that are run together; 1: one after another.

    Raises:
      ValueError: The base has adapters.
    """
    if "base" in params["frozen"]:
      raise ValueError(
        "tinker: the policy has adapters, and clients train adapters of their"
        " own; write it as one model (grpo-export) and pass that."
      )
    self.vocab_size, self.max_len = tokenizer.vocab_size, max_len
    self.max_new_tokens = max_new_tokens
    self._policy, self._params, self._mesh = policy, params, mesh
    self._frozen = {**params["frozen"], "base": params["trained"]}
    self._tokens, self._max_rank = tokenizer, max_rank
    self._max_together = max_together
    self._num_rows = num_rows + -num_rows % sharding.num_row_shards(mesh)
    kept = functools.lru_cache(_MAX_PROGRAMS)
    self._pass_program, self._sampler = kept(self._pass), kept(self._samples)
    self._base = _digest(params)

  def config(self, rank: int, mlp: bool, attention: bool) -> lora.LoRAConfig:
    """The config of adapters.

    Args:
      rank: Their rank.
      mlp, attention: True if the projections of MLPs, of attention have them.

    Raises:
      BadRequest: The rank is too large, or no projection has adapters.
    """
    if not 1 <= rank <= self._max_rank:
      raise BadRequest(
        f"rank={rank} must be from 1 to {self._max_rank} (--max_rank).", "rank"
      )
    names = lora.of_stacks(self._shapes(lora.LoRAConfig(rank=rank)))
    modules = {name: None for stack in names.values() for name in stack}
    modules = {
      name: None
      for name in modules
      if (attention if lora.MODULES[name][0][0] in _ATTENTION else mlp)
    }
    if not modules:
      raise BadRequest(
        "train_mlp and train_attn are false; one of them must be true, because"
        " the unembedding has no adapters here.",
        "lora_config",
      )
    return lora.LoRAConfig(rank=rank, modules=tuple(modules))

  def _shapes(self, config: lora.LoRAConfig) -> PyTree:
    """Shapes of adapters."""
    fresh = functools.partial(_fresh, config=config)
    return jax.eval_shape(fresh, self._params, seed=np.int32(0))

  def new_adapters(self, config: lora.LoRAConfig, seed: int) -> Adapters:
    """Makes adapters that change nothing yet, from a seed."""
    trained = _fresh(self._params, config, np.int32(seed))
    trained = jax.device_put(trained, sharding.replicated(self._mesh))
    return Adapters(config, trained, _moments(trained))

  def saved(self, adapters: Adapters, with_moments: bool) -> tuple[Any, Any]:
    """Returns what a file says about adapters, and its arrays."""
    about = {
      "base": self._base,
      "rank": adapters.config.rank,
      "modules": adapters.config.modules,
    }
    tree = {"trained": adapters.trained}
    if with_moments:
      tree["moments"] = adapters.moments
    return about, jax.tree.map(np.asarray, tree)

  def loaded(
    self, files: store.Store, path: str, with_moments: bool
  ) -> Adapters:
    """Reads adapters, with the moments of their optimizer or with none.

    Raises:
      BadRequest: There are none, they are damaged, or of another base.
    """
    about = files.about(path)
    if about.get("base") != self._base:
      raise BadRequest(
        f"{path!r:.200} belongs to another base than this server has.", "path"
      )
    config = lora.LoRAConfig(
      rank=about["rank"], modules=tuple(about["modules"])
    )
    like = {"trained": self._shapes(config)}
    if with_moments:
      like["moments"] = jax.eval_shape(_moments, like["trained"])
    tree = files.read(path, like)
    tree = jax.device_put(tree, sharding.replicated(self._mesh))
    moments = tree.get("moments") or _moments(tree["trained"])
    return Adapters(config, tree["trained"], moments)

  def run(
    self, passes: Sequence[ClientRows]
  ) -> Iterator[tuple[int, list[np.ndarray], float]]:
    """Runs rows of clients, and adds up their gradients.

    Args:
      passes: One of each client, of adapters of one kind, with one loss but for
        its settings, all forward or none.

    Yields:
      The place of a pass that is done, the log-probs of the targets of each of
      its rows, and the sum of its loss. Its gradient is then added.
    """
    adapters, _, loss, is_forward = passes[0]
    program = self._pass_program(adapters.config, loss.algorithm, is_forward)
    shared = self._frozen, np.int32(max(loss.number, 0))
    states = [_PassState(x, self._num_rows) for x in passes]
    lengths = [[self._length(x) for x in state.batches] for state in states]
    for batches in rounds(lengths, self._max_together):
      own = []
      for i, n in batches:
        arrays = self._arrays(states[i].batches[n], lengths[i][n])
        own.append(states[i].inputs(arrays))
      results = program(shared, *own)
      for (i, n), result in zip(batches, results, strict=True):
        states[i].add(n, *result)
        if n + 1 == len(lengths[i]):
          if not is_forward:
            passes[i].adapters.gradient = states[i].gradient
          yield i, states[i].logps, states[i].total

  def step(self, adapters: Adapters, numbers: Mapping[str, float]) -> float:
    """Takes a step with the gradients so far; returns their norm.

    Raises:
      BadRequest: There is no gradient, or it is not finite.
    """
    if adapters.gradient is None:
      raise BadRequest(
        "there is no gradient since the last step; send forward_backward first."
      )
    scalars = {name: np.float32(x) for name, x in numbers.items()}
    adapters.trained, adapters.moments, norm = _step(
      adapters.trained, adapters.moments, adapters.gradient, scalars
    )
    adapters.gradient = None
    if not np.isfinite(norm := float(norm)):
      raise BadRequest(
        "the gradient is not finite: it was dropped, and the weights are as"
        " before; log-probs far from those of the policy make infinite ratios."
      )
    return norm

  def draw(
    self,
    samples: Sequence[tuple[Adapters | None, Sequence[engine.Ask]]],
    can_end: bool,
  ) -> Iterator[tuple[int, list[engine.Generated]]]:
    """Draws completions.

    Args:
      samples: Adapters of one kind, and contexts to continue with each; or the
        base alone, None.
      can_end: False if the end tokens of the tokenizer end nothing.

    Yields:
      The place of adapters, and their completions.
    """
    config = samples[0][0] and samples[0][0].config
    base, frozen = self._params["trained"], self._params["frozen"]
    if config is not None:
      frozen = self._frozen
    trained = [base if x is None else x.trained for x, _ in samples]
    size = self._num_rows
    batches = [
      [asks[n : n + size] for n in range(0, len(asks), size)]
      for _, asks in samples
    ]
    lengths = [
      [self._length(asks)] * len(of_client)
      for (_, asks), of_client in zip(samples, batches, strict=True)
    ]
    completions: list[list[engine.Generated]] = [[] for _ in samples]
    for numbers in rounds(lengths, self._max_together):
      program = self._sampler(config, lengths[numbers[0][0]][0], can_end)
      contexts = [(trained[i], batches[i][n]) for i, n in numbers]
      results = program.draw(frozen, contexts)
      for (i, n), result in zip(numbers, results, strict=True):
        completions[i] += result
        if n + 1 == len(batches[i]):
          yield i, completions[i]

  def _policy_of(self, config: lora.LoRAConfig | None) -> Policy:
    """The policy of a kind of adapters, or the base."""
    if config is None:
      return self._policy
    return lora.lora_policy(self._policy, config)

  def _pass(
    self, config: lora.LoRAConfig, algorithm: Any, is_forward: bool
  ) -> Any:
    """Makes the program of passes, for one client or several."""
    function = _forward if is_forward else _backward
    policy = self._policy_of(config)
    return jax.jit(
      together.program(functools.partial(function, policy, algorithm))
    )

  def _samples(
    self, config: lora.LoRAConfig | None, length: int, can_end: bool
  ) -> engine.ContextProgram:
    """Makes the program that continues contexts of a length."""
    return engine.ContextProgram(
      self._policy_of(config),
      self._mesh,
      sampling.SamplerConfig(
        max_new_tokens=self.max_new_tokens,
        end_ids=self._tokens.end_ids if can_end else (),
        pad_id=self._tokens.pad_id,
      ),
      self._num_rows,
      length,
      shares=True,
    )

  def _length(self, rows: Sequence[Row | engine.Ask]) -> int:
    """The length of the program of rows: a power of 2, or the largest one."""
    size = max(len(row.ids) for row in rows)
    return min(max(_SHORTEST, 1 << (size - 1).bit_length()), self.max_len)

  def _arrays(self, rows: Sequence[Row], length: int) -> losses.PaddedRows:
    """Puts rows on the devices, padded; the rows behind them do not exist."""
    shape = self._num_rows, length
    ids: Any = np.full(shape, self._tokens.pad_id, np.int32)
    targets: Any = np.zeros(shape, np.int32)
    exists: Any = np.zeros(shape, bool)
    inputs: Any = {x: np.zeros(shape, np.float32) for x in losses.INPUTS}
    for i, row in enumerate(rows):
      size = len(row.ids)
      ids[i, :size], exists[i, :size] = row.ids, True
      targets[i, :size] = row.inputs["target_tokens"]
      for name in losses.INPUTS:
        inputs[name][i, :size] = row.inputs.get(name, 0.0)
    arrays = losses.PaddedRows(ids, targets, exists, inputs)
    return sharding.from_local(arrays, sharding.by_rows(self._mesh))


class _PassState:
  """The batches of a pass, from the shortest rows on, and their results."""

  def __init__(self, client: ClientRows, num_rows: int):
    """Runs nothing yet."""
    rows, self._trained = client.rows, client.adapters.trained
    self._order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
    self._num_rows = num_rows
    self.batches = [
      [rows[i] for i in self._order[n : n + num_rows]]
      for n in range(0, len(rows), num_rows)
    ]
    self._settings = {k: np.float32(x) for k, x in client.loss.settings.items()}
    self.gradient: Any = () if client.is_forward else client.adapters.gradient
    if self.gradient is None:
      self.gradient = jax.tree.map(jnp.zeros_like, self._trained)
    self.logps: list[Any] = [None] * len(rows)
    self.total = 0.0

  def inputs(self, arrays: losses.PaddedRows) -> tuple[Any, ...]:
    """The client's own inputs of the program."""
    return self._trained, self.gradient, self._settings, arrays

  def add(
    self, number: int, gradient: PyTree, value: jax.Array, logp: jax.Array
  ) -> None:
    """Takes the results of a batch."""
    self.gradient = gradient
    self.total += float(value)
    local = sharding.to_local({"logp": logp})["logp"]
    places = self._order[number * self._num_rows :]
    for place, row, x in zip(places, self.batches[number], local, strict=False):
      self.logps[place] = x[: len(row.ids)]


def rounds(
  lengths: Sequence[Sequence[int]], most: int
) -> Iterator[list[tuple[int, int]]]:
  """Says which batches of clients are run together.

  Args:
    lengths: Lengths of the batches of each client, in their order.
    most: Most clients of a program.

  Yields:
    (client, batch) of each batch of a program: one of each client, all of one
    length, and 1, 2, 4, … of them, so that there are few programs.
  """
  done = [0] * len(lengths)  # Batches of each client.
  while rest := [i for i, n in enumerate(done) if n < len(lengths[i])]:
    least = min(lengths[i][done[i]] for i in rest)
    clients = [i for i in rest if lengths[i][done[i]] == least][:most]
    clients = clients[: 1 << (len(clients).bit_length() - 1)]
    yield [(i, done[i]) for i in clients]
    for i in clients:
      done[i] += 1


@functools.partial(jax.jit, static_argnames="config")
def _fresh(params, config, seed):
  """Adapters that change nothing, from a seed."""
  return lora.wrap(params, config, jax.random.key(seed))["trained"]


@jax.jit
def _moments(trained: PyTree) -> PyTree:
  return optax.adamw(0.0).init(trained)


def _digest(params: PyTree) -> str:
  """A short text that tells apart bases: of the first numbers of each array."""
  first = jax.jit(lambda tree: jax.tree.map(lambda x: x.ravel()[:16], tree))
  digest = 0
  for path, x in jax.tree_util.tree_leaves_with_path(first(params)):
    label = f"{jax.tree_util.keystr(path)}{x.dtype}".encode()
    digest = zlib.crc32(np.asarray(x).tobytes(), zlib.crc32(label, digest))
  return f"{digest:08x}"
