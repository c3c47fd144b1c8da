"""Serves many tasks in one batch: each row has its own adapter or fusion, and its own head."""
