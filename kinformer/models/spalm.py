"""SPALM: a language model with a gate that learns when to use the nearest entries of a datastore."""

import hashlib
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.autocast import at_least_float32, disable_autocast
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_at_least, check_flag, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, State
from kinformer.core.neighbours import Entries, Neighbours, Store
from kinformer.core.state import share_positions
from kinformer.core.token_positions import NumberedState, context_of_tokens
from kinformer.models.lm import LM
from kinformer.models.support.run_uncompiled import run_uncompiled

BEYOND = torch.iinfo(torch.long).max  # end of a run that covers all entries
LEAST = 8  # tokens; a shorter piece, such as a common word, occurs in too many places to identify its document
FACTOR = numpy.uint64(0x9E3779B97F4A7C15)  # odd, so multiplication modulo 2^64 is invertible


class SPALMState(NamedTuple):
    """Decoding states of the two models in a `SPALM`: its body and its frozen model, which computes keys.

    body: state of the body.
    frozen: state of the frozen model.
    """

    body: State
    frozen: NumberedState


class SPALM(LM):
    """Language model with a learned gate between its hidden state and the neighbours from a datastore.

    z = (1 - g) m + g h,  m = sum_i softmax_i(h . y_i) y_i,  g = sigmoid(w_g . h),  p = softmax(W z)

    h is the body's output for a token. A frozen model's state of that token selects the `k` nearest entries of the
    store. The y_i are the embeddings, rows of W, of the tokens that followed those entries. Keys stay fixed; the
    embeddings are learned.

    Choose it over `NearestNeighbourLM` if a model is trained anyway. The gate learns token by token when to use the
    store, while that model mixes with one weight for all tokens. The gate needs 4 neighbours instead of hundreds.

    In training, a token never finds the part of its document that its row holds. That part is a sequence of tokens. All
    datastore entries of this sequence, wherever it occurs as a whole, are left out; the rest of the document can be
    found. A part of fewer than 9 tokens occurs in too many places to identify a document, so its tokens find no entry
    at all. A table of 20 bytes per entry, made once, locates the sequences, so no step scans the store. Neighbours get
    no gradient. If no neighbour is found, z = h. Training and evaluation report the mean of g as "gate".

    vocab, d, body, kwargs: arguments of `LM`.
    frozen: trained model that computes the keys. It stays fixed and is not saved with the weights.
    store: datastore to search.
    tap: name of the frozen model's hidden state that made the keys.
    k: number of neighbours; the paper finds 4 enough.
    distance: True subtracts from h . y_i the neighbour's squared distance times a learned rate. The rate starts at one
        over the width of a key. The paper saw no gain from it.
    made_by: text that identifies the frozen model. It is saved with the weights, which load only with the same text.

    Errors: ValueError for a frozen model with another vocabulary, and with `lanes` for a frozen model that cannot carry
    its state from batch to batch; and the errors of `LM`.
    Source: Yogatama et al., 2021, arXiv:2102.02557, sections 2.3 and 3.
    """

    made_by: Tensor

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        frozen: LM,
        store: Store,
        tap: str,
        k: int = 4,
        distance: bool = False,
        made_by: str = "",
        **kwargs: Any,
    ):
        super().__init__(vocab, d, body, **kwargs)
        # in a tuple it is no submodule, so it is neither trained nor saved with these weights
        self.held = (check_part("frozen", frozen, LM, "a trained language model, such as load(folder)").eval(),)
        if frozen.vocab != vocab:
            raise ValueError(f"vocab={vocab}, but the frozen model has {frozen.vocab} tokens; give both the same")
        if self.lanes and not frozen.lanes:
            raise ValueError(
                "the frozen model restarts at every window, but this model carries its state through a text; give a "
                "frozen model that does too, like transformer_xl"
            )
        self.store, self.tap, self.k = store, tap, check_at_least("k", k, 1)
        self.pieces: PieceIndex | None = None
        self.gate = nn.Linear(d, 1, bias=False)
        self.digest = hashlib.sha256(made_by.encode()).digest()
        self.register_buffer("made_by", torch.tensor(list(self.digest), dtype=torch.uint8))
        self.register_load_state_dict_post_hook(_refuse_others)
        self.log_rate = (
            nn.Parameter(torch.tensor(float(store.width)).log().neg()) if check_flag("distance", distance) else None
        )

    @property
    def frozen(self) -> LM:
        """Frozen model that computes the keys."""
        return self.held[0]

    def train(self, mode: bool = True) -> "SPALM":
        """Set training or eval mode.

        The first call with training mode builds the table that locates the tokens of a row in the store.

        mode: True for training mode.
        """
        if mode and self.pieces is None:
            self.pieces = PieceIndex(self.store.values())
        super().train(mode)
        return self

    @property
    def longest(self) -> int | None:
        """Largest length that both this model and the frozen model can read."""
        ends = [limit for limit in (super().longest, self.frozen.window) if limit is not None]
        return min(ends, default=None)

    def _apply(self, fn: Any, recurse: bool = True) -> "SPALM":
        """Apply a function to the frozen model too, so that it moves along."""
        self.frozen._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NumberedState:
        model_state = super().start(batch, length, dtype=dtype, device=device)
        frozen = self.frozen.start(batch, length, dtype=dtype, device=device)
        return share_positions(NumberedState(model_state.now, SPALMState(model_state.body, frozen)))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        state: NumberedState | None = None,
        ctx: Context | None = None,
        excluded_runs: Int[Tensor, "B T R 2"] | None = None,
    ) -> Out:
        """Return the mixture z of hidden state and neighbours for each token, before the head.

        excluded_runs: ranges of datastore entries that each token must not find, from `own_runs`.
        """
        ctx = context_of_tokens(tokens, state) if ctx is None else ctx
        out = super().hidden(tokens, None if state is None else NumberedState(state.now, state.body.body), ctx)
        with torch.no_grad():
            frozen_ctx = ctx.replace(taps=(self.tap,), below={})
            read = self.frozen.hidden(tokens, None if state is None else state.body.frozen, frozen_ctx)
            neighbours = self.find_neighbours(read.taps[self.tap], ctx.pos >= 0, excluded_runs)
        if out.state is not None and read.state is not None:
            out = out._replace(state=NumberedState(out.state.now, SPALMState(out.state.body, read.state)))
        z, gate = self.mix_by_gate(out.y, neighbours)
        return out._replace(y=z, aux={**out.aux, "gate": gate})

    @run_uncompiled
    def find_neighbours(
        self, keys: Float[Tensor, "B T d"], real: Bool[Tensor, "B T"], runs: Int[Tensor, "B T R 2"] | None
    ) -> Neighbours:
        """Return the `k` nearest datastore entries of each token, without entries in its excluded ranges.

        keys: states of the frozen model.
        real: False at padding, which gets no neighbours.
        runs: first entry and end of each excluded range, for each token; None to exclude nothing.
        """
        if runs is None or not runs.numel():
            return self.store.of_tokens(keys, real, self.k)
        # a run over all entries needs no replacements
        excluded = (runs[..., 1] - runs[..., 0]).where(runs[..., 1] < BEYOND, 0).sum(-1)
        neighbours = self.store.of_tokens(keys, real, self.k + int(excluded.amax()))
        first, end = (runs[..., n].to(keys.device).contiguous() for n in (0, 1))
        at = torch.searchsorted(first, neighbours.places, right=True) - 1  # last run that begins at or before the entry
        mine = (at >= 0) & (neighbours.places < end.gather(-1, at.clamp_min(0)))
        order = mine.to(torch.uint8).argsort(dim=-1, stable=True)[..., : self.k]
        tokens = neighbours.tokens.masked_fill(mine, -1)
        return Neighbours(*(field.take_along_dim(order, -1) for field in neighbours._replace(tokens=tokens)))

    def mix_by_gate(
        self, h: Float[Tensor, "B T D"], neighbours: Neighbours
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T"]]:
        """Return the mixture z of h and the neighbours' embeddings, and the gate g, the weight of h.

        h: output of the body.
        neighbours: entries found for each token.
        """
        is_found, precise_h = neighbours.tokens >= 0, at_least_float32(h)
        with disable_autocast(h):  # distances are far larger than their differences
            y = at_least_float32(self.head.weight[neighbours.tokens.clamp_min(0)])  # [B T k D]
            scores = (y @ precise_h[..., None]).squeeze(-1)
            if self.log_rate is not None:
                scores = scores - at_least_float32(self.log_rate).exp() * neighbours.distances.to(scores).where(
                    is_found, 0.0
                )
            weights = scores.masked_fill(~is_found, torch.finfo(scores.dtype).min).softmax(-1)
            m = (weights[..., None, :] @ y).squeeze(-2)
            opened = F.linear(precise_h, at_least_float32(self.gate.weight)).sigmoid()
        gate = torch.where(is_found.any(-1, keepdim=True), opened, 1.0)
        return ((1 - gate) * m + gate * precise_h).to(h.dtype), gate[..., 0]

    def training_output(self, batch: TokenBatch, state: NumberedState | None, ctx: Context) -> Out:
        excluded_runs = None
        if self.training:
            self.train()  # builds the index if train() was never called
            assert self.pieces is not None
            excluded_runs = own_runs(self.pieces, batch).to(ctx.pos.device)
        out = self.hidden(batch.tokens[:, :-1], state, ctx, excluded_runs)
        return out._replace(y=self.scores(out, False))


def _refuse_others(model: SPALM, _: object) -> None:
    """Raise ValueError for weights that were trained with other keys."""
    if bytes(model.made_by.tolist()) != model.digest:
        raise ValueError(
            "the weights were trained with a datastore of another model; use the datastore of their training"
        )


class PieceIndex:
    """Index of a text that finds all places of a given sequence of tokens.

    It sorts all sequences of LEAST consecutive tokens by a hash. It holds 20 bytes for each token of the text, and a
    search takes the time of a binary search.

    text: tokens of the text.
    """

    def __init__(self, text: Int[Tensor, " N"]):
        self.text = text.cpu().to(torch.int32).numpy()
        numbers = _window_hashes(self.text)
        self.order = numbers.argsort(kind="stable")
        self.numbers = numbers[self.order]

    def __deepcopy__(self, memo: dict[int, Any]) -> "PieceIndex":
        """Return the object itself: it is immutable, and larger than a model."""
        return self

    def runs(self, piece: Int[Tensor, " n"]) -> Int[Tensor, "R 2"]:
        """Return the places of a sequence of tokens in the text as ranges (first, end).

        Ranges are ordered, and those that overlap or touch are joined. A sequence of fewer than LEAST tokens gets no
        ranges.

        piece: sequence of tokens to find.
        """
        tokens = piece.cpu().to(torch.int32).numpy()
        firsts = self._find_starts(tokens) if len(tokens) >= LEAST else numpy.empty(0, numpy.int64)
        far = numpy.diff(firsts) > len(tokens)  # True if a piece begins after the end of the one before
        begins, ends = numpy.append(True, far), numpy.append(far, True)
        return torch.from_numpy(
            numpy.stack([firsts[begins[: len(firsts)]], firsts[ends[: len(firsts)]] + len(tokens)], 1)
        )

    def _find_starts(self, piece: numpy.ndarray) -> numpy.ndarray:
        number = _window_hashes(piece[:LEAST])[0]
        at = slice(*(numpy.searchsorted(self.numbers, number, side) for side in ("left", "right")))
        places = self.order[at]
        places = places[places + len(piece) <= len(self.text)]
        for n, token in enumerate(piece):  # each token narrows the candidates
            places = places[self.text[places + n] == token]
        return places


def _window_hashes(text: numpy.ndarray) -> numpy.ndarray:
    """Return a hash, modulo 2^64, of every window of LEAST tokens; equal windows have equal hashes."""
    count = max(len(text) - LEAST + 1, 0)
    hashes = numpy.zeros(count, numpy.uint64)
    for n in range(LEAST):
        hashes *= FACTOR
        hashes += text[n : n + count].astype(numpy.uint64)
    return hashes


def own_runs(pieces: PieceIndex, batch: TokenBatch) -> Int[Tensor, "B T R 2"]:
    """Return, for each token, the ranges of datastore entries that hold its document's part of the row.

    SPALM excludes these entries in training. The values of a range are the tokens that the row has of the document,
    except the first. If they are too few to identify a document, the range covers all entries. The ranges (first, end)
    of a token are ordered and disjoint, and padded with empty ranges beyond all entries.

    pieces: index of the datastore's values, which are the tokens of its text.
    batch: rows of tokens.
    """
    tokens, by_document = batch.tokens.cpu(), list[tuple[int, Tensor, Tensor]]()
    for n, row in enumerate(tokens):
        documents = torch.zeros_like(row) if batch.documents is None else batch.documents[n].cpu()
        documents = documents.masked_fill(row < 0, -1)
        for number in documents.unique().tolist():
            if number >= 0:
                followers = row[documents == number][1:]
                runs = torch.tensor([[0, BEYOND]]) if 0 < len(followers) < LEAST else pieces.runs(followers)
                by_document.append((n, documents == number, runs))
    max_runs = max((len(runs) for _, _, runs in by_document), default=0)
    padded_runs = torch.full((len(tokens), tokens.shape[1] - 1, max_runs, 2), BEYOND)
    for n, in_document, runs in by_document:
        padded_runs[n, in_document[:-1], : len(runs)] = runs
    return padded_runs


def _make_example(distance: bool) -> SPALM:

    def body() -> kf.Stack:
        return kf.Stack([kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        frozen, keys = LM(11, 16, body()), torch.randn(20, 16)
    store = Entries(keys, torch.arange(20) % 11)
    return SPALM(11, 16, body(), frozen=frozen, store=store, tap="0", k=3, distance=distance)


DISK = {"compiles": "a search reads from a disk, which a graph cannot contain"}
EXAMPLES = tuple(Example(partial(_make_example, distance), breaks=DISK) for distance in (False, True))
