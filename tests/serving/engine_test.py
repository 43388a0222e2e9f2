"""The sampler behind a server: batches, keys, futures, and `run.sample`."""

import concurrent.futures
import itertools

import jax
import numpy as np
import pytest

from grpo_jax.rollout import sampling
from grpo_jax.serving import engine
from grpo_jax.training.evaluation import draws
from tests.training.phases import served

PROMPTS = "ab cd", "x", "27 + 58 ="


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
  path = tmp_path_factory.mktemp("served") / "prompts.jsonl"
  served.write_prompts(path, PROMPTS)
  return served.loaded_of(served.config_of(path))


@pytest.fixture(scope="module")
def sampler(loaded):
  return served.sampler_of(loaded)


def ask_of(loaded, prompt, seed=0, number=0, sample=0, **fields):
  key = engine.key_of(seed, number, sample, 0)
  ids = loaded.problem.tokenizer.encode(prompt)
  return engine.Ask(ids, key, **{"limit": served.MAX_NEW_TOKENS, **fields})


def drawn(loaded, sampler, asks):
  future = sampler.submit(asks)
  with jax.set_mesh(loaded.mesh):
    while not future.done():
      sampler.work(loaded.params, timeout_s=0)
  return future.result()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_completions_are_those_of_run_sample(loaded, sampler, temperature):
  num = 3 if temperature else 1
  records = [{"prompt": x, "answer": "", "extras": {}} for x in PROMPTS]
  theirs = draws.TextSampler(loaded, records, False, num, temperature)
  expected = theirs.draw(records, seed=5)
  asks = [
    ask_of(loaded, prompt, 5, number, i, temperature=temperature)
    for number, prompt in enumerate(PROMPTS)
    for i in range(num)
  ]  # More than there are rows.
  ours = drawn(loaded, sampler, asks)
  rows = [row for group in expected for row in group]
  for row, one in zip(rows, ours, strict=True):
    assert one.ended == row.terminated
    assert loaded.problem.tokenizer.decode(one.ids) == row.text
    assert len(one.ids) == row.num_tokens
    np.testing.assert_allclose(one.sampler_logp, row.logprobs, atol=2e-6)
    if temperature:
      np.testing.assert_allclose(one.entropy, row.entropies, atol=2e-6)


@pytest.mark.slow
def test_draws_depend_on_nothing_else_in_the_batch(loaded, sampler):
  ask = ask_of(loaded, "ab cd", seed=7)
  (alone,) = drawn(loaded, sampler, [ask])
  others = [
    ask_of(loaded, "x", seed=1, temperature=0.0),
    ask_of(loaded, "a longer prompt", seed=2, temperature=3.0, top_p=0.5),
  ]
  among = drawn(loaded, sampler, [*others, ask])[-1]
  assert among.ids == alone.ids
  for ours, theirs in zip(among[1:4], alone[1:4], strict=True):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_equal_contexts_are_read_once(loaded):
  """By as many rows as fit, for one policy and for two that are alike."""
  text = loaded.problem.tokenizer
  config = sampling.SamplerConfig(
    served.MAX_NEW_TOKENS, text.end_ids, text.pad_id
  )
  apart, shared = (
    engine.ContextProgram(
      *(loaded.policy, loaded.mesh, config, 4, served.MAX_PROMPT_LEN),
      shares=shares,
    )
    for shares in (False, True)
  )
  sizes, arrays = [], shared._arrays

  def counted(asks, share):
    sizes.append(len(arrays(asks, share).tokens))
    return arrays(asks, share)

  shared._arrays = counted
  one = ask_of(loaded, "ab cd", 7, with_alternatives=True)
  more = [ask_of(loaded, "ab cd", 7, sample=i) for i in (1, 2)]
  other = ask_of(loaded, "x", 7, temperature=0.0)
  trained, frozen = (loaded.params[x] for x in ("trained", "frozen"))
  for batches, expected in (
    ([[one]], [1]),
    ([[one, other, more[0]]], [2]),
    ([[one, other, *more]], [4]),
    ([[other], [more[0], other, one]], [2, 2]),
  ):
    contexts = [(trained, asks) for asks in batches]
    sizes.clear()
    with jax.set_mesh(loaded.mesh):
      theirs = apart.draw(frozen, contexts)
      ours = shared.draw(frozen, contexts)
    assert sizes == expected
    for x, y in zip(
      *map(itertools.chain.from_iterable, (theirs, ours)), strict=True
    ):
      assert x.ids == y.ids
      assert (x.alternatives is None) == (y.alternatives is None)
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), x[1:], y[1:]
      )


