"""The command `kinformer atlas`: a static site with a card for each member, a map and a playground."""

from pathlib import Path
from typing import Annotated

import typer

from kinformer.cli.support import option_checks
from kinformer.lab.errors import FAILED, UserError, from_user


def atlas(
    out: Annotated[Path, typer.Option(help="Folder for the atlas: new, empty, or an earlier atlas with --overwrite.")],
    claims: Annotated[
        Path | None,
        typer.Option(
            help="Folder of reports that `kinformer claim` wrote, whose results stand on the cards; default: the "
            "reports that come with kinformer."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the atlas that --out already holds.")] = False,
) -> None:
    """Write a site of all members, with a map and a playground.

    The site has a card for each member (named model) with the same facts, a map of who descends from whom, and a
    playground that draws any pattern expression. Open index.html in the folder --out with a browser; it needs no server
    and loads nothing from elsewhere. Writing it takes about a minute.

    \b
    Examples:
        kinformer atlas --out atlas
        # With the results of claims that were measured here
        kinformer atlas --out atlas --claims claims --overwrite
    """
    option_checks.refuse_file(out)
    if claims is not None and not claims.is_dir():
        raise UserError(f"--claims {claims} is not a folder. Give the folder --out of kinformer claim, or leave it out")

    # imported here, so that --help and early errors do not wait for torch
    from kinformer.cli.support.atlas_content import atlas_content
    from kinformer.pages.atlas.write_atlas import is_atlas, write_atlas

    if is_atlas(out):
        if not overwrite:
            raise UserError(
                f"{out} holds an earlier atlas, which would be overwritten. Give another --out, or --overwrite"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} holds files that are no atlas. Give another --out: a new or an empty folder")
    with from_user(OSError, code=FAILED):
        page = write_atlas(atlas_content() if claims is None else atlas_content(claims), out)
    print(f"the atlas: {page}")
