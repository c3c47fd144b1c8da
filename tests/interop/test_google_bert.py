"""Trunks imported from Google's BERT checkpoints have the same outputs."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from facts import has_facts
from papers_reference import CONFIG, Weights, batch, bert_shapes, gelu_exact, gelu_tanh, random_tensor, write_files

from afjax.cli.main import main
from afjax.errors import UserError
from afjax.interop import google_bert
from afjax.interop.bert_files import hugging_face_config
from afjax.nn.pooling import apply_pooler
from afjax.trees import flatten
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import encode
from afjax.trunk.pretrained import load_trunk

Variables = dict[str, np.ndarray]
ARCHITECTURE = trunk_config(
    hugging_face_config(CONFIG, gelu="exact", where="bert_config.json"), where="bert_config.json"
)


@pytest.fixture
def variables() -> Variables:
    """Makes the variables of ``bert_model.ckpt``.

    They are the variables of the encoder and of the heads of both pretraining tasks.
    """
    shapes = bert_shapes(tensorflow=True)
    shapes |= {"cls/predictions/output_bias": (24,), "cls/predictions/transform/dense/kernel": (16, 16)}
    shapes |= {"cls/seq_relationship/output_weights": (2, 16), "cls/seq_relationship/output_bias": (2,)}
    return {name: random_tensor(name, *shape) for name, shape in shapes.items()}


@pytest.fixture
def source(variables: Variables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder with the files of Google's archives.

    The checkpoint is an empty file. Reading it is patched to return ``variables``, so TensorFlow is not needed.
    """
    folder = tmp_path / "uncased"
    write_files(folder)
    (folder / "bert_model.ckpt.index").touch()
    monkeypatch.setattr(google_bert, "read_variables", lambda source: variables)
    return folder


