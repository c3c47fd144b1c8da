"""Module names of dense layers and heads in Hugging Face's models, by family.

PEFT names a tensor after the module that it adapts. An encoder's module names come from its family's
``weight_names``; this module adds the heads' names.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

from afjax.config.adapters import DENSE_LAYERS, DenseLayer
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskKind
from afjax.errors import UserError
from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import Weight

# The name of the pooler's dense layer, in every family with a pooler.
POOLER = "pooler.dense"


@dataclasses.dataclass(frozen=True)
class HeadLayout:
    """The head of a Hugging Face model class.

    Attributes:
      linear: Names of the linear layers, from input to output.
      config: The equivalent head in afjax.
      needs: Fields of the trunk's ``config.json`` that affect the head, with the supported value, which is the default.
    """

    linear: tuple[str, ...]
    config: HeadConfig
    needs: tuple[tuple[str, Any], ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The top-level modules that contain the linear layers."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.linear))


@dataclasses.dataclass(frozen=True)
class PeftFamily:
    """An encoder family's model classes in Hugging Face's transformers.

    Attributes:
      classes: Prefix of the class names, such as ``Bert``.
      library: The Python module that defines the classes.
      heads: The heads that afjax supports, by class name without the prefix.
    """

    classes: str
    library: str
    heads: Mapping[str, HeadLayout]


SEQUENCE, CHOICE, TOKEN, SPAN = (
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
# The model class for each task kind, without the family's prefix.
CLASS_OF_KIND: Mapping[TaskKind, str] = types.MappingProxyType(
    {
        "classification": SEQUENCE,
        "regression": SEQUENCE,
        "multi_label": SEQUENCE,
        "multiple_choice": CHOICE,
        "tagging": TOKEN,
        "span": SPAN,
    }
)
# PEFT's task_type for each model class. PEFT has none for multiple choice and records the class name instead.
TASK_TYPES: Mapping[str, str] = types.MappingProxyType({SEQUENCE: "SEQ_CLS", TOKEN: "TOKEN_CLS", SPAN: "QUESTION_ANS"})

_OUTPUT = HeadLayout(("classifier",), HeadConfig(pooling="first", pooler="trunk"))
_ON_TOKENS = {
    TOKEN: HeadLayout(("classifier",), HeadConfig(pooling="first")),
    SPAN: HeadLayout(("qa_outputs",), HeadConfig(pooling="first")),
}
_TWO_LAYERS = ("classifier.dense", "classifier.out_proj")
_BERT = {SEQUENCE: _OUTPUT, CHOICE: _OUTPUT, **_ON_TOKENS}
_ROBERTA = {
    SEQUENCE: HeadLayout(_TWO_LAYERS, HeadConfig(pooling="first", pooler="head")),
    CHOICE: _OUTPUT,
    **_ON_TOKENS,
}
_RELU = HeadLayout(
    ("pre_classifier", "classifier"),
    HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="relu"),
)
_DISTILBERT = {SEQUENCE: _RELU, CHOICE: _RELU, **_ON_TOKENS}
_GELU = HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="gelu")
_ELECTRA = {
    SEQUENCE: HeadLayout(_TWO_LAYERS, _GELU),
    CHOICE: HeadLayout(
        ("sequence_summary.summary", "classifier"),
        _GELU,
        (("summary_type", "first"), ("summary_use_proj", True), ("summary_activation", "gelu")),
    ),
    **_ON_TOKENS,
}
_GELU_LAYER = HeadLayout(("pooler.dense", "classifier"), _GELU, (("pooler_hidden_act", "gelu"),))
_DEBERTA = {SEQUENCE: _GELU_LAYER, CHOICE: _GELU_LAYER, **_ON_TOKENS}
# Keys are afjax's names of the encoder families. ModernBERT's heads have a LayerNorm, which afjax's heads do not have.
PEFT_FAMILIES: Mapping[str, PeftFamily] = types.MappingProxyType(
    {
        "bert": PeftFamily("Bert", "transformers.models.bert.modeling_bert", _BERT),
        "roberta": PeftFamily("Roberta", "transformers.models.roberta.modeling_roberta", _ROBERTA),
        "xlm-roberta": PeftFamily("XLMRoberta", "transformers.models.xlm_roberta.modeling_xlm_roberta", _ROBERTA),
        "camembert": PeftFamily("Camembert", "transformers.models.camembert.modeling_camembert", _ROBERTA),
        "mpnet": PeftFamily("MPNet", "transformers.models.mpnet.modeling_mpnet", _ROBERTA),
        "distilbert": PeftFamily("DistilBert", "transformers.models.distilbert.modeling_distilbert", _DISTILBERT),
        "electra": PeftFamily("Electra", "transformers.models.electra.modeling_electra", _ELECTRA),
        "deberta-v2": PeftFamily("DebertaV2", "transformers.models.deberta_v2.modeling_deberta_v2", _DEBERTA),
        "modernbert": PeftFamily("ModernBert", "transformers.models.modernbert.modeling_modernbert", {}),
    }
)


def peft_family(name: str) -> PeftFamily:
    """Looks up Hugging Face's names for an encoder family.

    Raises:
      UserError: afjax does not convert the family's adapters to or from PEFT.
    """
    if name not in PEFT_FAMILIES:
        raise UserError(
            f'The trunk is a "{name}" encoder; PEFT import and export only support {", ".join(PEFT_FAMILIES)} encoders.'
        )
    return PEFT_FAMILIES[name]


def dense_modules(family: str) -> dict[DenseLayer, str]:
    """Maps a layer's dense layers to their module names.

    For example, ``{"query": "attention.self.query", ...}``. In ModernBERT, query, key and value have the same module.
    """
    layers = ENCODER_FAMILIES[family].weight_names.layers
    modules = {path: name.removesuffix(".weight") for name, weight in layers.items() for path in weight.paths}
    return {name: modules[f"{block}/{layer}/kernel"] for name, (block, layer) in DENSE_LAYERS.items()}


def module_layers(family: str) -> dict[str, tuple[DenseLayer, ...]]:
    """Maps a layer's module names to their dense layers, in the order of the module's outputs.

    For example, ``{"attention.self.query": ("query",), ...}``, or ``{"attn.Wqkv": ("query", "key", "value"), ...}``.
    """
    modules = dense_modules(family)
    return {module: tuple(name for name in modules if modules[name] == module) for module in modules.values()}


def layer_prefix(family: str, layer: int) -> str:
    """Returns the name prefix of a layer's modules, such as ``encoder.layer.0.``."""
    return f"{ENCODER_FAMILIES[family].weight_names.layer}.{layer}."


