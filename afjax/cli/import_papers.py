"""What ``afjax import adapter-bert``, ``bert`` and ``bert-n-pals`` do, and the lines that they print."""

import argparse

from afjax.interop.adapter_bert import import_adapter_bert
from afjax.interop.bert_n_pals import import_bert_n_pals
from afjax.interop.google_bert import import_bert
from afjax.model.task_model import TaskModel


def adapter_bert(arguments: argparse.Namespace) -> list[str]:
    """Saves the adapter and the head to the store."""
    model = import_adapter_bert(
        arguments.source,
        arguments.trunk,
        name=arguments.name,
        task=arguments.task,
        labels=_names(arguments.labels),
        max_length=arguments.max_length,
    )
    model.save(arguments.store, overwrite=arguments.overwrite)
    lines = _stored(model, arguments.store)
    if model.trunk.config.activation != "gelu_tanh":
        lines.append(
            f"The authors' code computes with the tanh approximation of GELU in BERT too, the trunk {arguments.trunk} "
            "with another: logits will differ slightly (afjax import bert --gelu=tanh makes a trunk that agrees)."
        )
    return lines


def bert(arguments: argparse.Namespace) -> list[str]:
    """Writes the trunk's folder."""
    trunk = import_bert(
        arguments.source,
        arguments.output,
        config=arguments.config,
        vocab=arguments.vocab,
        case=arguments.case,
        gelu=arguments.gelu,
        overwrite=arguments.overwrite,
    )
    return [f"trunk {arguments.output}: {trunk.config.num_layers} layers of {trunk.config.hidden_size}, {trunk.sha256}"]


def bert_n_pals(arguments: argparse.Namespace) -> list[str]:
    """Writes the trunk's folder, and the adapters and heads to the store."""
    models = import_bert_n_pals(
        arguments.source,
        config=arguments.config,
        tasks=_names(arguments.tasks),
        output=arguments.output,
        store_folder=arguments.store,
        vocab=arguments.vocab,
        case=arguments.case,
        name=arguments.name,
        max_length=arguments.max_length,
        overwrite=arguments.overwrite,
    )
    return [f"trunk {arguments.output}: {models[0].trunk.sha256}"] + [
        line for model in models for line in _stored(model, arguments.store)
    ]


def _stored(model: TaskModel, store: str) -> list[str]:
    """What of a model is now in the store, one artefact a line."""
    labels = f"labels {', '.join(model.labels)}" if model.labels else model.task.kind
    return [f"{store}/{kind}/{name}: {model.task.name}, {labels}" for kind, name in model.artefacts()]


def _names(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",")) if words else ()
