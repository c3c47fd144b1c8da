"""Parses PEFT's ``adapter_config.json``, and finds the modules with LoRA."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from afjax.config.from_dict import check_value
from afjax.config.ranges import NonNegativeInt, Proportion, Range
from afjax.errors import UserError
from afjax.interop.model_heads import ModelClasses
from afjax.interop.peft.families import POOLER, TASK_TYPES, dense_places, encoder_modules, module_layers
from afjax.interop.peft.patterns import matching
from afjax.storage.json_files import short_json
from afjax.trunk.config import TrunkConfig

ALL_LINEAR = "all-linear"
# Settings for features that afjax does not have. They must be off.
_OFF = tuple(
    "use_dora lora_bias use_qalora use_bdlora alora_invocation_tokens arrow_config kasa_config layer_replication "
    "megatron_config monteclora_config target_parameters trainable_token_indices".split()
)
# Settings that do not change what a loaded adapter computes. PEFT turns fan_in_fan_out off for linear layers.
_IDLE = tuple(
    "corda_config ensure_weight_tying eva_config fan_in_fan_out inference_mode loftq_config lora_ga_config "
    "megatron_core peft_version qalora_group_size runtime_config velora_config".split()
)
_READ = tuple(
    "alpha_pattern auto_mapping base_model_name_or_path bias exclude_modules init_lora_weights layers_pattern "
    "layers_to_transform lora_alpha lora_dropout modules_to_save peft_type r rank_pattern revision target_modules "
    "task_type use_rslora".split()
)
# Initializations, besides booleans and null, that do not change the base model's weights. Others, such as PiSSA,
# subtract the initial adapter from the weights every time the adapter is loaded.
_INITS = ("gaussian", "eva", "orthogonal", "mica")
_Rank = Annotated[int, Range(least=1, below=2**31)]
_Alpha = Annotated[float, Range(above=0, below=1e30)]


class Scale(NamedTuple):
    """The rank and scaling of a module's LoRA.

    Attributes:
      rank: The rank.
      alpha: PEFT's alpha, multiplied by the square root of the rank for rank-stabilized LoRA.
      scaling: Scaling factor for LoRA's output, ``alpha / rank``.
    """

    rank: int
    alpha: float
    scaling: float


def scale_of(rank: int, alpha: float, rank_stabilized: bool) -> Scale:
    """Computes a module's scaling from its rank and PEFT's alpha."""
    alpha = alpha * math.sqrt(rank) if rank_stabilized else alpha
    return Scale(rank, alpha, alpha / rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeftSettings:
    """The settings of a LoRA adapter.

    Attributes:
      where: Path of the file, for error messages.
      rank, alpha, rank_stabilized, dropout: PEFT's r, lora_alpha, use_rslora and lora_dropout.
      rank_pattern, alpha_pattern: Ranks and alphas that override the defaults, by regular expressions for module names.
      target_modules, exclude_modules: Module names, or a regular expression.
      layers_to_transform: The layers with LoRA, or None for all.
      layers_pattern: Allowed names of the encoder's list of layers. Empty to allow any.
      modules_to_save: Modules whose full weights are in the file.
      base_model: Name of the base model. Empty if unknown.
      revision: Revision of the base model. Empty for the default.
    """

    where: str
    rank: int
    alpha: float
    rank_stabilized: bool
    dropout: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers_to_transform: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    modules_to_save: tuple[str, ...]
    base_model: str
    revision: str


def read_settings(values: Mapping[str, Any], where: str) -> PeftSettings:
    """Parses and validates a LoRA adapter's settings.

    Args:
      values: The contents of ``adapter_config.json``.
      where: Path of the file, for error messages.

    Raises:
      UserError: The adapter is not LoRA, or a setting is invalid, unknown or not supported by afjax.
    """
    kind = values.get("peft_type")
    if kind is None:
        raise UserError(f"{where} has no peft_type, so PEFT did not write it; choose a folder saved by PEFT.")
    if kind != "LORA":
        raise UserError(f"{where} has peft_type={short_json(kind)}; afjax can only import LORA adapters.")
    for setting in _OFF:
        if values.get(setting):
            raise UserError(
                f"{where} has {setting}={short_json(values[setting])}, which afjax's LoRA does not support."
            )
    known = {*_OFF, *_IDLE, *_READ}
    unknown = [f"{setting}={short_json(value)}" for setting, value in values.items() if setting not in known and value]
    if unknown:
        raise UserError(f"{where} has unknown settings: {', '.join(unknown[:6])}.")
    if values.get("bias", "none") != "none":
        raise UserError(
            f"{where} has bias={short_json(values['bias'])}, but afjax's LoRA cannot change the trunk's biases; train "
            'it with bias="none".'
        )
    init = values.get("init_lora_weights")
    if not (init is None or isinstance(init, bool) or str(init).lower() in _INITS):
        raise UserError(
            f"{where} has init_lora_weights={short_json(init)}, which changes the base model's weights when the "
            "adapter is loaded. Convert it to plain LoRA with PEFT: save_pretrained(..., "
            "path_initial_model_for_weight_conversion=...), which needs the adapter from before training."
        )

    def checked(name: str, hint: Any, default: Any = None, *, optional: bool = False) -> Any:
        value = values.get(name, default)
        return check_value(hint, default if optional and value is None else value, f"{where}: {name}")

    layers = values.get("layers_to_transform")
    if layers is None or type(layers) is int:
        layers = [] if layers is None else [layers]
    layers = check_value(tuple[NonNegativeInt, ...], layers, f"{where}: layers_to_transform")
    settings = PeftSettings(
        where=where,
        rank=checked("r", _Rank),
        alpha=checked("lora_alpha", _Alpha),
        rank_stabilized=checked("use_rslora", bool, False),
        dropout=checked("lora_dropout", Proportion, 0.0),
        rank_pattern=checked("rank_pattern", Mapping[str, _Rank], {}, optional=True),
        alpha_pattern=checked("alpha_pattern", Mapping[str, _Alpha], {}, optional=True),
        target_modules=_modules(values.get("target_modules"), f"{where}: target_modules"),
        exclude_modules=_modules(values.get("exclude_modules"), f"{where}: exclude_modules"),
        layers_to_transform=tuple(sorted(set(layers))) or None,
        layers_pattern=_names(values.get("layers_pattern"), f"{where}: layers_pattern"),
        modules_to_save=_names(values.get("modules_to_save"), f"{where}: modules_to_save"),
        base_model=checked("base_model_name_or_path", str, "", optional=True),
        revision=checked("revision", str, "", optional=True),
    )
    if not settings.target_modules:
        raise UserError(f"{where} has no target_modules, so no module has LoRA; download it again.")
    if isinstance(settings.target_modules, str) and settings.layers_to_transform is not None:
        raise UserError(
            f"{where} has both layers_to_transform and a regular expression in target_modules, which PEFT does not "
            "allow; download it again."
        )
    return settings


def read_model_class(values: Mapping[str, Any], where: str, family: ModelClasses) -> str:
    """Parses the base model's class.

    Args:
      values: The contents of ``adapter_config.json``.
      where: Path of the file, for error messages.
      family: The trunk's family.

    Returns:
      The class without the family's prefix, such as ``ForSequenceClassification``, or ``Model`` for a model without a
      head. Empty if unknown.

    Raises:
      UserError: The class belongs to a different family, or the task type is not for encoders.
    """
    kind = values.get("task_type")
    if kind is not None:
        classes = {task_type: name for name, task_type in TASK_TYPES.items()} | {"FEATURE_EXTRACTION": "Model"}
        if not isinstance(kind, str) or kind not in classes:
            raise UserError(f"{where} has task_type={short_json(kind)}; afjax supports {', '.join(classes)}, or none.")
        return classes[kind]
    mapping = values.get("auto_mapping")
    name = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    if name is None:
        return ""
    text: str = check_value(str, name, f"{where}: auto_mapping.base_model_class")
    rest = text.removeprefix(family.classes)
    if rest == text or not (rest == "Model" or rest.startswith("For")):
        raise UserError(
            f"{where} is for a {text}, but the trunk's model classes are {family.classes}Model and "
            f"{family.classes}For...; use the trunk that the adapter was trained on."
        )
    return rest


def read_targets(
    settings: PeftSettings, trunk: TrunkConfig, in_head: Sequence[str], prefix: str, *, with_head: bool
) -> dict[str, Scale]:
    """Finds the modules with LoRA by PEFT's rules.

    Args:
      settings: The settings.
      trunk: The trunk's config.
      in_head: Names of the head's layers that can have LoRA.
      prefix: Name prefix of the encoder's modules: ``bert.``, or empty for a model without a head.
      with_head: Whether the head is imported. Otherwise, LoRA in the head is ignored.

    Returns:
      Each module's rank and scaling, by module name without ``prefix``. The modules are dense layers of the encoder
      and the pooler.

    Raises:
      UserError: A target cannot have LoRA in afjax, no module has LoRA, or a regular expression is invalid or takes too
        long to match.
    """
    where = settings.where
    encoder = [prefix + module for module in encoder_modules(trunk)]
    names = [*encoder, *in_head]
    selected = _selected(settings, names, trunk, prefix)
    selected -= _excluded(settings, names)
    supported = {prefix + module for module in dense_places(trunk)} | {prefix + POOLER}
    if not with_head:
        supported |= set(in_head)
    wrong = [name for name in names if name in selected and name not in supported]
    if wrong:
        raise UserError(
            f"{where} has LoRA in {', '.join(wrong[:6])}; afjax only supports LoRA in the encoder layers' dense layers "
            f"({', '.join(module_layers(trunk.family))}) and the pooler. Train it with these target_modules"
            f"{', or skip the head with --no_head' if with_head and set(wrong) <= set(in_head) else ''}."
        )
    targets = [name for name in encoder if name in selected]
    if not targets:
        raise UserError(
            f"{where}: target_modules {short_json(settings.target_modules)} selects no module of the trunk, a "
            f"{trunk.family} encoder; use the trunk that the adapter was trained on."
        )
    ranks = _by_pattern(settings.rank_pattern, targets, f"{where}: rank_pattern")
    alphas = _by_pattern(settings.alpha_pattern, targets, f"{where}: alpha_pattern")
    return {
        name.removeprefix(prefix): scale_of(
            ranks.get(name, settings.rank), alphas.get(name, settings.alpha), settings.rank_stabilized
        )
        for name in targets
    }


def _selected(settings: PeftSettings, names: Sequence[str], trunk: TrunkConfig, prefix: str) -> set[str]:
    """Returns the module names selected by target_modules and layers_to_transform."""
    where, targets = settings.where, settings.target_modules
    if isinstance(targets, str):
        if targets.lower() != ALL_LINEAR:
            return matching([targets], names, where=f"{where}: target_modules")[0]
        linear = {prefix + module for module in (*dense_places(trunk), POOLER)}
        if trunk.projects_embeddings:
            linear |= {
                prefix + name.removesuffix(".weight")
                for name, weight in trunk.encoder_family.weight_names.projection.items()
                if weight.transposed
            }
        return linear & set(names)
    # As in PEFT, names and layers that match nothing are ignored, so that one list can serve several architectures.
    exact = {name for name in names if name in targets}
    found = {name for name in names if any(name.endswith(f".{target}") for target in targets)}
    if settings.layers_to_transform is not None:
        found &= _in_layers(settings, names, trunk, prefix)
    return exact | found


def _in_layers(settings: PeftSettings, names: Sequence[str], trunk: TrunkConfig, prefix: str) -> set[str]:
    """Returns the names of modules in the layers listed in layers_to_transform."""
    layer_list = prefix + trunk.encoder_family.weight_names.layer
    for pattern in settings.layers_pattern:
        if not pattern.replace(".", "").replace("_", "").isalnum():
            raise UserError(
                f"{settings.where} has layers_pattern={short_json(pattern)}; afjax only supports the plain name of the "
                f'list of layers, such as "{layer_list}", not regular expressions.'
            )
    patterns = settings.layers_pattern
    if patterns and not any(f".{layer_list}".endswith(f".{pattern}") for pattern in patterns):
        return set()
    prefixes = tuple(f"{layer_list}.{layer}." for layer in settings.layers_to_transform or ())
    return {name for name in names if name.startswith(prefixes)}


def _excluded(settings: PeftSettings, names: Sequence[str]) -> set[str]:
    """Returns the names of modules without LoRA.

    They are excluded, or their full weights are in the file.
    """
    where, excluded = settings.where, settings.exclude_modules
    if isinstance(excluded, str):
        found = matching([excluded], names, where=f"{where}: exclude_modules")[0] if excluded else set()
    else:
        found = {name for name in names if any(f".{name}".endswith(f".{module}") for module in excluded)}
    saved = matching(
        settings.modules_to_save, names, where=f"{where}: modules_to_save", before=r"(.*\.)?", after=r"(\..*)?"
    )
    return found.union(*saved)


def _by_pattern(pattern: Mapping[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """Maps each matching name to the value of the first pattern that matches it."""
    found = matching(list(pattern), names, where=where, before=r"(.*\.)?")
    values: dict[str, Any] = {}
    for value, matched in zip(pattern.values(), found, strict=True):
        values = {**dict.fromkeys(matched, value), **values}
    return values


def _names(value: Any, where: str) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) and value else value or ()
    if not isinstance(values, list | tuple) or not all(isinstance(name, str) and name for name in values):
        raise UserError(f"{where} is {short_json(value)}; it must be a list of names, or null.")
    return tuple(dict.fromkeys(values))


def _modules(value: Any, where: str) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else _names(value, where)
