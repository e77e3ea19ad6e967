// Uses sandboxes through the command line of E2B, as npm has it, for what needs no browser. The
// environment has E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { call, finish, patience, until } from './calls.mjs'

const program = new URL('node_modules/@e2b/cli/dist/index.js', import.meta.url).pathname
// The command line keeps its settings in the home directory.
const env = { ...process.env, HOME: mkdtempSync('home-'), NO_COLOR: '1' }

// run runs a program with an input, and resolves to what it printed and its exit code.
function run(name, args, input = '') {
  return new Promise((resolve, reject) => {
    const child = spawn(name, args, { env, timeout: patience / 2, killSignal: 'SIGKILL' })
    const printed = { stdout: '', stderr: '' }
    for (const stream of ['stdout', 'stderr']) child[stream].setEncoding('utf8').on('data', (data) => (printed[stream] += data))
    child.on('error', reject)
    child.on('close', (code, signal) => resolve({ ...printed, code: code ?? signal }))
    child.stdin.on('error', () => {}) // a program that ended before it read everything
    child.stdin.end(input)
  })
}
const e2b = (args, input) => run(process.execPath, [program, 'sandbox', ...args], input)
// good is e2b for a call that must succeed.
async function good(args, input) {
  const ended = await e2b(args, input)
  assert.equal(ended.code, 0, JSON.stringify(ended))
  return ended.stdout
}

const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { suite: 'cli' } })
const id = sandbox.sandboxId

await call('list', async () => {
  assert.ok((await good(['list', '--format', 'json'])).includes(id))
  assert.ok((await good(['list', '--metadata', 'suite=cli', '--format', 'json'])).includes(id))
})
await call('info', async () => assert.ok((await good(['info', id, '--format', 'json'])).includes(id)))
await call('exec', async () => {
  assert.equal(await good(['exec', '-c', '/tmp', '-e', 'A=b c', id, 'sh', '-c', 'pwd; echo "$A"']), '/tmp\nb c\n')
})
await call('exec with an exit code', async () => {
  const ended = await e2b(['exec', id, 'sh', '-c', 'echo no >&2; exit 3'])
  assert.deepEqual([ended.code, ended.stderr], [3, 'no\nexit status 3\n']) // the second line is the client's own
})
await call('exec with an input', async () => {
  assert.equal(await good(['exec', id, 'cat'], 'héllo\n'.repeat(10_000)), 'héllo\n'.repeat(10_000))
})
await call('exec in the background', async () => {
  await good(['exec', '-b', id, 'touch', '/tmp/made'])
  await until('the file', () => sandbox.files.exists('/tmp/made'))
})
await call('metrics', async () => {
  await good(['metrics', id, '--format', 'json'])
})
await call('logs', async () => {
  await good(['logs', id, '--format', 'json'])
})
await call('create', async () => {
  const made = await good(['create', '--detach', '--timeout', '120', 'base'])
  const found = []
  for (const list = Sandbox.list(); list.hasNext; ) found.push(...(await list.nextItems()))
  const other = found.find((s) => s.sandboxId !== id && made.includes(s.sandboxId))
  assert.ok(other, made)
  assert.equal(await Sandbox.kill(other.sandboxId), true)
})
await call('connect, with a terminal', async () => {
  const command = [process.execPath, program, 'sandbox', 'connect', id].join(' ')
  const ended = await run('script', ['-qec', command, '/dev/null'], 'echo $((6*7)); exit\n')
  assert.match(ended.stdout, /\b42\b/, JSON.stringify(ended))
})
await call('pause, resume', async () => {
  await good(['pause', id])
  assert.equal((await sandbox.getInfo()).state, 'paused')
  await good(['resume', id])
  assert.equal((await sandbox.getInfo()).state, 'running')
})
await call('kill', async () => {
  await good(['kill', id])
  assert.equal(await sandbox.isRunning(), false)
})
finish()
