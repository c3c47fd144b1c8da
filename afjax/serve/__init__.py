"""Serves many tasks in one batch.

Each row has its own adapter or fusion, and its own head.
"""
