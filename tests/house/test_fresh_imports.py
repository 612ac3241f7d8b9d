"""Every module imports alone, and those that must not need torch do not pull it in.

A parent process imports the libraries once; each module is then imported in a fork of its own,
where no other module of the house has been imported yet.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PURE_SPEC = {
    *("params", "plan", "judge", "pacing", "ngram", "slots", "drafter", "guide", "tally"),
    *(
        "occurrences",
        "suffix",
        "suffix_memory",
        "glimpse",
        "costs",
        "acceptance",
        "gain",
        "draft_lengths",
    ),
    *("grammar", "grammar_compiler", "grammar_schema", "grammar_text", "grammar_trial"),
}
PURE_MODELS = {"errors", "progress", "cache", "demo", "source", "tokenizer"}
DEVICE_MODULES = {
    *(
        "actors.machine",
        "actors.system",
        "actors.wanted",
        "kv.layers",
        "kv.staging",
        "kv.tensors",
        "serving",
    ),
}

RUNNER = """
import importlib, json, os, sys, traceback

libraries, forbidden, modules = json.loads(sys.argv[1])
for library in libraries:
    importlib.import_module(library)
present = [name for name in forbidden if name in sys.modules]
assert not present, f"the libraries alone pull in {present}"
problems = {}
for module in modules:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            importlib.import_module(module)
            bad = [name for name in forbidden if name in sys.modules]
            said = f"pulls in {', '.join(bad)}" if bad else ""
        except BaseException:
            said = traceback.format_exc()
        os.write(write, said[-4000:].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        if said := pipe.read():
            problems[module] = said
    os.waitpid(child, 0)
print(json.dumps(problems))
"""


def import_each(root, libraries, forbidden, modules) -> None:
    job = json.dumps([libraries, forbidden, modules])
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, job], cwd=root, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout.splitlines()[-1])
    assert not problems, "\n".join(f"{name}: {said}" for name, said in problems.items())


def is_torch_free(module) -> bool:
    leaf = module.name.rpartition(".")[2]
    match module.folder:
        case "" | "api" | "actors" | "kv":
            return module.name not in DEVICE_MODULES
        case "spec":
            return leaf in PURE_SPEC
        case "models":
            return leaf in PURE_MODELS
    return False


def importable(house):
    return [module for module in house.modules.values() if module.name != "__main__"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_every_module_imports_alone(house):
    libraries = ["torch", "transformers", "numpy", "aiohttp", "pydantic_settings", "structlog"]
    names = [module.full_name for module in importable(house)]
    import_each(house.root, libraries, [], names)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_the_torch_free_half_is_torch_free(house):
    names = [module.full_name for module in importable(house) if is_torch_free(module)]
    assert {f"paceline.spec.{leaf}" for leaf in PURE_SPEC} <= set(names)
    libraries = ["aiohttp", "msgspec", "pydantic_settings", "structlog"]
    import_each(house.root, libraries, ["torch", "transformers"], names)


def test_transformers_is_not_confused_by_our_folder_names(house):
    done = subprocess.run(
        [sys.executable, "-c", "import transformers.modeling_utils, kernels; print(kernels)"],
        cwd=house.root,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert str(house.root / "kernels") in done.stdout, "this test no longer meets the hazard"