def encoder_modules(trunk: TrunkConfig) -> list[str]:
    """Lists the encoder's modules with weights, without the family's prefix."""
    names = trunk.encoder_family.weight_names
    tables: list[Mapping[str, Weight]] = [names.embeddings, names.pooler]
    if trunk.projects_embeddings:
        tables.append(names.projection)
    modules = [_module(name) for table in tables for name in table]
    modules += [
        layer_prefix(trunk.family, layer) + _module(name) for layer in range(trunk.num_layers) for name in names.layers
    ]
    return list(dict.fromkeys(modules))


def target_names(family: str, layers: Sequence[int], names: Sequence[DenseLayer]) -> list[str]:
    """Finds the shortest ``target_modules`` that select exactly the given layers.

    PEFT selects every module whose name ends with an entry. In BERT, ``output.dense`` would also select the attention
    block's output projection, so its entries include the layer number: ``0.output.dense``.
    """
    modules = dense_modules(family)
    targets = []
    for module in dict.fromkeys(modules[name] for name in names):
        others = [other for other in modules.values() if other != module]
        parts = module.split(".")
        suffixes = [".".join(parts[start:]) for start in reversed(range(len(parts)))]
        unique = [suffix for suffix in suffixes if not any(f".{other}".endswith(f".{suffix}") for other in others)]
        targets += unique[:1] or [f"{layer}.{module}" for layer in layers]
    return targets


def numbered_names(family: str, layers: Sequence[int], names: Sequence[DenseLayer]) -> list[str]:
    """Returns ``target_modules`` with the number of each layer, such as ``layers.0.attn.Wqkv``."""
    modules = dense_modules(family)
    chosen = dict.fromkeys(modules[name] for name in names)
    return [layer_prefix(family, layer) + module for layer in layers for module in chosen]


def can_list_layers(family: str) -> bool:
    """Whether PEFT's ``layers_to_transform`` works for a family's encoder without a head.

    PEFT only finds the number of a layer if the list of layers is inside another module. ModernBERT's is not.
    """
    return "." in ENCODER_FAMILIES[family].weight_names.layer


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
