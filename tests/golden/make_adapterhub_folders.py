"""Saves folders with the `adapters` library for tiny models, in ``adapterhub_folders_*.zip`` next to this script.

Run this script by hand, in the environment described in ``make_adapterhub.py``, and only when a case is added:

    /tmp/golden/bin/python tests/golden/make_adapterhub_folders.py [FAMILY ...]

Each family has one archive, with the same trunk, weights and batch as in ``make_adapterhub.py``. Families other than
`bert` and `roberta` only have the few cases that depend on module names, in the safetensors format.

    adapters/<case>/{safetensors,bin}/      from save_adapter: the adapter `a`, used with the head `two_layers`
    fusion/<case>/{safetensors,bin}/        from save_adapter_setup: the fusion `a,b,c` and the head `two_layers`
    heads/<case>/{safetensors,bin}/         from save_head: flex heads and (static_...) heads of Hugging Face's models
    old/<case>/{safetensors,bin}/           adapters and fusions in the format of the library's predecessors
    <kind>/<case>/expected.npz              the library's outputs: `logits`, and `attention/<layer>/<slot>`

Multiple-choice heads use the batch's three rows as the choices of one row. Question-answering logits are [3, 12, 2].
The predecessors from 2020 (v1), 2021 (v2) and 2023 (v3) do not run with today's PyTorch, so `old` contains the
library's files converted to their formats, with the renamings that the library itself undoes on loading
(`loading.py`: legacy_weights_mapping, ACTIVATION_RENAME).
"""

import json
import logging
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import torch
import transformers
from adapters.composition import Fuse
from adapters.heads import ClassificationHead, MultipleChoiceHead, QuestionAnsweringHead
from make_adapterhub import (
    ADAPTERS,
    FAMILIES,
    FULL,
    FUSED,
    FUSIONS,
    LIMIT,
    PFEIFFER,
    SLOTS,
    BertFusion,
    add_adapter,
    build,
    check_distinct,
)
from reference import FOLDER, randomize, run_checked
from safetensors.torch import load_file, save_file

FLEX_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "two_layers": ("classification", {"num_labels": 3, "layers": 2, "id2label": {0: "no", 1: "maybe", 2: "yes"}}),
    "one_layer": ("classification", {"num_labels": 2, "layers": 1}),
    "pooler": ("classification", {"num_labels": 4, "layers": 1, "use_pooler": True}),
    "pooler_and_layer": ("classification", {"num_labels": 4, "layers": 2, "use_pooler": True}),
    "three_layers": ("classification", {"num_labels": 2, "layers": 3}),
    "gelu_layers": ("classification", {"num_labels": 2, "layers": 3, "activation_function": "gelu"}),
    "no_bias": ("classification", {"num_labels": 2, "layers": 2, "bias": False}),
    "dropout": ("classification", {"num_labels": 2, "layers": 2, "dropout_prob": 0.3}),
    "regression": ("classification", {"num_labels": 1, "layers": 2}),
    "choices": ("multiple_choice", {"num_choices": 3}),
    "choices_pooler": ("multiple_choice", {"num_choices": 3, "layers": 1, "use_pooler": True}),
    "span": ("qa", {}),
    "span_two_layers": ("qa", {"layers": 2, "activation_function": "relu"}),
}
STATIC_HEADS = {
    "static_classification": ("ForSequenceClassification", {"num_labels": 3, "id2label": {0: "a", 1: "b", 2: "c"}}),
    "static_regression": ("ForSequenceClassification", {"num_labels": 1}),
    "static_choices": ("ForMultipleChoice", {}),
    "static_span": ("ForQuestionAnswering", {}),
}
OLD_ADAPTERS = ("pfeiffer", "houlsby", "gelu", "gelu_new", "ln_before")
EXTRA_ADAPTERS = {
    # afjax lacks these settings. It imports the adapters with other settings that give the same outputs.
    "factor_per_layer": (PFEIFFER, {"reduction_factor": {"0": 8, "default": 4}}),
    "scaling_learned": (PFEIFFER, {"scaling": "learned"}),
    "scaling_channel": (PFEIFFER, {"scaling": "channel"}),
    "dropout": (PFEIFFER, {"dropout": 0.2, "non_linearity": "silu"}),
}

# Cases for families that are not in FULL.
FEW = ("pfeiffer", "houlsby", "everything", "leave_out", "two_layers", "span", *STATIC_HEADS)
# Prefixes of Hugging Face's class names.
CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "deberta_v2": "DebertaV2",
}

