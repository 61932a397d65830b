"""Small worlds of real nodes, and every order of what can happen in them (docs/explore.md)."""
