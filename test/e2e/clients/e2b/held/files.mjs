// Files, watches of folders, and signed addresses of files.

import assert from 'node:assert/strict'

import { AuthenticationError, FileNotFoundError, InvalidArgumentError, NotFoundError, SandboxError, TemplateError, TimeoutError } from 'e2b-2.51.0'

import { common, failure, near, random, until, visit, within } from './common.mjs'

// folder returns the sandbox and a new empty folder in it.
async function folder(name) {
  const box = await common()
  await box.files.remove(`/tmp/held/${name}`)
  await box.files.makeDir(`/tmp/held/${name}`)
  return [box, `/tmp/held/${name}`]
}

const streamOf = (...parts) => new ReadableStream({
  start(controller) {
    for (const part of parts) controller.enqueue(part)
    controller.close()
  },
})

const bufferOf = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)

const same = (got, want) => assert.ok(Buffer.compare(Buffer.from(got), Buffer.from(want)) === 0, `${got.length} bytes, want ${want.length} others`)

// watched begins to watch a folder and returns its events.
async function watched(box, path, options) {
  const events = []
  const handle = await box.files.watchDir(path, (event) => void events.push(event), { timeoutMs: 60_000, ...options })
  const sees = (type, name) => until(`${type} of ${name} in ${JSON.stringify(events)}`,
    () => events.some((event) => event.type === type && event.name === name))
  return { handle, events, sees }
}

// sent returns what a form with one file is as the body of a request.
async function sent(data) {
  const form = new FormData()
  form.append('file', new Blob([data]), 'name-of-the-form')
  const response = new Response(form)
  return { method: 'POST', headers: { 'content-type': response.headers.get('content-type') }, body: Buffer.from(await response.arrayBuffer()) }
}