@pytest.mark.slow
def test_positions_go_on_where_a_completion_is_in_the_context(loaded, sampler):
  ask = ask_of(loaded, "ab cd", seed=7)
  (whole,) = drawn(loaded, sampler, [ask])
  later = engine.Ask([*ask.ids, *whole.ids[:2]], ask.key, limit=4, first=2)
  (rest,) = drawn(loaded, sampler, [later])
  assert rest.ids == whole.ids[2:]
  np.testing.assert_allclose(rest.entropy, whole.entropy[2:], atol=2e-6)


def test_limits_and_filters_are_those_of_each_row(loaded, sampler):
  greedy, short, sharp = drawn(
    loaded,
    sampler,
    [
      ask_of(loaded, "ab", temperature=0.0),
      ask_of(loaded, "ab", limit=2),
      ask_of(loaded, "ab", top_p=1e-6),
    ],
  )
  assert len(short.ids) <= 2
  assert (short.entropy > 0.1).all()  # Drawn at its own temperature.
  # With next to no mass only the most likely token is left.
  assert sharp.ids == greedy.ids
  np.testing.assert_array_equal(sharp.behavior_logp, 0.0)
  assert (sharp.sampler_logp < -0.1).all()
  np.testing.assert_array_equal(greedy.entropy, 0.0)


@pytest.mark.slow
def test_queue_is_bounded_and_cancelled_rows_are_not_drawn(loaded):
  sampler = served.sampler_of(loaded, num_rows=2, max_waiting=3)
  asks = [ask_of(loaded, "ab", seed) for seed in range(3)]
  first = sampler.submit(asks[:2])
  with pytest.raises(engine.Full, match="2 rows wait, and 3 may"):
    sampler.submit(asks[:2])
  second = sampler.submit(asks[2:])
  assert first.cancel()
  with jax.set_mesh(loaded.mesh):
    assert sampler.work(loaded.params, timeout_s=0) == 1
    assert sampler.work(loaded.params, timeout_s=0) == 0
  assert second.done()


def test_closed_sampler_fails_what_waits(loaded):
  sampler = served.sampler_of(loaded)
  future = sampler.submit([ask_of(loaded, "ab")])
  sampler.close("it is over")
  with pytest.raises(engine.Closed, match="it is over"):
    future.result(timeout=1)
  with pytest.raises(engine.Closed, match="it is over"):
    sampler.submit([ask_of(loaded, "ab")])


def test_failure_of_the_device_reaches_who_asks_and_who_works(
  loaded, monkeypatch
):
  sampler = served.sampler_of(loaded)

  def broken(*_):
    raise RuntimeError("out of memory")

  monkeypatch.setattr(sampler._program, "draw", broken)
  future = sampler.submit([ask_of(loaded, "ab")])
  with pytest.raises(RuntimeError, match="out of memory"):
    sampler.work(loaded.params, timeout_s=0)
  with pytest.raises(engine.Closed, match="out of memory"):
    future.result(timeout=1)


def test_rows_of_a_request_that_has_failed_are_not_drawn(loaded, monkeypatch):
  sampler = served.sampler_of(loaded, num_rows=1)
  limits = []

  def draw(frozen, contexts):
    ((_, asks),) = contexts
    limits.extend(ask.limit for ask in asks)
    if len(limits) == 1:
      raise RuntimeError("out of memory")
    return [[engine.Generated([1], *np.zeros((3, 1)), ended=True)] * len(asks)]

  monkeypatch.setattr(sampler._program, "draw", draw)
  sampler.submit([ask_of(loaded, "ab", limit=n) for n in (1, 2, 3)])
  with pytest.raises(RuntimeError, match="out of memory"):
    sampler.work(loaded.params, timeout_s=0)
  future = sampler.submit([ask_of(loaded, "ab", limit=4)])
  assert sampler.work(loaded.params, timeout_s=0) == 1
  assert future.result(timeout=0)[0].ids == [1]
  assert limits == [1, 4]


@pytest.mark.slow
def test_rows_that_come_from_many_threads_share_a_batch(loaded):
  sampler = served.sampler_of(loaded, pause_s=0.2)
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    futures = list(
      pool.map(lambda i: sampler.submit([ask_of(loaded, "ab", i)]), range(4))
    )
    with jax.set_mesh(loaded.mesh):
      assert sampler.work(loaded.params, timeout_s=5) == 4
  assert all(len(future.result()) == 1 for future in futures)


def test_several_processes_are_refused(loaded, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(ValueError, match="one of 2 processes"):
    served.sampler_of(loaded)
