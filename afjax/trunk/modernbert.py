"""ModernBERT (Warner 2024), whose layers normalize their inputs.

The encoder has rotary positions, local attention in most layers, and gated feed-forward networks
(:mod:`afjax.trunk.pre_norm_layer`). It has no token types and no pooler.
"""

from collections.abc import Mapping
from typing import Any

from afjax.errors import UserError
from afjax.trunk import bert
from afjax.trunk.family import EncoderFamily, WeightNames, dense_weights, norm_weights, table_weights

_EVERY, _THETA, _LOCAL_THETA = "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"
# The names of the two kinds of layers in the config.json of transformers 5.
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _plain_config(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Converts a config.json of transformers 5 to the fields of transformers 4.

    Published encoders already have the fields of transformers 4. For these encoders, only a null ``local_rope_theta``
    is replaced.

    Raises:
      UserError: The layers do not alternate regularly, ``rope_parameters`` is malformed, or the rotary positions are
        scaled.
    """
    plain = dict(values)
    if values.get("layer_types") is not None:
        plain[_EVERY] = _global_every(values["layer_types"], values.get("num_hidden_layers"), where)
    if values.get("rope_parameters") is not None:
        for field, kind in ((_THETA, _GLOBAL), (_LOCAL_THETA, _LOCAL)):
            settings = _rotary_settings(values["rope_parameters"], kind, where)
            plain |= {field: settings["rope_theta"]} if "rope_theta" in settings else {}
    # transformers 5 reads this field, the number of tokens on each side, in place of local_attention.
    if (window := values.get("sliding_window")) is not None:
        if type(window) is not int:
            raise UserError(f"{where}: sliding_window is {window!r}; it must be a whole number of tokens.")
        plain["local_attention"] = 2 * window
    # A null base means that layers with local attention use the base of the other layers.
    if plain.get(_LOCAL_THETA, 0) is None:
        plain[_LOCAL_THETA] = plain.get(_THETA, FAMILY.defaults["rotary_theta"])
    return plain


def _global_every(kinds: Any, num_layers: Any, where: str) -> int:
    """Computes ``TrunkConfig.global_every`` from the kind of each layer."""
    if isinstance(kinds, list) and kinds and len(kinds) == num_layers and set(map(str, kinds)) <= {_GLOBAL, _LOCAL}:
        every = kinds.index(_GLOBAL, 1) if _GLOBAL in kinds[1:] else len(kinds)
        if kinds == [_GLOBAL if index % every == 0 else _LOCAL for index in range(len(kinds))]:
            return every
    raise UserError(
        f"{where}: layer_types must list {num_layers} layers: {_GLOBAL} for the first layer and every n-th layer after "
        f"it, and {_LOCAL} for all other layers. afjax does not support other patterns."
    )


def _rotary_settings(rotary: Any, kind: str, where: str) -> Mapping[str, Any]:
    """Returns the settings of the rotary positions in one kind of layers."""
    settings = (rotary.get(kind) or {}) if isinstance(rotary, Mapping) else None
    if not isinstance(settings, Mapping) or not set(rotary) <= {_GLOBAL, _LOCAL}:
        raise UserError(f"{where}: rope_parameters must map {_GLOBAL} and {_LOCAL} to objects.")
    # Older files call this setting "type".
    scaling = settings.get("rope_type", settings.get("type", "default"))
    if scaling != "default":
        raise UserError(
            f'{where}: in rope_parameters, the rope_type of {kind} is "{scaling}"; afjax only supports "default", '
            "which has no scaling."
        )
    return settings


FAMILY = EncoderFamily(
    name="modernbert",
    config_names={
        **bert.CONFIG_NAMES,
        "layer_norm_epsilon": "norm_eps",
        # ModernBERT's layers apply this dropout to the feed-forward network's inner activations.
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "global_every": _EVERY,
        "window": "local_attention",
        "rotary_theta": _THETA,
        "local_rotary_theta": _LOCAL_THETA,
        "attention_bias": "attention_bias",
        "ffn_bias": "mlp_bias",
        "norm_bias": "norm_bias",
        "activation": "hidden_activation",
    },
    defaults={
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "global_every": 3,
        "window": 128,
        "rotary_theta": 160_000.0,
        "local_rotary_theta": 10_000.0,
        "attention_bias": False,
        "ffn_bias": False,
        "norm_bias": False,
    },
    required={"rope_scaling": None},
    plain_config=_plain_config,
    weight_names=WeightNames(
        prefix="model",
        embeddings={
            **table_weights("embeddings.tok_embeddings", "embeddings/word"),
            **norm_weights("embeddings.norm", "embeddings/norm", bias_if_set="norm_bias"),
            **norm_weights("final_norm", "norm", bias_if_set="norm_bias"),
        },
        layer="layers",
        layers={
            **norm_weights("attn_norm", "attention/norm", bias_if_set="norm_bias", in_first_layer=False),
            **dense_weights(
                "attn.Wqkv", "attention/query", "attention/key", "attention/value", bias_if_set="attention_bias"
            ),
            **dense_weights("attn.Wo", "attention/output", bias_if_set="attention_bias"),
            **norm_weights("mlp_norm", "ffn/norm", bias_if_set="norm_bias"),
            **dense_weights("mlp.Wi", "ffn/intermediate", bias_if_set="ffn_bias"),
            **dense_weights("mlp.Wo", "ffn/output", bias_if_set="ffn_bias"),
        },
    ),
    default_pad_id=50283,
    first_position=bert.first_position,
    position_embeddings=None,
    layer="pre_norm",
    pooling_field="classifier_pooling",
)
