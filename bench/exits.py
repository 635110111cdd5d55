"""A step of decoding whose tokens leave early, beside the layers, keys and heads that it asks for, and nothing else."""

from collections.abc import Callable
from typing import Any

import torch
from interleave import format_interval, middle, race, setup
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.core.layer import Context, State
from kinformer.core.state import fork
from kinformer.core.token_positions import NumberedState
from kinformer.decoding.consistency import use_rule
from kinformer.members.calm import calm
from kinformer.models.multi_exit import MultiExit
from kinformer.nn.exits.confidence import Head, SoftmaxResponse
from kinformer.nn.exits.exit_rule import ExitRule, States
from kinformer.nn.exits.never_exit import NeverExit

D, DEPTH, HEADS, READ, STEPS = 256, 8, 4, 128, 32
EXITS = (2, 5)  # layers of every second token, and of the others; which rows these are changes from step to step
WANTED = {1: 1.3, 32: 1.6}  # time over the ideal, at most, by batch


class GivenExits(ExitRule):
    """As dear as a softmax response, and leaving after as many layers as it is given."""

    def __init__(self, exits: Int[Tensor, "S B 1"]):
        super().__init__()
        self.exits, self.step, self.sure_by = exits, 0, SoftmaxResponse()

    def begin_call(self, state: State, ctx: Context) -> Int[Tensor, "B 1"]:
        return self.exits[self.step]

    def forward(
        self, states: States, ctx: Context, rule_state: State = (), head: Head | None = None
    ) -> Bool[Tensor, "B T"]:
        return (rule_state <= len(states)) | (self.sure_by(states, head) > 1)


def draw_exits(batch: int) -> Int[Tensor, "S B 1"]:
    """At which layer each row's token leaves, step by step."""
    order = torch.arange(STEPS)[:, None] if batch == 1 else torch.stack([torch.randperm(batch) for _ in range(STEPS)])
    return torch.tensor(EXITS)[order % 2][..., None]


def began(model: MultiExit, batch: int) -> NumberedState:
    """A state that has read the prompt, every token with all layers."""
    with use_rule(model.exits, NeverExit()), torch.no_grad():
        return model.logits(torch.randint(256, (batch, READ)), model.start(batch, READ + STEPS), last=True).state


def steps(model: MultiExit, state: NumberedState, exits: Int[Tensor, "S B 1"] | None) -> Callable[[], None]:
    """Greedy steps, tokens leaving as they are told, or none."""
    rule = NeverExit() if exits is None else GivenExits(exits)

    @torch.no_grad()
    def run() -> None:
        current, token = state, torch.zeros(len(state.now), 1, dtype=torch.long)
        with use_rule(model.exits, rule):
            for n in range(STEPS):
                rule.step = n
                out = model.logits(token, current, last=True)
                current, token = out.state, out.y.argmax(-1)

    return run


class Alone:
    """What such steps ask for: layers of the rows that go on, keys of the others, and each head of those that ask.

    Rows that go on and rows that do not have caches of their own, so that none is taken apart.
    """

    def __init__(self, model: MultiExit, exits: Int[Tensor, "S B 1"]):
        self.model, self.batch, self.sure_by = model, exits.shape[1], SoftmaxResponse()
        self.going = [[int((now > n).sum()) for n in range(DEPTH)] for now in exits]  # by step and layer
        sizes = {count for going in self.going for count in going} | {self.batch - count for count in self.going[0]}
        self.caches = {
            (goes, rows): list(began(model, rows).body.layers) for goes in (True, False) for rows in sizes if rows
        }

    @torch.no_grad()
    def run(self) -> None:
        """All steps."""
        head, norm = self.model.head, self.model.exits.heads[0]
        for n, going in enumerate(self.going):
            contexts = {key: Context(torch.full((key[1], 1), READ + n), run=True) for key in self.caches}
            x = self.model.embedding(torch.zeros(self.batch, 1, dtype=torch.long))
            x = x + self.model.position(contexts[True, self.batch].position_ids)
            for depth, go in enumerate(going):
                if go:
                    x[:go] = self.layer(depth, x[:go], True, contexts)
                    if depth < DEPTH - 1:
                        self.sure_by([x[:go]], lambda h: head(norm(h)))
                if go < self.batch:
                    self.layer(depth, x[go:], False, contexts)
            head(norm(x)).argmax(-1)

    def layer(self, depth: int, x: Tensor, goes: bool, contexts: dict[tuple[bool, int], Context]) -> Tensor:
        """A layer of some rows, or its keys alone; of a single row both have one cache."""
        key = (goes or self.batch == 1, len(x))
        ctx = contexts[key] if goes else contexts[key].replace(remember=True)
        out = self.model.exits.layers[depth](x, self.caches[key][depth], ctx)
        self.caches[key][depth] = out.state
        return out.y


def measure(batch: int, rounds: int) -> None:
    torch.manual_seed(0)
    model = calm(d=D, depth=DEPTH, heads=HEADS, length=READ + STEPS).eval()
    exits, filled = draw_exits(batch), began(model, batch)
    contenders: dict[str, Callable[[], Callable[[], Any]]] = {
        "exits": lambda: steps(model, fork(filled), exits),
        "ideal": lambda: Alone(model, exits).run,
        "all layers": lambda: steps(model, fork(filled), None),
    }
    seconds = race(contenders, rounds)
    print(
        f"| batch {batch} | layers a token | ms a step | over the ideal | speed over all layers |",
        "|---" * 5 + "|",
        sep="\n",
    )
    layers = {"exits": float(exits.double().mean()), "ideal": float(exits.double().mean()), "all layers": float(DEPTH)}
    for name, own in seconds.items():
        took = middle(value * 1e3 / STEPS for value in own)
        ideal = middle(a / b for a, b in zip(own, seconds["ideal"], strict=True))
        speed = middle(b / a for a, b in zip(own, seconds["all layers"], strict=True))
        print(
            f"| {name} | {layers[name]:.2f} | "
            + " | ".join(format_interval(value) for value in (took, ideal, speed))
            + " |"
        )
    over = middle(a / b for a, b in zip(seconds["exits"], seconds["ideal"], strict=True)).median
    print(
        f"\nwanted: at most {WANTED[batch]} of the ideal; {'met' if over <= WANTED[batch] else 'missed'}\n", flush=True
    )


if __name__ == "__main__":
    rounds = setup(f"{__doc__} Width {D}, {DEPTH} layers, {READ} tokens read, {STEPS} steps, float32.")
    for batch in WANTED:
        measure(batch, rounds)