Save = Callable[[Path, bool], None]


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("adapters").setLevel(logging.ERROR)
    for family in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            if family not in FULL:
                few_folders(root, family)
                pack(root, FOLDER / f"adapterhub_folders_{family}.zip")
                continue
            for case, (preset, changes) in {**ADAPTERS, **EXTRA_ADAPTERS}.items():
                adapter_folder(root / "adapters" / case, family, preset(**{"reduction_factor": 4, **changes}))
            for case, ((preset, changes), kind, temperature) in FUSIONS.items():
                if temperature == 1:
                    configs = {name: preset(**changes, reduction_factor=factor) for name, factor in FUSED.items()}
                    fusion_folder(root / "fusion" / case, family, configs, kind)
            for case, (kind, options) in FLEX_HEADS.items():
                flex_head_folder(root / "heads" / case, family, case, kind, options)
            for case, (class_name, options) in STATIC_HEADS.items():
                static_head_folder(root / "heads" / case, family, class_name, options)
            for case in OLD_ADAPTERS:
                for year, rewrite in (("2020", to_2020), ("2021", to_2021), ("2023", to_2023)):
                    copy_rewritten(root / "adapters" / case, root / "old" / f"{case}_{year}", rewrite)
                    copy_rewritten(root / "fusion" / "pfeiffer", root / "old" / f"fusion_{year}", rewrite)
            for kind in ("adapters", "fusion"):
                cases = sorted((root / kind).glob("*/expected.npz"))
                # The cases `dropout` and `swish` have equal logits, because `silu` and `swish` are the same function.
                logits = {path.parent.name: np.load(path)["logits"] for path in cases}
                check_distinct({case: logits[case] for case in logits if case != "dropout"})
            pack(root, FOLDER / f"adapterhub_folders_{family}.zip")


def few_folders(root: Path, family: str) -> None:
    for case, (preset, changes) in ADAPTERS.items():
        if case in FEW:
            adapter_folder(root / "adapters" / case, family, preset(**{"reduction_factor": 4, **changes}))
    for case, ((preset, changes), kind, _) in FUSIONS.items():
        if case in FEW:
            configs = {name: preset(**changes, reduction_factor=factor) for name, factor in FUSED.items()}
            fusion_folder(root / "fusion" / case, family, configs, kind)
    for case, (kind, options) in FLEX_HEADS.items():
        if case in FEW:
            flex_head_folder(root / "heads" / case, family, case, kind, options)
    for case, (class_name, options) in STATIC_HEADS.items():
        static_head_folder(root / "heads" / case, family, class_name, options)
    for path in sorted(root.glob("*/*/bin")):
        shutil.rmtree(path)


def adapter_folder(folder: Path, family: str, config: adapters.BnConfig) -> None:
    model, inputs = build(family)
    add_adapter(model, "a", config)
    model.set_active_adapters("a")
    computed = run_checked(model, lambda: {"logits": model(**inputs).logits.numpy()}, LIMIT)
    write(folder, computed, lambda path, safe: model.save_adapter(str(path), "a", use_safetensors=safe))


def fusion_folder(folder: Path, family: str, configs: dict[str, adapters.BnConfig], kind: str) -> None:
    model, inputs = build(family)
    for name, config in configs.items():
        add_adapter(model, name, config)
    fuse = Fuse(*configs)
    model.add_adapter_fusion(fuse, kind)
    model.set_active_adapters(fuse)
    fusions = [module for module in model.modules() if isinstance(module, BertFusion)]
    for seed, fusion in enumerate(fusions):
        randomize(fusion, 1000 + seed, scale=0.1)
        if hasattr(fusion, "value"):
            with torch.no_grad():
                fusion.value.weight += torch.eye(model.config.hidden_size)

    def compute() -> dict[str, np.ndarray]:
        outputs = model(**inputs, output_adapter_fusion_attentions=True)
        attention = {
            f"attention/{layer}/{SLOTS[slot]}": scores
            for layer, slots in outputs.adapter_fusion_attentions["a,b,c"].items()
            for slot, scores in slots.items()
        }
        return {"logits": outputs.logits.numpy(), **attention}

    def save(path: Path, safe: bool) -> None:
        model.save_adapter_setup(str(path), fuse, head_setup="two_layers", use_safetensors=safe)

    write(folder, run_checked(model, compute, LIMIT), save)


def flex_head_folder(folder: Path, family: str, name: str, kind: str, options: dict[str, Any]) -> None:
    model, inputs = build(family)
    if name in model.heads:
        model.delete_head(name)
    head_class = {
        "classification": ClassificationHead,
        "multiple_choice": MultipleChoiceHead,
        "qa": QuestionAnsweringHead,
    }
    model.add_prediction_head(head_class[kind](model, name, **options))
    # Heads that also exist in make_adapterhub.py have the same weights.
    randomize(model, seed=0)
    computed = run_checked(model, lambda: head_outputs(model, inputs, head=name), LIMIT)
    write(folder, computed, lambda path, safe: model.save_head(str(path), name, use_safetensors=safe))


