"""The code blocks of the connector pages run against real servers, with replaced addresses."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statebackend.local import LocalStreamEnvironment

if TYPE_CHECKING:
    from kafka_server import KafkaServer
    from postgres_server import PostgresServer

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks_of(page: str, **replaced: str) -> list[str]:
    """The Python blocks of a page, with replaced texts."""
    text = (DOCS / page).read_text()
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    for old, new in replaced.items():
        assert any(old in block for block in blocks), f"{page} has no {old!r}"
        blocks = [block.replace(old, new) for block in blocks]
    return blocks


def test_the_kafka_page(kafka_server: KafkaServer, tmp_path: Path) -> None:
    topics = {name: kafka_server.new_topic() for name in ("payments", "alerts")}
    kafka_server.produce(topics["payments"], [b'{"account": "a", "amount": 7}'])
    read, timed, _, write = blocks_of(
        "kafka.md",
        **{
            "broker:9092": kafka_server.settings["bootstrap.servers"],
            '"payments", start="latest"': f'"{topics["payments"]}", until="latest"',
            '}, "alerts"': f'}}, "{topics["alerts"]}"',
        },
    )
    environment = LocalStreamEnvironment(job_dir=tmp_path)
    names: dict[str, Any] = {"environment": environment}
    exec(read + timed, names)
    names["alerts"] = names["timed"].map(
        lambda record: {"account": record.topic, "n": record.offset}, schema="account string, n bigint"
    )
    exec(write, names)
    environment.execute()

    [alert] = kafka_server.records(topics["alerts"])
    assert (alert.key(), json.loads(alert.value())["n"]) == (topics["payments"].encode(), 0)


def test_the_postgres_page(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = postgres_server.new_database()
    with postgres_server.connect(database) as connection:
        connection.execute("CREATE TABLE balances (account text PRIMARY KEY, balance bigint)")
    [write] = blocks_of(
        "postgres.md", **{"host=db dbname=bank user=job": postgres_server.conninfo(database).replace('"', "")}
    )
    environment = LocalStreamEnvironment(job_dir=tmp_path)
    rows = [("a", 1), ("b", 2), ("a", 3)]
    exec(write, {"balances": environment.from_elements(rows, "account string, balance bigint")})
    environment.execute()

    with postgres_server.connect(database) as connection:
        assert sorted(connection.execute("SELECT * FROM balances").fetchall()) == [("a", 3), ("b", 2)]


def test_the_delta_page(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "landings")
    [write, *_] = blocks_of("delta-lake.md", **{"s3://bucket/landings": path})
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    exec(write, {"landings": environment.from_elements([("x", 1)], "day string, n bigint")})
    environment.execute()

    assert deltalake.DeltaTable(path).to_pyarrow_table().to_pylist() == [{"day": "x", "n": 1}]


def test_the_iceberg_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyiceberg = pytest.importorskip("pyiceberg.catalog")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}/lake"}
    write, construct = blocks_of("iceberg.md", **{"/data/lake": f"{tmp_path}/lake"})
    write = write.replace('"lake"', f'"lake", {properties!r}')
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    landings = environment.from_elements([(datetime(2024, 5, 1), "x")], "at timestamp_ntz, runway string")
    exec(write + construct, {"landings": landings})
    environment.execute()

    table = pyiceberg.load_catalog("lake", **properties).load_table("traffic.landings")
    assert table.scan().to_arrow().num_rows == 1
    assert len(table.spec().fields) == 1


def test_the_page_of_files(tmp_path: Path) -> None:
    import pyarrow.dataset

    write, *_, compact = blocks_of(
        "files.md", **{"/data/landings": f"{tmp_path}/landings", "s3://bucket/late": f"{tmp_path}/late"}
    )
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    landings = environment.from_elements([("2024-05-01", 1)], "day string, n bigint")
    exec(write, {"landings": landings, "late": landings})
    environment.execute()
    exec(compact, {})

    for name, file_format in (("landings", "parquet"), ("late", "csv")):
        files = sorted((tmp_path / name).rglob("part-*"))
        assert pyarrow.dataset.dataset(files, format=file_format).to_table()["n"].to_pylist() == [1]
