"""`python -m legroom` is the command `legroom`."""

from legroom.cli import main

main()
