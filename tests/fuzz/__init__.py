"""Fuzzing of every reader of a file that another process, or another program, writes."""
