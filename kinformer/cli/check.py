"""`kinformer check FILE`: every law over a part or member of your own."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    file: Annotated[str, typer.Argument(help="A Python file with EXAMPLES; or file.py:Name, for one of its parts.")],
    law: Annotated[list[str] | None, typer.Option(help="One law alone; may come several times.")] = None,
    seconds: Annotated[float, typer.Option(help="The longest that one law may take.", min=0.1)] = 60.0,
    out: Annotated[Path | None, typer.Option(help="A folder for report.txt and pictures.")] = None,
) -> int:
    """Judge a part or member of your own by every law.

    A verdict per law with the smallest example that fails, the patterns drawn, and time and memory against length.
    The exit code is 0 where all hold, 1 where one does not, 2 where the file cannot be judged, or no law judges it.
    """
    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.check_report import judge_file

    return judge_file(file, law, seconds, out)
