// What the behaviours have in common: sandboxes that are killed at the end, waits that are bounded, and requests to the hosts of sandboxes.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import https from 'node:https'
import { inspect } from 'node:util'

import { Sandbox } from 'e2b-2.51.0'
import { Sandbox as Interpreter } from 'code-interpreter-2.8.0'

// Sandboxes of this program have this metadata.
export const RUN = randomUUID()

const made = []
let shared
let interpreter

// create returns a new sandbox with options of Sandbox.create.
export async function create(options = {}, Class = Sandbox) {
  const box = await Class.create({ timeoutMs: 1_800_000, ...options, metadata: { run: RUN, ...options.metadata } })
  made.push(box)
  return box
}

// common returns the sandbox that behaviours share which leave it usable.
export function common() {
  shared ??= create()
  return shared
}

// coding returns the sandbox that behaviours of the code interpreter share.
export function coding() {
  interpreter ??= create({ envs: { OF_THE_SANDBOX: 'held' } }, Interpreter)
  return interpreter
}

// close kills all sandboxes.
export async function close() {
  await Promise.all(made.map((box) => box.kill()))
}

// within returns what a promise has within a time.
export async function within(ms, subject, promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${subject}: not within ${ms} ms`)), ms)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

// until polls until a check returns what is true, and returns that.
export async function until(subject, check, ms = 40_000) {
  const end = Date.now() + ms
  for (let last; ; ) {
    last = await check()
    if (last) return last
    if (Date.now() > end) throw new Error(`${subject}: not within ${ms} ms`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

// later returns a promise that the caller awaits later: until then Node.js takes no error of it for one that is never handled.
export function later(promise) {
  promise.catch(() => {})
  return promise
}

// failure returns the error of a promise, which must be of one of the classes. The caller may await it later.
export const failure = (promise, ...classes) => later(errorOf(promise, classes))

async function errorOf(promise, classes) {
  const want = classes.map((one) => one.name).join(' or ')
  let value
  try {
    value = await within(60_000, want, promise)
  } catch (error) {
    if (classes.some((one) => error instanceof one)) return error
    throw new Error(`the error is ${inspect(error)}, want ${want}`)
  }
  throw new Error(`there is no error but ${inspect(value)}, want ${want}`)
}

// refusal returns whether the service answered 400 or 501 with a message that names what it refuses.
export function refusal(error, names) {
  const status = error?.statusCode ?? Number(/^(\d{3}):/.exec(error?.message ?? '')?.[1])
  return names !== undefined && (status === 400 || status === 501) && names.test(error.message)
}

// refusable marks a behaviour that the service may refuse with a message that matches a pattern.
export function refusable(names, behaviour) {
  return Object.assign(behaviour, { refusal: names })
}

// visit sends a request to an address, whose name is that of this machine, and returns the response with its whole body.
export function visit(address, options = {}) {
  return new Promise((resolve, reject) => {
    const request = open(address, options, (response) => {
      const parts = []
      response.on('data', (part) => parts.push(part))
      response.on('error', reject)
      response.on('end', () => {
        const bytes = Buffer.concat(parts)
        resolve({ status: response.statusCode, headers: response.headers, bytes, text: bytes.toString() })
      })
    })
    request.on('error', reject)
    request.end(options.body)
  })
}

// open begins a request as visit does, and calls back with the response.
export function open(address, { method = 'GET', headers = {} } = {}, answered) {
  const url = new URL(address)
  const lookup = (_, { all }, done) => (all ? done(null, [{ address: '127.0.0.1', family: 4 }]) : done(null, '127.0.0.1', 4))
  const client = url.protocol === 'https:' ? https : http
  const request = client.request(url, { method, headers, lookup, agent: false }, answered)
  request.setTimeout(30_000, () => request.destroy(new Error(`${address}: no answer`)))
  return request
}

// random returns bytes that no compression makes smaller, the same at each call.
export function random(length) {
  const bytes = new Uint8Array(length)
  for (let i = 0, state = 1; i < length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    bytes[i] = state >>> 24
  }
  return bytes
}

// near asserts that a number is at most so far from another.
export function near(got, want, most, subject) {
  assert.ok(Math.abs(got - want) <= most, `${subject} is ${got}, want ${want} or at most ${most} from it`)
}