def test_every_variable_is_mapped(variables: Variables) -> None:
    leaves = flatten(google_bert.from_google(variables, ARCHITECTURE, where="bert_model.ckpt"))
    expected = {
        "embeddings/word": "embeddings/word_embeddings",
        "embeddings/position": "embeddings/position_embeddings",
        "embeddings/type": "embeddings/token_type_embeddings",
        "embeddings/norm/scale": "embeddings/LayerNorm/gamma",
        "embeddings/norm/bias": "embeddings/LayerNorm/beta",
        "pooler/kernel": "pooler/dense/kernel",
        "pooler/bias": "pooler/dense/bias",
    }
    in_layers = {
        "attention/query": "attention/self/query",
        "attention/key": "attention/self/key",
        "attention/value": "attention/self/value",
        "attention/output": "attention/output/dense",
        "ffn/intermediate": "intermediate/dense",
        "ffn/output": "output/dense",
    }
    in_layers = {
        f"{ours}/{leaf}": f"{theirs}/{leaf}" for ours, theirs in in_layers.items() for leaf in ("kernel", "bias")
    }
    for block, theirs in (("attention", "attention/output"), ("ffn", "output")):
        in_layers |= {
            f"{block}/norm/scale": f"{theirs}/LayerNorm/gamma",
            f"{block}/norm/bias": f"{theirs}/LayerNorm/beta",
        }
    assert leaves.keys() == expected.keys() | {f"layers/{path}" for path in in_layers}
    for path, name in expected.items():
        np.testing.assert_array_equal(leaves[path], variables[f"bert/{name}"], err_msg=path)
    for path, name in in_layers.items():
        for layer in range(2):
            theirs = variables[f"bert/encoder/layer_{layer}/{name}"]
            np.testing.assert_array_equal(leaves[f"layers/{path}"][layer], theirs, err_msg=path)


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
def test_imported_trunk_reproduces_the_outputs_of_googles_code(
    gelu: str, variables: Variables, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = source.parent / "trunk"
    assert main(["import", "bert", str(source), f"--output={output}", f"--gelu={gelu}"]) == 0
    trunk = load_trunk(str(output))
    assert trunk.sha256 in capsys.readouterr().out
    rows, theirs = batch(), Weights(variables, "/")
    x = theirs.embed(rows["tokens"], rows["types"])
    for layer in range(2):
        x = theirs.layer(f"bert/encoder/layer_{layer}", x, rows["mask"], gelu_exact if gelu == "exact" else gelu_tanh)

    @jax.jit
    def run(params: dict) -> tuple[jax.Array, jax.Array]:
        hidden, _ = encode(params, trunk.config, rows)
        return hidden, apply_pooler(params["pooler"], hidden[:, 0])

    hidden, pooled = run(trunk.params)
    np.testing.assert_allclose(hidden[rows["mask"]], x[rows["mask"]], atol=2e-5)
    np.testing.assert_allclose(pooled, theirs.pool(x), atol=2e-5)
    tokens = trunk.tokenizer()("The CAFÉ cats")
    assert tokens["input_ids"] == [2, 5, 12, 6, 11, 3]  # [CLS] the cafe cat ##s [SEP]


def test_tokenizer_case_follows_the_vocabulary_or_the_flag(source: Path) -> None:
    def first_word(output: str, *flags: str) -> int:
        assert main(["import", "bert", str(source), f"--output={source.parent / output}", *flags]) == 0
        return load_trunk(str(source.parent / output)).tokenizer()("The")["input_ids"][1]

    assert first_word("flag", "--case=cased") == 1  # [UNK]
    words = (source / "vocab.txt").read_text().replace("\nbig\n", "\nBig\n")
    (source / "vocab.txt").write_text(words)
    assert first_word("vocabulary") == 1
    assert first_word("vocabulary", "--case=uncased", "--overwrite") == 5


def test_optimizer_state_is_ignored(variables: Variables) -> None:
    more = {"global_step": np.int64(3), "bert/pooler/dense/bias/adam_m": np.zeros(16, np.float32)}
    google_bert.from_google(variables | more, ARCHITECTURE, where="bert_model.ckpt")
    other = {"bert/pooler/dense/biases/adam_v": np.zeros(16, np.float32)}
    with pytest.raises(UserError, match=r"\+ bert/pooler/dense/biases/adam_v"):
        google_bert.from_google(variables | other, ARCHITECTURE, where="bert_model.ckpt")


def test_mismatched_variables_are_listed(variables: Variables) -> None:
    bias = variables.pop("bert/pooler/dense/bias")
    variables["bert/pooler/dense/bais"] = bias
    with pytest.raises(UserError, match=r"ckpt .*: - bert/pooler/dense/bias, \+ bert/pooler/dense/bais;"):
        google_bert.from_google(variables, ARCHITECTURE, where="bert_model.ckpt")
    del variables["bert/pooler/dense/bais"]
    variables["bert/pooler/dense/bias"] = np.zeros(15, np.float32)
    with pytest.raises(UserError, match=r"bert/pooler/dense/bias .*\[15\].*\[16\]"):
        google_bert.from_google(variables, ARCHITECTURE, where="bert_model.ckpt")


def test_bad_input_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = source.parent / "trunk"

    def refused(place: Path = source, *flags: str) -> str:
        assert main(["import", "bert", str(place), f"--output={output}", *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert not output.exists()
        return err

    assert "There is no TensorFlow checkpoint" in refused(source.parent / "nothing")
    assert "There is no TensorFlow checkpoint" in refused(source.parent)
    (source / "model.ckpt-3.index").touch()
    assert has_facts(refused(), "several", "bert_model.ckpt, model.ckpt-3;")
    (source / "model.ckpt-3.index").unlink()
    vocab, config = source / "vocab.txt", source / "bert_config.json"
    words = vocab.read_text()
    vocab.write_text(words + "more\n")
    assert has_facts(refused(), f"{vocab} ", "25 tokens", "24 embeddings")
    vocab.write_text(words.replace("[SEP]", "SEP"))
    assert f"{vocab} lacks [SEP]" in refused()
    vocab.write_bytes(words.encode() + b"\xff")
    assert f"{vocab} is not UTF-8 text" in refused()
    vocab.unlink()
    assert f"{vocab} does not exist" in refused()
    for contents, facts in {
        "{": ("not JSON",),
        "[]": ("object",),
        json.dumps({**CONFIG, "num_attention_heads": 0}): ("num_attention_heads is 0", "number from 1"),
        json.dumps({**CONFIG, "hidden_dropout_prob": "no"}): ('hidden_dropout_prob is "no"', "number"),
        json.dumps({**CONFIG, "hidden_act": "swish"}): ('activation "swish"',),
        json.dumps({"hidden_size": 16}): ("lacks 'vocab_size'",),
        json.dumps({**CONFIG, "num_hidden_layers": 3}): ("- bert/encoder/layer_2/attention/output/LayerNorm/beta",),
        json.dumps({**CONFIG, "intermediate_size": 21}): ("intermediate/dense/bias ", "[20]", "[21]"),
    }.items():
        config.write_text(contents)
        assert has_facts(refused(), *facts), contents
    config.unlink()
    assert f"{config} does not exist" in refused()
    assert f"{source / 'other.json'} does not exist" in refused(source, f"--config={source / 'other.json'}")


def test_existing_folder_is_only_replaced_with_overwrite(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = source.parent / "trunk"
    output.mkdir()
    (output / "notes").write_text("")
    arguments = ["import", "bert", str(source), f"--output={output}"]
    assert main(arguments) == 2
    assert has_facts(capsys.readouterr().err, f"{output} already exists", "--overwrite")
    assert [path.name for path in output.iterdir()] == ["notes"]
    assert main([*arguments, "--overwrite"]) == 0
    assert load_trunk(str(output)).config == ARCHITECTURE
    assert main(["import", "bert", str(source), f"--output={output / 'notes'}", "--overwrite"]) == 2
    assert has_facts(capsys.readouterr().err, f"{output / 'notes'} is a file", "--output")


@pytest.mark.parametrize("name", ["adapter-bert", "bert", "bert-n-pals"])
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["import", name, "--help"])
    assert raised.value.code == 0
    assert f"afjax import {name} " in capsys.readouterr().out.partition("example")[2]
