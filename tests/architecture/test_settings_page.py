"""docs/settings.md lists every setting with its default, bounds and variable, and none that is not there."""

import re

from panal.core.settings import Settings
from panal.core.settings_reading import PREFIX, Rule, shown
from tests.architecture.pages import SOURCE, code, page, rows, source_files

NO_EFFECT = "(has no effect yet)"


def expected_rows() -> dict[str, list[str]]:
    """What the page must say of each setting, by its key, without its last cell."""
    found = {}
    for section, kind in Settings.SECTIONS.items():
        for item in kind.items():
            rule: Rule = item.metadata["rule"]
            parts = item.name.split("_")[1:]
            found[f"{section}.{item.name}"] = [
                shown(item.default, rule) or "empty",
                "seconds" if "s" in parts else "bytes" if "bytes" in parts else "",
                "" if rule.low is None else f"{rule.low:g}",
                "" if rule.high is None else f"{rule.high:.12g}",
                f"{PREFIX}{section.upper()}__{item.name.upper()}",
            ]
    return found


def documented_rows() -> dict[str, list[str]]:
    return {
        code(cells[0]): [code(cell) for cell in cells[1:]]
        for cells in rows(page("docs/settings.md"))
        if "." in cells[0] and cells[0].startswith("`")
    }


def test_every_setting_is_documented_with_its_default_and_bounds() -> None:
    found = documented_rows()
    for key, wanted in expected_rows().items():
        assert key in found, f"add to docs/settings.md: | `{key}` | {' | '.join(wanted)} | ... |"
        assert found[key][:-1] == wanted


def test_no_setting_is_documented_that_does_not_exist() -> None:
    assert documented_rows().keys() <= expected_rows().keys()


def test_every_setting_is_explained_in_the_words_of_its_own_help() -> None:
    for section, kind in Settings.SECTIONS.items():
        for item in kind.items():
            assert item.metadata["text"] in documented_rows()[f"{section}.{item.name}"][-1]


def test_settings_that_no_program_reads_are_marked_as_such() -> None:
    text = "\n".join(file.read_text() for file in source_files() if file.parent.name != "core")
    for key, cells in documented_rows().items():
        name = key.partition(".")[2]
        read = re.search(rf"\.{name}\b|[\"']{name}[\"']", text) is not None
        assert (NO_EFFECT in cells[-1]) != read, f"{key}: {'is read' if read else 'is read nowhere'}"


def test_every_other_environment_variable_is_documented() -> None:
    text = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    variables = {name for name in re.findall(r"\bPANAL_[A-Z_]+\b", text) if "__" not in name}
    listed = {code(cells[0]) for cells in rows(page("docs/settings.md"))}
    assert variables <= listed, variables - listed


def test_the_example_of_the_page_is_accepted() -> None:
    import tomllib

    from panal.core.settings import load

    example = page("docs/settings.md").split("```toml\n")[1].split("```")[0]
    environment = {
        f"PANAL_{section}__{name}".upper(): ",".join(value) if isinstance(value, list) else str(value)
        for section, values in tomllib.loads(example).items()
        for name, value in values.items()
    }
    assert load(None, environment).gateway.http_port == 7080
