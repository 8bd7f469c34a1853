"""Settings of a Kafka client, from options, files and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.testing import CliRunner

from penstock.cli.client_settings import client_options, read_properties, with_settings
from penstock.journal.kafka.address import KafkaAddress

if TYPE_CHECKING:
    from pathlib import Path

STORE = "kafka://one:9092,two:9092"


@click.command()
@click.argument("url")
@client_options
def probe(url: str) -> None:
    click.echo(with_settings(url))


def settings(*arguments: str, **environment: str) -> dict[str, str]:
    done = CliRunner().invoke(probe, [STORE, *arguments], env=dict(environment))
    assert done.exit_code == 0, done.output
    return dict(KafkaAddress.parse(done.output.strip()).options)


def test_a_file_is_read_as_java_reads_it() -> None:
    text = """\
# one
! two

kafka.client.id = me
sasl.jaas.config=a \\
    b=c;
"""
    assert read_properties(text) == {"client.id": "me", "sasl.jaas.config": "a b=c;"}


def test_options_go_before_the_file_and_the_address_before_both(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=file\nclient.rack=r1\nbootstrap.servers=other:1\n")
    expected = {
        "bootstrap.servers": "one:9092,two:9092",
        "client.id": "option",
        "client.rack": "r1",
    }
    for order in (
        ("--option", "kafka.client.id=option", "--client-config", str(file)),
        ("--client-config", str(file), "--option", "client.id=option"),
    ):
        assert settings(*order) == expected
    by_variable = settings("--option", "client.id=option", PENSTOCK_CLIENT_CONFIG=str(file))
    assert by_variable == expected


def test_the_environment_fills_in_and_a_value_may_have_equals_signs() -> None:
    found = settings(
        "--option", 'sasl.jaas.config=x a="${env:ONE}" b="${env:TWO}";', ONE="1=", TWO="2"
    )
    assert found["sasl.jaas.config"] == 'x a="1=" b="2";'


def test_without_settings_the_address_is_as_it_was() -> None:
    for url in (STORE, "file:///data", "/data"):
        assert CliRunner().invoke(probe, [url]).output.strip() == url


def test_what_is_wrong_is_said_without_the_value() -> None:
    for text, word in (("secret", "NAME=VALUE"), ("a=${env:NOT_THERE_AT_ALL}", "NOT_THERE_AT_ALL")):
        done = CliRunner().invoke(probe, [STORE, "--option", text])
        assert done.exit_code == 2
        assert word in done.output
        assert "secret" not in done.output
    done = CliRunner().invoke(probe, ["/data", "--option", "a=secret"])
    assert done.exit_code == 2
    assert "secret" not in done.output
