// What was typed into files and not saved. It outlives the tab that shows it, the pause of a sandbox and the end of a session.

/** drafts are {text, tag, end} by what keyOf returns; tag is the ETag of the file that was changed, and end is what ends its lines. */
export const drafts = new Map();

/** keyOf names a file of a sandbox. */
export const keyOf = (id, path) => `${id} ${path}`;

addEventListener('beforeunload', (event) => { if (drafts.size) event.preventDefault(); });
