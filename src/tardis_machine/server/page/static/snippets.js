// One request in the words of each way in.

const quoteShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const list = (items) => `[${items.map((item) => JSON.stringify(item)).join(", ")}]`;
const FLAGS = { exchange: "exchange", symbols: "symbols", from: "from", to: "to", dataTypes: "data-types", withDisconnectMessages: "with-disconnects" };

function curl(request, hasToken) {
  const auth = hasToken ? ` -H "Authorization: Bearer $TOKEN"` : "";
  return `curl -sN${auth} '${location.origin}/replay-normalized' -d ${quoteShell(JSON.stringify(request))}`;
}

function python(request) {
  const fields = { exchange: JSON.stringify(request.exchange) };
  if (request.symbols) fields.symbols = list(request.symbols);
  fields.from_ = JSON.stringify(request.from);
  fields.to = JSON.stringify(request.to);
  fields.data_types = list(request.dataTypes);
  if (request.withDisconnectMessages) fields.with_disconnect_messages = "True";
  const keywords = Object.entries(fields).map(([name, value]) => `        ${name}=${value},`);
  return [
    "import asyncio",
    "from tardis_machine import replay_normalized",
    "",
    "",
    "async def main() -> None:",
    "    async for batch in replay_normalized(",
    ...keywords,
    "    ):",
    "        for message in batch:",
    "            print(message)",
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

function toml(request) {
  const rows = Object.entries(FLAGS)
    .filter(([field]) => request[field] !== undefined)
    .map(([field, name]) => `${name} = ${Array.isArray(request[field]) ? list(request[field]) : JSON.stringify(request[field])}`);
  return [`# tardis-machine replay --config request.toml`, ...rows].join("\n");
}

function spark(request) {
  const asked = Object.entries(request).map(([name, value]) => {
    const given = name === "withDisconnectMessages" ? ["withDisconnects", "true"] : [name, [value].flat().join(",")];
    return `    ${given.map((text) => JSON.stringify(text)).join(": ")},`;
  });
  return [
    "from pyspark.sql import SparkSession",
    "",
    "spark = SparkSession.builder.getOrCreate()",
    "import tardis_machine.spark  # from here on it knows the format",
    "",
    "asked = {",
    ...asked,
    "}",
    'spark.read.format("tardis").options(**asked).load().show()',
  ].join("\n");
}

/** Title and text of each. */
export const snippetsOf = (request, hasToken) => [
  ["curl", curl(request, hasToken)],
  ["Python", python(request)],
  ["Spark", spark(request)],
  ["TOML", toml(request)],
];
