"""Converts bottleneck adapter settings between AdapterHub's format and afjax's."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import AdapterConfig, LayerNormPlace, Position
from afjax.config.from_dict import from_dict
from afjax.config.values import Activation
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.interop.adapterhub.files import OWN, Part
from afjax.trunk.config import TrunkConfig

# The library's defaults for the settings that change an adapter's output.
_DEFAULTS: Mapping[str, Any] = {
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "init_weights": "bert",
    "scaling": 1.0,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "leave_out": [],
}
_NEEDED = ("mh_adapter", "output_adapter", "reduction_factor", "non_linearity")
# Settings for features that afjax does not support, each with the only value that is accepted.
_ABSENT: Mapping[str, Any] = {"use_gating": False, "is_parallel": False, "phm_layer": False}
# Settings that have no effect at inference or are handled elsewhere.
_IDLE: Mapping[str, Any] = {
    "init_weights_seed": None,
    "cross_adapter": False,
    "dropout": 0.0,
    "stochastic_depth": 0.0,
    "inv_adapter": None,
    "inv_adapter_reduction_factor": None,
    "phm_dim": 4,
    "factorized_phm_W": True,
    "shared_W_phm": False,
    "shared_phm_rule": True,
    "factorized_phm_rule": False,
    "phm_c_init": "normal",
    "phm_init_range": 0.0001,
    "learn_phm": True,
    "hypercomplex_nonlinearity": "glorot-uniform",
    "phm_rank": 1,
    "phm_bias": True,
}
_PFEIFFER = {
    "mh_adapter": False,
    "output_adapter": True,
    "reduction_factor": 16,
    "non_linearity": "relu",
    "original_ln_before": True,
}
_HOULSBY = {"mh_adapter": True, "output_adapter": True, "reduction_factor": 16, "non_linearity": "swish"}
# Configs that a file can refer to by name. Settings equal to the defaults are omitted.
_NAMED: Mapping[str, Mapping[str, Any]] = {
    "pfeiffer": _PFEIFFER,
    "seq_bn": _PFEIFFER,
    "houlsby": _HOULSBY,
    "double_seq_bn": _HOULSBY,
}
_POSITIONS: Mapping[tuple[bool, bool], Position] = {
    (True, True): "both",
    (True, False): "attention",
    (False, True): "ffn",
}
_PLACES: Mapping[tuple[bool, bool], LayerNormPlace] = {
    (True, True): "both",
    (True, False): "before",
    (False, True): "after",
    (False, False): "none",
}
_RESIDUALS: Mapping[Any, Literal["sublayer", "sum", "input"]] = {True: "sublayer", "post_add": "sum", False: "input"}
ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "leakyrelu": "leaky_relu",
    "swish": "swish",
    "silu": "swish",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "tanh": "tanh",
}
# An activation with several names is exported under the first one.
TO_ACTIVATIONS: Mapping[str, str] = {name: library_name for library_name, name in reversed(list(ACTIVATIONS.items()))}
# Files from 2020 have no version. At that time, these names meant different activations.
_RENAMED_ACTIVATIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}
_INITS: Mapping[str, tuple[Literal["normal", "truncated_normal"], float]] = {
    "bert": ("normal", 0.02),
    "houlsby": ("truncated_normal", 0.01),
}


def read_settings(part: Part) -> dict[str, Any]:
    """Validates an adapter's settings and fills in the library's defaults.

    Raises:
      UserError: A setting is missing, invalid, unknown or not supported by afjax.
    """
    given = _given_settings(part)
    if given.get("architecture"):
        raise UserError(
            f'{part.where} has the architecture "{given["architecture"]}"; only bottleneck adapters can be imported.'
        )
    for setting, value in _ABSENT.items():
        if (given.get(setting) or False) != value:
            raise UserError(
                f"{part.where} has {setting}={given[setting]}, which afjax's bottleneck adapters do not support."
            )
    known_settings = {*_NEEDED, *_DEFAULTS, *_ABSENT, *_IDLE, "invertible_adapter", "architecture"}
    unknown = [str(setting) for setting, value in given.items() if setting not in known_settings and value]
    if unknown:
        raise UserError(f"{part.where} has unknown settings: {first_of(unknown)}.")
    missing = [setting for setting in _NEEDED if setting not in given]
    if missing:
        raise UserError(f"{part.where} lacks the settings {', '.join(missing)}; download it again.")
    settings = {**_DEFAULTS, **given}
    activation = str(settings["non_linearity"]).lower()
    if "version" not in part.envelope:
        activation = _RENAMED_ACTIVATIONS.get(activation, activation)
    if activation not in ACTIVATIONS:
        raise UserError(f'{part.where} has the activation "{activation}"; afjax supports {", ".join(ACTIVATIONS)}.')
    settings["non_linearity"] = activation
    left_out = settings["leave_out"]
    if left_out is not None and not (isinstance(left_out, list) and all(type(layer) is int for layer in left_out)):
        raise UserError(f"{part.where} has leave_out={left_out!r}; it must be a list of layer indices.")
    return settings


def read_config(settings: Mapping[str, Any], sizes: Mapping[int, int], trunk: TrunkConfig, where: str) -> AdapterConfig:
    """Converts the library's settings to an adapter config.

    ``sizes`` maps layers to bottleneck sizes.
    """
    position = (bool(settings["mh_adapter"]), bool(settings["output_adapter"]))
    if position not in _POSITIONS:
        raise UserError(f"{where} enables neither mh_adapter nor output_adapter, so there is no adapter in any layer.")
    residual, factor = settings["residual_before_ln"], settings["reduction_factor"]
    if residual not in tuple(_RESIDUALS):
        raise UserError(f'{where} has residual_before_ln={residual!r}; it must be true, false or "post_add".')
    if residual == "post_add" and not settings["original_ln_before"]:
        raise UserError(
            f'{where} has residual_before_ln="post_add" without original_ln_before, so no residual would be added.'
        )
    layers = tuple(layer for layer in range(trunk.num_layers) if layer not in (settings["leave_out"] or ()))
    if not layers:
        raise UserError(
            f"{where} leaves out every layer of the trunk ({trunk.num_layers} layers); use the trunk that it was "
            "trained on."
        )
    init, init_scale = _INITS.get(str(settings["init_weights"]), _INITS["bert"])
    scaling = settings["scaling"]
    if not is_learned(settings) and (isinstance(scaling, bool) or not isinstance(scaling, int | float)):
        raise UserError(f'{where} has scaling={scaling!r}; it must be a number, "learned" or "channel".')
    one_factor = not isinstance(factor, Mapping)
    return AdapterConfig(
        position=_POSITIONS[position],
        pretrained_layer_norm=_PLACES[bool(settings["original_ln_before"]), bool(settings["original_ln_after"])],
        new_layer_norm=_PLACES[bool(settings["ln_before"]), bool(settings["ln_after"])],
        residual_from=_RESIDUALS[residual],
        residual_before_new_layer_norm=bool(settings["adapter_residual_before_ln"]),
        reduction_factor=float(factor) if one_factor else 16.0,
        size=None if one_factor else max(sizes[layer] for layer in layers),
        activation=ACTIVATIONS[settings["non_linearity"]],
        init=init,
        init_scale=init_scale,
        scaling=1.0 if is_learned(settings) else float(scaling),
        layers=layers if len(layers) < trunk.num_layers else None,
    )


def _given_settings(part: Part) -> Mapping[str, Any]:
    """Returns the settings in an adapter's file, and looks up named configs."""
    given = part.envelope.get("config")
    if isinstance(given, str):
        if given not in _NAMED:
            raise UserError(f'{part.where} has the config "{given}"; the supported names are {", ".join(_NAMED)}.')
        given = _NAMED[given]
    if not isinstance(given, Mapping):
        raise UserError(f"{part.where} has no adapter config; download it again.")
    return given


