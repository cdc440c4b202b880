"""`python -m autodial`, the command `autodial`."""

from autodial.cli import main

main()
