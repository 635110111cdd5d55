"""SplitHeads: different mechanisms for different heads."""

from collections.abc import Mapping

import torch
from torch import Tensor

import kinformer as kf
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.heads import HeadSizes, Keys, Queries
from kinformer.core.layer import Context, Out, State
from kinformer.core.sublayer_names import entries_under
from kinformer.nn.mechanisms.composite_mechanism import CompositeMechanism


class SplitHeads(CompositeMechanism):
    """Several mechanisms, each for the same number of consecutive heads, in order.

    With 8 heads, `SplitHeads(a, b)` gives heads 0..3 to a.

    Choose it for layers such as "half of the heads local": `SplitHeads(Softmax(Causal() & Band(64)), Routing(4, 32,
    16))`. Each mechanism is made for its own number of heads. If the layer has a single key head, all mechanisms share
    it. Patterns that differ by head use the head numbers of the layer. If heads differ only in their pattern, use
    `Softmax(Heads(...))`. The lse (log-sum-exp of the scores) joins the parts' lse; it is None if a part returns none.

    parts: mechanisms, one for each run of heads.

    Errors: ValueError if the heads cannot be split evenly, when the layer is built; NoState from `start` if a part has
    no decoding state.

    Source: Roy et al., 2020, arXiv:2003.05997, section 5 (half of the heads local).
    """

    def forward(self, queries: Queries, keys: Keys | None, state: State | None, ctx: Context) -> Out[AttentionOutput]:
        outs = [
            part(
                self._queries_of(queries, n),
                None if keys is None else self._keys_of(keys, n),
                None if state is None else state[n],
                ctx.for_sublayer(n),
            )
            for n, part in enumerate(self.parts)
        ]
        lses = [out.y.lse for out in outs]
        lse = None if any(part_lse is None for part_lse in lses) else torch.cat(lses, 1)
        return self.combine_outs(outs, AttentionOutput(torch.cat([out.y.y for out in outs], 1), lse), state)

    def _queries_of(self, queries: Queries, n: int) -> Queries:
        first = self._run_of(queries.q.shape[1]) * n
        return queries._replace(
            q=self._run(queries.q, n),
            pos=self._run(queries.pos, n),
            extras=self._runs(queries.extras, n),
            tags=self._runs(queries.tags, n),
            head=queries.head + first,
        )

    def _keys_of(self, keys: Keys, n: int) -> Keys:
        return keys._replace(
            k=self._run(keys.k, n),
            v=self._run(keys.v, n),
            pos=self._run(keys.pos, n),
            extras=self._runs(keys.extras, n),
            tags=self._runs(keys.tags, n),
        )

    def _runs(self, entries: Mapping[str, Tensor], n: int) -> dict[str, Tensor]:
        return {name: self._run(x, n) for name, x in entries_under(n, entries).items()}

    def _run(self, x: Tensor, n: int) -> Tensor:
        """Return the heads of part n of a tensor [B, H, ..]; a single head belongs to all parts."""
        if x.shape[1] == 1:
            return x
        size = self._run_of(x.shape[1])
        return x[:, size * n : size * (n + 1)]

    def _run_of(self, heads: int, name: str = "heads") -> int:
        if heads % len(self.parts):
            raise ValueError(
                f"{heads} {name} cannot be split evenly among {len(self.parts)} mechanisms. Use a multiple of "
                "the number of mechanisms"
            )
        return heads // len(self.parts)

    def share(self, sizes: HeadSizes) -> HeadSizes:
        """Return the head sizes of one part; all parts share a single head of keys or values."""
        heads = self._run_of(sizes.heads)
        keys, values = (
            1 if n == 1 else self._run_of(n, f"heads of {name}")
            for n, name in ((sizes.key_heads, "keys"), (sizes.value_heads, "values"))
        )
        return sizes._replace(heads=heads, key_heads=keys, value_heads=values)


def _softmaxes() -> SplitHeads:
    return SplitHeads(kf.Softmax(kf.Causal() & kf.Band(2)), kf.Softmax(kf.Causal()))


def _half_linear() -> SplitHeads:
    return SplitHeads(kf.Softmax(kf.Causal() & kf.Band(2)), kf.LinearAttention(kf.ELU()))


EXAMPLES = (_softmaxes, _half_linear)
