// Does what ComputeSDK's public benchmark of sandbox providers measures, with its npm package for E2B as
// it is: creates sandboxes, runs a first command in each, and destroys them. It is a worker of the
// package bench/job: a line of its input is a JSON array with how many sandboxes to make and how many
// milliseconds are between two begins, and a line of its output has what each took. E2B_API_KEY,
// E2B_API_URL and E2B_SANDBOX_URL are set.
import { createInterface } from 'node:readline'
import { setTimeout as after } from 'node:timers/promises'
import { e2b } from '@computesdk/e2b'

const provider = e2b({ apiKey: process.env.E2B_API_KEY })

// The limits in milliseconds, as that benchmark has them.
const limits = { create: 120_000, command: 30_000, destroy: 15_000 }

async function within(what, promise) {
  const over = new AbortController()
  const late = after(limits[what], undefined, { signal: over.signal }).then(() => {
    throw new Error(`${what}: not within ${limits[what]} ms`)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    late.catch(() => {})
    over.abort()
  }
}

// usable returns the milliseconds from the create until the first command has ended.
async function usable() {
  const began = performance.now()
  const sandbox = await within('create', provider.sandbox.create())
  try {
    const { exitCode, stdout, stderr } = await within('command', sandbox.runCommand('echo ready'))
    const took = performance.now() - began
    if (exitCode !== 0 || stdout !== 'ready\n') throw new Error(`command: exit code ${exitCode}: ${stdout}${stderr}`)
    return took
  } finally {
    await within('destroy', sandbox.destroy())
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [, count, apart] = JSON.parse(line)
  const attempts = []
  for (let i = 0; i < Number(count); i++) {
    if (i > 0 && Number(apart) > 0) await after(Number(apart))
    attempts.push(usable())
  }
  const ended = await Promise.allSettled(attempts)
  const failed = ended.filter(({ status }) => status === 'rejected')
  for (const { reason } of failed.slice(0, 3)) console.error(String(reason))
  const took = ended.filter(({ status }) => status === 'fulfilled').map(({ value }) => value)
  console.log(JSON.stringify(took.length > 0 ? { took } : { error: String(failed[0].reason) }))
}
