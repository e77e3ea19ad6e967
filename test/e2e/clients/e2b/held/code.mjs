// The code interpreter.

import assert from 'node:assert/strict'

import { InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError } from 'code-interpreter-2.8.0'

import { coding, create, failure, later, near, until } from './common.mjs'

const quiet = (execution) => assert.equal(execution.error, undefined, JSON.stringify(execution.error))

const RICH = `
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>rich</b>'
    def _repr_markdown_(self): return '**rich**'
    def _repr_svg_(self): return '<svg/>'
    def _repr_latex_(self): return '$rich$'
    def _repr_json_(self): return {'rich': [1, None]}
    def _repr_javascript_(self): return 'rich()'
    def _repr_png_(self): return b'png'
    def _repr_jpeg_(self): return b'jpeg'
    def _repr_pdf_(self): return b'pdf'
Rich()`

export const code = {
  async 'runCode: state, and the text of the last expression'() {
    const box = await coding()
    const first = await box.runCode('x = 41')
    quiet(first)
    assert.deepEqual([first.text, first.results], [undefined, []])
    const second = await box.runCode('y = x + 1\ny')
    assert.equal(second.text, '42')
    assert.deepEqual(second.results.map((one) => [one.isMainResult, one.text]), [[true, '42']])
    assert.deepEqual(second.logs, { stdout: [], stderr: [] })
    assert.equal(second.executionCount, first.executionCount + 1)
    assert.equal((await box.runCode('x', { language: 'python' })).text, '41')
  },

  async 'runCode: a text is without its quotes'() {
    assert.equal((await (await coding()).runCode("'ünï ✓'")).text, 'ünï ✓')
  },

  async 'runCode: logs and their callbacks'() {
    const box = await coding()
    const seen = []
    const note = (message) => void seen.push(message)
    const execution = await box.runCode('import sys\nprint("out ✓")\nprint("err", file=sys.stderr)', { onStdout: note, onStderr: note })
    assert.deepEqual([execution.logs.stdout.join(''), execution.logs.stderr.join('')], ['out ✓\n', 'err\n'])
    assert.deepEqual(seen.map((message) => [message.error, message.line]).toSorted(), [[false, 'out ✓\n'], [true, 'err\n']])
    // The client takes the time itself, in microseconds: its comment says nanoseconds.
    for (const { timestamp } of seen) near(timestamp / 1e3, Date.now(), 600_000, 'the time')
  },

  async 'runCode: output arrives during the run'() {
    const box = await coding()
    await box.files.remove('/tmp/go')
    const wait = 'import os, time\nwhile not os.path.exists("/tmp/go"): time.sleep(0.02)'
    let begun = false
    const execution = await box.runCode(`print("one", flush=True)\n${wait}\nprint("two")`, {
      timeoutMs: 40_000,
      onStdout: async ({ line }) => {
        if (begun || !line.startsWith('one')) return
        begun = true
        await box.files.write('/tmp/go', '')
      },
    })
    assert.equal(execution.logs.stdout.join(''), 'one\ntwo\n')
  },

  async 'runCode: an error'() {
    const box = await coding()
    let called
    const execution = await box.runCode('print("before")\ndef broken():\n    return 1 / 0\nbroken()', { onError: (error) => void (called = error) })
    assert.deepEqual([execution.error.name, execution.error.value], ['ZeroDivisionError', 'division by zero'])
    assert.match(execution.error.traceback, /broken[\s\S]*ZeroDivisionError/)
    assert.equal(execution.logs.stdout.join(''), 'before\n')
    assert.deepEqual(execution.results, [])
    assert.equal(called.name, 'ZeroDivisionError')
    assert.equal((await box.runCode('1 +')).error.name, 'SyntaxError')
    assert.equal((await box.runCode('1 + 1')).text, '2')
  },

  async 'runCode: a result in every form'() {
    const execution = await (await coding()).runCode(RICH)
    quiet(execution)
    const [result] = execution.results
    assert.deepEqual([result.text, result.html, result.markdown, result.svg, result.latex, result.javascript],
      ['rich', '<b>rich</b>', '**rich**', '<svg/>', '$rich$', 'rich()'])
    const decoded = [result.png, result.jpeg, result.pdf].map((data) => Buffer.from(data, 'base64').toString())
    assert.deepEqual(decoded, ['png', 'jpeg', 'pdf'])
    assert.deepEqual(typeof result.json === 'string' ? JSON.parse(result.json) : result.json, { rich: [1, null] })
    for (const format of ['html', 'markdown', 'svg', 'png', 'jpeg', 'pdf', 'latex', 'json', 'javascript']) {
      assert.ok(result.formats().includes(format), format)
    }
  },

  async 'runCode: several results, in their order'() {
    const results = []
    const execution = await (await coding()).runCode('display("first")\ndisplay(2)\n3', { onResult: (result) => void results.push(result.text) })
    assert.deepEqual(execution.results.map((one) => [one.isMainResult, one.text]), [[false, 'first'], [false, '2'], [true, '3']])
    assert.deepEqual(results, ['first', '2', '3'])
    assert.equal(execution.text, '3')
  },

  async 'runCode: a form of its own is in extra'() {
    const execution = await (await coding()).runCode('display({"text/plain": "plain", "application/x-held": "own"}, raw=True)')
    assert.equal(execution.results[0].text, 'plain')
    assert.deepEqual(execution.results[0].raw.extra, { 'application/x-held': 'own' }) // where this client leaves it
  },

  async 'runCode: envs, of the sandbox and of one run'() {
    const box = await coding()
    const read = 'import os\n[os.environ.get("OF_THE_SANDBOX"), os.environ.get("OF_THE_RUN")]'
    assert.equal((await box.runCode(read)).text, "['held', None]")
    assert.equal((await box.runCode(read, { envs: { OF_THE_RUN: 'now' } })).text, "['held', 'now']")
    assert.equal((await box.runCode(read, { envs: { OF_THE_SANDBOX: 'other' } })).text, "['other', None]")
    assert.equal((await box.runCode(read)).text, "['held', None]")
  },

  async 'runCode: files and commands of the same sandbox'() {
    const box = await coding()
    await box.files.write('relative.txt', 'of files.write')
    assert.equal((await box.runCode('open("relative.txt").read()')).text, 'of files.write')
    await box.runCode('open("/tmp/by-code", "w").write("of the code")')
    assert.equal((await box.commands.run('cat /tmp/by-code')).stdout, 'of the code')
  },

  async 'runCode: magics and await'() {
    const box = await coding()
    assert.equal((await box.runCode('!echo of a shell')).logs.stdout.join('').trim(), 'of a shell')
    assert.equal((await box.runCode('%%bash\necho of bash')).logs.stdout.join('').trim(), 'of bash')
    assert.equal((await box.runCode('import asyncio\nasync def f(): return 7\nawait f()')).text, '7')
  },

  async 'runCode: input is an error'() {
    assert.equal((await (await coding()).runCode('input()')).error.name, 'StdinNotImplementedError')
  },

  async 'runCode: much output'() {
    const execution = await (await coding()).runCode('for i in range(20_000): print(f"{i} €€€")')
    const lines = execution.logs.stdout.join('').split('\n')
    assert.deepEqual([lines.length, lines[0], lines[19_999]], [20_001, '0 €€€', '19999 €€€'])
  },

  async 'runCode: timeoutMs is a TimeoutError, and the context is free afterwards'() {
    const box = await coding()
    await box.runCode('kept = 1')
    await failure(box.runCode('import time\ntime.sleep(600)', { timeoutMs: 700 }), TimeoutError)
    assert.equal((await box.runCode('kept', { timeoutMs: 60_000 })).text, '1')
  },

  async 'runCode: a long result'() {
    const { text } = await (await coding()).runCode('"é" * 2_000_000')
    assert.ok(text === 'é'.repeat(2_000_000), `${text?.length} characters`)
  },

  async 'runCode: a kernel that ends is replaced'() {
    const box = await coding()
    await box.runCode('import os\nos._exit(3)', { timeoutMs: 60_000 }).catch(() => {}) // as an execution with an error, or as an error
    await until('a new kernel', async () => (await box.runCode('20 + 3').catch(() => ({}))).text === '23')
  },

  async 'contexts: create, list, restart and remove'() {
    const box = await coding()
    const context = await box.createCodeContext({ cwd: '/usr/lib' })
    assert.deepEqual([context.language, context.cwd], ['python', '/usr/lib'])
    assert.ok((await box.listCodeContexts()).some((one) => one.id === context.id && one.cwd === '/usr/lib'))
    assert.equal((await box.runCode('import os\nown = 1\nos.getcwd()', { context })).text, '/usr/lib')
    assert.equal((await box.runCode('own')).error.name, 'NameError')
    await box.restartCodeContext(context)
    assert.equal((await box.runCode('own', { context })).error.name, 'NameError')
    assert.equal((await box.runCode('os = __import__("os")\nos.getcwd()', { context })).text, '/usr/lib')
    await box.removeCodeContext(context.id)
    assert.ok(!(await box.listCodeContexts()).some((one) => one.id === context.id))
    await failure(box.runCode('1', { context }), NotFoundError)
  },

  async 'contexts: one that does not exist is a NotFoundError'() {
    const box = await coding()
    const missing = { id: '00000000-0000-4000-8000-000000000000', language: 'python', cwd: '/' }
    await failure(box.runCode('1', { context: missing }), NotFoundError)
    await failure(box.removeCodeContext(missing), NotFoundError)
    await failure(box.restartCodeContext(missing), NotFoundError)
  },

  async 'contexts: two run at the same time'() {
    const box = await coding()
    await box.files.remove('/tmp/both')
    const context = await box.createCodeContext()
    const wait = 'import os, time\nwhile not os.path.exists("/tmp/both"): time.sleep(0.02)\n"saw it"'
    const waits = later(box.runCode(wait, { timeoutMs: 60_000 }))
    quiet(await box.runCode('open("/tmp/both", "w").close()', { context }))
    assert.equal((await waits).text, 'saw it')
    await box.removeCodeContext(context)
  },

  async 'runCode: calls for one context run one after another'() {
    const box = await coding()
    await box.runCode('order = []')
    const add = (number) => box.runCode(`import time\ntime.sleep(0.05)\norder.append(${number})\nlen(order)`)
    const texts = (await Promise.all([add(1), add(2), add(3)])).map((execution) => execution.text)
    assert.deepEqual(texts.toSorted(), ['1', '2', '3'])
  },

  async 'runCode: both of language and context, and a language that is not there'() {
    const box = await coding()
    const [context] = await box.listCodeContexts()
    await failure(box.runCode('1', { language: 'python', context }), InvalidArgumentError)
    // The client drops what the service says.
    assert.match((await failure(box.runCode('1', { language: 'cobol' }), SandboxError)).message, /^400/)
    assert.match((await failure(box.createCodeContext({ language: 'cobol' }), SandboxError)).message, /^400/)
  },

  async 'runCode: state after pause and connect'() {
    const box = await create({}, Sandbox)
    await box.runCode('kept = "through the pause"')
    await box.pause()
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal((await again.runCode('kept')).text, 'through the pause')
    await again.kill()
  },

  async 'runCode: kill during the run, and code afterwards, are TimeoutErrors'() {
    const box = await create({}, Sandbox)
    const run = failure(box.runCode('open("/tmp/begun", "w").close()\nimport time\ntime.sleep(600)', { timeoutMs: 0 }), TimeoutError)
    await until('the code', () => box.files.exists('/tmp/begun'))
    await box.kill()
    await run
    await failure(box.runCode('1'), TimeoutError)
  },
}
