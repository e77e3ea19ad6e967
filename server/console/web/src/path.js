// Absolute paths of files in a sandbox.

/** base is the last part of a path. */
export const base = (path) => path.slice(path.lastIndexOf('/') + 1) || '/';

/** parent is a path without its last part. */
export const parent = (path) => path.slice(0, path.lastIndexOf('/')) || '/';

/** join is the path of a name in a folder. */
export const join = (folder, name) => `${folder === '/' ? '' : folder}/${name}`;
