"""Options that several commands share, each written once."""

import click

rows_option = click.option(
    "--rows",
    default=10,
    type=click.IntRange(min=1),
    show_default=True,
    help="Rows in the tables of lines.",
)
