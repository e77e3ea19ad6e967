// Has agents of the AI SDK, as npm has it, work in sandboxes: one of its harness package, whose runtime is
// a program that asks for tools, and one of its own with a model that does so. The environment is that of
// a client; SANDBOX_SDK is the directory of the compiled client, SANDBOX_IMAGE an image with Python.
import assert from 'node:assert/strict'
import * as harness from '@ai-sdk/harness'
import { HarnessAgent } from '@ai-sdk/harness/agent'
import { isStepCount, jsonSchema, tool, ToolLoopAgent } from 'ai'
import { MockLanguageModelV4 } from 'ai/test'

const { Client, harnessSandboxes } = await import(`${process.env.SANDBOX_SDK}/index.js`)
const client = new Client()
const image = process.env.SANDBOX_IMAGE
const common = { image, timeout: 600, metadata: { test: 'ai-sdk' }, cwd: '/work', ports: [8000] }
const text = async (stream) => new Response(stream).text()
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }

// tools are those of a user: they are given the sandbox, and nothing that could end it.
const tools = {
  write: tool({
    inputSchema: jsonSchema({ type: 'object' }),
    execute: async ({ path, content }, { experimental_sandbox: sandbox }) => {
      assert.equal('stop' in sandbox, false)
      await sandbox.writeTextFile({ path, content })
      return 'written'
    },
  }),
  run: tool({
    inputSchema: jsonSchema({ type: 'object' }),
    execute: async ({ command }, { experimental_sandbox: sandbox }) => sandbox.run({ command }),
  }),
}

// scripted is a harness whose runtime asks for one tool after another, which a prompt names.
const scripted = {
  specificationVersion: 'harness-v1',
  harnessId: 'scripted',
  builtinTools: {},
  getBootstrap: async () => ({
    harnessId: 'scripted',
    bootstrapDir: '.boot',
    files: [{ path: '.boot/start.sh', content: 'cat /proc/sys/kernel/random/uuid > id\n' }],
    commands: [{ command: 'sh start.sh' }],
  }),
  async doStart({ sessionId, resumeFrom, sandboxSession, sessionWorkDir }) {
    const state = { harnessId: 'scripted', specificationVersion: 'harness-v1', data: { sandbox: sandboxSession.id } }
    assert.equal((await sandboxSession.run({ command: 'pwd', workingDirectory: sessionWorkDir })).stdout, `${sessionWorkDir}\n`)
    return {
      sessionId,
      isResume: resumeFrom !== undefined,
      async doPromptTurn({ prompt, emit }) {
        const results = new Map()
        const turn = async () => {
          emit({ type: 'stream-start' })
          for (const [number, [toolName, input]] of JSON.parse(prompt).entries()) {
            const toolCallId = `${sessionId}-${number}`
            const result = new Promise((resolve) => results.set(toolCallId, resolve))
            emit({ type: 'tool-call', toolCallId, toolName, input: JSON.stringify(input) })
            emit({ type: 'tool-result', toolCallId, toolName, result: await result })
            emit({ type: 'finish-step', finishReason: { unified: 'tool-calls' }, usage })
          }
          emit({ type: 'text-start', id: 'text' })
          emit({ type: 'text-delta', id: 'text', delta: 'done' })
          emit({ type: 'text-end', id: 'text' })
          emit({ type: 'finish-step', finishReason: { unified: 'stop' }, usage })
          emit({ type: 'finish', finishReason: { unified: 'stop' }, totalUsage: usage })
        }
        return { done: turn(), submitToolResult: async ({ toolCallId, output }) => results.get(toolCallId)(output) }
      },
      doStop: async () => ({ type: 'resume-session', ...state }),
      doDestroy: async () => {},
    }
  },
}

const work = async (agent, session, ...steps) => {
  const { text, steps: made } = await agent.generate({ session, prompt: JSON.stringify(steps) })
  assert.equal(text, 'done')
  const results = made.flatMap((step) => step.toolResults.map(({ output }) => output))
  assert.equal(results.length, steps.length, JSON.stringify(made))
  return results
}

