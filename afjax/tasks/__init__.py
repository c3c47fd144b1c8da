"""What a task is: its rows, token ids, loss, metrics and predictions, for each kind of task."""
