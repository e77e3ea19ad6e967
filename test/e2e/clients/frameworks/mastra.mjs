// Uses a sandbox through @mastra/e2b, as npm has it, as users of Mastra do. The environment has
// E2B_API_KEY, E2B_SANDBOX_URL and, for the URL of a port, the authority of the hosts; the address of
// the API and the domain are options.
import assert from 'node:assert/strict'
import { Workspace } from '@mastra/core/workspace'
import { E2BSandbox } from '@mastra/e2b'
import { call, finish, until } from './calls.mjs'

const options = {
  id: `mastra-${process.pid}`,
  template: 'base',
  timeout: 300_000,
  env: { COLOR: 'blue' },
  metadata: { suite: 'mastra' },
  apiUrl: process.env.MASTRA_API_URL,
  domain: process.env.MASTRA_DOMAIN,
  apiKey: process.env.E2B_API_KEY,
}
const sandbox = new E2BSandbox(options)
const workspace = new Workspace({ sandbox })

await call('start', async () => {
  await workspace.init()
  await sandbox._start()
  assert.equal(sandbox.status, 'running')
  assert.equal((await sandbox.getInfo()).provider, 'e2b')
})
await call('executeCommand', async () => {
  const out = []
  const ran = await sandbox.executeCommand('sh', ['-c', 'echo "$COLOR $A"; pwd; echo bad >&2'], {
    cwd: '/tmp', env: { A: 'b c' }, onStdout: (data) => out.push(data),
  })
  assert.deepEqual([ran.success, ran.exitCode, ran.stdout, ran.stderr], [true, 0, 'blue b c\n/tmp\n', 'bad\n'])
  assert.equal(out.join(''), ran.stdout)
})
await call('executeCommand with an exit code', async () => {
  const ran = await sandbox.executeCommand('echo no >&2; exit 3')
  assert.deepEqual([ran.success, ran.exitCode], [false, 3])
  assert.match(ran.stderr, /^(no\n){1,2}$/) // the framework adds the output of the client's error to what it streamed
})
await call('executeCommand with a timeout', async () => {
  const ran = await sandbox.executeCommand('echo first; sleep 60', [], { timeout: 1000 })
  assert.equal(ran.success, false)
})
await call('writeFiles, and the files of the client', async () => {
  const bytes = crypto.getRandomValues(new Uint8Array(1 << 16))
  await sandbox.writeFiles([{ path: '/tmp/w/a', content: 'héllo' }, { path: '/tmp/w/b', content: Buffer.from(bytes) }])
  assert.equal(await sandbox.e2b.files.read('/tmp/w/a'), 'héllo')
  assert.deepEqual(Buffer.from(await sandbox.e2b.files.read('/tmp/w/b', { format: 'bytes' })), Buffer.from(bytes))
  assert.deepEqual((await sandbox.e2b.files.list('/tmp/w')).map((e) => e.name).sort(), ['a', 'b'])
})
let background
await call('processes: spawn, list, get, sendStdin', async () => {
  background = await sandbox.processes.spawn('while read line; do echo "got $line"; done', { timeout: 0 })
  assert.ok((await sandbox.processes.list()).some((p) => p.pid === background.pid))
  await background.sendStdin('one\n')
  await until('the output of the process', () => background.stdout === 'got one\n')
  assert.equal(await sandbox.processes.get(background.pid), background)
})
await call('the URL of a port', async () => {
  await sandbox.processes.spawn('cd /tmp/w && exec python3 -m http.server 8000', { timeout: 0 })
  const url = await sandbox.networking.getPortUrl(8000)
  await until('the answer of the port', async () => {
    const response = await fetch(`${url}/a`, { signal: AbortSignal.timeout(10_000) })
    const text = await response.text()
    return response.status === 200 && text === 'héllo'
  })
})
await call('stop, start: the process still runs', async () => {
  await sandbox._stop()
  assert.equal(sandbox.status, 'stopped')
  await sandbox._start()
  assert.equal(await sandbox.e2b.files.read('/tmp/w/a'), 'héllo')
  assert.ok((await sandbox.processes.list()).some((p) => p.pid === background.pid))
})
await call('another of the same id reaches the same sandbox', async () => {
  const other = new E2BSandbox(options)
  await other._start()
  assert.equal(other.e2b.sandboxId, sandbox.e2b.sandboxId)
  const found = await other.processes.get(background.pid)
  await found.sendStdin('two\n')
  await until('the output to the other', () => found.stdout === 'got two\n')
  assert.equal(await found.kill(), true)
  await until('the end of the process', async () => !(await other.processes.list()).some((p) => p.pid === background.pid))
})
await call('a sandbox that is gone is made again', async () => {
  const before = sandbox.e2b.sandboxId
  await sandbox.e2b.kill()
  assert.equal((await sandbox.executeCommand('echo again')).stdout, 'again\n')
  assert.notEqual(sandbox.e2b.sandboxId, before)
})
await call('destroy', async () => {
  const { e2b } = sandbox
  await sandbox._destroy()
  assert.equal(sandbox.status, 'destroyed')
  assert.equal(await e2b.isRunning(), false)
})
finish()
