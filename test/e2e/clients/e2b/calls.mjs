// What the programs of this folder print: a line for each call, and all of them as JSON at the end.
import assert from 'node:assert/strict'

// How long a call may take, in milliseconds.
export const patience = 60_000
const results = []

export function report(what, result) {
  results.push({ call: what, result })
  console.log(`${what}: ${result}`)
}

export async function call(what, run, result = 'passes') {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${patience} ms`)), patience)
  })
  try {
    await Promise.race([run(), late])
    report(what, result)
  } catch (error) {
    report(what, `fails: ${String(error?.stack ?? error).split('\n').slice(0, 8).join(' | ')}`)
  } finally {
    clearTimeout(timer)
  }
}

// refused checks that a call fails with a message that names what is not there.
export function refused(what, text, run) {
  const check = () =>
    assert.rejects(run, (error) => {
      assert.match(error.message, text)
      return true
    })
  return call(what, check, 'refused by name')
}

// until polls until check returns something, and returns that.
export async function until(what, check) {
  const end = Date.now() + patience / 2
  for (;;) {
    const last = await check()
    if (last) return last
    if (Date.now() > end) throw new Error(`${what} did not happen within ${patience / 2} ms`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

export function finish() {
  console.log(`RESULTS ${JSON.stringify(results)}`)
  process.exit(results.some((r) => r.result.startsWith('fails')) ? 1 : 0)
}
