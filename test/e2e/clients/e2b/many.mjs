// Creates a hundred sandboxes at once with a client of E2B as npm has it, runs a command in each,
// lists them page by page, and ends them. The environment is as for main.mjs.
import assert from 'node:assert/strict'
import { call, finish } from './calls.mjs'

const { Sandbox } = await import(process.argv[2])

const count = 100
const metadata = { suite: 'many' }
const numbers = Array.from({ length: count }, (_, i) => i)
// print prints the median and the longest of some times in milliseconds.
const print = (what, times) => {
  times.sort((a, b) => a - b)
  console.log(`${what}: ${Math.round(times[count / 2])} ms in the middle, ${Math.round(times[count - 1])} ms at most`)
}
const sandboxes = []

await call('a hundred of Sandbox.create at once, and a command in each', async () => {
  const created = []
  const answered = []
  const began = performance.now()
  const outcomes = await Promise.allSettled(numbers.map(async (number) => {
    const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata, envs: { NUMBER: String(number) } })
    sandboxes.push(sandbox)
    created.push(performance.now() - began)
    const { stdout } = await sandbox.commands.run('echo "$NUMBER"')
    answered.push(performance.now() - began)
    assert.equal(stdout, `${number}\n`)
  }))
  assert.deepEqual(outcomes.filter((o) => o.status === 'rejected').map((o) => String(o.reason)), [])
  assert.equal(new Set(sandboxes.map((s) => s.sandboxId)).size, count)
  print('created', created)
  print('first command', answered)
})
await call('Sandbox.list, page by page', async () => {
  const paginator = Sandbox.list({ query: { metadata }, limit: 7 })
  const found = []
  let pages = 0
  for (; paginator.hasNext; pages++) found.push(...(await paginator.nextItems()))
  assert.deepEqual(found.map((s) => s.sandboxId).sort(), sandboxes.map((s) => s.sandboxId).sort())
  assert.equal(pages, Math.ceil(count / 7))
})
await call('a hundred of sandbox.kill at once', async () => {
  assert.deepEqual(new Set(await Promise.all(sandboxes.map((s) => s.kill()))), new Set([true]))
  const paginator = Sandbox.list({ query: { metadata } })
  assert.deepEqual(await paginator.nextItems(), [])
})
finish()
