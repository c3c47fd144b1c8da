"""Loads the stored model that a command's flags select."""

import argparse
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.parsers import flags, split_numbers
from afjax.config.flags import split_names
from afjax.display.terminal import print_line
from afjax.errors import UserError


def load_stored_model(arguments: argparse.Namespace) -> Any:
    """Loads the stored model selected by ``--adapter``, ``--fusion`` and ``--head``.

    ``--trunk`` and ``--head`` default to the trunk and head recorded in the store. ``--with``, ``--without`` and
    ``--drop_layers`` are then applied to the model.

    Raises:
      UserError: The flags select no model, or both an adapter and a fusion; the store lacks the model, or does not
        record the trunk or a unique head; or ``--with``, ``--without`` or ``--drop_layers`` does not fit the model.
    """
    from afjax.model.loading import load_adapters, load_task_model
    from afjax.model.stored import recorded_head

    if arguments.adapter and arguments.fusion:
        raise UserError(
            f"Both --adapter={arguments.adapter} and --fusion={arguments.fusion} were given; pass only one of them."
        )
    kind = "adapters" if arguments.adapter else "fusion" if arguments.fusion else "heads"
    name = arguments.adapter or arguments.fusion or arguments.head
    if not name:
        raise UserError("No model was selected; pass --adapter=NAME or --fusion=NAME, or only --head=NAME.")
    use_compilation_cache()
    head = arguments.head or recorded_head(arguments.store, kind, name)
    if not arguments.head:
        print_line(f'Using the head "{head}", as recorded in the store.')
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, kind, name)
    task_model = load_task_model(
        arguments.store, trunk, head=head, **flags(arguments, "adapter", "fusion", "allow_mismatch")
    )
    if arguments.added:
        task_model = task_model.with_adapters(load_adapters(arguments.store, split_names(arguments.added), trunk))
    if arguments.without:
        task_model = task_model.without_adapters(split_names(arguments.without))
    if arguments.drop_layers:
        task_model = task_model.without_layers(split_numbers(arguments.drop_layers, "--drop_layers"))
    return task_model


def load_recorded_trunk(given: str, store_folder: str, kind: str, name: str) -> Any:
    """Loads the trunk of ``--trunk``, or else the one recorded in a manifest.

    Args:
      given: The flag's value; empty if it was not given.
      store_folder: The store.
      kind, name: The artifact's kind (``adapters``, ``fusion`` or ``heads``) and name.

    Raises:
      UserError: The trunk cannot be loaded, or the manifest does not name one.
    """
    from afjax.model.stored import recorded_trunk
    from afjax.trunk.pretrained import load_trunk

    if given:
        return load_trunk(given)
    recorded = recorded_trunk(store_folder, kind, name)
    print_line(f'Using the trunk "{recorded}", as recorded in the store.')
    try:
        return load_trunk(recorded)
    except UserError as error:
        raise UserError(
            f"{error} This trunk is recorded in the store; if it has moved, set --trunk to its new path."
        ) from error


def servable_names(store_folder: str) -> list[str]:
    """Lists the adapters and fusions of a store that have a head, and notes which are left out.

    Raises:
      UserError: There is none.
    """
    from afjax.serve.loading import names_with_heads

    names, left_out = names_with_heads(store_folder)
    for name, reason in left_out.items():
        print_line(f"Note: {name} is left out. {reason}")
    if not names:
        raise UserError(f"The store {store_folder} has no adapter with a head; train one first.")
    return names
