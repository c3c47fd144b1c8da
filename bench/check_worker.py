"""Trains and saves adapters with the library `adapters`, or loads and runs them.

``check_adapterhub.py`` starts this script in the virtual environment for `adapters`, where afjax is not installed. The
command ``random`` creates an encoder with random weights.

    check_worker.py random '{"family": NAME, "trunk": DIR, "output": DIR}'
    check_worker.py train '{"trunk": DIR, "batch": FILE.npz, "output": DIR, "adapters": {...}, "fused": {...}}'
    check_worker.py load '{"trunk": DIR, "batch": FILE.npz, "folder": DIR, "names": [...]}'
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import torch
import transformers
from adapters.composition import Fuse

STEPS = 10
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "initializer_range": 0.1,
}
ROBERTA = {**SIZES, "intermediate_size": 128, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel, ROBERTA),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, ROBERTA),
    "distilbert": (transformers.DistilBertConfig, transformers.DistilBertModel, {**SIZES, "hidden_dim": 128}),
    "electra": (
        transformers.ElectraConfig,
        transformers.ElectraModel,
        {**SIZES, "intermediate_size": 128, "embedding_size": 32},
    ),
    "deberta-v2": (
        transformers.DebertaV2Config,
        transformers.DebertaV2Model,
        {
            **SIZES,
            "intermediate_size": 128,
            "relative_attention": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "position_biased_input": False,
        },
    ),
    "modernbert": (
        transformers.ModernBertConfig,
        transformers.ModernBertModel,
        {**SIZES, "intermediate_size": 128, "local_attention": 16, "pad_token_id": 0},
    ),
}
SLOTS = {"mh_adapter": "attention", "output_adapter": "ffn"}


def main() -> None:
    torch.manual_seed(0)
    # For such small models, one thread is faster than several.
    torch.set_num_threads(1)
    command, arguments = sys.argv[1], json.loads(sys.argv[2])
    steps: dict[str, Callable[..., None]] = {"random": make_random, "train": train, "load": load}
    steps[command](**arguments)


def make_random(family: str, trunk: str, output: str) -> None:
    """Creates a small random encoder with the tokenizer of an existing trunk."""
    config_class, model_class, changes = FAMILIES[family]
    vocabulary = transformers.AutoConfig.from_pretrained(trunk).vocab_size
    model_class(config_class(vocab_size=vocabulary, **changes)).save_pretrained(output)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (Path(trunk) / file).exists():
            shutil.copy(Path(trunk) / file, output)


def train(trunk: str, batch: str, output: str, adapters: dict[str, Any], fused: dict[str, int]) -> None:
    for name, (preset, changes, kind) in adapters.items():
        model = load_model(trunk)
        model.add_adapter(name, config=adapter_config(preset, changes))
        add_head(model, name, kind)
        model.train_adapter(name)
        inputs, labels = read_batch(batch, model, kind)
        fit(model, inputs, labels)
        folder = Path(output) / name
        folder.mkdir(parents=True)
        model.save_adapter(str(folder), name, use_safetensors=True)
        save_outputs(folder / "expected.npz", model, inputs, kind)
    model = load_model(trunk)
    for name, factor in fused.items():
        model.add_adapter(name, config=adapter_config("seq_bn", {"reduction_factor": factor}))
    fuse = Fuse(*fused)
    model.add_adapter_fusion(fuse)
    add_head(model, "fusion", "classification")
    model.train_adapter_fusion(fuse)
    inputs, labels = read_batch(batch, model, "classification")
    fit(model, inputs, labels)
    folder = Path(output) / "fusion"
    model.save_adapter_setup(str(folder), fuse, head_setup="fusion", use_safetensors=True)
    save_outputs(folder / "expected.npz", model, inputs, "classification", fusion=",".join(fused))


def load(trunk: str, batch: str, folder: str, names: list[str]) -> None:
    for name in names:
        model, path = load_model(trunk), Path(folder) / name
        fusion = ""
        if (path / "adapter_setup.json").exists():
            setup, head = model.load_adapter_setup(str(path), set_active=True, use_safetensors=True)
            fusion = ",".join(setup.children)
        else:
            info: dict[str, Any] = {}
            head = model.load_adapter(str(path), set_active=True, use_safetensors=True, loading_info=info)
            assert not info["missing_keys"], info
            assert not info["unexpected_keys"], info
        model.active_head = head
        kind = model.heads[head].config["head_type"]
        kind = {"question_answering": "span"}.get(kind, kind)
        inputs, _ = read_batch(batch, model, kind)
        save_outputs(path / "computed.npz", model, inputs, kind, fusion=fusion)


def load_model(trunk: str) -> Any:
    return adapters.AutoAdapterModel.from_pretrained(trunk)


def adapter_config(preset: str, changes: dict[str, Any]) -> Any:
    return adapters.AdapterConfig.load(preset, **changes)


def add_head(model: Any, name: str, kind: str) -> None:
    if kind == "multiple_choice":
        model.add_multiple_choice_head(name, num_choices=2)
    elif kind == "span":
        model.add_qa_head(name)
    else:
        model.add_classification_head(name, num_labels=1 if kind == "regression" else 3)


def read_batch(path: str, model: Any, kind: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name].astype(np.int64)) for name in file}
    inputs = {"input_ids": arrays["tokens"], "token_type_ids": arrays["types"], "attention_mask": arrays["mask"]}
    if not hasattr(model.config, "type_vocab_size"):
        del inputs["token_type_ids"]
    labels = arrays["labels"]
    if kind == "multiple_choice":
        inputs = {name: tensor.reshape(-1, 2, tensor.shape[-1]) for name, tensor in inputs.items()}
        return inputs, {"labels": labels[::2] % 2}
    if kind == "span":
        return inputs, {"start_positions": labels + 1, "end_positions": labels + 2}
    return inputs, {"labels": labels.float() if kind == "regression" else labels}


def fit(model: Any, inputs: dict[str, torch.Tensor], labels: dict[str, torch.Tensor]) -> None:
    model.train()
    optimizer = torch.optim.AdamW([leaf for leaf in model.parameters() if leaf.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        model(**inputs, **labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save_outputs(path: Path, model: Any, inputs: dict[str, torch.Tensor], kind: str, fusion: str = "") -> None:
    model.eval()
    with torch.no_grad():
        outputs = model(**inputs, **({"output_adapter_fusion_attentions": True} if fusion else {}))
    if kind == "span":
        arrays = {"logits": torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()}
    else:
        arrays = {"logits": outputs.logits.numpy()}
    if fusion:
        for layer, slots in outputs.adapter_fusion_attentions[fusion].items():
            arrays |= {f"attention/{layer}/{SLOTS[slot]}": scores for slot, scores in slots.items()}
    np.savez(path, **arrays)


if __name__ == "__main__":
    main()
