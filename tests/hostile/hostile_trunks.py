"""Hostile trunks: damaged configs, weights and tokenizers, and trunks that do not match the store."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hostile_case import (
    COMMANDS,
    LONG,
    NOT_AN_OBJECT,
    PREDICT,
    RESUME,
    TRAIN,
    Case,
    Damage,
    Drop,
    Raw,
    Wanted,
    changed,
    cut,
    edit_json,
    flip,
    link,
    link_loop,
    make_folder,
    plain,
    remove,
    write,
)

CONFIG, WEIGHTS, TOKENIZER = "trunk/config.json", "trunk/model.safetensors", "trunk/tokenizer.json"

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
WRONG_SIZES = (Drop, None, "32", 1.5, -1, 0, True, [4], {}, 10**30)
RATES = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob")
WRONG_RATES = (None, "0.1", Raw("NaN"), Raw("Infinity"), Raw("1e999"), -1, [0.1], {})
FIELDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(SIZES, WRONG_SIZES),
    **{rate: (*WRONG_RATES, *((2, True, 1) if "dropout" in rate else (0, False))) for rate in RATES},
    "hidden_act": (None, 3, "glue", "", [], {}, ["gelu"], True, LONG),
    "model_type": (Drop, None, 3, "gpt2", "", [], {}, "BERT"),
    "position_embedding_type": (3, [], "relative_key", {}),
    "is_decoder": (True, "yes", [1]),
    "pad_token_id": (1.5, "0", [0], {}, True),
}
# Sizes that exceed any machine's memory.
HUGE: Mapping[str, tuple[int, ...]] = {
    "vocab_size": (10**9,),
    "hidden_size": (4 * 10**6,),
    "num_hidden_layers": (10**6, 10**9),
    "num_attention_heads": (10**9,),
    "intermediate_size": (10**10,),
    "max_position_embeddings": (10**10,),
    "type_vocab_size": (10**10,),
}
SHOW = ("data", "show", "target", "--source=data", "--trunk=trunk", "--max_length=16")


def configs() -> Iterator[Case]:
    for field, wrong in FIELDS.items():
        for value in wrong:
            # A loop over this many layers would exhaust the machine's memory.
            separate = field == "num_hidden_layers" and value == 10**30
            damage = edit_json(CONFIG, {field: value})
            yield Case(f"trunk-config/{field}-{plain(value)}", PREDICT, (damage,), separate=separate)
    for pad_id in (None, -1, 10**9):  # Treated as 0.
        damage = edit_json(CONFIG, {"pad_token_id": pad_id})
        yield Case(f"trunk-config/pad_token_id-{plain(pad_id)}", PREDICT, (damage,), wanted="accepted")
    for field, sizes in HUGE.items():
        for size in sizes:
            damage = edit_json(CONFIG, {field: size})
            yield Case(f"trunk-config/{field}-{size}", PREDICT, (damage,), separate=True)
    for name, contents in NOT_AN_OBJECT.items():
        yield Case(f"trunk-config/{name}", PREDICT, (write(CONFIG, contents),))
        if name in ("null", "list", "string", "deep-list", "deep-object", "latin-1", "many-digits"):
            yield Case(f"trunk-config/train-{name}", TRAIN, (write(CONFIG, contents),))
            yield Case(f"trunk-config/show-{name}", SHOW, (write(CONFIG, contents),))
            yield Case(f"trunk-config/bench-{name}", BENCH, (write(CONFIG, contents),))
    for name, damage in (
        ("missing", remove(CONFIG)),
        ("folder", make_folder(CONFIG)),
        ("link-to-itself", link_loop(CONFIG)),
        ("cut-off", cut(CONFIG, 0.5)),
    ):
        yield Case(f"trunk-config/{name}", PREDICT, (damage,))
        yield Case(f"trunk-config/train-{name}", TRAIN, (damage,))


BENCH = ("bench", "--trunk=trunk", "--method=full", "--mode=eval", "--max_length=16", "--num_steps=1")
NAMES = {
    "empty": "",
    "missing": "./nowhere",
    "missing-absolute": "/nowhere/trunk",
    "file": "rows.jsonl",
    "misspelled": "minlim",
    "nul": "tru\0nk",
    "300-characters": LONG,
    "300-characters-below": f"trunk/{LONG}",
    "half-a-surrogate": "\udcff",
    "http": "http://x/y",
    "three-parts": "a/b/c",
    "space": " ",
    "line-break": "a\nb",
    "no-such-user": "~nosuchuser/trunk",
    "loop": "loop",
    "dot": ".",
    "dots": "..",
}


def names() -> Iterator[Case]:
    for name, trunk in NAMES.items():
        damage = (link_loop("loop"),)
        if name != "nul":  # A command-line argument cannot contain NUL.
            yield Case(f"trunk-name/predict-{name}", changed(PREDICT, f"--trunk={trunk}"), damage)
        yield Case(f"trunk-name/train-{name}", (*TRAIN, f"--config.trunk={trunk!r}"), damage)


# Hostile weights.


def edit_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Damage:
    def damage(sandbox: Path) -> None:
        from safetensors.numpy import load_file, save_file

        tensors = {name: np.array(tensor) for name, tensor in load_file(sandbox / WEIGHTS).items()}
        change(tensors)
        save_file(tensors, sandbox / WEIGHTS)

    return damage


def put(name: str, value: float) -> Callable[[dict[str, np.ndarray]], object]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name].flat[0] = value

    return change


def retype(name: str, dtype: str) -> Callable[[dict[str, np.ndarray]], object]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].astype(dtype)

    return change


def reshape(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, np.ndarray]], object]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.zeros(shape, np.float32)

    return change


QUERY, WORDS = "encoder.layer.0.attention.self.query.weight", "embeddings.word_embeddings.weight"
NORM = "encoder.layer.1.output.LayerNorm.weight"
HEADER = (10**9).to_bytes(8, "little") + b"{}"


def header(text: str) -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode()


WEIGHT_FILES: Mapping[str, Damage] = {
    "missing": remove(WEIGHTS),
    "empty": write(WEIGHTS, b""),
    "folder": make_folder(WEIGHTS),
    "link-to-itself": link_loop(WEIGHTS),
    "link-to-nothing": link(WEIGHTS, "nowhere"),
    "half": cut(WEIGHTS, 0.5),
    "all-but-the-last": cut(WEIGHTS, 0.9999),
    "header-only": cut(WEIGHTS, 0.02),
    "header-of-a-gigabyte": write(WEIGHTS, HEADER),
    "header-is-null": write(WEIGHTS, header("null")),
    "header-is-a-list": write(WEIGHTS, header("[]")),
    "header-is-deep": write(WEIGHTS, header('{"a":' * 5000 + "1" + "}" * 5000)),
    "no-tensors": write(WEIGHTS, header("{}")),
    "overlapping": write(
        WEIGHTS,
        header(
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        )
        + bytes(4),
    ),
    "shape-of-30-digits": write(
        WEIGHTS, header('{"a":{"dtype":"F32","shape":[' + "9" * 30 + '],"data_offsets":[0,4]}}') + bytes(4)
    ),
    "text": write(WEIGHTS, b"not weights"),
    "git-lfs-pointer": write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "first-byte-flipped": flip(WEIGHTS, 0.0),
    "pickle": lambda sandbox: [remove(WEIGHTS)(sandbox), write("trunk/pytorch_model.bin", b"\x80\x04}.")(sandbox)],
    "nan": edit_tensors(put(QUERY, float("nan"))),
    "infinity": edit_tensors(put(WORDS, float("inf"))),
    "nan-in-a-norm": edit_tensors(put(NORM, float("nan"))),
    "integers": edit_tensors(retype(QUERY, "int32")),
    "booleans": edit_tensors(retype(WORDS, "bool")),
    "tensor-missing": edit_tensors(lambda tensors: tensors.pop(QUERY)),
    "norm-missing": edit_tensors(lambda tensors: tensors.pop(NORM)),
    "layer-too-many": edit_tensors(
        lambda tensors: tensors.update({QUERY.replace(".0.", ".2."): np.zeros((32, 32), np.float32)})
    ),
    "other-shape": edit_tensors(reshape(QUERY, (32, 16))),
    "scalar": edit_tensors(reshape(QUERY, ())),
    "empty-tensor": edit_tensors(reshape(QUERY, (0, 32))),
    "three-axes": edit_tensors(reshape(WORDS, (54, 32, 1))),
    "position-too-few": edit_tensors(reshape("embeddings.position_embeddings.weight", (64, 32))),
}


SHARD, INDEX = "model-00001-of-00001.safetensors", f"{WEIGHTS}.index.json"


def shard(change: Callable[[dict[str, Any]], object] = lambda shard_of: None) -> Damage:
    """Returns a change that replaces the weights with one shard and an index, and edits the index's weight_map."""

    def damage(sandbox: Path) -> None:
        from safetensors.numpy import load_file

        shard_of: dict[str, Any] = dict.fromkeys(load_file(sandbox / WEIGHTS), SHARD)
        change(shard_of)
        (sandbox / WEIGHTS).rename(sandbox / "trunk" / SHARD)
        (sandbox / INDEX).write_text(json.dumps({"weight_map": shard_of}))

    return damage


