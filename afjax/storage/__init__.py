"""Files on disks and object stores: paths, atomic writes, JSON."""
