"""Every: one key of each few."""

from kinformer.core.heads import Keys
from kinformer.core.shorten import Shorten


class Every(Shorten):
    """The keys at positions that `n` divides, as they are: a coarse look at a long source."""

    def __init__(self, n: int):
        super().__init__()
        self.n = n

    def forward(self, keys: Keys) -> Keys:
        return keys._replace(pos=keys.pos.masked_fill(keys.pos % self.n != 0, -1))


EXAMPLES = (lambda: Every(2),)
