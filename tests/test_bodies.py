"""The comparison of two revisions by the bodies of their functions."""

from __future__ import annotations

from tests.bodies import bodies, named_bodies

ONE = '''
class Loop:
    """Text."""

    def run(self, worlds):
        self.a, self.b = worlds, max(worlds)
        raise ValueError(f"told {worlds} twice")
'''
RENAMED = """
import numpy


class Collector:
    def collect(self, envs):
        self.first = envs
        self.second = max(envs)
        raise ValueError(f"got {envs}")
"""


def test_a_move_a_docstring_and_an_import_change_no_body() -> None:
    documented = ONE.replace("Text.", "Other text.")
    assert bodies({"a.py": ONE}) == bodies({"b.py": f"import os\n{documented}"})
    assert bodies({"a.py": ONE}) != bodies({"a.py": RENAMED})


def test_names_and_messages_change_no_body_where_only_structure_counts() -> None:
    assert named_bodies({"a.py": ONE}) == named_bodies({"b.py": RENAMED})


def test_another_function_of_a_library_or_another_order_is_another_body() -> None:
    least = RENAMED.replace("max", "min")
    swapped = RENAMED.replace("max(envs)", "max(self)")
    assert named_bodies({"a.py": ONE}) != named_bodies({"a.py": least})
    assert named_bodies({"a.py": ONE}) != named_bodies({"a.py": swapped})


def test_the_shape_alone_leaves_out_the_names_of_libraries_and_no_structure() -> None:
    least = RENAMED.replace("max", "min")
    longer = RENAMED.replace("max(envs)", "max(envs, 0)")
    assert named_bodies({"a.py": RENAMED}, shape=True) == named_bodies({"a.py": least}, shape=True)
    assert named_bodies({"a.py": RENAMED}, shape=True) != named_bodies({"a.py": longer}, shape=True)
