"""Jars are fetched once, whole and unchanged, or not at all with a reason.

The registry is a folder on this machine, which the very resolver reads by settings of its own.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.testing.kafka import jars
from penstock.testing.kafka.jars import JarSet, KafkaUnavailableError, Package, installed

if TYPE_CHECKING:
    from pathlib import Path

SET = JarSet("thing-1.0", (Package("org.example", "thing", "1.0"),))
SETTINGS = """\
<ivysettings>
  <settings defaultResolver="here"/>
  <resolvers><ibiblio name="here" m2compatible="true" root="file://{registry}"/></resolvers>
</ivysettings>
"""
DESCRIPTION = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId><artifactId>{name}</artifactId><version>1.0</version>
  {more}
</project>
"""
NEEDS_PART = (
    "<dependencies><dependency><groupId>org.example</groupId><artifactId>part</artifactId>"
    "<version>1.0</version></dependency></dependencies>"
)
CONTENTS = {"thing-1.0.jar": b"a thing", "part-1.0.jar": b"a part of it"}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with a thing, and a part that it needs."""
    registry = tmp_path / "registry"
    for name, more in (("thing", NEEDS_PART), ("part", "")):
        folder = registry / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True)
        (folder / f"{name}-1.0.pom").write_text(DESCRIPTION.format(name=name, more=more))
        (folder / f"{name}-1.0.jar").write_bytes(CONTENTS[f"{name}-1.0.jar"])
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(registry=registry))
    checksums = tmp_path / "checksums"
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in CONTENTS.items())
    checksums.write_text("".join(lines))
    monkeypatch.setattr(jars, "_checksums", lambda _: checksums)
    monkeypatch.setenv("IVY_SETTINGS", str(settings))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return registry


def kept(tmp_path: Path) -> list[str]:
    """What is in the cache, but for locks."""
    found = (tmp_path / "cache" / "penstock").iterdir()
    return sorted(path.name for path in found if path.suffix != ".lock")


@pytest.mark.slow
def test_a_set_comes_with_what_it_needs_and_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    found = installed(SET)
    assert {path.name: path.read_bytes() for path in found} == CONTENTS
    shutil.rmtree(registry)
    assert installed(SET) == found
    assert kept(tmp_path) == ["thing-1.0"]


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_a_package_that_is_alone_comes_without_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_check", lambda *_: None)
    alone = JarSet("alone-1.0", (Package("org.example", "thing", "1.0", alone=True),))
    assert [path.name for path in installed(alone)] == ["thing-1.0.jar"]


@pytest.mark.slow
def test_a_jar_that_was_changed_is_refused_and_nothing_is_kept(
    registry: Path, tmp_path: Path
) -> None:
    (registry / "org/example/part/1.0/part-1.0.jar").write_bytes(b"another part")
    with pytest.raises(KafkaUnavailableError, match=r"not the jars .* part-1\.0\.jar"):
        installed(SET)
    assert kept(tmp_path) == []


@pytest.mark.slow
def test_what_the_registry_lacks_is_named(registry: Path, tmp_path: Path) -> None:
    (registry / "org/example/part/1.0/part-1.0.jar").unlink()
    with pytest.raises(KafkaUnavailableError, match=r"(?s)resolver says.*part") as raised:
        installed(SET)
    assert kept(tmp_path) == []
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_of_two_processes_one_fetches(tmp_path: Path) -> None:
    program = (
        "from penstock.testing.kafka import jars\n"
        "from tests.unit.testing.kafka.test_jars import SET\n"
        "jars._check = lambda *_: None\n"
        "print(len(jars.installed(SET)))\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for _ in range(2)
    ]
    answers = [each.communicate(timeout=120) for each in both]
    assert [found for found, _ in answers] == ["2\n", "2\n"], answers
    assert sum(told.count("fetching") for _, told in answers) == 1
    assert kept(tmp_path) == ["thing-1.0"]


def test_without_java_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("penstock.spark.java._packaged", lambda: None)
    with pytest.raises(KafkaUnavailableError, match="needs Java 17"):
        installed(SET)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KafkaUnavailableError, match="folder cannot be made"):
        installed(SET)


def test_the_checksums_of_both_sets_come_with_the_package() -> None:
    for each in (jars.KAFKA, jars.SPARK_KAFKA):
        expected = dict(jars._expected(jars._checksums(each)))
        assert all(len(checksum) == 64 for checksum in expected.values())
        for package in each.packages:
            assert f"{package.name}-{package.version}.jar" in expected