def static_head_folder(folder: Path, family: str, class_name: str, options: dict[str, Any]) -> None:
    base, inputs = build(family)
    _, config_class, sizes = FAMILIES[family]
    model = getattr(transformers, CLASSES[family] + class_name)(config_class(**sizes, **options))
    adapters.init(model)
    randomize(model, seed=3)
    state = {key: tensor for key, tensor in base.state_dict().items() if key.startswith(f"{base.base_model_prefix}.")}
    model.load_state_dict(state, strict=False)
    computed = run_checked(model, lambda: head_outputs(model, inputs), LIMIT)
    write(folder, computed, lambda path, safe: model.save_head(str(path), use_safetensors=safe))


def head_outputs(model: Any, inputs: dict[str, torch.Tensor], **chosen: Any) -> dict[str, np.ndarray]:
    choices = model.heads[chosen["head"]].config["head_type"] == "multiple_choice" if chosen else False
    if choices or type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    outputs = model(**inputs, **chosen)
    if "start_logits" in outputs:
        return {"logits": torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy()}
    return {"logits": outputs.logits.numpy()}


def write(folder: Path, computed: dict[str, np.ndarray], save: Save) -> None:
    folder.mkdir(parents=True)
    np.savez(folder / "expected.npz", **computed)
    save(folder / "bin", False)
    try:
        save(folder / "safetensors", True)
    except RuntimeError as error:
        # A LayerNorm before an adapter has two names, so the library cannot save it as safetensors. Convert the files
        # instead, as the library's users do.
        if "share memory" not in str(error):
            raise
        shutil.rmtree(folder / "safetensors")
        shutil.copytree(folder / "bin", folder / "safetensors")
        for path in sorted((folder / "safetensors").rglob("*.bin")):
            tensors = torch.load(path, weights_only=True)
            safe = path.with_name(path.stem.removeprefix("pytorch_") + ".safetensors")
            save_file({key: tensor.clone() for key, tensor in tensors.items()}, safe)
            path.unlink()


# Each function converts a current file's JSON to a predecessor's format, and returns a function that renames tensors.
Rewrite = Callable[[dict[str, Any]], Callable[[str], str]]
KEYS_2020 = """
ln_after ln_before mh_adapter output_adapter adapter_residual_before_ln residual_before_ln non_linearity
original_ln_after original_ln_before reduction_factor
key query value query_before_ln regularization residual_before temperature value_before_softmax value_initialized
num_labels layers activation_function head_type label2id
""".split()


def to_2020(envelope: dict[str, Any]) -> Callable[[str], str]:
    """Converts to v1: no version or adapter_names, adapter types in names, and different GELU names."""
    config = envelope["config"]
    envelope["config"] = {key: value for key, value in config.items() if key in KEYS_2020}
    envelope.pop("version")
    envelope.pop("adapter_names", None)
    envelope["model_class"] = envelope["model_class"].replace("AdapterModel", "ModelWithHeads")
    if "non_linearity" in config:
        envelope["type"] = "text_task"
        activation = config["non_linearity"]
        envelope["config"]["non_linearity"] = {"gelu": "gelu_orig", "gelu_new": "gelu"}.get(activation, activation)
        # Every Pfeiffer config specifies an invertible adapter, but only language adapters have one.
        envelope["config"]["invertible_adapter"] = {
            "block_type": "nice",
            "non_linearity": "relu",
            "reduction_factor": 2,
        }

    def rename(key: str) -> str:
        key = key.replace(".attention.output.adapters.", ".attention.output.attention_text_task_adapters.")
        return key.replace(".output.adapters.", ".output.layer_text_task_adapters.")

    return rename


def to_2021(envelope: dict[str, Any]) -> Callable[[str], str]:
    envelope["version"] = "2.3.0"
    envelope["model_class"] = envelope["model_class"].replace("AdapterModel", "ModelWithHeads")
    return lambda key: key


def to_2023(envelope: dict[str, Any]) -> Callable[[str], str]:
    envelope["version"] = "3.2.1"
    return lambda key: key


def copy_rewritten(source: Path, target: Path, rewrite: Rewrite) -> None:
    if target.exists():
        return
    shutil.copytree(source, target)
    for path in sorted(target.rglob("*_config.json")):
        envelope = json.loads(path.read_text())
        rename = rewrite(envelope)
        path.write_text(json.dumps(envelope, indent=2, sort_keys=True))
        for tensors in path.parent.glob("*.safetensors"):
            save_file({rename(key): tensor for key, tensor in load_file(tensors).items()}, tensors)
        for tensors in path.parent.glob("*.bin"):
            torch.save({rename(key): tensor for key, tensor in torch.load(tensors, weights_only=True).items()}, tensors)


def pack(root: Path, path: Path) -> None:
    """Packs the files into a reproducible archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            archive.writestr(zipfile.ZipInfo(str(file.relative_to(root))), file.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {len(zipfile.ZipFile(path).namelist())} files")


if __name__ == "__main__":
    main()
