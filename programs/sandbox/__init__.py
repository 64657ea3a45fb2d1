"""Runs hostile programs without harm to the machine: see "How it works" in ../README.md."""
