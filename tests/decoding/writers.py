"""Small writers whose states are of every form, with larger weights, so that no likeliest token is near another."""

import torch

from kinformer.core.discover import find_member
from kinformer.core.model import Writer

VOCAB = 7
FORMS = {
    "learned": ("gpt", {"length": 10}),  # shorter than what the tests write
    "rotary": ("llama", {}),
    "alibi": ("bloom", {}),
    "memory": ("transformer_xl", {"segment": 3, "memory": 4}),
    "compressed": ("compressive_transformer", {"segment": 3, "memory": 3, "compressed": 2, "rate": 3}),
    "retrieved": ("memorizing_transformer", {"segment": 3, "memory": 6, "k": 2}),
    "linear": ("linear_transformer", {"lanes": True}),
    "exits": ("calm", {"length": 10, "threshold": 0.2}),
    "recurrent": ("act_rnn", {"depth": None, "heads": None}),
}


def writer(form: str, seed: int = 3) -> Writer:
    """The writer of a form, in eval mode."""
    torch.manual_seed(seed)
    name, form_keywords = FORMS[form]
    keywords = {"d": 16, "depth": 2, "heads": 2, "vocab": VOCAB, **form_keywords}
    model = find_member(name)(**{key: value for key, value in keywords.items() if value is not None})
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.4)
    return model.eval()
