"""The command `kinformer check`: test a part, a member or a trained model against every law."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.options import Own


def check(
    target: Annotated[
        str,
        typer.Argument(
            help="Python file with a tuple EXAMPLES of functions that build your parts; file.py:Name for one of the "
            "parts; or the folder of a trained model. Models of other libraries: file.py:Class for a torch.nn.Module "
            "of tokens, hf:FOLDER or hf:ORG/NAME for the class of transformers itself."
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
    member: Own = None,
) -> int:
    """Test a part, a member or a trained model against every law.

    \b
    Examples:
        kinformer check mine.py
        kinformer check mine.py:MyPattern --law padding --out runs/check
        # A trained model: nothing peeks, and decoding gives what a whole pass gives
        kinformer check runs/llama
        # A class of transformers, or any torch.nn.Module that maps tokens to logits
        kinformer check hf:models/gpt2
        kinformer check model.py:MyLM --law peek

    A part is a building block of models, and a member is a named model. A law is a property that every part of some
    kinds should have, such as that padding changes no output. The file has a tuple EXAMPLES of functions that build the
    parts to test, such as EXAMPLES = (lambda: mine(d=16),). Without EXAMPLES, file.py:Name tests a part or member that
    can be built without arguments.

    The report has a line for each law: ✓ holds, ✗ broken, ~ declared as broken by the part itself. A broken law names
    the smallest example that breaks it. Laws that were not tested follow, each with the reason. Then come drawings of
    the attention patterns, and the time and memory at several lengths of a row.

    A learnability probe trains a tiny copy of a member. Its result is a note and never a failure. The exit code is 0 if
    no law is broken, and 1 if a law is broken or runs out of time. It is 2 if the file cannot be tested, or if no law
    applies to its examples.
    """
    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.check_report import judge_target

    return judge_target(target, member, law, seconds, out)
