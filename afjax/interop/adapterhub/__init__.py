"""AdapterHub, both ways: what the ``adapters`` library on PyTorch saves, into a store and out of one.

:mod:`~afjax.interop.adapterhub.files` has the layout of its folders, ``adapters``, ``fusion`` and ``heads`` the tables
between its settings and tensors and ours.
"""

from afjax.interop.adapterhub.exporting import export_adapterhub
from afjax.interop.adapterhub.importing import Imported, import_adapterhub

__all__ = ["Imported", "export_adapterhub", "import_adapterhub"]
