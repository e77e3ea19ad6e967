// The form that takes an API key, once.
import { useEffect, useRef } from 'preact/hooks';
import { enter, useStore } from './store.js';
import { html, Problem, useAction } from './ui.js';

export function SignIn() {
  const { ended } = useStore();
  const [busy, run, error] = useAction();
  const key = useRef();
  useEffect(() => {
    document.title = 'Sign in · Sandboxes';
    key.current.focus();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      const typed = key.current.value;
      key.current.value = '';
      await enter(typed);
    });
  };
  return html`<main class="signin">
    <h1>Sandboxes</h1>
    <form onSubmit=${submit}>
      <label for="key">API key</label>
      <input id="key" ref=${key} type="password" required autocomplete="off" spellcheck=${false} aria-describedby="key-help" />
      <p id="key-help" class="dim">The browser does not keep it. The session ends after 12 hours, when you sign out, or when the service restarts.</p>
      <${Problem} error=${error ?? ended} />
      <button class="primary" disabled=${busy}>Sign in</button>
    </form>
  </main>`;
}
