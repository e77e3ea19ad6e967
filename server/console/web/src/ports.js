// Links to the ports of a sandbox that need no key.
import { useEffect, useRef, useState } from 'preact/hooks';
import { call, daemon, pause, whileVisible } from './api.js';
import { unusable } from './state.js';
import { Copy, Empty, html, Left, Problem, useAction } from './ui.js';

const links = new Map(); // by sandbox; they are in the page's memory alone

const lives = [['5 minutes', 300], ['1 hour', 3600], ['8 hours', 28800], ['24 hours', 86400]];

const interval = 3000; // ms between two looks at what listens

/** useListening returns what listens in a sandbox, kept current while the page is visible, and the error of the last look. */
function useListening(id, usable) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!usable) return undefined;
    const control = new AbortController();
    const { signal } = control;
    (async () => {
      for (;;) {
        try {
          setFound(await whileVisible(signal, (both) => call('GET', daemon(id, '/ports'), undefined, { signal: both })));
          setError(null);
        } catch (failure) {
          if (failure.name !== 'AbortError' && failure.name !== 'HiddenError') setError(failure);
          if (failure.status === 404) return; // a daemon from before this operation
        }
        await pause(interval, signal);
      }
    })().catch(() => {});
    return () => control.abort();
  }, [id, usable]);
  return [found, error];
}

const local = (address) => ['0.0.0.0', '::', '::1'].includes(address) || address.startsWith('127.');

/** Listening is the table of what listens, with a link for each port that can have one. */
function Listening({ id, usable, busy, onLink }) {
  const [found, error] = useListening(id, usable);
  if (!usable) return null;
  return html`<h2>Programs that listen</h2>
    ${error?.status === 404 ? html`<p class="note">The daemon of this sandbox is older than the service, and cannot list its ports.</p>` : html`<${Problem} error=${error} />`}
    ${found === null ? !error && html`<${Empty}>Loading…<//>` : !found.items.length ? html`<${Empty}>No program listens on a TCP port.<//>` : html`<table class="rows listening">
      <caption class="hidden">TCP ports on which programs listen</caption>
      <thead><tr><th scope="col">Port</th><th scope="col">Program</th><th scope="col">Addresses</th><th scope="col"><span class="hidden">Link</span></th></tr></thead>
      <tbody>${found.items.map(({ port, program, pid, addresses }) => html`<tr key=${port}>
        <th scope="row" class="nowrap">${port}</th>
        <td data-label="Program">${pid ? html`<code>${program}</code> <span class="dim">process ${pid}</span>` : '–'}</td>
        <td data-label="Addresses">${addresses.join(', ')}</td>
        <td class="tools">${addresses.some(local) ? html`<button type="button" disabled=${busy} aria-label=${`Make a link to port ${port}`} onClick=${() => onLink(port)}>Make a link</button>` :
    html`<span class="dim">not on the loopback interface: no link reaches it</span>`}</td></tr>`)}</tbody></table>
      ${found.truncated && html`<p class="dim">There may be more ports: the sandbox has more sockets than are read.</p>`}`}`;
}

export function Ports({ sandbox }) {
  const { id } = sandbox;
  const reason = unusable(sandbox);
  const [busy, run, error] = useAction();
  const [made, setMade] = useState(links.get(id) ?? []);
  const form = useRef();
  const link = (port) => run(async () => {
    // The link may not outlive the sandbox.
    const left = Math.floor((new Date(sandbox.expiresAt) - Date.now()) / 1000) - 1;
    const answer = await call('GET', `/v1/sandboxes/${id}/endpoints/${port}?expires=${Math.max(1, Math.min(form.current.elements.life.value, left))}`);
    const next = [{ port, ...answer }, ...made].slice(0, 50);
    links.set(id, next);
    setMade(next);
  });
  const submit = (event) => {
    event.preventDefault();
    link(event.target.elements.port.value);
  };
  return html`${reason && html`<p class="note" role="status">${reason}</p>`}
    <${Listening} id=${id} usable=${!reason} busy=${busy} onLink=${link} />
    <h2>Links</h2>
    <form class="row" ref=${form} onSubmit=${submit}>
      <label for="port">Port</label>
      <input id="port" name="port" type="number" min="1" max="65535" required placeholder="8000" />
      <label for="life">Good for</label>
      <select id="life" name="life">${lives.map(([label, seconds]) => html`<option value=${seconds} selected=${seconds === 3600}>${label}</option>`)}</select>
      <button class="primary" disabled=${busy || Boolean(reason)}>Make a link</button>
    </form>
    <p class="dim">Whoever has the link can use that port of this sandbox until it ends, without a key.</p>
    <${Problem} error=${error} />
    ${made.length === 0 ? html`<${Empty}>No links were made on this page.<//>` : html`<table class="rows">
      <caption class="hidden">Links</caption>
      <thead><tr><th scope="col">Port</th><th scope="col">Link</th><th scope="col">Ends in</th><th scope="col"><span class="hidden">Copy</span></th></tr></thead>
      <tbody>${made.map((link) => html`<tr key=${link.url}>
        <th scope="row" class="nowrap">${link.port}</th>
        <td data-label="Link" class="link"><a href=${link.url} target="_blank" rel="noopener noreferrer">${link.url}</a>
          ${Object.entries(link.headers).map(([name, value]) => html`<div class="dim">with the header <code>${name}: ${value}</code></div>`)}</td>
        <td data-label="Ends in"><${Left} until=${link.expiresAt} /></td>
        <td><${Copy} text=${link.url} label=${`Copy the link to port ${link.port}`} /></td>
      </tr>`)}</tbody></table>`}`;
}
