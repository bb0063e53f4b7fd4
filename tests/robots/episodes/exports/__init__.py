"""Tests of the writers of published formats."""
