"""Text embeddings: one vector per row, pooled as in sentence-transformers."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Float, Float32

from afjax.config.from_dict import check_fields, check_value
from afjax.config.ranges import PositiveInt
from afjax.config.values import Pooling
from afjax.data.batches import Batching
from afjax.data.lengths import inference_lengths
from afjax.data.over_rows import over_rows
from afjax.data.splits import Rows
from afjax.data.tokenization import tokenize_rows
from afjax.errors import UserError
from afjax.nn.pooling import pool
from afjax.storage.json_files import read_json
from afjax.tasks.load import rows_from_lists
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import encode
from afjax.trunk.families import ENCODER_FAMILIES

# Files of a sentence-transformers model that specify how to compute an embedding from a text.
MODULES, POOLING, PROMPTS = "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"
# Names of the file with the settings of the Transformer module. sentence-transformers reads the first that exists.
TRANSFORMER = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
EMBEDDING_FILES = (MODULES, POOLING, PROMPTS, *TRANSFORMER)
# Tokenizers without a maximum length have a huge one, such as 1e30.
_LONGEST = 10**6
_CLASSIFIER_MODES: Mapping[str, Pooling] = {"cls": "first", "mean": "mean"}
_MODES: Mapping[str, Pooling] = {
    **_CLASSIFIER_MODES,
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
}
_ADVICE = 'or set the pooling to "mean" or "first" (head.pooling for a head)'


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Settings for computing embeddings.

    Attributes:
      pooling: The first token's hidden state, or the mean over all tokens except padding.
      normalize: Whether to divide each embedding by its Euclidean norm.
      max_length: Maximum number of tokens per row; longer rows are truncated. None for the encoder's maximum.
      prompt: Text to insert before each text, and before the first text of a pair.
      lowercase: Whether to convert texts to lower case.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: PositiveInt | None = None
    prompt: str = ""
    lowercase: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "embedding")


def read_embedding_config(
    folder: Path, *, pooling: Pooling | None = None, prompt: str | None = None
) -> EmbeddingConfig:
    """Reads the embedding settings in a trunk's sentence-transformers files.

    Args:
      folder: The trunk's folder. The sentence-transformers files are optional. Without these files, the embedding is
        the mean over tokens, which is also the default of sentence-transformers.
      pooling: If not None, replaces the pooling and all later modules, such as Normalize.
      prompt: If not None, replaces the default prompt.

    Raises:
      UserError: A file is damaged, the settings of the Pooling module are missing, or a file specifies a module, a
        pooling, a prompt or a maximum length that afjax does not support.
    """
    settings = read_json(_transformer_file(folder), advice="restore the file") or {}
    config = EmbeddingConfig(
        pooling=pooling or "mean",
        max_length=_max_length(folder, settings),
        prompt=_default_prompt(folder) if prompt is None else prompt,
        lowercase=settings.get("do_lower_case") is True,
    )
    return config if pooling else _with_modules(folder, config)


def _transformer_file(folder: Path) -> Path:
    return folder / next((name for name in TRANSFORMER if (folder / name).exists()), TRANSFORMER[0])


def _max_length(folder: Path, settings: Mapping[str, Any]) -> int | None:
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 4):
        raise UserError(
            f"{_transformer_file(folder)}: max_seq_length is {length!r}; it must be an integer, at least 4."
        )
    if length is not None or not (folder / MODULES).exists():
        return length
    # Newer versions of sentence-transformers only save the tokenizer's maximum.
    length = (read_json(folder / "tokenizer_config.json", advice="fetch it again") or {}).get("model_max_length")
    return length if type(length) is int and 4 <= length <= _LONGEST else None


def _default_prompt(folder: Path) -> str:
    advice = 'restore the file, or pass prompt=""'
    settings = read_json(folder / PROMPTS, advice=advice) or {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise UserError(f"{folder / PROMPTS} has no prompt for its default_prompt_name {name!r}; {advice}.")
    return prompt


def _with_modules(folder: Path, config: EmbeddingConfig) -> EmbeddingConfig:
    """Adds the settings of the modules that follow the encoder: Pooling and Normalize."""
    modules = read_json(folder / MODULES, expected=list, advice=f"restore the file, {_ADVICE}")
    kinds = [_module_kind(folder, module) for module in modules or ()]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UserError(
                f'{folder / MODULES} has a module "{kind}", but afjax only supports Transformer, Pooling and '
                'Normalize. Pass pooling="mean" or pooling="first" to embed texts without the other modules.'
            )
    pooling = read_pooling(folder)
    if config.prompt and (read_json(folder / POOLING) or {}).get("include_prompt") is False:
        raise UserError(
            f"{folder / POOLING} excludes the prompt's tokens from the pooling, which afjax does not support; pass "
            'prompt="", or set the pooling.'
        )
    if pooling is None and "Pooling" in kinds:
        raise UserError(
            f"{folder / MODULES} has a Pooling module, but {folder / POOLING} does not exist; restore the file, "
            f"{_ADVICE}."
        )
    return dataclasses.replace(config, pooling=pooling or "mean", normalize="Normalize" in kinds)


def read_pooling(folder: Path) -> Pooling | None:
    """Reads the pooling in a trunk's ``1_Pooling/config.json``.

    Returns None if the file does not exist.

    Raises:
      UserError: The file is damaged, or it specifies a pooling that afjax does not support.
    """
    settings = read_json(folder / POOLING, advice=f"restore the file, {_ADVICE}")
    return None if settings is None else _pooling(settings, folder / POOLING)


def read_own_pooling(folder: Path) -> Pooling:
    """Reads the pooling that a trunk was pretrained with (``afjax.Trunk.pooling``).

    Args:
      folder: The trunk's folder.

    Returns:
      The pooling in the sentence-transformers files. Without these files, it is the pooling of classifiers in
      ``config.json``, or ``first`` if ``config.json`` does not specify one.

    Raises:
      UserError: A file is damaged, or it specifies a pooling that afjax does not support.
    """
    pooling = read_pooling(folder)
    if pooling is not None:
        return pooling
    values = read_json(folder / "config.json", advice="fetch the trunk again") or {}
    family = ENCODER_FAMILIES.get(str(values.get("model_type")))
    if family is None or family.pooling_field is None or family.pooling_field not in values:
        return "first"
    mode = values[family.pooling_field]
    if not isinstance(mode, str) or mode not in _CLASSIFIER_MODES:
        raise UserError(
            f"{folder / 'config.json'}: {family.pooling_field} is {mode!r}; afjax supports "
            f"{' and '.join(_CLASSIFIER_MODES)}. Correct the file, {_ADVICE}."
        )
    return _CLASSIFIER_MODES[mode]


def _module_kind(folder: Path, module: Any) -> str:
    kind = module.get("type") if isinstance(module, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{folder / MODULES} has an entry without a type; restore the file, {_ADVICE}.")
    return kind.rpartition(".")[2]


def _pooling(settings: Mapping[str, Any], path: Path) -> Pooling:
    """Returns the pooling mode that ``1_Pooling/config.json`` enables.

    The file can have the old or the new format of sentence-transformers.
    """
    mode = settings.get("pooling_mode")
    modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    if mode is not None:
        modes = [*mode] if isinstance(mode, list | tuple) else [mode]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in _MODES:
        raise UserError(
            f"{path} enables {', '.join(map(str, modes)) or 'no pooling mode'}; afjax supports either the first token "
            f"or the mean of all tokens. Correct the file, {_ADVICE}."
        )
    return _MODES[modes[0]]


class TextEncoder(Protocol):
    """An encoder without its parameters: a trunk, with or without adapters.

    Encoders are hashable, because they are static arguments of a jitted function.
    """

    @property
    def trunk(self) -> TrunkConfig:
        """The trunk's architecture."""
        ...

    def hidden_states(self, params: Tree, batch: Mapping[str, AnyArray]) -> Float[Array, "batch length hidden"]:
        """Computes the last hidden states, without dropout."""
        ...


