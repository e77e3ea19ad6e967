// Works on several things at the same time, each in a sandbox of its own.
import { Client } from "@sandbox.internal/sdk";

const client = new Client();

async function square(n: number): Promise<string> {
  await using sandbox = await client.create(process.env["IMAGE"] ?? "python:3.12");
  const { stdout } = await sandbox.commands.run("echo $((N * N))", { envs: { N: String(n) } });
  return `${n} ${stdout.trim()}`;
}

for (const line of await Promise.all([1, 2, 3, 4].map(square))) console.log(line);
