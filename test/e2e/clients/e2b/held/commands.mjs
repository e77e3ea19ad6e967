// Commands and terminals.

import assert from 'node:assert/strict'

import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from 'e2b-2.51.0'

import { common, failure, later, until } from './common.mjs'

const gone = (box, pid) => until(`the end of ${pid}`, async () => !(await box.commands.list()).some((one) => one.pid === pid))

// alice makes sure that the sandbox has a user of this name.
async function alice(box) {
  await box.commands.run('id alice >&2 || useradd --create-home --shell /bin/bash alice')
  return 'alice'
}

// terminal returns a terminal and what it has printed.
async function terminal(box, options = {}) {
  const decoder = new TextDecoder()
  const shown = { text: '' }
  const collect = (data) => (shown.text += decoder.decode(data, { stream: true }))
  const handle = await box.pty.create({ cols: 80, rows: 24, timeoutMs: 60_000, ...options, onData: collect })
  const type = (text) => box.pty.sendInput(handle.pid, new TextEncoder().encode(text))
  const shows = (pattern) => until(`${pattern} in ${JSON.stringify(shown.text)}`, () => pattern.exec(shown.text))
  return { handle, shown, type, shows }
}

export const commands = {
  async 'commands.run: stdout, stderr and the exit code'() {
    const box = await common()
    const result = await box.commands.run('echo out; echo err >&2')
    assert.deepEqual([result.exitCode, result.stdout, result.stderr], [0, 'out\n', 'err\n'])
    const nothing = await box.commands.run('true')
    assert.deepEqual([nothing.exitCode, nothing.stdout, nothing.stderr], [0, '', ''])
  },

  async 'commands.run: CommandExitError'() {
    const box = await common()
    const error = await failure(box.commands.run('echo out; echo err >&2; exit 42'), CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout, error.stderr], [42, 'out\n', 'err\n'])
    const missing = await failure(box.commands.run('no-such-program-held'), CommandExitError)
    assert.equal(missing.exitCode, 127)
    assert.match(missing.stderr, /no-such-program-held.*not found/)
  },

  async 'commands.run: a command that a signal ended'() {
    const error = await failure((await common()).commands.run('kill -TERM $$'), CommandExitError)
    assert.equal(error.exitCode, -1)
    assert.match(error.error, /signal: terminated/)
  },

  async 'commands.run: cwd'() {
    const box = await common()
    assert.equal((await box.commands.run('pwd', { cwd: '/usr/lib' })).stdout, '/usr/lib\n')
    assert.equal((await box.commands.run('[ "$PWD" = "$HOME" ] && pwd')).stdout, '/root\n')
    await failure(box.commands.run('pwd', { cwd: '/no/such/folder' }), InvalidArgumentError)
  },

  async 'commands.run: user'() {
    const box = await common()
    const user = await alice(box)
    const { stdout } = await box.commands.run('id -un; pwd; echo $HOME $USER $LOGNAME', { user })
    assert.equal(stdout, 'alice\n/home/alice\n/home/alice alice alice\n')
    await failure(box.commands.run('touch /root/x', { user }), CommandExitError)
    assert.equal((await box.commands.run('id -un', { user: 'root' })).stdout, 'root\n')
    await failure(box.commands.run('true', { user: 'no-such-user' }), AuthenticationError)
  },

  async 'commands.run: the variables that every sandbox of E2B has'() {
    const box = await common()
    const print = 'echo "<$E2B_SANDBOX|$E2B_SANDBOX_ID|$E2B_TEMPLATE_ID>"'
    const want = `<true|${box.sandboxId}|${(await box.getInfo()).templateId}>`
    assert.equal((await box.commands.run(print)).stdout, `${want}\n`)
    const { handle, type, shows } = await terminal(box)
    await type(`${print}\n`)
    assert.equal((await shows(/<true\|.*>/))[0], want)
    await handle.kill()
  },

  async 'commands.run: onStdout and onStderr during the command'() {
    const box = await common()
    const seen = []
    await box.files.remove('/tmp/go')
    const result = await box.commands.run('echo one; until [ -e /tmp/go ]; do sleep 0.02; done; echo two; echo three >&2', {
      timeoutMs: 40_000,
      onStdout: async (data) => {
        seen.push(data)
        if (data === 'one\n') await box.files.write('/tmp/go', '')
      },
      onStderr: (data) => void seen.push(`! ${data}`),
    })
    assert.deepEqual(seen.toSorted(), ['! three\n', 'one\n', 'two\n'])
    assert.equal(seen[0], 'one\n')
    assert.equal(result.stdout, 'one\ntwo\n')
  },

  async 'commands.run: much output of characters of three bytes'() {
    const box = await common()
    let streamed = ''
    const { stdout } = await box.commands.run(`python3 -c 'print("€" * 700_001, end="")'`, { onStdout: (data) => void (streamed += data) })
    assert.ok(stdout === '€'.repeat(700_001), `there are ${stdout.length} characters`)
    assert.ok(streamed === stdout, 'what was streamed is not what was returned')
  },

  async 'commands.run: timeoutMs is a TimeoutError, and the command ends'() {
    const box = await common()
    await failure(box.commands.run('exec sleep 611', { timeoutMs: 700 }), TimeoutError)
    await until('the end of the command', async () => !(await box.commands.list()).some((one) => one.args.at(-1) === 'exec sleep 611'))
    const running = await box.commands.run('pgrep -f "sleep 61[1]" || ps -ef | grep "sleep 61[1]" || true')
    assert.equal(running.stdout, '')
  },

  async 'commands.run: in the background'() {
    const box = await common()
    await box.files.remove('/tmp/go')
    const handle = await box.commands.run('echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo done; exit 3', { background: true })
    assert.ok(Number.isInteger(handle.pid) && handle.pid > 0)
    await until('its output', () => handle.stdout === 'begun\n')
    assert.equal(handle.exitCode, undefined)
    await box.files.write('/tmp/go', '')
    const error = await failure(handle.wait(), CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [3, 'begun\ndone\n'])
    assert.equal(handle.exitCode, 3)
  },

  async 'commands.list: what was started, and how'() {
    const box = await common()
    const handle = await box.commands.run('exec sleep 622', { background: true, cwd: '/tmp', envs: { HELD: 'yes' } })
    const info = (await box.commands.list()).find((one) => one.pid === handle.pid)
    assert.equal(info.cmd, '/bin/bash')
    assert.deepEqual(info.args, ['-l', '-c', 'exec sleep 622'])
    assert.equal(info.cwd, '/tmp')
    assert.equal(info.envs.HELD, 'yes')
    await handle.kill()
    await gone(box, handle.pid)
  },

  async 'commands.kill: true, and false for what is gone'() {
    const box = await common()
    const handle = await box.commands.run('exec sleep 633', { background: true })
    assert.equal(await handle.kill(), true)
    const error = await failure(handle.wait(), CommandExitError)
    assert.equal(error.exitCode, -1)
    assert.match(error.error, /signal: killed/)
    await gone(box, handle.pid)
    assert.equal(await handle.kill(), false)
    assert.equal(await box.commands.kill(999_999), false)
  },

  async 'commands.sendStdin and closeStdin'() {
    const box = await common()
    const handle = await box.commands.run('cat; echo end', { background: true, stdin: true })
    await box.commands.sendStdin(handle.pid, 'first ünï\n')
    await until('the first line', () => handle.stdout === 'first ünï\n')
    await handle.sendStdin(new Uint8Array([0xe2, 0x82]))
    await handle.sendStdin(new Uint8Array([0xac, 0x0a]))
    await until('the second line', () => handle.stdout === 'first ünï\n€\n')
    await handle.closeStdin()
    assert.equal((await handle.wait()).stdout, 'first ünï\n€\nend\n')
  },

  async 'commands.sendStdin: a mebibyte at once'() {
    const box = await common()
    const handle = await box.commands.run('head -c 1048576 | wc -c', { background: true, stdin: true })
    await handle.sendStdin('x'.repeat(1 << 20))
    assert.equal((await handle.wait()).stdout.trim(), '1048576')
  },

  async 'commands.run: stdin is at its end without the option'() {
    const result = await (await common()).commands.run('cat; echo end', { timeoutMs: 30_000 })
    assert.equal(result.stdout, 'end\n')
  },

  async 'commands.sendStdin: without the option, and after closeStdin, is an error'() {
    const box = await common()
    const without = await box.commands.run('exec sleep 666', { background: true })
    await failure(without.sendStdin('x'), SandboxError)
    await failure(box.pty.resize(without.pid, { cols: 10, rows: 10 }), SandboxError)
    await without.kill()
    const closed = await box.commands.run('cat; exec sleep 666', { background: true, stdin: true })
    await closed.closeStdin()
    await failure(closed.sendStdin('x'), SandboxError)
    await closed.kill()
  },

  async 'commands.run: output that is no UTF-8'() {
    const { stdout } = await (await common()).commands.run("printf 'a\\xff\\xe2\\x82b'")
    assert.match(stdout, /^a\ufffd+b$/)
  },

  async 'commands.run: a long command and a long variable'() {
    const box = await common()
    const { stdout } = await box.commands.run(`: ${'x'.repeat(100_000)}; printf %s "$LONG" | wc -c`, { envs: { LONG: 'é'.repeat(40_000) } })
    assert.equal(stdout.trim(), '80000')
  },

  async 'commands.run: what is left in the background goes on'() {
    const box = await common()
    const { stdout } = await box.commands.run('nohup sleep 677 >/tmp/nohup 2>&1 & echo $!')
    assert.equal((await box.commands.run(`kill -0 ${stdout.trim()} && echo lives`)).stdout, 'lives\n')
    await box.commands.run(`kill ${stdout.trim()}`)
  },

  async 'commands.run: forty at the same time'() {
    const box = await common()
    const numbers = Array.from({ length: 40 }, (_, i) => i)
    const results = await Promise.all(numbers.map((number) => box.commands.run(`echo ${number}; echo ${number} >&2`)))
    assert.deepEqual(results.map((one) => [one.stdout, one.stderr]), numbers.map((number) => [`${number}\n`, `${number}\n`]))
  },

  async 'commands.run: requestTimeoutMs does not end a command that runs'() {
    const box = await common()
    await box.files.remove('/tmp/go')
    const command = 'until [ -e /tmp/go ]; do sleep 0.02; done; echo end'
    const waits = later(box.commands.run(command, { requestTimeoutMs: 6_000, timeoutMs: 60_000 }))
    await box.commands.run('sleep 7')
    await box.files.write('/tmp/go', '')
    assert.equal((await waits).stdout, 'end\n')
  },

  async 'commands.connect: a second handle, and disconnect of the first'() {
    const box = await common()
    const first = await box.commands.run('read line; echo "got $line"; exit 5', { background: true, stdin: true })
    await first.disconnect()
    let streamed = ''
    const second = await box.commands.connect(first.pid, { onStdout: (data) => void (streamed += data), timeoutMs: 40_000 })
    assert.equal(second.pid, first.pid)
    await second.sendStdin('it\n')
    const error = await failure(second.wait(), CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout, streamed], [5, 'got it\n', 'got it\n'])
    assert.equal(first.stdout, '')
  },

  async 'commands: a process that does not exist is a NotFoundError'() {
    const box = await common()
    await failure(box.commands.connect(999_999), NotFoundError)
    await failure(box.commands.sendStdin(999_999, 'x'), NotFoundError)
    await failure(box.commands.closeStdin(999_999), NotFoundError)
    await failure(box.pty.resize(999_999, { cols: 1, rows: 1 }), NotFoundError)
    await failure(box.pty.connect(999_999, { onData: () => {} }), NotFoundError)
  },

  async 'pty: create, sendInput, resize'() {
    const box = await common()
    const { handle, type, shows } = await terminal(box, { cols: 97, rows: 31 })
    await type('stty size; echo ter"mi"nal; tty\n')
    await shows(/31 97\r\n/)
    await shows(/terminal\r\n\/dev\/pts\/\d+/)
    await box.pty.resize(handle.pid, { cols: 143, rows: 47 })
    await type('stty size\n')
    await shows(/47 143\r\n/)
    assert.equal(await handle.kill(), true)
  },

  async 'pty: cwd, envs, user and TERM'() {
    const box = await common()
    const user = await alice(box)
    const { handle, type, shows } = await terminal(box, { cwd: '/usr/lib', envs: { HELD: 'of the terminal' }, user })
    await type('echo "<$(id -un)|$PWD|$HELD|$TERM>"\n')
    const [, got] = await shows(/<(alice\|.*)>/)
    assert.equal(got, 'alice|/usr/lib|of the terminal|xterm-256color')
    await handle.kill()
  },

  async 'pty: a long text that is pasted'() {
    const box = await common()
    const { handle, type, shows } = await terminal(box)
    await type('stty -echo; echo rea"dy"; cat > /tmp/pasted; echo pas"ted"\n')
    await shows(/ready\r\n/)
    const lines = Array.from({ length: 2_000 }, (_, i) => `${i} ${'é'.repeat(20)}\n`).join('')
    await type(lines)
    await type('\x04')
    await shows(/pasted\r\n/)
    assert.ok((await box.files.read('/tmp/pasted')) === lines)
    await handle.kill()
  },

  async 'pty: its exit code'() {
    const { handle, type } = await terminal(await common())
    await type('exit 7\n')
    assert.equal((await failure(handle.wait(), CommandExitError)).exitCode, 7)
  },

  async 'pty: timeoutMs is a TimeoutError'() {
    const box = await common()
    const { handle } = await terminal(box, { timeoutMs: 3_000 })
    await failure(handle.wait(), TimeoutError)
    await gone(box, handle.pid)
  },

  async 'pty: Ctrl+C, and the command before it ends'() {
    const { handle, type, shows } = await terminal(await common())
    await type('echo be"gun"; sleep 644; echo "status $?"\n')
    await shows(/begun\r\n/)
    await type('\x03')
    await type('echo af"ter"\n')
    await shows(/after\r\n/)
    await handle.kill()
  },

  async 'pty: list, connect and kill'() {
    const box = await common()
    const { handle, type, shows } = await terminal(box)
    await type('echo be"gun"\n')
    await shows(/begun\r\n/)
    assert.ok((await box.commands.list()).some((one) => one.pid === handle.pid))
    await handle.disconnect()
    let text = ''
    const second = await box.pty.connect(handle.pid, { onData: (data) => (text += new TextDecoder().decode(data)) })
    await type('echo ag"ain"\n')
    await until('what the terminal prints', () => text.includes('again\r\n'))
    assert.equal(await box.pty.kill(handle.pid), true)
    await failure(second.wait(), CommandExitError)
    await gone(box, handle.pid)
    assert.equal(await box.pty.kill(handle.pid), false)
  },
}
