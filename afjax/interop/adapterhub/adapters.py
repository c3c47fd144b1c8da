"""AdapterHub's bottleneck adapters: the table between their settings and tensors and ours.

A layer's module has ``adapter_down.0`` and ``adapter_up`` (a linear layer each), and where it has LayerNorms of its own
``adapter_norm_before`` and ``adapter_norm_after``. The former is saved a second time, as ``adapter_down.0``, and the
linear layer is then ``adapter_down.1``.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from afjax.architecture import Activation, AdapterConfig, LayerNormPlace, Position
from afjax.dataclass_dicts import from_dict, to_dict
from afjax.errors import UserError
from afjax.interop.adapterhub.files import OWN, SUBLAYERS, Part, module_tensors, shortened, stacked
from afjax.model.adapters import adapter_layers
from afjax.model.encoder import TrunkConfig
from afjax.trees import Tree, unflatten

# What the modules are called, today and (task and language adapters) in 2020.
_MODULES = (
    "adapters",
    "layer_text_task_adapters",
    "layer_text_lang_adapters",
    "attention_text_task_adapters",
    "attention_text_lang_adapters",
)
_INVERTIBLE = ("invertible_adapters", "invertible_lang_adapters")

# The library's defaults of the settings an adapter's function depends on.
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
# What afjax has no counterpart of; only these values pass.
_ABSENT: Mapping[str, Any] = {"use_gating": False, "is_parallel": False, "phm_layer": False}
# Without effect on an encoder that is not trained, or read elsewhere.
_IDLE = (
    "init_weights_seed",
    "cross_adapter",
    "dropout",
    "stochastic_depth",
    "inv_adapter",
    "inv_adapter_reduction_factor",
    "invertible_adapter",
    "phm_dim",
    "factorized_phm_W",
    "shared_W_phm",
    "shared_phm_rule",
    "factorized_phm_rule",
    "phm_c_init",
    "phm_init_range",
    "learn_phm",
    "hypercomplex_nonlinearity",
    "phm_rank",
    "phm_bias",
)
_TO_IDLE: Mapping[str, Any] = {
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

# Configs that files give by name: what each differs in from the defaults.
_NAMED: Mapping[str, Mapping[str, Any]] = {
    name: settings
    for names, settings in (
        (
            ("pfeiffer", "seq_bn"),
            {
                "mh_adapter": False,
                "output_adapter": True,
                "reduction_factor": 16,
                "non_linearity": "relu",
                "original_ln_before": True,
            },
        ),
        (
            ("houlsby", "double_seq_bn"),
            {"mh_adapter": True, "output_adapter": True, "reduction_factor": 16, "non_linearity": "swish"},
        ),
    )
    for name in names
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
# The first name of each counts.
TO_ACTIVATIONS: Mapping[str, str] = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
# Files without a version are of 2020, when these meant others.
_RENAMED_ACTIVATIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}
_INITS: Mapping[str, tuple[Literal["normal", "truncated_normal"], float]] = {
    "bert": ("normal", 0.02),
    "houlsby": ("truncated_normal", 0.01),
}


def read_adapter(part: Part, trunk: TrunkConfig) -> tuple[AdapterConfig, Tree, list[str]]:
    """An adapter's architecture, its tree (float32), and what a user should know of it.

    Raises:
      UserError: Settings that afjax adapters do not have, or tensors that do not fit them and the trunk.
    """
    settings = _settings(part)
    sizes = _bottleneck_sizes(settings, trunk, part.where)
    config = _own_config(part, trunk) or _config(settings, sizes, trunk, part.where)
    d, layers = trunk.hidden_size, adapter_layers(config, trunk.num_layers)
    tensors = {key: tensor for key, tensor in part.tensors.items() if not _is_invertible(key)}
    dropped = len(tensors) < len(part.tensors)
    _check_invertible(part, settings, has_tensors=dropped)
    found = module_tensors(Part(part.envelope, tensors, part.where), _MODULES)
    norm_before, norm_after = (config.new_layer_norm in (place, "both") for place in ("before", "after"))
    if norm_before:
        _drop_twins(found, part.where)
    learnt = {"learned": (1,), "channel": (d,)}.get(settings["scaling"]) if _is_learnt(settings) else None
    wanted: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for slot in config.slots:
        for layer in layers:
            shapes = _shapes(sizes[layer], d, norm_before, norm_after)
            wanted[slot, layer] = shapes if learnt is None else {**shapes, "scaling": learnt}
    # Bottlenecks of several sizes are filled up with units that neither read nor give anything.
    widest = max(sizes[layer] for layer in layers)
    _fill_up(found, wanted, widest)
    arrays = stacked(part, found, wanted)
    leaves = {}
    for slot in config.slots:
        for path, leaf in _table(norm_before, norm_after).items():
            array = arrays[slot, leaf]
            leaves[f"{slot}/{path}"] = array.swapaxes(1, 2) if path.endswith("kernel") else array
        if learnt is not None:
            factor = arrays[slot, "scaling"]  # [layers, 1 or d]
            leaves[f"{slot}/up/kernel"] = leaves[f"{slot}/up/kernel"] * factor[:, None]
            leaves[f"{slot}/up/bias"] = leaves[f"{slot}/up/bias"] * factor
    tree = unflatten({path: np.ascontiguousarray(leaf) for path, leaf in leaves.items()})
    notes = _notes(settings, sizes, layers)
    return (
        config,
        tree,
        [*notes, "its invertible adapter, which task adapters do not use, is left out"] if dropped else notes,
    )


def write_adapter(
    config: AdapterConfig, tree: Tree, name: str, *, prefix: str, hidden_size: int, num_layers: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """An adapter's settings and tensors in the library's words.

    Raises:
      UserError: The library has no such adapters.
    """
    settings = adapter_settings(config, name, hidden_size=hidden_size, num_layers=num_layers)
    norm_before, norm_after = (config.new_layer_norm in (place, "both") for place in ("before", "after"))
    tensors = {}
    for slot in config.slots:
        for place, layer in enumerate(adapter_layers(config, num_layers)):
            module = f"{prefix}.encoder.layer.{layer}.{SUBLAYERS[slot]}.adapters.{name}"
            for path, leaf in _table(norm_before, norm_after).items():
                owner, kind = path.split("/")
                tensors[f"{module}.{leaf}"] = np.asarray(tree[slot][owner][kind])[place].T
            if norm_before:
                for kind in ("weight", "bias"):
                    tensors[f"{module}.adapter_down.0.{kind}"] = tensors[f"{module}.adapter_norm_before.{kind}"]
    return settings, tensors


def adapter_settings(config: AdapterConfig, name: str, *, hidden_size: int, num_layers: int) -> dict[str, Any]:
    """An adapter's settings in the library's words.

    Raises:
      UserError: The library has no such adapters.
    """
    if config.layer_norms:
        raise UserError(
            f'The adapter "{name}" carries trained LayerNorms of the trunk (adapter.layer_norms), which AdapterHub\'s '
            "adapters do not have; one trained with adapter.layer_norms=False can be exported."
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
        "residual_before_ln": {ours: theirs for theirs, ours in _RESIDUALS.items()}[config.residual_from],
        "adapter_residual_before_ln": config.residual_before_new_layer_norm,
        "leave_out": [layer for layer in range(num_layers) if layer not in layers],
        **_ABSENT,
        **_TO_IDLE,
    }


def _settings(part: Part) -> dict[str, Any]:
    """A part's settings with the library's defaults, refusing what afjax adapters cannot do."""
    given = part.envelope.get("config")
    if isinstance(given, str):
        if given not in _NAMED:
            raise UserError(f'{part.where} has the config "{given}"; afjax knows {", ".join(_NAMED)} by name.')
        given = _NAMED[given]
    if not isinstance(given, Mapping):
        raise UserError(f"{part.where} has no config of an adapter; fetch it again.")
    if given.get("architecture"):
        raise UserError(
            f'{part.where} is of the architecture "{given["architecture"]}"; afjax takes bottleneck adapters.'
        )
    for setting, value in _ABSENT.items():
        if (given.get(setting) or False) != value:
            raise UserError(f"{part.where} has {setting}={given[setting]}; bottlenecks of afjax have no such thing.")
    known = {*_NEEDED, *_DEFAULTS, *_ABSENT, *_IDLE, "architecture"}
    unknown = [str(setting) for setting, value in given.items() if setting not in known and value]
    if unknown:
        raise UserError(f"{part.where} has settings that afjax does not know: {shortened(unknown)}.")
    missing = [setting for setting in _NEEDED if setting not in given]
    if missing:
        raise UserError(f"{part.where} lacks the settings {', '.join(missing)}; fetch it again.")
    settings = {**_DEFAULTS, **given}
    activation = str(settings["non_linearity"]).lower()
    if "version" not in part.envelope:
        activation = _RENAMED_ACTIVATIONS.get(activation, activation)
    if activation not in ACTIVATIONS:
        raise UserError(f'{part.where} has the activation "{activation}"; afjax has {", ".join(ACTIVATIONS)}.')
    settings["non_linearity"] = activation
    left_out = settings["leave_out"]
    if left_out is not None and not (isinstance(left_out, list) and all(type(layer) is int for layer in left_out)):
        raise UserError(f"{part.where} has leave_out={left_out!r}; it should list layers by their numbers.")
    return settings


def _config(settings: Mapping[str, Any], sizes: Mapping[int, int], trunk: TrunkConfig, where: str) -> AdapterConfig:
    position = (bool(settings["mh_adapter"]), bool(settings["output_adapter"]))
    if position not in _POSITIONS:
        raise UserError(f"{where} has neither mh_adapter nor output_adapter, so it is no adapter.")
    residual, factor = settings["residual_before_ln"], settings["reduction_factor"]
    if residual not in tuple(_RESIDUALS):
        raise UserError(f'{where} has residual_before_ln={residual!r}; it can be true, false or "post_add".')
    if residual == "post_add" and not settings["original_ln_before"]:
        raise UserError(f'{where} has residual_before_ln="post_add" without original_ln_before, which adds nothing.')
    layers = tuple(layer for layer in range(trunk.num_layers) if layer not in (settings["leave_out"] or ()))
    if not layers:
        raise UserError(f"{where} leaves out every layer of the trunk ({trunk.num_layers} layers); give its trunk.")
    init, init_scale = _INITS.get(str(settings["init_weights"]), _INITS["bert"])
    scaling = settings["scaling"]
    if not _is_learnt(settings) and (isinstance(scaling, bool) or not isinstance(scaling, int | float)):
        raise UserError(f'{where} has scaling={scaling!r}; it can be a number, "learned" or "channel".')
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
        scaling=1.0 if _is_learnt(settings) else float(scaling),
        layers=layers if len(layers) < trunk.num_layers else None,
    )


def _own_config(part: Part, trunk: TrunkConfig) -> AdapterConfig | None:
    """The architecture as afjax itself wrote it, which has more than the format can say."""
    if not part.own:
        return None
    config = from_dict(AdapterConfig, part.own.get("config", {}), f"{part.where}: {OWN}.config")
    written = adapter_settings(config, part.name, hidden_size=trunk.hidden_size, num_layers=trunk.num_layers)
    if written != part.envelope["config"]:
        changed = [key for key in written if written[key] != part.envelope["config"].get(key)]
        raise UserError(
            f"{part.where}: config and {OWN}.config differ in {shortened(changed) or 'unknown settings'}; "
            f'remove "{OWN}" where config is right.'
        )
    return config


def own_adapter(config: AdapterConfig) -> dict[str, Any]:
    """What afjax writes along with an adapter, for :func:`read_adapter`."""
    return {"config": to_dict(config)}


def _is_learnt(settings: Mapping[str, Any]) -> bool:
    return settings["scaling"] in ("learned", "channel")


def _bottleneck_sizes(settings: Mapping[str, Any], trunk: TrunkConfig, where: str) -> dict[int, int]:
    """Each layer's bottleneck size."""
    given, left_out = settings["reduction_factor"], settings["leave_out"] or ()
    sizes = {}
    for layer in range(trunk.num_layers):
        factor = given
        if isinstance(given, Mapping):
            factor = given.get(str(layer), given.get("default"))
            if factor is None and layer in left_out:
                continue
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1e-9 < factor < 1e9:
            raise UserError(f"{where} has reduction_factor={given!r}, which says no size for layer {layer}.")
        sizes[layer] = max(1, int(trunk.hidden_size // factor))
    return sizes


def _reduction_factor(config: AdapterConfig, hidden_size: int) -> float:
    """A factor that gives the bottleneck's size, as the library rounds it."""
    if config.size is None:
        return config.reduction_factor
    factor = hidden_size / config.size
    # The quotient may be rounded up, and would then divide to one unit less.
    while int(hidden_size // factor) < config.size:
        factor = math.nextafter(factor, 0.0)
    return factor


def _table(norm_before: bool, norm_after: bool) -> dict[str, str]:
    """Our path in a slot: the rest of their key."""
    table: dict[str, str] = {}
    modules = {"down": f"adapter_down.{int(norm_before)}", "up": "adapter_up"}
    for ours, theirs in modules.items():
        table |= {f"{ours}/kernel": f"{theirs}.weight", f"{ours}/bias": f"{theirs}.bias"}
    for place, there in (("before", norm_before), ("after", norm_after)):
        if there:
            theirs = f"adapter_norm_{place}"
            table |= {f"norm_{place}/scale": f"{theirs}.weight", f"norm_{place}/bias": f"{theirs}.bias"}
    return table


def _shapes(size: int, hidden_size: int, norm_before: bool, norm_after: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "down/kernel": (size, hidden_size),
        "down/bias": (size,),
        "up/kernel": (hidden_size, size),
    }
    return {leaf: shapes.get(path, (hidden_size,)) for path, leaf in _table(norm_before, norm_after).items()}


def _drop_twins(found: Mapping[tuple[str, int], dict[str, np.ndarray]], where: str) -> None:
    """Takes out the second copies of LayerNorms."""
    for (slot, layer), tensors in found.items():
        for kind in ("weight", "bias"):
            twin, norm = tensors.pop(f"adapter_down.0.{kind}", None), tensors.get(f"adapter_norm_before.{kind}")
            if twin is not None and norm is not None and not np.array_equal(twin, norm):
                raise UserError(
                    f"{where}: the weights beside it have two LayerNorms in front of the adapter in layer {layer} "
                    f"{SUBLAYERS[slot]}, adapter_norm_before and adapter_down.0, which differ; fetch them again."
                )


def _fill_up(
    found: Mapping[tuple[str, int], dict[str, np.ndarray]],
    wanted: Mapping[tuple[str, int], dict[str, tuple[int, ...]]],
    widest: int,
) -> None:
    """Fills bottlenecks of the right size up with zeros to the widest, in place."""
    for place, shapes in wanted.items():
        for leaf, shape in shapes.items():
            # Of the linear layers only: the down-projection's rows and bias, the up-projection's columns.
            axis = {"adapter_down": 0, "adapter_up": 1}.get(leaf.partition(".")[0])
            tensor = found.get(place, {}).get(leaf)
            if axis is None or axis >= len(shape) or tensor is None or tensor.shape != shape or shape[axis] == widest:
                continue
            filling = [(0, widest - size if number == axis else 0) for number, size in enumerate(shape)]
            found[place][leaf] = np.pad(tensor, filling)
            shapes[leaf] = found[place][leaf].shape


def _is_invertible(key: str) -> bool:
    return any(f"{module}." in key for module in _INVERTIBLE)


def _check_invertible(part: Part, settings: Mapping[str, Any], *, has_tensors: bool) -> None:
    """Refuses invertible adapters; the library of 2020 never used those that task adapters name."""
    declared = settings.get("inv_adapter") or settings.get("invertible_adapter")
    if (has_tensors or declared) and part.envelope.get("type") != "text_task":
        raise UserError(
            f"{part.where} has an invertible adapter behind the embeddings (inv_adapter), as language adapters do; "
            "afjax has none."
        )


def _notes(settings: Mapping[str, Any], sizes: Mapping[int, int], layers: tuple[int, ...]) -> list[str]:
    notes = []
    for setting in ("dropout", "stochastic_depth"):
        if settings.get(setting):
            notes.append(f"its {setting} of {settings[setting]}, which acts in training alone, is left out")
    if _is_learnt(settings):
        notes.append("its learnt scaling is multiplied into the up-projection")
    if len({sizes[layer] for layer in layers}) > 1:
        notes.append("its layers have bottlenecks of several sizes, filled up with zeros to the widest")
    return notes
