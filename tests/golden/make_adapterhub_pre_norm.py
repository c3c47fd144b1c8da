"""Writes golden outputs of the `adapters` library for ModernBERT, which is a pre-norm model.

The outputs are written to ``adapterhub_modernbert.npz``.

Run this script by hand, in a separate environment, and only when a case is added:

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install torch==2.13.0 adapters==1.3.0
    /tmp/golden/bin/python tests/golden/make_adapterhub_pre_norm.py

The library does not support ModernBERT. This script adds the library's adapters to a ModernBERT as the library does for
its pre-norm models (ViT, mBART, GPT-2, LLaMA): each residual connection is replaced by a call to the library's
``BottleneckLayer`` with the sub-layer's output, the residual, and no LayerNorm. The trunk, the tokens and the mask are
in ``encoder_modernbert.npz``. For each case, ``adapterhub_modernbert.npz`` holds:

    <case>/config               JSON: {"a": BnConfig, ...}, plus {"fusion": AdapterFusionConfig} for a fusion
    <case>/state/...            weights of the adapters and the fusion
    <case>/last_hidden_state    [rows, length, hidden]

Rerunning the script gives identical weights, and outputs that differ only by rounding.
"""

import functools
import json
import logging
from typing import Any

import adapters
import numpy as np
import torch
from adapters.composition import Fuse
from adapters.interface import AdapterModelInterface
from adapters.methods.modeling import BertFusion
from make_encoder import MODELS, MORE_LENGTHS
from reference import model_inputs, padded_batch, randomize, run_checked, save, state_arrays

LIMIT = 1e-4
PFEIFFER, HOULSBY = adapters.SeqBnConfig, adapters.DoubleSeqBnConfig
ADAPTERS: dict[str, tuple[type[adapters.BnConfig], dict[str, Any]]] = {
    "pfeiffer": (PFEIFFER, {}),
    "pfeiffer_both": (PFEIFFER, {"mh_adapter": True}),
    "houlsby": (HOULSBY, {}),
    "original_ln_before": (PFEIFFER, {"original_ln_after": False}),
    "original_ln_none": (PFEIFFER, {"original_ln_before": False, "original_ln_after": False}),
    "residual_input": (PFEIFFER, {"residual_before_ln": False}),
    "ln_before": (PFEIFFER, {"ln_before": True}),
    "ln_after": (PFEIFFER, {"ln_after": True}),
}
FUSIONS = {"fusion_pfeiffer": PFEIFFER, "fusion_houlsby": HOULSBY}
FUSED = {"a": 2, "b": 4, "c": 8}  # The fused adapters and their reduction factors.


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("adapters").setLevel(logging.ERROR)  # set_active_adapters warns that nothing is active yet.
    arrays: dict[str, Any] = {}
    for case, (preset, changes) in ADAPTERS.items():
        arrays |= {f"{case}/{name}": array for name, array in case_arrays({"a": preset(**changes)}).items()}
    for case, preset in FUSIONS.items():
        configs = {name: preset(reduction_factor=factor) for name, factor in FUSED.items()}
        arrays |= {f"{case}/{name}": array for name, array in case_arrays(configs).items()}
    save("adapterhub_modernbert", arrays)


def build() -> Any:
    """Builds the model from ``encoder_modernbert.npz``, with the library's adapter slots."""
    model = MODELS["modernbert"][1]()
    randomize(model, [*MODELS].index("modernbert"))
    interface = AdapterModelInterface(
        adapter_methods=["bottleneck"],
        model_embeddings="embeddings",
        model_layers="layers",
        layer_self_attn="attn",
        layer_cross_attn=None,
        attn_qkv_proj="Wqkv",
        attn_o_proj="Wo",
        layer_intermediate_proj="mlp.Wi",
        layer_output_proj="mlp.Wo",
    )
    adapters.init(model, interface=interface)
    for layer in model.layers:
        # Remove the interface's hooks, which would call the adapters without the residual.
        for part in (layer.attn.Wo, layer.mlp.Wo):
            part._forward_hooks.clear()
        for slot in (layer.attention_adapters, layer.output_adapters):
            slot.is_layer_hooked = False
        layer.forward = functools.partial(run_layer, layer)
    return model


def run_layer(layer: Any, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor]:
    """Computes a layer as in the library's ``models/vit/modeling_vit.py``."""
    attention = layer.attn(layer.attn_norm(x), **options)[0]
    between = layer.attention_adapters.bottleneck_layer_forward(attention, x, None)
    return (layer.output_adapters.bottleneck_layer_forward(layer.mlp(layer.mlp_norm(between)), between, None),)


def case_arrays(configs: dict[str, adapters.BnConfig]) -> dict[str, Any]:
    model = build()
    inputs = model_inputs(padded_batch(model.config.pad_token_id, 0, model.config.vocab_size, MORE_LENGTHS))
    del inputs["token_type_ids"]
    with torch.no_grad():
        plain = model.eval()(**inputs).last_hidden_state.numpy()
    for name, config in configs.items():
        model.add_adapter(name, config=config)
    settings = {name: config.to_dict() for name, config in configs.items()}
    if len(configs) > 1:
        fusion = adapters.AdapterFusionConfig.load("dynamic")
        model.add_adapter_fusion(Fuse(*configs), fusion)
        settings["fusion"] = fusion.to_dict()
    model.set_active_adapters(Fuse(*configs) if len(configs) > 1 else "a")
    for seed, (path, module) in enumerate(model.named_modules()):
        if path.rpartition(".")[0].endswith(".adapters"):
            randomize(module, 1000 + seed, scale=0.1)
        if isinstance(module, BertFusion):
            randomize(module, 1000 + seed, scale=0.1)
            with torch.no_grad():
                module.value.weight += torch.eye(model.config.hidden_size)

    def compute() -> dict[str, np.ndarray]:
        return {"last_hidden_state": model(**inputs).last_hidden_state.numpy()}

    computed = run_checked(model, compute, LIMIT)
    assert np.abs(computed["last_hidden_state"] - plain).max() > 100 * LIMIT, "the adapters change the outputs"
    state = state_arrays(model, ".adapters.", ".adapter_fusion_layer.")
    return {"config": json.dumps(settings), **state, **computed}


if __name__ == "__main__":
    main()
