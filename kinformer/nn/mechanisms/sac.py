"""SAC (sparse adaptive connection): attention to keys that a network chooses and learns by reward."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kinformer.attend import read
from kinformer.core.attention_output import AttentionOutput
from kinformer.core.checks import check_scale
from kinformer.core.example import Example
from kinformer.core.heads import HeadSizes, Keys, Queries, StateSpec
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.kv_cache import KV
from kinformer.core.layer import Context, Out, PerToken, Want
from kinformer.core.loss import CHOICES
from kinformer.core.mechanism import Mechanism
from kinformer.core.patterns.causal import Causal
from kinformer.core.request import Request
from kinformer.core.token_positions import check_in_order
from kinformer.nn.mechanisms.edge_predictor import By, EdgeChooser, WalkState
from kinformer.nn.mechanisms.key_groups import check_no_additions, gather_columns, gather_positions, own_column
from kinformer.nn.mechanisms.token_blocks import TokenBlocks


class SACState(NamedTuple):
    """Decoding state of `SAC`.

    keys: cache of keys and values.
    walk: state of the network that chooses; zeros before the first token.
    """

    keys: KV
    walk: WalkState


class EdgeAttention(KeyValueMechanism):
    """Base class of SAC layers (sparse adaptive connection): a query reads chosen keys and its own token.

    A subclass supplies the chosen keys.

    scale: factor of the dot product; 1/sqrt(k_dim) if None.
    """

    received_attention = Mechanism.received_attention  # no pattern describes the keys that are read

    def __init__(self, scale: float | None):
        super().__init__()
        self.pattern, self.scale = Causal(), check_scale(scale)

    def preprocess(self, queries: Queries, keys: Keys | None, ctx: Context) -> tuple[Queries, Keys | None]:
        name = type(self).__name__
        check_in_order(ctx, name)
        check_no_additions(self, ctx, "chosen keys")
        if ctx.only is not None:
            raise ValueError(
                f"{name} does not support ctx.only: choices of keys go from token to token through a whole row. Drop "
                "ctx.only"
            )
        if keys is None or not keys.own:
            raise ValueError(
                f"{name} reads chosen keys of its own sequence, but got no keys or keys of another sequence. Use "
                "Softmax for cross-attention"
            )
        return queries, keys

    def start(self, spec: StateSpec, sizes: HeadSizes) -> KV:
        if sizes.cross:
            raise ValueError(
                f"{type(self).__name__} cannot be used in cross-attention: it reads chosen keys of its own "
                "sequence. Use Softmax"
            )
        return super().start(spec, sizes)

    def read_positions(self, request: Request, position: Int[Tensor, "B P T E"]) -> AttentionOutput:
        """Return the attention to the keys at the given positions and to the query's own token.

        A key that was chosen twice counts once.

        request: attention call with its queries and keys.
        position: positions of the keys of each query, [B, P, T, E]; -1 for none.
        """
        heads, length = request.queries.q.shape[1:3]
        if not position.numel():
            return read(request)
        column, has_own_key = own_column(request)
        by_position = TokenBlocks.from_positions(request.keys.pos[:, 0], 1)
        place = (position - by_position.first[:, None, None, None]).clamp(0, by_position.column.shape[1] - 1)
        at = by_position.column[:, None, None, :, 0].take_along_dim(place, 3)  # [B P T E]
        real, width = (position >= 0) & (at >= 0), position.shape[3]
        itself = request.queries.pos[..., None]
        same = position[..., :, None] == position[..., None, :]  # the first of equal positions stays
        is_repeated = (same & torch.ones(width, width, dtype=torch.bool, device=at.device).tril(-1)).any(-1)
        real = real & ~is_repeated & (position != itself)
        at, real = (
            torch.cat([x.repeat_interleave(heads // x.shape[1], 1), own_x[..., None].expand(-1, heads, -1, 1)], 3)
            for x, own_x in ((at, column), (real, has_own_key))
        )
        at, real = (x.transpose(1, 2) for x in (at.clamp_min(0), real))  # [B T H E + 1]
        pos = gather_positions(request.keys.pos, at, real)
        q = request.queries.q.transpose(1, 2).flatten(0, 1)[:, :, None]  # [B*T H 1 K]
        q_pos = request.queries.pos.expand(-1, heads, -1).transpose(1, 2).flatten(0, 1)[..., None]
        batch = torch.arange(len(at), device=at.device).repeat_interleave(length)
        of_tokens = read(
            request.regroup(
                queries=Queries(q, q_pos, head=request.queries.head),
                keys=Keys(gather_columns(request.keys.k, at), gather_columns(request.keys.v, at), pos),
                rows=batch,
                lse=True,
            )
        )
        assert of_tokens.lse is not None
        y, lse = (
            x[:, :, 0].unflatten(0, (-1, length)).transpose(1, 2) for x in (of_tokens.y, of_tokens.lse[..., None])
        )
        return AttentionOutput(y, lse[..., 0])


class SAC(EdgeChooser, EdgeAttention):
    """Softmax attention over the query's own token and `edges` earlier tokens, which an LSTM chooses.

    Choose it to see which connections a task needs. Do not choose it for speed, because choices are made one by one.
    For each token, in order, the LSTM runs `edges` times on the token that it chose last. It chooses key j with p(j) =
    softmax_j(h W (x_j + D)), with a learned vector D of the distance. Training draws the key, separately for each row;
    eval mode takes the most likely one. Choices never depend on later tokens, so it can be decoded; the decoding state
    holds the LSTM's state.

    No gradient flows through a choice. The auxiliary output "log_p" is the log-probability of the choices of each
    token; a `ReinforcedLM` trains the network with it. The paper's network also chooses queries, from the whole row:
    see `PublishedSAC`.

    edges: number of keys that a token chooses besides itself; alpha times the length in the paper.
    width: width of the network.
    clip: largest distance with its own vector.
    by: "layer" for one set of edges, or "head" for one set for each key head.
    send: True passes the edges (chosen keys) to layers above with `GivenEdges`; only possible with by="layer".
    scale: factor of the dot product; 1/sqrt(k_dim) by default.
    seed: seed of the random choices.

    Errors: ValueError without `ctx.run` (the promise of consecutive positions), with `ctx.only` or `ctx.also`, and for
    keys of another sequence.

    Source: Li et al., 2020, arXiv:2003.09833.

    Differences: edges for each token, one LSTM for all heads, and nodes as linear maps are choices of this library.
    """

    def __init__(
        self,
        edges: int,
        width: int,
        *,
        clip: int = 16,
        by: By = "layer",
        send: bool = False,
        scale: float | None = None,
        seed: int = 0,
    ):
        super().__init__(scale)
        self.choose_by(edges, width, clip, by, seed)
        self.sends = self.sent_names("edges", send)

    def start(self, spec: StateSpec, sizes: HeadSizes) -> SACState:  # type: ignore[override]
        keys = super().start(spec, sizes)
        walkers = sizes.key_heads if self.by == "head" else 1
        shape = (spec.batch, walkers, self.predictor.width)
        return SACState(keys, WalkState(*(torch.zeros(shape, dtype=spec.dtype, device=spec.device) for _ in range(3))))

    def forward(  # type: ignore[override]
        self, queries: Queries, keys: Keys | None, state: SACState | None, ctx: Context
    ) -> Out[AttentionOutput]:
        queries, keys = self.preprocess(queries, keys, ctx)
        request, new_state = self.make_request(queries, keys, None if state is None else state.keys, ctx)
        position, log_p, walk = self.choose(request, state)
        if state is not None:
            assert new_state is not None
            new_state = SACState(new_state, walk.to(state.walk.h.dtype))  # type: ignore[assignment]
        up = {"edges": PerToken(position[:, 0])} if self.sends else {}
        if ctx.remember:
            return Out(AttentionOutput(queries.q[..., :0], None), new_state, up=up)
        return Out(self.read_positions(request, position), new_state, {CHOICES: log_p}, up)

    def read(self, request: Request) -> Out[AttentionOutput]:
        return Out(self.read_positions(request, self.choose(request, None)[0]))

    def choose(
        self, request: Request, state: SACState | None
    ) -> tuple[Int[Tensor, "B P T E"], Float[Tensor, "B T"], WalkState]:
        """Return the positions of each query's keys (-1 at padding), their log-probability and the new state."""
        nodes, k_pos = self.nodes(request), request.keys.pos
        walk = self.predictor.begin(nodes)
        if state is not None:
            walk = state.walk.to(nodes.dtype).where((state.keys.now > 0)[:, None, None], walk)
        position, log_p = [], []
        for q_pos in (request.queries.pos[:, :, t, None] for t in range(request.queries.pos.shape[2])):  # [B 1 1]
            may = (k_pos >= 0) & (k_pos <= q_pos)
            for turn in range(self.edges):
                noise = self.noise(nodes, q_pos * self.edges + turn, k_pos, may)
                at, worth, after = self.predictor.choose(walk, nodes, may, q_pos - k_pos, noise)
                walk = after.where(q_pos >= 0, walk)
                position.append(torch.where(q_pos >= 0, k_pos.expand(-1, at.shape[1], -1).gather(2, at), -1))
                log_p.append(torch.where(q_pos[..., 0] >= 0, worth, 0.0).sum(1))
        batch, walkers = nodes.shape[:2]
        if not position:
            no_positions = k_pos.new_zeros(batch, walkers, 0, self.edges)
            return no_positions, nodes.new_zeros(batch, 0), walk
        return (
            torch.cat(position, 2).unflatten(2, (-1, self.edges)),
            torch.stack(log_p, 1).unflatten(1, (-1, self.edges)).sum(2),
            walk,
        )


class GivenEdges(EdgeAttention):
    """Softmax attention over the query's own token and the keys that a lower `SAC(send=True)` chose.

    scale: factor of the dot product; 1/sqrt(k_dim) by default.

    Errors: ValueError if no lower layer has passed on its edges (chosen keys); otherwise as in `SAC`.
    """

    wants = (Want("edges"),)

    def __init__(self, *, scale: float | None = None):
        super().__init__(scale)

    def read(self, request: Request) -> Out[AttentionOutput]:
        edges = request.below.get("edges")
        if not isinstance(edges, PerToken):
            raise ValueError("GivenEdges got no edges from the layers below. Use SAC(send=True) in a layer below")
        return Out(self.read_positions(request, edges.value[:, None]))


_APART = {"merge": "keys are chosen among all keys, so two halves of the keys give other choices than the whole"}

EXAMPLES = (Example(lambda: SAC(2, 4, clip=3), _APART), Example(lambda: SAC(1, 5, by="head", seed=3), _APART))
