"""All settings: frozen dataclasses that validate their fields, and conversion from and to dictionaries."""
