"""Imports and exports adapters and models in other formats.

afjax imports adapters from other libraries and from the papers' released code. See ``docs/how_to/adapterhub.md``,
``docs/how_to/peft.md``, ``docs/how_to/papers.md`` and ``docs/how_to/export.md``.
"""
