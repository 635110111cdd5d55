"""A Decision Transformer, asked for the best return, finds shortest paths after random walks."""

from collections import deque
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy
import torch

from kinformer.core.actor import TimeStep
from kinformer.lab.claims.support.episodes import build_episode_data, train_member
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.data.offline import to_go
from kinformer.lab.data.support.offline_episodes import Episode
from kinformer.lab.plot import Plot
from kinformer.members.behaviour_cloning import behaviour_cloning
from kinformer.members.decision_transformer import decision_transformer
from kinformer.models.trajectory import Trajectory

NODES, LINKED, WALKS, LONGEST, STEPS, RATE = 20, 0.1, 5000, 10, 600, 3e-3
MINUTES = 1.2  # of a default run with three seeds
SMALL: dict[str, Any] = {"d": 48, "depth": 2, "heads": 2, "context": LONGEST, "dropout": 0.0, "best": 100}
SAYS = "asked for the best return seen, a Decision Transformer that learned from random walks takes shortest paths"
SOURCE = "Chen et al., 2021, arXiv:2106.01345, section 1 and figure 2"


def graph(rng: numpy.random.Generator) -> numpy.ndarray:
    """Return a random graph as adjacency matrix.

    Graphs are drawn until a path of at most 10 steps leads from every node to the goal, node 0.

    rng: source of randomness.
    """
    while True:
        upper = numpy.triu(rng.random((NODES, NODES)) < LINKED, 1)
        links = upper | upper.T
        if (far := distances(links)).min() >= 0 and far.max() <= LONGEST:
            return links


def distances(links: numpy.ndarray) -> numpy.ndarray:
    """Return the number of steps from each node of a graph to the goal, node 0; -1 if no path leads there.

    links: adjacency matrix.
    """
    steps, waiting = numpy.full(len(links), -1), deque([0])
    steps[0] = 0
    while waiting:
        at = waiting.popleft()
        for node in map(int, numpy.flatnonzero(links[at] & (steps < 0))):
            steps[node] = steps[at] + 1
            waiting.append(node)
    return steps


def walk(links: numpy.ndarray, rng: numpy.random.Generator) -> Episode:
    """Return a random walk on a graph as an episode; each step has the reward -1.

    The walk ends at the goal, node 0, or after 10 steps.

    links: adjacency matrix.
    rng: source of randomness.
    """
    at = int(rng.integers(1, NODES))
    states, actions = list[int](), list[int]()
    while at and len(states) < LONGEST:
        states.append(at)
        at = int(rng.choice(numpy.flatnonzero(links[at])))
        actions.append(at)
    rewards = numpy.full(len(states), -1, numpy.float32)
    return Episode(numpy.eye(NODES, dtype=numpy.float32)[states], numpy.array(actions), rewards)


@torch.no_grad()
def paths(model: Trajectory, links: numpy.ndarray, targets: numpy.ndarray | None) -> numpy.ndarray:
    """Return the number of steps that a model takes to the goal, node 0, from each other node of a graph.

    The number is 11 if the model does not arrive within 10 steps.

    model: model that chooses the next node in each step.
    links: adjacency matrix.
    targets: return to request from the model at each start; None for a model that takes no request.
    """
    actor = model.actor(None if targets is None else torch.from_numpy(targets).float())
    state, at = actor.start(NODES - 1), numpy.arange(1, NODES)
    counts, begins = numpy.full(NODES - 1, LONGEST + 1), torch.ones(NODES - 1, dtype=torch.bool)
    for step in range(1, LONGEST + 1):
        observation = TimeStep(torch.eye(NODES)[at], torch.full((NODES - 1,), -float(step > 1)), begins)
        action, state = actor.act(observation, state)
        nodes = action.numpy()
        at, begins = numpy.where(links[at, nodes], nodes, at), torch.zeros_like(begins)  # without a link it stays
        counts[(at == 0) & (counts > LONGEST)] = step
    return counts


def measure_paths(seed: int, steps: int) -> dict[str, Any]:
    """Return the steps beyond the shortest path in one graph, for both models and the random walks.

    The models are a Decision Transformer and behaviour cloning. The result also has the share of walks that arrive.

    seed: seed of the graph, the walks and the trainings.
    steps: number of training steps.
    """
    rng = numpy.random.default_rng(seed)
    links = graph(rng)
    walks = [walk(links, rng) for _ in range(WALKS)]
    arrived = [episode for episode in walks if episode.actions[-1] == 0]
    data, best = build_episode_data(arrived), numpy.full(NODES, -float(LONGEST))
    for episode in arrived:
        numpy.maximum.at(best, episode.states.argmax(1), to_go(episode.rewards))
    fewest = distances(links)[1:]
    asking = train_member(decision_transformer, data, seed, steps, RATE, **SMALL)
    cloning = train_member(behaviour_cloning, data, seed, steps, RATE, **SMALL)
    return {
        "Decision Transformer": paths(asking, links, best[1:]) - fewest,
        "behaviour cloning": paths(cloning, links, None) - fewest,
        "walks that arrive": numpy.array(
            [len(episode.actions) - fewest[episode.states[0].argmax() - 1] for episode in arrived]
        ),
        "arrived": len(arrived) / len(walks),
    }


def claim(seeds: Sequence[int], steps: int = STEPS) -> Claim:
    """Train on random walks in one graph per seed, and count the shortest paths that the models take.

    Each step costs 1. Every node except the goal is a start. Walks that do not arrive are left out. The requested
    return is the highest return in the data from that start. The claim holds if the Decision Transformer takes a
    shortest path from at least 0.9 of the starts. This share must also be above the share of behaviour cloning by more
    than two standard errors. The claim `decision_transformer_asked` measures requests of all sizes.

    seeds: seeds of the graphs and of the trainings.
    steps: number of training steps.
    """
    runs = [measure_paths(seed, steps) for seed in seeds]
    names = ("Decision Transformer", "behaviour cloning", "walks that arrive")
    share = {name: [float((run[name] == 0).mean()) for run in runs] for name in names}
    cloned = mean(share["behaviour cloning"])
    measures = (
        Measure(
            "share of starts from which the path is a shortest one", share[names[0]], "least", 0.9, no_effect=cloned
        ),
    )
    means_by_name = ", ".join(f"{name} {mean(run[name].mean() for run in runs):.2f}" for name in names)
    facts = {
        **{f"share of shortest paths, {name}": f"{mean(share[name]):.3f}" for name in names[1:]},
        "mean steps beyond the shortest path": means_by_name,
        "share of random walks that arrive": f"{mean(run['arrived'] for run in runs):.3f}",
    }
    every = {name: numpy.concatenate([run[name] for run in runs]) for name in names}
    plot = Plot(
        "steps beyond the shortest path",
        "steps beyond the shortest path",
        "share of paths",
        samples={name: [[float((of == n).mean())] for n in range(LONGEST + 1)] for name, of in every.items()},
        categories=[str(n) for n in range(LONGEST + 1)],
        bars=True,
    )
    return Claim(SAYS, SOURCE, measures, facts, (plot,))
