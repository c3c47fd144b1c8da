"""The heads of Hugging Face's model classes, by encoder family, and the equivalent heads in afjax."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskKind
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.trunk.pretrained import Trunk


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
class ModelClasses:
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
CLASS_OF_KIND: Mapping[TaskKind, str] = {
    "classification": SEQUENCE,
    "regression": SEQUENCE,
    "multi_label": SEQUENCE,
    "multiple_choice": CHOICE,
    "tagging": TOKEN,
    "span": SPAN,
}

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
    ("pre_classifier", "classifier"), HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="relu")
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
MODEL_CLASSES: Mapping[str, ModelClasses] = {
    "bert": ModelClasses("Bert", "transformers.models.bert.modeling_bert", _BERT),
    "roberta": ModelClasses("Roberta", "transformers.models.roberta.modeling_roberta", _ROBERTA),
    "xlm-roberta": ModelClasses("XLMRoberta", "transformers.models.xlm_roberta.modeling_xlm_roberta", _ROBERTA),
    "camembert": ModelClasses("Camembert", "transformers.models.camembert.modeling_camembert", _ROBERTA),
    "mpnet": ModelClasses("MPNet", "transformers.models.mpnet.modeling_mpnet", _ROBERTA),
    "distilbert": ModelClasses("DistilBert", "transformers.models.distilbert.modeling_distilbert", _DISTILBERT),
    "electra": ModelClasses("Electra", "transformers.models.electra.modeling_electra", _ELECTRA),
    "deberta-v2": ModelClasses("DebertaV2", "transformers.models.deberta_v2.modeling_deberta_v2", _DEBERTA),
    "modernbert": ModelClasses("ModernBert", "transformers.models.modernbert.modeling_modernbert", {}),
}


def check_trunk_fields(layout: HeadLayout, class_name: str, trunk: Trunk, remedy: str = "") -> None:
    """Checks the fields of the trunk's ``config.json`` that affect a head.

    Args:
      layout: The head.
      class_name: The model class with the head, for the error message.
      trunk: The trunk.
      remedy: A sentence at the end of the error message.

    Raises:
      UserError: A field has a value that afjax's heads do not support.
    """
    values = read_json(trunk.folder / "config.json") if trunk.folder else None
    for field, supported in layout.needs:
        if (given := (values or {}).get(field, supported)) != supported:
            raise UserError(
                f"The trunk's config.json has {field}={json.dumps(given)}, but afjax only supports "
                f"{json.dumps(supported)} in the head of {class_name}.{remedy}"
            )
