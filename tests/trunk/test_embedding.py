"""Embeddings follow the settings in a trunk's sentence-transformers files."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from afjax.errors import UserError
from afjax.trees import tree_digest
from afjax.trunk import pretrained
from afjax.trunk.embedding import EmbeddingConfig, embedding_rows, read_embedding_config
from afjax.trunk.encoder import encode
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk, write_if_trained

pytestmark = pytest.mark.slow

TEXTS = ["all cats sleep", "some", "no dogs run and most cats sleep"]
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


FILES = {
    "pooling": "1_Pooling/config.json",
    "modules": "modules.json",
    "length": "sentence_bert_config.json",
    "roberta": "sentence_roberta_config.json",
    "prompts": "config_sentence_transformers.json",
    "tokenizer": "tokenizer_config.json",
}


def write_files(folder: Path, **contents: object) -> Path:
    """Writes sentence-transformers files, given by their key in ``FILES``."""
    for key, value in contents.items():
        (folder / FILES[key]).parent.mkdir(parents=True, exist_ok=True)
        (folder / FILES[key]).write_text(json.dumps(value))
    return folder


def modes(*on: str) -> dict[str, object]:
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{mode}": mode in on for mode in MODES}}


def modules(*kinds: str) -> list[dict[str, object]]:
    return [{"idx": index, "type": f"sentence_transformers.models.{kind}"} for index, kind in enumerate(kinds)]


MEAN = {"pooling": modes("mean_tokens"), "modules": modules("Transformer", "Pooling")}
QUERY = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, EmbeddingConfig(pooling="mean", normalize=False)),
        ({"pooling": modes("cls_token")}, EmbeddingConfig(pooling="first")),
        ({"pooling": modes("mean_tokens"), "length": {"max_seq_length": 64}}, EmbeddingConfig(max_length=64)),
        ({"pooling": {"embedding_dimension": 32, "pooling_mode": "cls"}}, EmbeddingConfig(pooling="first")),
        (
            {"pooling": modes("mean_tokens"), "modules": modules("Transformer", "Pooling", "Normalize")},
            EmbeddingConfig(normalize=True),
        ),
        ({"length": {"max_seq_length": 64, "do_lower_case": True}}, EmbeddingConfig(max_length=64, lowercase=True)),
        ({"roberta": {"max_seq_length": 64}}, EmbeddingConfig(max_length=64)),
        ({"length": {"max_seq_length": 32}, "roberta": {"max_seq_length": 64}}, EmbeddingConfig(max_length=32)),
        # Newer versions of sentence-transformers only save the tokenizer's maximum.
        ({**MEAN, "tokenizer": {"model_max_length": 64}}, EmbeddingConfig(max_length=64)),
        (
            {**MEAN, "length": {"max_seq_length": None}, "tokenizer": {"model_max_length": 8}},
            EmbeddingConfig(max_length=8),
        ),
        (
            {**MEAN, "length": {"max_seq_length": 32}, "tokenizer": {"model_max_length": 64}},
            EmbeddingConfig(max_length=32),
        ),
        ({**MEAN, "tokenizer": {"model_max_length": int(1e30)}}, EmbeddingConfig()),
        ({"tokenizer": {"model_max_length": 64}}, EmbeddingConfig()),
        ({"prompts": QUERY}, EmbeddingConfig(prompt="query: ")),
        ({"prompts": {**QUERY, "default_prompt_name": None}}, EmbeddingConfig()),
        ({"prompts": {"similarity_fn_name": "cosine"}}, EmbeddingConfig()),
    ],
)
def test_sentence_transformers_files_are_read(files: dict, expected: EmbeddingConfig, tmp_path: Path) -> None:
    assert read_embedding_config(write_files(tmp_path, **files)) == expected


def test_explicit_pooling_and_prompt_replace_those_in_the_files(tmp_path: Path) -> None:
    write_files(tmp_path, pooling=modes("max_tokens"), length={"max_seq_length": 64}, prompts=QUERY)
    assert read_embedding_config(tmp_path, pooling="first") == EmbeddingConfig(
        pooling="first", max_length=64, prompt="query: "
    )
    assert read_embedding_config(tmp_path, pooling="mean", prompt="") == EmbeddingConfig(max_length=64)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pooling": modes("max_tokens")}, "pooling_mode_max_tokens"),
        ({"pooling": modes()}, "no pooling mode"),
        ({"pooling": modes("cls_token", "mean_tokens")}, "pooling_mode_cls_token, pooling_mode_mean_tokens"),
        ({"pooling": {"pooling_mode": ["mean", "max"]}}, "mean, max"),
        ({"pooling": {"pooling_mode": 3}}, "3"),
        ({"pooling": {"pooling_mode": {"a": 1}}}, "{'a': 1}"),
        ({"pooling": []}, "1_Pooling"),
        ({"modules": modules("Transformer", "Pooling", "Dense")}, "Dense"),
        ({"modules": modules("Transformer", "Pooling")}, "1_Pooling"),
        ({"modules": [3]}, "modules.json"),
        ({"modules": {}}, "modules.json"),
        ({"length": {"max_seq_length": "long"}}, "max_seq_length"),
        ({"roberta": {"max_seq_length": 3}}, "sentence_roberta_config.json: max_seq_length is 3"),
        ({"prompts": {**QUERY, "default_prompt_name": "passage"}}, "'passage'"),
        ({"prompts": {"default_prompt_name": "query"}}, "'query'"),
        ({"prompts": {**QUERY, "default_prompt_name": ["query"]}}, "['query']"),
        ({"prompts": QUERY, "pooling": {**modes("mean_tokens"), "include_prompt": False}}, "prompt"),
    ],
)
def test_damaged_or_unsupported_files_are_refused(files: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_embedding_config(write_files(tmp_path, **files))


def test_embedding_is_the_mean_over_the_tokens_of_each_text(tiny_trunk: Trunk) -> None:
    embeddings = tiny_trunk.embed(TEXTS, batch_size=2)
    assert embeddings.shape == (3, 32)
    assert embeddings.dtype == np.float32
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        # Compute the expected embedding separately for each text, without padding.
        tokens = np.array([tiny_trunk.tokenizer()(text)["input_ids"]])
        mask = np.ones(tokens.shape, bool)
        batch = {"tokens": tokens, "types": np.zeros_like(tokens), "mask": mask}
        hidden, _ = encode(tiny_trunk.params, tiny_trunk.config, batch)
        np.testing.assert_allclose(embedding, np.asarray(hidden[0]).mean(0), atol=1e-5)
        first = tiny_trunk.embed([text], pooling="first", normalize=True)
        np.testing.assert_allclose(first[0], hidden[0, 0] / np.linalg.norm(hidden[0, 0]), atol=1e-5)


def test_white_space_at_the_ends_is_removed() -> None:
    """As in sentence-transformers. WordPiece ignores it, but byte-level tokenizers do not."""
    plain = EmbeddingConfig()
    assert embedding_rows([" one two\n", "\n"], plain).text_a == ["one two", ""]
    pairs = embedding_rows([(" one ", "\ttwo ")], plain)
    assert (pairs.text_a, pairs.text_b) == (["one"], ["two"])
    prompted = embedding_rows([" ONE "], EmbeddingConfig(prompt="query: ", lowercase=True))
    assert prompted.text_a == ["query:  one"]


def test_saved_trunk_replaces_all_tokenizer_and_pooling_files(tiny_trunk: Trunk, tmp_path: Path) -> None:
    """An old tokenizer.json would be used instead of the new vocab.txt."""
    write_files(tmp_path, pooling=modes("cls_token"), prompts=QUERY)
    for name in ("vocab.txt", "special_tokens_map.json", "notes.txt"):
        (tmp_path / name).write_text("old")
    save_trunk(tmp_path, tiny_trunk)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "afjax_trunk.json",
        "config.json",
        "model.safetensors",
        "notes.txt",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_settings_in_the_trunks_files_are_used_and_saved(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trunk"
    shutil.copytree(tiny_trunk_folder, folder)
    write_files(
        folder,
        pooling=modes("cls_token"),
        modules=modules("Transformer", "Pooling", "Normalize"),
        length={"max_seq_length": 5, "do_lower_case": True},
        prompts={"prompts": {"all": "all "}, "default_prompt_name": "all"},
    )
    trunk = load_trunk(str(folder))
    embeddings = trunk.embed([text.upper() for text in TEXTS])
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=-1), 1, atol=1e-6)
    plain = load_trunk(str(tiny_trunk_folder))
    expected = plain.embed([f"all {text}" for text in TEXTS], pooling="first", normalize=True, max_length=5)
    np.testing.assert_array_equal(embeddings, expected)
    pairs = [(text, "SOME") for text in TEXTS]
    expected = plain.embed([(f"no {text}", "some") for text in TEXTS], pooling="first", normalize=True, max_length=5)
    np.testing.assert_array_equal(trunk.embed(pairs, prompt="no "), expected)
    save_trunk(tmp_path / "copy", trunk)
    copied = load_trunk(str(tmp_path / "copy"))
    settings = EmbeddingConfig(pooling="first", normalize=True, max_length=5, prompt="all ", lowercase=True)
    assert copied.embedding_config() == settings
    np.testing.assert_array_equal(copied.embed(TEXTS), embeddings)


def test_invalid_arguments_of_embed_are_refused(tiny_trunk: Trunk) -> None:
    with pytest.raises(UserError, match="128"):
        tiny_trunk.embed(TEXTS, max_length=129)
    with pytest.raises(UserError, match="max_length is '8'"):
        tiny_trunk.embed(TEXTS, max_length="8")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batch_size is 0"):
        tiny_trunk.embed(TEXTS, batch_size=0)
    with pytest.raises(UserError, match=r"^batch_size is 2\.0"):
        tiny_trunk.embed(TEXTS, batch_size=2.0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="max"):
        tiny_trunk.embed(TEXTS, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(UserError):
        tiny_trunk.embed([])
    with pytest.raises(UserError):
        tiny_trunk.embed("one string")


def test_infinite_embeddings_are_refused(tiny_trunk: Trunk) -> None:
    layers = {**tiny_trunk.params["layers"]}
    layers["ffn"] = {**layers["ffn"], "norm": {**layers["ffn"]["norm"], "scale": np.full((2, 32), np.inf, np.float32)}}
    broken = dataclasses.replace(tiny_trunk, params={**tiny_trunk.params, "layers": layers})
    with pytest.raises(UserError, match="trunk/layers/0/ffn/norm/scale"):
        broken.embed(TEXTS)


def test_interrupted_save_deletes_the_digest_of_the_overwritten_trunk(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the digest stayed, saving the overwritten trunk again would write nothing."""
    folder = str(tmp_path / "trunk")
    params = {**tiny_trunk.params, "pooler": jax.tree.map(lambda leaf: leaf + 1, tiny_trunk.params["pooler"])}
    first = dataclasses.replace(tiny_trunk, name=folder, trained=True)
    second = dataclasses.replace(first, params=params, sha256=tree_digest(params))
    write_if_trained(first)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(pretrained, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            write_if_trained(second)
    assert load_trunk(folder).sha256 == second.sha256
    write_if_trained(first)
    assert load_trunk(folder).sha256 == first.sha256
