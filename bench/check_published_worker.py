"""Converts an ONNX file to a Hugging Face folder, and runs both.

``check_published.py`` starts this script in the virtual environment for PyTorch, where afjax is not installed.

    check_published_worker.py '{"source": DIR, "trunk": DIR, "outputs": FILE.npz, "pairs": [[TEXT, TEXT], ...]}'
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnx import numpy_helper
from safetensors.numpy import save_file

MODEL = "policy_nli_int8.onnx"
TOKENIZER = "policy_nli_tokenizer"
# The names in the ONNX file begin with the name of the module that contains the Hugging Face model.
PREFIX = "m."
# The program in the ONNX file has rows of this length.
ONNX_LENGTH = 160
# The settings of microsoft/deberta-v3-xsmall.
CONFIG = {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2ForSequenceClassification"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "num_attention_heads": 6,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "pooler_dropout": 0,
    "pooler_hidden_act": "gelu",
    "pooler_hidden_size": 384,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
    "vocab_size": 128100,
}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    source, trunk = Path(arguments["source"]), Path(arguments["trunk"])
    if not (trunk / "model.safetensors").exists():
        convert(source, trunk)
    model = transformers.DebertaV2ForSequenceClassification.from_pretrained(trunk).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(trunk)
    pairs = [tuple(pair) for pair in arguments["pairs"]]
    encoded = tokenizer(pairs, padding=True, truncation=True, max_length=300, return_tensors="pt")
    tokens, mask = encoded["input_ids"], encoded["attention_mask"]
    with torch.no_grad():
        outputs = model(input_ids=tokens, attention_mask=mask, output_hidden_states=True)
    np.savez(
        arguments["outputs"],
        tokens=tokens.numpy(),
        mask=mask.numpy(),
        hidden=outputs.hidden_states[-1].numpy(),
        logits=outputs.logits.numpy(),
        onnx_logits=onnx_logits(source / MODEL, tokens.numpy(), mask.numpy()),
    )


def convert(source: Path, trunk: Path) -> None:
    graph = onnx.load(source / MODEL).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantized(name: str) -> np.ndarray:
        integers, zero = (arrays[f"{name}_{part}"].astype(np.float32) for part in ("quantized", "zero_point"))
        return np.asarray((integers - zero) * arrays[f"{name}_scale"], np.float32)

    endings = ("_scale", "_zero_point", "_quantized")
    weights = {
        name.removeprefix(PREFIX): array
        for name, array in arrays.items()
        if name.startswith(PREFIX) and not name.endswith(endings)
    }
    embeddings = "deberta.embeddings.word_embeddings.weight"
    weights[embeddings] = dequantized(PREFIX + embeddings)
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            # A node is named after its layer, such as "/m/deberta/encoder/layer.0/output/dense/MatMul_quant".
            layer = node.name.strip("/").rpartition("/")[0].replace("/", ".").removeprefix(PREFIX)
            matrix = dequantized(node.input[1].removesuffix("_quantized"))
            weights[f"{layer}.weight"] = np.ascontiguousarray(matrix.T)
    # An interrupted conversion is repeated: the folder may exist, and the weights get their name last.
    shutil.copytree(source / TOKENIZER, trunk, dirs_exist_ok=True)
    (trunk / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights, trunk / "incomplete", metadata={"format": "pt"})
    (trunk / "incomplete").rename(trunk / "model.safetensors")


def onnx_logits(path: Path, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Runs the ONNX file for the first rows that fit its length."""
    session = onnxruntime.InferenceSession(path)
    logits = []
    for row_tokens, row_mask in zip(tokens, mask, strict=True):
        length = int(row_mask.sum())
        if length > ONNX_LENGTH:
            break
        padded = np.zeros((2, 1, ONNX_LENGTH), np.int64)
        padded[0, 0, :length], padded[1, 0, :length] = row_tokens[:length], 1
        logits.append(session.run(None, {"input_ids": padded[0], "attention_mask": padded[1]})[0][0])
    return np.stack(logits)


if __name__ == "__main__":
    main()
