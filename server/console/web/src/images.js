// The images of the engine, for administrators.
import { useEffect, useState } from 'preact/hooks';
import { call } from './api.js';
import { ByCode } from './bycode.js';
import { Ago, bytes, Confirm, Empty, html, Problem, useAction } from './ui.js';

const limit = 500; // images that are shown

export function Images() {
  const [list, setList] = useState(null);
  const [failed, setFailed] = useState(null);
  const [asked, ask] = useState(null);
  const [said, say] = useState('');
  const [busy, run, error] = useAction();
  const load = () => call('GET', '/v1/images').then(({ items }) => { setList(items); setFailed(null); }, setFailed);
  useEffect(() => {
    document.title = 'Images · Sandboxes';
    load();
  }, []);
  const pull = (event) => {
    event.preventDefault();
    const form = event.target;
    const { uri, username, password } = form.elements;
    say(`The engine gets ${uri.value.trim()}. A large image takes minutes.`);
    run(async () => {
      try {
        const image = { uri: uri.value.trim() };
        if (username.value || password.value) image.auth = { username: username.value, password: password.value };
        const got = await call('POST', '/v1/images/pull', { image });
        form.reset();
        say(`The engine has ${image.uri}, ${bytes(got.bytes)}.`);
      } catch (failure) {
        say('');
        throw failure;
      }
      await load();
    });
  };
  const prune = async (all) => {
    const { freedBytes, recent, graceSeconds } = await call('POST', `/v1/images/prune${all ? '?all=true' : ''}`);
    say(`${bytes(freedBytes)} of disk are free now.${recent ? ` ${recent} images stay because they were loaded or used in the last ${Math.round(graceSeconds / 60)} minutes.` : ''}`);
    await load();
  };
  const words = asked?.what === 'prune-all' ? 'Every image that no sandbox is made of goes, also those with a name. A create that needs one of them gets it again.' :
    'Images that have neither a name nor a sandbox go.';
  const head = html`<div class="head"><h1>Images</h1></div>`;
  if (failed?.status === 501) {
    return html`${head}<p class="note" role="status">The service does not manage images here: ${failed.message}</p><${ByCode} of="images" />`;
  }
  return html`${head}
    <form class="row" onSubmit=${pull}>
      <label for="uri">Get an image</label>
      <input id="uri" name="uri" required maxlength="1024" placeholder="python:3.12" spellcheck=${false} autocomplete="off" />
      <details class="inline"><summary>Private registry</summary>
        <div class="row"><input name="username" aria-label="Username" placeholder="Username" autocomplete="off" /><input name="password" type="password" aria-label="Password or token" placeholder="Password or token" autocomplete="off" /></div></details>
      <button class="primary" disabled=${busy}>Get</button>
      <span class="space"></span>
      <button type="button" disabled=${busy} onClick=${() => ask({ what: 'prune' })}>Remove nameless…</button>
      <button type="button" class="danger" disabled=${busy} onClick=${() => ask({ what: 'prune-all' })}>Remove unused…</button>
    </form>
    <p class="dim" role="status">${said}</p>
    <${Problem} error=${error} />
    <${Problem} error=${failed} onRetry=${load} />
    ${list === null ? !failed && html`<${Empty}>Loading…<//>` : !list.length ? html`<${Empty}>The engine has no images.<//>` : html`<table class="rows">
      <caption class="hidden">Images</caption>
      <thead><tr><th scope="col">Names</th><th scope="col">Id</th><th scope="col" class="number">Size</th><th scope="col">Since</th><th scope="col">Use</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${list.slice(0, limit).map((image) => html`<tr key=${image.id}>
        <th scope="row">${image.names.length ? image.names.map((name) => html`<div key=${name}><code>${name}</code></div>`) : html`<span class="dim">no name</span>`}</th>
        <td data-label="Id"><code title=${image.id}>${image.id.replace('sha256:', '').slice(0, 12)}</code></td>
        <td data-label="Size" class="number">${bytes(image.bytes)}</td>
        <td data-label="Since"><${Ago} at=${image.createdAt} /></td>
        <td data-label="Use">${image.inUse ? 'in use' : 'not in use'}</td>
        <td class="tools">${(image.names.length ? image.names : [image.id]).map((name) => html`<button type="button" class="danger" key=${name} disabled=${busy} aria-label=${`Remove ${name}`} onClick=${() => ask({ what: 'remove', name })}>Remove…</button>`)}</td>
      </tr>`)}</tbody></table>
      ${list.length > limit && html`<p class="dim">The first ${limit} of ${list.length}</p>`}`}
    <${ByCode} of="images" />
    ${asked?.what === 'remove' && html`<${Confirm} title=${`Remove ${asked.name}?`} verb="Remove" onClose=${() => ask(null)}
      onConfirm=${async () => { await call('DELETE', `/v1/images/${encodeURIComponent(asked.name)}`); say(''); await load(); }}>
      <p>The image loses this name. With its last name it goes, unless a sandbox is made of it.</p><//>`}
    ${asked?.what.startsWith('prune') && html`<${Confirm} title="Remove images?" verb="Remove" onClose=${() => ask(null)} onConfirm=${() => prune(asked.what === 'prune-all')}><p>${words}</p><//>`}`;
}
