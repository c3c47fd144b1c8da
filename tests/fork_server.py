"""Test processes, forked from a server that has already done the slow imports."""

import multiprocessing

# Modules that the server imports before it forks. They start no JAX backend, and no threads except OpenBLAS's, which
# OpenBLAS stops before a fork.
IMPORTS = (
    "afjax.cli.main",
    "afjax.train.experiment",
    "afjax.train.multitask",
    "ml_collections",
    "orbax.checkpoint",
    "pytest",
    "safetensors.numpy",
    "transformers",
    # transformers imports these lazily, when it loads the tiny trunk's tokenizer.
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.tokenization_bert",
)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Returns a multiprocessing context whose ``Process`` is forked from the server.

    All tests in a pytest process share one server.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTS))
    return context
