"""Shows what was measured or planned: tables in the terminal, one offline HTML page.

In goes a saved or fresh `Profile`, `PlanReport`, `RunReport` or `Verification`; out comes text or,
of the first two, a page. Nothing is measured or planned here.
"""

from legroom.report._html import render_html, write_html
from legroom.report._plan_text import print_plan
from legroom.report._reportable import Reportable, data_of, load_report
from legroom.report._run_text import print_run, print_run_measured, print_run_plan
from legroom.report._show import print_report, show
from legroom.report._text import print_profile
from legroom.report._tiers_text import TierRow, print_tiers, tiers_data
from legroom.report._verify_text import print_verification
from legroom.report._ways_text import facts_of, print_way, print_ways, way_data, ways_data

__all__ = [
    "Reportable",
    "TierRow",
    "data_of",
    "facts_of",
    "load_report",
    "print_plan",
    "print_profile",
    "print_report",
    "print_run",
    "print_run_measured",
    "print_run_plan",
    "print_tiers",
    "print_verification",
    "print_way",
    "print_ways",
    "render_html",
    "show",
    "tiers_data",
    "way_data",
    "ways_data",
    "write_html",
]
