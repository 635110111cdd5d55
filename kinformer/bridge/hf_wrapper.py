"""Classes of Hugging Face transformers that wrap a model of kinformer.

If no class of transformers computes a model, `save(model, folder, format="hf")` writes a folder for these classes:
`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`. The code in the folder only imports this module.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from kinformer.bridge.hf_export import CODE, module_text
from kinformer.checkpoint.checkpoint import changes_of
from kinformer.convert.support.changed_model import build_changed
from kinformer.core.discover import check_member_name, members
from kinformer.core.model import CALL_KEYWORDS
from kinformer.models.support.sliding_reader import SlidingReader


class KinformerConfig(PreTrainedConfig):
    """The config of a wrapped model, with the entries of kinformer's own config.json, such as `member`."""

    model_type = "kinformer"

    def __init__(self, **entries: Any) -> None:
        super().__init__(**{"tie_word_embeddings": True, "use_cache": False, **entries})

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: transformers would copy this module into every folder that it saves."""


class KinformerPreTrainedModel(PreTrainedModel):
    """Base class of the wrappers: builds the member of a config, and calls it as a model of transformers.

    config: the config, with the name and the keywords of a member.
    """

    config_class = KinformerConfig
    base_model_prefix = "model"

    def __init__(self, config: KinformerConfig) -> None:
        super().__init__(config)
        self.model = _build(config)
        every = self.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in reversed(every.items())}
        self._tied_weights_keys = {name: first[id(x)] for name, x in every.items() if first[id(x)] != name}
        self.frozen = [name for name, weight in self.named_parameters() if not weight.requires_grad]
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Return the output of the model for the arguments of transformers."""
        arguments = {name: value for name, value in locals().items() if name in CALL_KEYWORDS and value is not None}
        return self.model(**arguments)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return for each further name of a shared tensor its first name."""
        return dict(self._tied_weights_keys or {})

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as the member has initialised them."""

    def named_non_persistent_buffers(self, *arguments: Any, **keywords: Any) -> Any:
        """Yield none: transformers would replace the constants of the model by uninitialised memory."""
        return iter(())

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Do nothing, as for the config."""

    @classmethod
    def from_pretrained(cls, *arguments: Any, **keywords: Any) -> Any:
        """Return the model of a folder, as the classes of transformers do."""
        result = super().from_pretrained(*arguments, **keywords)
        wrapper = result[0] if isinstance(result, tuple) else result
        for name in wrapper.frozen:
            wrapper.get_parameter(name).requires_grad_(False)
        if getattr(wrapper, "hf_device_map", None) is None:
            wrapper.model.to(next(wrapper.parameters()).device)
        wrapper.model.load_state_dict(wrapper.model.state_dict())  # runs the load hooks of parts
        return result

    def save_pretrained(self, save_directory: Any, *arguments: Any, **keywords: Any) -> None:
        """Save the model as transformers does, with the module that names these classes."""
        super().save_pretrained(save_directory, *arguments, **keywords)
        (Path(save_directory) / f"{CODE}.py").write_text(module_text(type(self).__name__))


def _build(config: KinformerConfig) -> Any:
    """Return the member of a config, with initial weights on the CPU.

    Transformers builds models on the meta device, where members cannot compute their constants, and in the dtype of the
    weights, in which the constants would be inexact. No file that the config names is run.
    """
    registered = members()
    check_member_name(str(config.member), registered)
    dtype = torch.get_default_dtype()
    keywords = {name: tuple(value) if isinstance(value, list) else value for name, value in config.keywords.items()}
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            build = registered[config.member].rebuild  # type: ignore[attr-defined]
            model = build_changed(build, keywords, changes_of(vars(config)))
    finally:
        torch.set_default_dtype(dtype)
    model.trained_length = config.trained_length
    return model.to(dtype=dtype)


class KinformerModel(KinformerPreTrainedModel):
    """A model of text, for `AutoModel`: its output has the hidden states and no predictions."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Any:
        """Return the output of the body in `last_hidden_state`."""
        out = super().forward(input_ids, attention_mask, token_type_ids)
        return BaseModelOutput(last_hidden_state=out.last_hidden_state)


class KinformerForCausalLM(KinformerPreTrainedModel, GenerationMixin):
    """A language model, for `AutoModelForCausalLM`. Each step of `generate` reads the whole row again."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> dict[str, Any]:
        """Return the row to read, which is its end if it has more tokens than the model has learned positions."""
        if self.model.window is None:
            return {"input_ids": input_ids, "attention_mask": attention_mask}
        tokens = input_ids if attention_mask is None else input_ids.where(attention_mask > 0, -1)
        rows = SlidingReader(self.model, self.model.window).rows_in_table(tokens)
        return {"input_ids": rows.clamp_min(0), "attention_mask": (rows >= 0).long()}


class KinformerForMaskedLM(KinformerPreTrainedModel):
    """A masked language model, for `AutoModelForMaskedLM`."""


class KinformerForSequenceClassification(KinformerPreTrainedModel):
    """A classifier of texts, for `AutoModelForSequenceClassification`."""


class KinformerForSeq2SeqLM(KinformerPreTrainedModel):
    """An encoder-decoder model, for `AutoModelForSeq2SeqLM`."""

    def generate(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Return the targets that the model writes for sources, with the arguments of transformers."""
        return self.model.generate(*arguments, **keywords)
