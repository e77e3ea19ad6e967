// The API keys of the service, for administrators.
import { useEffect, useState } from 'preact/hooks';
import { call } from './api.js';
import { ByCode } from './bycode.js';
import { store } from './store.js';
import { Ago, Confirm, Copy, Empty, html, Left, Modal, Problem, useAction } from './ui.js';

const lives = [['no end', 0], ['1 day', 1], ['30 days', 30], ['90 days', 90], ['1 year', 365]];
const graces = [['at once', 0], ['after 1 hour', 3600], ['after 1 day', 86400], ['after 7 days', 604800]];

export function Keys() {
  const [list, setList] = useState(null);
  const [failed, setFailed] = useState(null);
  const [asked, ask] = useState(null);
  const [issued, setIssued] = useState(null);
  const load = async () => {
    const all = [];
    try {
      for (let page = 1; ; page++) {
        const { items, pagination } = await call('GET', `/v1/keys?pageSize=1000&page=${page}`);
        all.push(...items);
        if (!pagination.hasNextPage) break;
      }
      setList(all);
      setFailed(null);
    } catch (failure) {
      setFailed(failure);
    }
  };
  useEffect(() => {
    document.title = 'API keys · Sandboxes';
    load();
  }, []);
  const show = (answer) => {
    setIssued(answer);
    load();
  };
  const path = asked?.key && `/v1/keys/${encodeURIComponent(asked.key.name)}`;
  return html`<div class="head"><h1>API keys</h1><span class="space"></span><button type="button" class="primary" onClick=${() => ask({ what: 'create' })}>New key…</button></div>
    <p class="dim">A key of the configuration is changed in the file of the service; the others are changed here.</p>
    <${Problem} error=${failed} onRetry=${load} />
    ${list === null ? !failed && html`<${Empty}>Loading…<//>` : !list.length ? html`<${Empty}>The service has no keys.<//>` : html`<table class="rows keys">
      <caption class="hidden">API keys, by name</caption>
      <thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Kept in</th><th scope="col">Last used</th><th scope="col">Ends in</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${list.map((key) => html`<tr key=${key.name}>
        <th scope="row">${key.name}${key.name === store.session?.name && html` <span class="dim">this session</span>`}
          ${key.previousSecretExpiresAt && html`<div class="dim">the secret before is valid for <${Left} until=${key.previousSecretExpiresAt} /></div>`}</th>
        <td data-label="Role">${key.role}</td>
        <td data-label="Kept in">${key.source === 'service' ? 'the service' : 'the configuration'}</td>
        <td data-label="Last used">${key.lastUsedAt ? html`<${Ago} at=${key.lastUsedAt} />` : 'not recorded'}</td>
        <td data-label="Ends in">${key.expiresAt ? html`<${Left} until=${key.expiresAt} />` : '–'}</td>
        <td class="tools">${key.source === 'service' && html`
          <button type="button" aria-label=${`Replace the secret of ${key.name}`} onClick=${() => ask({ what: 'rotate', key })}>Replace the secret…</button>
          <button type="button" class="danger" aria-label=${`Remove ${key.name}`} onClick=${() => ask({ what: 'delete', key })}>Remove…</button>`}</td>
      </tr>`)}</tbody></table>`}
    <${ByCode} of="keys" />
    ${asked?.what === 'create' && html`<${NewKey} onClose=${() => ask(null)} onIssued=${show} />`}
    ${asked?.what === 'rotate' && html`<${Rotate} name=${asked.key.name} path=${path} onClose=${() => ask(null)} onIssued=${show} />`}
    ${asked?.what === 'delete' && html`<${Confirm} title=${`Remove the key ${asked.key.name}?`} verb="Remove" onClose=${() => ask(null)} onConfirm=${async () => { await call('DELETE', path); await load(); }}>
      <p>The service refuses it at once and cuts off what it began. Its sandboxes stay until they expire or an administrator deletes them.</p><//>`}
    ${issued && html`<${Secret} issued=${issued} onClose=${() => setIssued(null)} />`}`;
}

/** Secret shows a secret, which no other answer has. */
function Secret({ issued: { key, secret }, onClose }) {
  return html`<${Modal} title=${`The secret of ${key.name}`} onClose=${onClose}>
    <p><b>Copy it now.</b> The service keeps a digest alone, and cannot show the secret again.</p>
    <p class="box"><code id="secret">${secret}</code></p>
    <div class="actions"><${Copy} text=${secret} label="Copy the secret" /><button type="button" class="primary" autofocus onClick=${onClose}>I have it</button></div>
  <//>`;
}

function NewKey({ onClose, onIssued }) {
  const [busy, run, error] = useAction();
  const submit = (event) => {
    event.preventDefault();
    const { name, role, life, takeOver } = event.target.elements;
    run(async () => {
      const body = { name: name.value, role: role.value };
      if (Number(life.value)) body.expiresAt = new Date(Date.now() + life.value * 86400_000).toISOString();
      if (takeOver?.checked) body.takeOver = true;
      const answer = await call('POST', '/v1/keys', body);
      onClose();
      onIssued(answer);
    });
  };
  return html`<${Modal} title="New key" onClose=${onClose}>
    <form onSubmit=${submit}>
      <div class="field"><label for="key-name">Name</label><input id="key-name" name="name" required maxlength="128" autofocus autocomplete="off" spellcheck=${false} /></div>
      <div class="field"><label for="key-role">Role</label><select id="key-role" name="role" aria-describedby="key-role-help">${['user', 'viewer', 'admin'].map((role) => html`<option>${role}</option>`)}</select>
        <p class="dim" id="key-role-help">user: everything with its own sandboxes; viewer: read; admin: everything.</p></div>
      <div class="field"><label for="key-life">Valid for</label><select id="key-life" name="life">${lives.map(([label, days]) => html`<option value=${days}>${label}</option>`)}</select></div>
      ${error?.status === 409 && html`<label><input type="checkbox" name="takeOver" /> Use the name again: the new key gets the sandboxes, volumes and images of the earlier key</label>`}
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>Make the key</button></div>
    </form>
  <//>`;
}

function Rotate({ name, path, onClose, onIssued }) {
  const [busy, run, error] = useAction();
  const submit = (event) => {
    event.preventDefault();
    const { grace } = event.target.elements;
    run(async () => {
      const answer = await call('POST', `${path}/rotate`, { graceSeconds: Number(grace.value) });
      onClose();
      onIssued(answer);
    });
  };
  return html`<${Modal} title=${`Replace the secret of ${name}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <div class="field"><label for="grace">The present secret ends</label><select id="grace" name="grace" autofocus>${graces.map(([label, seconds]) => html`<option value=${seconds}>${label}</option>`)}</select></div>
      <p class="dim">Sessions of this console that began with the key end. Its name, role and sandboxes stay.</p>
      <${Problem} error=${error} />
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}>Replace</button></div>
    </form>
  <//>`;
}
