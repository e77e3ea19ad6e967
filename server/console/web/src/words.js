/** words splits a command line into words as a shell does with quotes and backslashes, without expanding anything. */
export function words(line) {
  const found = [];
  let word = null;
  let quote = '';
  for (let i = 0; i < line.length; i++) {
    const c = line[i];
    if (quote === "'" ? c !== "'" : quote === '"' && c !== '"' && c !== '\\') {
      word += c;
    } else if (c === quote) {
      quote = '';
    } else if (c === '\\' && i + 1 < line.length) {
      const escaped = line[++i];
      word = (word ?? '') + (quote && !'"\\$`'.includes(escaped) ? `\\${escaped}` : escaped);
    } else if (!quote && (c === "'" || c === '"')) {
      quote = c;
      word ??= '';
    } else if (!quote && /\s/.test(c)) {
      if (word !== null) found.push(word);
      word = null;
    } else {
      word = (word ?? '') + c;
    }
  }
  if (quote) throw new Error(`entrypoint: the quote ${quote} is not closed`);
  if (word !== null) found.push(word);
  return found;
}
