"""Reading and writing files: JSON that is checked, and files that appear complete or not at all."""
