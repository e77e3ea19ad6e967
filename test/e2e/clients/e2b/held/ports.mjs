// Ports of sandboxes, by their hosts.

import assert from 'node:assert/strict'

import { common, create, open, until, visit, within } from './common.mjs'

// A server that answers with what it was sent, and at /stream with a line, and with another when /go was asked for.
const SERVER = `
import http.server, json, sys, threading
go = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if self.path == '/stream':
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            self.wfile.write(b'6\\r\\nfirst\\n\\r\\n')
            go.wait(60)
            self.wfile.write(b'7\\r\\nsecond\\n\\r\\n0\\r\\n\\r\\n')
            return
        if self.path == '/go':
            go.set()
        out = json.dumps([self.command, self.path, self.headers.get('X-Held'), body.decode()]).encode()
        self.send_response(201)
        self.send_header('X-Answer', 'held')
        self.send_header('Content-Length', str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    do_GET = do_POST = do_DELETE = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('0.0.0.0', int(sys.argv[1])), Handler).serve_forever()
`

// A server that upgrades its only connection, and answers all that it reads there in brackets.
const UPGRADE = `
import socket
server = socket.create_server(('0.0.0.0', 8126))
while True:
    connection, _ = server.accept()
    head = b''
    while b'\\r\\n\\r\\n' not in head:
        part = connection.recv(4096)
        if not part: break
        head += part
    if b'upgrade: held' not in head.lower():
        connection.close()
        continue
    connection.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: held\\r\\n\\r\\n')
    while part := connection.recv(4096):
        connection.sendall(b'<' + part + b'>')
`

// upgraded returns the connection after an upgrade, undefined where the answer is another.
function upgraded(address) {
  return new Promise((resolve, reject) => {
    const request = open(address, { headers: { connection: 'Upgrade', upgrade: 'held' } }, (response) => {
      response.resume()
      resolve(undefined)
    })
    request.on('upgrade', (_, socket) => resolve(socket))
    request.on('error', reject)
    request.end()
  })
}

// serve starts the server at a port of a sandbox and returns its address.
async function serve(box, port, headers) {
  await box.files.write('/tmp/server.py', SERVER)
  await box.commands.run(`exec python3 /tmp/server.py ${port}`, { background: true, timeoutMs: 0 })
  const address = `https://${box.getHost(port)}`
  await until('the server', async () => (await visit(address, { headers })).status === 201)
  return address
}

export const ports = {
  async 'getHost: methods, headers and bodies'() {
    const address = await serve(await common(), 8123)
    const answer = await visit(`${address}/a%20b?c=d&c=e`, { method: 'POST', headers: { 'x-held': 'yes' }, body: 'ünï' })
    assert.equal(answer.status, 201)
    assert.equal(answer.headers['x-answer'], 'held')
    assert.deepEqual(JSON.parse(answer.text), ['POST', '/a%20b?c=d&c=e', 'yes', 'ünï'])
    assert.deepEqual(JSON.parse((await visit(`${address}/x`, { method: 'DELETE' })).text), ['DELETE', '/x', null, ''])
  },

  async 'getHost: a response arrives as it is written'() {
    const address = await serve(await common(), 8124)
    let text = ''
    let end
    const ended = new Promise((resolve) => (end = resolve))
    open(`${address}/stream`, {}, (response) => {
      response.on('data', (part) => (text += part))
      response.on('end', end)
    }).end()
    await until('the first line', () => text === 'first\n')
    await visit(`${address}/go`)
    await within(30_000, 'the end of the response', ended)
    assert.equal(text, 'first\nsecond\n')
  },

  async 'getHost: a program that listens on 127.0.0.1 alone'() {
    const box = await common()
    await box.files.write('/tmp/page/index.html', 'a page')
    await box.commands.run('exec python3 -m http.server --bind 127.0.0.1 --directory /tmp/page 8125', { background: true, timeoutMs: 0 })
    const page = await until('the page', async () => {
      const answer = await visit(`https://${box.getHost(8125)}/`)
      return answer.status === 200 && answer
    })
    assert.equal(page.text, 'a page')
  },

  async 'getHost: a connection that is upgraded, as for WebSocket'() {
    const box = await common()
    await box.files.write('/tmp/upgrade.py', UPGRADE)
    await box.commands.run('exec python3 /tmp/upgrade.py', { background: true, timeoutMs: 0 })
    const address = `https://${box.getHost(8126)}/socket`
    const socket = await until('the upgrade', () => upgraded(address))
    let text = ''
    socket.on('data', (part) => (text += part))
    socket.write('first')
    await until('the first echo', () => text === '<first>')
    socket.write('second')
    await until('the second echo', () => text === '<first><second>')
    socket.destroy()
  },

  async 'getHost: 8 MiB in and out'() {
    const box = await common()
    const address = await serve(box, 8127)
    const body = 'x'.repeat(8 << 20)
    // To the service itself, as a reverse proxy does that has no connection to it yet.
    const answer = await visit(process.env.E2B_API_URL, { method: 'POST', body, headers: { host: new URL(address).host } })
    assert.equal(answer.status, 201, answer.text)
    assert.ok(JSON.parse(answer.text)[3] === body, `${answer.text.length} characters`)
  },

  async 'getHost: a port at which no program listens is 502'() {
    const box = await common()
    assert.equal((await visit(`https://${box.getHost(8999)}`)).status, 502)
  },

  async 'getHost: a sandbox that was killed is 502'() {
    const box = await create()
    const address = await serve(box, 8000)
    await box.kill()
    assert.equal((await visit(address)).status, 502)
  },

  async 'network: allowPublicTraffic: false asks for the token'() {
    const box = await create({ network: { allowPublicTraffic: false } })
    assert.ok(box.trafficAccessToken)
    const headers = { 'e2b-traffic-access-token': box.trafficAccessToken }
    const address = await serve(box, 8000, headers)
    assert.equal((await visit(address, { headers })).status, 201)
    assert.equal((await visit(address)).status, 403)
    assert.equal((await visit(address, { headers: { 'e2b-traffic-access-token': 'another' } })).status, 403)
    const again = await box.constructor.connect(box.sandboxId)
    assert.equal(again.trafficAccessToken, box.trafficAccessToken)
    await box.kill()
  },
}
