"""The arena's loop with decoders of other libraries: whether gpt, GPT-2 and x-transformers learn a novel equally well.

    python bench/fair_loop.py --novel FILE
    python bench/fair_loop.py --novel FILE --contenders "transformers GPT-2" --out FILE.json

Every contender has the size of the arena's `gpt`, and is trained on the task "novel" as the arena trains its entrants:
the same data, batches, loop, optimiser and schedule. The best of three rates on validation data with seed 0 is taken;
seeds 1, 2 and 3 are then scored on test data. A peer learns as well as gpt if the 95% interval of the ratio of its bits
per byte to gpt's lies within 2% of 1. Variants of the peers begin with the weights of gpt and train at its rate; they
show the cause of a difference. A call goes on where an earlier call with the same --out has ended. No timing.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.layer import Context, Device, Dtype, Out, State
from kinformer.core.loss import Loss, masked_mean, token_nll
from kinformer.core.token_positions import NumberedState
from kinformer.lab.arena.arena_results import read_results
from kinformer.lab.arena.arena_task import RATES, TASKS, ArenaTask
from kinformer.lab.arena.entrant import BASELINE, entrant
from kinformer.lab.arena.run_arena import read_data, row_length, score_test
from kinformer.lab.arena.schedule import SEEDS, TUNING
from kinformer.lab.compare.interval import interval
from kinformer.lab.data.data import Data
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.loop import TrainingStopped
from kinformer.lab.train.train import train
from kinformer.models.lm import LM
from kinformer.models.support.text_model import TextModel

NEAR = 0.02  # largest distance from 1 of the ratio of bits per byte to gpt's, of contenders that learn equally well
RESULTS = Path(__file__).parent / "results" / "fair_loop.json"
OURS, GPT2, DECODER = "kinformer gpt", "transformers GPT-2", "x-transformers Decoder"


class PeerLM(TextModel):
    """A decoder of another library as a model of the training loop.

    Its decoding state is the tokens read so far, which are read again with each chunk. That is slow, and needs no cache
    of the other library.

    peer: the module.
    logits_of: function of the module and tokens [B T] that returns logits [B T V].
    vocab: number of tokens.
    positions: number of learned positions.
    """

    def __init__(self, peer: nn.Module, logits_of: Callable[[Any, Tensor], Tensor], vocab: int, positions: int) -> None:
        super().__init__()
        self.peer, self.logits_of, self.vocab, self.positions = peer, logits_of, vocab, positions

    @property
    def longest(self) -> int | None:
        return self.positions

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NumberedState:
        device = device or next(self.parameters()).device
        now = torch.zeros(batch, dtype=torch.long, device=device)
        return NumberedState(now, torch.zeros(batch, 0, dtype=torch.long, device=device))

    def logits(
        self, tokens: Int[Tensor, "B T"], state: State | None = None, ctx: Context | None = None, *, last: bool = False
    ) -> Out:
        """Return the logits after each token. Padding is allowed at the end of a row, where no token reads it."""
        before = tokens[:, :0] if state is None else state.body
        if bool((before < 0).any()) or bool(((tokens[:, :-1] < 0) & (tokens[:, 1:] >= 0)).any()):
            raise ValueError("PeerLM cannot read padding before a token; put the padding at the end of the rows")
        read = torch.cat([before, tokens], 1)
        y = self.logits_of(self.peer, read.clamp_min(0))[:, before.shape[1] :]  # [B T V]
        after = None if state is None else NumberedState(state.now + (tokens >= 0).sum(1), read)
        return Out(y[:, -1:] if last else y, after)

    def forward(self, batch: Tensor, state: State | None = None, progress: float = 0.0) -> Loss:
        read, targets = batch[:, :-1], batch[:, 1:]
        out = self.logits(read, state)
        nll = masked_mean(token_nll(out.y, targets), targets >= 0)
        return Loss(nll, {"nll": nll}, out.state, {}, (targets >= 0).sum())


class TiedHead(nn.Module):
    """logits = scale W x, with the matrix W of an embedding. x-transformers writes its own as a lambda, which deepcopy
    leaves with the embedding of the original.
    """

    def __init__(self, embedding: nn.Embedding, scale: float) -> None:
        super().__init__()
        self.embedding, self.scale = embedding, scale

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        return F.linear(x, self.embedding.weight) * self.scale


# Contenders ----------------------------------------------------------------------------------------------------------


def our_gpt(rows: int, seed: int) -> LM:
    """Return the arena's gpt."""
    return cast(LM, entrant(BASELINE, rows).build(seed))


