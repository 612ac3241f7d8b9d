"""Who may import whom: the import direction of the house, read from the sources."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

EVERYTHING = {"actors", "api", "bench", "draft", "kernels", "kv", "models", "spec"}
MAY_IMPORT = {
    "": EVERYTHING,
    "bench": EVERYTHING - {"bench"},
    "draft": {"actors", "spec", "models", "kernels", "kv"},
    "api": {"actors"},
    "actors": {"spec", "kv"},
    "spec": {"models", "kernels", "kv"},
    "models": {"kernels"},
    "kernels": set(),
    "kv": set(),
}
MODULES_MAY_IMPORT = {
    "api": {"spec.params"},
    "actors.machine": {"models"},
    "actors.system": {"models", "kernels"},
    "actors.wanted": {"models"},
    "kv.layers": {"kernels"},
    "kv.staging": {"kernels"},
    "kv.tensors": {"kernels"},
}
DEVICE_LIBRARIES = {"torch", "triton", "transformers", "safetensors", "gguf"}
DEVICE_CODE = {"bench", "draft", "kernels", "models", "spec"}
LONGEST = 300


def allowed(module, target: str) -> bool:
    folder = target.partition(".")[0]
    extra = MODULES_MAY_IMPORT.get(module.folder, set()) | MODULES_MAY_IMPORT.get(
        module.name, set()
    )
    return (
        target == ""
        or (module.folder != "" and folder == module.folder)
        or (module.folder == "" and target != "__main__" and "." not in target)
        or folder in MAY_IMPORT[module.folder]
        or folder in extra
        or target in extra
    )


def test_the_folders_are_the_ones_the_rules_know(house):
    assert {m.folder for m in house.modules.values()} == set(MAY_IMPORT)


def test_imports_follow_the_direction_of_the_house(house):
    wrong = []
    for module in house.modules.values():
        for found in module.imports():
            target = house.resolve(found.target)
            if target is not None and not allowed(module, target):
                wrong.append(f"{module.path.name}:{found.line}: {module.name} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_only_device_code_touches_device_libraries(house):
    exempt = {
        "kv.layers",
        "kv.staging",
        "kv.tensors",
        "actors.machine",
        "actors.system",
        "actors.wanted",
    }
    wrong = [
        f"{module.name}:{found.line} imports {found.target}"
        for module in house.modules.values()
        if module.folder not in DEVICE_CODE and module.name not in exempt
        for found in module.imports()
        if found.target.partition(".")[0] in DEVICE_LIBRARIES
    ]
    assert not wrong, "\n".join(wrong)


def test_inside_the_package_imports_are_relative(house):
    wrong = [
        f"{module.name}:{node.lineno}"
        for module in house.modules.values()
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.ImportFrom) and not node.level and node.module)
        and node.module.partition(".")[0] == "paceline"
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles(house):
    graph = {
        name: {
            target
            for found in module.imports()
            if found.at_load and (target := house.resolve(found.target)) not in (None, "", name)
        }
        for name, module in house.modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


def test_kernels_package_is_a_docstring_only(house):
    """transformers takes a folder named `kernels` for a library of that name and asks it things."""
    body = house.modules["kernels"].tree.body
    assert len(body) == 1
    assert ast.get_docstring(house.modules["kernels"].tree)


def test_modules_are_short_and_say_what_they_are(house):
    long = {m.name: n for m in house.modules.values() if (n := m.text.count("\n")) > LONGEST}
    silent = [m.name for m in house.modules.values() if ast.get_docstring(m.tree) is None]
    assert not long
    assert not silent
