"""Adapters of other libraries and of the papers' own code, in and out; see ``docs/interop.md``, ``docs/reuse.md``."""
