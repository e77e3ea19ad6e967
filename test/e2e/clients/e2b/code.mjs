// Runs code with a client of E2B's code interpreter as npm has it, and prints a line for each call.
// Usage: node code.mjs PACKAGE. The environment is as for main.mjs.
import assert from 'node:assert/strict'
import { call, finish, report } from './calls.mjs'

const { Sandbox } = await import(process.argv[2])
const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { COLOR: 'blue' } })
report('Sandbox.create', 'passes')

await call('runCode keeps state', async () => {
  await sandbox.runCode('x = 41')
  const ran = await sandbox.runCode('x + 1')
  assert.equal(ran.text, '42')
  assert.equal(ran.error, undefined)
})
await call('runCode with output', async () => {
  const out = []
  const ran = await sandbox.runCode('import sys\nprint("héllo €")\nprint("bad", file=sys.stderr)', { onStdout: (m) => out.push(m.line) })
  assert.equal(ran.logs.stdout.join(''), 'héllo €\n')
  assert.equal(ran.logs.stderr.join(''), 'bad\n')
  assert.equal(out.join(''), 'héllo €\n')
})
await call('runCode with 300 000 characters of three bytes', async () => {
  const ran = await sandbox.runCode('print("€" * 300000)')
  assert.equal(ran.logs.stdout.join('').trimEnd().replaceAll('€', '').length, 0)
  assert.equal(ran.logs.stdout.join('').trimEnd().length, 300_000)
})
await call('runCode with a text', async () => assert.equal((await sandbox.runCode('"it\'s a text"')).text, "it's a text"))
await call('runCode with an error', async () => {
  const ran = await sandbox.runCode('1 / 0')
  assert.equal(ran.error.name, 'ZeroDivisionError')
  assert.match(ran.error.traceback, /ZeroDivisionError/)
})
await call('runCode with results of several forms', async () => {
  const ran = await sandbox.runCode(`
class Rich:
    def _repr_html_(self): return "<b>é</b>"
    def _repr_latex_(self): return "$x$"
    def __repr__(self): return "rich"
Rich()`)
  assert.equal(ran.results.length, 1)
  assert.equal(ran.results[0].html, '<b>é</b>')
  assert.equal(ran.results[0].latex, '$x$')
  assert.equal(ran.results[0].text, 'rich')
  assert.equal(ran.results[0].isMainResult, true)
  assert.equal(ran.results[0].png, undefined)
})
await call('runCode with envs', async () => {
  const ran = await sandbox.runCode('import os; print(os.environ["A"], os.environ["COLOR"])', { envs: { A: 'b' } })
  assert.equal(ran.logs.stdout.join(''), 'b blue\n')
})
await call('runCode in a language without a kernel', async () => {
  await assert.rejects(sandbox.runCode('1', { language: 'cobol' }), /400/)
})
await call('contexts', async () => {
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  const ran = await sandbox.runCode('import os; y = 1; print(os.getcwd())', { context })
  assert.equal(ran.logs.stdout.join(''), '/tmp\n')
  assert.equal((await sandbox.runCode('y')).error.name, 'NameError')
  if (!sandbox.listCodeContexts) return // of a client that does not have it
  assert.ok((await sandbox.listCodeContexts()).some((c) => c.id === context.id))
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('y', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
  assert.ok(!(await sandbox.listCodeContexts()).some((c) => c.id === context.id))
})
await call('runCode with timeoutMs', async () => {
  await assert.rejects(sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 1000 }), (error) => {
    assert.equal(error.constructor.name, 'TimeoutError')
    return true
  })
  assert.equal((await sandbox.runCode('x + 2')).text, '43') // the cell was interrupted
})
await call('commands and files beside it', async () => {
  await sandbox.files.write('shared.txt', 'shared')
  assert.equal((await sandbox.commands.run('cat shared.txt')).stdout, 'shared')
})
await call('sandbox.kill', () => sandbox.kill())
finish()
