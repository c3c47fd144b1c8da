"""Models of a trunk, adapters, a fusion and a head: setup, inference, editing, loading and saving."""
