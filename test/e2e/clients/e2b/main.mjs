// Takes sandboxes through their lives with a client of E2B as npm has it, and prints a line for each
// call: what it is, and ok or what it did instead. Usage: node main.mjs PACKAGE. The environment has
// E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { call, finish, refused, report, until } from './calls.mjs'

const { Sandbox } = await import(process.argv[2])

const metadata = { suite: 'e2b', 'team name': 'a & b = c%' }
// ends checks that a sandbox ends so long after a call that began and ended at these times.
function ends(info, timeout, [began, ended]) {
  const at = new Date(info.endAt).getTime()
  assert.ok(at >= began + timeout - 1000 && at <= ended + timeout + 1000, `it ends at ${info.endAt}`)
}

const created = [Date.now()]
const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata, envs: { COLOR: 'blue' } })
created.push(Date.now())
report('Sandbox.create', 'passes')

await call('sandbox.isRunning', async () => assert.equal(await sandbox.isRunning(), true))
await call('sandbox.getInfo', async () => {
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.deepEqual(info.metadata, metadata)
  ends(info, 300_000, created)
})
await call('Sandbox.connect', async () => {
  const other = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await other.commands.run('echo again')).stdout, 'again\n')
})
await call('sandbox.setTimeout', async () => {
  const times = [Date.now()]
  await sandbox.setTimeout(120_000)
  times.push(Date.now())
  ends(await sandbox.getInfo(), 120_000, times)
  await sandbox.setTimeout(600_000)
})
await call('Sandbox.list with metadata', async () => {
  const listed = Sandbox.list({ query: { metadata, state: ['running'] } }) // of 1.13.2: all of them
  const found = listed.nextItems ? [] : await listed
  while (listed.hasNext) found.push(...(await listed.nextItems()))
  assert.deepEqual(found.map((s) => s.sandboxId), [sandbox.sandboxId])
})
await call('commands.run', async () => {
  const out = []
  const ended = await sandbox.commands.run('echo out; echo err >&2; printf "%s" "$COLOR"; printf é', {
    onStdout: (data) => out.push(data),
  })
  assert.equal(ended.exitCode, 0)
  assert.equal(ended.stdout, 'out\nblueé')
  assert.equal(ended.stderr, 'err\n')
  assert.equal(out.join(''), ended.stdout)
})
await call('commands.run with cwd and envs', async () => {
  const ended = await sandbox.commands.run('pwd; echo $A', { cwd: '/tmp', envs: { A: 'b c' } })
  assert.equal(ended.stdout, '/tmp\nb c\n')
})
await call('commands.run with an exit code', async () => {
  await assert.rejects(sandbox.commands.run('echo no >&2; exit 3'), (error) => {
    assert.equal(error.constructor.name, 'CommandExitError')
    assert.equal(error.exitCode, 3)
    assert.equal(error.stderr, 'no\n')
    return true
  })
})
await call('commands.run with timeoutMs', async () => {
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 500 }), (error) => {
    assert.equal(error.constructor.name, 'TimeoutError')
    return true
  })
})
await call('commands.run in the background, list, connect, sendStdin, kill', async () => {
  const reader = await sandbox.commands.run('while read line; do echo "got $line"; done', { background: true, stdin: true, timeoutMs: 0 })
  assert.ok(reader.pid > 0)
  const list = await sandbox.commands.list()
  assert.ok(list.some((p) => p.pid === reader.pid), JSON.stringify(list))
  const seen = []
  const attached = await sandbox.commands.connect(reader.pid, { onStdout: (data) => seen.push(data) })
  await sandbox.commands.sendStdin(reader.pid, 'one\n')
  await until('the output of the process', () => seen.join('') === 'got one\n')
  assert.equal(await sandbox.commands.kill(reader.pid), true)
  await assert.rejects(reader.wait())
  await attached.disconnect?.()
  await until('the end of the process', async () => !(await sandbox.commands.list()).some((p) => p.pid === reader.pid))
  assert.equal(await sandbox.commands.kill(reader.pid), false)
})
await call('a command of 600 000 characters of three bytes', async () => {
  const ended = await sandbox.commands.run(`i=0; while [ $i -lt 6000 ]; do printf '${'€'.repeat(100)}'; i=$((i+1)); done`)
  assert.equal(ended.stdout.length, 600_000)
  assert.equal(ended.stdout.replaceAll('€', ''), '')
})
const bytes = randomBytes(1 << 20)
await call('files.write, files.read of 1 MiB of random bytes', async () => {
  const written = await sandbox.files.write('deep/er/random', new Blob([bytes]).stream ? new Blob([bytes]) : bytes.buffer)
  assert.equal(written.name, 'random')
  const read = await sandbox.files.read('deep/er/random', { format: 'bytes' })
  assert.ok(Buffer.from(read).equals(bytes))
})
await call('random bytes through a command', async () => {
  const ended = await sandbox.commands.run('base64 -w0 < deep/er/random')
  assert.ok(Buffer.from(ended.stdout, 'base64').equals(bytes))
})
await call('files.write of a text and of several files', async () => {
  await sandbox.files.write('/tmp/a "text".txt', 'héllo')
  assert.equal(await sandbox.files.read('/tmp/a "text".txt'), 'héllo')
  await sandbox.files.write('/tmp/empty', '')
  assert.equal(await sandbox.files.read('/tmp/empty'), '')
  const many = await sandbox.files.write([{ path: '/tmp/m/1', data: 'one' }, { path: '/tmp/m/2', data: 'two' }])
  assert.equal(many.length, 2)
})
await call('files.list, exists, getInfo, makeDir, rename, remove', async () => {
  const entries = await sandbox.files.list('/tmp/m')
  assert.deepEqual(entries.map((e) => [e.name, e.type, e.path]).sort(), [['1', 'file', '/tmp/m/1'], ['2', 'file', '/tmp/m/2']])
  assert.equal(await sandbox.files.exists('/tmp/m/1'), true)
  assert.equal(await sandbox.files.exists('/tmp/m/3'), false)
  const info = await sandbox.files.getInfo('/tmp/m/1')
  assert.equal(info.size, 3)
  assert.equal(info.permissions.length, 10)
  assert.equal(await sandbox.files.makeDir('/tmp/m/deep/er'), true)
  assert.equal(await sandbox.files.makeDir('/tmp/m/deep/er'), false)
  const moved = await sandbox.files.rename('/tmp/m/1', '/tmp/m/2')
  assert.equal(moved.path, '/tmp/m/2')
  assert.equal(await sandbox.files.read('/tmp/m/2'), 'one')
  await sandbox.files.remove('/tmp/m')
  assert.equal(await sandbox.files.exists('/tmp/m'), false)
})
await call('files.read of a missing file', async () => {
  await assert.rejects(sandbox.files.read('/tmp/none'), (error) => {
    assert.match(error.constructor.name, /^(File)?NotFoundError$/)
    return true
  })
})
await call('files.watchDir', async () => {
  await sandbox.files.makeDir('/tmp/watched')
  const events = []
  const watch = await sandbox.files.watchDir('/tmp/watched', (event) => events.push(event), { recursive: true })
  await sandbox.files.write('/tmp/watched/new', 'x')
  await until('an event', () => events.some((e) => e.name === 'new' && e.type === 'create'))
  await watch.stop()
})
await call('pty.create, sendInput, resize, kill', async () => {
  let screen = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (screen += Buffer.from(data).toString()), timeoutMs: 0 })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('echo $((6*7))\n'))
  await until('the output of the terminal', () => screen.includes('42'))
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 40 })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size\n'))
  await until('the new size', () => screen.includes('40 100'))
  assert.equal(await sandbox.pty.kill(terminal.pid), true)
})
await call('downloadUrl and uploadUrl', async () => {
  await sandbox.files.write('/tmp/signed', 'signed')
  const url = await sandbox.downloadUrl('/tmp/signed', { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url)).text(), 'signed')
  const wrong = new URL(url)
  wrong.searchParams.set('path', '/etc/passwd')
  const refusedAt = await fetch(wrong)
  assert.equal(refusedAt.status, 401)
  await refusedAt.body?.cancel()
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'x')
  const uploaded = await fetch(await sandbox.uploadUrl('/tmp/uploaded'), { method: 'POST', body: form })
  assert.equal(uploaded.status, 200, await uploaded.text())
  assert.equal(await sandbox.files.read('/tmp/uploaded'), 'uploaded')
})
await call('sandbox.getMetrics', async () => {
  const metrics = await sandbox.getMetrics()
  assert.ok(metrics.length > 0 && metrics[0].memTotal > 0, JSON.stringify(metrics))
  assert.ok(metrics[0].diskUsed > 0 && metrics[0].diskUsed <= metrics[0].diskTotal, JSON.stringify(metrics))
})
const pause = sandbox.pause ?? sandbox.betaPause
if (pause) await call('sandbox.pause, Sandbox.connect', async () => {
  await sandbox.files.write('/tmp/kept', 'kept')
  await pause.call(sandbox)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal((await Sandbox.getInfo?.(sandbox.sandboxId) ?? await sandbox.getInfo()).state, 'paused')
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  assert.equal(await again.files.read('/tmp/kept'), 'kept')
})
await call('a timeout of a second', async () => {
  const short = await Sandbox.create({ timeoutMs: 1000 })
  await until('the end', async () => !(await short.isRunning()))
})
if (Sandbox.betaCreate && !sandbox.createSnapshot) { // of 2.6.4
  await call('a timeout that pauses', async () => {
    const paused = await Sandbox.betaCreate({ timeoutMs: 2000, autoPause: true })
    await until('the pause', async () => (await paused.getInfo()).state === 'paused')
    const again = await Sandbox.connect(paused.sandboxId)
    assert.equal((await again.commands.run('echo awake')).stdout, 'awake\n')
    await paused.kill()
  })
} else if (pause) {
  await call('a timeout that pauses, and traffic that resumes', async () => {
    const paused = await Sandbox.create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } })
    await until('the pause', async () => (await paused.getInfo()).state === 'paused')
    assert.equal(await paused.isRunning(), false) // which resumes nothing
    assert.equal((await paused.getInfo()).state, 'paused')
    assert.equal((await paused.commands.run('echo awake')).stdout, 'awake\n')
    await paused.kill()
  })
}
if (pause && (!Sandbox.betaCreate || sandbox.createSnapshot)) { // 2.6.4 shows no network
  await call('network: allowOut and denyOut', async () => {
    const allowOut = ['*.example.test', '192.0.2.1'], denyOut = ['0.0.0.0/0']
    const limited = await Sandbox.create({ network: { allowOut, denyOut } })
    const { network } = await limited.getInfo()
    assert.deepEqual([network.allowOut, network.denyOut, network.allowPublicTraffic], [allowOut, denyOut, true])
    const dialed = await limited.commands.run(`python3 -c '
import socket
try:
    socket.create_connection(("198.51.100.1", 80), 20)
except OSError as e:
    print(type(e).__name__)
'`)
    assert.equal(dialed.stdout, 'ConnectionRefusedError\n')
    if (limited.updateNetwork) {
      await limited.updateNetwork({ denyOut: ['198.51.100.0/24'] })
      const { network: changed } = await limited.getInfo()
      assert.deepEqual([changed.allowOut ?? [], changed.denyOut], [[], ['198.51.100.0/24']])
    }
    await limited.kill()
  })
}
await call('a template that does not exist', async () => {
  await assert.rejects(Sandbox.create('no-such-template:nor-image'), /./)
})
if (sandbox.createSnapshot) {
  await refused('sandbox.createSnapshot', /not supported/, () => sandbox.createSnapshot())
}
await call('sandbox.kill', async () => {
  await sandbox.kill()
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
})
finish()
