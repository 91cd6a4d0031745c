"""Rules that every source file keeps: small, explained, silent, without addresses of one machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.pages import ROOT, SOURCE, source_files, tracked_files

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
FILES_TOO_LONG: dict[str, str] = {}
"""Name -> reason."""
FUNCTIONS_TOO_LONG: dict[str, str] = {}
"""``file: function`` -> reason."""

PARSED = {
    path.relative_to(SOURCE).as_posix(): (path.read_text(encoding="utf-8"), ast.parse(path.read_bytes()))
    for path in source_files()
}

REGISTRIES = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "crates" + ".io/api",
)
MACHINE_PATHS = re.compile(r"(?<![\w.:$}])/(?:" + "work|root|home/[a-z]|Users/[a-z]|tmp/v" + r")(?:/|\b)")


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def outside_of_the_command_line() -> dict[str, ast.Module]:
    return {name: tree for name, (_text, tree) in PARSED.items() if not name.startswith("cli/")}


def test_every_file_says_what_it_is_for() -> None:
    silent = [name for name, (text, tree) in PARSED.items() if not ast.get_docstring(tree)]
    assert [name for name in silent if not (name.endswith("__init__.py") and not PARSED[name][0])] == []


def test_no_file_is_too_long() -> None:
    lengths = {name: text.count("\n") for name, (text, _tree) in PARSED.items()}
    too_long = {name for name, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert too_long == FILES_TOO_LONG.keys()


def test_no_function_is_too_long() -> None:
    too_long = {
        f"{name}: {function.name}"
        for name, (_text, tree) in PARSED.items()
        for function in functions(tree)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert too_long == FUNCTIONS_TOO_LONG.keys()


def test_only_the_command_line_prints() -> None:
    printing = [
        name
        for name, tree in outside_of_the_command_line().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


LOOKS_AT_THE_ENVIRONMENT = {
    "node/engines/process.py": "chooses what of the environment an engine's program may see",
}


def test_only_the_command_line_looks_at_the_environment() -> None:
    looking = {
        name
        for name, tree in outside_of_the_command_line().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv")
    }
    assert looking == LOOKS_AT_THE_ENVIRONMENT.keys()


def test_no_module_is_called_utils_or_the_like() -> None:
    forbidden = {"utils", "util", "helpers", "common", "misc", "manager"}
    assert [name for name in PARSED if forbidden & set(Path(name).with_suffix("").parts)] == []


def test_no_registry_and_no_path_of_a_machine_is_in_a_committed_file() -> None:
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = path.relative_to(ROOT).as_posix()
        for registry in REGISTRIES:
            assert registry not in text, f"{name} names {registry}"
        found = MACHINE_PATHS.search(text)
        assert found is None, f"{name} names {found and text[found.start() : found.end() + 30]!r}"


def test_every_test_folder_mirrors_a_package() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    for folder in (ROOT / "tests" / "unit").iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert folder.name in packages, folder
