"""The papers' BERT in NumPy, and random tensors for it.

This module does not use afjax. ``Weights`` reads tensors by their names in the papers' code, in TensorFlow
(``bert/encoder/layer_0/output/dense/kernel``) or in PyTorch (``bert.encoder.layer.0.output.dense.weight``).
"""

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Array = np.ndarray

CONFIG = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat ##s cafe dog ran . , to and it was not so big".split()


def write_files(folder: Path, **switches: object) -> None:
    """Writes ``bert_config.json`` and ``vocab.txt``."""
    folder.mkdir(exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps({**CONFIG, **switches}))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")


def random_tensor(name: str, *shape: int) -> Array:
    """Draws a float32 tensor that depends only on its name and shape.

    LayerNorm scales are around 1.
    """
    noise = 0.3 * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return np.float32(1 + noise if name.endswith("gamma") else noise)


def bert_shapes(*, tensorflow: bool) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each variable of a BERT without adapters, by name."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes: dict[str, tuple[int, ...]] = {}
    end = "" if tensorflow else ".weight"
    join = "/" if tensorflow else "."
    for table, size in tables.items():
        shapes[join.join(("bert", "embeddings", f"{table}_embeddings")) + end] = (CONFIG[size], hidden)
    shapes |= norm_shapes(join.join(("bert", "embeddings", "LayerNorm")), hidden, join)
    for number in range(CONFIG["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{number}" if tensorflow else f"bert.encoder.layer.{number}"
        shapes |= layer_shapes(scope, hidden, inner, join)
    return shapes | dense_shapes(join.join(("bert", "pooler", "dense")), hidden, hidden, join)


def dense_shapes(scope: str, inputs: int, outputs: int, join: str = ".") -> dict[str, tuple[int, ...]]:
    if join == "/":
        return {f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)}
    return {f"{scope}.weight": (outputs, inputs), f"{scope}.bias": (outputs,)}


def norm_shapes(scope: str, size: int, join: str = ".") -> dict[str, tuple[int, ...]]:
    return {f"{scope}{join}gamma": (size,), f"{scope}{join}beta": (size,)}


def layer_shapes(scope: str, hidden: int, inner: int, join: str = ".") -> dict[str, tuple[int, ...]]:
    shapes = attention_shapes(join.join((scope, "attention")), hidden, join)
    shapes |= dense_shapes(join.join((scope, "intermediate", "dense")), hidden, inner, join)
    shapes |= dense_shapes(join.join((scope, "output", "dense")), inner, hidden, join)
    return shapes | norm_shapes(join.join((scope, "output", "LayerNorm")), hidden, join)


def attention_shapes(scope: str, size: int, join: str = ".") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in ("query", "key", "value"):
        shapes |= dense_shapes(join.join((scope, "self", name)), size, size, join)
    shapes |= dense_shapes(join.join((scope, "output", "dense")), size, size, join)
    return shapes | norm_shapes(join.join((scope, "output", "LayerNorm")), size, join)


def gelu_exact(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def same(x: Array) -> Array:
    return x


@dataclasses.dataclass(frozen=True)
class Weights:
    """The tensors of a BERT, and methods that compute its layers.

    A scope is the prefix of a layer's tensor names, such as ``bert/pooler/dense``.

    Attributes:
      tensors: The tensors by name.
      join: The separator in names: ``/`` for TensorFlow, ``.`` for PyTorch.
    """

    tensors: Mapping[str, Array]
    join: str

    def dense(self, scope: str, x: Array) -> Array:
        bias = self.tensors[f"{scope}{self.join}bias"]
        if self.join == "/":
            return x @ self.tensors[f"{scope}/kernel"] + bias
        return x @ self.tensors[f"{scope}.weight"].T + bias

    def norm(self, scope: str, x: Array) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        normal = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12)
        return self.tensors[f"{scope}{self.join}gamma"] * normal + self.tensors[f"{scope}{self.join}beta"]

    def self_attention(self, scope: str, x: Array, mask: Array, num_heads: int) -> Array:
        """Applies self-attention without the output projection."""

        def heads(name: str) -> Array:
            return self.dense(f"{scope}{self.join}{name}", x).reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])
        scores = scores + (1 - mask[:, None, None, :]) * -10000.0
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = (weights / weights.sum(-1, keepdims=True)) @ value
        return context.transpose(0, 2, 1, 3).reshape(x.shape)

    def attention(
        self, scope: str, x: Array, mask: Array, num_heads: int, adapter: Callable[[Array], Array] = same
    ) -> Array:
        """Applies the attention sub-layer.

        It computes self-attention, the output projection, an adapter, the residual connection and LayerNorm.
        """
        output = self.join.join((scope, "output"))
        context = self.self_attention(self.join.join((scope, "self")), x, mask, num_heads)
        projected = adapter(self.dense(self.join.join((output, "dense")), context))
        return self.norm(self.join.join((output, "LayerNorm")), projected + x)

    def layer(
        self,
        scope: str,
        x: Array,
        mask: Array,
        gelu: Callable[[Array], Array],
        *,
        adapters: tuple[Callable[[Array], Array], Callable[[Array], Array]] = (same, same),
        extra: Array | float = 0.0,
    ) -> Array:
        """Applies a layer with an adapter after each sub-layer.

        ``extra`` is added before the last LayerNorm.
        """
        between = self.attention(
            self.join.join((scope, "attention")), x, mask, CONFIG["num_attention_heads"], adapters[0]
        )
        inner = gelu(self.dense(self.join.join((scope, "intermediate", "dense")), between))
        output = adapters[1](self.dense(self.join.join((scope, "output", "dense")), inner))
        return self.norm(self.join.join((scope, "output", "LayerNorm")), output + (between + extra))

    def embed(self, tokens: Array, types: Array) -> Array:
        end = "" if self.join == "/" else ".weight"
        word, position, type_ = (
            self.tensors[self.join.join(("bert", "embeddings", f"{name}_embeddings")) + end]
            for name in ("word", "position", "token_type")
        )
        total = word[tokens] + position[: tokens.shape[1]][None] + type_[types]
        return self.norm(self.join.join(("bert", "embeddings", "LayerNorm")), total)

    def pool(self, x: Array) -> Array:
        return np.tanh(self.dense(self.join.join(("bert", "pooler", "dense")), x[:, 0]))


def batch() -> dict[str, Array]:
    """Makes a batch with a row of eight tokens and a row of five tokens."""
    generator = np.random.default_rng(0)
    mask = np.arange(8)[None] < np.array([8, 5])[:, None]
    tokens = np.where(mask, generator.integers(5, CONFIG["vocab_size"], mask.shape), 0).astype(np.int32)
    types = (mask & (np.arange(8)[None] > 3)).astype(np.int32)
    return {"tokens": tokens, "types": types, "mask": mask}


def text_batch(text: str) -> dict[str, Array]:
    """Makes a batch with one row from a text. Its words must be in ``WORDS``."""
    tokens = np.array([[WORDS.index(word) for word in ("[CLS]", *text.split(), "[SEP]")]], np.int32)
    return {"tokens": tokens, "types": np.zeros_like(tokens), "mask": np.ones(tokens.shape, bool)}
