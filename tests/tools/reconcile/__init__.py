"""Tests of reconciliation: the judgement first, then real directories, whole and damaged, then the command."""
