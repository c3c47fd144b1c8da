"""Saves folders with the `peft` library for tiny models, in ``peft_folders.zip`` next to this script.

Run this script by hand, in a separate environment, and only when a case is added:

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install torch==2.13.0 transformers==4.57.6 peft==0.21.2
    /tmp/golden/bin/python tests/golden/make_peft_folders.py

The trunks and the batches are in ``encoder_<family>.npz`` (see ``make_encoder.py``).

    <family>/<case>/adapter_config.json, adapter_model.safetensors      from PeftModel.save_pretrained
    <family>/<case>/expected.npz                                        the outputs of PEFT's model

`expected.npz` has `logits`, or `hidden` for models without a head and for the case `no_head`, whose head afjax cannot
import. Multiple-choice heads use the batch's rows as the choices of one row. Question-answering logits are [rows,
length, 2] and use token type 0, because PEFT's model ignores token types. BERT has all cases. The other families have
only the cases that depend on module names and on their models' heads.
"""

import json
import sys
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from reference import FOLDER, model_inputs, run_checked
from safetensors.torch import load_file, save_file

LIMIT = 1e-5
# ModernBERT's hidden states have larger rounding errors in float32.
LIMITS = {"modernbert": 3e-5}
SEQUENCE, CHOICE, TOKEN, SPAN = (
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnswering",
)
CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert",
    "mpnet": "MPNet",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "deberta_v2": "DebertaV2",
    "modernbert": "ModernBert",
}
# Names of the query and value layers.
QUERY_VALUE = {
    "mpnet": ["q", "v"],
    "distilbert": ["q_lin", "v_lin"],
    "deberta_v2": ["query_proj", "value_proj"],
    # ModernBERT computes query, key and value in one layer.
    "modernbert": ["Wqkv"],
}
# Names of all dense layers in the encoder's layers. "dense" also matches layers elsewhere with this name.
DENSE = {
    "mpnet": ["q", "k", "v", "o", "dense"],
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"],
    "deberta_v2": ["query_proj", "key_proj", "value_proj", "dense"],
    "modernbert": ["Wqkv", "Wo", "Wi"],
}
SEQ = {"task_type": "SEQ_CLS"}
# BERT's cases: ``{case: (base model class, number of labels, settings)}``.
BERT_CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "default": (SEQUENCE, 3, {**SEQ, "r": 4, "lora_alpha": 8, "lora_dropout": 0.1}),
    "all_linear": (SEQUENCE, 3, {**SEQ, "target_modules": "all-linear", "r": 2}),
    "rank_stabilized": (SEQUENCE, 2, {**SEQ, "target_modules": ["key"], "r": 3, "lora_alpha": 5, "use_rslora": True}),
    "expression": (
        SEQUENCE,
        2,
        {**SEQ, "target_modules": r".*\.layer\.[02]\.(attention\.self\.(query|key)|output\.dense)"},
    ),
    "layers": (SEQUENCE, 2, {**SEQ, "target_modules": ["output.dense"], "layers_to_transform": [1, 2]}),
    "layers_pattern": (
        SEQUENCE,
        2,
        {**SEQ, "target_modules": ["query"], "layers_to_transform": 1, "layers_pattern": "layer"},
    ),
    "patterns": (
        SEQUENCE,
        2,
        {
            **SEQ,
            "target_modules": ["query", "value"],
            "r": 4,
            "rank_pattern": {"layer.0.attention.self.query": 2, r"layer\.[12]\..*value": 8},
            "alpha_pattern": {"value": 16, "^bert.encoder.layer.2.attention.self.query": 3},
        },
    ),
    "uneven": (SEQUENCE, 2, {**SEQ, "target_modules": ["layer.0.attention.self.query", "2.attention.self.value"]}),
    "excluded": (
        SEQUENCE,
        2,
        {**SEQ, "target_modules": ["dense"], "exclude_modules": ["attention.output.dense", "pooler.dense"]},
    ),
    "pooler_saved": (SEQUENCE, 2, {**SEQ, "target_modules": ["query"], "modules_to_save": ["pooler"]}),
    "half": (SEQUENCE, 2, {**SEQ, "r": 4}),
    "regression": (SEQUENCE, 1, {**SEQ, "r": 4}),
    "choices": (CHOICE, 2, {"target_modules": ["query"], "modules_to_save": ["classifier"]}),
    "span": (SPAN, 2, {"task_type": "QUESTION_ANS", "target_modules": ["query", "value"]}),
    "tagging": (TOKEN, 5, {"task_type": "TOKEN_CLS", "target_modules": ["dense"]}),
    "features": ("Model", 2, {"task_type": "FEATURE_EXTRACTION", "target_modules": ["query", "dense"]}),
}


