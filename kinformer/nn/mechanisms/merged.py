"""Merged: one softmax over disjoint sets of keys, each read by its own mechanism."""

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput, merge
from kinformer.core.example import Example
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context, Out, State
from kinformer.core.sublayer_names import entries_under
from kinformer.nn.mechanisms.composite_mechanism import CompositeMechanism


class Merged(CompositeMechanism):
    """One softmax over several sets of keys, each read by its own mechanism n.

    y = sum_n exp(lse_n) y_n / sum_n exp(lse_n)

    y_n and lse_n are the output and the log-sum-exp of mechanism n. Choose it to read near keys exactly and far keys at
    low cost. `Merged(Softmax(Causal() & Band(63)), Delayed(LinearAttention(FAVOR(64, 128)), 64))` reads a window of 64
    keys with softmax and estimates attention to the keys before it. Its cost is linear and its decoding state has a
    fixed size. The mechanisms must read disjoint keys. This is not checked, and a key that two mechanisms read counts
    twice. They must also use the same kernel, such as softmax and its estimate `FAVOR`.

    On queries and keys of a small trained decoder, its error was .3 to .7 times the error of FAVOR+ with as many
    multiplications. Compared with only a wider window, its error was 1.5 to 1.9 times as large in rows of 1,024
    tokens and .9 to 1.1 times in rows of 4,096, and the window was always faster (bench/README.md). Attention there was
    local and sharp, which few features estimate badly. Choose it if far keys must be read at all, and start with a
    window.

    The outputs are merged like the blocks of flash attention (Dao et al., 2022, arXiv:2205.14135).

    parts: mechanisms; each gets all queries and all keys.

    Errors: ValueError if a part returns no lse; NoState from `start` if a part has no decoding state.

    Source: no paper. Separate near and far fields come from fast multipole methods.

    Differences: FMMformer (Nguyen et al., 2021, arXiv:2108.02347) adds two attentions with learned weights in place of
    one softmax.
    """

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[AttentionOutput]:
        outs = [
            part(
                queries._replace(extras=entries_under(n, queries.extras)),
                None if keys is None else keys._replace(extras=entries_under(n, keys.extras)),
                None if state is None else state[n],
                ctx.for_sublayer(n),
            )
            for n, part in enumerate(self.parts)
        ]
        read = AttentionOutput(queries.q[..., :0], None) if ctx.remember else merge(*(out.y for out in outs))
        return self.combine_outs(outs, read, state)


def _near_and_far() -> Merged:
    return Merged(kf.Softmax(kf.Causal() & kf.Band(2)), kf.Delayed(kf.LinearAttention(kf.FAVOR(8, 16), piece=4), 3))


def _sinks() -> Merged:
    near = kf.Softmax(kf.Causal() & (kf.Band(2) | kf.Tokens(2)))
    return Merged(near, kf.Delayed(kf.LinearAttention(kf.Hedgehog(2, 8), piece=4), 3, sinks=2))


EXAMPLES = (Example(_near_and_far), Example(_sinks))