SHARDED: Mapping[str, tuple[Damage, ...]] = {
    "missing-shard": (shard(), remove(f"trunk/{SHARD}")),
    "cut-off-shard": (shard(), cut(f"trunk/{SHARD}", 0.5)),
    "folder-as-shard": (shard(), make_folder(f"trunk/{SHARD}")),
    "shard-that-links-to-itself": (shard(), link_loop(f"trunk/{SHARD}")),
    "index-of-another-shard": (shard(lambda shard_of: shard_of.update({QUERY: "other.safetensors"})),),
    "tensor-that-the-shard-lacks": (shard(lambda shard_of: shard_of.update(other=SHARD)),),
    "tensor-that-the-index-lacks": (shard(lambda shard_of: shard_of.pop(QUERY)),),
    "empty-index": (shard(lambda shard_of: shard_of.clear()),),
    **{
        f"shard-named-{plain(name)}": (shard(lambda shard_of, name=name: shard_of.update({QUERY: name})),)
        for name in ("../data.safetensors", "/data.safetensors", "", "..", 3, None, [], {}, "tru\0nk.safetensors", LONG)
    },
    **{f"index-{name}": (shard(), write(INDEX, contents)) for name, contents in NOT_AN_OBJECT.items()},
    "index-that-links-to-itself": (shard(), remove(INDEX), link_loop(INDEX)),
    "index-is-a-folder": (shard(), remove(INDEX), make_folder(INDEX)),
}


