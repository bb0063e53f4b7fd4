"""Tests of the cameras beside an arm."""
