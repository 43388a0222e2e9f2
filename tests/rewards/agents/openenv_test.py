"""Sessions of OpenEnv's servers, and servers that break the protocol."""

import contextlib
import time
import tracemalloc

import pytest

from grpo_jax.rewards.agents import openenv
from tests.rewards.agents import openenv_peers

LIMIT_S = 0.4


def options(url, **more):
  return {
    "servers": {"peer": {"url": url, **openenv_peers.OPTIONS, **more}},
    "timeout_s": LIMIT_S,
  }


def played(url, extras=None, actions="aaa", **more):
  """What a session says to some actions, and its scores."""
  made = options(url, **more)
  with contextlib.closing(
    openenv.make("?", extras or {}, 0, **made)
  ) as session:
    return [session.step(x) for x in actions], session.scores()


@pytest.mark.parametrize(
  "name", [*(set(openenv_peers.PEERS) - {"good"}), *openenv_peers.SOCKETS]
)
def test_a_peer_that_breaks_the_protocol_is_an_error_of_its_row(name):
  tracemalloc.start()
  start = time.monotonic()
  with (
    openenv_peers.serve(name) as url,
    pytest.raises((openenv.ServerError, TimeoutError)) as caught,
  ):
    played(url)
  assert time.monotonic() - start < 30
  # The texts of a peer are shown as they are written in Python, and cut.
  assert len(str(caught.value)) < 600
  assert str(caught.value).isprintable()
  assert tracemalloc.get_traced_memory()[1] < 64 << 20
  tracemalloc.stop()
