// What the pages do, as code for curl and for the clients. A test compiles and runs it.

/** languages are the labels of the languages that snippet knows. */
export const languages = { curl: 'curl', go: 'Go', python: 'Python', typescript: 'TypeScript' };

const header = '-H "SERVICE-API-KEY: $SERVICE_API_KEY"';
const text = JSON.stringify; // a string of Go, Python and TypeScript alike
const shell = (word) => `'${word.replaceAll("'", "'\\''")}'`;
const indent = (code, by) => code.split('\n').map((line) => (line ? by + line : line)).join('\n');

/** curl is a request; body is sent as JSON. */
const curl = (method, path, body, options = '') => [`curl -fsS${options}`, method === 'GET' ? '' : `-X ${method}`, header, body ? `-H 'Content-Type: application/json' -d ${shell(JSON.stringify(body))}` : '', `"$SANDBOX_URL${path}"`].filter(Boolean).join(' \\\n  ');

function go(code, imports = ['fmt']) {
  const standard = ['context', 'log', ...imports].sort().map((name) => `\t"${name}"`).join('\n');
  return `package main

import (
${standard}

\tsandbox "sandbox.internal/clients/go"
)

func main() {
\tctx := context.Background()
\tclient, err := sandbox.New(nil) // $SANDBOX_URL, $SERVICE_API_KEY
\tcheck(err)
${indent(code, '\t')}
}

func check(err error) {
\tif err != nil {
\t\tlog.Fatal(err)
\t}
}
`;
}

const python = (code, imports = '') => `from sandboxes import Client${imports}

with Client() as client:  # $SANDBOX_URL, $SERVICE_API_KEY
${indent(code, '    ')}
`;

const typescript = (code) => `import { Client } from "@sandbox.internal/sdk";

const client = new Client(); // $SANDBOX_URL, $SERVICE_API_KEY
${code}
`;

/** inside is the code for something in a sandbox, that of each client without the way to it. */
const inside = (parts) => ({ id }) => ({
  curl: parts.curl(`/v1/sandboxes/${id}`),
  go: go(`box, err := client.Connect(ctx, ${text(id)})\ncheck(err)\n${parts.go}`, parts.imports),
  python: python(`sandbox = client.get(${text(id)})\n${parts.python}`, parts.pythonImports),
  typescript: typescript(`const sandbox = await client.connect(${text(id)});\n${parts.typescript}`),
});

const daemon = (at) => `${at}/proxy/44772`;

