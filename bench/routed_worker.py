"""Runs batches with many adapters, with `adapters` or PEFT.

``routed_vs_torch.py`` starts this script, and sends one request per line to standard input. `step` runs the step once
and answers with its time in seconds, as a line of JSON. `stop` ends the script. The process is idle between requests.
"""

import argparse
from collections.abc import Callable
from typing import Any

from worker import VOCABULARY_SIZE, answer, open_answers, run_on_request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, choices=["adapters", "parallel", "peft"])
    parser.add_argument("--layers", required=True, type=int)
    parser.add_argument("--hidden_size", required=True, type=int)
    parser.add_argument("--rows", required=True, type=int)
    parser.add_argument("--length", required=True, help="tokens per row; rows cycle through several lengths")
    parser.add_argument("--num_adapters", required=True, type=int)
    flags = parser.parse_args()
    answers = open_answers()
    step = {"adapters": adapters_step, "parallel": parallel_step, "peft": peft_step}[flags.library](flags)
    step()
    answer(answers, ready=True)
    run_on_request(step, answers)


def bert_config(flags: argparse.Namespace) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=VOCABULARY_SIZE,
        num_hidden_layers=flags.layers,
        hidden_size=flags.hidden_size,
        num_attention_heads=12,
        intermediate_size=4 * flags.hidden_size,
    )


def rows(flags: argparse.Namespace, numbers: range) -> dict[str, Any]:
    """Creates the given rows of the batch, padded to the longest one."""
    import torch

    lengths = [int(length) for length in flags.length.split(",")]
    tokens = torch.tensor([lengths[number % len(lengths)] for number in numbers])
    shape = (len(numbers), int(tokens.max()))
    return {
        "input_ids": torch.randint(5, VOCABULARY_SIZE, shape),
        "token_type_ids": torch.zeros(shape, dtype=torch.long),
        "attention_mask": (torch.arange(shape[1]) < tokens[:, None]).long(),
    }


def adapter_model(flags: argparse.Namespace) -> tuple[Any, list[str]]:
    """Creates an `adapters` model with bottleneck adapters, each with a head."""
    import adapters

    model = adapters.BertAdapterModel(bert_config(flags)).eval()
    names = [f"task{number}" for number in range(flags.num_adapters)]
    for name in names:
        model.add_adapter(name, config=adapters.SeqBnConfig(reduction_factor=16))
        model.add_classification_head(name, num_labels=3)
    return model, names


def adapters_step(flags: argparse.Namespace) -> Callable[[], None]:
    """Prepares a step that runs the rows of each adapter as a separate batch."""
    import torch

    model, names = adapter_model(flags)
    batches = [rows(flags, range(number, flags.rows, len(names))) for number in range(min(flags.rows, len(names)))]

    def step() -> None:
        with torch.no_grad():
            for name, batch in zip(names, batches, strict=False):
                model.set_active_adapters(name)
                model.active_head = name
                model(**batch)

    return step


def parallel_step(flags: argparse.Namespace) -> Callable[[], None]:
    """Prepares a step that runs every row with every adapter.

    It uses the ``Parallel`` composition, which replicates the rows.
    """
    import torch
    from adapters.composition import Parallel

    model, names = adapter_model(flags)
    batch = rows(flags, range(flags.rows))
    model.active_adapters = Parallel(*names)
    model.active_head = names

    def step() -> None:
        with torch.no_grad():
            model(**batch)

    return step


def peft_step(flags: argparse.Namespace) -> Callable[[], None]:
    """Prepares a step that runs one batch in which each row selects its LoRA adapter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertForSequenceClassification

    config = LoraConfig(r=8, lora_alpha=8, target_modules=["query", "value"])
    names = [f"task{number}" for number in range(flags.num_adapters)]
    model = get_peft_model(BertForSequenceClassification(bert_config(flags)), config, adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, config)
    model.eval()
    batch = rows(flags, range(flags.rows))
    adapter_names = [names[number % len(names)] for number in range(flags.rows)]

    def step() -> None:
        with torch.no_grad():
            model(**batch, adapter_names=adapter_names)

    return step


if __name__ == "__main__":
    main()
