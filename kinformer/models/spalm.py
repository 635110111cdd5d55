"""SPALM: a language model that learns when to trust the tokens that followed what was most alike in a datastore."""

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

BEYOND = torch.iinfo(torch.long).max  # all entries
LEAST = 8  # tokens: a shorter piece, such as a common word, stands in many places, and is no sign of where it is from
FACTOR = numpy.uint64(0x9E3779B97F4A7C15)  # odd: a product with it keeps all bits


class SPALMState(NamedTuple):
    """The states of the body and of the frozen model that makes keys."""

    body: State
    frozen: NumberedState


class SPALM(LM):
    """z = (1 - g) m + g h, m = sum_i softmax_i(h . y_i) y_i, g = sigmoid(w_g . h), p = softmax(W z).

    h is what the body makes of a token, the y_i are the embeddings, in W's rows, of the `k` tokens that followed the
    entries of a datastore nearest to it, by the states of a frozen model. Choose it over `Nearest`, whose share is one
    number for all tokens, where a model is trained anyway: it learns token by token when to look things up, and needs 4
    neighbours where that takes hundreds. Keys stay as they are; values are embeddings, and are learned.

    In training a token finds nothing of what its row has of its own document: entries of the datastore where those
    tokens stand, all of them as they came, are left out, wherever that is; the rest of the document is found. Less than
    9 tokens stand in too many places to be known by themselves, and find nothing at all. Where tokens stand a table
    says, made once and of 20 bytes for each entry, so that no step reads them all. What was found is held constant.
    Where nothing is found z = h. The mean of g is told beside the loss, as "gate".

    frozen: the trained model whose inner states are the keys; it stays as it is, and is no part of the weights.
    store: what is searched.
    tap: which state of it the keys are.
    k: how many neighbours; the paper finds 4 enough.
    distance: subtract from h . y_i the neighbour's squared distance, by a learned rate that begins at one over the
        width of a key. The paper saw no gain in it.
    made_by: what tells this frozen model from others. It is kept with the weights, which are loaded into no other.
    vocab, d, body, kwargs: as those of an `LM`.

    Errors: ValueError for a frozen model of another vocabulary or, where this one carries its state on (`lanes`), one
    that reads windows, and those of an `LM`. Source: Yogatama et al., 2021, arXiv:2102.02557, sections 2.3 and 3.
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
        # in a tuple it is no submodule: nothing trains it, and its weights stay in the folder that they are of
        self.held = (check_part("frozen", frozen, LM, "a trained language model, such as load(folder)").eval(),)
        if frozen.vocab != vocab:
            raise ValueError(f"vocab={vocab}, and the frozen model knows {frozen.vocab} tokens; give both the same")
        if self.lanes and not frozen.lanes:
            raise ValueError(
                "the frozen model begins anew with every window, and this one reads on through a text; give one that "
                "does too, like transformer_xl"
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
        """The frozen model whose states are the keys."""
        return self.held[0]

    def train(self, mode: bool = True) -> "SPALM":
        """Training begins, and with it the table is made of where in the store a row's own tokens stand; or it ends."""
        if mode and self.pieces is None:
            self.pieces = PieceIndex(self.store.values())
        super().train(mode)
        return self

    @property
    def longest(self) -> int | None:
        """The least of its own and of what the frozen model can read."""
        ends = [limit for limit in (super().longest, self.frozen.window) if limit is not None]
        return min(ends, default=None)

    def _apply(self, fn: Any, recurse: bool = True) -> "SPALM":
        """Moves the frozen model too."""
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
        """What the gate makes of each token; it finds no entry in `excluded_runs`, as of `own_runs`."""
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
        """The `k` nearest entries of each token that is real, without those in runs of its own."""
        if runs is None or not runs.numel():
            return self.store.of_tokens(keys, real, self.k)
        # of all entries there is no rest
        excluded = (runs[..., 1] - runs[..., 0]).where(runs[..., 1] < BEYOND, 0).sum(-1)
        neighbours = self.store.of_tokens(keys, real, self.k + int(excluded.amax()))
        first, end = (runs[..., n].to(keys.device).contiguous() for n in (0, 1))
        at = torch.searchsorted(first, neighbours.places, right=True) - 1  # the last run that begins there or before
        mine = (at >= 0) & (neighbours.places < end.gather(-1, at.clamp_min(0)))
        order = mine.to(torch.uint8).argsort(dim=-1, stable=True)[..., : self.k]
        tokens = neighbours.tokens.masked_fill(mine, -1)
        return Neighbours(*(field.take_along_dim(order, -1) for field in neighbours._replace(tokens=tokens)))

    def mix_by_gate(
        self, h: Float[Tensor, "B T D"], neighbours: Neighbours
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T"]]:
        """What h becomes by the embeddings of the tokens found, and how far the gate keeps to h."""
        is_found, precise_h = neighbours.tokens >= 0, at_least_float32(h)
        with disable_autocast(h):  # distances are far larger than what they differ by
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
            self.train()  # for one who never said so
            assert self.pieces is not None
            excluded_runs = own_runs(self.pieces, batch).to(ctx.pos.device)
        out = self.hidden(batch.tokens[:, :-1], state, ctx, excluded_runs)
        return out._replace(y=self.scores(out, False))


def _refuse_others(model: SPALM, _: object) -> None:
    """ValueError for weights that were trained with other keys."""
    if bytes(model.made_by.tolist()) != model.digest:
        raise ValueError(
            "the weights were trained with keys of another model than the datastore has; put its own there"
        )


class PieceIndex:
    """Every LEAST tokens in a row of a text, in the order of a number made of them, by which they are found.

    It holds 20 bytes for each token of the text, and finds a piece in the time of a binary search.
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
        """Where a piece stands: the first and the end of runs, in order, that share nothing; none of a short piece."""
        tokens = piece.cpu().to(torch.int32).numpy()
        firsts = self._find_starts(tokens) if len(tokens) >= LEAST else numpy.empty(0, numpy.int64)
        far = numpy.diff(firsts) > len(tokens)  # the piece that begins there lies behind the one before
        begins, ends = numpy.append(True, far), numpy.append(far, True)
        return torch.from_numpy(
            numpy.stack([firsts[begins[: len(firsts)]], firsts[ends[: len(firsts)]] + len(tokens)], 1)
        )

    def _find_starts(self, piece: numpy.ndarray) -> numpy.ndarray:
        number = _window_hashes(piece[:LEAST])[0]
        at = slice(*(numpy.searchsorted(self.numbers, number, side) for side in ("left", "right")))
        places = self.order[at]
        places = places[places + len(piece) <= len(self.text)]
        for n, token in enumerate(piece):  # each leaves fewer for the next
            places = places[self.text[places + n] == token]
        return places


def _window_hashes(text: numpy.ndarray) -> numpy.ndarray:
    """A number of every LEAST tokens in a row, the same for the same tokens, modulo 2^64."""
    count = max(len(text) - LEAST + 1, 0)
    hashes = numpy.zeros(count, numpy.uint64)
    for n in range(LEAST):
        hashes *= FACTOR
        hashes += text[n : n + count].astype(numpy.uint64)
    return hashes


def own_runs(pieces: PieceIndex, batch: TokenBatch) -> Int[Tensor, "B T R 2"]:
    """Where in a store the document of each token that is read stands: the first and the end of runs of its entries.

    A run is all that a row has of a document: as many entries as it has tokens but the first, whose values are those
    tokens. Of fewer tokens than can be told from others it is all entries. Runs are in order and share nothing; empty
    ones, beyond all entries, fill up.
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


DISK = {"compiles": "a search reads what lies on a disk, which no graph holds"}
EXAMPLES = tuple(Example(partial(_make_example, distance), breaks=DISK) for distance in (False, True))
