"""The names that AdapterHub's library gives to the parts of an encoder, by encoder family."""

import dataclasses
from collections.abc import Mapping

from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryFamily:
    """The names of a family's parts in the library.

    Attributes:
      prefix: The first part of the tensors' names in a model with a head.
      model_class: The class of a model with flexible heads.
      layer: The name of the list of layers.
      sublayers: The modules of a layer that hold its adapters and fusions, by the slot in afjax.
    """

    prefix: str
    model_class: str
    layer: str
    sublayers: Mapping[str, str]

    def module(self, layer: int, slot: str) -> str:
        """Returns the name of the module that holds the adapters of a slot."""
        return f"{self.prefix}.{self.layer}.{layer}.{self.sublayers[slot]}"


_BERT = LibraryFamily(
    prefix="bert",
    model_class="BertAdapterModel",
    layer="encoder.layer",
    sublayers={"attention": "attention.output", "ffn": "output"},
)
# The names in the library, by the name of the encoder family in afjax.
LIBRARY_FAMILIES: Mapping[str, LibraryFamily] = {
    "bert": _BERT,
    "roberta": dataclasses.replace(_BERT, prefix="roberta", model_class="RobertaAdapterModel"),
    "xlm-roberta": dataclasses.replace(_BERT, prefix="roberta", model_class="XLMRobertaAdapterModel"),
    "distilbert": LibraryFamily(
        prefix="distilbert",
        model_class="DistilBertAdapterModel",
        layer="transformer.layer",
        sublayers={"attention": "attention_adapters", "ffn": "output_adapters"},
    ),
    "electra": dataclasses.replace(_BERT, prefix="electra", model_class="ElectraAdapterModel"),
    "deberta-v2": dataclasses.replace(_BERT, prefix="deberta", model_class="DebertaV2AdapterModel"),
}


def library_family(name: str) -> LibraryFamily:
    """Returns the library's names for an encoder family.

    Raises:
      UserError: The library does not have the family, or afjax does not exchange its adapters.
    """
    if name not in LIBRARY_FAMILIES:
        raise UserError(
            f'The trunk is a "{name}" encoder; adapters are exchanged with AdapterHub for '
            f"{', '.join(LIBRARY_FAMILIES)} encoders."
        )
    return LIBRARY_FAMILIES[name]
