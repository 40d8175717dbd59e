"""The report of a run: one HTML file that needs nothing else, and its curves as PNG files.

Invariant: it is made from the run directory alone, at any moment of a run, and shows recorded numbers only.
"""

from openforge.run.report.write import write_report as write_report
