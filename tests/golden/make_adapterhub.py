"""Writes golden outputs of the `adapters` library on tiny models to ``adapterhub_*.npz`` next to this script.

Run this script by hand, in a separate environment, and only when a case is added:

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install torch==2.13.0 adapters==1.3.0
    /tmp/golden/bin/python tests/golden/make_adapterhub.py [FAMILY ...]

Each family has two files, except that families other than `bert` and `roberta` have only the first. All outputs are
float32, computed in evaluation mode for one padded batch of three rows with twelve tokens. State keys and configs match
the library's checkpoints.

`adapterhub_base_<family>.npz` has the trunk and heads that all cases share:
    config                  config.json of the trunk, a string
    state/<torch key>       weights of the trunk
    tokens, types, mask     int32 [3, 12]
    heads/<head>/config     the flex head's config, JSON
    heads/<head>/state/...  its weights
    heads/<head>/logits     [3, labels] without any adapter

`adapterhub_fusion_<family>.npz` has the fusion `a,b,c` of three adapters with reduction factors 2, 4 and 8:
    <case>/config           {"a": BnConfig, "b": BnConfig, "c": BnConfig, "fusion": AdapterFusionConfig}, JSON
    <case>/temperature      the divisor of the scores
    <case>/state/...        weights of the three adapters and the fusion
    <case>/logits           [3, labels]
    <case>/regularization   the library's fusion loss term, including its weight of 0.01, or 0 without a value matrix
    <case>/attention/<layer>/<attention or ffn>    [3, 12, 3], softmax scores over a, b, c

Rerunning the script gives identical arrays. The script checks that every case is within a third of 1e-5 of float64,
that adapters change the logits, that no two cases in a file give the same logits (so that a test fails if two settings
are confused), and that fusion attention is far from uniform.
"""

import itertools
import json
import logging
import sys
from typing import Any

import adapters
import numpy as np
import torch
from adapters.composition import Fuse
from adapters.methods.modeling import BertFusion
from reference import TRUNK, model_inputs, padded_batch, randomize, run_checked, save, state_arrays
from transformers import BertConfig, DebertaV2Config, DistilBertConfig, ElectraConfig, RobertaConfig, XLMRobertaConfig

