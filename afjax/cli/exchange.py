"""The commands that bring artefacts into a store and out of one: ``import``, ``export`` and sharing."""

import argparse

from afjax.cli.stored_model import load_stored_model, set_up_libraries


def import_adapterhub(arguments: argparse.Namespace) -> int:
    from afjax.interop.adapterhub import import_adapterhub
    from afjax.trunk.pretrained import load_trunk

    set_up_libraries()
    imported = import_adapterhub(
        arguments.source,
        arguments.store,
        name=arguments.name,
        trunk=load_trunk(arguments.trunk) if arguments.trunk else None,
        overwrite=arguments.overwrite,
    )
    for artefact in imported:
        print("; ".join([f"{artefact.kind}/{artefact.name}", *artefact.notes]))
    return 0


def import_adapter_bert(arguments: argparse.Namespace) -> int:
    from afjax.cli import import_papers

    print("\n".join(import_papers.adapter_bert(arguments)))
    return 0


def import_bert(arguments: argparse.Namespace) -> int:
    from afjax.cli import import_papers

    print("\n".join(import_papers.bert(arguments)))
    return 0


def import_bert_n_pals(arguments: argparse.Namespace) -> int:
    from afjax.cli import import_papers

    print("\n".join(import_papers.bert_n_pals(arguments)))
    return 0


def export_adapterhub(arguments: argparse.Namespace) -> int:
    from afjax.interop.adapterhub import export_adapterhub

    written = export_adapterhub(
        arguments.store,
        arguments.name,
        arguments.output,
        kind=arguments.kind,
        weights=arguments.weights,
        num_choices=arguments.num_choices,
    )
    for what, where in written:
        print(f"{where}: {what}")
    return 0


def export_stablehlo(arguments: argparse.Namespace) -> int:
    from afjax.interop.stablehlo import check_platforms, description_path, export_stablehlo

    platforms = check_platforms(arguments.platforms.split(","))
    about = export_stablehlo(
        load_stored_model(arguments), arguments.output, max_length=arguments.max_length, platforms=platforms
    )
    size, names = about["file"]["bytes"] / 1e6, ", ".join(about["platforms"])
    print(f"{arguments.output}: {size:.1f} MB, for {names}; {description_path(arguments.output)} says how to run it.")
    return 0


def pack(arguments: argparse.Namespace) -> int:
    from afjax import share
    from afjax.cli.store import shared_lines

    shared = share.pack(
        arguments.store, arguments.name, arguments.output, kind=arguments.kind, license=arguments.license
    )
    print("\n".join(shared_lines(f"{arguments.output} has", shared)))
    return 0


def unpack(arguments: argparse.Namespace) -> int:
    from afjax import share
    from afjax.cli.store import shared_lines

    found = share.unpack(arguments.file, arguments.store, name=arguments.name, overwrite=arguments.overwrite)
    print("\n".join(shared_lines(f"{arguments.store} now has", found)))
    return 0


def push(arguments: argparse.Namespace) -> int:
    from afjax import share

    options = {"kind": arguments.kind, "license": arguments.license, "private": arguments.private}
    print(share.push(arguments.store, arguments.name, arguments.repo, **options))
    return 0


def pull(arguments: argparse.Namespace) -> int:
    from afjax import share
    from afjax.cli.store import shared_lines

    options = {"revision": arguments.revision, "name": arguments.name, "overwrite": arguments.overwrite}
    found = share.pull(arguments.repo, arguments.store, **options)
    print("\n".join(shared_lines(f"{arguments.store} now has", found)))
    return 0
