"""The style of every figure of the project: colours, markers, sizes and names.

Figures are drawn at the size at which a paper prints them, one column or a page
wide, so letters keep their size of 7 to 9 points. Colours are those of Okabe
and Ito, "Color Universal Design", 2008, which people with any of the common
colour deficiencies tell apart. Each colour has a marker too, so nothing is told
by the colour alone. If two factors vary, one has colour and marker, and the
other has the dashes (`looks`).

Equal inputs give equal bytes: files have no date and no name of the library
that drew them.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

COLUMN = 3.25  # Inches: the width of a column of a page with two.
PAGE = 6.75  # Inches: the width of both.
DPI = 200  # Dots per inch of PNG files.
FORMATS = ("pdf", "pgf", "svg", "png")

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#777777"
# In the order of use. To people without green-sensitive cones green and purple
# are both grey, so they stand far apart. Yellow is pale, and comes last.
COLOURS = (BLUE, RED, GREEN, ORANGE, BLACK, SKY, PURPLE, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))

_TITLE, _TEXT, _SMALL = 8.5, 8.0, 7.0  # Points.
_LINE, _BAND = 1.2, 0.15  # Points; opacity of an interval.
_RC: Any = {
  "font.size": _TEXT,
  "axes.titlesize": _TITLE,
  "axes.labelsize": _TEXT,
  "axes.labelpad": 2.5,
  "axes.linewidth": 0.6,
  "axes.titlelocation": "left",
  "axes.titlepad": 4.0,
  "axes.axisbelow": True,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "grid.color": "#B0B0B0",
  "grid.alpha": 0.35,
  "grid.linewidth": 0.4,
  "xtick.labelsize": _SMALL,
  "ytick.labelsize": _SMALL,
  "xtick.major.width": 0.6,
  "ytick.major.width": 0.6,
  "xtick.major.size": 2.5,
  "ytick.major.size": 2.5,
  "xtick.minor.size": 1.5,
  "ytick.minor.size": 1.5,
  "lines.linewidth": _LINE,
  "lines.markersize": 4.0,
  "legend.fontsize": _SMALL,
  "legend.frameon": False,
  "legend.handlelength": 2.2,
  "legend.borderaxespad": 0.3,
  "legend.labelspacing": 0.3,
  "figure.titlesize": _TITLE,
  "figure.labelsize": _TEXT,
  "pdf.fonttype": 42,  # TrueType fonts, which editors can read.
  "svg.fonttype": "none",
  "svg.hashsalt": "grpo_jax",  # Otherwise ids are random.
  "pgf.rcfonts": False,  # Takes the fonts of the document.
  "savefig.dpi": DPI,
}
# Fields that a format writes about itself, and that are left out.
_METADATA: dict[str, dict[str, Any]] = {
  "png": {"Software": None},
  "svg": {"Date": None, "Creator": None},
  "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclasses.dataclass(frozen=True)
class FigureStyle:
  """The style of a line.

  Attributes:
    colour, marker: A pair that belongs together.
    dashes: A line style of matplotlib.
  """

  colour: str
  marker: str
  dashes: Any = "-"

  def line(self, **others: Any) -> dict[str, Any]:
    """The arguments of `Axes.plot`."""
    return {
      "color": self.colour,
      "marker": self.marker,
      "ls": self.dashes,
    } | others


def look(number: int, dashes: int = 0) -> FigureStyle:
  """The style with a colour and with dashes, by their numbers.

  Args:
    number: Number of the colour, from 0; beyond the last colour they begin
      again, with other dashes.
    dashes: Number of the dashes, from 0, which is a solid line.
  """
  again, place = divmod(number, len(COLOURS))
  return FigureStyle(
    COLOURS[place], MARKERS[place], DASHES[(dashes + again) % len(DASHES)]
  )


def looks(
  names: Iterable[Any],
  hue: Callable[[Any], Any] = lambda name: name,
  line: Callable[[Any], Any] = lambda name: None,
) -> dict[Any, FigureStyle]:
  """A style for each name, by two factors.

  Args:
    names: Names of the lines, in the order of drawing.
    hue: (name) -> factor of colour and marker, such as the algorithm.
    line: (name) -> factor of the dashes, such as a setting of the algorithm.
  """
  names = list(names)
  hues = list(dict.fromkeys(map(hue, names)))
  lines = list(dict.fromkeys(map(line, names)))
  return {
    name: look(hues.index(hue(name)), lines.index(line(name))) for name in names
  }


def canvas(width: float, height: float, **others: Any) -> Figure:
  """An empty figure of its own, outside pyplot.

  Args:
    width: Inches; `COLUMN` or `PAGE`.
    height: Inches.
    **others: Further arguments of `matplotlib.figure.Figure`; `kind` is a class
      that derives from it.

  Raises:
    ImportError: matplotlib is not installed.
  """
  try:
    import matplotlib
    from matplotlib import figure
  except ImportError as error:
    raise ImportError(
      "figure: matplotlib is not installed; run `pip install 'grpo_jax[plot]'`."
    ) from error
  # Axes read their settings when they are made, text when it is drawn, so these
  # become the settings of all figures of this process.
  matplotlib.rcParams.update(_RC)
  options: dict[str, Any] = {"dpi": DPI, "layout": "constrained"} | others
  kind = options.pop("kind", figure.Figure)
  return kind(figsize=(width, height), **options)


def panels(
  rows: int, columns: int, width: float = PAGE, row: float = 1.9, **others: Any
) -> tuple[Figure, np.ndarray]:  # [rows, columns]
  """A figure of panels of equal size.

  Args:
    width: Width of the figure, inches.
    row: Height of a row, inches.
  """
  fig = canvas(width, row * rows)
  return fig, fig.subplots(rows, columns, squeeze=False, **others)


def band(
  axes: Axes,
  x: Any,  # [N]
  low: Any,  # [N]
  high: Any,  # [N]
  colour: str,
) -> None:
  """Draws an interval around a curve."""
  axes.fill_between(x, low, high, color=colour, alpha=_BAND, lw=0)


def label(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
  """Writes the title and the names of both axes, except empty ones."""
  names = {"title": title, "xlabel": x, "ylabel": y}
  axes.set(**{key: text for key, text in names.items() if text})


def spread(targets: npt.ArrayLike, gap: float) -> np.ndarray:  # [N]
  """Returns places near those wanted, at least `gap` from each other."""
  centers = np.asarray(targets, float)
  order = np.argsort(centers, kind="stable")
  # Sizes and means of blocks of neighbours that touch.
  sizes: list[int] = []
  means: list[float] = []
  for value in centers[order]:
    sizes.append(1)
    means.append(value)
    while len(means) > 1:
      distance = (sizes[-1] + sizes[-2]) / 2 * gap
      if means[-1] - means[-2] >= distance:
        break
      size = sizes[-1] + sizes[-2]
      total = means[-1] * sizes[-1] + means[-2] * sizes[-2]
      sizes[-2:], means[-2:] = [size], [total / size]
  places = np.empty(len(centers))
  start = 0
  for size, mean in zip(sizes, means, strict=True):
    offsets = (np.arange(size) - (size - 1) / 2) * gap
    places[order[start : start + size]] = mean + offsets
    start += size
  return places


def name_lines(fig: Figure, axes: Axes, most: int = 8, **legend: Any) -> None:
  """Writes the names of lines at their right ends, or in a legend.

  Args:
    fig: The figure, complete except for the names.
    axes: Axes with labelled lines. If several lines have one label, the first
      counts.
    most: If there are more names than this, or if they are higher than the
      panel, there is a legend.
  """
  lines: dict[str, Any] = {}
  for line in axes.lines:
    name = str(line.get_label())
    if name and not name.startswith("_") and np.size(line.get_xdata()):
      lines.setdefault(name, line)
  if len(lines) < 2:
    return
  height = axes.get_window_extent().height * 72 / fig.dpi  # Points.
  gap = 1.15 * _SMALL
  if len(lines) > most or len(lines) * gap > height:
    axes.legend(**legend)
    return
  fig.draw_without_rendering()  # Now the panel has its place.
  height = axes.get_window_extent().height * 72 / fig.dpi
  low, high = axes.get_ylim()
  ends = []
  for line in lines.values():
    x, y = (np.asarray(z, float) for z in line.get_data())
    valid = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    last = valid[np.argmax(x[valid])] if len(valid) else 0
    ends.append(axes.transData.transform((x[last], y[last])))
  inside = axes.transAxes.inverted().transform(ends)[:, 1] * height
  places = spread(np.clip(inside, 0, height), gap)
  # A block of names that sticks out is moved in as a whole.
  places += max(0, -places.min()) - max(0, places.max() - height)
  for (name, line), place in zip(lines.items(), places, strict=True):
    axes.annotate(
      name,
      (1, place / height),
      (4, 0),
      xycoords="axes fraction",
      textcoords="offset points",
      va="center",
      fontsize=_SMALL,
      color=_readable(line.get_color()),
      annotation_clip=False,
    )
  axes.set_ylim(low, high)


def _readable(colour: Any) -> Any:
  """The colour of text; pale colours are darkened."""
  from matplotlib import colors

  rgb = np.array(colors.to_rgb(colour))
  light = float(rgb @ (0.299, 0.587, 0.114))
  darker = rgb * min(1.0, 0.55 / max(light, 1e-6))
  return colors.to_hex((darker[0], darker[1], darker[2]))


def shared_legend(
  fig: Figure, all_axes: Iterable[Axes], columns: int = 0
) -> None:
  """Draws one legend above all panels.

  Args:
    columns: Columns of the legend; 0: as many as fit.
  """
  handles: dict[str, Any] = {}
  for axes in all_axes:
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
      handles.setdefault(name, handle)
  if not handles:
    return
  # A letter is about 0.55 of its height wide, and a handle four letters.
  wide = max(len(name) for name in handles) * 0.55 * _SMALL + 4 * _SMALL
  room = fig.get_size_inches()[0] * 72
  fit = max(int(room // wide), 1)
  fig.legend(
    handles.values(),
    handles.keys(),
    loc="outside upper center",
    ncols=columns or min(fit, len(handles)),
    columnspacing=1.2,
  )


def save(fig: Figure, path: str | os.PathLike, **others: Any) -> None:
  """Writes a figure in the format of the path's ending.

  Args:
    path: Local file that ends in one of `FORMATS`.

  Raises:
    ValueError: The format is another one.
  """
  path = pathlib.Path(path)
  kind = path.suffix[1:]
  if kind not in FORMATS:
    raise ValueError(
      f"figure: {path} ends in none of {', '.join(FORMATS)}; name it so."
    )
  about = {"metadata": _METADATA[kind]} if kind in _METADATA else {}
  options: dict[str, Any] = about | others
  if kind == "pgf":
    _save_pgf(fig, path, options)
  else:
    fig.savefig(path, format=kind, **options)


def _save_pgf(fig: Figure, path: pathlib.Path, options: dict[str, Any]) -> None:
  """Writes commands of PGF, also on a machine without LaTeX.

  matplotlib asks LaTeX how large each text is, to arrange the panels. If LaTeX
  is missing, the sizes are those of matplotlib's own font: LaTeX still sets the
  text, in the document, and it may be a little wider or narrower.
  """
  import matplotlib
  from matplotlib.backends import backend_agg, backend_pgf

  system = next(filter(shutil.which, ("xelatex", "lualatex", "pdflatex")), None)
  renderer: Any = backend_pgf.RendererPgf
  measure = renderer.get_text_width_height_descent
  if system is None:
    ruler = backend_agg.RendererAgg(8, 8, 72)

    def measure_text(self: Any, text: str, font: Any, math: Any) -> Any:
      del self
      return ruler.get_text_width_height_descent(text, font, math)

    renderer.get_text_width_height_descent = measure_text
  try:
    with matplotlib.rc_context({"pgf.texsystem": system or "xelatex"}):
      fig.savefig(path, format="pgf", **options)
  finally:
    renderer.get_text_width_height_descent = measure
