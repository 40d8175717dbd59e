"""`python -m openforge` is `openforge`."""

from openforge.cli import main

main()
