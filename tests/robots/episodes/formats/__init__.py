"""Tests of the readers and writers of published formats."""
