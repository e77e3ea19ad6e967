// Uses a sandbox through the OpenAI Agents SDK for JavaScript, as npm has it, without a model. The
// environment has E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL and, for the address of a port, the
// authority of the hosts.
import assert from 'node:assert/strict'
import { Manifest } from '@openai/agents/sandbox'
import { E2BSandboxClient } from '@openai/agents-extensions/sandbox/e2b'
import { call, finish, until } from './calls.mjs'

const client = new E2BSandboxClient({
  template: 'base', timeout: 300, env: { COLOR: 'blue' }, metadata: { suite: 'openai' }, exposedPorts: [8000], workspacePersistence: 'tar',
})
const manifest = new Manifest({ entries: { 'notes/first.txt': { type: 'file', content: 'héllo\n' } } })
let session = await client.create({ manifest })
const root = session.state.manifest.root
const text = async (path) => Buffer.from(await session.readFile({ path })).toString()

await call('the files of the manifest', async () => {
  assert.equal(await session.running(), true)
  assert.equal(await text('notes/first.txt'), 'héllo\n')
  assert.equal(await session.pathExists('notes/none.txt'), false)
})
await call('execCommand', async () => {
  const ran = await session.execCommand({ cmd: 'echo "$COLOR"; pwd; cat notes/first.txt; exit 3' })
  for (const part of ['blue\n', `${root}\n`, 'héllo\n', 'code 3']) assert.ok(ran.includes(part), ran)
})
await call('createEditor', async () => {
  const editor = session.createEditor()
  await editor.createFile({ type: 'create_file', path: 'made.txt', diff: '+one\n+two\n' })
  await editor.updateFile({ type: 'update_file', path: 'made.txt', diff: '@@\n one\n-two\n+2\n' })
  assert.match(await text('made.txt'), /^one\n2\n?$/)
  await editor.deleteFile({ type: 'delete_file', path: 'made.txt' })
  assert.equal(await session.pathExists('made.txt'), false)
})
await call('a command with a terminal, writeStdin', async () => {
  assert.equal(session.supportsPty(), true)
  const begun = await session.execCommand({ cmd: 'read line; echo "got $line"; tty', tty: true, yieldTimeMs: 1000 })
  const sessionId = Number(/session ID (\d+)/i.exec(begun)?.[1])
  assert.ok(sessionId > 0, begun)
  let screen = await session.writeStdin({ sessionId, chars: 'one\n', yieldTimeMs: 1000 })
  await until('the output of the terminal', async () => {
    if (/got one[^]*\/dev\/pts/.test(screen)) return true
    screen += await session.writeStdin({ sessionId, chars: '', yieldTimeMs: 1000 })
  })
})
await call('resolveExposedPort', async () => {
  await session.execCommand({ cmd: 'nohup python3 -m http.server 8000 >/dev/null 2>&1 &' })
  // The framework takes a host with a port for one without TLS.
  const { host, port } = await session.resolveExposedPort(8000)
  await until('the answer of the port', async () => {
    const response = await fetch(`https://${host}:${port}/notes/first.txt`, { signal: AbortSignal.timeout(10_000) })
    const body = await response.text()
    return response.status === 200 && body === 'héllo\n'
  })
})
let archive
await call('persistWorkspace, hydrateWorkspace into another', async () => {
  archive = await session.persistWorkspace()
  const other = await client.create({ manifest: new Manifest() })
  await other.hydrateWorkspace(archive)
  assert.equal(Buffer.from(await other.readFile({ path: 'notes/first.txt' })).toString(), 'héllo\n')
  await other.delete()
})
await call('serializeSessionState, resume', async () => {
  const kept = JSON.parse(JSON.stringify(await client.serializeSessionState(session.state)))
  const id = session.state.sandboxId
  session = await client.resume(await client.deserializeSessionState(kept))
  assert.equal(session.state.sandboxId, id)
  assert.equal(await text('notes/first.txt'), 'héllo\n')
})
await call('delete', async () => {
  await session.delete()
  assert.equal(await session.running().catch(() => false), false)
})
await call('pauseOnExit, resume', async () => {
  const paused = await client.create({ manifest, options: { pauseOnExit: true, template: 'base', timeout: 300 } })
  await paused.close()
  session = await client.resume(paused.state)
  assert.equal(session.state.sandboxId, paused.state.sandboxId)
  assert.equal(await text('notes/first.txt'), 'héllo\n')
  session.state.pauseOnExit = false
  await session.close()
})
finish()
