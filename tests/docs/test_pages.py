"""What the pages and READMEs name of the tree is there, and whoever follows a line that installs gets all that it needs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo import tree

DOCS = tree.ROOT / "docs"
READMES = (tree.ROOT / "README.md", *sorted(tree.ROOT.glob("packages/*/README.md")))
PAGES = (*READMES, *sorted(DOCS.rglob("*.md")))
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")


def local_needs(package: str) -> set[str]:
    """Packages of this tree that a package of it needs."""
    project = tomllib.loads((tree.ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.split(r"[^\w-]", needed)[0] for needed in project["project"]["dependencies"]}
    return {name for name in names if (tree.ROOT / "packages" / name).is_dir()}


def installs() -> Iterator[tuple[str, set[str]]]:
    """Every line that installs packages of the tree from a clone: the page, and which."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^(?:uv )?pip install .*$", text, re.MULTILINE):
            if packages := set(re.findall(r"\./packages/([\w-]+)", line)):
                yield page.relative_to(tree.ROOT).as_posix(), packages


def test_a_line_that_installs_from_the_clone_has_all_that_is_on_no_index() -> None:
    pages = [page for page, _ in installs()]
    assert pages.count("docs/installing-engines.md") == 2
    assert {"docs/getting-started.md", "packages/model-minicpmo/README.md"} <= set(pages)
    for page, packages in installs():
        if page != "docs/turn-detection.md":  # adds an extra to what is installed already
            assert set().union(*map(local_needs, packages)) <= packages, page


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.relative_to(tree.ROOT).as_posix())
def test_what_a_readme_names_of_the_repository_is_there(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    named = {readme.parent / link for link in LINK.findall(text)}
    named |= {tree.ROOT / path for path in re.findall(r"`((?:docs|packages)/[\w./-]+\.md)`", text)}
    assert named
    assert [path for path in named if not path.is_file()] == []


def test_the_first_page_of_the_repository_leads_to_all_that_the_documentations_does() -> None:
    from_readme = {(tree.ROOT / link).resolve() for link in LINK.findall(READMES[0].read_text(encoding="utf-8"))}
    from_index = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert from_index <= from_readme
    top = {path.resolve() for path in (*DOCS.glob("*.md"), *DOCS.glob("models/*.md"))}
    assert top - {(DOCS / "index.md").resolve()} <= from_readme


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/getting-started.md", "docs/models/minicpmo.md"])
def test_that_there_is_no_web_page_is_said(page: str) -> None:
    assert "There is no web page" in (tree.ROOT / page).read_text(encoding="utf-8")
