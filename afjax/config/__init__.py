"""Everything that a user can set: frozen dataclasses that check themselves, and their conversion from dictionaries."""
