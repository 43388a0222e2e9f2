"""A terminal in memory, which shows what a person would see."""

import io

import pyte


class Terminal(io.StringIO):
  """Stream that is a terminal of `columns` × 30 characters."""

  encoding = "utf-8"

  def __init__(self, columns: int = 80):
    super().__init__()
    self._columns = columns

  def isatty(self) -> bool:
    return True

  def lines(self) -> list[str]:
    """Lines on the screen, without blanks at the end."""
    screen = pyte.Screen(self._columns, 30)
    screen.set_mode(pyte.modes.LNM)  # As the driver of a terminal.
    pyte.Stream(screen).feed(self.getvalue())
    return "\n".join(x.rstrip() for x in screen.display).rstrip().split("\n")


class Clock:
  """Clock whose seconds pass when a test says so."""

  seconds = 0.0

  def __call__(self) -> float:
    return self.seconds
