"""Kafka's jars: fetched once by package name, and kept in the user's cache folder.

The resolver is Apache Ivy, which PySpark carries for its own packages: neither a Maven nor a
download address is needed. Whoever has a mirror names a settings file of Ivy's in IVY_SETTINGS.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.locks import locked
from penstock.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

FETCH_SECONDS_MAX: Final = 900.0
"""A first fetch takes 40 s. A registry that is slower than this by far does not answer."""
_SETTINGS_VARIABLE: Final = "IVY_SETTINGS"
_LINES_SHOWN_MAX: Final = 12
_DESCRIPTION: Final = """\
<ivy-module version="2.0">
  <info organisation="penstock" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


class KafkaUnavailableError(ConfigurationError):
    """Kafka's jars are not here and cannot be fetched. Install PySpark and Java, let this machine
    reach a registry of Java packages, or copy the named folder from a machine that has it."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"the jars of {self.folder} cannot be fetched: {self.reason}. Let this machine reach a "
            f"registry of Java packages (a mirror by {_SETTINGS_VARIABLE}, a settings file of "
            "Ivy's), or copy that folder from a machine that has it"
        )


@dataclass(frozen=True, slots=True)
class Package:
    organisation: str
    name: str
    version: str
    alone: bool = False
    """Without the packages that it depends on."""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Packages that are fetched, checked and kept together. A version of them is in the name, so
    that another version is another folder."""

    name: str
    packages: tuple[Package, ...]


KAFKA: Final = JarSet(
    "kafka-4.3.1",
    (
        Package("org.apache.kafka", "kafka_2.13", "4.3.1"),
        # Kafka logs through slf4j and brings nothing along that writes.
        Package("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)
DEBEZIUM: Final = JarSet(
    "debezium-3.4.0",
    # Kafka Connect, which runs connectors with no code of ours, and the one for PostgreSQL.
    (
        Package("io.debezium", "debezium-connector-postgres", "3.4.0.Final"),
        Package("org.apache.kafka", "connect-runtime", "4.3.1"),
        Package("org.apache.kafka", "connect-json", "4.3.1"),
        Package("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)
SPARK_KAFKA: Final = JarSet(
    "spark-kafka-4.2.0",
    # Spark 4.3.0 has published no Kafka source of its own. This set works with it.
    (
        Package("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
        Package(
            "org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", alone=True
        ),
        Package("org.apache.kafka", "kafka-clients", "3.9.2", alone=True),
        Package("org.apache.commons", "commons-pool2", "2.13.1", alone=True),
    ),
)


def kafka_jars() -> list[Path]:
    """The jars of a broker and of the Java client, in the order of a class path."""
    return installed(KAFKA)


def debezium_jars() -> list[Path]:
    """The jars of Kafka Connect and of Debezium's connector for PostgreSQL."""
    return installed(DEBEZIUM)


def spark_kafka_jars() -> list[Path]:
    """The jars of Spark's own Kafka source, for `spark.jars` of PySpark 4.3."""
    return installed(SPARK_KAFKA)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def installed(jars: JarSet) -> list[Path]:
    """The jars of a set; they are fetched if they are not here. KafkaUnavailableError if they
    cannot be had."""
    folder = cache_folder() / jars.name
    if not folder.is_dir():
        _fetch_once(jars, folder)
    return sorted(folder.glob("*.jar"))


def _fetch_once(jars: JarSet, folder: Path) -> None:
    """One process fetches, the others wait. What is not whole never has the folder's name."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise KafkaUnavailableError(str(folder), f"the folder cannot be made: {error}") from error
    try:
        with locked(descriptor, FETCH_SECONDS_MAX):
            if folder.is_dir():
                return
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as place:
                fetched = _fetch(jars, folder, Path(place))
                _check(jars, folder, fetched)
                fetched.rename(folder)
    finally:
        os.close(descriptor)


def _fetch(jars: JarSet, folder: Path, place: Path) -> Path:
    """Runs Ivy, with everything that it writes below `place`."""
    description, fetched, output = place / "ivy.xml", place / "jars", place / "output"
    description.write_text(_describe(jars))
    settings = os.environ.get(_SETTINGS_VARIABLE)
    command = [
        str(_java(folder)),
        f"-Divy.default.ivy.user.dir={place / 'user'}",
        *("-cp", os.pathsep.join(map(str, _resolver(folder))), "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(place / "cache"), "-ivy", str(description), "-confs", "default"),
        *("-retrieve", f"{fetched}/[artifact]-[revision](-[classifier]).[ext]"),
        *("-types", "jar", "bundle"),
    ]
    say(f"fetching {jars.name} by package name, once, into {folder.parent}")
    try:
        with output.open("wb") as written:
            done = subprocess.run(  # noqa: S603 - Java, with jars of PySpark's
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        reason = f"the resolver was not done after {FETCH_SECONDS_MAX:.0f} s"
        raise KafkaUnavailableError(str(folder), reason) from error
    if done.returncode != 0:
        lines = [line for line in _lines(output) if "::" in line or "Error" in line]
        reason = "the resolver says: " + "; ".join(lines[:_LINES_SHOWN_MAX])
        raise KafkaUnavailableError(str(folder), reason)
    say(f"fetched {jars.name}: {sum(1 for _ in fetched.glob('*.jar'))} jars")
    return fetched


def _describe(jars: JarSet) -> str:
    dependencies = (
        f'    <dependency org="{package.organisation}" name="{package.name}"'
        f' rev="{package.version}" conf="default->{"master" if package.alone else "default"}"/>'
        for package in jars.packages
    )
    return _DESCRIPTION.format(name=jars.name, dependencies="\n".join(dependencies))


def _check(jars: JarSet, folder: Path, fetched: Path) -> None:
    """Holds what was fetched to the checksums that come with Penstock, as the lock of its Python
    packages does: another registry gives the very same files."""
    found = {path.name: _checksum(path) for path in fetched.glob("*.jar")}
    expected = dict(_expected(_checksums(jars)))
    wrong = sorted(name for name in expected if found.get(name) != expected[name])
    wrong += sorted(found.keys() - expected.keys())
    if wrong:
        names = ", ".join(wrong[:_LINES_SHOWN_MAX])
        reason = f"these are not the jars that Penstock was tested with: {names}"
        raise KafkaUnavailableError(str(folder), reason)


def _checksums(jars: JarSet) -> Traversable:
    return resources.files(__package__) / f"{jars.name}.sha256"


def _expected(checksums: Traversable) -> Iterator[tuple[str, str]]:
    for line in checksums.read_text().splitlines():
        checksum, _, name = line.partition("  ")
        yield name, checksum


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _java(folder: Path) -> Path:
    try:
        return find_java_home() / "bin" / "java"
    except ConfigurationError as error:
        raise KafkaUnavailableError(str(folder), str(error)) from error


def pyspark_jars() -> Path | None:
    """The folder of the jars that PySpark carries, if it is installed."""
    found = util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "jars"


def _resolver(folder: Path) -> list[Path]:
    carried = pyspark_jars()
    if carried is None:
        reason = "the package pyspark, which carries the resolver, is not installed"
        raise KafkaUnavailableError(str(folder), reason)
    return [*carried.glob("ivy-*.jar"), *carried.glob("commons-cli-*.jar")]


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]


def say(text: str) -> None:
    """A line for the person who waits."""
    sys.stderr.write(f"kafka: {text}\n")
    sys.stderr.flush()
