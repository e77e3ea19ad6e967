// Has every host below sandbox.test be 127.0.0.1, as a name server would.
import dns from 'node:dns'

const { lookup } = dns
dns.lookup = (host, options, done) => {
  if (typeof options === 'function') [options, done] = [{}, options]
  if (!host.endsWith('.sandbox.test')) return lookup(host, options, done)
  const address = { address: '127.0.0.1', family: 4 }
  process.nextTick(() => (options.all ? done(null, [address]) : done(null, address.address, address.family)))
}
