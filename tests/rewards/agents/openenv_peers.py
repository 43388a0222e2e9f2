"""Servers of OpenEnv's protocol that break it, each in its own way."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

from websockets.exceptions import ConnectionClosed
from websockets.sync import server

OPTIONS = {"action": "text", "view": "said"}
_ACCEPT = (
  b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
  b"Connection: Upgrade\r\nSec-WebSocket-Accept: "
)


def observation(said="go on", reward=0.0, done=False, **more):
  return json.dumps(
    {
      "type": "observation",
      "data": {
        "observation": {"said": said, "metadata": {}},
        "reward": reward,
        "done": done,
        **more,
      },
    }
  )


def _plain(ws, *answers):
  """Answers questions, the last answer again and again; has an empty state."""
  answers = list(answers)
  for question in ws:
    if json.loads(question)["type"] == "state":
      ws.send('{"type": "state", "data": {}}')
    else:
      ws.send(answers[0] if len(answers) == 1 else answers.pop(0))


def _raw(data):
  """A peer that answers the first step with this text or these bytes."""
  return lambda ws: _plain(ws, observation(), data)


def _without(field):
  data = json.loads(observation())
  del data["data"][field]
  return _raw(json.dumps(data))


def _flood(ws):
  """Sends as fast as it can, without having been asked."""
  with contextlib.suppress(ConnectionClosed):
    while True:
      ws.send(observation("x" * 100_000))


def _flood_after_reset(ws):
  ws.recv()
  ws.send(observation())
  _flood(ws)


def _pings(ws):
  """Answers a reset, and then sends nothing but pings."""
  ws.recv()
  ws.send(observation())
  with contextlib.suppress(ConnectionClosed):
    while True:
      ws.ping(b"x" * 100)


def _half(ws):
  """Begins an answer to a step, and stops."""
  ws.recv()
  ws.send(observation())
  ws.recv()
  with contextlib.suppress(ConnectionClosed):
    ws.send(_slowly(observation()[:20]))


def _slowly(text):
  """Parts of a message that never ends."""
  for letter in text:
    yield letter
    time.sleep(0.05)
  time.sleep(3)


def _silent(ws):
  ws.recv()
  ws.send(observation())
  with contextlib.suppress(ConnectionClosed):
    for _ in ws:
      pass


def _closes(ws):
  ws.recv()
  ws.send(observation())
  ws.recv()


def _breaks(ws):
  """Cuts the connection in the middle of a step, without a closing frame."""
  ws.recv()
  ws.send(observation())
  ws.recv()
  ws.socket.shutdown(socket.SHUT_RDWR)


def _twice(ws):
  """Answers everything twice."""
  for _ in ws:
    ws.send(observation())
    ws.send(observation("again"))
    time.sleep(0.02)


def _late(ws):
  """Answers a reset twice, and each step when the next question comes."""
  answer = observation()
  for number, _ in enumerate(ws):
    ws.send(answer)
    answer = observation(reward=number)


def _full(ws):
  ws.send(error("all places are taken", "CAPACITY_REACHED"))


def error(message="it broke", code="EXECUTION_ERROR"):
  return json.dumps(
    {"type": "error", "data": {"message": message, "code": code}}
  )


def _tools(ws):
  """Has a tool that doubles a number, and the field "calls" of a state."""
  calls = 0
  for question in map(json.loads, ws):
    data = question.get("data", {})
    if question["type"] == "state":
      ws.send(json.dumps({"type": "state", "data": {"calls": calls}}))
      continue
    seen = {"said": f"the seed is {data.get('seed')}", **data}
    if data.get("type") == "list_tools":
      schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
      tool = {"name": "twice", "description": "2x.", "input_schema": schema}
      seen = {"tools": [tool]}
    elif data.get("type") == "call_tool":
      calls += 1
      x = data["arguments"].get("x")
      seen = {"tool_name": "twice", "result": {"data": x and 2 * x}}
      if x is None:
        wrong = {"error_type": "invalid_args", "message": "no x"}
        seen = {"tool_name": "twice", "result": None, "error": wrong}
    answer = json.loads(observation(reward=None, done=calls == 3))
    answer["data"]["observation"] = seen
    ws.send(json.dumps(answer))


def _full_at_first():
  seen = []

  def peer(ws):
    seen.append(ws)
    if len(seen) == 1:
      _full(ws)
    else:
      PEERS["good"](ws)

  return peer


def _reply(sock, data):
  """Sends bytes in the place of the answer to a handshake."""
  with contextlib.suppress(OSError):
    sock.recv(4096)
    sock.sendall(data)
    time.sleep(2)


# Name -> a function of the socket: peers of which none speaks WebSockets.
SOCKETS = {
  "hangs up": lambda sock: None,
  "says nothing": lambda sock: time.sleep(3),
  "redirects": lambda sock: _reply(
    sock, b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:9/ws\r\n\r\n"
  ),
  "no HTTP": lambda sock: _reply(sock, b"\x00\xff" * 1000),
  "a page": lambda sock: _reply(
    sock, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
  ),
  "a wrong key": lambda sock: _reply(sock, _ACCEPT + b"bm8=\r\n\r\n"),
  "headers without an end": lambda sock: _reply(
    sock, b"HTTP/1.1 101 Yes\r\n" + b"X: y\r\n" * 500_000
  ),
}


# Name -> a function of the connection; all but `GOOD` break the protocol.
GOOD = ("good", "tools", "full at first")
PEERS = {
  "no JSON": _raw("{"),
  "empty": _raw(""),
  "bytes": _raw(observation().encode()),
  "a list": _raw("[1, 2]"),
  "a number": _raw("7"),
  "no type": _raw('{"data": {}}'),
  "another type": _raw('{"type": "state", "data": {}}'),
  "no data": _raw('{"type": "observation"}'),
  "no observation": _without("observation"),
  "no reward": _without("reward"),
  "no done": _without("done"),
  "text for an observation": _raw(
    observation().replace('{"said": "go on", "metadata": {}}', '"go on"')
  ),
  "another field": _raw(observation().replace('"said"', '"shown"')),
  "half a character": _raw(observation("\ud800")),
  "NaN": _raw(observation(reward=float("nan"))),
  "infinite": _raw(observation(reward=float("inf"))),
  "1e999": _raw(observation(reward=8.25).replace("8.25", "1e999")),
  "a huge reward": _raw(observation(reward=1e16)),
  "an integer of 400 digits": _raw(
    observation(reward=825).replace("825", "9" * 400)
  ),
  "an integer of 9000 digits": _raw(
    observation(reward=825).replace("825", "9" * 9000)
  ),
  "text for a reward": _raw(observation(reward="1.0")),
  "a list for a reward": _raw(observation(reward=[1.0])),
  "done is 1": _raw(observation(done=1)),
  "nested": _raw("[" * 100_000),
  "too long": _raw(observation("x" * (1 << 20))),
  "an error": _raw(error()),
  "an error with terminal codes": _raw(error("\x1b[2J" * 50_000)),
  "an error without a message": _raw('{"type": "error", "data": {}}'),
  "half a message": _half,
  "silence": _silent,
  "closes": _closes,
  "breaks off": _breaks,
  "twice": _twice,
  "one answer late": _late,
  "flood": _flood_after_reset,
  "pings": _pings,
  "over at once": lambda ws: _plain(ws, observation(done=True)),
  "full": _full,
  "flood at once": _flood,
  "good": lambda ws: _plain(
    ws, observation(), observation("more", 0.5), observation("", 1.0, True)
  ),
  "tools": _tools,
  "full at first": _full_at_first(),
}
BAD = (*(x for x in PEERS if x not in GOOD), *SOCKETS)


@contextlib.contextmanager
def serve(name):
  """The URL of a peer that runs in threads of this process."""
  if name in SOCKETS:
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
      with contextlib.suppress(OSError):
        while True:
          connection, _ = listener.accept()
          with connection:
            SOCKETS[name](connection)

    threading.Thread(target=run, daemon=True).start()
    with contextlib.closing(listener):
      yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    return

  def handle(ws):
    with contextlib.suppress(ConnectionClosed, OSError):
      PEERS[name](ws)

  running = server.serve(
    handle, "127.0.0.1", 0, ping_interval=None, close_timeout=0.2
  )
  threading.Thread(target=running.serve_forever, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{running.socket.getsockname()[1]}"
  finally:
    running.shutdown()