def own_config(part: Part, trunk: TrunkConfig) -> AdapterConfig | None:
    """Loads the adapter config that afjax stored in the file.

    Returns None if another program wrote the file. The stored config preserves details that the library's format cannot
    express.

    Raises:
      UserError: The stored config contradicts the library's settings in the file.
    """
    if not part.own:
        return None
    config = from_dict(AdapterConfig, part.own.get("config", {}), f"{part.where}: {OWN}.config")
    written = adapter_settings(config, part.name, hidden_size=trunk.hidden_size, num_layers=trunk.num_layers)
    given = _given_settings(part)
    if written != given:
        changed = [key for key in written if written[key] != given.get(key)]
        raise UserError(
            f"{part.where}: config and {OWN}.config differ in {first_of(changed) or 'unknown settings'}; "
            f'remove "{OWN}" if config is correct.'
        )
    return config


def adapter_settings(config: AdapterConfig, name: str, *, hidden_size: int, num_layers: int) -> dict[str, Any]:
    """Converts an adapter config to the library's settings.

    Raises:
      UserError: The library does not support the architecture.
    """
    if config.layer_norms:
        raise UserError(
            f'The adapter "{name}" includes trained copies of the trunk\'s LayerNorms (adapter.layer_norms), which '
            "AdapterHub does not support; train it with adapter.layer_norms=False to export it."
        )
    layers = adapter_layers(config, num_layers)
    return {
        "mh_adapter": "attention" in config.slots,
        "output_adapter": "ffn" in config.slots,
        "reduction_factor": _reduction_factor(config, hidden_size),
        "non_linearity": TO_ACTIVATIONS[config.activation],
        "original_ln_before": config.pretrained_layer_norm in ("before", "both"),
        "original_ln_after": config.pretrained_layer_norm in ("after", "both"),
        "ln_before": config.new_layer_norm in ("before", "both"),
        "ln_after": config.new_layer_norm in ("after", "both"),
        "init_weights": "houlsby" if config.init == "truncated_normal" else "bert",
        "scaling": config.scaling,
        "residual_before_ln": {value: key for key, value in _RESIDUALS.items()}[config.residual_from],
        "adapter_residual_before_ln": config.residual_before_new_layer_norm,
        "leave_out": [layer for layer in range(num_layers) if layer not in layers],
        **_ABSENT,
        **_IDLE,
    }


