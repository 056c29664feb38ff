"""`python -m pdecnn` is the command `pdecnn`."""

from pdecnn.cli import main

main()