def gpt2(rows: int, seed: int, **config: Any) -> PeerLM:
    """Return a GPT2LMHeadModel of the size of the arena's gpt, without dropout, with further settings of its config."""
    library, like = import_module("transformers"), entrant(BASELINE, rows)
    settings = {
        **{"vocab_size": 256, "n_positions": rows, "bos_token_id": None, "eos_token_id": None},
        **{"n_embd": like.keywords["d"], "n_layer": like.keywords["depth"], "n_head": 4},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False},
    }
    torch.manual_seed(seed)
    peer = library.GPT2LMHeadModel(library.GPT2Config(**{**settings, **config}))
    return PeerLM(peer, lambda module, tokens: module(input_ids=tokens).logits, 256, rows)


def decoder(rows: int, seed: int, tie_scale: float | None = None, position_scale: float | None = None) -> PeerLM:
    """Return a Decoder of x-transformers of the size of gpt. Its attention and norms have no biases.

    tie_scale: factor of the logits of the tied head; by default d**-0.5, as in x-transformers.
    position_scale: factor of the rows of the table of positions; by default d**-0.5, as in x-transformers.
    """
    library, like = import_module("x_transformers"), entrant(BASELINE, rows)
    d, depth = like.keywords["d"], like.keywords["depth"]
    torch.manual_seed(seed)
    layers = library.Decoder(
        dim=d,
        depth=depth,
        heads=4,
        attn_dim_head=d // 4,
        attn_flash=True,
        ff_custom_activation=nn.GELU(approximate="tanh"),
    )
    peer = library.TransformerWrapper(num_tokens=256, max_seq_len=rows, attn_layers=layers, tie_embedding=True)
    peer.pos_emb.scale = peer.pos_emb.scale if position_scale is None else position_scale
    peer.to_logits = TiedHead(peer.token_emb.emb, peer.tie_embedding_scale if tie_scale is None else tie_scale)
    return PeerLM(peer, lambda module, tokens: module(tokens), 256, rows)


@torch.no_grad()
def copy_into_gpt2(ours: Any, model: PeerLM) -> PeerLM:
    """Copy all weights of gpt into a GPT-2, which then computes the same function."""
    theirs: Any = cast(Any, model.peer).transformer
    pairs = [(ours.embedding.weight, theirs.wte.weight), (ours.position.table.weight, theirs.wpe.weight)]
    pairs += _same(ours.body.norm, theirs.ln_f)
    for block, other in zip(ours.body.layers, theirs.h, strict=True):
        attention, mlp = block.layers
        pairs += [*_same(block.norms[0], other.ln_1), *_same(block.norms[1], other.ln_2)]
        for linear, conv in (
            (attention.projection.qkv, other.attn.c_attn),
            (attention.aggregation.linear, other.attn.c_proj),
            (mlp.up, other.mlp.c_fc),
            (mlp.down, other.mlp.c_proj),
        ):
            pairs += [(linear.weight.T, conv.weight), (linear.bias, conv.bias)]  # Conv1D keeps W transposed
    return _copy(pairs, model)


@torch.no_grad()
def copy_into_decoder(ours: Any, model: PeerLM) -> PeerLM:
    """Copy the weights of gpt into a Decoder of x-transformers.

    Biases of attention and norms have no place there; they are 0 in an untrained gpt. The factor of the positions is
    divided out.
    """
    theirs: Any = model.peer
    layers = list(theirs.attn_layers.layers)
    pairs = [
        (ours.embedding.weight, theirs.token_emb.emb.weight),
        (ours.position.table.weight / theirs.pos_emb.scale, theirs.pos_emb.emb.weight),
        _gain(ours.body.norm, theirs.attn_layers.final_norm),
    ]
    for number, block in enumerate(ours.body.layers):
        (norm, attend, _), (norm2, feed, _) = layers[2 * number : 2 * number + 2]
        attention, mlp = block.layers
        q, k, v = attention.projection.qkv.weight.chunk(3)
        pairs += [_gain(block.norms[0], norm[0]), _gain(block.norms[1], norm2[0])]
        pairs += [(q, attend.to_q.weight), (k, attend.to_k.weight), (v, attend.to_v.weight)]
        pairs += [(attention.aggregation.linear.weight, attend.to_out.weight)]
        pairs += [*_same(mlp.up, feed.ff[0][0]), *_same(mlp.down, feed.ff[2])]
    return _copy(pairs, model)


