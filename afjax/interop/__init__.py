"""Imports adapters of other libraries and of the papers' own code, and exports adapters and models.

See ``docs/interop.md`` and ``docs/reuse.md``.
"""
