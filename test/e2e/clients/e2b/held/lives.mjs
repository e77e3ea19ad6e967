// Sandboxes: how they are created, listed, found again, paused and killed.

import assert from 'node:assert/strict'

import {
  ALL_TRAFFIC,
  AuthenticationError,
  E2B,
  NotFoundError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  TimeoutError,
} from 'e2b-2.51.0'

import { common, create, failure, near, refusable, RUN, until, within } from './common.mjs'

const MISSING = 'iabcdefghijklmnopqrst' // the form of an id of E2B

const left = (info) => info.endAt.getTime() - Date.now()

async function listed(options = {}) {
  const paginator = Sandbox.list({ ...options, query: { ...options.query, metadata: { run: RUN, ...options.query?.metadata } } })
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found
}

const ids = (infos) => infos.map((info) => info.sandboxId)

export const lives = {
  async 'create: an id, a domain and a host'() {
    const box = await common()
    assert.match(box.sandboxId, /^[a-z0-9-]+$/)
    assert.ok(box.sandboxDomain)
    assert.equal(box.getHost(3000), `3000-${box.sandboxId}.${box.sandboxDomain}`)
    assert.equal(await box.isRunning(), true)
  },

  async 'create: metadata'() {
    const metadata = { user: 'ünïcode ✓', empty: '', 'a.b/c-d': 'x&y=z' }
    const box = await create({ metadata })
    assert.deepEqual((await box.getInfo()).metadata, { run: RUN, ...metadata })
    assert.deepEqual(ids(await listed({ query: { metadata: { 'a.b/c-d': 'x&y=z' } } })), [box.sandboxId])
    assert.equal(await box.kill(), true)
  },

  async 'create: envs, which a command overrides'() {
    const box = await create({ envs: { FIRST: 'of the sandbox', SECOND: 'a "b" $c\nd' } })
    const print = 'printf "%s|%s" "$FIRST" "$SECOND"'
    assert.equal((await box.commands.run(print)).stdout, 'of the sandbox|a "b" $c\nd')
    assert.equal((await box.commands.run(print, { envs: { FIRST: 'of the command' } })).stdout, 'of the command|a "b" $c\nd')
    assert.equal((await box.commands.run(print)).stdout, 'of the sandbox|a "b" $c\nd')
    await box.kill()
  },

  async 'create: timeoutMs'() {
    const box = await create({ timeoutMs: 120_000 })
    const { startedAt, endAt } = await box.getInfo()
    near(endAt - startedAt, 120_000, 60_000, 'the time of the sandbox')
    await box.kill()
  },

  async 'create: five minutes where no timeoutMs is given'() {
    const box = await create({ timeoutMs: undefined })
    const { startedAt, endAt } = await box.getInfo()
    near(endAt - startedAt, 300_000, 60_000, 'the time of the sandbox')
    await box.kill()
  },

  async 'create: a template by its name'() {
    const box = await Sandbox.create('base', { metadata: { run: RUN }, timeoutMs: 60_000 })
    const info = await box.getInfo()
    assert.equal(info.name, 'base')
    assert.ok(info.templateId)
    assert.equal(await box.kill(), true)
  },

  async 'create: a template that does not exist'() {
    const error = await failure(Sandbox.create('No Such Template'), SandboxError)
    assert.equal(error.statusCode, 404)
    assert.match(error.message, /No Such Template/)
  },

  async 'create: a key that does not exist'() {
    await failure(Sandbox.create({ apiKey: `e2b_${'0'.repeat(40)}` }), AuthenticationError)
    await failure(Sandbox.list({ apiKey: `e2b_${'0'.repeat(40)}` }).nextItems(), AuthenticationError)
  },

  async 'getInfo: the same of the class and of the sandbox'() {
    const box = await common()
    const info = await box.getInfo()
    assert.deepEqual(await Sandbox.getInfo(box.sandboxId), info)
    assert.equal(info.sandboxId, box.sandboxId)
    assert.equal(info.state, 'running')
    assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
    assert.equal(typeof info.cpuCount, 'number')
    assert.equal(typeof info.memoryMB, 'number')
    assert.ok(info.startedAt instanceof Date && info.startedAt < info.endAt)
    near(info.startedAt.getTime(), Date.now(), 600_000, 'the start')
  },

  async 'a sandbox that does not exist: NotFoundError, or false'() {
    await failure(Sandbox.getInfo(MISSING), SandboxNotFoundError)
    await failure(Sandbox.connect(MISSING), SandboxNotFoundError)
    await failure(Sandbox.setTimeout(MISSING, 60_000), SandboxNotFoundError)
    await failure(Sandbox.pause(MISSING), NotFoundError)
    assert.equal(await Sandbox.kill(MISSING), false)
  },

  async 'setTimeout: longer, and shorter'() {
    const box = await create({ timeoutMs: 120_000 })
    await box.setTimeout(900_000)
    near(left(await box.getInfo()), 900_000, 30_000, 'what is left')
    await Sandbox.setTimeout(box.sandboxId, 200_000)
    near(left(await box.getInfo()), 200_000, 30_000, 'what is left')
    await box.setTimeout(1)
    await until('the end of the sandbox', async () => !(await box.isRunning()))
  },

  async 'connect: by the id, with the same files and commands'() {
    const box = await create({ timeoutMs: 120_000 })
    await box.files.write('/tmp/connected', 'first')
    const command = await box.commands.run('exec sleep 600', { background: true })
    const other = await Sandbox.connect(box.sandboxId)
    assert.equal(other.sandboxId, box.sandboxId)
    assert.equal(await other.files.read('/tmp/connected'), 'first')
    assert.ok((await other.commands.list()).some((one) => one.pid === command.pid))
    assert.equal(await other.kill(), true)
  },

  async 'connect: timeoutMs lengthens and never shortens'() {
    const box = await create({ timeoutMs: 300_000 })
    await Sandbox.connect(box.sandboxId, { timeoutMs: 900_000 })
    near(left(await box.getInfo()), 900_000, 30_000, 'what is left')
    await box.connect({ timeoutMs: 60_000 })
    near(left(await box.getInfo()), 900_000, 60_000, 'what is left')
    await box.kill()
  },

  async 'connect: five minutes for a paused sandbox where no timeoutMs is given'() {
    const box = await create({ timeoutMs: 900_000 })
    await box.pause()
    await Sandbox.connect(box.sandboxId)
    near(left(await box.getInfo()), 300_000, 30_000, 'what is left')
    await box.kill()
  },

  async 'create: a timeoutMs of more than a service allows is 400'() {
    const error = await failure(Sandbox.create({ timeoutMs: 1e12 }), SandboxError)
    assert.equal(error.statusCode, 400)
    assert.match(error.message, /timeout/i)
  },

  async 'create: two sandboxes have nothing in common'() {
    const box = await common()
    const other = await create()
    await box.files.write('/tmp/mine', 'x')
    assert.equal(await other.files.exists('/tmp/mine'), false)
    await failure(other.commands.connect((await box.commands.run('sleep 655', { background: true })).pid), NotFoundError)
    await other.kill()
  },

  async 'E2B: a client with options of its own'() {
    const box = await common()
    const client = new E2B({ apiKey: process.env.E2B_API_KEY })
    assert.equal((await client.Sandbox.getInfo(box.sandboxId)).sandboxId, box.sandboxId)
    await failure(new E2B({ apiKey: 'e2b_00' }).Sandbox.getInfo(box.sandboxId), AuthenticationError)
  },

  async 'list: pages, in both orders, with all filters'() {
    const group = `group ${RUN}`
    const boxes = []
    for (const number of ['1', '2', '3']) boxes.push(await create({ metadata: { group, number } }))
    const query = { metadata: { group } }
    const oldest = ids(boxes)
    assert.deepEqual(ids(await listed({ query, order: 'asc', limit: 2 })), oldest)
    assert.deepEqual(ids(await listed({ query, order: 'desc', limit: 1 })), oldest.toReversed())
    assert.deepEqual(ids(await listed({ query: { metadata: { group, number: '2' } } })), [oldest[1]])
    assert.deepEqual(ids(await listed({ query: { metadata: { group: 'another', number: '2' } } })), [])
    const pages = Sandbox.list({ query, limit: 2, order: 'asc' })
    assert.equal((await pages.nextItems()).length, 2)
    assert.equal(pages.hasNext, true)
    const further = Sandbox.list({ query, limit: 2, order: 'asc', nextToken: pages.nextToken })
    assert.deepEqual(ids(await further.nextItems()), [oldest[2]])
    assert.equal(further.hasNext, false)
    await failure(further.nextItems(), Error)
    await Promise.all(boxes.map((box) => box.kill()))
    assert.deepEqual(await listed({ query }), [])
  },

  async 'list: startedAfter and template'() {
    const box = await common()
    const { startedAt, name, templateId } = await box.getInfo()
    assert.ok(ids(await listed({ query: { startedAfter: new Date(startedAt.getTime() - 60_000) } })).includes(box.sandboxId))
    assert.ok(!ids(await listed({ query: { startedAfter: new Date(startedAt.getTime() + 1_000) } })).includes(box.sandboxId))
    for (const template of [name, templateId]) assert.ok(ids(await listed({ query: { template } })).includes(box.sandboxId), template)
    assert.deepEqual(await listed({ query: { template: 'no-such-template-held' } }), [])
  },

  async 'kill: true, and false for what is gone'() {
    const box = await create()
    assert.equal(await box.kill(), true)
    assert.equal(await box.kill(), false)
    assert.equal(await Sandbox.kill(box.sandboxId), false)
    assert.equal(await box.isRunning(), false)
  },

  async 'kill: what the sandbox answers afterwards'() {
    const box = await create()
    await box.kill()
    await failure(box.getInfo(), SandboxNotFoundError)
    await failure(box.setTimeout(60_000), SandboxNotFoundError)
    await failure(Sandbox.connect(box.sandboxId), SandboxNotFoundError)
    await failure(box.commands.run('true'), TimeoutError, SandboxNotFoundError)
    await failure(box.files.read('/etc/passwd'), TimeoutError, SandboxNotFoundError)
    await failure(box.files.list('/'), TimeoutError, SandboxNotFoundError)
    await failure(box.pty.create({ cols: 80, rows: 24, onData: () => {} }), TimeoutError, SandboxNotFoundError)
  },

  async 'kill: a command and a watch that run end with an error'() {
    const box = await create()
    const command = await box.commands.run('echo up; exec sleep 600', { background: true })
    let exited
    const exit = new Promise((resolve) => (exited = resolve))
    await box.files.watchDir('/tmp', () => {}, { onExit: (error) => exited(error ?? 'no error'), timeoutMs: 0 })
    await until('its output', () => command.stdout === 'up\n')
    const ended = failure(command.wait(), TimeoutError, SandboxNotFoundError)
    await box.kill()
    await ended
    const error = await within(30_000, 'onExit', exit)
    assert.ok(error instanceof TimeoutError || error instanceof SandboxNotFoundError, String(error))
  },

  async 'the end of timeoutMs kills the sandbox'() {
    const box = await create({ timeoutMs: 3_000 })
    await until('the end of the sandbox', async () => !(await box.isRunning()))
    await until('a list without it', async () => !ids(await listed()).includes(box.sandboxId))
    await failure(box.commands.run('true'), TimeoutError, SandboxNotFoundError)
    assert.equal(await box.kill(), false)
  },

  async 'getMetrics'() {
    const box = await common()
    const metrics = await until('metrics', async () => {
      const all = await box.getMetrics()
      return all.length > 0 && all
    })
    const last = metrics.at(-1)
    assert.ok(last.timestamp instanceof Date && !Number.isNaN(last.timestamp.getTime()))
    assert.ok(last.memUsed > 0 && last.memTotal >= last.memUsed, `memory: ${last.memUsed} of ${last.memTotal}`)
    assert.ok(last.cpuUsedPct >= 0 && last.cpuCount >= 1, `cpu: ${last.cpuUsedPct} of ${last.cpuCount}`)
    await failure(Sandbox.getMetrics(MISSING), NotFoundError)
  },

  async 'pause and connect: processes and files stay'() {
    const box = await create()
    await box.files.write('/tmp/paused', 'kept')
    const command = await box.commands.run('exec sleep 600', { background: true })
    await command.disconnect()
    assert.equal(await box.pause(), true)
    assert.equal(await box.pause(), false)
    assert.equal((await box.getInfo()).state, 'paused')
    assert.equal(await box.isRunning(), false)
    assert.ok(ids(await listed({ query: { state: ['paused'] } })).includes(box.sandboxId))
    assert.ok(!ids(await listed({ query: { state: ['running'] } })).includes(box.sandboxId))
    assert.ok(ids(await listed()).includes(box.sandboxId))
    const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 240_000 })
    assert.equal(await again.isRunning(), true)
    const info = await again.getInfo()
    assert.equal(info.state, 'running')
    near(left(info), 240_000, 30_000, 'what is left')
    assert.equal(await again.files.read('/tmp/paused'), 'kept')
    assert.ok((await again.commands.list()).some((one) => one.pid === command.pid))
    assert.equal((await box.commands.run('echo same')).stdout, 'same\n')
    assert.equal(await box.kill(), true)
  },

  async 'kill: a paused sandbox'() {
    const box = await create()
    await box.pause()
    assert.equal(await box.kill(), true)
    await failure(Sandbox.connect(box.sandboxId), SandboxNotFoundError)
  },

  async 'lifecycle: a timeout that pauses'() {
    const box = await create({ lifecycle: { onTimeout: 'pause' } })
    assert.equal((await box.getInfo()).lifecycle.onTimeout, 'pause')
    await box.files.write('/tmp/auto', 'kept')
    await box.setTimeout(1_000)
    await until('the pause', async () => (await box.getInfo()).state === 'paused')
    await box.connect({ timeoutMs: 120_000 })
    assert.equal(await box.files.read('/tmp/auto'), 'kept')
    assert.equal((await box.getInfo()).state, 'running')
    await box.kill()
  },

  async 'lifecycle: traffic resumes what a timeout paused'() {
    const box = await create({ timeoutMs: 4_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
    assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
    await until('the pause', async () => (await box.getInfo()).state === 'paused')
    assert.equal((await box.commands.run('echo awake')).stdout, 'awake\n')
    await box.kill()
  },

  async 'network: what was given is shown, and updateNetwork replaces it'() {
    const box = await create({ network: { allowOut: ['192.0.2.1', '198.51.100.0/24'], denyOut: [ALL_TRAFFIC] } })
    const shown = (await box.getInfo()).network
    assert.deepEqual(shown.allowOut, ['192.0.2.1', '198.51.100.0/24'])
    assert.deepEqual(shown.denyOut, [ALL_TRAFFIC])
    await box.updateNetwork({ denyOut: ['203.0.113.0/24'] })
    const replaced = (await box.getInfo()).network
    assert.deepEqual(replaced.allowOut ?? [], [])
    assert.deepEqual(replaced.denyOut, ['203.0.113.0/24'])
    await failure(Sandbox.updateNetwork(MISSING, {}), NotFoundError)
    await box.kill()
  },

  async 'allowInternetAccess: false'() {
    const box = await create({ allowInternetAccess: false })
    assert.equal((await box.getInfo()).allowInternetAccess, false)
    const reach = 'import socket; socket.create_connection(("192.0.2.1", 80), 20)'
    const error = await box.commands.run(`python3 -c '${reach}'`).catch((error) => error)
    assert.match(error.stderr, /refused|unreachable|timed out|permitted/)
    await box.kill()
  },

  'createSnapshot': refusable(/snapshot/i, async () => {
    const snapshot = await (await common()).createSnapshot()
    assert.ok(snapshot.snapshotId)
  }),

  'fork': refusable(/fork/i, async () => {
    const forks = await (await common()).fork({ count: 1 })
    assert.ok(forks[0] instanceof Sandbox)
  }),

  async 'pause: without memory'() {
    const box = await create()
    await box.files.write('/root/kept', 'kept')
    await box.commands.run('exec sleep 1000', { background: true, timeoutMs: 0 })
    assert.equal(await box.pause({ keepMemory: false }), true)
    assert.equal((await box.getInfo()).state, 'paused')
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal(await again.files.read('/root/kept'), 'kept')
    assert.deepEqual(await again.commands.list(), [])
    await again.kill()
  },

  'network: rules': refusable(/rules/i, async () => {
    const rules = { 'api.example.com': [{ transform: { headers: { 'x-held': 'yes' } } }] }
    const box = await create({ network: { allowOut: ['api.example.com'], denyOut: [ALL_TRAFFIC], rules } })
    assert.ok((await box.getInfo()).network.rules['api.example.com'])
  }),
}