LIMIT = 1e-5
LAYERS = {**TRUNK, "num_hidden_layers": 2}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
DEBERTA = {
    "layer_norm_eps": 1e-7,
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
FAMILIES = {
    "bert": (adapters.BertAdapterModel, BertConfig, LAYERS),
    "roberta": (adapters.RobertaAdapterModel, RobertaConfig, {**LAYERS, **ROBERTA}),
    "xlm_roberta": (adapters.XLMRobertaAdapterModel, XLMRobertaConfig, {**LAYERS, **ROBERTA}),
    "distilbert": (
        adapters.DistilBertAdapterModel,
        DistilBertConfig,
        {"hidden_dim" if name == "intermediate_size" else name: value for name, value in LAYERS.items()},
    ),
    "electra": (adapters.ElectraAdapterModel, ElectraConfig, {**LAYERS, "embedding_size": 16}),
    "deberta_v2": (adapters.DebertaV2AdapterModel, DebertaV2Config, {**LAYERS, **DEBERTA}),
}
# Families with all cases.
FULL = ("bert", "roberta")
WITHOUT_POOLER = ("distilbert", "electra", "deberta_v2")
HEADS = {
    "two_layers": {"num_labels": 3, "layers": 2},
    "one_layer": {"num_labels": 2, "layers": 1},
    "pooler": {"num_labels": 4, "layers": 1, "use_pooler": True},
    "regression": {"num_labels": 1, "layers": 2},
}
SLOTS = {"mh_adapter": "attention", "output_adapter": "ffn"}

# Each case is a library preset with changes. make_adapterhub_folders.py also uses ADAPTERS.
Case = tuple[type[adapters.BnConfig], dict[str, Any]]
PFEIFFER, HOULSBY = adapters.SeqBnConfig, adapters.DoubleSeqBnConfig
BOTH = {"mh_adapter": True, "output_adapter": True}
ADAPTERS: dict[str, Case] = {
    "pfeiffer": (PFEIFFER, {}),
    "pfeiffer_attention": (PFEIFFER, {"mh_adapter": True, "output_adapter": False}),
    "pfeiffer_both": (PFEIFFER, BOTH),
    "houlsby": (HOULSBY, {}),
    "original_ln_after": (PFEIFFER, {"original_ln_before": False}),
    "original_ln_before": (PFEIFFER, {"original_ln_after": False}),
    "original_ln_before_residual_input": (PFEIFFER, {"original_ln_after": False, "residual_before_ln": False}),
    "original_ln_before_residual_sum": (PFEIFFER, {"original_ln_after": False, "residual_before_ln": "post_add"}),
    "original_ln_none": (PFEIFFER, {"original_ln_before": False, "original_ln_after": False}),
    "residual_input": (PFEIFFER, {"residual_before_ln": False}),
    "residual_sum": (PFEIFFER, {"residual_before_ln": "post_add"}),
    "ln_before": (PFEIFFER, {"ln_before": True}),
    "ln_after": (PFEIFFER, {"ln_after": True}),
    "ln_after_residual_first": (PFEIFFER, {"ln_after": True, "adapter_residual_before_ln": True}),
    "ln_both": (PFEIFFER, {"ln_before": True, "ln_after": True}),
    "houlsby_ln_both": (HOULSBY, {"ln_before": True, "ln_after": True, "adapter_residual_before_ln": True}),
    "leakyrelu": (PFEIFFER, {"non_linearity": "leakyrelu"}),
    "swish": (PFEIFFER, {"non_linearity": "swish"}),
    "gelu": (PFEIFFER, {"non_linearity": "gelu"}),
    "gelu_new": (PFEIFFER, {"non_linearity": "gelu_new"}),
    "tanh": (PFEIFFER, {"non_linearity": "tanh"}),
    "scaling": (PFEIFFER, {"scaling": 2.5}),
    "scaling_ln_after": (PFEIFFER, {"scaling": 2.5, "ln_after": True, "adapter_residual_before_ln": True}),
    "leave_out": (PFEIFFER, {"leave_out": [0]}),
    "one_unit": (PFEIFFER, {"reduction_factor": 64}),
    "everything": (
        PFEIFFER,
        {**BOTH, "ln_before": True, "ln_after": True, "residual_before_ln": "post_add", "scaling": 0.5},
    ),
}
FUSED = {"a": 2, "b": 4, "c": 8}  # The fused adapters and their reduction factors.
# ``{case: (adapter, kind of fusion, temperature)}``.
FUSIONS: dict[str, tuple[Case, str, float]] = {
    "pfeiffer": ((PFEIFFER, {}), "dynamic", 1.0),
    "houlsby": ((HOULSBY, {}), "dynamic", 1.0),
    "static": ((PFEIFFER, {}), "static", 1.0),
    "temperature": ((PFEIFFER, {}), "dynamic", 2.5),
    "ln_before": ((PFEIFFER, {"ln_before": True}), "dynamic", 1.0),
    "scaling_ln_after": ((PFEIFFER, {"scaling": 0.5, "ln_after": True}), "dynamic", 1.0),
    "residual_input": ((PFEIFFER, {"residual_before_ln": False}), "dynamic", 1.0),
    "original_ln_before_residual_sum": (
        (PFEIFFER, {"residual_before_ln": "post_add", "original_ln_after": False}),
        "dynamic",
        1.0,
    ),
}


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("adapters").setLevel(logging.ERROR)  # set_active_adapters warns that nothing is active yet.
    for family in sys.argv[1:] or FAMILIES:
        base = base_arrays(family)
        save(f"adapterhub_base_{family}", base)
        if family not in FULL:
            continue
        arrays = {case: fusion_arrays(family, *spec) for case, spec in FUSIONS.items()}
        logits = {case: arrays[case]["logits"] for case in FUSIONS} | {"none": base["heads/two_layers/logits"]}
        check_distinct(logits)
        save(f"adapterhub_fusion_{family}", {f"{case}/{k}": v for case in FUSIONS for k, v in arrays[case].items()})


def build(family: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Builds the family's model with its heads, and its inputs. Every call gives the same weights."""
    model_class, config_class, sizes = FAMILIES[family]
    model = model_class(config_class(**sizes))
    for head, options in heads_of(family).items():
        model.add_classification_head(head, **options)
    randomize(model, seed=0)
    model.active_head = "two_layers"
    inputs = model_inputs(batch_of(model))
    if not num_types(model):
        del inputs["token_type_ids"]
    return model, inputs


def heads_of(family: str) -> dict[str, dict[str, Any]]:
    """Returns the flex heads for a family's model. A model without a pooler has no head that uses it."""
    return {name: options for name, options in HEADS.items() if name != "pooler" or family not in WITHOUT_POOLER}


def num_types(model: Any) -> int:
    return getattr(model.config, "type_vocab_size", 0)


def batch_of(model: Any) -> dict[str, np.ndarray]:
    return padded_batch(model.config.pad_token_id, num_types(model))


def base_arrays(family: str) -> dict[str, Any]:
    model, inputs = build(family)

    def compute() -> dict[str, np.ndarray]:
        return {f"heads/{head}/logits": model(**inputs, head=head).logits.numpy() for head in heads_of(family)}

    _, config_class, sizes = FAMILIES[family]
    arrays = {"config": config_class(**sizes).to_json_string(), **batch_of(model)}
    arrays |= run_checked(model, compute, LIMIT)
    arrays |= state_arrays(model, f"{model.base_model_prefix}.")
    for head in heads_of(family):
        arrays[f"heads/{head}/config"] = json.dumps(model.heads[head].config)
        arrays |= {f"heads/{head}/{key}": value for key, value in state_arrays(model, f"heads.{head}.").items()}
    return arrays


def fusion_arrays(family: str, case: Case, kind: str, temperature: float) -> dict[str, Any]:
    model, inputs = build(family)
    preset, changes = case
    configs = {name: preset(**changes, reduction_factor=factor) for name, factor in FUSED.items()}
    for name, config in configs.items():
        add_adapter(model, name, config)
    fusion_config = adapters.AdapterFusionConfig.load(kind, temperature=temperature != 1)
    model.add_adapter_fusion(Fuse(*configs), fusion_config)
    model.set_active_adapters(Fuse(*configs))
    fusions = [module for module in model.modules() if isinstance(module, BertFusion)]
    for seed, fusion in enumerate(fusions):
        randomize(fusion, 1000 + seed, scale=0.1)
        if hasattr(fusion, "value"):
            with torch.no_grad():
                fusion.value.weight += torch.eye(model.config.hidden_size)

    def compute() -> dict[str, np.ndarray]:
        for fusion in fusions:
            fusion.T = temperature  # The library lowers its temperature, initially 50, with every call.
        outputs = model(**inputs, output_adapter_fusion_attentions=True)
        attention = {
            f"attention/{layer}/{SLOTS[slot]}": scores
            for layer, slots in outputs.adapter_fusion_attentions["a,b,c"].items()
            for slot, scores in slots.items()
        }
        regularization = model.base_model.get_fusion_regularization_loss()
        regularization = torch.zeros(()) if regularization is None else regularization.detach().to(outputs.logits.dtype)
        return {"logits": outputs.logits.numpy(), "regularization": regularization.numpy(), **attention}

    computed = run_checked(model, compute, LIMIT)
    scores = np.concatenate([computed[name] for name in computed if name.startswith("attention/")])
    largest = scores.max(axis=-1).mean()
    assert 0.5 < largest < 0.95, f"fusion attention is too uniform or too sharp: {largest:.2f}"
    config = {**configs, "fusion": fusion_config}
    return {
        "config": json.dumps({name: part.to_dict() for name, part in config.items()}),
        "temperature": np.float32(temperature),
        **state_arrays(model, ".adapters.", ".adapter_fusion_layer."),
        **computed,
    }


def add_adapter(model: Any, name: str, config: adapters.BnConfig) -> None:
    """Adds an adapter whose weights depend only on its name, layer and slot, not on the rest of its config."""
    model.add_adapter(name, config=config)
    for path, module in model.named_modules():
        if path.endswith(f".adapters.{name}"):
            layer = int(path.split(".layer.")[1].split(".")[0])
            randomize(module, seed=100 * ord(name) + 10 * layer + (".attention" in path), scale=0.3)


def check_distinct(logits: dict[str, np.ndarray]) -> None:
    for (first, one), (second, other) in itertools.combinations(logits.items(), 2):
        difference = np.abs(one - other).max()
        assert difference > 10 * LIMIT, f"cases {first} and {second} differ by only {difference:.1e}"


if __name__ == "__main__":
    main()