const pages = {
  list: () => ({
    curl: curl('GET', '/v1/sandboxes?state=Running&pageSize=100'),
    go: go('for info, err := range client.List(ctx, &sandbox.ListOptions{States: []string{"Running"}}) {\n\tcheck(err)\n\tfmt.Println(info.ID, info.Image.URI)\n}'),
    python: python('for sandbox in client.list(state=["Running"]):\n    print(sandbox.id, sandbox.info.image.uri)'),
    typescript: typescript('for await (const { id, image } of client.list({ state: "Running" })) console.log(id, image.uri);'),
  }),
  new: ({ image = 'python:3.12' }) => ({
    curl: curl('POST', '/v1/sandboxes', { image: { uri: image }, timeout: 600, resourceLimits: { cpu: '500m', memory: '512Mi' }, entrypoint: ['/opt/sandbox/execd-init', 'idle'] }),
    go: go(`box, err := client.Create(ctx, &sandbox.CreateOptions{Image: ${text(image)}, Timeout: 10 * time.Minute, CPU: "500m", Memory: "512Mi"})\ncheck(err)\nfmt.Println(box.ID())`, ['fmt', 'time']),
    python: python(`sandbox = client.create(${text(image)}, timeout=600, cpu="500m", memory="512Mi")\nprint(sandbox.id)`),
    typescript: typescript(`const sandbox = await client.create(${text(image)}, { timeout: 600, resourceLimits: { cpu: "500m", memory: "512Mi" } });\nconsole.log(sandbox.id);`),
  }),
  images: () => ({
    curl: curl('GET', '/v1/images'),
    go: go('images, err := client.Images.List(ctx)\ncheck(err)\nfor _, image := range images {\n\tfmt.Println(image.Names, image.Bytes)\n}'),
    python: python('for image in client.call(lifecycle.list_images()).items:\n    print(image.names, image.bytes)', ', lifecycle'),
    typescript: typescript('const { items } = await client.api.json("get", "/v1/images", {});\nfor (const image of items) console.log(image.names, image.bytes);'),
  }),
  keys: () => ({
    curl: curl('GET', '/v1/keys?pageSize=100'),
    go: go('for key, err := range client.Keys.List(ctx) {\n\tcheck(err)\n\tfmt.Println(key.Name, key.Role)\n}'),
    python: python('for key in client.call(lifecycle.list_keys(page_size=100)).items:\n    print(key.name, key.role)', ', lifecycle'),
    typescript: typescript('const { items } = await client.api.json("get", "/v1/keys", { query: { pageSize: 100 } });\nfor (const key of items) console.log(key.name, key.role);'),
  }),
  summary: inside({
    curl: (at) => curl('GET', at),
    go: 'info := box.Info()\nfmt.Println(info.Status.State, info.ExpiresAt)',
    python: 'print(sandbox.state, sandbox.info.expires_at)',
    typescript: 'console.log(sandbox.info.status.state, sandbox.info.expiresAt);',
  }),
  activity: inside({
    curl: (at) => curl('GET', `${at}/activity`),
    go: 'entries, err := box.Activity(ctx) // box.WatchActivity goes on with what is done\ncheck(err)\nfor _, entry := range entries {\n\tfmt.Println(entry.Started, entry.Key, entry.Client, entry.State, entry.Text)\n}',
    python: 'for entry in sandbox.activity():  # watch_activity goes on with what is done\n    print(entry.started, entry.key, entry.client, entry.state, entry.text)',
    typescript: '// watchActivity goes on with what is done.\n'
      + 'for (const { started, key, client, state, text } of await sandbox.activity()) console.log(started, key, client, state, text);',
  }),
  terminal: inside({
    curl: (at) => curl('POST', `${daemon(at)}/command`, { command: 'ls -l /' }, ' -N'),
    go: 'result, err := box.Commands.Run(ctx, "ls -l /", nil)\ncheck(err)\nfmt.Print(result.Stdout)',
    python: 'print(sandbox.commands.run("ls -l /").stdout)',
    typescript: 'const { stdout } = await sandbox.commands.run("ls -l /");\nconsole.log(stdout);',
  }),
  files: inside({
    curl: (at) => curl('GET', `${daemon(at)}/files/download?path=/etc/passwd`),
    go: 'content, err := box.Files.ReadText(ctx, "/etc/passwd")\ncheck(err)\nfmt.Print(content)',
    python: 'print(sandbox.files.read_text("/etc/passwd"))',
    typescript: 'console.log(await sandbox.files.readText("/etc/passwd"));',
  }),
  checkpoints: inside({
    curl: (at) => `${curl('POST', `${at}/snapshots`, { name: 'before' }, " -H 'Prefer: wait=30'")}\n${curl('GET', `${at}/snapshots`)}`,
    go: 'kept, err := box.Snapshot(ctx, &sandbox.SnapshotOptions{Name: "before"})\ncheck(err)\nfmt.Println(kept.ID, kept.Size)\ncheck(box.Rollback(ctx, kept.ID))',
    python: 'kept = sandbox.snapshot("before")\nprint(kept.id, kept.size)\nsandbox.rollback(kept)',
    typescript: 'const kept = await sandbox.snapshot({ name: "before" });\nconsole.log(kept.id, kept.size);\nawait sandbox.rollback(kept);',
  }),
  notebook: inside({
    curl: (at) => curl('POST', `${daemon(at)}/code`, { code: '6 * 7', context: { language: 'python' } }, ' -N'),
    go: 'cell, err := box.Code.Run(ctx, "6 * 7", &sandbox.CodeOptions{Language: "python"})\ncheck(err)\nfor _, result := range cell.Results {\n\tfmt.Println(result.Text())\n}',
    python: 'for result in sandbox.code.run("6 * 7", language="python").results:\n    print(result.text)',
    typescript: 'const { results } = await sandbox.code.run("6 * 7", { language: "python" });\nfor (const result of results) console.log(result.text);',
  }),
  logs: inside({
    curl: (at) => curl('GET', `${at}/logs`),
    imports: ['io', 'os'],
    go: 'log, err := box.OpenLogs(ctx, nil)\ncheck(err)\ndefer log.Close()\n_, err = io.Copy(os.Stdout, log)\ncheck(err)',
    python: 'for part in sandbox.logs():\n    print(part.decode(errors="replace"), end="")',
    typescript: 'for await (const bytes of sandbox.logs()) console.log(new TextDecoder().decode(bytes));',
  }),
  events: inside({
    curl: (at) => curl('GET', `${at}/events`, undefined, ' -N'),
    go: 'for event, err := range box.Events(ctx, nil) {\n\tcheck(err)\n\tfmt.Println(event.Timestamp, event.Type)\n}',
    python: 'for event in sandbox.events():\n    print(event.timestamp, event.type)',
    typescript: 'for await (const event of sandbox.events()) console.log(event.timestamp, event.type);',
  }),
  network: inside({
    curl: (at) => curl('PATCH', `${at}/network-policy`, [{ action: 'allow', target: 'pypi.org' }]),
    go: 'policy, err := box.Network.Allow(ctx, "pypi.org")\ncheck(err)\nfmt.Println(policy.Egress)',
    python: 'print(sandbox.network.allow("pypi.org"))',
    typescript: 'const rules = [{ action: "allow", target: "pypi.org" } as const];\n'
      + 'console.log(await sandbox.network.addRules(rules));',
  }),
  ports: inside({
    curl: (at) => `${curl('GET', `${daemon(at)}/ports`)}\n${curl('GET', `${at}/endpoints/8000?expires=300`)}`,
    imports: ['fmt', 'time'],
    go: 'endpoint, err := box.SignedEndpoint(ctx, 8000, 5*time.Minute)\ncheck(err)\nfmt.Println(endpoint.URL)',
    python: 'print(sandbox.signed_url(8000, expires=300))',
    typescript: 'console.log(await sandbox.signedUrl(8000, 300));',
  }),
};

/** known reports whether a page has a snippet. */
export const known = (page) => page in pages;

/** names are the pages that have snippets. */
export const names = Object.keys(pages);

/** snippet is the code of a page in a language. */
export const snippet = (page, language, values) => pages[page](values)[language];
