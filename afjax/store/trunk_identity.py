"""Compares the trunk that an artifact was trained on with the trunk in use."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from afjax.trunk.families import ENCODER_FAMILIES

# Fields of config.json that only training uses.
_TRAINING_FIELDS = frozenset(
    family.config_names[field]
    for family in ENCODER_FAMILIES.values()
    for field in ("hidden_dropout", "attention_dropout", "embedding_dropout")
    if field in family.config_names
)


class TrunkComparison(NamedTuple):
    """The result of :func:`trunk_difference`, as phrases for error messages.

    Attributes:
      differences: The parts that differ, with both values if they are short.
      unchecked: The parts that could not be compared, because an older record lacks them.

    Example:
      >>> from afjax import store
      >>> comparison = store.trunk_difference({"sha256": "ab"}, {"sha256": "ab", "architecture": {"hidden_size": 8}})
      >>> comparison.differences, comparison.unchecked
      ([], ['the architecture'])
    """

    differences: list[str]
    unchecked: list[str]


def trunk_difference(recorded: Mapping[str, Any], trunk: Mapping[str, Any]) -> TrunkComparison:
    """Compares a recorded trunk with the trunk in use.

    The comparison covers everything that affects a model's outputs at inference. Resumed training runs compare more,
    see ``train.record.trunk_inputs``.

    Args:
      recorded: ``Trunk.identity()`` at training time, as recorded in a manifest or a workdir. Records of earlier
        versions lack ``architecture`` and ``tokenizer``, or describe the tokenizer as those versions loaded it.
      trunk: ``Trunk.identity()`` of the trunk in use. Missing keys are not compared, so ``{"sha256": digest}`` compares
        only the weights. If ``tokenizer`` is None, it is not compared either.

    Returns:
      The differences, and the parts that could not be compared.

    Example:
      >>> before = {"sha256": "ab", "architecture": {"hidden_act": "gelu", "layer_norm_eps": 1e-12}}
      >>> trunk_difference(before, {**before, "architecture": {"hidden_act": "relu", "layer_norm_eps": 1e-12}})
      TrunkComparison(differences=['hidden_act (recorded: gelu, in use: relu)'], unchecked=[])
    """
    differences: list[str] = []
    unchecked: list[str] = []
    if "sha256" in trunk and recorded.get("sha256") != trunk["sha256"]:
        differences.append(f"the weights (SHA-256 recorded: {recorded.get('sha256')}, in use: {trunk['sha256']})")
    if "architecture" in trunk:
        architecture = recorded.get("architecture")
        if architecture is None:
            unchecked.append("the architecture")
            # Earlier versions recorded only this field of the architecture. The digest of the weights covers the sizes.
            architecture = {"model_type": recorded["family"]} if "family" in recorded else {}
        for field, value in trunk["architecture"].items():
            if field in _TRAINING_FIELDS:
                continue
            if field in architecture and architecture[field] != value:
                differences.append(f"{field} (recorded: {architecture[field]}, in use: {value})")
            elif field not in architecture and "the architecture" not in unchecked:
                unchecked.append(field)
    if trunk.get("tokenizer") is not None:
        tokenizer = recorded.get("tokenizer")
        if tokenizer is None:
            unchecked.append("the tokenizer")
        else:
            former = _former_digests(recorded, trunk)
            for part, digest in trunk["tokenizer"].items():
                if part not in tokenizer:
                    # Nearly all trunks have the default settings, so a store without them is not worth a warning.
                    unchecked += [] if part == "settings" else [_tokenizer_part(part)]
                elif tokenizer[part] != digest and former.get(part) in (tokenizer[part], digest):
                    unchecked.append(f"{_tokenizer_part(part)} as afjax reads it now")
                elif tokenizer[part] != digest:
                    differences.append(_tokenizer_part(part))
    return TrunkComparison(differences, unchecked)


def _former_digests(recorded: Mapping[str, Any], trunk: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns ``former_tokenizer`` if exactly one of the two records has it.

    If both have it, their current digests can be compared.
    """
    records = [values["former_tokenizer"] for values in (recorded, trunk) if "former_tokenizer" in values]
    return records[0] if len(records) == 1 else {}


def _tokenizer_part(part: str) -> str:
    return f"the tokenizer's {part.replace('_', ' ')}"
