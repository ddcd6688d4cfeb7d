"""Data that public training scripts read, made up: small, seeded, in the formats that they expect.

In goes a folder; out come files below `data` and `stubs`. Nothing is downloaded. Each module makes
the data of one kind, and `parts` lists them all. `beside` has sources that are copied as they are.
"""
