"""stop_at_text: end a row of new tokens as soon as its text has one of some texts."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kinformer.decoding.sampling import Stop

BEFORE = 4  # tokens: a UTF-8 letter has at most 4 bytes


def stop_at_text(tokenizer: Any, *stops: bytes) -> Stop:
    """Return a function that tests for each row of new tokens whether a stop text has just appeared.

    It decodes only the last tokens: as many as the longest stop text has bytes. A few earlier tokens are decoded too,
    because the decoded text may lack its first space or half of its first letter.

    tokenizer: the tokenizer of the model.
    stops: the stop texts.
    """
    longest = max(map(len, stops), default=0)

    def ends(new: Int[Tensor, "B N"]) -> Bool[Tensor, " B"]:
        texts = [
            tokenizer.decode([token for token in row if token >= 0]) for row in new[:, -longest - BEFORE :].tolist()
        ]
        return torch.tensor([any(stop in text for stop in stops) for text in texts], device=new.device)

    return ends
