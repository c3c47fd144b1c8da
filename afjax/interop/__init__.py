"""Imports adapters of other libraries and of the papers' own code, and exports adapters and models.

See ``docs/how_to/interop.md`` and ``docs/how_to/reuse.md``.
"""