def _gain(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
    return ours.weight - float(theirs.unit_offset), theirs.gamma  # x-transformers may keep the gain minus 1


def _same(ours: Any, theirs: Any) -> list[tuple[Tensor, Tensor]]:
    return [(ours.weight, theirs.weight), (ours.bias, theirs.bias)]


def _copy(pairs: Sequence[tuple[Tensor, Tensor]], model: PeerLM) -> PeerLM:
    """Copy each tensor into its peer; AssertionError if shapes differ, or if a parameter of the peer is left out."""
    for source, target in pairs:
        assert source.shape == target.shape, f"ours {tuple(source.shape)}, theirs {tuple(target.shape)}"
        target.copy_(source)
    targets, parameters = {id(target) for _, target in pairs}, {id(weight) for weight in model.parameters()}
    assert targets == parameters, f"{len(parameters - targets)} parameters of the peer got no weights"
    return model


PEERS: Mapping[str, Callable[[int, int], TextModel]] = {OURS: our_gpt, GPT2: gpt2, DECODER: decoder}
VARIANTS: Mapping[str, Callable[[int, int], TextModel]] = {
    f"{GPT2}, initial weights of gpt": lambda rows, seed: copy_into_gpt2(our_gpt(rows, seed), gpt2(rows, seed)),
    f"{DECODER}, initial weights of gpt": lambda rows, seed: copy_into_decoder(
        our_gpt(rows, seed), decoder(rows, seed, tie_scale=1.0)
    ),
    f"{DECODER}, initial weights of gpt, positions not scaled": lambda rows, seed: copy_into_decoder(
        our_gpt(rows, seed), decoder(rows, seed, tie_scale=1.0, position_scale=1.0)
    ),
}
CONTENDERS = {**PEERS, **VARIANTS}


# Trainings -----------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """A training: bits per byte on validation and test data; None if a loss was not finite."""

    contender: str
    rate: float
    seed: int
    valid: float | None
    test: float | None


class Standing(NamedTuple):
    """A contender's scores on test data for seeds 1, 2 and 3, at the rate that is best on validation data."""

    contender: str
    parameters: int
    rate: float
    scores: tuple[float, ...]


def run(contender: str, rate: float, seed: int, data: Data, task: ArenaTask) -> Score:
    """Train a contender as `run_arena.train_run` trains an entrant, and return its scores."""
    model = CONTENDERS[contender](row_length(task, data), seed)
    try:
        history = train(model, data, StepBudget(task.steps), task.settings(rate, seed))
    except TrainingStopped:
        return Score(contender, rate, seed, None, None)
    return Score(contender, rate, seed, history.points[-1].valid, score_test(model, data, task))


def best_rate(scores: Sequence[Score], contender: str) -> float:
    """Return the rate with the fewest bits per byte on validation data; the lowest rate if every training stopped."""
    tuned = {score.rate: score.valid for score in scores if (score.contender, score.seed) == (contender, TUNING)}
    finite = {rate: valid for rate, valid in tuned.items() if valid is not None}
    return min(finite, key=lambda rate: finite[rate], default=RATES[0])


def planned(scores: Sequence[Score], name: str) -> Iterator[tuple[float, int]]:
    """Yield the rate and seed of each training of a contender; the scores must hold all earlier trainings.

    A variant has the rate of gpt, so that it differs from gpt or from its peer in a single choice.

    Errors: SystemExit for a variant if gpt has not been trained at all rates.
    """
    tuned = {score.rate for score in scores if (score.contender, score.seed) == (OURS, TUNING)}
    if name in VARIANTS and not tuned.issuperset(RATES):
        raise SystemExit(f"{name} trains at the best rate of {OURS}, which is not known yet: measure {OURS} first")
    if name not in VARIANTS:
        yield from ((rate, TUNING) for rate in RATES)
    yield from ((best_rate(scores, OURS if name in VARIANTS else name), seed) for seed in SEEDS)


def measure(names: Sequence[str], data: Data, task: ArenaTask, path: Path) -> None:
    """Run all trainings of the contenders that the file does not have yet, and write it after each training.

    gpt is trained first, because variants have its rate.
    """
    for name in sorted(names, key=lambda name: name != OURS):
        while True:
            scores = read_scores(path, data, task)
            done = {(score.rate, score.seed) for score in scores if score.contender == name}
            missing = next((pair for pair in planned(scores, name) if pair not in done), None)
            if missing is None:
                break
            score = run(name, *missing, data, task)
            print(f"{name}, rate {score.rate:g}, seed {score.seed}: {score.valid} on valid, {score.test}", flush=True)
            write(path, [*read_scores(path, data, task), score], data, task)


def arena_scores(folder: Path, data: Data, task: ArenaTask) -> list[Score]:
    """Return the scores of gpt in a folder with results of the arena.

    Errors: SystemExit if the folder has no results of the task, or those of another text or budget.
    """
    results = read_results(folder).get(task.name)
    if results is None:
        raise SystemExit(f"{folder} has no results of the task {task.name!r}: leave out --arena")
    if results.task != task or not results.data.endswith(data.fingerprint[:16]):
        raise SystemExit(f"{folder} has the results of another text or budget: leave out --arena")
    return [Score(OURS, run.rate, run.seed, run.valid, run.test) for run in results.of_member(BASELINE)]


def read_scores(path: Path, data: Data, task: ArenaTask) -> list[Score]:
    """Return the scores of a file, which may be missing; SystemExit if it has another text or budget."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    if (record["task"], record["data"]) != (asdict(task), data.fingerprint[:16]):
        raise SystemExit(f"{path} has the results of another text or budget: give another --out")
    return [Score(**entry) for entry in record["scores"]]


def refuse_scores(path: Path, data: Data, task: ArenaTask) -> None:
    """Raise SystemExit if a file has scores already, because --arena would mix two runs of gpt."""
    if read_scores(path, data, task):
        raise SystemExit(f"{path} has scores already: leave out --arena to go on with them, or give another --out")


def write(path: Path, scores: Sequence[Score], data: Data, task: ArenaTask) -> None:
    """Write the scores and what they depend on."""
    record = {"task": asdict(task), "data": data.fingerprint[:16], "versions": versions()}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(
        json.dumps({**record, "scores": [score._asdict() for score in sorted(set(scores))]}, indent=1) + "\n"
    )
    beside.replace(path)


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    names = ("kinformer", "torch", "transformers", "x-transformers")
    present = {distribution.metadata["Name"]: distribution.version for distribution in metadata.distributions()}
    return {name: present[name] for name in names if name in present}


# Table ---------------------------------------------------------------------------------------------------------------


def standings(scores: Sequence[Score], rows: int) -> list[Standing]:
    """Return the contenders that have all seeds, in the order of `CONTENDERS`."""
    complete = []
    for name in CONTENDERS:
        rate = best_rate(scores, OURS if name in VARIANTS else name)
        tests = {
            score.seed: score.test
            for score in scores
            if score.contender == name and score.rate == rate and score.test is not None
        }
        if all(seed in tests for seed in SEEDS):
            count = sum(weight.numel() for weight in CONTENDERS[name](rows, 0).parameters())
            complete.append(Standing(name, count, rate, tuple(tests[seed] for seed in SEEDS)))
    return complete


def show(scores: Sequence[Score], rows: int) -> None:
    """Print the table: bits per byte on test data, and the ratio to gpt, whose seeds have the same batches."""
    table = standings(scores, rows)
    ours = next((row for row in table if row.contender == OURS), None)
    valid = {(score.contender, score.rate): score.valid for score in scores if score.seed == TUNING}
    print("\n| contender | parameters | rate | valid by rate | bits per byte | over gpt | within 2% |")
    print("|---|---|---|---|---|---|---|")
    for row in table:
        ratios = [] if ours is None else [x / y for x, y in zip(row.scores, ours.scores, strict=True)]
        cells = [_number(valid[row.contender, rate]) for rate in RATES if (row.contender, rate) in valid]
        over, near = ("", "") if ours is None else (_with_interval(ratios), near_one(ratios))
        print(
            f"| {row.contender} | {row.parameters:,} | {row.rate:g} | {', '.join(cells)} | "
            f"{_with_interval(row.scores)} | {over} | {near} |"
        )


def near_one(ratios: Sequence[float]) -> str:
    """Return "yes" if the 95% interval of the mean lies within 2% of 1, "no" if it lies outside, otherwise "open"."""
    ends = interval(ratios)
    if ends is None:
        return "open"
    if 1 - NEAR <= ends[0] and ends[1] <= 1 + NEAR:
        return "yes"
    return "no" if ends[1] < 1 - NEAR or ends[0] > 1 + NEAR else "open"


def _number(value: float | None) -> str:
    return "stopped" if value is None else f"{value:.3f}"


def _with_interval(values: Sequence[float]) -> str:
    ends, value = interval(values), fmean(values)
    return f"{value:.3f}" if ends is None else f"{value:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--novel", type=Path, required=True, help="the text, such as a book of Project Gutenberg")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--arena", type=Path, help="results of the arena: take the scores of gpt from there; needs a new --out"
    )
    options = parser.parse_args()
    novel = next(task for task in TASKS if task.name == "novel")
    novel_data = read_data(novel, options.novel)
    if options.arena is not None:
        refuse_scores(options.out, novel_data, novel)
        write(options.out, arena_scores(options.arena, novel_data, novel), novel_data, novel)
    measure(options.contenders, novel_data, novel, options.out)
    show(read_scores(options.out, novel_data, novel), row_length(novel, novel_data))
