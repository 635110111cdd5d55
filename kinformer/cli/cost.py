"""The command `kinformer cost`: count the parameters, FLOPs and memory of a training before it starts."""

import typer

from kinformer.cli import options
from kinformer.cli.errors import refuse_useless
from kinformer.lab.errors import UserError, from_user
from kinformer.lab.member_choice import parse_member


def cost(
    ctx: typer.Context,
    member: options.Member,
    keywords: options.Keywords = None,
    *,
    batch: options.RowBatch = options.BATCH,
    length: options.RowLength = options.LENGTH,
    precision: options.Precision = options.PRECISION,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Count the parameters, FLOPs and memory of a training.

    \b
    Examples:
        kinformer cost llama depth=4 --batch 8 --length 512
        kinformer cost transformer_xl memory=256 --json

    The table shows the parameters, the additions and multiplications of a forward pass and of a training step, and the
    peak memory. It also shows the bytes of a decoding state, and the executor of each layer, which is the way to
    compute its attention. The command runs a few random rows and saves nothing. For full and causal
    attention, all pairs of query and key are counted, as PyTorch does. For other attention patterns, only the pairs
    that the pattern allows are counted.

    On a CPU, a fresh training process takes within 15% of the reported memory, or more if the heap of the C library
    fragments (docs/training.md). On a GPU, the command reports the memory that PyTorch holds there.

    If a member has a memory, which keeps states of earlier segments, the memory is first filled with up to 4,096 tokens
    of each row. These tokens are not counted. For a member with a memory or windows, the table also shows the temporal
    range. This is the distance in tokens from an output to the earliest token that can change it, through all layers.
    Attention over a segment of L tokens, a memory of m states and m_cm compressed states computes L^2 + L (m + m_cm)
    scores in each layer and head.
    """
    choice = parse_member(member, keywords or ())

    # imported here, so that --help and early errors do not wait for torch or rich
    from kinformer.cli.support.cost_table import print_json, print_table
    from kinformer.cli.support.device_choice import parse_device
    from kinformer.cli.support.memory_limits import decides_length, refuse_too_large
    from kinformer.cli.support.progress_bar import progress
    from kinformer.cli.support.training import fit_and_tell_length
    from kinformer.lab.cost.cost import PERCENT
    from kinformer.lab.cost.cost import cost as cost_of

    where = parse_device(device)
    choice = fit_and_tell_length(choice, length, length)
    refuse_too_large(choice, batch, length, where)
    with from_user(ValueError, LookupError), progress("measuring the cost", PERCENT, "%") as on_progress:
        try:
            model = choice.build(0)
            if decides_length(model):
                refuse_useless(ctx, f"on {choice.text}, which fixes the length of rows itself", "length")
            measured = cost_of(model.to(where), batch, length, on_progress, precision)
        except (MemoryError, RuntimeError) as error:
            raise UserError(
                f"cannot measure {choice.text}: running two rows of {length:,} tokens failed: {error}"
            ) from error
    if as_json:
        print_json(choice.text, measured, where, precision)
    else:
        print_table(choice.text, model, measured, batch, length, where, precision)
