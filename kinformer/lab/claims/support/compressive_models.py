"""Small Compressive Transformers on Python source: their training and their bits per byte."""

from typing import Any

from kinformer.lab.claims.support.claim_models import seeded
from kinformer.lab.data.text import TextData
from kinformer.lab.train.evaluate import evaluate
from kinformer.lab.train.fit import fit
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.lm import LM

# a segment, the memory and the compressed memory have equally many places, as in section 5.6 of the paper
SIZES: dict[str, Any] = {"d": 64, "depth": 2, "heads": 2, "segment": 24, "memory": 24, "compressed": 24, "rate": 4}
ROWS, LENGTH, RATE = 8, 48, 3e-3
JUDGED = 8192  # bytes of test text


def build_with_equal_start(seed: int, **keywords: Any) -> LM:
    """Return a new Compressive Transformer whose weights outside the compression depend only on the seed.

    Without this, a compression with weights would change the random numbers of the layers after it.

    seed: seed of the weights.
    keywords: arguments of `compressive_transformer` in addition to `SIZES`.
    """
    with seeded(seed):
        plain = compressive_transformer(**SIZES, compression="mean")
        model = compressive_transformer(**{**SIZES, **keywords})
    shared = {name: weight for name, weight in plain.state_dict().items() if ".memory." not in name}
    model.load_state_dict({**model.state_dict(), **shared})
    return model


def train_on_text(model: LM, text: TextData, seed: int, steps: int) -> LM:
    """Train a model on consecutive text, and return it in eval mode.

    model: model to train.
    text: text to learn from.
    seed: seed of the training.
    steps: number of training steps.
    """
    with seeded(seed):
        fit(model, text, steps=steps, batch=ROWS, length=LENGTH, lr=RATE, seed=seed, measures=1, valid_bytes=1024)
    return model.eval()


def measure_test_bits(model: LM, text: TextData) -> float:
    """Return the bits per byte of a model on a sample that is spread over the test text.

    model: trained model.
    text: text with a test part.
    """
    return evaluate(model, text.part("test"), LENGTH, JUDGED).value
