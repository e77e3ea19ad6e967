// What must not compile. It is compiled with the tests and never run.
import { type Client, type FileInfo, type Sandbox, type SandboxInfo } from "@sandbox.internal/sdk";

export async function wrong(client: Client, sandbox: Sandbox): Promise<void> {
  // @ts-expect-error The image is a name.
  await client.create({ uri: "python" });
  // @ts-expect-error There is no such option.
  await client.create("python", { memory: "512Mi" });
  // @ts-expect-error There is no such path.
  await client.api.json("get", "/v1/boxes", {});
  // @ts-expect-error The path has no such method.
  await client.api.json("put", "/v1/sandboxes", {});
  // @ts-expect-error The path needs its parameter.
  await client.api.json("get", "/v1/sandboxes/{sandboxId}", {});
  // @ts-expect-error The body lacks what is required.
  await client.api.json("post", "/v1/sandboxes", { body: { metadata: {} } });
  // @ts-expect-error It is an array.
  await client.api.json("get", "/v1/sandboxes", { query: { state: "Running" } });
  // @ts-expect-error An absent option is left out.
  await sandbox.commands.run("true", { cwd: undefined });
  // @ts-expect-error An exit code may be null.
  (await sandbox.commands.run("true")).exitCode.toFixed();

  const info: SandboxInfo = await client.api.json("get", "/v1/sandboxes/{sandboxId}", { path: { sandboxId: "a" } });
  const files: FileInfo[] = await sandbox.api.json("get", "/directories/list", { query: { path: "/", depth: 2 } });
  const nothing: undefined = await client.api.json("delete", "/v1/sandboxes/{sandboxId}", { path: { sandboxId: info.id } });
  void [files, nothing];
}
