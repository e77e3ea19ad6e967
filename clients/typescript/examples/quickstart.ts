// Creates a sandbox, runs a command, writes and reads a file. IMAGE chooses the image.
import { Client } from "@sandbox.internal/sdk";

const client = new Client(); // $SANDBOX_URL and $SERVICE_API_KEY
await using sandbox = await client.create(process.env["IMAGE"] ?? "python:3.12", {
  timeout: 300,
  resourceLimits: { cpu: "500m", memory: "256Mi" },
});

const { stdout } = await sandbox.commands.run("echo hello from a sandbox");
process.stdout.write(stdout);

await sandbox.files.write("/data/answer.txt", "42\n", { mode: "600" });
process.stdout.write(await sandbox.files.readText("/data/answer.txt"));
// Here the sandbox is deleted.
