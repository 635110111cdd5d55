"""The command `kinformer check`: test a part or member of your own against every law."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    file: Annotated[
        str,
        typer.Argument(
            help="Python file with a tuple EXAMPLES of functions that build your parts, or file.py:Name for one of "
            "the parts."
        ),
    ],
    law: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of one law (a property that parts are tested for), such as padding; give the option again for "
            "more; default: all laws."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit for testing each law, in seconds.", min=0.1)] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report and pictures; default: no files are written.")
    ] = None,
) -> int:
    """Test a part or member of your own against every law.

    A part is a building block of models, and a member is a named model. A law is a property that every part of some
    kinds must have, such as that padding changes no output. The file must have a tuple EXAMPLES of functions that build
    the parts to test, such as EXAMPLES = (lambda: mine(d=16),).

    The report has a verdict for each law, with the smallest example that breaks it. It also has drawings of the
    attention patterns, and the time and memory at several lengths of a row. The exit code is 0 if all laws hold and 1
    if a law is broken or runs out of time. It is 2 if the file cannot be tested, or if no law applies to its examples.

    \b
    Examples:
        kinformer check mine.py
        kinformer check mine.py:MyPattern --law padding --out runs/check
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.check_report import judge_file

    return judge_file(file, law, seconds, out)
