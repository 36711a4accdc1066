"""What commands that only list import: the data log, rows of runs and gates, and usage."""