def bottleneck_sizes(settings: Mapping[str, Any], trunk: TrunkConfig, where: str) -> dict[int, int]:
    """Computes each layer's bottleneck size from its reduction factor.

    Left-out layers without a reduction factor are skipped.

    Raises:
      UserError: A layer has no valid reduction factor.
    """
    given, left_out = settings["reduction_factor"], settings["leave_out"] or ()
    sizes = {}
    for layer in range(trunk.num_layers):
        factor = given
        if isinstance(given, Mapping):
            factor = given.get(str(layer), given.get("default"))
            if factor is None and layer in left_out:
                continue
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1e-9 < factor < 1e9:
            raise UserError(
                f"{where} has reduction_factor={given!r}, which does not define a bottleneck size for layer {layer}."
            )
        sizes[layer] = max(1, int(trunk.hidden_size // factor))
    return sizes


def is_learned(settings: Mapping[str, Any]) -> bool:
    """Returns whether the adapter output's scaling factor is a trained parameter."""
    return settings["scaling"] in ("learned", "channel")


def _reduction_factor(config: AdapterConfig, hidden_size: int) -> float:
    """Finds a reduction factor that gives the adapter's exact size in the library."""
    if config.size is None:
        return config.reduction_factor
    factor = hidden_size / config.size
    # If the quotient was rounded up, floor division by it gives one unit less.
    while int(hidden_size // factor) < config.size:
        factor = math.nextafter(factor, 0.0)
    return factor
