"""Imports and exports the files of AdapterHub's ``adapters`` library (PyTorch).

:mod:`~afjax.interop.adapterhub.files` describes the layout of its folders. The modules ``adapters``, ``fusion`` and
``heads`` map its settings and tensors to ours.
"""

from afjax.interop.adapterhub.exporting import export_adapterhub
from afjax.interop.adapterhub.importing import Imported, import_adapterhub

__all__ = ["Imported", "export_adapterhub", "import_adapterhub"]
