// The terminal emulator, a bundle of its own that is loaded when the first terminal is shown.
import { FitAddon } from '@xterm/addon-fit';
import { Terminal } from '@xterm/xterm';

// xterm.js makes style elements, which the page's policy permits with its nonce alone, and sets style attributes, which it does not permit
// at all; the same through the style object of an element is no matter of the policy.
const nonce = document.querySelector('script[nonce]').nonce;
const create = document.createElement.bind(document);
function setAttribute(name, value) {
  if (name === 'style') this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}
document.createElement = (name, options) => {
  const element = create(name, options);
  if (name === 'style') element.nonce = nonce;
  if (name === 'span') element.setAttribute = setAttribute;
  return element;
};

const themes = {
  light: { background: '#fbfbfc', foreground: '#1d2430', cursor: '#1d2430', cursorAccent: '#fbfbfc', selectionBackground: '#bcd3f2',
    black: '#1d2430', red: '#b3261e', green: '#1c6b3a', yellow: '#7a5200', blue: '#1a55b0', magenta: '#8a2a8c', cyan: '#0f6674', white: '#6a7280',
    brightBlack: '#5b6472', brightRed: '#b3261e', brightGreen: '#1c6b3a', brightYellow: '#7a5200', brightBlue: '#1a55b0', brightMagenta: '#8a2a8c', brightCyan: '#0f6674', brightWhite: '#3a4250' },
  dark: { background: '#0f1318', foreground: '#dfe4ea', cursor: '#dfe4ea', cursorAccent: '#0f1318', selectionBackground: '#2f4a6d',
    black: '#3a4250', red: '#ff8a80', green: '#7ad99a', yellow: '#e6c068', blue: '#8ab8ff', magenta: '#e29ae4', cyan: '#74d0dd', white: '#dfe4ea',
    brightBlack: '#8b95a3', brightRed: '#ffa79f', brightGreen: '#99e6b3', brightYellow: '#f1d48c', brightBlue: '#aaccff', brightMagenta: '#eebbef', brightCyan: '#9be0ea', brightWhite: '#ffffff' },
};

// What the emulator answers by itself when a program asks for its state. A replay asks again what was answered long ago.
const report = /^\x1b(?:\[[?>=]?[\d;]*[cnRty$]|P|\])/;

/**
 * open shows a terminal in an element.
 *
 * @param {HTMLElement} element
 * @param {{onInput: (bytes: Uint8Array) => void, onSize: (rows: number, cols: number) => void, onLeave: () => void, screenReader: boolean}} options
 */
export function open(element, { onInput, onSize, onLeave, screenReader }) {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const theme = () => (dark.matches ? themes.dark : themes.light);
  const terminal = new Terminal({
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace', fontSize: 13, scrollback: 10_000,
    theme: theme(), screenReaderMode: screenReader, minimumContrastRatio: 4.5, linkHandler: { activate() {} },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(element);
  const encoder = new TextEncoder();
  let replaying = 0;
  terminal.onData((text) => { if (!replaying || !report.test(text)) onInput(encoder.encode(text)); });
  terminal.onBinary((text) => onInput(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => onSize(rows, cols));
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== 'Escape' || !event.shiftKey) return true;
    if (event.type === 'keydown') onLeave();
    return false;
  });
  const paint = () => { terminal.options.theme = theme(); };
  dark.addEventListener('change', paint);
  const refit = () => { if (element.offsetParent) fit.fit(); };
  const observer = new ResizeObserver(refit);
  observer.observe(element);
  refit();
  return {
    write: (data) => terminal.write(data),
    /** replay clears the terminal, and takes what is written until replayed is called as earlier output. */
    replay() {
      replaying++;
      terminal.write('\x1bc');
    },
    replayed: () => terminal.write('', () => { replaying--; }),
    size: () => ({ rows: terminal.rows, cols: terminal.cols }),
    focus: () => terminal.focus(),
    enable(on) { terminal.options.disableStdin = !on; },
    readAloud(on) { terminal.options.screenReaderMode = on; },
    dispose() {
      observer.disconnect();
      dark.removeEventListener('change', paint);
      terminal.dispose();
    },
  };
}
