"""A learner of values beside which Decision Transformers are put: Q-learning from episodes that are there already."""

from collections.abc import Sequence

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from kinformer.lab.claims.support.episodes import Policy
from kinformer.lab.data.support.episodes import Episode

BATCH, DISCOUNT, KEPT, RATE = 256, 0.99, 0.99, 1e-3


def conservative(episodes: Sequence[Episode], seed: int, steps: int, weight: float = 1.0) -> Policy:
    """The greedy policy of values learned by conservative Q-learning: what was not done is held to be worth less.

    weight: of log sum_a exp Q(s, a) - Q(s, a of the data), beside the error of Q(s, a) = r + 0.99 max_a' Q'(s', a'),
        where Q' follows Q slowly. Source: Kumar et al., 2020, arXiv:2006.04779.
    """
    torch.manual_seed(seed)
    states, actions, rewards = (torch.from_numpy(numpy.concatenate(part)) for part in zip(*episodes, strict=True))
    ends = torch.from_numpy(numpy.cumsum([len(one.rewards) for one in episodes]) - 1)
    over = torch.zeros(len(rewards)).index_fill(0, ends, 1.0)
    scale, mean = states.std(0).clamp_min(1e-6), states.mean(0)
    states = (states - mean) / scale
    sizes = (states.shape[1], 64, 64, int(actions.max()) + 1)
    q, slow = (nn.Sequential(*_layers(sizes)) for _ in range(2))
    slow.load_state_dict(q.state_dict())
    optimiser, chance = torch.optim.Adam(q.parameters(), RATE), numpy.random.default_rng(seed)
    for _ in range(steps):
        at = torch.from_numpy(chance.integers(len(rewards), size=BATCH))
        after = (at + 1).clamp_max(len(rewards) - 1)
        with torch.no_grad():
            wanted = rewards[at] + DISCOUNT * (1 - over[at]) * slow(states[after]).amax(1)
        said = q(states[at])
        taken = said.gather(1, actions[at, None]).squeeze(1)
        loss = F.smooth_l1_loss(taken, wanted) + weight * (said.logsumexp(1) - taken).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for mine, its in zip(slow.parameters(), q.parameters(), strict=True):
                mine.lerp_(its, 1 - KEPT)

    @torch.no_grad()
    def policy(seen: numpy.ndarray) -> int:
        return int(q((torch.from_numpy(seen) - mean) / scale).argmax())

    return policy


def _layers(sizes: Sequence[int]) -> list[nn.Module]:
    found: list[nn.Module] = []
    for wide, narrow in zip(sizes, sizes[1:], strict=False):
        found += [nn.Linear(wide, narrow), nn.ReLU()]
    return found[:-1]
