"""What the claims of Decision Transformer stand on: graphs and walks by other means, controllers, learned values."""

import numpy
import torch
from torch import Tensor

from kinformer.core.actor import TimeStep
from kinformer.lab.claims import decision_transformer_paths as paths_claim
from kinformer.lab.claims.decision_transformer_delayed import train_conservative_policy
from kinformer.lab.claims.support.episodes import CART, LEANS, leaning_episodes, run_policy
from kinformer.lab.data.support.offline_episodes import Episode
from kinformer.lab.environments.support.make_environment import make
from kinformer.models.trajectory import Trajectory


def test_walks_go_along_links_and_distances_are_those_of_powers() -> None:
    rng = numpy.random.default_rng(0)
    links = paths_claim.graph(rng)
    result, reached = paths_claim.distances(links), numpy.eye(len(links), dtype=int)
    for steps in range(len(links)):
        assert ((reached[0] > 0) == (result <= steps)).all()
        reached = ((reached @ (links + numpy.eye(len(links), dtype=int))) > 0).astype(int)
    for _ in range(50):
        x = paths_claim.walk(links, rng)
        nodes = [*x.states.argmax(1).tolist(), int(x.actions[-1])]
        assert nodes[1:] == x.actions.tolist() and all(links[a, b] for a, b in zip(nodes, nodes[1:], strict=False))
        assert x.total_return == -len(x.rewards) and 0 not in nodes[:-1]
        assert nodes[-1] == 0 or len(x.rewards) == paths_claim.LONGEST


def test_who_goes_nearer_at_each_step_takes_the_fewest_and_who_follows_no_link_never_comes() -> None:
    links = paths_claim.graph(numpy.random.default_rng(1))
    far = paths_claim.distances(links)

    class Nearer:
        def start(self, rows: int) -> Tensor:
            return torch.zeros(rows)

        def act(self, observed: TimeStep, state: Tensor) -> tuple[Tensor, Tensor]:
            at = observed.observation.argmax(1).tolist()
            next_to = [min(numpy.flatnonzero(links[n]), key=lambda m: far[m]) if n else 0 for n in at]
            return torch.tensor([int(n) for n in next_to]), state

    class Nowhere(Nearer):
        def act(self, observed: TimeStep, state: Tensor) -> tuple[Tensor, Tensor]:
            return observed.observation.argmax(1), state

    for actor, expected in ((Nearer(), far[1:]), (Nowhere(), numpy.full(len(far) - 1, paths_claim.LONGEST + 1))):
        model = Trajectory.__new__(Trajectory)  # of which the actor alone is asked
        object.__setattr__(model, "actor", lambda question, actor=actor: actor)
        assert (paths_claim.paths.__wrapped__(model, links, None) == expected).all()


def test_controllers_that_lean_more_return_less() -> None:
    subset = leaning_episodes(24, 0)
    rng = numpy.random.default_rng(0)
    leans = [float(numpy.exp(rng.uniform(*numpy.log(LEANS)))) for _ in subset]
    order = numpy.argsort(leans)
    returns = numpy.array([x.total_return for x in subset])[order]
    assert returns[0] == 200 and returns[-1] < 20 and numpy.corrcoef(returns, numpy.sort(leans))[0, 1] < -0.8
    env = make(CART)
    repeated = run_policy(lambda observed: 1, env, 3)
    assert len(repeated.rewards) == repeated.total_return < 12 and repeated.states.shape[1] == 4


def test_values_choose_what_is_worth_more_later() -> None:
    """Left is worth 1 at once and ends it, right leads to where left is worth 5."""
    first, second = numpy.float32([1, 0]), numpy.float32([0, 1])

    def episode(actions: list[int]) -> Episode:
        states = numpy.stack([first, second][: len(actions)])
        worth = {(0,): [1], (1, 0): [0, 5], (1, 1): [0, 0]}[tuple(actions)]
        return Episode(states, numpy.array(actions), numpy.array(worth, numpy.float32))

    policy = train_conservative_policy([episode(x) for x in ([0], [1, 0], [1, 1])] * 5, 0, 300, weight=0.1)
    assert policy(first) == 1 and policy(second) == 0
