"""The figure `knn_lm`: a model and a datastore predict one word, and both predictions are mixed."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

import kinformer as kf
from kinformer.core.neighbours import Entries
from kinformer.models.support.memory_probabilities import mix_log_p
from kinformer.pages.eight_tokens import LABELS, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

MODEL, STORE, MIXTURE = 1, 2, 3
WORDS = ("the", "cat", "sat", "and", "dog", "too")
P_LM = (0.05, 0.10, 0.30, 0.40, 0.10, 0.05)  # probabilities of a model
ANGLE, LENGTH, K = 22, 3, 4  # direction of the state f(x), length of all states, and number of neighbours


class Prediction(NamedTuple):
    """The lookup of one state.

    distances: squared distance of each entry to the state.
    near: entries among the nearest.
    p: probabilities of the words by the neighbours, and mixed with the model's.
    """

    distances: list[float]
    near: list[int]
    p: tuple[list[float], list[float]]


def draw() -> Iterator[Diagram]:
    """Yield the two paths to a prediction, and the numbers of the worked example."""
    yield _paths()
    yield _numbers()


def predict() -> Prediction:
    """Return the lookup of a state in the datastore of the eight tokens."""
    body = kf.Stack([kf.PreNorm(kf.Attention(kf.QKV(2, 1), kf.Softmax(kf.Causal())), kf.MLP(2))])
    values = torch.tensor([WORDS.index(word) for word in TOKENS[1:]])
    model = kf.NearestNeighbourLM(
        kf.LM(len(WORDS), 2, body), Entries(token_vectors(LENGTH)[:-1], values), "0", k=len(TOKENS)
    )
    at = math.radians(ANGLE)
    state, real = torch.tensor([[[LENGTH * math.cos(at), LENGTH * math.sin(at)]]]), torch.ones(1, 1, dtype=torch.bool)
    every = model.find_neighbours(state, real)
    distances = every.distances[0, 0][every.places[0, 0].argsort()].tolist()
    model.k = K
    near, log_p = model.find_neighbours(state, real), torch.tensor([[P_LM]]).log()
    by_neighbours = model.neighbour_log_p(near, log_p)
    mixed = mix_log_p(log_p, by_neighbours, model.weight)
    return Prediction(
        distances, near.places[0, 0].tolist(), (by_neighbours.exp()[0, 0].tolist(), mixed.exp()[0, 0].tolist())
    )


def _paths() -> Diagram:
    diagram = Diagram(
        "kNN-LM at one token",
        kinds=("trained model, unchanged", "datastore and its prediction", "mixture"),
        note="The datastore was built once: keys are the model's states f at the tokens of a corpus.",
    )
    diagram.box(0, 4, 14, 3, "text so far", 0)
    diagram.box(20, 4, 18, 3, "language model", MODEL)
    diagram.box(50, 0, 18, 3, "p_LM", MODEL)
    diagram.box(50, 8, 18, 3, "k nearest keys", STORE)
    diagram.box(50, 13, 18, 3, "datastore", STORE)
    diagram.box(74, 8, 26, 3, "p_kNN by softmax(-d)", STORE)
    diagram.box(74, 0, 26, 3, "p: mean by lambda", MIXTURE)
    diagram.arrow((13, 5), (19.4, 5))
    diagram.arrow((37, 5), (43, 5), (43, 1), (49.4, 1))
    diagram.arrow((37, 5), (43, 5), (43, 9), (49.4, 9))
    diagram.words(44, 8, "f(x)")
    diagram.arrow((59, 13), (59, 10.51))
    diagram.arrow((67, 9), (73.4, 9))
    diagram.arrow((67, 1), (73.4, 1))
    diagram.arrow((87, 8), (87, 2.51))
    return diagram


def _numbers() -> Diagram:
    lookup = predict()
    diagram = Diagram(
        f"lookup of a state at angle {ANGLE}: the {K} nearest entries, and the probability of each word",
        kinds=("trained model, unchanged", "datastore and its prediction", "mixture with lambda 0.25"),
        note="Left: the datastore. A key is the state of a token, its value the next token, d its squared distance.",
    )
    for x, title in ((0, "key"), (12, "value"), (22, "d"), (38, "word"), (46, "p_kNN"), (66, "p_LM"), (84, "p")):
        diagram.words(x, 0, title, bold=True)
    for place, distance in enumerate(lookup.distances):
        kind = STORE if place in lookup.near else 0
        diagram.box(0, 2 + place, 11, 1, LABELS[place], kind)
        diagram.words(13, 2 + place, TOKENS[place + 1], kind)
        number = f"{distance:.2f}"
        diagram.words(25 - len(number), 2 + place, number, kind)
    for row, word in enumerate(WORDS):
        diagram.words(38, 2 + row, word)
        of_parts = ((46, STORE, lookup.p[0]), (66, MODEL, P_LM), (84, MIXTURE, lookup.p[1]))
        for x, kind, p in of_parts:
            bar = "█" * round(20 * p[row])
            diagram.words(x, 2 + row, f"{p[row]:.2f} {bar}".strip(), kind)
    diagram.arrow((27, 4), (35, 4), kind=STORE)
    return diagram
