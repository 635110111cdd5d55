"""`kinformer cost MEMBER [key=value ...]`: what a training takes, before it is begun."""

import typer

from kinformer.cli.errors import refuse_useless
from kinformer.cli.options import BATCH, LENGTH, Batch, Json, Keywords, Length, Member
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import parse_member


def cost(
    ctx: typer.Context,
    member: Member,
    keywords: Keywords = None,
    *,
    batch: Batch = BATCH,
    length: Length = LENGTH,
    as_json: Json = False,
) -> None:
    """Say what training a member on such batches takes, and what decoding does.

    Parameters, additions and multiplications, memory at its highest, bytes of a decoding state, and which executor
    reads each layer. Found by running a few random rows on the CPU; nothing is kept. Pairs of a query
    and a key are counted as PyTorch counts them where attention is full or causal, else those that are read.

    A fresh process takes what is told of a whole one within 15%, but where blocks of some megabytes come and go, as of
    guided_attention and talking_heads at 2 x 1,024: the C library's heap breaks up, in each run otherwise (711 and 948
    MB of one training). MALLOC_MMAP_THRESHOLD_=1000000 in the environment keeps that at 493 MB, as is told then.

    A memory is filled first: up to 4,096 tokens of a row are read before those that are counted. For a member with a
    memory or with windows, the temporal range is printed too: how many tokens back the earliest token stands that can
    still change an output, through all layers. Attention over a segment of L tokens, a memory of m states and m_cm
    compressed states scores L^2 + L (m + m_cm) pairs in each layer and head.
    """
    choice = parse_member(member, keywords or ())

    # imported here, so that --help and early refusals need not wait for torch or rich
    from kinformer.cli.support.cost_table import print_json, print_table
    from kinformer.cli.support.memory_limits import decides_length, refuse_too_large
    from kinformer.cli.support.progress_bar import progress
    from kinformer.lab.cost.cost import STAGES
    from kinformer.lab.cost.cost import cost as cost_of

    refuse_too_large(choice, batch, length)
    with from_user(ValueError, LookupError), progress("counting", STAGES, "counts") as on_progress:
        try:
            model = choice.build(0)
            if decides_length(model):
                refuse_useless(ctx, f"on {choice.text}, which fixes the length of rows itself", "length")
            measured = cost_of(model, batch, length, on_progress)
        except (MemoryError, RuntimeError) as error:
            raise UserError(f"{choice.text}: two rows of {length:,} tokens cannot be run here: {error}") from error
    (print_json if as_json else print_table)(choice.text, model, measured, batch, length)
