// Links to the ports of a sandbox that need no key.
import { useState } from 'preact/hooks';
import { call } from './api.js';
import { unusable } from './state.js';
import { Copy, Empty, html, Left, Problem, useAction } from './ui.js';

const links = new Map(); // by sandbox; they are in the page's memory alone

const lives = [['5 minutes', 300], ['1 hour', 3600], ['8 hours', 28800], ['24 hours', 86400]];

export function Ports({ sandbox }) {
  const { id } = sandbox;
  const reason = unusable(sandbox);
  const [busy, run, error] = useAction();
  const [made, setMade] = useState(links.get(id) ?? []);
  const submit = (event) => {
    event.preventDefault();
    const { port, life } = event.target.elements;
    run(async () => {
      // The link may not outlive the sandbox.
      const left = Math.floor((new Date(sandbox.expiresAt) - Date.now()) / 1000) - 1;
      const answer = await call('GET', `/v1/sandboxes/${id}/endpoints/${port.value}?expires=${Math.max(1, Math.min(life.value, left))}`);
      const next = [{ port: port.value, ...answer }, ...made].slice(0, 50);
      links.set(id, next);
      setMade(next);
    });
  };
  return html`${reason && html`<p class="note" role="status">${reason}</p>`}
    <form class="row" onSubmit=${submit}>
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
