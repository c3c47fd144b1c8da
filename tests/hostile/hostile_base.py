"""Prepares the base folder for hostile cases: a tiny trunk, data, a store, runs and an archive.

All recorded paths are relative to the folder, so a copy works as the working directory. The trunk is written without
afjax and everything else by afjax's commands, so that the same cases can test other versions of afjax.
"""

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 32, 2, 4, 64, 128
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = "a all cat cats dog eight five four good is many nine none of one red seven six some ten the three two".split()

CONFIG = """
def get_config(recipe="fusion", task="target", source="data", max_steps=1):
    train = {"max_steps": max_steps, "batch_size": 4, "max_length": 16, "buckets": (16,), "learning_rate": 1e-3}
    config = {"recipe": recipe, "trunk": "trunk", "task": {"name": task, "source": source}, "train": train}
    if recipe == "fusion":
        names = ("first", "second")
        config["sources"] = {name: {"task": {"source": source}, "train": dict(train)} for name in names}
    return config
"""

LABELS = ("few", "many")


def pair_rows() -> list[dict]:
    """Returns eight text pairs, four per label."""
    return [
        {"text_a": f"{word} of the {number}", "text_b": "some of the two", "label": label}
        for number in ("two", "three", "four", "five")
        for word, label in (("all", "many"), ("some", "few"))
    ]


def single_rows() -> list[dict]:
    """Returns eight single texts, four per label."""
    return [{"text": row["text_a"], "label": row["label"]} for row in pair_rows()]


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def prepare(folder: Path) -> None:
    """Fills an empty folder with the following files and folders.

    - ``trunk``: the trunk.
    - ``data`` and ``single``: tasks with text pairs and single texts.
    - ``rows.jsonl``: rows to predict.
    - ``tiny.py``: a config.
    - ``store``: the adapters ``first``, ``second`` and ``solo``, the fusion ``target-fusion``, and their heads.
    - ``run`` and ``solo``: finished runs.
    - ``half``: a run that was stopped after its first step.
    - ``packed.tar``: the adapter ``first`` and its head.

    Raises:
      RuntimeError: A command failed. The message contains its output.
    """
    write_trunk(folder / "trunk")
    for name, rows in (("data", pair_rows()), ("single", single_rows())):
        (folder / name).mkdir()
        for split in ("train", "dev", "test"):
            # Splits have different texts, so that no row occurs twice.
            other = {"train": "", "dev": " red", "test": " good"}[split]
            changed = [{key: value + other if key != "label" else value for key, value in row.items()} for row in rows]
            (folder / name / f"{split}.jsonl").write_bytes(jsonl(changed))
    (folder / "rows.jsonl").write_bytes(jsonl(pair_rows()[:4]))
    (folder / "tiny.py").write_text(CONFIG)
    with contextlib.chdir(folder):
        command("train", "--config=tiny.py", "--workdir=run", "--store=store")
        solo = "tiny.py:recipe=single,task=solo,source=single"
        command("train", f"--config={solo}", "--workdir=solo", "--store=store")
        half = "tiny.py:recipe=single,task=half,max_steps=2"
        command("train", f"--config={half}", "--workdir=half", "--config.train.eval_every=1")
        command("store", "pack", "first", "--store=store", "--output=packed.tar")
    stop_after_first_step(folder / "half")


def stop_after_first_step(workdir: Path) -> None:
    """Removes the result, the artifacts and the last checkpoint of a finished two-step run."""
    (workdir / "target" / "result.json").unlink()
    for kind in ("adapters", "heads"):
        shutil.rmtree(workdir / "store" / kind)
    steps = sorted((path for path in (workdir / "target").rglob("*") if path.name.isdecimal()), key=lambda p: p.name)
    if [step.name for step in steps] != ["1", "2"]:
        raise RuntimeError(f"{workdir} should have checkpoints of steps 1 and 2, but has {steps}.")
    shutil.rmtree(steps[-1])


def command(*argv: str) -> None:
    """Runs a command that must succeed."""
    from afjax.cli.main import main

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(argv)
    if code != 0:
        raise RuntimeError(f"afjax {' '.join(argv)}: exit code {code}: {output.getvalue()}")


def write_trunk(folder: Path) -> None:
    """Writes a tiny BERT with random weights, as a Hugging Face folder."""
    from safetensors.numpy import save_file

    folder.mkdir()
    vocabulary = [*SPECIAL_TOKENS, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    values = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    save_file(random_tensors(len(vocabulary)), folder / "model.safetensors")
    write_tokenizer(folder, vocabulary)


def random_tensors(vocab_size: int) -> dict[str, np.ndarray]:
    """Draws the tiny BERT's tensors, keyed by Hugging Face's names."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(0, 0.15, shape).astype(np.float32)

    def dense(name: str, rows: int, columns: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": normal(rows, columns), f"{name}.bias": normal(rows)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(HIDDEN, np.float32), f"{name}.bias": np.zeros(HIDDEN, np.float32)}

    tensors = {
        "embeddings.word_embeddings.weight": normal(vocab_size, HIDDEN),
        "embeddings.position_embeddings.weight": normal(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": normal(2, HIDDEN),
        **norm("embeddings.LayerNorm"),
        **dense("pooler.dense", HIDDEN, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            tensors |= dense(f"{at}.attention.{name}", HIDDEN, HIDDEN)
        tensors |= dense(f"{at}.intermediate.dense", INTERMEDIATE, HIDDEN)
        tensors |= dense(f"{at}.output.dense", HIDDEN, INTERMEDIATE)
        tensors |= {**norm(f"{at}.attention.output.LayerNorm"), **norm(f"{at}.output.LayerNorm")}
    return tensors


def write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    """Writes an uncased WordPiece tokenizer like BERT's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

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
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": POSITIONS, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
