"""Prepares the step of one side of a comparison, and runs it on request.

``vs_adapterhub.py`` starts this script in the environment of the measured library, where the other library is not
installed. Each request is a line on standard input, and each answer a line of JSON. `step` runs the step once and
answers with its time; `stop` ends the script, and answers with the peak memory. The process is idle between requests.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from timing import timed

BATCH_SIZE, MAX_LENGTH, VOCABULARY_SIZE = 8, 128, 30522
# The models from transformers: type, and the settings in the published config.json that differ from the defaults.
CONFIGS: dict[str, dict[str, Any]] = {
    # Disable ModernBERT's automatic compilation, because the other models are not compiled.
    "modernbert-base": {"model_type": "modernbert", "reference_compile": False},
    "deberta-v3-base": {
        "model_type": "deberta-v2",
        "vocab_size": 128100,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "max_relative_positions": -1,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, choices=["adapters", "afjax", "transformers"])
    parser.add_argument("--trunk", required=True, choices=["bert-base", *CONFIGS])
    parser.add_argument("--method", required=True, choices=["adapter", "fusion", "full"])
    parser.add_argument("--mode", required=True, choices=["train", "eval"])
    parser.add_argument("--num_adapters", required=True, type=int)
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    parser.add_argument("--threads", required=True, type=int)
    flags = parser.parse_args()

    answers = open_answers()
    if hasattr(os, "sched_setaffinity"):  # XLA starts one thread per core available to the process.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.threads])

    start = time.perf_counter()
    if flags.library == "transformers":
        step, version = transformers_step(flags.trunk, flags.threads)
    elif flags.library == "adapters":
        step, version = adapters_step(flags.method, flags.mode, flags.num_adapters, flags.dtype, flags.threads)
    else:
        step, version = afjax_step(flags.trunk, flags.method, flags.mode, flags.num_adapters, flags.dtype)
    step()
    answer(answers, version=version, prepare_s=time.perf_counter() - start)
    run_on_request(step, answers)
    answer(answers, peak_memory_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)


def open_answers() -> TextIO:
    """Returns the stream for the answers, which is stdout.

    Only answers may be written to it, so the libraries' own output is redirected to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def run_on_request(step: Callable[[], object], answers: TextIO) -> None:
    """Runs the step once per line of standard input, and answers with its time. Ends at `stop`."""
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        answer(answers, seconds=timed(step))


def answer(stream: TextIO, **fields: float | str) -> None:
    print(json.dumps(fields), file=stream, flush=True)


def afjax_step(trunk: str, method: str, mode: str, num_adapters: int, dtype: str) -> tuple[Callable[[], object], str]:
    """Prepares the step that ``afjax bench`` measures."""
    import jax

    from afjax.bench import step_time as bench

    prepared = bench.prepare(
        bench.Case(
            trunk=trunk,
            method=method,
            mode=mode,
            num_adapters=num_adapters,
            batch_size=BATCH_SIZE,
            max_length=MAX_LENGTH,
            trunk_dtype=dtype,
        )
    )
    return prepared.run, f"afjax, jax {jax.__version__}"


def adapters_step(
    method: str, mode: str, num_adapters: int, dtype: str, threads: int
) -> tuple[Callable[[], object], str]:
    """Prepares a step of `adapters`, set up as its users usually do.

    The model, frozen parameters and optimizer follow the defaults of `adapters` and its trainer.
    """
    import adapters
    import torch
    from adapters.composition import Fuse
    from transformers import BertConfig

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = adapters.BertAdapterModel(BertConfig(vocab_size=VOCABULARY_SIZE))
    model.add_classification_head("task", num_labels=2)
    names = [f"task{index}" for index in range({"full": 0, "adapter": 1, "fusion": num_adapters}[method])]
    for name in names:
        model.add_adapter(name, config=adapters.SeqBnConfig(reduction_factor=16))
    if method == "adapter":
        model.train_adapter(names[0])
    elif method == "fusion":
        model.add_adapter_fusion(Fuse(*names), "dynamic")
        model.train_adapter_fusion(Fuse(*names))
    model.active_head = "task"

    batch = {**torch_batch(), "token_type_ids": torch.zeros((BATCH_SIZE, MAX_LENGTH), dtype=torch.long)}
    labels = torch.randint(0, 2, (BATCH_SIZE,))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch_optimizer(trained)

    def autocast() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16")

    def train_step() -> None:
        with autocast():
            loss = model(**batch, labels=labels).loss
        if method == "fusion":
            loss = loss + model.base_model.get_fusion_regularization_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def eval_step() -> None:
        with torch.no_grad(), autocast():
            model(**batch)

    model.train(mode == "train")
    version = f"adapters {adapters.__version__}, torch {torch.__version__}"
    return (train_step if mode == "train" else eval_step), version


def transformers_step(trunk: str, threads: int) -> tuple[Callable[[], object], str]:
    """Prepares a full fine-tuning step with a model from transformers."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**CONFIGS[trunk])
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    batch, labels = torch_batch(), torch.randint(0, 2, (BATCH_SIZE,))
    trained = list(model.parameters())
    optimizer = torch_optimizer(trained)

    def train_step() -> None:
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    model.train()
    return train_step, f"transformers {transformers.__version__}, torch {torch.__version__}"


def torch_batch() -> dict[str, Any]:
    import torch

    return {
        "input_ids": torch.randint(5, VOCABULARY_SIZE, (BATCH_SIZE, MAX_LENGTH)),
        "attention_mask": torch.ones((BATCH_SIZE, MAX_LENGTH), dtype=torch.long),
    }


def torch_optimizer(trained: Any) -> Any:
    """Creates the default optimizer of transformers' Trainer, as `adapters` does."""
    import torch

    return torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)


if __name__ == "__main__":
    main()
