// Follows a command while it runs. The loop goes on where it was when the connection is cut.
import { Client } from "@sandbox.internal/sdk";

await using sandbox = await new Client().create(process.env["IMAGE"] ?? "python:3.12");

const command = await sandbox.commands.start("for i in 1 2 3; do echo step $i; sleep 0.1; done");
for await (const event of command) {
  if (event.type === "stdout") process.stdout.write(event.bytes);
  if (event.type === "end") console.log(`it ended with ${event.exitCode}`);
}
