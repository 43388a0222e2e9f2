"""Headless Chromium of this machine, through Playwright."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from typing import Any, Self

from playwright import sync_api

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
    self._playwright = sync_api.sync_playwright().start()
    self._browser = self._playwright.chromium.launch(
      executable_path=find(),
      args=["--force-color-profile=srgb"],
      # It does not start for the superuser.
      chromium_sandbox=os.geteuid() != 0,
    )
    self._page = self._browser.new_page()
    self._page.set_default_timeout(_SECONDS * 1000)
    self._page.on("request", lambda x: self.requests.append(x.url))
    self._page.on("console", lambda x: self.messages.append(x.text))
    self._page.on("pageerror", lambda x: self.messages.append(str(x)))
    self._page.on("dialog", self._answer)

  def _answer(self, dialog: sync_api.Dialog) -> None:
    self.dialogs.append(dialog.message)
    dialog.dismiss()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self._browser.close()
    self._playwright.stop()

  def open(self, path: pathlib.Path) -> float:
    """Opens a page; returns the seconds until it says that it is ready."""
    begin = time.monotonic()
    self._page.goto(path.resolve().as_uri())
    self._page.wait_for_selector("[data-ready=yes]", state="attached")
    return time.monotonic() - begin

  def value(self, expression: str) -> Any:
    """The value of an expression of JavaScript, which may be a promise."""
    return self._page.evaluate(expression)

  def size(self, width: int, height: int) -> None:
    """Sets the size of the window, in pixels."""
    self._page.set_viewport_size({"width": width, "height": height})

  def theme(self, name: str) -> None:
    """Sets the reader's preferred color scheme: "light" or "dark"."""
    self._page.emulate_media(color_scheme=name)

  def press(self, key: str) -> None:
    """Presses and releases a key."""
    self._page.keyboard.press(key)

  def picture(self, path: pathlib.Path) -> None:
    """Writes the visible page as a PNG."""
    self._page.screenshot(path=path)
