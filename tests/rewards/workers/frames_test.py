"""Frames: what is sent arrives unchanged, and nothing else is taken for it."""

import decimal
import fractions
import math
import socket
import struct
import time

import numpy as np
import pytest

from grpo_jax.rewards.workers import frames


@pytest.fixture
def pair():
  ends = [frames.Channel(end.detach()) for end in socket.socketpair()]
  yield ends
  for end in ends:
    end.close()


def test_messages_arrive_as_they_are_and_in_order(pair):
  ours, theirs = pair
  sent = [
    [1, {"a": [0.1, 1e-320, -0.0, 1 / 3, math.inf]}, None],
    "\ud800 é \x00",
    [2**70, True, []],
  ]
  ours.write(*map(frames.encode, sent))
  assert [theirs.receive() for _ in sent] == sent
  ours.send(frames.encode(math.nan))
  assert math.isnan(theirs.receive())


def test_numpy_is_sent_as_numbers():
  message = {"x": np.arange(3), "y": np.float32(0.5), "z": np.bool_(True)}
  body = frames.encode(message)[4:]
  assert body == b'{"x":[0,1,2],"y":0.5,"z":true}'


@pytest.mark.parametrize("message", [object(), {1, 2}, b"x", {(1, 2): 3}])
def test_what_is_no_json_is_not_sent(message):
  with pytest.raises(ValueError, match=r"frames\.encode: .*needs None"):
    frames.encode(message)


def test_what_is_too_long_is_not_sent():
  with pytest.raises(ValueError, match="at most 16777216"):
    frames.encode("x" * frames.MAX_BYTES)


@pytest.mark.parametrize(
  "body",
  [b"", b"{", b"\xff", b"[" * 10**5, b"1" * 10**4, b"\x80\x04K\x01."],
)
def test_what_is_no_json_is_no_message(pair, body):
  ours, theirs = pair
  ours.write(struct.pack(">I", len(body)) + body)
  with pytest.raises(ValueError, match="not JSON"):
    theirs.receive()


def test_a_length_beyond_the_limit_is_refused_at_once(pair):
  ours, theirs = pair
  ours.write(struct.pack(">I", frames.MAX_BYTES + 1))
  with pytest.raises(ValueError, match="a message of 16777217 bytes"):
    theirs.receive()


def test_half_a_message_does_not_come(pair):
  ours, theirs = pair
  ours.write(frames.encode("a whole one"), frames.encode("half of one")[:-2])
  assert theirs.receive() == "a whole one"
  with pytest.raises(TimeoutError):
    theirs.receive(time.monotonic() + 0.05)
  ours.close()
  with pytest.raises(EOFError):
    theirs.receive(time.monotonic() + 5.0)


def test_nobody_waits_for_a_peer_that_does_not_read(pair):
  ours, theirs = pair
  text = "x" * 2**22
  ours.write(frames.encode(text))
  assert ours.has_unsent
  with pytest.raises(TimeoutError):
    ours.send(frames.encode("more"), time.monotonic() + 0.05)
  while not frames.wait([ours], 0.0):
    theirs.read()
  theirs.close()
  ours.flush()  # Nor is it an error that the peer is gone.
  assert not ours.has_unsent


@pytest.mark.parametrize(
  "message",
  [
    *(None, 7, "ready", [], [1], [1, 2], [1, 2, None, None], {"a": 1}),
    *(["1", 2, None], [True, 2, None], [1.0, 2, None], [None, 2, None]),
    *([1, 2, "raised"], [1, 2, ["raised"]], [1, 2, ["raised", 3]]),
    *([1, 2, ["other", "x"]], [1, 2, [["raised"], "x"]]),
  ],
)
def test_what_has_another_form_is_no_answer(message):
  with pytest.raises(ValueError, match="no answer"):
    frames.answer(message)


def test_answers_greetings_and_numbers():
  assert frames.answer([3, "x", None]) == (3, "x", None)
  said = frames.answer([3, None, ["raised", "y" * 5000]])
  assert said == (3, None, ("raised", "y" * 1000))
  assert frames.greeting(["failed", "why"]) == ("failed", "why")
  with pytest.raises(ValueError, match="no greeting"):
    frames.greeting(["steady", ""])
  assert [frames.number(x) for x in (1, 0.5, -math.inf)] == [1, 0.5, -math.inf]
  for value in (math.nan, True, "1", None, [1.0], 10**400):
    with pytest.raises(ValueError, match="no number"):
      frames.number(value)


@pytest.mark.parametrize(
  ("value", "number"),
  [
    (1, 1.0),
    (True, 1.0),
    (np.float32(0.5), 0.5),
    (np.bool_(True), 1.0),
    (np.array(0.5), 0.5),
    (np.array([2]), 2.0),
    (fractions.Fraction(1, 4), 0.25),
    (decimal.Decimal("0.5"), 0.5),
  ],
)
def test_numbers_of_functions(value, number):
  assert frames.plain_number(value) == number


@pytest.mark.parametrize(
  "value",
  [
    *("1.0", b"1", 1j, None, [1.0]),
    *(
      np.str_("1"),
      np.bytes_(b"1"),
      np.complex64(1),
      np.complex128(1),
      10**400,
    ),
    *(np.clongdouble(1), np.array("1"), np.array(1j), np.zeros(2)),
    np.datetime64("2020-01-01"),
    np.timedelta64(1, "s"),
  ],
)
def test_what_a_function_returns_and_is_no_number(value):
  with pytest.raises((TypeError, ValueError)):
    frames.plain_number(value)


@pytest.mark.parametrize("value", [1e16, -1e39, math.inf, "1", None])
def test_what_is_no_reward(value):
  assert frames.reward(-1e15) == -1e15
  with pytest.raises(ValueError, match="no "):
    frames.reward(value)
