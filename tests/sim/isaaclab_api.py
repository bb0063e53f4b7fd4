"""Records the part of Isaac Lab's API that `sim.engines.isaac_lab` meets, from a wheel's source,
without importing it.

`python -m tests.sim.isaaclab_api isaaclab-3.0.0-py3-none-any.whl` writes `isaaclab_api.json` beside
this file.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_suffix(".json")
FUNCTIONS = {
    "isaaclab.app.launch_simulation": "isaaclab/app/sim_launcher.py",
    "isaaclab_tasks.utils.parse_env_cfg": "isaaclab_tasks/utils/parse_cfg.py",
}
CLASSES = {
    "ManagerBasedEnv": "isaaclab/envs/manager_based_env.py",
    "ManagerBasedRLEnv": "isaaclab/envs/manager_based_rl_env.py",
    "DirectRLEnv": "isaaclab/envs/direct_rl_env.py",
    "TerminationManager": "isaaclab/managers/termination_manager.py",
    "InteractiveScene": "isaaclab/scene/interactive_scene.py",
    "SimulationContext": "isaaclab/sim/simulation_context.py",
    "ManagerBasedEnvCfg": "isaaclab/envs/manager_based_env_cfg.py",
    "ManagerBasedRLEnvCfg": "isaaclab/envs/manager_based_rl_env_cfg.py",
    "DirectRLEnvCfg": "isaaclab/envs/direct_rl_env_cfg.py",
}


def record(wheel: Path) -> dict[str, Any]:
    """Parameters of the functions above; methods, properties and attributes of the classes
    above."""
    with zipfile.ZipFile(wheel) as archive:
        trees = {
            file: ast.parse(archive.read(file))
            for file in sorted({*FUNCTIONS.values(), *CLASSES.values()})
        }
    return {
        "wheel": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "functions": {
            path: _parameters(_definition(trees[file], path.rpartition(".")[2], ast.FunctionDef))
            for path, file in FUNCTIONS.items()
        },
        "classes": {
            name: _class(_definition(trees[file], name, ast.ClassDef))
            for name, file in CLASSES.items()
        },
    }


def _definition(
    tree: ast.Module, name: str, kind: type[ast.ClassDef] | type[ast.FunctionDef]
) -> Any:
    return next(node for node in tree.body if isinstance(node, kind) and node.name == name)


def _class(node: ast.ClassDef) -> dict[str, Any]:
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    properties = {
        item.name for item in functions if "property" in map(ast.unparse, item.decorator_list)
    }
    fields = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    assigned = {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id == "self"
    }
    return {
        "bases": [ast.unparse(base) for base in node.bases],
        "methods": {
            item.name: _parameters(item) for item in functions if item.name not in properties
        },
        "properties": sorted(properties),
        "attributes": sorted(fields | assigned),
    }


def _parameters(node: ast.FunctionDef) -> list[dict[str, Any]]:
    """Name, kind (as `inspect.Parameter` calls it) and whether there is a default; a method's
    `self` left out."""
    parameters, arguments = [], node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    for i, argument in enumerate(positional):
        kind = "POSITIONAL_ONLY" if i < len(arguments.posonlyargs) else "POSITIONAL_OR_KEYWORD"
        parameters.append({"name": argument.arg, "kind": kind, "default": i >= without})
    if arguments.vararg:
        parameters.append(
            {"name": arguments.vararg.arg, "kind": "VAR_POSITIONAL", "default": False}
        )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            {"name": argument.arg, "kind": "KEYWORD_ONLY", "default": default is not None}
        )
    if arguments.kwarg:
        parameters.append({"name": arguments.kwarg.arg, "kind": "VAR_KEYWORD", "default": False})
    return [parameter for parameter in parameters if parameter["name"] not in ("self", "cls")]


if __name__ == "__main__":
    RECORD.write_text(
        json.dumps(record(Path(sys.argv[1])), separators=(",", ":"), sort_keys=True) + "\n"
    )
