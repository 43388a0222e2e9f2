"""A Google Cloud Storage of one process: the part of its JSON API in use.

What gcsfs, `google-cloud-storage` and tensorstore send when a run is saved
and restored, answered from memory: objects with generations and the
preconditions on them, ranges, uploads in one piece and in several, rewriting,
lists with prefix and delimiter, deletion one by one and in batches. Requests
that it does not know are refused with 501 and kept in `unknown`.

Source: https://cloud.google.com/storage/docs/json_api/v1.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import itertools
import json
import re
import sys
import threading
import urllib.parse

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.+)")
_REWRITE = re.compile(
  r"/storage/v1/b/([^/]+)/o/(.+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/(.+)"
)
_UPLOAD = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o")


class Server:
  """Server of buckets at a port of this machine; a context manager."""

  def __init__(self, *buckets: str):
    self.objects: dict[tuple[str, str], tuple[int, bytes]] = {}
    self.buckets = buckets
    self.unknown: list[str] = []
    self.lock = threading.RLock()
    self.generations = itertools.count(1_700_000_000_000_000)
    self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
    owner = self

    class Handler(_Handler):
      server_state = owner

    self._http = _Listener(("127.0.0.1", 0), Handler)
    self._thread = threading.Thread(target=self._http.serve_forever)
    self.url = f"http://127.0.0.1:{self._http.server_port}"
    # What the libraries have to be told, and to leave the network alone.
    self.environment = {
      "STORAGE_EMULATOR_HOST": self.url,
      "TENSORSTORE_GCS_HTTP_URL": self.url,
      "GOOGLE_CLOUD_PROJECT": "test",
      "GCE_METADATA_HOST": "127.0.0.1:1",
      "GCE_METADATA_ROOT": "127.0.0.1:1",
      "NO_GCE_CHECK": "true",
      "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }

  def __enter__(self) -> Server:
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._http.shutdown()
    self._http.server_close()
    self._thread.join()

  def read(self, name: str, bucket: str = "bucket") -> bytes:
    """Content of an object."""
    return self.objects[bucket, name][1]

  def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
    """Names of objects in order."""
    with self.lock:
      return sorted(
        name
        for there, name in self.objects
        if there == bucket and name.startswith(prefix)
      )

  def store(
    self, bucket: str, name: str, content: bytes, query: dict[str, str]
  ) -> dict | None:
    """Stores an object; returns its metadata, or None if refused."""
    with self.lock:
      if not self.allows(bucket, name, query):
        return None
      self.objects[bucket, name] = next(self.generations), content
      return self.metadata(bucket, name)

  def allows(self, bucket: str, name: str, query: dict[str, str]) -> bool:
    """True if the generation is the one that is asked for; 0 means absence."""
    current = self.objects.get((bucket, name), (0, b""))[0]
    wanted = query.get("ifGenerationMatch")
    unwanted = query.get("ifGenerationNotMatch")
    return (wanted is None or int(wanted) == current) and (
      unwanted is None or int(unwanted) != current
    )

  def metadata(self, bucket: str, name: str) -> dict:
    generation, content = self.objects[bucket, name]
    digest = hashlib.md5(content, usedforsecurity=False).digest()
    return {
      "kind": "storage#object",
      "id": f"{bucket}/{name}/{generation}",
      "bucket": bucket,
      "name": name,
      "size": str(len(content)),
      "generation": str(generation),
      "metageneration": "1",
      "md5Hash": base64.b64encode(digest).decode(),
      "timeCreated": "2025-01-01T00:00:00.000Z",
      "updated": "2025-01-01T00:00:00.000Z",
    }


class _Listener(http.server.ThreadingHTTPServer):
  """Server with a thread for each connection."""

  daemon_threads = True

  def handle_error(self, *_: object) -> None:
    if not isinstance(sys.exception(), OSError):  # Clients may hang up.
      super().handle_error(*_)


class _Handler(http.server.BaseHTTPRequestHandler):
  """Handler of a connection."""

  protocol_version = "HTTP/1.1"
  wbufsize = -1  # An answer is one packet, which nothing has to wait for.
  server_state: Server

  def log_message(self, *_: object) -> None:
    pass

  def do_GET(self) -> None:
    self._answer()

  do_POST = do_PUT = do_DELETE = do_GET

  def _answer(self) -> None:
    body = self._body()
    status, headers, content = self._respond(self.command, self.path, body)
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    self.wfile.write(content)

  def _body(self) -> bytes:
    if self.headers.get("Transfer-Encoding") == "chunked":
      chunks = []
      while size := int(self.rfile.readline().split(b";")[0], 16):
        chunks.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      return b"".join(chunks)
    return self.rfile.read(int(self.headers.get("Content-Length", 0)))

  def _respond(self, method: str, address: str, body: bytes):
    """Status, headers and content."""
    state = self.server_state
    parsed = urllib.parse.urlsplit(address)
    query = dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))
    path = parsed.path
    if method == "POST" and path == "/batch/storage/v1":
      return self._batch(body)
    if match := _UPLOAD.fullmatch(path):
      return self._upload(method, match[1], query, body)
    if method == "POST" and (match := _REWRITE.fullmatch(path)):
      source, name, target, new = map(urllib.parse.unquote, match.groups())
      with state.lock:
        if (source, name) not in state.objects:
          return _error(404)
        content = state.objects[source, name][1]
        made = state.store(target, new, content, query)
      if made is None:
        return _error(412)
      return _json({"done": True, "resource": made})
    if match := _OBJECT.fullmatch(path):
      bucket, name = map(urllib.parse.unquote, match.groups())
      with state.lock:
        if (bucket, name) not in state.objects:
          return _error(404)
        if not state.allows(bucket, name, query):
          return _error(412) if "ifGenerationMatch" in query else (304, {}, b"")
        if method == "DELETE":
          del state.objects[bucket, name]
          return 204, {}, b""
        if method == "GET" and query.get("alt") == "media":
          return self._media(*state.objects[bucket, name])
        if method == "GET":
          return _json(state.metadata(bucket, name))
    if match := re.fullmatch(r"/storage/v1/b/([^/]+)(/o)?/?", path):
      bucket = match[1]
      if bucket not in state.buckets:
        return _error(404)
      if method == "GET" and not match[2]:
        return _json({"kind": "storage#bucket", "name": bucket})
      if method == "GET":
        return self._list(bucket, query)
    state.unknown.append(f"{method} {address}")
    return _error(501)

  def _media(self, generation: int, content: bytes):
    headers = {"x-goog-generation": str(generation)}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
    if wanted is None:
      return 200, headers, content
    first = int(wanted[1])
    if first >= len(content):
      return _error(416)
    last = min(int(wanted[2] or len(content)), len(content) - 1)
    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return 206, headers, content[first : last + 1]

  def _list(self, bucket: str, query: dict[str, str]):
    state = self.server_state
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    items, prefixes = [], set()
    with state.lock:
      for name in state.names(prefix, bucket):
        if (
          not query.get("startOffset", "")
          <= name
          < query.get("endOffset", "\U0010ffff")
        ):
          continue
        head, found, _ = name[len(prefix) :].partition(delimiter or "\0")
        if delimiter and found:
          prefixes.add(f"{prefix}{head}{delimiter}")
        else:
          items.append(state.metadata(bucket, name))
    return _json(
      {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}
    )

  def _upload(self, method: str, bucket: str, query: dict, body: bytes):
    state = self.server_state
    if bucket not in state.buckets:
      return _error(404)
    if "upload_id" in query:  # gcsfs posts the chunks, others put them.
      bucket, name, original, content = state.uploads[query["upload_id"]]
      content += body
      if self.headers["Content-Range"].endswith("/*"):
        return 308, {"Range": f"bytes=0-{len(content) - 1}"}, b""
      return self._stored(bucket, name, bytes(content), original)
    kind = query.get("uploadType")
    if method == "POST" and kind == "media":
      return self._stored(bucket, query["name"], body, query)
    if method == "POST" and kind == "multipart":
      head, content = self._parts(self.headers["Content-Type"], body)
      return self._stored(bucket, json.loads(head)["name"], content, query)
    if method == "POST" and kind == "resumable":
      upload = str(next(state.generations))
      name = json.loads(body)["name"] if body else query["name"]
      state.uploads[upload] = bucket, name, query, bytearray()
      location = f"{state.url}{self.path}&upload_id={upload}"
      return 200, {"Location": location}, b""
    state.unknown.append(f"{method} {self.path}")
    return _error(501)

  def _stored(self, bucket: str, name: str, content: bytes, query: dict):
    made = self.server_state.store(bucket, name, content, query)
    return _error(412) if made is None else _json(made)

  def _parts(self, content_type: str, body: bytes) -> list[bytes]:
    """Contents of a multipart body, byte for byte."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)[1].encode()
    parts = re.split(rb"(?:\r?\n|^)--" + re.escape(boundary), body)[1:-1]
    return [re.split(rb"\r?\n\r?\n", part, maxsplit=1)[1] for part in parts]

  def _batch(self, body: bytes):
    answers = []
    for part in self._parts(self.headers["Content-Type"], body):
      line = part.decode().splitlines()[0]
      method, address, _ = line.split(" ")
      status, _, content = self._respond(method, address, b"")
      answers.append(
        b"--batch\r\nContent-Type: application/http\r\n\r\n"
        + f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n".encode()
        + f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
        + b"\r\n"
      )
    content = b"".join(answers) + b"--batch--\r\n"
    return 200, {"Content-Type": "multipart/mixed; boundary=batch"}, content


def _json(value: dict):
  headers = {"Content-Type": "application/json"}
  return 200, headers, json.dumps(value).encode()


def _error(status: int):
  message = http.HTTPStatus(status).phrase
  error = {"error": {"code": status, "message": message, "errors": []}}
  return (
    status,
    {"Content-Type": "application/json"},
    json.dumps(error).encode(),
  )
