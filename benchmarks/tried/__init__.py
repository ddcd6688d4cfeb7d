"""Runs public training scripts, unmodified, plain and under all four commands, and compares.

In go a folder of checked-out scripts and a table of how each is called; out come what every command
answered, whether it is right, and a table for people. `python -m benchmarks.tried --help` says how.
"""
