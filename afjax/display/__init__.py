"""Output for people: text and progress bars on a terminal, and HTML."""
