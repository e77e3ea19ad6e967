// Processor and memory use of the sandboxes whose rows are visible.
import { useEffect, useState } from 'preact/hooks';
import { call, daemon, pause, whileVisible } from './api.js';

const interval = 5000; // ms between two measurements of all visible rows
const parallel = 2; // requests at a time: a browser opens six connections to a host

/** createUsage returns what measures: watch(element, id) begins for a row while it is on the screen, and returns what ends it. */
export function createUsage(onSample) {
  const control = new AbortController();
  const { signal } = control;
  const visible = new Map(); // ids by element
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && target.isConnected) visible.set(target, target.dataset.id);
      else visible.delete(target);
    }
  });
  const round = async (own) => {
    const left = [...new Set(visible.values())];
    const measure = async () => {
      while (left.length) {
        const id = left.shift();
        const sample = await call('GET', daemon(id, '/metrics'), undefined, { signal: own }).catch((error) => {
          if (error.name === 'AbortError' || error.status === 401 || error.status === 429) throw error;
          return null; // it is not Running any more, or does not answer
        });
        onSample(id, sample);
      }
    };
    await Promise.all(Array.from({ length: parallel }, measure));
  };
  (async () => {
    for (let wait = 300; !signal.aborted; wait = interval) { // the rows report first that they are visible
      await pause(wait, signal);
      try {
        await whileVisible(signal, round);
      } catch (error) {
        if (error.status === 429) await pause(1000 * (error.retryAfter || 5), signal);
      }
    }
  })().catch(() => {});
  return {
    watch(element) {
      observer.observe(element);
      return () => {
        observer.unobserve(element);
        visible.delete(element);
      };
    },
    end() {
      control.abort();
      observer.disconnect();
    },
  };
}

/** useUsage returns what measures rows, null for a session that may not, and the last samples by id, null for what gave none. */
export function useUsage(allowed) {
  const [usage, setUsage] = useState(null);
  const [samples, setSamples] = useState(new Map());
  useEffect(() => {
    if (!allowed) return undefined;
    let pending = null; // samples that come at once are shown at once
    const made = createUsage((id, sample) => {
      if (pending) return pending.push([id, sample]);
      pending = [[id, sample]];
      return setTimeout(() => {
        const more = pending;
        pending = null;
        setSamples((old) => new Map([...old, ...more]));
      }, 100);
    });
    setUsage(made);
    return () => made.end();
  }, [allowed]);
  return [usage, samples];
}
