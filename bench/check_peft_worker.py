"""Trains and saves LoRA adapters with PEFT, or loads and runs them.

``check_peft.py`` starts this script in PEFT's virtual environment, where afjax is not installed.

    check_peft_worker.py train '{"trunk": DIR, "batch": FILE.npz, "output": DIR, "adapters": {...}}'
    check_peft_worker.py load '{"trunk": DIR, "batch": FILE.npz, "folder": DIR}'
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open

STEPS = 10
CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "",
    None: "ForMultipleChoice",
}
QUERY_VALUE = {"distilbert": ["q_lin", "v_lin"], "deberta-v2": ["query_proj", "value_proj"]}
DENSE = {
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"],
    "deberta-v2": ["query_proj", "key_proj", "value_proj", "dense"],
    "modernbert": ["Wqkv", "Wo", "Wi"],
}


def main() -> None:
    torch.manual_seed(0)
    # For such small models, one thread is faster than several.
    torch.set_num_threads(1)
    command, arguments = sys.argv[1], json.loads(sys.argv[2])
    steps: dict[str, Callable[..., None]] = {"train": train, "load": load}
    steps[command](**arguments)


def train(trunk: str, batch: str, output: str, adapters: dict[str, Any]) -> None:
    for name, (class_name, num_labels, settings) in adapters.items():
        base = load_base(trunk, class_name, num_labels)
        family = base.config.model_type
        targets = {
            "dense": DENSE.get(family, ["query", "key", "value", "dense"]),
            None: QUERY_VALUE.get(family, ["query", "value"]),
        }[settings.get("target_modules")]
        saved = settings.get("modules_to_save")
        if saved:
            settings["modules_to_save"] = [module for module in saved if hasattr(base, module)]
        model = get_peft_model(base, LoraConfig(**{**settings, "target_modules": targets}))
        inputs, labels = read_batch(batch, model, class_name, num_labels)
        fit(model, inputs, labels)
        folder = Path(output) / name
        model.save_pretrained(str(folder))
        save_outputs(folder / "expected.npz", model, inputs)


def load(trunk: str, batch: str, folder: str) -> None:
    # If tensors are missing, PEFT only warns and uses random ones.
    warnings.filterwarnings("error", message="Found missing adapter keys")
    for path in sorted(Path(folder).iterdir()):
        class_name = CLASSES[json.loads((path / "adapter_config.json").read_text())["task_type"]]
        base = load_base(trunk, class_name, num_labels(path))
        model = PeftModel.from_pretrained(base, str(path))
        inputs, _ = read_batch(batch, model, class_name, base.config.num_labels)
        save_outputs(path / "computed.npz", model, inputs)


def num_labels(path: Path) -> int:
    """Reads the head's number of outputs from a saved adapter. Returns 0 without a head."""
    with safe_open(path / "adapter_model.safetensors", framework="pt") as file:
        for name in ("classifier.out_proj", "classifier", "qa_outputs"):
            if f"base_model.model.{name}.weight" in file.keys():  # noqa: SIM118
                return int(file.get_slice(f"base_model.model.{name}.weight").get_shape()[0])
    return 0


def load_base(trunk: str, class_name: str, num_labels: int) -> Any:
    model_class = getattr(transformers, f"AutoModel{class_name}")
    return model_class.from_pretrained(trunk, num_labels=num_labels, attn_implementation="eager")


def read_batch(
    path: str, model: Any, class_name: str, num_labels: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name].astype(np.int64)) for name in file}
    inputs = {"input_ids": arrays["tokens"], "token_type_ids": arrays["types"], "attention_mask": arrays["mask"]}
    if not hasattr(model.config, "type_vocab_size"):
        del inputs["token_type_ids"]
    labels = arrays["labels"]
    if class_name == "ForMultipleChoice":
        inputs = {name: tensor.reshape(-1, 2, tensor.shape[-1]) for name, tensor in inputs.items()}
        return inputs, {"labels": labels[::2] % 2}
    if class_name == "ForQuestionAnswering":
        return inputs, {"start_positions": labels + 1, "end_positions": labels + 2}
    if not class_name:
        return inputs, {}
    if class_name == "ForTokenClassification":
        return inputs, {"labels": arrays["tokens"] % num_labels}
    return inputs, {"labels": labels.float() if num_labels == 1 else labels}


def fit(model: Any, inputs: dict[str, torch.Tensor], labels: dict[str, torch.Tensor]) -> None:
    model.train()
    optimizer = torch.optim.AdamW([leaf for leaf in model.parameters() if leaf.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        outputs = model(**inputs, **labels)
        # Without a head, train on an arbitrary loss.
        loss = outputs.loss if "loss" in outputs else outputs.last_hidden_state[:, 0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save_outputs(path: Path, model: Any, inputs: dict[str, torch.Tensor]) -> None:
    model.eval()
    with torch.no_grad():
        # Call the base model, because the forward method of PeftModelForQuestionAnswering drops token types.
        outputs = model.base_model(**inputs)
    if "start_logits" in outputs:
        np.savez(path, logits=torch.stack([outputs.start_logits, outputs.end_logits], -1).numpy())
    elif "last_hidden_state" in outputs:
        np.savez(path, hidden=outputs.last_hidden_state.numpy())
    else:
        np.savez(path, logits=outputs.logits.numpy())


if __name__ == "__main__":
    main()
