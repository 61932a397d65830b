"""`python -m tools.reconcile check DIR...`: the same as `foreshore reconcile check`."""

from tools.reconcile.cli import main

main()
