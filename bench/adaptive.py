"""Steps that tokens do not take and keys that heads do not look at: what halting and learned spans save, in time."""

import math
from collections.abc import Callable

import torch
from interleave import Contender, format_interval, middle, race, ready, setup_with_words
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kinformer.core.state import fork
from kinformer.members.adaptive_span import adaptive_span
from kinformer.members.universal_transformer import universal_transformer
from kinformer.models.lm import LM
from kinformer.nn.biases.adaptive_span import AdaptiveSpan
from kinformer.nn.depth import selected_tokens as some_tokens
from kinformer.nn.depth.act import Halt, Halting

D, HEADS, DEPTH, READ, STEPS = 256, 4, 8, 128, 16
TAKEN = (2, 5)  # steps of every second token, and of the others; which rows these are changes from token to token
KEYS = 1 / 6  # of a step's multiplications, which are made of every token: later ones read its keys and values
SPREADS = ("anywhere", "one row", "first tokens", "first step")  # which tokens take all steps; the others take one
ROWS, LONG = ((8, 128), (2, 512), (1, 1024)), 20  # rows of as many tokens, and steps of which a tenth is taken
PRICE = some_tokens.GATHERING
LONGEST, SEGMENT, SHARES = 1024, 512, (1.0, 0.5, 0.125)  # spans, all of them or a part of the longest


class Told(Halting):
    """Stops after as many steps as it is told, at the price of a unit that says so."""

    def __init__(self, halts: Int[Tensor, "S B 1"]):
        super().__init__(D)
        self.taken, self.at = halts, 0

    def forward(self, s: Float[Tensor, "*shape D"], halt: Halt, final: bool) -> tuple[Float[Tensor, "*shape"], Halt]:
        weight, now = super().forward(s, halt, final)
        alive = halt.alive & (now.steps < self.taken[self.at]) & ~torch.tensor(final)
        return weight, now._replace(alive=alive)


def written(model: LM, batch: int, halts: Int[Tensor, "S B 1"]) -> Contender:
    """Greedy steps whose tokens halt as they are told, behind a prompt whose tokens take all."""
    whole = Told(torch.full((1, 1, 1), DEPTH))
    model.body.halting = whole
    with torch.no_grad():
        state = model.logits(torch.randint(256, (batch, READ)), model.start(batch, READ + STEPS), last=True).state
    controller = Told(halts)

    @torch.no_grad()
    def run(state: object) -> None:
        model.body.halting, token = controller, torch.zeros(batch, 1, dtype=torch.long)
        for controller.at in range(STEPS):
            out = model.logits(token, state, last=True)
            state, token = out.state, out.y.argmax(-1)
            assert torch.equal(out.aux["steps"], halts[controller.at].expand(batch, 1).to(out.aux["steps"]))

    def begin() -> Callable[[], None]:
        own = fork(state)
        return lambda: run(own)

    return begin


def halting(batch: int, rounds: int) -> None:
    """Time over what the steps that are taken, and the keys of the others, are of all."""
    model = universal_transformer(d=D, depth=DEPTH, heads=HEADS, halted="copied").eval()
    order = torch.arange(STEPS)[:, None] if batch == 1 else torch.stack([torch.randperm(batch) for _ in range(STEPS)])
    halts = torch.tensor(TAKEN)[order % 2][..., None]
    contenders = {"halting": written(model, batch, halts), "all": written(model, batch, torch.full_like(halts, DEPTH))}
    seconds, share = race(contenders, rounds), float(halts.double().mean()) / DEPTH
    print(f"| batch {batch} | steps a token | ms a token | of all steps' time | over what is asked for |")
    print("|---" * 5 + "|")
    for name, own in seconds.items():
        steps = share * DEPTH if name == "halting" else DEPTH
        took = middle(duration * 1e3 / STEPS for duration in own)
        part = middle(a / b for a, b in zip(own, seconds["all"], strict=True))
        predicted = (steps + (DEPTH - steps) * KEYS) / DEPTH
        over = middle(a / b / predicted for a, b in zip(own, seconds["all"], strict=True))
        print(f"| {name} | {steps:.2f} | {format_interval(took)} | {format_interval(part)} | {format_interval(over)} |")
    print(flush=True)


class Given(Halting):
    """Stops each token of a batch after the steps that it is given; the remainder carries their number."""

    def __init__(self, steps: Float[Tensor, "B T"]):
        super().__init__(D)
        self.steps = steps

    def start(self, real: Bool[Tensor, "*shape"], like: Tensor) -> Halt:
        return super().start(real, like)._replace(remainder=self.steps)

    def forward(self, s: Float[Tensor, "*shape D"], halt: Halt, final: bool) -> tuple[Float[Tensor, "*shape"], Halt]:
        weight, now = super().forward(s, halt, final)
        alive = halt.alive & (now.steps + 0.5 < halt.remainder) & torch.tensor(not final)
        return weight, now._replace(alive=alive, remainder=halt.remainder)


