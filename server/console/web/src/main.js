// The page: who is signed in, where it is, and the keys that work everywhere.
import { render } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Create } from './create.js';
import { Detail } from './detail.js';
import { Overview } from './overview.js';
import { SignIn } from './signin.js';
import { leave, mayChange, start, useStore } from './store.js';
import { html, Modal, moment, Problem, useAction } from './ui.js';

/** route reads the part of the URL that says what is shown: #/, #/new or #/sandboxes/ID/TAB/PART. */
function route() {
  let parts;
  try {
    parts = location.hash.split('/').map((part) => decodeURIComponent(part));
  } catch { // a % that begins no character
    parts = [];
  }
  const [, first, id, tab, part] = parts;
  if (first === 'new') return { page: 'new' };
  if (first === 'sandboxes' && id) return { page: 'sandbox', id, tab, part };
  return { page: 'overview' };
}

function useRoute() {
  const [at, go] = useState(route);
  useEffect(() => {
    const changed = () => go(route());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return at;
}

const typing = (element) => element.closest('input, textarea, select, [contenteditable], dialog, .screen');

function useKeys(onHelp) {
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (event.key === '?') onHelp();
      else if (event.key === 'o') location.hash = '#/';
      else if (event.key === 'n' && mayChange()) location.hash = '#/new';
      else if (event.key === '/' && document.getElementById('search')) document.getElementById('search').focus();
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}

function Keys({ onClose }) {
  const keys = [['o', 'Overview'], ['n', 'New sandbox'], ['/', 'Search the sandboxes'], ['← →', 'Move between tabs'],
    ['Ctrl Enter', 'Run a cell'], ['Shift Enter', 'Run a cell and go to the next'], ['Ctrl S', 'Save a file'], ['Shift Esc', 'Leave the terminal'], ['Esc', 'Close a dialog']];
  return html`<${Modal} title="Keys" onClose=${onClose}>
    <dl class="facts">${keys.filter(([key]) => key !== 'n' || mayChange()).map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <div class="actions"><button type="button" autofocus onClick=${onClose}>Close</button></div>
  <//>`;
}

function Bar({ onHelp }) {
  const { session, live, loaded, keyRequired } = useStore();
  const [, run, error] = useAction();
  return html`<header class="bar">
    <a class="brand" href="#/">Sandboxes</a>
    <span class="live" role="status">${live ? 'Live' : loaded ? 'Reconnecting…' : 'Connecting…'}</span>
    <span class="space"></span>
    <span class="who" title=${`The session ends ${moment(session.expiresAt)}`}>${session.name || 'no key'} <span class="role">${session.role}</span></span>
    <a href="/docs" target="_blank" rel="noopener">API</a>
    <button type="button" class="quiet" aria-label="Keys" onClick=${onHelp}>?</button>
    ${keyRequired && html`<button type="button" class="quiet" onClick=${() => run(leave)}>Sign out</button>`}
    <${Problem} error=${error} />
  </header>`;
}

function App() {
  const { session } = useStore();
  const wanted = useRoute();
  const at = wanted.page === 'new' && session && !mayChange() ? { page: 'overview' } : wanted;
  const [help, setHelp] = useState(false);
  const main = useRef();
  useKeys(() => setHelp(true));
  useEffect(() => { main.current?.focus({ preventScroll: true }); }, [at.page, at.id]);
  if (session === undefined) return html`<p class="empty" role="status">Loading…</p>`;
  if (session === null) return html`<${SignIn} />`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${Bar} onHelp=${() => setHelp(true)} />
    <main id="main" ref=${main} tabindex="-1">
      ${at.page === 'overview' && html`<${Overview} />`}
      ${at.page === 'new' && html`<${Create} />`}
      ${at.page === 'sandbox' && html`<${Detail} key=${at.id} id=${at.id} tab=${at.tab} part=${at.part} />`}
    </main>
    ${help && html`<${Keys} onClose=${() => setHelp(false)} />`}`;
}

render(html`<${App} />`, document.getElementById('console'));
start();
