"""Loading a trunk's tokenizer does not run code of the trunk's folder or repository."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from afjax.errors import UserError
from afjax.trunk.tokenizer import load_tokenizer

CODE = """
from pathlib import Path
from transformers import BertTokenizerFast

Path({marker!r}).touch()

class OwnTokenizer(BertTokenizerFast):
    pass
"""
OWN = {"AutoTokenizer": [None, "own.OwnTokenizer"]}


@pytest.mark.parametrize("model_type", ["bert", "own"])
@pytest.mark.parametrize("tokenizer_class", ["BertTokenizer", "OwnTokenizer"])
def test_code_in_a_trunks_folder_is_not_run(
    tiny_trunk_folder: Path, tmp_path: Path, model_type: str, tokenizer_class: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marker = tmp_path / "trunk", tmp_path / "was_run"
    shutil.copytree(tiny_trunk_folder, folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": model_type, "auto_map": {"AutoConfig": "own.OwnConfig"}},
        "tokenizer_config.json": {"tokenizer_class": tokenizer_class, "auto_map": OWN},
    }
    for name, change in changes.items():
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**values, **change}))
    # A user who answers every question with yes.
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": questions.append(question) or "yes")
    try:
        tokenizer = load_tokenizer(folder, vocab_size=10_000)
    except UserError:
        pass
    else:
        assert type(tokenizer).__module__.startswith("transformers.")
    assert not marker.exists()
    assert questions == []
