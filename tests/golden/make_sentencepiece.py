"""Trains small SentencePiece models, and converts them with transformers 4.

    pip install 'transformers<5' sentencepiece protobuf
    python tests/golden/make_sentencepiece.py

For each kind of tokenizer, the script writes ``sentencepiece_*.npz`` with the SentencePiece model, the
``tokenizer.json`` that transformers makes from it, and the token ids of texts and pairs.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
import transformers

FOLDER = Path(__file__).parent
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "the committee’s report — 300 pages — wasn’t published in 2019",
    "  several   spaces\tand\nlines ",
    "Ａ ﬁne café, naïve co-operation; o'clock…",
    "東京 \U0001f600 unknown \u0416",
    "a<mask>b [MASK] c </s> [SEP] <pad> [UNK] <unk> <unk>NOTUSED",
    "",
    "▁ underline",
]
# Code points to replace, in hexadecimal: a fullwidth letter, a ligature, a curly quote, an ellipsis, and a tab. The
# published models have 200 kB of such rules.
RULES = "FF21\t41\nFB01\t66 69\n2019\t27\n2026\t2E 2E 2E\n9\t20\n"
# By name: the tokenizer's class, the file's name in Hugging Face's folders, and settings of SentencePiece's trainer.
KINDS = {
    "deberta": (
        "DebertaV2Tokenizer",
        "spm.model",
        {
            "pad_id": 0,
            "bos_id": 1,
            "eos_id": 2,
            "unk_id": 3,
            "pad_piece": "[PAD]",
            "bos_piece": "[CLS]",
            "eos_piece": "[SEP]",
            "unk_piece": "[UNK]",
        },
    ),
    "xlm_roberta": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", {}),
    "camembert": ("CamembertTokenizer", "sentencepiece.bpe.model", {}),
}


def main() -> None:
    assert transformers.__version__.startswith("4."), "transformers 5 does not have tokenizers without tokenizer.json"
    for kind, (class_name, file_name, settings) in KINDS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "rules.tsv").write_text(RULES)
            (folder / "texts.txt").write_text("\n".join([*TEXTS[:4], "published pages report spaces lines"] * 20))
            sentencepiece.SentencePieceTrainer.train(
                input=str(folder / "texts.txt"),
                model_prefix=str(folder / "m"),
                vocab_size=60,
                normalization_rule_tsv=str(folder / "rules.tsv"),
                minloglevel=2,
                **settings,
            )
            model = (folder / "m.model").read_bytes()
            (folder / file_name).write_bytes(model)
            slow = getattr(transformers, class_name).from_pretrained(folder)
            fast = getattr(transformers, f"{class_name}Fast").from_pretrained(folder)
            pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
            np.savez_compressed(
                FOLDER / f"sentencepiece_{kind}.npz",
                class_name=class_name,
                file_name=file_name,
                model=np.frombuffer(model, np.uint8),
                tokenizer=fast.backend_tokenizer.to_str(),
                texts=json.dumps(TEXTS),
                ids=json.dumps([fast(text)["input_ids"] for text in TEXTS]),
                pair_ids=json.dumps(fast(pairs)["input_ids"]),
                slow_ids=json.dumps([slow(text)["input_ids"] for text in TEXTS]),
            )
            print(kind, len(slow), [slow(text)["input_ids"] == fast(text)["input_ids"] for text in TEXTS])


if __name__ == "__main__":
    sys.exit(main())
