"""What the documents name is there: files, packages, links, fields, libraries, decisions."""

import re
import tomllib

import pytest

from panal.policy.body_rules import _NEVER_CONTINUED
from panal.policy.owner_values import policy_for
from tests.architecture.pages import ROOT, SOURCE, code, codes, fenced, links, page, pages, part, rows

FILE = re.compile(r"[a-z_]+(?:/[a-z_0-9]+)+\.py")
CHECKED_IN_TURN = [path.relative_to(ROOT).as_posix() for path in pages()]
ADR = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


@pytest.mark.parametrize("name", CHECKED_IN_TURN)
def test_every_link_between_documents_leads_somewhere(name: str) -> None:
    for link in links(page(name)):
        target, _, heading = link.partition("#")
        if "://" in target:
            continue
        file = (ROOT / name).parent / target if target else ROOT / name
        assert file.exists(), f"{name} links to {link}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
            assert heading in anchors, f"{name} links to {link}"


@pytest.mark.parametrize("name", CHECKED_IN_TURN)
def test_every_source_file_that_a_document_names_is_there(name: str) -> None:
    for named in codes(page(name)):
        if FILE.fullmatch(named) and not named.startswith("panal/"):
            assert (SOURCE / named).is_file() or (ROOT / named).is_file(), f"{name} names {named}"


def test_the_architecture_names_a_file_of_every_step() -> None:
    steps = re.split(r"^\d+\. ", part(page("ARCHITECTURE.md"), "The life of a request"), flags=re.MULTILINE)
    assert len(steps) - 1 >= 10
    for step in steps[1:]:
        assert any(FILE.fullmatch(named) for named in codes(step)), step


def test_every_file_in_the_picture_of_processes_is_there() -> None:
    for named in FILE.findall(part(page("ARCHITECTURE.md"), "Processes, and who starts whom")):
        assert (SOURCE / named).is_file(), named


def test_the_layers_of_the_architecture_are_those_that_are_enforced() -> None:
    block = part(page("ARCHITECTURE.md"), "Layers").split("```")[1]
    contract = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    enforced = [layer.replace("(", "").replace(")", "") for layer in contract["layers"]]
    assert block.split("\n")[1:-1] == enforced


def test_every_package_is_in_a_layer_of_the_architecture() -> None:
    block = part(page("ARCHITECTURE.md"), "Layers").split("```")[1]
    packages = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"[a-z]+", block))


def test_every_decision_is_in_the_index_and_says_what_it_is() -> None:
    index = links(page("docs/adr/README.md"))
    assert [path.name for path in ADR] == sorted(index)
    numbers = [path.name[:4] for path in ADR]
    assert len(numbers) == len(set(numbers))
    for path in ADR:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(rf"# {path.name[:4]}:? \S", first), f"{path.name} begins with {first!r}"


def test_every_library_that_is_installed_has_its_reason_in_the_decision() -> None:
    reasons = (ROOT / "docs" / "adr" / "0001-layers.md").read_text(encoding="utf-8")
    wanted = tomllib.loads(page("pyproject.toml"))["project"]["dependencies"]
    for requirement in wanted:
        library = re.split(r"[\[<>=; ]", requirement)[0]
        assert library in reasons.lower(), f"docs/adr/0001-layers.md gives no reason for {library}"


def test_the_fields_that_are_never_continued_are_listed() -> None:
    listed = set(codes(part(page("docs/resume.md"), "What is never continued")))
    assert listed >= _NEVER_CONTINUED, _NEVER_CONTINUED - listed


def test_the_owner_s_times_are_those_of_the_code() -> None:
    from panal.core.nodes import NodeClass
    from panal.core.settings import OwnerSettings

    table = {cells[0]: cells[1:] for cells in rows(page("docs/settings.md")) if len(cells) == 4}
    for node_class in NodeClass:
        policy = policy_for(node_class, OwnerSettings())
        idle, cooldown, drain = table[node_class.value]
        assert drain == f"{policy.drain_s:g} s"
        if policy.owned:
            assert [idle, cooldown] == [f"{policy.idle_s:g} s", f"{policy.cooldown_s:g} s"]


def test_every_word_of_the_design_has_one_meaning() -> None:
    words = [code(cells[0]).strip("*") for cells in rows(page("GLOSSARY.md"))]
    assert len(words) == len(set(words))
    needed = {
        "node", "agent", "engine", "model", "deployment", "replica", "fleet", "snapshot", "heartbeat", "site",
        "routing", "placement", "admission", "attempt", "frame", "resume", "hand-over", "cordon", "drain",
        "yield", "principal", "role", "data class", "residency", "TTFT", "ITL", "TPOT", "goodput", "PUE",
    }  # fmt: skip
    assert needed <= set(words), needed - set(words)


@pytest.mark.parametrize("name", CHECKED_IN_TURN)
def test_tables_have_as_many_cells_as_their_heading(name: str) -> None:
    width = 0
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.sub(r"`[^`]*`", "x", line).replace("\\|", "x").strip().strip("|").split("|"))
        if line.count("|") < 2:
            continue
        width = width or cells
        assert cells == width, f"{name}: {line}"


def test_the_readme_begins_with_two_sentences_and_the_two_commands() -> None:
    title, words, *_rest = page("README.md").split("\n\n")
    assert title == "# panal"
    assert len(re.findall(r"\.(?:\s|$)", words)) == 2
    block = page("README.md").split("```")[1]
    assert [line.split("#")[0].strip() for line in block.strip().splitlines()] == ["make up", "make test"]


def test_every_make_target_in_a_document_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for line in [*fenced(text), *codes(text)]:
            if line.startswith("make "):
                assert line.split()[1] in targets, f"{path.name}: {line}"
