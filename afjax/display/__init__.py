"""What people see: lines and durations on a terminal, tables in HTML."""
