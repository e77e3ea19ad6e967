// Runs cells that share variables. The image needs a Python kernel.
import { Client } from "@sandbox.internal/sdk";

await using sandbox = await new Client().create(process.env["IMAGE"] ?? "sandbox/code-interpreter:dev");

const context = await sandbox.code.contexts.create("python");
await sandbox.code.run("squares = [n * n for n in range(10)]", { context });
const { results } = await sandbox.code.run("sum(squares)", { context });
console.log(results[0]?.text);

const { error } = await sandbox.code.run("1 / 0", { context });
console.log(`${error?.name}: ${error?.value}`);
