"""`python -m gridpact`: the command line, where its script is not on the path."""

from gridpact.cli import app

app(prog_name="gridpact")
