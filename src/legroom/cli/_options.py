"""Options and arguments that several commands share, each written once."""

import click

rows_option = click.option(
    "--rows",
    default=10,
    type=click.IntRange(min=1),
    show_default=True,
    help="Rows in the tables of lines.",
)
json_option = click.option(
    "--json", "json_path", metavar="FILE", help="Write everything as JSON; - is stdout."
)
html_option = click.option(
    "--html", "html_path", metavar="FILE", help="Write a page that opens offline."
)
module_option = click.option(
    "-m", "is_module", is_flag=True, help="SCRIPT is a module, as in `python -m`."
)
script_argument = click.argument("script")
script_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