export const files = {
  async 'files.write and read: a text'() {
    const [box, at] = await folder('text')
    const info = await box.files.write(`${at}/new/folders/a.txt`, 'ünï\n✓')
    assert.deepEqual([info.name, info.type, info.path], ['a.txt', 'file', `${at}/new/folders/a.txt`])
    assert.equal(await box.files.read(`${at}/new/folders/a.txt`), 'ünï\n✓')
    await box.files.write(`${at}/new/folders/a.txt`, 'x')
    assert.equal(await box.files.read(`${at}/new/folders/a.txt`), 'x')
  },

  async 'files.write and read: an empty file in every form'() {
    const [box, at] = await folder('empty')
    await box.files.write(`${at}/a`, '')
    assert.equal(await box.files.read(`${at}/a`), '')
    assert.equal((await box.files.read(`${at}/a`, { format: 'bytes' })).length, 0)
    assert.equal((await box.files.read(`${at}/a`, { format: 'blob' })).size, 0)
    assert.equal((await new Response(await box.files.read(`${at}/a`, { format: 'stream' })).arrayBuffer()).byteLength, 0)
    assert.equal((await box.files.getInfo(`${at}/a`)).size, 0)
  },

  async 'files.write and read: ArrayBuffer, Blob and ReadableStream as bytes, blob and stream'() {
    const [box, at] = await folder('forms')
    const bytes = random(70_000)
    await box.files.write(`${at}/buffer`, bufferOf(bytes))
    await box.files.write(`${at}/blob`, new Blob([bytes]))
    await box.files.write(`${at}/stream`, streamOf(bytes.slice(0, 1), bytes.slice(1)))
    for (const name of ['buffer', 'blob', 'stream']) {
      const read = await box.files.read(`${at}/${name}`, { format: 'bytes' })
      assert.ok(read instanceof Uint8Array)
      same(read, bytes)
      const blob = await box.files.read(`${at}/${name}`, { format: 'blob' })
      assert.ok(blob instanceof Blob)
      same(new Uint8Array(await blob.arrayBuffer()), bytes)
      const stream = await box.files.read(`${at}/${name}`, { format: 'stream' })
      same(new Uint8Array(await new Response(stream).arrayBuffer()), bytes)
    }
  },

  async 'files.write and read: gzip, and useOctetStream'() {
    const [box, at] = await folder('gzip')
    const text = 'again and again '.repeat(20_000)
    await box.files.write(`${at}/gzip`, text, { gzip: true })
    await box.files.write(`${at}/octets`, text, { useOctetStream: true })
    assert.equal((await box.files.getInfo(`${at}/gzip`)).size, text.length)
    for (const name of ['gzip', 'octets']) {
      assert.ok((await box.files.read(`${at}/${name}`)) === text, name)
      assert.ok((await box.files.read(`${at}/${name}`, { gzip: true })) === text, `${name}, read with gzip`)
    }
  },

  async 'files.write: several at once'() {
    const [box, at] = await folder('several')
    const infos = await box.files.write([
      { path: `${at}/a`, data: 'first' },
      { path: `${at}/b/c`, data: bufferOf(random(10)) },
      { path: `${at}/b/d`, data: new Blob(['third']) },
    ])
    assert.deepEqual(infos.map((info) => [info.name, info.type, info.path]),
      [['a', 'file', `${at}/a`], ['c', 'file', `${at}/b/c`], ['d', 'file', `${at}/b/d`]])
    assert.equal(await box.files.read(`${at}/a`), 'first')
    same(await box.files.read(`${at}/b/c`, { format: 'bytes' }), random(10))
    assert.equal(await box.files.read(`${at}/b/d`), 'third')
    assert.deepEqual(await box.files.writeFiles([]), [])
  },

  async 'files.write and read: 16 MiB'() {
    const [box, at] = await folder('large')
    const bytes = random(16 << 20)
    await box.files.write(`${at}/a`, bufferOf(bytes))
    assert.equal((await box.files.getInfo(`${at}/a`)).size, bytes.length)
    same(await box.files.read(`${at}/a`, { format: 'bytes' }), bytes)
  },

  async 'files: names with all sorts of characters'() {
    const [box, at] = await folder('names')
    const names = ['ünï ✓ 日本', 'a b', 'a+b&c=d', '100%25', '#hash?query', "quote'\"", 'line\nbreak', '-rf', `long-${'x'.repeat(240)}`].toSorted()
    for (const name of names) {
      const info = await box.files.write(`${at}/${name}`, name)
      assert.deepEqual([info.name, info.path], [name, `${at}/${name}`])
      assert.equal(await box.files.read(`${at}/${name}`), name)
      assert.equal((await box.files.getInfo(`${at}/${name}`)).name, name)
    }
    assert.deepEqual((await box.files.list(at)).map((entry) => entry.name).toSorted(), names)
    for (const name of names) await box.files.remove(`${at}/${name}`)
    assert.deepEqual(await box.files.list(at), [])
  },

  async 'files: relative paths begin at home, and user chooses which'() {
    const box = await common()
    await box.commands.run('id alice >&2 || useradd --create-home --shell /bin/bash alice')
    assert.equal((await box.files.write('held/of-root', 'x')).path, '/root/held/of-root')
    const info = await box.files.write('held/of-alice', 'x', { user: 'alice' })
    assert.equal(info.path, '/home/alice/held/of-alice')
    const { owner, group } = await box.files.getInfo('held/of-alice', { user: 'alice' })
    assert.deepEqual([owner, group], ['alice', 'alice'])
    assert.equal((await box.files.getInfo('held', { user: 'alice' })).owner, 'alice')
    assert.equal(await box.files.exists('held/of-alice'), false)
    assert.equal(await box.files.exists('~/held/of-root'), true)
    assert.deepEqual((await box.files.list('held', { user: 'alice' })).map((entry) => entry.path), ['/home/alice/held/of-alice'])
    await failure(box.files.read('x', { user: 'no-such-user' }), AuthenticationError)
    await failure(box.files.list('.', { user: 'no-such-user' }), AuthenticationError)
  },

  async 'files.read: errors by class'() {
    const [box, at] = await folder('errors')
    await failure(box.files.read(`${at}/missing`), FileNotFoundError)
    await failure(box.files.read(`${at}/missing`, { format: 'stream' }), FileNotFoundError)
    await failure(box.files.read(at), InvalidArgumentError)
    await failure(box.files.write(at, 'x'), InvalidArgumentError)
  },

  async 'files.list: depth'() {
    const [box, at] = await folder('depth')
    await box.files.write([{ path: `${at}/a`, data: '1' }, { path: `${at}/b/c`, data: '2' }, { path: `${at}/b/d/e`, data: '3' }])
    const paths = async (options) => (await box.files.list(at, options)).map((entry) => entry.path.slice(at.length + 1)).toSorted()
    assert.deepEqual(await paths(), ['a', 'b'])
    assert.deepEqual(await paths({ depth: 1 }), ['a', 'b'])
    assert.deepEqual(await paths({ depth: 2 }), ['a', 'b', 'b/c', 'b/d'])
    assert.deepEqual(await paths({ depth: 9 }), ['a', 'b', 'b/c', 'b/d', 'b/d/e'])
    const [a, b] = (await box.files.list(at)).toSorted((one, other) => one.name.localeCompare(other.name))
    assert.deepEqual([a.name, a.type, a.size, a.owner], ['a', 'file', 1, 'root'])
    assert.deepEqual([b.name, b.type], ['b', 'dir'])
  },

  async 'files.list: errors by class'() {
    const [box, at] = await folder('list-errors')
    await box.files.write(`${at}/file`, 'x')
    await failure(box.files.list(`${at}/missing`), FileNotFoundError)
    await failure(box.files.list(`${at}/file`), InvalidArgumentError)
    await failure(box.files.list(at, { depth: 0 }), InvalidArgumentError)
  },

  async 'files.exists'() {
    const [box, at] = await folder('exists')
    await box.files.write(`${at}/file`, 'x')
    assert.deepEqual(await Promise.all([at, `${at}/file`, `${at}/missing`, `${at}/missing/too`].map((path) => box.files.exists(path))),
      [true, true, false, false])
  },

  async 'files.makeDir: true, false for what is there, an error over a file'() {
    const [box, at] = await folder('make')
    assert.equal(await box.files.makeDir(`${at}/a/b/c`), true)
    assert.equal(await box.files.makeDir(`${at}/a/b/c`), false)
    assert.equal((await box.files.getInfo(`${at}/a/b`)).type, 'dir')
    await box.files.write(`${at}/file`, 'x')
    await failure(box.files.makeDir(`${at}/file`), InvalidArgumentError)
  },

  async 'files.rename: files, folders, and over what is there'() {
    const [box, at] = await folder('rename')
    await box.files.write([{ path: `${at}/a`, data: 'a' }, { path: `${at}/b`, data: 'b' }, { path: `${at}/c/d`, data: 'd' }])
    const info = await box.files.rename(`${at}/a`, `${at}/b`)
    assert.deepEqual([info.name, info.type, info.path, info.size], ['b', 'file', `${at}/b`, 1])
    assert.equal(await box.files.read(`${at}/b`), 'a')
    assert.equal(await box.files.exists(`${at}/a`), false)
    assert.equal((await box.files.rename(`${at}/c`, `${at}/new`)).type, 'dir')
    assert.equal(await box.files.read(`${at}/new/d`), 'd')
    await failure(box.files.rename(`${at}/missing`, `${at}/x`), FileNotFoundError)
  },

  async 'files.rename: into a folder that is not there yet'() {
    const [box, at] = await folder('into')
    await box.files.write(`${at}/a`, 'a')
    await box.files.rename(`${at}/a`, `${at}/new/folder/b`)
    assert.equal(await box.files.read(`${at}/new/folder/b`), 'a')
  },

  async 'files.makeDir: the folders are the user\'s'() {
    const [box, at] = await folder('owned')
    await box.commands.run(`id alice >&2 || useradd --create-home --shell /bin/bash alice; chown alice ${at}`)
    assert.equal(await box.files.makeDir(`${at}/a/b`, { user: 'alice' }), true)
    for (const path of ['a', 'a/b']) assert.equal((await box.files.getInfo(`${at}/${path}`)).owner, 'alice')
    assert.equal(await box.files.makeDir('made/by-alice', { user: 'alice' }), true)
    assert.equal((await box.files.getInfo('/home/alice/made/by-alice')).type, 'dir')
  },

  async 'files.write: what is in the way is an error'() {
    const [box, at] = await folder('way')
    await box.files.write(`${at}/file`, 'x')
    await failure(box.files.write(`${at}/file/below`, 'x'), SandboxError)
    await failure(box.files.makeDir(`${at}/file/below`), SandboxError)
    assert.equal(await box.files.read(`${at}/file`), 'x')
  },

  async 'files.write: thirty at the same time'() {
    const [box, at] = await folder('parallel')
    const numbers = Array.from({ length: 30 }, (_, i) => i)
    await Promise.all(numbers.map((number) => box.files.write(`${at}/in/${number}`, `${number}`)))
    const read = await Promise.all(numbers.map((number) => box.files.read(`${at}/in/${number}`)))
    assert.deepEqual(read, numbers.map(String))
    assert.equal((await box.files.list(`${at}/in`)).length, 30)
  },

  async 'files.remove: files, full folders, and what is not there'() {
    const [box, at] = await folder('remove')
    await box.files.write([{ path: `${at}/a`, data: 'a' }, { path: `${at}/b/c/d`, data: 'b' }])
    await box.files.remove(`${at}/a`)
    await box.files.remove(`${at}/b`)
    assert.deepEqual(await box.files.list(at), [])
    await box.files.remove(`${at}/missing`)
  },

  async 'files.getInfo: everything of a file and of a folder'() {
    const [box, at] = await folder('info')
    await box.files.write(`${at}/file`, '12345')
    await box.commands.run(`chmod 640 ${at}/file; chmod 711 ${at}; chown 0:1 ${at}/file`)
    const info = await box.files.getInfo(`${at}/file`)
    assert.deepEqual([info.name, info.type, info.path, info.size], ['file', 'file', `${at}/file`, 5])
    assert.deepEqual([info.mode, info.permissions, info.owner, info.group], [0o640, '-rw-r-----', 'root', 'daemon'])
    assert.ok(info.modifiedTime instanceof Date)
    near(info.modifiedTime.getTime(), Date.now(), 600_000, 'modifiedTime')
    assert.equal(info.symlinkTarget, undefined)
    const own = await box.files.getInfo(at)
    assert.deepEqual([own.type, own.mode, own.permissions], ['dir', 0o711, 'drwx--x--x'])
    await failure(box.files.getInfo(`${at}/missing`), FileNotFoundError)
  },

  async 'files: symbolic links'() {
    const [box, at] = await folder('links')
    await box.files.write(`${at}/target`, 'through')
    await box.commands.run(`ln -s ${at}/target ${at}/link; ln -s ${at}/nowhere ${at}/broken`)
    const info = await box.files.getInfo(`${at}/link`)
    assert.deepEqual([info.name, info.symlinkTarget], ['link', `${at}/target`])
    assert.equal(await box.files.read(`${at}/link`), 'through')
    await box.files.write(`${at}/link`, 'written')
    assert.equal(await box.files.read(`${at}/target`), 'written')
    assert.equal((await box.files.getInfo(`${at}/link`)).symlinkTarget, `${at}/target`)
    assert.deepEqual((await box.files.list(at)).map((entry) => entry.name).toSorted(), ['broken', 'link', 'target'])
    await failure(box.files.read(`${at}/broken`), FileNotFoundError)
    await box.files.remove(`${at}/link`)
    assert.equal(await box.files.read(`${at}/target`), 'written')
  },

  async 'files: symbolic links to folders, in a circle and to nowhere'() {
    const [box, at] = await folder('circle')
    await box.files.write(`${at}/real/a`, 'x')
    await box.commands.run(`cd ${at}; ln -s . self; ln -s real alias; ln -s nowhere broken`)
    const paths = (await box.files.list(at, { depth: 6 })).map((entry) => entry.path.slice(at.length + 1)).toSorted()
    assert.deepEqual(paths, ['alias', 'broken', 'real', 'real/a', 'self'])
    assert.equal(await box.files.read(`${at}/alias/a`), 'x')
    assert.equal(await box.files.exists(`${at}/broken`), true)
    assert.deepEqual((await box.files.list(`${at}/alias`)).map((entry) => entry.name), ['a'])
    await box.files.remove(`${at}/alias`)
    assert.equal(await box.files.read(`${at}/real/a`), 'x')
  },

  async 'files.watchDir: every event of a file, none below'() {
    const [box, at] = await folder('watch')
    await box.files.makeDir(`${at}/below`)
    const { handle, events, sees } = await watched(box, at)
    await box.files.write(`${at}/a`, 'x')
    await sees('create', 'a')
    await sees('write', 'a')
    await box.commands.run(`chmod 600 ${at}/a`)
    await sees('chmod', 'a')
    await box.files.write(`${at}/below/b`, 'x')
    await box.files.rename(`${at}/a`, `${at}/c`)
    await sees('rename', 'a')
    await sees('create', 'c')
    await box.files.remove(`${at}/c`)
    await sees('remove', 'c')
    assert.deepEqual([...new Set(events.map((event) => event.name))].filter((name) => !['a', 'c', 'below'].includes(name)), [])
    await handle.stop()
  },

  async 'files.watchDir: recursive, also in folders made later'() {
    const [box, at] = await folder('recursive')
    await box.files.makeDir(`${at}/one/two`)
    const { handle, events, sees } = await watched(box, at, { recursive: true })
    await box.commands.run(`echo x > ${at}/one/two/a`)
    await sees('create', 'one/two/a')
    await sees('write', 'one/two/a')
    await box.files.makeDir(`${at}/later`)
    await sees('create', 'later')
    let count = 0
    await until('an event in the new folder', async () => {
      await box.files.write(`${at}/later/f${count++}`, 'x')
      return events.some((event) => /^later\/f\d+$/.test(event.name) && event.type === 'create')
    })
    await box.files.remove(`${at}/one/two/a`)
    await sees('remove', 'one/two/a')
    await handle.stop()
  },

  async 'files.watchDir: three hundred files at once'() {
    const [box, at] = await folder('many')
    const { handle, events } = await watched(box, at)
    await box.commands.run(`for i in $(seq 300); do echo x > ${at}/f$i; done`)
    await until('all files', () => new Set(events.filter((event) => event.type === 'create').map((event) => event.name)).size === 300)
    await handle.stop()
  },

  async 'files.read: a stream that is cancelled, and what follows'() {
    const [box, at] = await folder('cancel')
    await box.files.write(`${at}/a`, bufferOf(random(8 << 20)))
    for (let i = 0; i < 5; i++) {
      const reader = (await box.files.read(`${at}/a`, { format: 'stream' })).getReader()
      assert.ok((await reader.read()).value.length > 0)
      await reader.cancel()
    }
    assert.equal((await box.files.read(`${at}/a`, { format: 'bytes' })).length, 8 << 20)
  },

  async 'files.watchDir: stop'() {
    const [box, at] = await folder('stop')
    const first = await watched(box, at)
    const second = await watched(box, at)
    await box.files.write(`${at}/a`, 'x')
    await first.sees('create', 'a')
    await first.handle.stop()
    await box.files.write(`${at}/b`, 'x')
    await second.sees('create', 'b')
    assert.ok(!first.events.some((event) => event.name === 'b'))
    await second.handle.stop()
  },

  async 'files.watchDir: onExit with a TimeoutError after timeoutMs'() {
    const [box, at] = await folder('exit')
    let exited
    const exit = new Promise((resolve) => (exited = resolve))
    await box.files.watchDir(at, () => {}, { timeoutMs: 3_000, onExit: exited })
    const error = await within(40_000, 'onExit', exit)
    assert.ok(error instanceof TimeoutError, String(error))
  },

  async 'files.watchDir: errors by class'() {
    const [box, at] = await folder('watch-errors')
    await box.files.write(`${at}/file`, 'x')
    await failure(box.files.watchDir(`${at}/missing`, () => {}), NotFoundError)
    await failure(box.files.watchDir(`${at}/file`, () => {}), InvalidArgumentError)
  },

  async 'what an older daemon lacks is a TemplateError'() {
    const [box, at] = await folder('older')
    await failure(box.files.watchDir(at, () => {}, { includeEntry: true }), TemplateError)
    await failure(box.files.write(`${at}/a`, 'x', { metadata: { held: 'yes' } }), TemplateError)
  },

  async 'downloadUrl: with and without an end'() {
    const [box, at] = await folder('download')
    const bytes = random(50_000)
    await box.files.write(`${at}/ü b`, bufferOf(bytes))
    for (const options of [undefined, { useSignatureExpiration: 300 }, { user: 'root' }]) {
      const answer = await visit(await box.downloadUrl(`${at}/ü b`, options))
      assert.equal(answer.status, 200)
      same(answer.bytes, bytes)
    }
    assert.equal((await visit(await box.downloadUrl(`${at}/missing`))).status, 404)
  },

  async 'uploadUrl: a form, with and without a path'() {
    const [box, at] = await folder('upload')
    const answer = await visit(await box.uploadUrl(`${at}/new/a b`, { useSignatureExpiration: 300 }), await sent('by a form'))
    assert.equal(answer.status, 200, answer.text)
    assert.deepEqual(JSON.parse(answer.text).map((info) => [info.name, info.type, info.path]), [['a b', 'file', `${at}/new/a b`]])
    assert.equal(await box.files.read(`${at}/new/a b`), 'by a form')
    const named = await visit(await box.uploadUrl(), await sent('by its name'))
    assert.equal(named.status, 200, named.text)
    assert.equal(await box.files.read('name-of-the-form'), 'by its name')
  },

  async 'downloadUrl and uploadUrl: of a user, in part, and as bytes'() {
    const box = await common()
    await box.commands.run('id alice >&2 || useradd --create-home --shell /bin/bash alice')
    const bytes = random(9_000)
    const posted = { method: 'POST', headers: { 'content-type': 'application/octet-stream' }, body: Buffer.from(bytes) }
    const answer = await visit(await box.uploadUrl('signed/bytes', { user: 'alice' }), posted)
    assert.equal(answer.status, 200, answer.text)
    assert.equal((await box.files.getInfo('/home/alice/signed/bytes')).owner, 'alice')
    const address = await box.downloadUrl('signed/bytes', { user: 'alice' })
    same((await visit(address)).bytes, bytes)
    const part = await visit(address, { headers: { range: 'bytes=100-199' } })
    assert.equal(part.status, 206)
    same(part.bytes, bytes.slice(100, 200))
    assert.equal((await visit(await box.downloadUrl('signed/bytes', { user: 'root' }))).status, 404)
  },

  async 'signatures: for one path, one operation and one time'() {
    const [box, at] = await folder('signature')
    await box.files.write([{ path: `${at}/a`, data: 'a' }, { path: `${at}/b`, data: 'b' }])
    const address = new URL(await box.downloadUrl(`${at}/a`))
    const changed = (change) => {
      const other = new URL(address)
      change(other.searchParams)
      return other.href
    }
    assert.equal((await visit(address)).text, 'a')
    assert.equal((await visit(changed((query) => query.set('path', `${at}/b`)))).status, 401)
    assert.equal((await visit(changed((query) => query.set('signature', `v1_${'A'.repeat(43)}`)))).status, 401)
    const host = `https://${box.getHost(49983)}/files${address.search}`
    assert.equal((await visit(host)).text, 'a')
    assert.equal((await visit(host.replace(/&?signature=[^&]*/, ''))).status, 401)
    assert.equal((await visit(address, await sent('x'))).status, 401)
    assert.equal(await box.files.read(`${at}/a`), 'a')
    assert.equal((await visit(await box.downloadUrl(`${at}/a`, { useSignatureExpiration: -60 }))).status, 401)
  },
}
