"""Module and class names of AdapterHub's library, by encoder family."""

import dataclasses
from collections.abc import Mapping

from afjax.errors import UserError
from afjax.interop.model_heads import MODEL_CLASSES
from afjax.trunk.families import ENCODER_FAMILIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryFamily:
    """The library's module and class names for an encoder family.

    Attributes:
      prefix: First component of tensor names in a model with a head.
      model_class: Class of models with flexible heads.
      layer: Module path of the list of layers.
      sublayers: The modules that hold a layer's adapters and fusions, by afjax slot.
    """

    prefix: str
    model_class: str
    layer: str
    sublayers: Mapping[str, str]

    def module(self, layer: int, slot: str) -> str:
        """Returns the path of the module that holds a slot's adapters."""
        return f"{self.prefix}.{self.layer}.{layer}.{self.sublayers[slot]}"


_SUBLAYERS = {"attention": "attention.output", "ffn": "output"}
_DISTILBERT_SUBLAYERS = {"attention": "attention_adapters", "ffn": "output_adapters"}
# Keys are afjax's names of the encoder families.
LIBRARY_FAMILIES: Mapping[str, LibraryFamily] = {
    name: LibraryFamily(
        prefix=ENCODER_FAMILIES[name].weight_names.prefix,
        model_class=f"{MODEL_CLASSES[name].classes}AdapterModel",
        layer=ENCODER_FAMILIES[name].weight_names.layer,
        sublayers=_DISTILBERT_SUBLAYERS if name == "distilbert" else _SUBLAYERS,
    )
    for name in ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "deberta-v2")
}


def library_family(name: str) -> LibraryFamily:
    """Looks up the library's names for an encoder family.

    Raises:
      UserError: The library does not support the family, or afjax does not convert its adapters.
    """
    if name not in LIBRARY_FAMILIES:
        raise UserError(
            f'The trunk is a "{name}" encoder; AdapterHub import and export only support '
            f"{', '.join(LIBRARY_FAMILIES)} encoders."
        )
    return LIBRARY_FAMILIES[name]
