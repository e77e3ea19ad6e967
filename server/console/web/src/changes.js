// The files in which a snapshot differs from the one before it, or from its image.
import { useEffect, useState } from 'preact/hooks';
import { call } from './api.js';
import { bytes, Empty, html, Modal, nameOf, Problem } from './ui.js';

const limit = 1000; // files that are shown

/** called is what a snapshot is called. */
export const called = ({ id, name }) => nameOf({ id, metadata: { name } });

/** Changes shows what a snapshot has of its own. Parent is the snapshot before it, undefined for none. */
export function Changes({ snapshot, parent, onClose }) {
  const [whole, setWhole] = useState(!parent);
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    setFound(null);
    setError(null);
    const [from, to] = whole ? [snapshot.id, ''] : [parent.id, `&to=${snapshot.id}`];
    call('GET', `/v1/snapshots/${from}/diff?limit=${limit}${to}`, undefined, { signal: control.signal })
      .then(setFound, (failure) => failure.name === 'AbortError' || setError(failure));
    return () => control.abort();
  }, [whole]);
  return html`<${Modal} title=${`Changes of ${called(snapshot)}`} onClose=${onClose}>
    ${parent && html`<p><label for="since">Since</label> <select id="since" value=${String(whole)} onChange=${(event) => setWhole(event.target.value === 'true')}>
      <option value="false">${called(parent)}</option><option value="true">the image</option></select></p>`}
    <${Problem} error=${error} />
    ${!found ? !error && html`<${Empty}>Comparing…<//>` : !found.items.length ? html`<${Empty}>No file differs.<//>` : html`<div class="changes" tabindex="0" role="region" aria-label="Files that differ"><table>
      <caption class="hidden">Files that differ</caption>
      <thead><tr><th scope="col">Change</th><th scope="col">File</th><th scope="col" class="number">Size</th></tr></thead>
      <tbody>${found.items.map(({ path, kind, type, size }) => html`<tr key=${path}><td><code>${kind}</code></td>
        <th scope="row"><bdi>${path}${type === 'directory' ? '/' : ''}</bdi></th><td class="number">${type === 'directory' ? '–' : bytes(size)}</td></tr>`)}</tbody>
    </table></div>`}
    ${found?.truncated && html`<p class="dim">The first ${limit} files that differ</p>`}
    <div class="actions"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}
