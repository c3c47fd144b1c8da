"""Configs: frozen dataclasses that validate their fields and convert to and from dictionaries."""
