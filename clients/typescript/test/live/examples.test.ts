import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, test } from "node:test";

import { busybox, python } from "../support.js";

/** What each example prints, with the image that it runs in. */
const examples: Record<string, { image: string; prints: RegExp }> = {
  "quickstart": { image: busybox, prints: /^hello from a sandbox\n42\n$/ },
  "stream": { image: busybox, prints: /^step 1\nstep 2\nstep 3\nit ended with 0\n$/ },
  "notebook": { image: python, prints: /^285\nZeroDivisionError: division by zero\n$/ },
  "preview": { image: python, prints: /^<h1>hello<\/h1>\n$/ },
  "parallel": { image: busybox, prints: /^1 1\n2 4\n3 9\n4 16\n$/ },
};

describe("examples", { concurrency: true }, () => {
  for (const [name, { image, prints }] of Object.entries(examples)) {
    test(name, async () => {
      const program = fileURLToPath(new URL(`../../examples/${name}.js`, import.meta.url));
      const env = { ...process.env, IMAGE: image };
      const { stdout, stderr } = await promisify(execFile)(process.execPath, [program], { env });
      assert.match(stdout, prints);
      assert.equal(stderr, "");
    });
  }
});
