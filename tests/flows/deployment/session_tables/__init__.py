"""Tests of the tables of sessions at an arm."""
