// Has an agent of deepagents, as npm has it, work in a sandbox. A program in place of a language
// model asks for the tools. The environment is that of a client; SANDBOX_SDK is the directory of the
// compiled client, SANDBOX_IMAGE an image.
import assert from 'node:assert/strict'
import { AIMessage, ToolMessage } from '@langchain/core/messages'
import { BaseChatModel } from '@langchain/core/language_models/chat_models'
import { BaseSandbox, createDeepAgent, isSandboxBackend } from 'deepagents'

const { Client, deepagentsBackend } = await import(`${process.env.SANDBOX_SDK}/index.js`)

// Script asks for one tool after another.
class Script extends BaseChatModel {
  constructor(steps) {
    super({})
    this.steps = steps
  }
  _llmType() {
    return 'script'
  }
  bindTools() {
    return this
  }
  async _generate(messages) {
    const done = messages.filter((message) => message instanceof ToolMessage).length
    const step = this.steps[done]
    const message = step === undefined
      ? new AIMessage('done')
      : new AIMessage({ content: '', tool_calls: [{ id: `call-${done}`, name: step[0], args: step[1], type: 'tool_call' }] })
    return { generations: [{ text: '', message }] }
  }
}

const client = new Client()
const sandbox = await client.create(process.env.SANDBOX_IMAGE, { timeout: 600 })
try {
  const backend = deepagentsBackend(BaseSandbox, sandbox, { cwd: '/tmp', timeout: 60_000 })
  assert.ok(backend instanceof BaseSandbox)
  assert.ok(isSandboxBackend(backend))
  assert.equal(backend.id, sandbox.id)

  // An agent uses every tool.
  const steps = [
    ['write_file', { file_path: '/tmp/work/a.txt', content: 'one\ntwo é\nthree\n' }],
    ['read_file', { file_path: '/tmp/work/a.txt' }],
    ['edit_file', { file_path: '/tmp/work/a.txt', old_string: 'two é', new_string: '2 €' }],
    ['ls', { path: '/tmp/work' }],
    ['glob', { pattern: '*.txt', path: '/tmp/work' }],
    ['grep', { pattern: '2 €', path: '/tmp/work' }],
    ['execute', { command: 'wc -l < work/a.txt; echo bad >&2; exit 3' }],
  ]
  const model = new Script(steps)
  const agent = createDeepAgent({ model, backend })
  const { messages } = await agent.invoke({ messages: [{ role: 'user', content: 'work' }] }, { recursionLimit: 100 })
  const results = messages.filter((message) => message instanceof ToolMessage).map((message) => message.text)
  assert.equal(results.length, steps.length, JSON.stringify(results))
  const [, read, , listed, matched, found, executed] = results
  assert.match(read, /two é/)
  assert.match(listed, /a\.txt/)
  assert.match(matched, /a\.txt/)
  assert.match(found, /2 €/)
  assert.match(executed, /3\nbad|bad\n3/)
  assert.match(executed, /exit code:? 3/i)
  assert.equal(await sandbox.files.readText('/tmp/work/a.txt'), 'one\n2 €\nthree\n')

  // What the framework's own tools do not show.
  const bytes = crypto.getRandomValues(new Uint8Array(1 << 16))
  assert.deepEqual(await backend.uploadFiles([
    ['/tmp/bytes', bytes],
    ['/tmp', bytes],
    ['/proc/none', bytes],
    ['/tmp/later', new Uint8Array()],
  ]), [
    { path: '/tmp/bytes', error: null },
    { path: '/tmp', error: 'is_directory' },
    { path: '/proc/none', error: 'permission_denied' },
    { path: '/tmp/later', error: null },
  ])
  const [whole, missing, directory, empty] = await backend.downloadFiles(['/tmp/bytes', '/tmp/none', '/tmp', '/tmp/later'])
  assert.deepEqual(whole, { path: '/tmp/bytes', content: bytes, error: null })
  assert.deepEqual(missing, { path: '/tmp/none', content: null, error: 'file_not_found' })
  assert.deepEqual(directory, { path: '/tmp', content: null, error: 'is_directory' })
  assert.equal(empty.content.length, 0)

  const short = deepagentsBackend(BaseSandbox, sandbox, { timeout: 500, maxOutput: 4 })
  const ended = await short.execute('echo first; echo second; sleep 60')
  assert.equal(ended.exitCode, null)
  assert.equal(ended.truncated, true)
  assert.match(ended.output, /^firs\n\[The command was ended because its time was over\.\]$/)
  const signalled = await backend.execute('kill -KILL $$')
  assert.equal(signalled.exitCode, 137)
  assert.equal(signalled.truncated, false)

  // Nothing of a sandbox that is gone is hidden as a file that is missing.
  await sandbox.delete()
  await assert.rejects(backend.downloadFiles(['/tmp/bytes']), { name: 'SandboxError' })
  await assert.rejects(backend.execute('true'), { name: 'SandboxError' })
} finally {
  await sandbox.delete()
}
console.log('RESULTS', 'all of it works')
