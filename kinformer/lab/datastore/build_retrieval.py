"""Building of a kNN-LM in a folder: a datastore of a text, tuned settings, and the model with both."""

from pathlib import Path
from typing import Any

from kinformer.checkpoint.checkpoint import save
from kinformer.convert.retrieval import RetrievalConversion
from kinformer.convert.support.conversion_plan import PlannedConversion
from kinformer.core.conversion import Progress
from kinformer.lab.data.text import TextData
from kinformer.lab.datastore.build_datastore import Dtype
from kinformer.lab.datastore.datastore import Datastore
from kinformer.lab.datastore.tuning import sweep_nearest
from kinformer.lab.train.evaluate import Measurement, evaluate
from kinformer.models.lm import LM
from kinformer.models.support.hidden_taps import LAST_FFN_INPUT, Tap
from kinformer.models.support.retrieval_lm import OWN, RetrievalLM

LENGTH = 512  # tokens of a window, at most the length of the model's training
VALID_BYTES = 16_384  # bytes of validation text to tune on


def build_retrieval(
    model: LM,
    text: TextData,
    folder: Path,
    *,
    k: int = 1024,
    tap: str = LAST_FFN_INPUT,
    dtype: Dtype = "float16",
    length: int | None = None,
    limit: int | None = VALID_BYTES,
    progress: Progress = lambda stage, fraction: None,
) -> RetrievalLM:
    """Build a kNN-LM in a folder, and return it as `kf.load` of the folder does.

    The training part of the text becomes the datastore, which lies in the folder, so that the folder may be moved. The
    settings with the fewest bits per byte on the validation part are saved. No weight changes. If the folder has an
    unfinished or finished datastore of the same text and model, only the missing keys are computed.

    model: the trained language model.
    text: the text.
    folder: folder of the new model.
    k: largest number of entries to look up; smaller numbers are tried too.
    tap: name of the hidden state that is the key, as in `Tap`.
    dtype: number format of the keys.
    length: tokens of a window; at most the length of the model's training. Windows overlap by half.
    limit: bytes of the validation part to tune on; all if None.
    progress: function that is called with a stage and its finished fraction.

    Errors: ValueError, in one line, for a model without a datastore's key, a text without validation part, and a
    folder with another datastore; OSError if the folder cannot be written.
    """
    length = min(length or LENGTH, model.window or LENGTH, model.trained_length or LENGTH)
    if len(text.valid) < 2:
        raise ValueError(f"cannot tune the kNN-LM: {text.name} has no validation text. Give more text, or valid=")
    place, train = Tap(model, tap).place, text.part("train")
    total = max(len(train.tokens) - 1, 1)
    store = Datastore.build(
        folder / OWN,
        model,
        train,
        data=text.name,
        tap=place,
        dtype=dtype,
        length=length,
        resume=True,
        on_progress=lambda count: progress("build the datastore", min(count / total, 1.0)),
    )
    valid = text.part("valid")
    measured = min(limit or valid.bytes, valid.bytes) / valid.bytes_per_token

    def measure(candidate: Any) -> Measurement:
        def show(count: int) -> None:
            progress("tune the datastore", min(count / measured, 1.0))

        return evaluate(candidate, valid, length, limit, on_progress=show, probe=False)

    best = sweep_nearest(model, store, place, min(k, len(store)), valid.tokens, measure).best
    options: dict[str, Any] = {"k": best.k, "weight": best.weight, "temperature": best.temperature, "tap": place}
    converted = PlannedConversion.of(model, RetrievalConversion(datastore=OWN, **options)).carry_out()
    assert isinstance(converted, RetrievalLM)
    converted.folder = folder
    converted.open_files()
    save(converted, folder)
    return converted
