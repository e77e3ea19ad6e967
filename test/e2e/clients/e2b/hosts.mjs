// Reaches the ports of a sandbox by their hosts, as users do with getHost. Usage: node hosts.mjs
// PACKAGE. The environment has E2B_API_KEY, E2B_API_URL and E2B_DOMAIN.
import assert from 'node:assert/strict'

const { Sandbox } = await import(process.argv[2])
const port = 8000
const server = `python3 -u -c '
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("path " + self.path + " token " + str(self.headers.get("X-EXECD-ACCESS-TOKEN"))).encode())
http.server.HTTPServer(("127.0.0.1", ${port}), H).serve_forever()'`

async function serving(options) {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, ...options })
  await sandbox.commands.run(server, { background: true, timeoutMs: 0 })
  await sandbox.commands.run(`for i in $(seq 200); do python3 -c 'import socket; socket.create_connection(("127.0.0.1", ${port}))' && exit; sleep 0.1; done; exit 1`)
  return sandbox
}

async function get(sandbox, at, headers) {
  const response = await fetch(`https://${sandbox.getHost(at)}/a?b=c`, { headers, signal: AbortSignal.timeout(30_000) })
  return [response.status, await response.text()]
}

const sandbox = await serving()
assert.deepEqual(await get(sandbox, port), [200, 'path /a?b=c token None'])
const closed = await get(sandbox, 8001)
assert.equal(closed[0], 502)
assert.equal(JSON.parse(closed[1]).sandboxId, sandbox.sandboxId.split('-')[0])
for (const own of [44772, 18080]) assert.equal((await get(sandbox, own))[0], 502, `port ${own}`)
// The daemon by its host, with and without the token.
assert.equal((await sandbox.commands.run('echo here')).stdout, 'here\n')
assert.equal((await fetch(`https://${sandbox.getHost(49983)}/process.Process/List`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' })).status, 401)

const closedToOthers = await serving({ network: { allowPublicTraffic: false } })
if (closedToOthers.trafficAccessToken) { // of a client that knows the field
  assert.equal((await get(closedToOthers, port))[0], 403)
  assert.equal((await get(closedToOthers, port, { 'e2b-traffic-access-token': 'wrong' }))[0], 403)
  assert.equal((await get(closedToOthers, port, { 'e2b-traffic-access-token': closedToOthers.trafficAccessToken }))[0], 200)
}
await closedToOthers.kill()
await sandbox.kill()
assert.equal((await get(sandbox, port))[0], 502)
console.log('hosts: passes')
process.exit(0)
