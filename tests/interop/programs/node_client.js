// tardis-dev for Node against a machine, which it reaches by HTTPS alone: LIBRARY ENDPOINT KEY FOLDER. Prints JSON.
// Its downloadDatasets knows no endpoint but its own.
const [library, endpoint, apiKey, cacheDir] = process.argv.slice(2)
const tardis = require(library)

async function main() {
  tardis.init({ endpoint, apiKey, cacheDir })
  const filters = [{ channel: 'trade', symbols: ['XBTUSD'] }, { channel: 'orderBookL2', symbols: ['XBTUSD'] }]
  const span = { from: '2020-02-02T00:00:00Z', to: '2020-02-02T00:07:00Z' }
  const lines = []
  for await (const line of tardis.replay({ exchange: 'bitmex', filters, ...span, skipDecoding: true, withDisconnects: true })) {
    lines.push(line === undefined ? '' : `${line.localTimestamp} ${line.message}`)
  }
  const trades = []
  for await (const trade of tardis.replayNormalized({ exchange: 'bitmex', symbols: ['XBTUSD'], ...span }, tardis.normalizeTrades)) {
    trades.push(trade)
  }
  const details = await tardis.getExchangeDetails('bitmex')
  const instrument = await tardis.getInstrumentInfo('bitmex', 'XBTUSD')
  const perpetuals = await tardis.getInstrumentInfo('bitmex', { type: 'perpetual' })
  const access = await tardis.getApiKeyAccessInfo()
  console.log(JSON.stringify({ lines, trades, details, instrument, perpetuals, access }))
}

main()
