"""Kinesis as kinesalite plays it; what it confirmed is still there when it was killed and is started again."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from contextlib import closing
from typing import Any

from .process import TOOLS, ServerMissingError, ServerProcess, http_status, installed

HEADERS = {
    "Content-Type": "application/x-amz-json-1.1",
    "Authorization": "AWS4-HMAC-SHA256 Credential=any/any, SignedHeaders=any, Signature=any",
    "X-Amz-Date": "20240101T000000Z",
}
# Streams are made and split without the pauses that Amazon takes for it, and without its limit of shards; they lie in the server's folder.
OPTIONS = {"createStreamMs": 5, "deleteStreamMs": 5, "updateStreamMs": 5, "shardLimit": 10_000, "path": "streams"}
# Its own search for the records of a time answers only where it finds one at once; the service has an iterator behind all records then.
SEARCH_BY_TIME = """
const module_ = process.argv[1], action = require.resolve(module_ + '/actions/getShardIterator'), get = require(action)
const db = require(module_ + '/db')
require.cache[action].exports = (store, data, answer) => {
  if (data.ShardIteratorType !== 'AT_TIMESTAMP' || data.Timestamp * 1000 > Date.now()) return get(store, data, answer)
  const {shardIx} = db.resolveShardId(data.ShardId), {Timestamp: since, ...place} = data
  let sequence
  store.getStreamDb(data.StreamName).createReadStream({gt: db.shardIxToHex(shardIx), lt: db.shardIxToHex(shardIx + 1)})
    .on('data', ({key, value}) => { if (value.ApproximateArrivalTimestamp >= since) sequence ??= key.split('/')[1] })
    .on('error', answer)
    .on('end', () => get(store, sequence === undefined
      ? {...place, ShardIteratorType: 'LATEST'}
      : {...place, ShardIteratorType: 'AT_SEQUENCE_NUMBER', StartingSequenceNumber: sequence}, answer))
}
"""


class KinesaliteServer(ServerProcess):
    name = "kinesalite"
    scheme = "http"

    def command(self) -> list[str]:
        node = shutil.which("node")
        if node is None:
            raise ServerMissingError("This test needs Node, which is not on the PATH: run `make setup`.")
        module = installed(TOOLS / "npm" / "node_modules" / "kinesalite", "kinesalite")
        # Its own command line can't be told to stay on this machine.
        start = f"require(module_)({json.dumps(OPTIONS)}).listen({self.port}, '127.0.0.1')"
        return [node, "-e", f"{SEARCH_BY_TIME}{start}", str(module)]

    def answers(self) -> bool:
        return http_status(self.port, "/") > 0

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """What the service answers, by plain HTTP; what it refuses is an error."""
        headers = {**HEADERS, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", "/", json.dumps(parameters), headers)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{operation}: {text.decode()}")
        return json.loads(text) if text else {}

    def create_stream(self, name: str, shards: int = 2) -> str:
        self.call("CreateStream", StreamName=name, ShardCount=shards)
        self.wait_until_active(name)
        return name

    def wait_until_active(self, name: str) -> None:
        while self.call("DescribeStreamSummary", StreamName=name)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
            time.sleep(0.005)

    def wait_until_gone(self, name: str) -> None:
        """Asks for this one: a list tells only of the first ten."""
        while True:
            try:
                self.call("DescribeStreamSummary", StreamName=name)
            except RuntimeError as error:
                if "ResourceNotFoundException" in str(error):
                    return
                raise
            time.sleep(0.005)

    def shards(self, stream: str) -> list[dict[str, Any]]:
        """From the oldest to the newest: parents first."""
        found: list[dict[str, Any]] = self.call("ListShards", StreamName=stream)["Shards"]
        return found

    def read(self, stream: str) -> list[dict[str, Any]]:
        """All records, shard by shard."""
        records: list[dict[str, Any]] = []
        for shard in self.shards(stream):
            place = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self.call("GetShardIterator", **place)["ShardIterator"]
            while iterator:
                found = self.call("GetRecords", ShardIterator=iterator, Limit=10_000)
                records += found["Records"]
                iterator = found["NextShardIterator"] if found["Records"] else None
        return records