def cases(family: str) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """Returns a family's cases."""
    if family == "bert":
        return BERT_CASES
    query_value = {"target_modules": QUERY_VALUE.get(family, ["query", "value"]), "r": 2}
    dense = {"target_modules": DENSE.get(family, ["query", "key", "value", "dense"]), "r": 2}
    features = {"task_type": "FEATURE_EXTRACTION"}
    if family == "modernbert":
        patterns = {"rank_pattern": {"Wqkv": 3}, "alpha_pattern": {"mlp.Wo": 5}}
        return {
            "dense": ("Model", 2, {**features, **dense}),
            "patterns": ("Model", 2, {**features, "target_modules": "all-linear", "r": 2, **patterns}),
            "features": ("Model", 2, {**features, **query_value}),
            "no_head": (SEQUENCE, 3, {**SEQ, **query_value}),
        }
    saved = {
        "distilbert": ["pre_classifier", "classifier"],
        "electra": ["sequence_summary", "classifier"],
        "deberta_v2": ["pooler", "classifier"],
    }.get(family, ["classifier"])
    # By default, PEFT does not save DeBERTa's pooler, which is part of the head.
    head = {"modules_to_save": saved} if family == "deberta_v2" else {}
    few: dict[str, tuple[str, int, dict[str, Any]]] = {
        "default": (SEQUENCE, 3, {**SEQ, **query_value, "lora_alpha": 4, **head}),
        "dense": (SEQUENCE, 2, {**SEQ, **dense, **head}),
        "choices": (CHOICE, 2, {**query_value, "modules_to_save": saved}),
        "span": (SPAN, 2, {"task_type": "QUESTION_ANS", **query_value}),
        "tagging": (TOKEN, 4, {"task_type": "TOKEN_CLS", **query_value}),
        "features": ("Model", 2, {**features, **query_value}),
    }
    if family == "deberta_v2":
        few["no_head"] = (SEQUENCE, 2, {**SEQ, "target_modules": "all-linear", "r": 2})
    return few


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for family in CLASSES:
            for seed, (case, (class_name, num_labels, settings)) in enumerate(cases(family).items()):
                print(family, case, file=sys.stderr)
                write_case(root / family / case, family, class_name, num_labels, settings, seed)
        pack(root, FOLDER / "peft_folders.zip")


def write_case(
    folder: Path, family: str, class_name: str, num_labels: int, settings: dict[str, Any], seed: int
) -> None:
    with np.load(FOLDER / f"encoder_{family}.npz") as file:
        arrays = dict(file)
    values = json.loads(str(arrays["config"]))
    config = transformers.AutoConfig.for_model(**{**values, "num_labels": num_labels})
    # ModernBERT's eager attention computes its softmax in float32, where the float64 check's masks become infinite.
    config._attn_implementation = "sdpa" if family == "modernbert" else "eager"
    model = getattr(transformers, CLASSES[family] + class_name)(config)
    state = {key.removeprefix("state/"): torch.from_numpy(array) for key, array in arrays.items() if "state/" in key}
    prefix = "" if class_name == "Model" else f"{model.base_model_prefix}."
    unused = model.load_state_dict({prefix + key: tensor for key, tensor in state.items()}, strict=False)
    assert not [key for key in unused.unexpected_keys if "pooler" not in key], unused
    assert not [key for key in unused.missing_keys if key.startswith(prefix or "encoder.")], unused
    adapted = get_peft_model(model, LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(parameter.shape)
                # Round the values to float16, so that the files compress well.
                parameter.copy_(torch.from_numpy((0.1 * noise).astype(np.float16)))
    inputs = model_inputs({name: arrays[name] for name in ("tokens", "types", "mask")})
    if not getattr(config, "type_vocab_size", 0):
        del inputs["token_type_ids"]
    if class_name == CHOICE:
        inputs = {name: tensor[None] for name, tensor in inputs.items()}

    def compute() -> dict[str, np.ndarray]:
        encoder = model.base_model if folder.name == "no_head" else adapted
        return outputs(encoder(**inputs))

    computed = run_checked(adapted, compute, LIMITS.get(family, LIMIT))
    with adapted.disable_adapter(), torch.no_grad():
        for name, plain in compute().items():
            assert np.abs(plain - computed[name]).max() > 1e-3, "the adapter changes nothing"
    adapted.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)
    if folder.name == "half":
        path = folder / "adapter_model.safetensors"
        save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    np.savez(folder / "expected.npz", **computed)


def outputs(given: Any) -> dict[str, np.ndarray]:
    if "start_logits" in given:
        return {"logits": torch.stack([given.start_logits, given.end_logits], -1).numpy()}
    if "logits" in given:
        return {"logits": given.logits.numpy()}
    return {"hidden": given.last_hidden_state.numpy()}


def pack(root: Path, path: Path) -> None:
    """Packs the files into a reproducible archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            archive.writestr(zipfile.ZipInfo(str(file.relative_to(root))), file.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {len(zipfile.ZipFile(path).namelist())} files")


if __name__ == "__main__":
    main()