def draw_steps(spread: str, batch: int, length: int, depth: int, share: float) -> Float[Tensor, "B T"]:
    """Steps of each token, a share of all token-steps together."""
    steps, many = torch.ones(batch * length), round(batch * length * (share * depth - 1) / (depth - 1))
    if spread == "anywhere":
        steps[torch.randperm(batch * length)[:many]] = depth
    elif spread == "one row":
        steps[:many] = depth
    elif spread == "first tokens":
        steps.view(batch, length)[:, : round(many / batch)] = depth
    return steps.view(batch, length)


def gathered(rounds: int, batch: int, length: int, depth: int, share: float, spread: str, training: bool) -> None:
    """A pass over whole rows whose tokens halt: as it is, without gathering, and where no token halts."""
    model = universal_transformer(d=D, depth=depth, heads=HEADS, halted="copied").train(training)
    tokens, steps = torch.randint(256, (batch, length + 1)), draw_steps(spread, batch, length, depth, share)

    def run(steps: Float[Tensor, "B T"], gathering: float) -> None:
        model.body.halting, some_tokens.GATHERING = Given(steps), gathering
        with torch.set_grad_enabled(training):
            loss = model(tokens).total
        if training:
            model.zero_grad()
            loss.backward()

    seconds = race(
        {
            "gathered": ready(lambda: run(steps, PRICE)),
            "not gathered": ready(lambda: run(steps, math.inf)),
            "all steps": ready(lambda: run(torch.full_like(steps, depth), math.inf)),
        },
        rounds,
    )
    took = middle(duration * 1e3 for duration in seconds["all steps"])
    ratios = (
        middle(a / b for a, b in zip(seconds["gathered"], seconds[other], strict=True))
        for other in ("all steps", "not gathered")
    )
    title = f"{batch} x {length} | {depth} | {spread} | {'training' if training else 'reading'}"
    cells = " | ".join(map(format_interval, (took, *ratios)))
    print(f"| {title} | {float(steps.mean()) / depth:.3f} | {cells} |", flush=True)


def batches(rounds: int) -> None:
    """Batches of whole rows with a tenth of the token-steps left, one of 1.04 steps a token, and small ones."""
    print("| rows | steps | who goes on | | token-steps | ms of all steps | over all steps | over not gathered |")
    print("|---" * 8 + "|")
    for training in (True, False):
        for batch, length in ROWS:
            for spread in SPREADS:
                gathered(rounds, batch, length, LONG if spread != "first step" else 10, 0.1, spread, training)
        gathered(rounds, 8, 128, 6, 1.04 / 6, "anywhere", training)
        for batch, length, share in ((1, 128, 0.1), (2, 128, 0.1), (4, 128, 0.5), (8, 128, 0.9)):
            gathered(rounds, batch, length, LONG, share, "anywhere", training)
    print(flush=True)


def spans(rounds: int) -> None:
    """A segment behind a full memory, by how much of the longest span heads have learned to look at."""
    rows, contenders = torch.randint(256, (1, LONGEST + 2 * SEGMENT)), dict[str, Contender]()
    for share in SHARES:
        model = adaptive_span(d=D, depth=4, heads=HEADS, segment=SEGMENT, longest=LONGEST).eval()
        for part in model.modules():
            if isinstance(part, AdaptiveSpan):
                part.span.data.fill_(share)
                part.look()
        with torch.no_grad():
            state = model.logits(rows[:, :-SEGMENT], model.start(1, rows.shape[1])).state
        contenders[f"{share * LONGEST:.0f}"] = _segment(model, rows[:, -SEGMENT:], state)
    seconds = race(contenders, rounds)
    print(f"| span of {LONGEST} | ms a segment of {SEGMENT} | speed over the longest |\n|---|---|---|")
    longest = next(iter(seconds.values()))
    for name, own in seconds.items():
        took = middle(duration * 1e3 for duration in own)
        over = middle(a / b for a, b in zip(longest, own, strict=True))
        print(f"| {name} | {format_interval(took)} | {format_interval(over)} |")
    print(flush=True)


def _segment(model: LM, rows: Int[Tensor, "B T"], state: object) -> Contender:
    def begin() -> Callable[[], None]:
        own = fork(state)

        @torch.no_grad()
        def run() -> None:
            model.logits(rows, own)

        return run

    return begin


if __name__ == "__main__":
    description = f"{__doc__} Width {D}; {DEPTH} steps of one block, {READ} tokens read; 4 layers with spans."
    rounds, tables = setup_with_words(description, "halting, batches or spans, all unless named")
    if not tables or "halting" in tables:
        for batch in (1, 32):
            halting(batch, rounds)
    if not tables or "batches" in tables:
        batches(rounds)
    if not tables or "spans" in tables:
        spans(rounds)
