"""Programs that train, measure and write pages."""

import sys
from types import TracebackType


def _shown(
  kind: type[BaseException],
  error: BaseException,
  trace: TracebackType | None,
) -> None:
  """Shows an uncaught error; Ctrl-C may come while importing."""
  if issubclass(kind, KeyboardInterrupt):
    print("error: stopped by Ctrl-C.", file=sys.stderr)
  else:
    sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # A program of this package is being started.
  sys.excepthook = _shown