def weights() -> Iterator[Case]:
    for name, damage in WEIGHT_FILES.items():
        yield Case(f"trunk-weights/predict-{name}", PREDICT, (damage,))
        yield Case(f"trunk-weights/train-{name}", TRAIN, (damage,))
    yield Case("trunk-weights/predict-shard", PREDICT, (shard(),), wanted="accepted")
    for name, damages in SHARDED.items():
        yield Case(f"trunk-weights/predict-{name}", PREDICT, damages)


# Hostile tokenizers.


def edit_tokenizer(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(sandbox: Path) -> None:
        values = json.loads((sandbox / TOKENIZER).read_text())
        change(values)
        (sandbox / TOKENIZER).write_text(json.dumps(values))

    return damage


def _more_tokens(values: dict[str, Any]) -> None:
    values["model"]["vocab"] |= {f"new{index}": len(values["model"]["vocab"]) + index for index in range(50)}


def _permuted(values: dict[str, Any]) -> None:
    vocab = values["model"]["vocab"]
    vocab["all"], vocab["some"] = vocab["some"], vocab["all"]


TOKENIZER_FILES: Mapping[str, Damage] = {
    "missing": remove(TOKENIZER),
    "cut-off": cut(TOKENIZER, 0.5),
    "folder": make_folder(TOKENIZER),
    "link-to-itself": link_loop(TOKENIZER),
    **{name: write(TOKENIZER, contents) for name, contents in NOT_AN_OBJECT.items() if name != "single-quotes"},
    "no-model": edit_tokenizer(lambda values: values.pop("model")),
    "no-vocabulary": edit_tokenizer(lambda values: values["model"].pop("vocab")),
    "vocabulary-is-a-list": edit_tokenizer(lambda values: values["model"].update(vocab=["all"])),
    "empty-vocabulary": edit_tokenizer(lambda values: values["model"].update(vocab={})),
    "negative-id": edit_tokenizer(lambda values: values["model"]["vocab"].update(all=-1)),
    "id-of-30-digits": edit_tokenizer(lambda values: values["model"]["vocab"].update(all=10**30)),
    "id-beyond-the-embeddings": edit_tokenizer(lambda values: values["model"]["vocab"].update(all=10**6)),
    "more-tokens-than-embeddings": edit_tokenizer(_more_tokens),
    "unknown-model": edit_tokenizer(lambda values: values["model"].update(type="Piecewords")),
    "settings-null": write("trunk/tokenizer_config.json", b"null"),
    "settings-list": write("trunk/tokenizer_config.json", b"[]"),
    "settings-deep": write("trunk/tokenizer_config.json", NOT_AN_OBJECT["deep-object"]),
    "settings-cut-off": cut("trunk/tokenizer_config.json", 0.5),
    "settings-side": edit_json("trunk/tokenizer_config.json", {"truncation_side": "top"}),
    "unknown-normalizer": edit_tokenizer(lambda values: values.update(normalizer={"type": "Upside"})),
}


def tokenizers() -> Iterator[Case]:
    for name, damage in TOKENIZER_FILES.items():
        yield Case(f"trunk-tokenizer/predict-{name}", PREDICT, (damage,))
        if name in NOT_AN_OBJECT or "settings" in name:
            continue
        yield Case(f"trunk-tokenizer/train-{name}", TRAIN, (damage,))


def as_written(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Returns a change that edits the tokenizer and makes transformers use it exactly as written.

    For a BertTokenizer, transformers reads some normalizer settings from tokenizer_config.json instead.
    """

    def damage(sandbox: Path) -> None:
        edit_tokenizer(change)(sandbox)
        edit_json("trunk/tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})(sandbox)

    return damage


# Changes after which a trunk no longer matches a stored adapter or an interrupted run.
OTHERS: Mapping[str, Damage] = {
    "vocabulary-permuted": edit_tokenizer(_permuted),
    "settings-keep-case": edit_json("trunk/tokenizer_config.json", {"do_lower_case": False}),
    "normalizer-keeps-case": as_written(lambda values: values["normalizer"].update(lowercase=False)),
    "no-normalizer": as_written(lambda values: values.update(normalizer=None)),
    "pre-tokenizer-by-spaces": as_written(lambda values: values.update(pre_tokenizer={"type": "WhitespaceSplit"})),
    "post-processor-without-sep": as_written(
        lambda values: values["post_processor"].update(single=values["post_processor"]["single"][:2])
    ),
    "added-token": edit_tokenizer(
        lambda values: values["added_tokens"].append(
            {**values["added_tokens"][-1], "id": values["model"]["vocab"]["cat"], "content": "cat"}
        )
    ),
    "unknown-token": as_written(lambda values: values["model"].update(unk_token="[MASK]")),
    "two-heads": edit_json(CONFIG, {"num_attention_heads": 2}),
    "eps": edit_json(CONFIG, {"layer_norm_eps": 0.5}),
    "activation-relu": edit_json(CONFIG, {"hidden_act": "relu"}),
    "activation-tanh-gelu": edit_json(CONFIG, {"hidden_act": "gelu_new"}),
    "pad-token": edit_json(CONFIG, {"pad_token_id": 4}),
    "family": edit_json(CONFIG, {"model_type": "roberta", "pad_token_id": 1}),
    "one-weight": edit_tensors(put(QUERY, 0.5)),
    "weights-rounded": edit_tensors(retype(QUERY, "float16")),
    "other-pooler": edit_tensors(put("pooler.dense.weight", 0.5)),
}
DROP = ("adapterdrop", *PREDICT[1:5], "--source=data")
FUSED = changed(PREDICT, "--adapter", "--fusion=target-fusion", "--head=target-fusion")


def identities() -> Iterator[Case]:
    commands = {"predict": PREDICT, "eval": COMMANDS["eval"], "resume": RESUME, "fusion": FUSED, "adapterdrop": DROP}
    for index, (name, damage) in enumerate(OTHERS.items()):
        for number, (command, argv) in enumerate(commands.items()):
            if command in ("predict", "resume") or index % 3 == number % 3:
                yield Case(f"trunk-identity/{command}-{name}", argv, (damage,))
    wanted: Wanted = "refused"
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        yield Case(f"trunk-identity/resume-{field}", RESUME, (edit_json(CONFIG, {field: 0.3}),), wanted=wanted)


def cases() -> Iterator[Case]:
    for family in (configs, names, weights, tokenizers, identities):
        yield from family()
