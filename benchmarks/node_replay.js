// The same replay by the Node library, to a null sink, JSON included: node node_replay.js LIBRARY CACHE_DIR '{"kind", "requests"}'
// Prints {"messages", "seconds", "cpuSeconds", "peakMB"}; the time is that of the replay alone, without the start of the program.
const [library, cacheDir, asked] = process.argv.slice(2)
const tardis = require(library)

tardis.init({ cacheDir })

const NORMALIZERS = {
  trade: tardis.normalizeTrades,
  book_change: tardis.normalizeBookChanges,
}
const COMPUTABLES = {
  quote: tardis.computeBookSnapshots({ depth: 1, interval: 0, name: 'quote' }),
  book_snapshot_50_0ms: tardis.computeBookSnapshots({ depth: 50, interval: 0, name: 'book_snapshot_50_0ms' }),
  book_snapshot_25_100ms: tardis.computeBookSnapshots({ depth: 25, interval: 100, name: 'book_snapshot_25_100ms' }),
}

function normalized({ exchange, symbols, from, to, dataTypes }) {
  const computed = dataTypes.filter((type) => type in COMPUTABLES)
  const plain = computed.length > 0 ? ['book_change'] : dataTypes
  const messages = tardis.replayNormalized({ exchange, symbols, from, to }, ...plain.map((type) => NORMALIZERS[type]))
  return computed.length > 0 ? tardis.compute(messages, ...computed.map((type) => COMPUTABLES[type])) : messages
}

function raw({ exchange, from, to, filters }) {
  return tardis.replay({ exchange, from, to, filters, skipDecoding: true })
}

async function main() {
  const { kind, requests } = JSON.parse(asked)
  const began = process.hrtime.bigint()
  const cpuBegan = process.cpuUsage()
  let messages = 0
  let characters = 0
  if (kind === 'raw') {
    for await (const { localTimestamp, message } of raw(requests[0])) {
      characters += `{"localTimestamp":"${localTimestamp}","message":${message}}\n`.length
      messages++
    }
  } else {
    const computed = requests[0].dataTypes.some((type) => type in COMPUTABLES)
    const streams = requests.map(normalized)
    for await (const message of streams.length === 1 ? streams[0] : tardis.combine(...streams)) {
      if (computed && message.type !== 'book_snapshot') continue
      characters += JSON.stringify(message).length + 1
      messages++
    }
  }
  const seconds = Number(process.hrtime.bigint() - began) / 1e9
  const cpu = process.cpuUsage(cpuBegan)
  const peakMB = process.resourceUsage().maxRSS / 1024
  console.log(JSON.stringify({ messages, characters, seconds, cpuSeconds: (cpu.user + cpu.system) / 1e6, peakMB }))
  process.exit(0)
}

main()
