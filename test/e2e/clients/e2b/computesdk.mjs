// Uses a sandbox through ComputeSDK, a framework above E2B's client, as npm has it. The environment
// is as for main.mjs; the key must begin with e2b_.
import assert from 'node:assert/strict'
import { e2b } from '@computesdk/e2b'
import { call, finish } from './calls.mjs'

const sdk = e2b({ apiKey: process.env.E2B_API_KEY })
const sandbox = await sdk.sandbox.create({ timeout: 120_000, envs: { COLOR: 'blue' } })

await call('runCommand', async () => {
  const ran = await sandbox.runCommand('echo "$COLOR"; echo bad >&2; exit 3', { cwd: '/tmp', env: { A: 'b' } })
  assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode], ['blue\n', 'bad\n', 3])
})
await call('filesystem', async () => {
  const { filesystem } = sandbox
  await filesystem.mkdir('/tmp/made')
  await filesystem.writeFile('/tmp/made/file', 'héllo')
  assert.equal(await filesystem.readFile('/tmp/made/file'), 'héllo')
  assert.deepEqual((await filesystem.readdir('/tmp/made')).map((e) => e.name), ['file'])
  assert.equal(await filesystem.exists('/tmp/made/none'), false)
  await filesystem.remove('/tmp/made')
  assert.equal(await filesystem.exists('/tmp/made'), false)
})
await call('sandbox.list, sandbox.getById', async () => {
  assert.ok((await sdk.sandbox.list()).some((s) => s.sandboxId === sandbox.sandboxId))
  const found = await sdk.sandbox.getById(sandbox.sandboxId)
  assert.equal((await found.runCommand('echo again')).stdout, 'again\n')
})
await call('sandbox.destroy', async () => {
  await sandbox.destroy()
  assert.equal(await sdk.sandbox.getById(sandbox.sandboxId), null)
})
finish()
