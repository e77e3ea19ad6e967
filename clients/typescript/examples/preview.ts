// Serves a page from a sandbox, at an address that needs no key for five minutes.
import { Client } from "@sandbox.internal/sdk";

await using sandbox = await new Client().create(process.env["IMAGE"] ?? "python:3.12");

await sandbox.files.write("/srv/index.html", "<h1>hello</h1>\n");
await sandbox.commands.start("python3 -m http.server 8000", { cwd: "/srv" });
const connects = `python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))'`;
await sandbox.commands.run(`until ${connects} 2>/dev/null; do sleep 0.1; done`);

const page = await fetch(await sandbox.signedUrl(8000, 300));
process.stdout.write(await page.text());