// harnessAgent takes a session from its creation through a stop and its resumption to its end.
async function harnessAgent() {
  const sandbox = harnessSandboxes(harness, client, { ...common, filesOnly: true })
  const settings = { harness: scripted, sandbox, tools }
  const agent = new HarnessAgent(settings)
  const session = await agent.createSession({ sessionId: 'first' })
  const [written, ran] = await work(agent, session, ['write', { path: 'a.txt', content: 'é\n' }], ['run', { command: 'cat a.txt; echo bad >&2; exit 3' }])
  assert.equal(written, 'written')
  assert.deepEqual(ran, { exitCode: 3, stdout: 'é\n', stderr: 'bad\n' })
  const state = JSON.parse(JSON.stringify(await session.stop()))
  assert.equal((await client.get(state.data.sandbox)).status.state, 'Paused')

  // As another process does it.
  const later = new HarnessAgent({ ...settings, sandbox: harnessSandboxes(harness, new Client(), { ...common, filesOnly: true }) })
  const resumed = await later.createSession({ sessionId: 'first', resumeFrom: state })
  const [kept, id] = await work(later, resumed, ['run', { command: 'cat a.txt' }], ['run', { command: 'cat .boot/id' }])
  assert.equal(kept.stdout, 'é\n')

  // The bootstrap has run once for both sessions, before the snapshot that they begin with.
  const second = await later.createSession({ sessionId: 'second' })
  const [other] = await work(later, second, ['run', { command: 'cat .boot/id; cat a.txt' }])
  assert.match(id.stdout, /^[-0-9a-f]{36}\n$/)
  assert.equal(other.stdout, id.stdout)
  await second.destroy()
  await resumed.destroy()
  await (await client.connect(state.data.sandbox)).wait('Terminated', { timeout: 60_000 })
}

