"""Imports adapters from other libraries and the papers' released code, and exports adapters and models.

See ``docs/how_to/adapterhub.md``, ``docs/how_to/peft.md``, ``docs/how_to/papers.md`` and ``docs/how_to/export.md``.
"""
