"""python -m hacpo_fast.report RUN [RUN ...]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hacpo_fast.command_line import exit_status
from hacpo_fast.errors import UserError

EPILOG = """\
The page works from a file, without network; several runs are laid over each other. A RUN may still be going on or have
been killed. Examples:

  python -m hacpo_fast.report runs/mine
  python -m hacpo_fast.report runs/comparison/cpu
  python -m hacpo_fast.report runs/hacpo runs/gspo runs/comparison/cpu --output both.html --png figures
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.report",
        description="Shows runs of hacpo_fast.train as one HTML page.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources",
        metavar="RUN",
        nargs="+",
        help="folder of a run; or of a comparison (hacpo_fast.compare), or a table as JSON",
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="the page (default: report.html in the first RUN)")
    parser.add_argument("--png", metavar="FOLDER", type=Path, help="also draw every figure there, for papers")
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: _report(chosen.sources, chosen.output, chosen.png))


def _report(sources: Sequence[str], output: Path | None, png: Path | None) -> int:
    from hacpo_fast.report.charts import chart_groups
    from hacpo_fast.report.data import page_data
    from hacpo_fast.report.page import page
    from hacpo_fast.report.reading import read_sources
    from hacpo_fast.report.series import RunSeries

    runs, tables = read_sources(sources)
    output = output or (first if (first := Path(sources[0])).is_dir() else first.parent) / "report.html"
    if output.is_dir() or (output.exists() and not output.is_file()):
        raise UserError(
            f"--output: {output} is not a file; give the name of the page, such as {output / 'report.html'}"
        )
    if png is not None and png.exists() and not png.is_dir():
        raise UserError(f"--png: {png} is a file; give a folder")
    series = [RunSeries(run) for run in runs]
    groups = chart_groups(series)
    html = page(page_data(runs, series, groups, tables))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(html, encoding="ascii")
    except OSError as error:
        raise UserError(f"--output: {output} cannot be written: {error.strerror}") from error
    print(f"{output} ({len(html) / 1e6:.1f} MB)")
    if png is not None:
        from hacpo_fast.report.figures import draw_figures
        from hacpo_fast.report.labels import short_labels

        labels = short_labels([run.name for run in runs])
        print(f"{len(draw_figures(series, groups, labels, png))} figures in {png}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
