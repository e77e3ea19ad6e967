// Holds the service to behaviours of E2B's JavaScript clients. They were written from the types, the comments and the READMEs of the packages,
// before the service's own programs for them were read. Prints one line of JSON for each: its name, its result and what is to be said of it.
// "refused" is an answer 400 or 501 that names the field or the operation.

import { close, refusal, within } from './held/common.mjs'
import { code } from './held/code.mjs'
import { commands } from './held/commands.mjs'
import { files } from './held/files.mjs'
import { lives } from './held/lives.mjs'
import { ports } from './held/ports.mjs'

const LONGEST = 90_000 // that one behaviour may take, on a busy machine

const only = process.argv[2] && new RegExp(process.argv[2])
for (const [name, behaviour] of Object.entries({ ...lives, ...commands, ...files, ...ports, ...code })) {
  if (only && !only.test(name)) continue
  const started = Date.now()
  let result = 'passes'
  let detail = ''
  try {
    await within(LONGEST, name, behaviour())
  } catch (error) {
    result = refusal(error, behaviour.refusal) ? 'refused' : 'fails'
    detail = result === 'refused' ? error.message : String(error?.stack ?? error)
  }
  console.log(JSON.stringify({ name, result, detail: detail || `${Date.now() - started} ms` }))
}
await within(LONGEST, 'the end of the sandboxes', close())
process.exit(0) // whatever streams are open
