// How to do by code what a page does.
import { useState } from 'preact/hooks';
import { known, languages, snippet } from './snippets.js';
import { Copy, html } from './ui.js';

let last = 'curl'; // the language that was chosen last

/** ByCode shows, once it is opened, the snippet of a page for curl and the clients. values are what the snippet is about, such as the id. */
export function ByCode({ of, values }) {
  const [open, setOpen] = useState(false);
  const [language, setLanguage] = useState(last);
  if (!known(of)) return null;
  const code = open ? snippet(of, language, { url: location.origin, ...values }) : '';
  return html`<details class="bycode" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>How to do this by code</summary>
    ${open && html`<div class="row" role="group" aria-label="Language">
      ${Object.entries(languages).map(([name, label]) => html`<button type="button" key=${name} aria-pressed=${String(name === language)} onClick=${() => { last = name; setLanguage(name); }}>${label}</button>`)}
      <span class="space"></span><${Copy} text=${code} label="Copy the code" /></div>
    <p class="dim">The API key is in <code>SERVICE_API_KEY</code>, the address of the service in <code>SANDBOX_URL</code>: <code>${location.origin}</code></p>
    <pre class="box" tabindex="0" aria-label="Code">${code}</pre>`}
  </details>`;
}