@dataclasses.dataclass(frozen=True)
class PlainEncoder:
    """A :class:`TextEncoder` that is a trunk without adapters."""

    trunk: TrunkConfig

    def hidden_states(self, params: Tree, batch: Mapping[str, AnyArray]) -> Float[Array, "batch length hidden"]:
        return encode(params["trunk"], self.trunk, batch)[0]


def embed_texts(
    texts: Sequence[Any],
    config: EmbeddingConfig,
    *,
    model: TextEncoder,
    params: Tree,
    tokenizer: Any,
    mesh: Mesh,
    batch_size: int,
) -> Float32[np.ndarray, "rows hidden"]:
    """Computes embeddings of texts or text pairs.

    Args:
      texts: Strings, or pairs of strings.
      config: The settings.
      model: The encoder with its adapters.
      params: The model's parameters on the mesh.
      tokenizer: The trunk's tokenizer.
      mesh: A mesh of this host's devices.
      batch_size: Rows per step.

    Returns:
      float32 ``[rows, hidden_size]``, in the order of the texts.

    Raises:
      UserError: There are no texts, ``batch_size`` is less than 1, ``config.max_length`` is too small for the special
        tokens, or embeddings are NaN or infinite.
    """
    longest = model.trunk.max_length
    max_length = min(config.max_length or longest, longest)
    check_value(PositiveInt, batch_size, "batch_size")
    data = tokenize_rows(embedding_rows(texts, config), tokenizer, max_length=max_length, cache_dir=None)
    step = functools.partial(_embed_step, model, config.pooling, config.normalize)
    # Round the batch size up, so that every device gets the same number of rows.
    batch_size = -(-batch_size // mesh.size) * mesh.size
    lengths = inference_lengths(data, batch_size=batch_size, max_length=max_length)
    batching = Batching(batch_size, lengths, model.trunk.pad_id)
    embeddings: np.ndarray = over_rows(step, params, data, batching=batching, mesh=mesh)
    return embeddings


def embedding_rows(texts: Sequence[Any], config: EmbeddingConfig) -> Rows:
    """Converts texts or text pairs to rows, after applying the settings ``prompt`` and ``lowercase``.

    White space at the ends is removed, as in sentence-transformers. Byte-level tokenizers would encode it.

    Raises:
      UserError: There are no texts, or some are not strings or pairs of strings.
    """
    rows = rows_from_lists(texts)
    assert isinstance(rows, Rows), "the default kind of task is classification"
    first = [f"{config.prompt}{text}".strip() for text in rows.text_a]
    second = rows.text_b and [text.strip() for text in rows.text_b]
    if config.lowercase:
        first, second = [text.lower() for text in first], second and [text.lower() for text in second]
    return dataclasses.replace(rows, text_a=first, text_b=second)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _embed_step(
    model: TextEncoder, pooling: Pooling, normalize: bool, params: Tree, batch: Mapping[str, AnyArray]
) -> Float[Array, "batch hidden"]:
    hidden = model.hidden_states(params, batch)  # [batch, length, hidden_size]
    pooled = pool(hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32)), batch["mask"], pooling)
    if not normalize:
        return pooled
    # The epsilon is the same as in torch.nn.functional.normalize.
    return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)