// modelAgent has an agent of the AI SDK itself use every call of a restricted session.
async function modelAgent(session) {
  const all = tool({ inputSchema: jsonSchema({ type: 'object' }), execute: (_, { experimental_sandbox: sandbox }) => everyCall(sandbox) })
  const model = new MockLanguageModelV4({
    doGenerate: [
      { content: [{ type: 'tool-call', toolCallId: '1', toolName: 'all', input: '{}' }], finishReason: { unified: 'tool-calls' }, usage, warnings: [] },
      { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop' }, usage, warnings: [] },
    ],
  })
  const agent = new ToolLoopAgent({ model, tools: { all }, stopWhen: isStepCount(3) })
  const { text, steps } = await agent.generate({ prompt: 'work', experimental_sandbox: session.restricted() })
  assert.equal(text, 'done')
  assert.deepEqual(steps[0].content.filter(({ type }) => type === 'tool-error'), [])
  assert.equal(steps[0].toolResults[0].output, 'all of them')
}

async function everyCall(sandbox) {
  for (const name of ['stop', 'destroy', 'setNetworkPolicy', 'getPortEndpoint', 'restricted']) assert.equal(name in sandbox, false, name)
  assert.match(sandbox.description, /Commands run in \/work/)
  const bytes = crypto.getRandomValues(new Uint8Array(1 << 16))
  await sandbox.writeBinaryFile({ path: 'in/bytes', content: bytes })
  assert.deepEqual(await sandbox.readBinaryFile({ path: '/work/in/bytes' }), bytes)
  await sandbox.writeFile({ path: 'in/stream', content: new Blob([bytes]).stream() })
  assert.deepEqual(new Uint8Array(await new Response(await sandbox.readFile({ path: 'in/stream' })).arrayBuffer()), bytes)
  await sandbox.writeTextFile({ path: 'in/text', content: '1\n2 é\n3\n4' })
  assert.equal(await sandbox.readTextFile({ path: 'in/text', startLine: 2, endLine: 3 }), '2 é\n3')
  assert.equal(await sandbox.readTextFile({ path: 'in/text', startLine: 4, endLine: 9 }), '4')
  assert.equal(await sandbox.readTextFile({ path: 'in/text', encoding: 'latin1' }), '1\n2 Ã©\n3\n4')
  await sandbox.writeTextFile({ path: 'in/empty', content: '' })
  assert.equal(await text(await sandbox.readFile({ path: 'in/empty' })), '')
  await assert.rejects(sandbox.writeTextFile({ path: 'in/text', content: '', encoding: 'utf-16le' }), (error) =>
    harness.HarnessCapabilityUnsupportedError.isInstance(error) && /encoding utf-16le/.test(error.message))
  await assert.rejects(sandbox.writeTextFile({ path: 'in', content: '' }), { name: 'SandboxError' })
  for (const call of ['readFile', 'readBinaryFile', 'readTextFile', 'stat', 'listDirectory']) {
    assert.equal(await sandbox[call]({ path: 'in/none' }), null, call)
  }

  await sandbox.run({ command: 'ln -s text in/link; ln -s ../in in/parent; ln -s loop in/loop; ln -s none in/broken; mkdir in/folder' })
  assert.deepEqual(await sandbox.stat({ path: 'in/link' }), { type: 'file', size: 10 })
  assert.deepEqual(await sandbox.stat({ path: 'in/parent/text' }), { type: 'file', size: 10 })
  assert.equal((await sandbox.stat({ path: 'in/parent' })).type, 'directory')
  assert.equal((await sandbox.stat({ path: '/dev/null' })).type, 'other')
  assert.equal(await sandbox.stat({ path: 'in/broken' }), null)
  await assert.rejects(sandbox.stat({ path: 'in/loop' }), /too many symbolic links/)
  const listed = Object.fromEntries((await sandbox.listDirectory({ path: 'in' })).map(({ name, type }) => [name, type]))
  assert.deepEqual(listed, {
    broken: 'symlink', bytes: 'file', empty: 'file', folder: 'directory', link: 'symlink', loop: 'symlink', parent: 'symlink', stream: 'file', text: 'file',
  })
  await assert.rejects(sandbox.listDirectory({ path: 'in/text' }), { name: 'SandboxError' })
  assert.equal(await sandbox.deleteFile({ path: 'in/link' }), true)
  assert.equal(await sandbox.deleteFile({ path: 'in/link' }), false)
  assert.equal((await sandbox.stat({ path: 'in/text' })).size, 10)
  await assert.rejects(sandbox.deleteFile({ path: 'in/folder' }), { name: 'SandboxError' })

  assert.deepEqual(await sandbox.run({ command: 'pwd; echo "$A"', workingDirectory: 'in', env: { A: 'b' } }), { exitCode: 0, stdout: '/work/in\nb\n', stderr: '' })
  const sorted = await sandbox.spawn({ command: 'sort; echo over >&2; exit 4', stdin: true })
  const input = sorted.stdin.getWriter()
  await input.write(new TextEncoder().encode('b\n'))
  await input.write(new TextEncoder().encode('a\n'))
  await input.close()
  assert.deepEqual([await text(sorted.stdout), await text(sorted.stderr)], ['a\nb\n', 'over\n'])
  assert.deepEqual([await sorted.wait(), await sorted.wait()], [{ exitCode: 4 }, { exitCode: 4 }])

  const silent = await sandbox.spawn({ command: 'cat; echo first; exec sleep 600' })
  assert.equal('stdin' in silent, false)
  const output = silent.stdout.getReader()
  assert.equal(new TextDecoder().decode((await output.read()).value), 'first\n')
  await output.cancel()
  await silent.kill()
  await silent.kill()
  assert.deepEqual(await silent.wait(), { exitCode: 143 })

  const controller = new AbortController()
  const aborted = await sandbox.spawn({ command: 'exec sleep 600', abortSignal: controller.signal })
  const waiting = aborted.wait()
  controller.abort(new Error('the test has aborted it'))
  await assert.rejects(waiting, /the test has aborted it/)
  await assert.rejects(sandbox.run({ command: 'true', abortSignal: controller.signal }), /the test has aborted it/)
  return 'all of them'
}

// sessions are found by their ids, and stopped and ended any number of times.
async function sessions() {
  const options = { ...common, networkPolicy: { defaultAction: 'allow' } }
  const providers = [harnessSandboxes(harness, client, options), harnessSandboxes(harness, new Client(), options)]
  const [session, same] = await Promise.all(providers.map((provider) => provider.createSession({ sessionId: 'third é' })))
  assert.equal(session.id, same.id)
  assert.equal(session.defaultWorkingDirectory, '/work')
  await modelAgent(session)

  const server = await session.spawn({ command: 'exec python3 -u -m http.server 8000', workingDirectory: 'in' })
  await server.stderr.cancel()
  for await (const line of server.stdout) if (/Serving/.test(new TextDecoder().decode(line))) break
  const { url, headers } = await session.getPortEndpoint({ port: 8000 })
  assert.equal(await (await fetch(`${url}/text`, { headers })).text(), '1\n2 é\n3\n4')
  assert.match((await session.getPortEndpoint({ port: 8000, protocol: 'ws' })).url, /^ws:/)
  const refused = (what) => (error) => harness.HarnessCapabilityUnsupportedError.isInstance(error) && what.test(error.message)
  await assert.rejects(session.getPortEndpoint({ port: 8000, protocol: 'https' }), refused(/no https/))
  await assert.rejects(session.getPortUrl({ port: 8000 }), refused(/needs the headers/))
  await assert.rejects(session.getPortEndpoint({ port: 8001 }), refused(/port 8001/))
  await session.setPorts([8001])
  assert.deepEqual(session.ports, [8001])
  assert.ok((await session.getPortEndpoint({ port: 8001 })).url)
  await assert.rejects(session.getPortEndpoint({ port: 8000 }), refused(/port 8000/))

  await session.setNetworkPolicy({ mode: 'custom', allowedHosts: ['*.example.com'], allowedCIDRs: ['192.0.2.0/24'], deniedCIDRs: ['192.0.2.0/28'] })
  const { network } = await client.connect(session.id)
  const policy = await network.policy()
  assert.equal(policy.defaultAction, 'deny')
  assert.deepEqual(policy.egress.map(({ action, target }) => `${action} ${target}`), ['deny 192.0.2.0/28', 'allow 192.0.2.0/24', 'allow *.example.com'])
  await session.setNetworkPolicy({ mode: 'deny-all' })
  assert.equal((await network.policy()).defaultAction, 'deny')
  await session.setNetworkPolicy({ mode: 'allow-all' })
  assert.equal((await network.policy()).defaultAction, 'allow')
  for (const name of ['setRequestTransformations', 'addRequestTransformations']) assert.equal(name in session, false, name)

  // The processes go on where they were.
  await Promise.all([session.stop(), same.stop()])
  await session.stop()
  assert.equal((await client.get(session.id)).status.state, 'Paused')
  const resumed = await providers[1].resumeSession({ sessionId: 'third é' })
  assert.equal(resumed.id, session.id)
  const again = await resumed.getPortEndpoint({ port: 8000 })
  assert.equal(await (await fetch(`${again.url}/text`, { headers: again.headers })).text(), '1\n2 é\n3\n4')
  await session.stop()
  const woken = await Promise.all(providers.map((provider) => provider.createSession({ sessionId: 'third é' })))
  assert.deepEqual(woken.map(({ id }) => id), [session.id, session.id])

  await session.stop()
  await session.destroy()
  await session.destroy()
  await session.stop()
  await assert.rejects(providers[0].resumeSession({ sessionId: 'third é' }), /session third é: has no sandbox/)
  const next = await providers[0].createSession({ sessionId: 'third é' })
  assert.notEqual(next.id, session.id)
  await next.destroy()
}

// unlike makes sessions of what a service or a key may not have.
async function unlike() {
  const stranger = harnessSandboxes(harness, new Client({ apiKey: 'wrong' }), common)
  await assert.rejects(stranger.createSession({ sessionId: 'a' }), (error) => harness.HarnessSandboxAuthenticationError.isInstance(error))

  // A service without snapshots prepares each sandbox, once.
  const without = new Client({
    fetch: (url, init) =>
      new URL(url).pathname === '/v1/snapshots'
        ? Promise.resolve(Response.json({ code: 'NOT_IMPLEMENTED', message: 'no snapshots' }, { status: 501 }))
        : fetch(url, init),
  })
  const provider = harnessSandboxes(harness, without, common)
  let prepared = 0
  const onFirstCreate = async (session) => {
    prepared++
    await session.writeTextFile({ path: 'ready', content: 'yes' })
  }
  const session = await provider.createSession({ sessionId: 'fourth', identity: 'i', onFirstCreate })
  const same = await provider.createSession({ sessionId: 'fourth', identity: 'i', onFirstCreate })
  assert.equal(await same.readTextFile({ path: 'ready' }), 'yes')
  assert.deepEqual([same.id, prepared], [session.id, 1])
  await session.destroy()

  // What could not be prepared is not there.
  const failing = async () => {
    throw new Error('no compiler')
  }
  for (const each of [provider, harnessSandboxes(harness, client, common)]) {
    await assert.rejects(each.createSession({ sessionId: 'fifth', identity: 'j', onFirstCreate: failing }), /no compiler/)
    await assert.rejects(each.resumeSession({ sessionId: 'fifth' }), /has no sandbox/)
  }

  // Two at once prepare one snapshot.
  prepared = 0
  const kept = harnessSandboxes(harness, client, { ...common, networkPolicy: { defaultAction: 'allow' } })
  const both = await Promise.all([kept.createSession({ identity: 'k', onFirstCreate }), kept.createSession({ identity: 'k', onFirstCreate })])
  assert.notEqual(both[0].id, both[1].id)
  for (const each of both) assert.equal(await each.readTextFile({ path: 'ready' }), 'yes')
  assert.equal(prepared, 1)
}

try {
  for (const part of [harnessAgent, sessions, unlike]) {
    const began = performance.now()
    await part()
    console.log(part.name, Math.round(performance.now() - began), 'ms')
  }
} finally {
  for await (const { id, status } of client.list({ metadata: { test: 'ai-sdk' } })) {
    if (status.state !== 'Terminated') await (await client.connect(id)).delete()
  }
  for await (const { id, metadata } of client.snapshots.list()) {
    if (metadata?.['ai-sdk.template'] !== undefined) await client.snapshots.delete(id)
  }
}
console.log('RESULTS', 'all of it works')
