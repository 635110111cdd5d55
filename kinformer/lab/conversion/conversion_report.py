"""ConversionReport: the plan of a conversion, and the measurements before and after it."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kinformer.checkpoint.atomic_files import write
from kinformer.convert.support.conversion_plan import ConversionPlan, TensorFate, title_of
from kinformer.core.conversion import Conversion, Promise
from kinformer.core.from_json import from_json
from kinformer.decoding.saved_state import fingerprint
from kinformer.lab.conversion.reading_costs import ReadingCost

RECORD = "conversion.json"


def conversion_request(model: Any, conversion: Conversion, teach: float) -> dict[str, Any]:
    """Return the description of a wanted conversion, which `resume` compares.

    model: the source.
    conversion: the recipe, before options are decided by the model or by measurement.
    teach: weight of the loss that compares predictions with the source's.
    """
    options = json.loads(json.dumps(conversion.options))
    return {"source": fingerprint(model), "recipe": conversion.recipe_name(), "options": options, "teach": float(teach)}


@dataclass
class ConversionReport:
    """The record of a conversion; `kf.convert` puts it into the attribute `report` of the converted model.

    source: name of the source's member, or of its class.
    plan: recipe, options, promise and the fate of each tensor.
    request: the conversion that was asked for, as `conversion_request` describes it.
    metric: name of the metric; "" if nothing was measured.
    data: description of the measured data.
    before: metric of the source; None if it was not measured, as for the two below.
    after: metric right after the conversion, with its new parts trained.
    adapted: metric after the adaptation.
    bytes_per_token: mean bytes of a measured token, which turns bits per byte into perplexity.
    layer_losses: metric of the source with only one layer converted, for each layer from the bottom; empty unless the
        layers to keep were measured.
    adaptation: settings of the adaptation, and the number of weights that it trained; empty without one.
    seconds: seconds of each stage by name.
    costs: costs of reading long rows, by "source" and "converted"; empty if they were not measured.
    """

    source: str
    plan: ConversionPlan
    request: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    data: str = ""
    before: float | None = None
    after: float | None = None
    adapted: float | None = None
    bytes_per_token: float = 1.0
    layer_losses: list[float] = field(default_factory=list)
    adaptation: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    costs: dict[str, list[ReadingCost]] = field(default_factory=dict)

    @property
    def stages(self) -> dict[str, float]:
        """The measured values of the metric by stage."""
        values = {"source": self.before, "converted": self.after, "adapted": self.adapted}
        return {name: value for name, value in values.items() if value is not None}

    def quality_cells(self) -> list[list[str]]:
        """Return the table of the metric by stage as texts, with its headings in the first row.

        For bits per byte, it also has the perplexity per token, and its ratio to the source's.
        """
        if not self.metric.startswith("bits per"):
            return [["model", self.metric], *([name, f"{value:.4f}"] for name, value in self.stages.items())]
        heads = ["model", self.metric, "perplexity per token", "ratio to the source"]
        source = self.stages["source"]

        def ratio(bits_per_byte: float) -> float:
            return _power_of_2(bits_per_byte * self.bytes_per_token)

        return [
            heads,
            *(
                [name, f"{value:.4f}", f"{ratio(value):,.2f}", f"{ratio(value - source):.3f}"]
                for name, value in self.stages.items()
            ),
        ]

    def refuse_other_request(self, wanted: dict[str, Any], folder: Path) -> None:
        """Raise ValueError if the report describes another conversion than the wanted one.

        wanted: description of the wanted conversion, from `conversion_request`.
        folder: folder of the report, for the message.
        """
        made = self.request
        stored, expected = (title_of(request["recipe"], request["options"]) for request in (made, wanted))
        if stored != expected:
            raise ValueError(
                f"cannot resume {expected}: {folder} holds a conversion to {stored}. Give the options of "
                "the latter, or another out"
            )
        if made["source"] != wanted["source"]:
            raise ValueError(
                f"cannot resume: {folder} holds a conversion of a model with other weights. Give that model, or "
                "another out"
            )
        if made["teach"] != wanted["teach"]:
            raise ValueError(
                f"cannot resume: {folder} holds an adaptation with teach={made['teach']:g}, got {wanted['teach']:g}. "
                f"Give teach={made['teach']:g}, or another out"
            )

    def save(self, folder: Path) -> None:
        """Write conversion.json.

        folder: the folder of the converted model.

        Errors: OSError, in one line, if the file cannot be written.
        """
        write(folder / RECORD, f"{json.dumps(self.to_json(), indent=2)}\n".encode())

    @classmethod
    def load(cls, folder: Path) -> "ConversionReport":
        """Return the report in a folder.

        folder: the folder of the converted model.

        Errors: ValueError, in one line, if there is none, or if it is damaged.
        """
        try:
            record = from_json((folder / RECORD).read_bytes())
            plan = record["plan"]
            fates = tuple(TensorFate(**fate) for fate in plan["fates"])
            length, reason = plan["promise"]["length"], plan["promise"]["reason"]
            promise = Promise(math.inf if length is None else length, reason)
            plan = ConversionPlan(
                **plan | {"promise": promise, "fates": fates, "options": _with_tuples(plan["options"])}
            )
            costs = {name: [ReadingCost(**cost) for cost in costs] for name, costs in record["costs"].items()}
            return cls(**record | {"plan": plan, "costs": costs})
        except FileNotFoundError as error:
            raise ValueError(f"{folder} holds no conversion: got no {RECORD}. Convert a model into it first") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{folder / RECORD} is damaged: {error}. Convert the model again") from error

    def to_json(self) -> dict[str, Any]:
        """Return the record as values of JSON, with named fields."""
        length, reason = self.plan.promise
        plan = self.plan._asdict() | {
            "promise": {"length": None if length == math.inf else length, "reason": reason},  # JSON has no infinity
            "fates": [fate._asdict() for fate in self.plan.fates],
        }
        costs = {name: [cost._asdict() for cost in costs] for name, costs in self.costs.items()}
        return {**asdict(self), "plan": plan, "costs": costs}


def _power_of_2(exponent: float) -> float:
    """Return 2 to a power; inf if it is too large for a number."""
    try:
        return float(2**exponent)
    except OverflowError:
        return math.inf


def _with_tuples(value: Any) -> Any:
    """Return a value of JSON with tuples in place of lists, because options of conversions have tuples."""
    if isinstance(value, dict):
        return {name: _with_tuples(entry) for name, entry in value.items()}
    return tuple(_with_tuples(entry) for entry in value) if isinstance(value, list) else value
