// The same live data by the Node library, JSON included: WSS_URL_BITMEX=… node node_live.js LIBRARY LAST
// Prints {"messages", "seconds", "cpuSeconds", "ages_ms"}; the time is from the first message to the last trade.
const [library, last] = process.argv.slice(2)
const tardis = require(library)

async function main() {
  const stream = tardis.streamNormalized(
    { exchange: 'bitmex', symbols: ['XBTUSD'], timeoutIntervalMS: 0 },
    tardis.normalizeTrades,
    tardis.normalizeBookChanges
  )
  let began, cpuBegan
  let messages = 0
  let characters = 0
  const ages = []
  for await (const message of stream) {
    if (began === undefined) {
      began = process.hrtime.bigint()
      cpuBegan = process.cpuUsage()
    }
    characters += JSON.stringify(message).length + 1
    messages++
    if (message.type === 'trade') {
      if (message.id === last) break
      ages.push(Date.now() - Number(message.id.slice(0, 13)))
    }
  }
  const seconds = Number(process.hrtime.bigint() - began) / 1e9
  const cpu = process.cpuUsage(cpuBegan)
  ages.sort((a, b) => a - b)
  const points = [0.5, 0.99].map((part) => ages[Math.floor(ages.length * part)]).concat(ages[ages.length - 1])
  console.log(JSON.stringify({ messages, characters, seconds, cpuSeconds: (cpu.user + cpu.system) / 1e6, ages_ms: points }))
  process.exit(0)
}

main()
