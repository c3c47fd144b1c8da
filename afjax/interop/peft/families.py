"""Module names of dense layers in Hugging Face's models, by family.

PEFT names a tensor after the module that it adapts. An encoder's module names come from its family's
``weight_names``. The heads' names are in :mod:`afjax.interop.model_heads`.
"""

from collections.abc import Mapping, Sequence

from afjax.config.adapters import DENSE_LAYERS, DenseLayer
from afjax.errors import UserError
from afjax.interop.model_heads import MODEL_CLASSES, SEQUENCE, SPAN, TOKEN, ModelClasses
from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import Weight

# The name of the pooler's dense layer, in every family with a pooler.
POOLER = "pooler.dense"


# PEFT's task_type for each model class. PEFT has none for multiple choice and records the class name instead.
TASK_TYPES: Mapping[str, str] = {SEQUENCE: "SEQ_CLS", TOKEN: "TOKEN_CLS", SPAN: "QUESTION_ANS"}


def peft_family(name: str) -> ModelClasses:
    """Looks up Hugging Face's names for an encoder family.

    Raises:
      UserError: afjax does not convert the family's adapters to or from PEFT.
    """
    if name not in MODEL_CLASSES:
        raise UserError(
            f'The trunk is a "{name}" encoder; PEFT import and export only support {", ".join(MODEL_CLASSES)} encoders.'
        )
    return MODEL_CLASSES[name]


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


def dense_places(trunk: TrunkConfig) -> dict[str, tuple[tuple[DenseLayer, ...], int]]:
    """Maps the names of all layers' modules, without the family's prefix, to their dense layers and their layer."""
    return {
        layer_prefix(trunk.family, layer) + module: (names, layer)
        for layer in range(trunk.num_layers)
        for module, names in module_layers(trunk.family).items()
    }


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
