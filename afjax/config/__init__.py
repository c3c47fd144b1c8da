"""Configs: validated frozen dataclasses that convert to and from dictionaries."""
