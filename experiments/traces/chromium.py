"""Headless Chromium, controlled through a pipe.

Messages of the DevTools protocol are JSON that ends with a null byte. The
browser reads them from its file descriptor 3, and writes to 4. So only the
browser itself needs to be installed.

Source: https://chromedevtools.github.io/devtools-protocol.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any, Self

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 120.0


def find() -> str:
  """The path of a browser.

  Raises:
    FileNotFoundError: No browser is found.
  """
  for name in _NAMES:
    if path := shutil.which(name):
      return path
  raise FileNotFoundError(
    f"traces: none of {', '.join(_NAMES)} is on the PATH; install Chromium"
    " (Debian: apt-get install chromium) to look at pages in it."
  )


class Browser:
  """Page in a headless browser, of which everything is recorded.

  Attributes:
    requests: Addresses that were requested.
    messages: Complaints of the page and the browser.
    dialogs: Texts of alerts and the like.
  """

  def __init__(self) -> None:
    self.requests: list[str] = []
    self.messages: list[str] = []
    self.dialogs: list[str] = []
    self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    to_browser, self._write = os.pipe()
    self._read, from_browser = os.pipe()
    # The shell puts the pipes where the browser looks for them.
    self._process = subprocess.Popen(
      [
        "/bin/sh",
        "-c",
        f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}',
        find(),
        "--headless=new",
        # Its sandbox does not start for the superuser.
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        f"--user-data-dir={self._folder.name}",
        "--remote-debugging-pipe",
        "about:blank",
      ],
      pass_fds=(to_browser, from_browser),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    self._number = 0
    self._rest = b""
    self._session: str | None = None
    target = self.send("Target.createTarget", url="about:blank")["targetId"]
    self._session = self.send(
      "Target.attachToTarget", targetId=target, flatten=True
    )["sessionId"]
    for domain in ("Page", "Runtime", "Network", "Log"):
      self.send(f"{domain}.enable")

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self._process.kill()
    self._process.wait()
    os.close(self._write)
    os.close(self._read)
    self._folder.cleanup()

  def send(self, method: str, **parameters: Any) -> dict[str, Any]:
    """Sends a command, and waits for its result.

    Raises:
      ValueError: The browser refuses the command.
      TimeoutError: The browser does not answer.
    """
    self._number += 1
    message = {"id": self._number, "method": method, "params": parameters}
    if self._session is not None:
      message["sessionId"] = self._session
    os.write(self._write, json.dumps(message).encode() + b"\0")
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
      found = self._next()
      if found.get("id") == message["id"]:
        if "error" in found:
          raise ValueError(f"chromium: {method}: {found['error']}")
        return found["result"]
      self._note(found)
    raise TimeoutError(f"chromium: no answer to {method}.")

  def _next(self) -> dict[str, Any]:
    while b"\0" not in self._rest:
      content = os.read(self._read, 1 << 20)
      if not content:
        raise OSError("chromium: the browser has ended; it did not start?")
      self._rest += content
    line, _, self._rest = self._rest.partition(b"\0")
    return json.loads(line)

  def _note(self, event: dict[str, Any]) -> None:
    method, values = event.get("method"), event.get("params", {})
    if method == "Network.requestWillBeSent":
      self.requests.append(values["request"]["url"])
    elif method == "Page.javascriptDialogOpening":
      self.dialogs.append(values["message"])
    elif method == "Runtime.exceptionThrown":
      self.messages.append(json.dumps(values["exceptionDetails"]))
    elif method == "Runtime.consoleAPICalled":
      self.messages.append(json.dumps(values["args"]))
    elif method == "Log.entryAdded":
      self.messages.append(values["entry"]["text"])

  def open(self, path: pathlib.Path) -> float:
    """Opens a page; returns the seconds until it says that it is ready."""
    begin = time.monotonic()
    self.send("Page.navigate", url=path.resolve().as_uri())
    while self.value("document.documentElement?.dataset.ready") != "yes":
      if time.monotonic() - begin > _SECONDS:
        said = self.value("document.body?.innerText.slice(0, 300)")
        raise TimeoutError(f"chromium: not ready: {said} {self.messages}")
      time.sleep(0.02)
    return time.monotonic() - begin

  def value(self, expression: str) -> Any:
    """The value of an expression of JavaScript, which may be a promise."""
    found = self.send(
      "Runtime.evaluate",
      expression=expression,
      returnByValue=True,
      awaitPromise=True,
    )
    if "exceptionDetails" in found:
      raise ValueError(f"chromium: {expression}: {found['exceptionDetails']}")
    return found["result"].get("value")

  def size(self, width: int, height: int, scale: float = 1.0) -> None:
    """Sets the size of the window, in pixels; a narrow one is a phone's."""
    self.send(
      "Emulation.setDeviceMetricsOverride",
      width=width,
      height=height,
      deviceScaleFactor=scale,
      mobile=width < 600,
    )

  def theme(self, name: str) -> None:
    """Sets the reader's preferred color scheme: "light" or "dark"."""
    feature = {"name": "prefers-color-scheme", "value": name}
    self.send("Emulation.setEmulatedMedia", features=[feature])

  def press(self, key: str) -> None:
    """Presses and releases a key."""
    known: dict[str, Any] = {"text": key} if len(key) == 1 else {}
    if key == "Escape":  # Dialogs know it by its number.
      known = {"windowsVirtualKeyCode": 27}
    for kind in ("keyDown", "keyUp"):
      self.send("Input.dispatchKeyEvent", type=kind, key=key, **known)

  def hover(self, selector: str) -> None:
    """Moves the pointer over the first element that a selector finds."""
    x, y = self.value(
      f"(() => {{ const box = document.querySelector({json.dumps(selector)})"
      ".getBoundingClientRect(); return [box.x + box.width / 2,"
      " box.y + box.height / 2]; })()"
    )
    self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

  def picture(self, path: pathlib.Path) -> None:
    """Writes the visible page as a PNG."""
    data = self.send("Page.captureScreenshot", format="png")["data"]
    path.write_bytes(base64.b64decode(data))
