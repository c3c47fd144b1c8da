"""``afjax store``: lists, checks and shares the artifacts of a store."""

import argparse
from typing import Any

from afjax.cli.parsers import add_command, add_group, add_store_flag, flags

STORE_EXAMPLE = """\
examples:
  afjax store ls --store=store
  afjax store show rte --store=store
  afjax store verify --store=store
  afjax store pack rte --store=store --output=rte.tar"""

SHARE_EXAMPLE = """\
examples:
  afjax store pack rte --store=store --output=rte.tar --license=apache-2.0
  afjax store unpack rte.tar --store=other
  afjax store push rte --store=store --repo=USER/REPO --license=apache-2.0 --private
  afjax store pull USER/REPO --store=other --name=their-rte

An adapter is shared with its head, and a fusion with its adapters and its head. A model card is added, and local paths
are shortened to their last component. Incoming artifacts are fully checked before any of them enters the store."""


def add(commands: Any) -> None:
    """Adds the commands to the parser's commands."""
    actions = add_group(commands, "store", "list, check or share a store's artifacts", STORE_EXAMPLE, "ACTION")
    add_command(actions, "ls", "list a store's artifacts", STORE_EXAMPLE, run=_list)
    show = add_command(actions, "show", "show the artifacts with a name", STORE_EXAMPLE, run=_show)
    show.add_argument("name", metavar="NAME", help="name of the artifacts to show")
    add_command(actions, "verify", "read and check all artifacts in a store", STORE_EXAMPLE, run=_verify)
    pack = add_command(actions, "pack", "write an artifact and its dependencies to one file", SHARE_EXAMPLE, run=_pack)
    push = add_command(actions, "push", "upload an artifact to the Hugging Face hub", SHARE_EXAMPLE, run=_push)
    for out in (pack, push):
        out.add_argument("name", metavar="NAME", help="name of the artifact to share")
        out.add_argument(
            "--kind",
            default="",
            choices=("adapters", "fusion", "heads"),
            help="the artifact's kind, if several share the name",
        )
        out.add_argument(
            "--head", default="", metavar="NAME", help="the head to share with an adapter or a fusion (its own)"
        )
        out.add_argument(
            "--license", default="", metavar="ID", help="license for the model card, such as apache-2.0 (unknown)"
        )
    pack.add_argument("--output", required=True, metavar="FILE.tar", help="the output file; replaced if it exists")
    push.add_argument("--repo", required=True, metavar="USER/REPO", help="the repository; created if missing")
    push.add_argument("--private", action="store_true", help="make the repository private if it is new")
    unpack = add_command(actions, "unpack", "check a packed file and add it to a store", SHARE_EXAMPLE, run=_unpack)
    unpack.add_argument("file", metavar="FILE.tar", help="a file from afjax store pack")
    pull = add_command(
        actions, "pull", "download artifacts from the Hugging Face hub into a store", SHARE_EXAMPLE, run=_pull
    )
    pull.add_argument("repo", metavar="USER/REPO", help="a repository from afjax store push")
    pull.add_argument("--revision", default="", help="a branch, tag or commit (the newest)")
    for incoming in (unpack, pull):
        incoming.add_argument("--name", default="", help="new name for the artifact and its head (unchanged)")
        incoming.add_argument("--overwrite", action="store_true", help="replace existing artifacts of the same names")
    for parser in actions.choices.values():
        add_store_flag(parser)


def _list(arguments: argparse.Namespace) -> None:
    from afjax.cli.store_lines import list_lines

    print("\n".join(list_lines(arguments.store)))


def _show(arguments: argparse.Namespace) -> None:
    from afjax.cli.store_lines import show_lines

    print("\n".join(show_lines(arguments.store, arguments.name)))


def _verify(arguments: argparse.Namespace) -> int:
    from afjax.cli.store_lines import verify_lines

    lines, all_intact = verify_lines(arguments.store)
    print("\n".join(lines))
    return 0 if all_intact else 2


def _pack(arguments: argparse.Namespace) -> None:
    from afjax import share
    from afjax.cli.store_lines import shared_lines

    options = flags(arguments, "kind", "head", "license")
    shared = share.pack(arguments.store, arguments.name, arguments.output, **options)
    print("\n".join(shared_lines(f"{arguments.output} contains", shared, received=False)))


def _unpack(arguments: argparse.Namespace) -> None:
    from afjax import share
    from afjax.cli.store_lines import shared_lines

    manifests = share.unpack(arguments.file, arguments.store, **flags(arguments, "name", "overwrite"))
    print("\n".join(shared_lines(f"{arguments.store} now contains", manifests, received=True)))


def _push(arguments: argparse.Namespace) -> None:
    from afjax import share

    options = flags(arguments, "kind", "head", "license", "private")
    print(share.push(arguments.store, arguments.name, arguments.repo, **options))


def _pull(arguments: argparse.Namespace) -> None:
    from afjax import share
    from afjax.cli.store_lines import shared_lines

    manifests = share.pull(arguments.repo, arguments.store, **flags(arguments, "revision", "name", "overwrite"))
    print("\n".join(shared_lines(f"{arguments.store} now contains", manifests, received=True)))
