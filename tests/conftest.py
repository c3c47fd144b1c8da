"""Configures pytest and JAX for all tests, and creates a tiny trunk on disk."""

# ruff: noqa: E402 (jax reads its environment when it is imported)

import dataclasses
import gc
import json
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from xla_flags import compile_quickly

# (Tests that need several devices are in tests/scale and start separate processes.)
compile_quickly()

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from safetensors.numpy import save_file
from shape_checker import check_shapes
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

# This must be called before the checked modules are imported.
check_shapes()

from afjax.data.sources.builtin import GRAMMARS, builtin_rows
from afjax.distributed.host_memory import return_freed_memory
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import init_trunk
from afjax.trunk.hugging_face import to_hugging_face
from afjax.trunk.pretrained import Trunk, load_trunk

# Strict dtype promotion cannot be set, because optax's Adam raises a float to an integer power.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Traces are large trees of Python objects. With Python's default threshold, garbage collection takes 7 % of the time.
gc.set_threshold(50_000, 20, 100)

# Memory limit in bytes. A process above it drops its compiled programs at the end of a test file.
CACHE_LIMIT = 2 * 2**30

# JAX's settings of its persistent compilation cache.
CACHE_SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


# ``{folder or file name: marker of its tests}``. ``pytest -m`` selects tests by marker.
MARKERS = {"tpu": "tpu", "scale": "multihost", "launch": "launch", "test_cloud_storage.py": "gcs"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds ``MARKERS`` to the tests, and moves slow test files to the front.

    With this order, parallel test processes finish at about the same time.
    """
    for item in items:
        for name in (item.path.parent.name, item.path.name):
            if name in MARKERS:
                item.add_marker(MARKERS[name])
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def limited_memory() -> Iterator[None]:
    """Drops the compiled programs after a test file if the process uses too much memory.

    Few test files share programs, so little is recompiled.
    """
    yield
    if resident_bytes() > CACHE_LIMIT:
        jax.clear_caches()
        gc.collect()
        # Otherwise the process would stay above the limit, and drop its programs after each file.
        return_freed_memory()


def resident_bytes() -> int:
    """Returns this process's memory use in bytes.

    Systems without ``/proc`` only report the peak, which is an upper bound.
    """
    if (statm := Path("/proc/self/statm")).exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="session")
def tiny_trunk_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a tiny random BERT as a Hugging Face folder: two layers, hidden size 32, four heads.

    Its vocabulary contains every word of the built-in tasks, in lower case.
    """
    folder = tmp_path_factory.mktemp("trunks") / "tiny"
    folder.mkdir()
    vocabulary = [*SPECIAL_TOKENS, *builtin_words()]
    values = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
    }
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    # With this init_scale, random layers noticeably change their input.
    config = dataclasses.replace(trunk_config(values, where="config.json"), init_scale=0.15)
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    save_file(to_hugging_face(params, config.encoder_family), folder / "model.safetensors")
    write_tokenizer(folder, vocabulary)
    return folder


@pytest.fixture(scope="session")
def tiny_trunk(tiny_trunk_folder: Path) -> Trunk:
    return load_trunk(str(tiny_trunk_folder))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sets ``AFJAX_CACHE`` to a new folder, so that no test reads or writes the user's cache.

    The folder also contains JAX's cache of compiled programs. Many tests compile the same tiny programs, so they share
    this cache.
    """
    folder = tmp_path_factory.mktemp("cache")
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    compilation_cache.reset_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AFJAX_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def cache_settings(cache_folder: Path) -> Iterator[None]:
    """Restores JAX's cache settings after each test, because commands change them."""
    before = {name: getattr(jax.config, name) for name in CACHE_SETTINGS}
    yield
    changed = {name: value for name, value in before.items() if getattr(jax.config, name) != value}
    for name, value in changed.items():
        jax.config.update(name, value)
    if changed:
        compilation_cache.reset_cache()


def builtin_words() -> list[str]:
    """Returns the words and punctuation of the built-in tasks, in lower case, sorted."""
    words: set[str] = set()
    for name in GRAMMARS:
        rows = builtin_rows(name, "train")
        for text in (*rows.text_a, *(rows.text_b or ())):
            words.update(re.findall(r"\w+|[^\w\s]", text.lower()))
    return sorted(words)


def write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json`` for an uncased WordPiece tokenizer like BERT's."""
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 128, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
