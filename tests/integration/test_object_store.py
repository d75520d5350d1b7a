"""The S3 server of the tests is one to trust: what is put if absent is put once, and what it confirmed is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.servers.s3_faults import S3Faults
from tests.servers.seaweedfs import SeaweedServer

WRITERS, ENTRIES, PART_BYTES = 8, 30, 5 * 1024**2


def put_if_absent(client: Any, bucket: str, key: str, body: bytes) -> bool:
    from botocore.exceptions import ClientError

    try:
        client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        if error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
            return False
        raise
    return True


def test_of_concurrent_writers_one_puts_each_object(seaweed: SeaweedServer) -> None:
    bucket = seaweed.create_bucket("put-if-absent")

    def write(writer: int) -> list[str]:
        client = seaweed.client()
        keys = [f"log/{entry:020}.json" for entry in range(ENTRIES)]
        return [key for key in keys if put_if_absent(client, bucket, key, b"%d" % writer)]

    with ThreadPoolExecutor(WRITERS) as pool:
        won = [*pool.map(write, range(WRITERS))]
    assert [*Counter(key for keys in won for key in keys).values()] == [1] * ENTRIES
    client = seaweed.client()
    for writer, keys in enumerate(won):
        for key in keys:
            assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"%d" % writer
    listed = client.list_objects_v2(Bucket=bucket, Prefix="log/", StartAfter="log/" + f"{9:020}.json")["Contents"]
    assert [entry["Key"] for entry in listed] == [f"log/{entry:020}.json" for entry in range(10, ENTRIES)]


def test_an_object_in_parts_is_whole_or_not_there(seaweed: SeaweedServer) -> None:
    from botocore.exceptions import ClientError

    bucket, client = seaweed.create_bucket("parts"), seaweed.client()
    upload = client.create_multipart_upload(Bucket=bucket, Key="large")["UploadId"]
    place = {"Bucket": bucket, "Key": "large", "UploadId": upload}
    bodies = [b"a" * PART_BYTES, b"b" * PART_BYTES, b"c"]
    parts = [
        {"PartNumber": number, "ETag": client.upload_part(**place, PartNumber=number, Body=body)["ETag"]}
        for number, body in enumerate(bodies, 1)
    ]
    with pytest.raises(ClientError):
        client.head_object(Bucket=bucket, Key="large")
    client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    assert client.get_object(Bucket=bucket, Key="large")["Body"].read() == b"".join(bodies)


def test_it_keeps_what_it_confirmed_when_killed(own_server: Callable[[type[SeaweedServer]], SeaweedServer]) -> None:
    server = own_server(SeaweedServer)
    bucket = server.create_bucket("kept")
    assert put_if_absent(server.client(), bucket, "one", b"1")
    server.kill()
    server.restart()
    assert server.client().get_object(Bucket=bucket, Key="one")["Body"].read() == b"1"
    assert not put_if_absent(server.client(), bucket, "one", b"2")


def test_faults_in_front_of_it(seaweed: SeaweedServer) -> None:
    from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

    bucket = seaweed.create_bucket("faults")
    with S3Faults(seaweed.port) as faults:
        client = seaweed.client(faults.port, read_timeout=0.3)
        faults.slow_down()
        with pytest.raises(ClientError, match="SlowDown"):
            client.put_object(Bucket=bucket, Key="a name", Body=b"1")
        faults.heal()
        faults.reset(only=lambda request: request.method == "PUT")
        with pytest.raises(ConnectionClosedError):
            client.put_object(Bucket=bucket, Key="a name", Body=b"1")
        faults.heal()
        faults.hang()
        with pytest.raises(ReadTimeoutError):
            client.put_object(Bucket=bucket, Key="a name", Body=b"1")
        faults.heal()
        assert "Contents" not in client.list_objects_v2(Bucket=bucket)
        faults.lose_answer()
        with pytest.raises(ConnectionClosedError):
            client.put_object(Bucket=bucket, Key="a name", Body=b"1")
        faults.heal()
        assert client.get_object(Bucket=bucket, Key="a name")["Body"].read() == b"1"
        assert client.head_object(Bucket=bucket, Key="a name")["ContentLength"] == 1
        assert faults.struck == {"slow_down": 1, "reset": 1, "hang": 1, "lose_answer": 1}
